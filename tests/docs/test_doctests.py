"""Every example in a docstring runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import jax
import pytest

import jax_convgrad

pytestmark = pytest.mark.docs

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(jax_convgrad.__path__, "jax_convgrad.")
    if not module.name.rpartition(".")[2].startswith("_")
)

FUNCTIONS = [n for n in jax_convgrad.__all__ if inspect.isfunction(getattr(jax_convgrad, n))]


@pytest.fixture(autouse=True)
def float32() -> Iterator[None]:
    """Readers have JAX's default."""
    with jax.enable_x64(False):
        yield


@pytest.mark.parametrize("name", ["jax_convgrad", *MODULES])
def test_examples(name: str):
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert results.failed == 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_have_an_example_that_can_fail(name: str):
    """It prints something, or asserts."""
    examples = doctest.DocTestParser().get_examples(getattr(jax_convgrad, name).__doc__ or "")
    assert any(example.want or "assert" in example.source for example in examples)

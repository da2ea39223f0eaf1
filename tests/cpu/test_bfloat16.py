"""bfloat16 on every x86-64 processor: by oneDNN, exact on small integers, with AVX-512 or without it."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.comparisons import assert_exact
from support.conv_oracle import conv_oracle
from support.layouts import to_layout
from support.processors import PROCESSORS_WITH_LESS, passed_on
from support.random_cases import draw_case

from jax_convgrad import conv_dgrad, conv_fprop, conv_wgrad
from jax_convgrad._src.dispatch.override import override_backend

pytestmark = [pytest.mark.on_cpu, pytest.mark.usefixtures("needs_cpu_handlers")]

SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_operators_are_exact(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = draw_case(rng, "bfloat16")
    data = case.data(rng, "bfloat16")
    in_order = lambda arrays: [*map(to_layout, arrays, case.numbers)]  # noqa: E731
    y, dx, dw = conv_oracle(case, *data)
    expected = in_order((dx, dw, y))
    x, w, dy = (jnp.asarray(array, "bfloat16") for array in in_order(data))

    @jax.jit
    def run(x: jax.Array, w: jax.Array, dy: jax.Array) -> tuple[jax.Array, ...]:
        keywords = case.operator_keywords
        return (
            conv_dgrad(dy, w, case.logical("x"), **keywords),
            conv_wgrad(x, dy, case.logical("w"), **keywords),
            conv_fprop(x, w, **keywords),
        )

    with override_backend("onednn"):
        compiled = run.lower(x, w, dy).compile()
    calls = set(re.findall(r'custom_call_target="jax_convgrad_(conv_\w+)"', compiled.as_text()))
    if any(array.any() for array in expected):  # otherwise no window reads an element
        assert calls == {"conv_fprop", "conv_dgrad", "conv_wgrad"}
    for name, got, wanted in zip(("dx", "dw", "y"), compiled(x, w, dy), expected, strict=True):
        assert_exact(got, wanted, "bfloat16", name)


@pytest.mark.parametrize("isa", PROCESSORS_WITH_LESS)
def test_on_processors_with_less(isa: str) -> None:
    assert passed_on(isa, __file__, "operators_are_exact") == len(SEEDS)

"""Seeded random resizes by jax.image with install(), against matrices of float64.

One seed is one problem: sizes, layout, axes, method, dtype and data all follow from it. A failure names its
seeds. JAX_CONVGRAD_INSTALL_RESIZES sets how many run, JAX_CONVGRAD_INSTALL_FIRST the first seed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import jax
import numpy as np
import pytest
from support import shrinking
from support.drawn_resizes import DrawnResize, draw_of_jax_image

import jax_convgrad

pytestmark = [
    pytest.mark.optimised,
    pytest.mark.skipif(
        jax.default_backend() != "cpu", reason="its bounds have been checked on CPUs alone"
    ),
]

CASES = int(os.environ.get("JAX_CONVGRAD_INSTALL_RESIZES", "100"))
FIRST = int(os.environ.get("JAX_CONVGRAD_INSTALL_FIRST", "0"))
CHUNK = 50
AGAIN = "JAX_CONVGRAD_INSTALL_RESIZES=1 JAX_CONVGRAD_INSTALL_FIRST={} pytest "


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    jax_convgrad.install()
    yield
    jax_convgrad.uninstall()


def is_served(drawn: DrawnResize) -> bool:
    """Whether the program has this package's primitive; axes of traced numbers have none."""
    arguments = drawn.arguments(np.random.default_rng(0))
    return "resample[" in str(jax.make_jaxpr(drawn.program(jax.image))(*arguments))


def run_seed(seed: int) -> str | None:
    """None if the problem of ``seed`` passes, else what is wrong and how to see it again."""
    rng = np.random.default_rng(seed)
    drawn = draw_of_jax_image(rng)
    try:
        assert drawn.is_traced or is_served(drawn), "stays with jax.image"
        drawn.check(jax.image, rng)
    except Exception as error:
        return f"{AGAIN.format(seed)}{__file__}   # {drawn}: {type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("first", range(FIRST, FIRST + CASES, CHUNK))
def test_random_resizes(first: int):
    seeds = range(first, min(first + CHUNK, FIRST + CASES))
    failures = list(filter(None, map(run_seed, seeds)))
    assert not failures, "\n".join([f"{len(failures)} of {len(seeds)} problems:", *failures])


def test_shrinks_installed_resizes():
    shrinking.check(
        lambda rng: (draw_of_jax_image(rng), rng), lambda drawn: drawn[0].check(jax.image, drawn[1])
    )

"""Seeded random resizes by jax.image with install(), against matrices of float64.

One seed is one problem: sizes, layout, axes, method, dtype and data all follow from it. A failure names its
seeds. JAX_CONVGRAD_INSTALL_RESIZES sets how many run, JAX_CONVGRAD_INSTALL_FIRST the first seed.
"""

from __future__ import annotations

import os

import jax
import numpy as np
import pytest
from support import seeded, shrinking
from support.drawn_resizes import DrawnResize, draw_of_jax_image

pytestmark = [
    pytest.mark.optimized,
    pytest.mark.usefixtures("installed"),
    pytest.mark.skipif(
        jax.default_backend() != "cpu", reason="its bounds have been checked on CPUs alone"
    ),
]

CASES = int(os.environ.get("JAX_CONVGRAD_INSTALL_RESIZES", "100"))
FIRST = int(os.environ.get("JAX_CONVGRAD_INSTALL_FIRST", "0"))
CHUNK = 50
AGAIN = "JAX_CONVGRAD_INSTALL_RESIZES=1 JAX_CONVGRAD_INSTALL_FIRST={} pytest "


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


@pytest.mark.parametrize("seeds", seeded.chunks(FIRST, CASES, CHUNK), ids=str)
def test_random_resizes(seeds: range):
    seeded.check(run_seed, seeds)


def test_shrinks_installed_resizes():
    shrinking.check(
        lambda rng: (draw_of_jax_image(rng), rng), lambda drawn: drawn[0].check(jax.image, drawn[1])
    )

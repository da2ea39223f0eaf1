"""Seeded random resizes by this package's functions, against matrices of float64.

One seed is one problem: sizes, layout, axes, method, convention, dtype and data all follow from it. A
failure names its seeds; this runs exactly that problem again:

    PYTHONPATH=tests python tests/resize/test_random.py --seed N

JAX_CONVGRAD_RESIZE_CASES sets how many run, JAX_CONVGRAD_RANDOM_FIRST the first seed.
"""

from __future__ import annotations

import argparse
import math
import os

import jax
import numpy as np
import pytest
from support import seeded, shrinking
from support.comparisons import FLOATS
from support.drawn_resizes import DrawnResize, draw_any, draw_resize

import jax_convgrad

pytestmark = [
    pytest.mark.optimized,
    pytest.mark.skipif(
        jax.default_backend() != "cpu", reason="its bounds have been checked on CPUs alone"
    ),
]

CASES = int(os.environ.get("JAX_CONVGRAD_RESIZE_CASES", "120"))
FIRST = int(os.environ.get("JAX_CONVGRAD_RANDOM_FIRST", "0"))
CHUNK = 40


def run_seed(seed: int) -> str | None:
    """None if the problem of ``seed`` passes, else what is wrong and how to see it again."""
    rng = np.random.default_rng(seed)
    drawn = draw_any(rng)
    try:
        drawn.check(jax_convgrad, rng)
    except Exception as error:
        what = f"{drawn}: {type(error).__name__}: {error}"
        return f"PYTHONPATH=tests python tests/resize/test_random.py --seed {seed}   # {what}"
    return None


@pytest.mark.parametrize("seeds", seeded.chunks(FIRST, CASES, CHUNK), ids=str)
def test_random(seeds: range):
    seeded.check(run_seed, seeds)


def test_shrinks_resizes():
    shrinking.check(
        lambda rng: (draw_any(rng), rng), lambda drawn: drawn[0].check(jax_convgrad, drawn[1])
    )
    jax.clear_caches()


def test_shrinking_ends_at_a_small_resize():
    """A comparison that fails where an axis has fewer elements in the end, and float64: two become one."""
    failed = []

    def verify(drawn: DrawnResize) -> None:
        if min(np.asarray(drawn.y) - drawn.x) < 0 and drawn.dtype == "float64":
            failed.append(drawn)
            raise AssertionError("it shrinks")

    with pytest.raises(AssertionError, match="it shrinks"):
        shrinking.check(draw_resize, verify, examples=100)
    smallest = failed[-1]
    assert len(smallest.axes) == 1 and max(smallest.x) <= 3
    assert math.prod(failed[0].x) > math.prod(smallest.x)


def test_the_generator_covers_the_space():
    """The first 400 seeds already contain everything that is to be drawn."""
    drawn = [draw_any(np.random.default_rng(seed)) for seed in range(400)]
    texts = list(map(str, drawn))
    for wanted in [
        *FLOATS,
        *("nearest", "linear", "cubic,", "cubic-pytorch", "lanczos3", "lanczos5", "area,"),
        *("area-pytorch", "antialias=True", "antialias=False", "align_corners", "asymmetric"),
        *("half_pixel_symmetric", "pytorch_half_pixel", "tf_crop_and_resize", "floor", "ceil"),
        *("cubic_coeff_a", "exclude_outside=True", "exclude_outside=False", "known", "traced"),
        *("scale=(-", "scale=[None"),
    ]:
        assert any(wanted in text for text in texts), f"no problem with {wanted}"
    for axes in [(0,), (1,), (2,), (0, 1), (1, 2), (2, 3), (0, 1, 2), (1, 2, 3), (2, 3, 4)]:
        grows = {all(d.y[a] > d.x[a] for a in axes) for d in drawn if d.axes == axes}
        assert grows == {True, False}, f"along {axes}: {grows}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, required=True)
    seed = parser.parse_args().seed
    jax.config.update("jax_enable_x64", True)
    print(draw_any(np.random.default_rng(seed)))
    failure = run_seed(seed)
    print("passes" if failure is None else failure)
    raise SystemExit(failure is not None)


if __name__ == "__main__":
    main()

"""Seeded random problems with rows and channels as real layers have them, which fill vectors and tiles.

Those of test_random.py are small, so that their sums are exact in 16 bits. Here they are exact in float32,
and a 16-bit result may be off by what rounding the sum and a part of it comes to. JAX_CONVGRAD_WIDE_CASES
sets how many problems run, JAX_CONVGRAD_RANDOM_FIRST the first seed.
"""

from __future__ import annotations

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.comparisons import FLOATS, exact_ints, value_and_gradients
from support.conv_cases import draw_wide, in_layout
from support.conv_oracle import conv_oracle
from support.layouts import from_layout

import jax_convgrad

CASES = int(os.environ.get("JAX_CONVGRAD_WIDE_CASES", "60"))
FIRST = int(os.environ.get("JAX_CONVGRAD_RANDOM_FIRST", "0"))
CHUNK = 5
LAYOUTS = ("NCX OIX NCX", "NXC XIO NXC", "NXC OXI NXC", "NCX XIO NXC", "CXN IXO XNC")


@pytest.mark.parametrize("chunk", range(-(-CASES // CHUNK)))
def test_wide_problems(chunk: int):
    failures = []
    for seed in range(FIRST + chunk * CHUNK, FIRST + min((chunk + 1) * CHUNK, CASES)):
        rng = np.random.default_rng(seed)
        dtype = str(rng.choice(FLOATS, p=[0.35, 0.35, 0.2, 0.1]))
        case = draw_wide(rng, str(rng.choice(LAYOUTS, p=[0.3, 0.3, 0.2, 0.1, 0.1])))
        data = [
            exact_ints(rng, shape, "float32", case.reduction) for shape in (case.x, case.w, case.y)
        ]
        data = [np.clip(array, -3, 3) for array in data]
        run = value_and_gradients(
            functools.partial(jax_convgrad.conv_fprop, **case.operator_keywords)
        )
        x, w, dy = (jnp.asarray(array, dtype) for array in in_layout(case, *data))
        results = run(dy, x, w)
        specs = [case.numbers[i] for i in (2, 0, 1)]
        for name, got, spec, expected in zip(
            ("y", "dx", "dw"), results, specs, conv_oracle(case, *data), strict=True
        ):
            got = from_layout(np.asarray(got).astype(np.float64), spec)
            allowed = 2 * float(jnp.finfo(dtype).eps) * np.abs(expected).max(initial=0)
            if got.shape != expected.shape or not (np.abs(got - expected) <= allowed).all():
                failures.append(f"seed {seed}, {dtype}, {name} of {case}")
    # Compiled programs of one chunk are of no use to the next.
    jax.clear_caches()
    assert not failures, "\n".join(failures)

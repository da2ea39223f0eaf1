"""A resample with more than 2**31 elements on the present device, as a program of its own.

    PYTHONPATH=tests python tests/support/large_resample.py grow|shrink CHANNELS

It takes some 20 GB of the device's memory, which end with the process.
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
from support import resample_cases as cases

TAPS = 2


def check(grow: bool, channels: int) -> None:
    """Weights of one half on two neighbors, and pixels that encode their position, so that rows from all
    over the array can be checked alone."""
    small = int((2.05 * 2**31 / channels) ** 0.5) // 2
    n, m = (small, 2 * small) if grow else (2 * small, small)
    start = np.clip(np.arange(m) * n // m, 0, n - TAPS).astype(np.int32)
    table = (start, np.full((m, TAPS), 0.5, np.float32))
    rows = jnp.arange(n, dtype=jnp.int32)
    pixel = lambda i, j, c: ((i * 7 + j * 3 + c) % 64).astype(jnp.bfloat16)  # noqa: E731
    x = jax.jit(
        lambda: pixel(rows[:, None, None], rows[None, :, None], jnp.arange(channels)[None, None])
    )()[None]
    call = jax.ffi.ffi_call(cases.TARGET, jax.ShapeDtypeStruct((1, m, m, channels), x.dtype))
    tables = [jnp.asarray(t) for t in (*table, *table)]
    y = jax.jit(lambda *a: call(*a, axes=np.asarray([1, 2], np.int64)))(x, *tables)
    assert max(x.size, y.size) > 2**31
    picks = np.unique(np.linspace(0, m - 1, 97).astype(int))
    got = np.stack([np.asarray(y[0, int(i)]) for i in picks]).astype(np.float64)
    i = (start[picks][:, None] + np.arange(TAPS)).reshape(len(picks), TAPS, 1, 1, 1)
    j = (start[:, None] + np.arange(TAPS)).reshape(1, 1, m, TAPS, 1)
    expected = ((i * 7 + j * 3 + np.arange(channels)) % 64).mean((1, 3))
    np.testing.assert_allclose(got, expected, rtol=2.0**-8)


if __name__ == "__main__":
    from jax_convgrad._src.runtime import registry

    assert registry.require("cuda").reason is None, registry.require("cuda").reason
    check(sys.argv[1] == "grow", int(sys.argv[2]))
    print("right")

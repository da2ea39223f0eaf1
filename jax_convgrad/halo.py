"""Rows of the neighbours, for an array that is split along one of its axes among several devices.

Used in the program of one device, where the mesh axes have names. The first device has nothing in front
of it and the last one nothing behind: they get zeros, which are a convolution's zero padding.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax


def fits(size: int, low: int, high: int) -> bool:
    """Whether blocks of ``size`` rows can be extended with rows of their next neighbours alone."""
    return max(low, high) <= size and size + min(low, 0) + min(high, 0) > 0


def extend(x: Array, axis: int, low: int, high: int, names: tuple[str, ...], count: int) -> Array:
    """``x`` with ``low`` more rows in front and ``high`` more behind; negative numbers crop.

    ``names`` are the mesh axes that the array's ``axis`` is split over, major to minor, into ``count``
    blocks.
    """
    size = x.shape[axis]
    parts = [lax.slice_in_dim(x, max(-low, 0), size - max(-high, 0), axis=axis)]
    if low > 0:
        last = lax.slice_in_dim(x, size - low, size, axis=axis)
        parts.insert(0, lax.ppermute(last, names, [(i, i + 1) for i in range(count - 1)]))
    if high > 0:
        first = lax.slice_in_dim(x, 0, high, axis=axis)
        parts.append(lax.ppermute(first, names, [(i + 1, i) for i in range(count - 1)]))
    return jnp.concatenate(parts, axis) if len(parts) > 1 else parts[0]

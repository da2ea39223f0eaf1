"""Rows of the neighbors, for an array that is split along one axis among several devices.

Used in the program of one device, where the mesh axes have names. The first device has no neighbor in
front of it and the last one none behind it: they get zeros, which are a convolution's zero padding.
"""

from __future__ import annotations

import itertools

import jax.numpy as jnp
from jax import Array, lax


def fits(size: int, low: int, high: int) -> bool:
    """Whether blocks of ``size`` rows can be extended with rows of their direct neighbors alone."""
    return max(low, high) <= size and size + min(low, 0) + min(high, 0) > 0


def extend(
    x: Array, axis: int, low: int, high: int, names: tuple[str, ...], places: tuple[int, ...]
) -> Array:
    """``x`` with ``low`` more rows in front and ``high`` more behind; negative numbers crop.

    ``names`` are the mesh axes that the array's ``axis`` is split over, in the mesh's order; ``places``
    says which device along them has the first block, the second, and so on.
    """
    neighbors = list(itertools.pairwise(places))
    size = x.shape[axis]
    parts = [lax.slice_in_dim(x, max(-low, 0), size - max(-high, 0), axis=axis)]
    if low > 0:
        last = lax.slice_in_dim(x, size - low, size, axis=axis)
        parts.insert(0, lax.ppermute(last, names, neighbors))
    if high > 0:
        first = lax.slice_in_dim(x, 0, high, axis=axis)
        parts.append(lax.ppermute(first, names, [(b, a) for a, b in neighbors]))
    return jnp.concatenate(parts, axis) if len(parts) > 1 else parts[0]

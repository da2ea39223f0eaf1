"""Rearrangements of one array that several forms of a convolution share."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jax_convgrad._src import compat
from jax_convgrad._src.shapes import Pairs, is_number


def pad_spatial(array: Array, pairs: Pairs, spec: Sequence[int]) -> Array:
    """``array`` with its spatial axes padded with zeros by ``pairs``; negative numbers crop."""
    if all(is_number(n) and n == 0 for pair in pairs for n in pair):
        return array
    amounts = [(0, 0, 0)] * array.ndim
    for axis, (low, high) in zip(spec[2:], pairs, strict=True):
        amounts[axis] = (low, high, 0)
    return lax.pad(array, np.zeros((), array.dtype), amounts)


def insert_zeros(array: Array, dilation: Sequence[int], spec: Sequence[int]) -> Array:
    """``dilation`` - 1 zeros between the elements along each spatial axis."""
    amounts = [(0, 0, 0)] * array.ndim
    for axis, d in zip(spec[2:], dilation, strict=True):
        amounts[axis] = (0, 0, d - 1)
    return lax.pad(array, np.zeros((), array.dtype), amounts)


def swap_channels(spec: Sequence[int]) -> tuple[int, ...]:
    """A dimension specification with its first two roles exchanged."""
    return (spec[1], spec[0], *spec[2:])


def move_groups(array: Array, groups: int, source: int, target: int) -> Array:
    """Moves the outer ``groups`` factor of axis ``source`` to the front of axis ``target``."""
    shape = array.shape
    split = compat.split_off(array, source, groups)
    # The group axis now stands at `source`, and everything from there on has moved up by one.
    split = jnp.moveaxis(split, source, target)
    merged = list(shape)
    merged[source] //= groups
    merged[target] *= groups
    return split.reshape(merged)

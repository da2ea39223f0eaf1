"""Bands applied in plain lax: where no handler serves.

Sums are taken in float32 (float64 for float64) over all axes and rounded once. Along one axis there
are three forms:

- "gather": one gather per tap. Each is a copy of whole rows where other axes lie inside the resized one.
- "slices": where the sizes have a simple ratio, output k * p + r reads the inputs from k * q + c on, for
  all k alike: one strided slice per tap, with weights of its own for each output.
- "dense": a matrix product, zeros and all.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jax_convgrad._src.dtypes import sum_dtype
from jax_convgrad._src.resize.bands import Band

# Bounds of the choice in `form`, from benchmarks/survey_resample.py on two idle CPU cores (its output is
# benchmarks/cpu/survey_resample.md).
_FULL_ROW = 8
_MAX_PHASES = 16
_SLICES_BEYOND_TAPS = 8
_DENSE_PER_TAP = 4
_MAX_GATHERS = 16


def resample(
    platform: str | None, x: Array, *, bands: tuple[Band, ...], axes: tuple[int, ...]
) -> Array:
    """``x`` with each band applied along its axis."""
    dtype = x.dtype
    if all(band.is_selection for band in bands):
        for band, axis in zip(bands, axes, strict=True):
            x = _gather(x, band, axis)
        return x
    wide = sum_dtype(dtype)
    if wide != dtype:
        # Once, instead of at every tap.
        x = lax.optimization_barrier(x.astype(wide))
    for band, axis in _ordered(bands, axes):
        x = apply(x, band, axis, form(platform, x.shape, band, axis))
    return x.astype(dtype)


def form(platform: str | None, shape: tuple[int, ...], band: Band, axis: int) -> str:
    """The fastest form along one axis, by platform, the array's shape and the band."""
    if band.is_selection:
        return "gather"
    if platform != "cpu":
        # Not measured: XLA:GPU fuses gathers, and a TPU is made for matrix products.
        few = band.taps <= _MAX_GATHERS and platform == "cuda"
        return "gather" if few else "dense"
    # ns per output: whole rows gathered 0.05 a tap, elements gathered 0.4 to 0.6; slices 0.05 to 0.4; a
    # matrix product 0.016 to 0.05 an input.
    if band.size <= _DENSE_PER_TAP * band.taps:
        return "dense"
    if math.prod(shape[axis + 1 :]) >= _FULL_ROW:
        return "gather"
    found = phases(band)
    if found is not None and len(found.weights) <= band.taps + _SLICES_BEYOND_TAPS:
        return "slices"
    return "gather"


def apply(x: Array, band: Band, axis: int, name: str) -> Array:
    """One band in the form ``name``."""
    return {"gather": _gather, "slices": _slices, "dense": _dense}[name](x, band, axis)


def _ordered(bands: tuple[Band, ...], axes: tuple[int, ...]) -> list[tuple[Band, int]]:
    """Axes that shrink first, outermost to innermost, then those that grow, innermost to outermost.

    The innermost axis, the slowest, is therefore resized while the array is small.
    """
    pairs = sorted(zip(bands, axes, strict=True), key=lambda pair: pair[1])
    shrinking = [pair for pair in pairs if pair[0].out_size <= pair[0].size]
    growing = [pair for pair in pairs if pair[0].out_size > pair[0].size]
    return shrinking + growing[::-1]


def _gather(x: Array, band: Band, axis: int) -> Array:
    rows = [jnp.take(x, band.start + np.int32(tap), axis, mode="clip") for tap in range(band.taps)]
    if band.is_selection:
        return rows[0]
    return _weighted_sum(rows, [_along(band.weights[:, t], x, axis) for t in range(band.taps)])


def _slices(x: Array, band: Band, axis: int) -> Array:
    found = phases(band)
    if found is None:
        raise ValueError(f"{band} has no simple ratio of sizes")
    outputs, inputs, first, weights = found
    blocks = band.out_size // outputs
    low = max(0, -first)
    high = max(0, inputs * (blocks - 1) + first + len(weights) - band.size)
    amounts = [(0, 0, 0)] * x.ndim
    amounts[axis] = (low, high, 0)
    padded = lax.pad(x, np.zeros((), x.dtype), amounts)
    rows, factors = [], []
    for tap, weight in enumerate(weights):
        begin = first + low + tap
        row = lax.slice_in_dim(padded, begin, begin + inputs * (blocks - 1) + 1, inputs, axis)
        rows.append(jnp.expand_dims(row, axis + 1))
        shape = (*(1,) * axis, blocks, outputs, *(1,) * (x.ndim - axis - 1))
        factors.append(weight.astype(x.dtype).reshape(shape))
    result = _weighted_sum(rows, factors)
    return result.reshape(*x.shape[:axis], band.out_size, *x.shape[axis + 1 :])


def _dense(x: Array, band: Band, axis: int) -> Array:
    matrix = band.dense().astype(x.dtype)
    operand, result = list(range(x.ndim)), list(range(x.ndim))
    result[axis] = x.ndim
    return jnp.einsum(
        x, operand, matrix, [x.ndim, axis], result, precision=lax.Precision.HIGHEST
    ).astype(x.dtype)


class Phases(NamedTuple):
    """Output k * outputs + r is the sum over taps t of weights[t, k * outputs + r] * x[k * inputs +
    first + t], with zeros for what lies outside x."""

    outputs: int
    inputs: int
    first: int
    weights: np.ndarray


def phases(band: Band) -> Phases | None:
    """The band in steps of the sizes' ratio; None if the ratio is not a simple one."""
    blocks = math.gcd(band.size, band.out_size)
    outputs, inputs = band.out_size // blocks, band.size // blocks
    if max(outputs, inputs) > _MAX_PHASES:
        return None
    rows, taps = np.nonzero(band.weights)
    if not rows.size:
        return None
    offsets = band.start[rows] + taps - rows // outputs * inputs
    first = int(offsets.min())
    weights = np.zeros((int(offsets.max()) - first + 1, band.out_size))
    weights[offsets - first, rows] = band.weights[rows, taps]
    return Phases(outputs, inputs, first, weights)


def _along(weights: np.ndarray, x: Array, axis: int) -> np.ndarray:
    return weights.astype(x.dtype).reshape(*(1,) * axis, -1, *(1,) * (x.ndim - axis - 1))


def _weighted_sum(rows: list[Array], factors: list[np.ndarray]) -> Array:
    total = rows[0] * factors[0]
    for row, factor in zip(rows[1:], factors[1:], strict=True):
        total = total + row * factor
    return total

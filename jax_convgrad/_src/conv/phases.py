"""Strided convolutions of dilated inputs, as convolutions of the input itself.

With stride s, input dilation b and kernel dilation d, window k meets tap j at k * s + j * d - low of the
dilated input. There is an element where that is a multiple of b, and a zero in all other places, so only
some taps count. Which ones depends on k.

NOTE [Common factors]. Where s and b share a factor f, only taps with j * d - low at a multiple of f can
count, whatever k is. A convolution with these taps, stride s / f and input dilation b / f gives the same,
its kernel dilation and padding counted in multiples of f.

NOTE [Phases]. Without a common factor, windows k = b * q + r of one r all have the same taps. They meet
elements s apart: each phase r is a plain convolution of the input, and the phases interleave. No zero is
inserted or multiplied, in derivatives either.

Where there would be too many phases, or sizes are symbolic, the zeros are inserted after all.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jax_convgrad._src import compat
from jax_convgrad._src.conv.arrays import insert_zeros
from jax_convgrad._src.conv.geometry import ConvGeometry, dilated
from jax_convgrad._src.shapes import Pairs

# At most this many convolutions in one program, and so many parts of its result, some of them only zeros.
# Where there would be more, the zeros are inserted.
MAX_PHASES, MAX_PARTS = 32, 128


@dataclasses.dataclass(frozen=True)
class Axis:
    """One spatial axis of a strided convolution of a dilated input; ``out_size`` fixes the high padding."""

    size: int
    kernel: int
    stride: int
    input_dilation: int
    dilation: int
    low: int
    out_size: int

    @property
    def padding(self) -> tuple[int, int]:
        """(low, high) in elements of the dilated input."""
        windows = (self.out_size - 1) * self.stride + dilated(self.kernel, self.dilation)
        return self.low, windows - dilated(self.size, self.input_dilation) - self.low


@dataclasses.dataclass(frozen=True)
class Taps:
    """Every ``step``-th tap of a kernel from ``start`` on, and the ``axis`` of the convolution with them."""

    start: int
    step: int
    axis: Axis


class Windows(NamedTuple):
    """The strides, the padding and the kernel dilation of a convolution, one entry an axis."""

    strides: tuple[int, ...]
    padding: Pairs
    dilation: tuple[int, ...]

    @classmethod
    def of(cls, axes: Sequence[Axis]) -> Windows:
        return cls(
            tuple(axis.stride for axis in axes),
            tuple(axis.padding for axis in axes),
            tuple(axis.dilation for axis in axes),
        )


def without_common_factor(axis: Axis) -> Taps:
    """NOTE [Common factors]; no taps where all windows meet nothing but zeros."""
    factor = math.gcd(axis.stride, axis.input_dilation)
    return _taps(axis, axis.low, factor, axis.stride // factor, axis.out_size)


def phase(axis: Axis, r: int) -> Taps:
    """NOTE [Phases]; no taps where the windows of the phase meet nothing but zeros.

    It has as many windows as the first phase, of which the last may be one too many.
    """
    low = axis.low - r * axis.stride
    windows = -(-axis.out_size // axis.input_dilation)
    return _taps(axis, low, axis.input_dilation, axis.stride, windows)


def _taps(axis: Axis, low: int, factor: int, stride: int, windows: int) -> Taps:
    """The taps j with j * dilation - low at a multiple of ``factor``, and the axis in units of ``factor``."""
    common = math.gcd(axis.dilation, factor)
    step = factor // common
    start = low // common * pow(axis.dilation // common, -1, step) % step
    smaller = dataclasses.replace(
        axis,
        kernel=-(-(axis.kernel - start) // step),
        stride=stride,
        input_dilation=axis.input_dilation // factor,
        dilation=axis.dilation // common,
        low=(low - start * axis.dilation) // factor,
        out_size=windows,
    )
    if low % common or start >= axis.kernel:
        # An empty kernel, so that the operator makes the zeros, with the sharding of every other phase.
        return Taps(axis.kernel, 1, dataclasses.replace(smaller, kernel=0, dilation=1, low=0))
    return Taps(start, step, smaller)


def _take(w: Array, taps: Sequence[Taps], kernel_axes: Sequence[int]) -> Array:
    """The taps of a kernel."""
    starts, steps = [0] * w.ndim, [1] * w.ndim
    for axis, found in zip(kernel_axes, taps, strict=True):
        starts[axis], steps[axis] = found.start, found.step
    return w if max(steps) == 1 and not any(starts) else lax.slice(w, starts, w.shape, steps)


def convolution(
    x: Array,
    w: Array,
    whole: ConvGeometry,
    input_dilation: tuple[int, ...],
    convolve: Callable[[Array, Array, Windows], Array],
    transpose: Callable[[Array, Array, tuple[int, ...], Windows], Array],
    result_dtype: Any,
) -> Array:
    """The convolution ``whole`` of the dilated ``x``.

    ``convolve`` convolves x without dilating it; ``transpose`` convolves a dilated x without strides.
    """
    config = whole.config
    x_spec, w_spec, y_spec = config.dimension_numbers

    def with_zeros(w: Array, dilation: tuple[int, ...], windows: Windows) -> Array:
        # The backward pass inserts the zeros again, rather than keep them from the forward pass on.
        insert = functools.partial(insert_zeros, dilation=dilation, spec=x_spec)
        y: Array = jax.checkpoint(lambda x, w: convolve(insert(x), w, windows))(x, w)
        return y

    if whole.is_empty:
        return compat.zeros_like_batch(x, x_spec[0], whole.y_shape, y_spec[0], result_dtype)
    axes = [
        Axis(x.shape[axis], *rest)
        for axis, *rest in zip(
            x_spec[2:],
            whole.kernel,
            config.strides,
            input_dilation,
            config.dilation,
            (low for low, _ in config.padding),
            whole.out_spatial,
            strict=True,
        )
    ]
    if not all(isinstance(n, int) for axis in axes for n in dataclasses.astuple(axis)):
        return with_zeros(
            w, input_dilation, Windows(config.strides, config.padding, config.dilation)
        )
    reduced = [without_common_factor(axis) for axis in axes]
    w, axes = _take(w, reduced, w_spec[2:]), [taps.axis for taps in reduced]
    remaining = tuple(axis.input_dilation for axis in axes)
    if all(axis.stride == 1 for axis in axes):
        return transpose(x, w, remaining, Windows.of(axes))
    if (
        math.prod(map(_phases, axes)) > MAX_PARTS
        or math.prod(map(_phases_with_taps, axes)) > MAX_PHASES
    ):
        return with_zeros(w, remaining, Windows.of(axes))
    only_zeros: list[Array] = []

    def compute(chosen: Sequence[Taps]) -> Array:
        """All phases have one shape, so those that are only zeros are one array."""
        is_empty = any(taps.axis.kernel == 0 for taps in chosen)
        if is_empty and only_zeros:
            return only_zeros[0]
        y = convolve(x, _take(w, chosen, w_spec[2:]), Windows.of([taps.axis for taps in chosen]))
        if is_empty:
            only_zeros.append(y)
        return y

    return _interleaved(axes, y_spec[2:], compute)


def _phases(axis: Axis) -> int:
    """How many phases have windows."""
    return min(axis.input_dilation, axis.out_size)


def _phases_with_taps(axis: Axis) -> int:
    """How many of them meet more than zeros."""
    return sum(phase(axis, r).axis.kernel > 0 for r in range(_phases(axis)))


def _interleaved(
    axes: Sequence[Axis], out_axes: Sequence[int], compute: Callable[[Sequence[Taps]], Array]
) -> Array:
    """The whole result, from ``compute`` of one phase of each axis."""

    def assemble(chosen: list[Taps]) -> Array:
        """The result along the axes of which no phase is chosen yet."""
        if len(chosen) == len(axes):
            return compute(chosen)
        axis, out = axes[len(chosen)], out_axes[len(chosen)]
        parts = [assemble([*chosen, phase(axis, r)]) for r in range(_phases(axis))]
        if len(parts) == 1:
            return parts[0]
        y = jnp.stack(parts, out + 1)
        y = y.reshape(*y.shape[:out], y.shape[out] * len(parts), *y.shape[out + 2 :])
        return lax.slice_in_dim(y, 0, axis.out_size, axis=out)

    return assemble([])

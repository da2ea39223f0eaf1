"""Sizes of the convolution family: one convolution ``x -> y`` with weights ``w``, checked once.

Its input gradient and its weight gradient are the same geometry read in another direction. Nothing here
touches a device or an array.

NOTE [Why x_shape is a parameter]. With a stride above 1 several input sizes give the same output
size, so the shape of ``dx`` does not follow from ``dy`` and ``w``. The caller of a dgrad names it;
a transposed convolution, which is a dgrad used forwards, works it out from its own arguments.

NOTE [Rows no window reads]. For the same reason the last rows of ``x`` may be read by no window.
Nothing flows back to them: dgrad writes zeros there and wgrad skips them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from jax import lax

from jax_convgrad._src import compat, hints
from jax_convgrad._src.shapes import Pairs, Shape, is_number, known_below, show

MAX_SPATIAL_RANK = 3

# The three arrays of a convolution x -> y; dx, dw and dy have the shapes of x, w and y.
Role = Literal["x", "w", "y"]
# The factors by which one of them can grow: examples, channels of x, channels of y, or groups with both.
Factor = Literal["batch", "in_channels", "out_channels", "groups"]


@dataclasses.dataclass(frozen=True)
class ConvConfig:
    """What a convolution ``x -> y`` is, apart from its sizes. Hashable; the primitives' parameter.

    ``padding`` holds one (low, high) pair per spatial axis, in elements of ``x``; negative numbers
    crop. ``dilation`` is the kernel's. ``dimension_numbers`` is :class:`jax.lax.ConvDimensionNumbers`.
    """

    strides: tuple[int, ...]
    padding: Pairs
    dilation: tuple[int, ...]
    groups: int
    dimension_numbers: lax.ConvDimensionNumbers

    @property
    def spatial_rank(self) -> int:
        return len(self.strides)

    def spec_of(self, role: Role) -> tuple[int, ...]:
        """Where x, w or y has its axes: batch (of w output channels), channels, spatial axes."""
        numbers = self.dimension_numbers
        spec = {"x": numbers.lhs_spec, "w": numbers.rhs_spec, "y": numbers.out_spec}[role]
        return tuple(spec)

    def replace(self, **changes: Any) -> ConvConfig:
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(frozen=True)
class ConvGeometry:
    """A :class:`ConvConfig` together with the sizes it is applied to, in canonical order."""

    config: ConvConfig
    batch: int
    in_channels: int
    out_channels: int
    in_spatial: Shape
    kernel: Shape
    out_spatial: Shape

    @classmethod
    def make(
        cls, function: str, config: ConvConfig, x_shape: Shape, w_shape: Shape
    ) -> ConvGeometry:
        """Checks the shapes against each other and derives the output size.

        Raises:
          ValueError: with ``function`` as the first word and both shapes in the text.
        """
        shapes = f"x has shape {show(x_shape)}, w has shape {show(w_shape)}"
        if len(x_shape) != len(w_shape):
            raise ValueError(f"{function}: x and w must have the same rank, but {shapes}")
        for name, shape in (("x", x_shape), ("w", w_shape)):
            if any(known_below(size, 0) for size in shape):
                raise ValueError(f"{function}: {name} has a negative size: {shapes}")
        x_spec, w_spec, _ = config.dimension_numbers
        batch, in_channels, *in_spatial = (x_shape[i] for i in x_spec)
        out_channels, group_channels, *kernel = (w_shape[i] for i in w_spec)
        groups = config.groups
        if in_channels % groups:
            raise ValueError(
                f"{function}: the {in_channels} channels of x are not divisible by "
                f"groups={groups}: {shapes}"
            )
        if in_channels // groups != group_channels:
            weights = None if function == "conv_wgrad" else "w"
            raise ValueError(
                f"{function}: w must have {in_channels}/{groups} = {in_channels // groups} input "
                f"channels (axis {w_spec[1]}), got {group_channels}: {shapes}"
                f"{hints.layout(x_shape, w_shape, config.dimension_numbers, groups, weights=weights)}"
            )
        if out_channels % groups:
            raise ValueError(
                f"{function}: the {out_channels} output channels of w (axis {w_spec[0]}) are not "
                f"divisible by groups={groups}: {shapes}"
            )
        for axis, (size, (low, high)) in enumerate(zip(in_spatial, config.padding, strict=True)):
            if known_below(size + low + high, 0):
                raise ValueError(
                    f"{function}: negative padding {(low, high)} removes more than the {size} "
                    f"elements of spatial axis {axis}: {shapes}"
                )
        out_spatial = tuple(
            map(_windows, in_spatial, kernel, config.strides, config.padding, config.dilation)
        )
        return cls(
            config, batch, in_channels, out_channels, tuple(in_spatial), tuple(kernel), out_spatial
        )

    @property
    def spatial_rank(self) -> int:
        return self.config.spatial_rank

    @property
    def dilated_kernel(self) -> Shape:
        return tuple(map(dilated, self.kernel, self.config.dilation))

    @property
    def x_shape(self) -> Shape:
        return _logical(
            self.config.dimension_numbers.lhs_spec, self.batch, self.in_channels, self.in_spatial
        )

    @property
    def w_shape(self) -> Shape:
        group_channels = self.in_channels // self.config.groups
        return _logical(
            self.config.dimension_numbers.rhs_spec, self.out_channels, group_channels, self.kernel
        )

    @property
    def y_shape(self) -> Shape:
        return _logical(
            self.config.dimension_numbers.out_spec, self.batch, self.out_channels, self.out_spatial
        )

    @property
    def has_nonoverlapping_windows(self) -> bool:
        """Whether each element of x is in exactly one window: kernel = stride, nothing left over.

        Never with groups, with windows of one element, or where spatial sizes are symbolic.
        """
        config = self.config
        sizes = (*self.in_spatial, *self.kernel)
        if config.groups > 1 or not all(isinstance(size, int | np.integer) for size in sizes):
            return False
        return (
            math.prod(self.kernel) > 1
            and tuple(self.kernel) == config.strides
            and self.dilated_kernel == tuple(self.kernel)
            and not any(map(any, config.padding))
            and all(x % k == 0 for x, k in zip(self.in_spatial, self.kernel, strict=True))
        )

    def shape_of(self, role: Role) -> Shape:
        """The shape of x, w or y."""
        return {"x": self.x_shape, "w": self.w_shape, "y": self.y_shape}[role]

    def grown(self, factor: Factor, times: int) -> ConvGeometry:
        """The geometry with ``times`` as many examples, channels or groups, as `jax.vmap` makes it."""
        if factor == "batch":
            return dataclasses.replace(self, batch=self.batch * times)
        if factor == "in_channels":
            return dataclasses.replace(self, in_channels=self.in_channels * times)
        if factor == "out_channels":
            return dataclasses.replace(self, out_channels=self.out_channels * times)
        return dataclasses.replace(
            self,
            config=self.config.replace(groups=self.config.groups * times),
            in_channels=self.in_channels * times,
            out_channels=self.out_channels * times,
        )

    def __str__(self) -> str:
        """The convolution x -> y in one line, in the words of the benchmark's tables."""
        config = self.config
        image = "x".join(map(str, (self.batch, *self.in_spatial)))
        text = (
            f"{image}, {self.in_channels} to {self.out_channels}, k{_short(self.kernel)} "
            f"s{_short(config.strides)}"
        )
        if any(low or high for low, high in config.padding):
            pads = [str(low) if low == high else f"{low}/{high}" for low, high in config.padding]
            text += f" p{_short(pads)}"
        if any(d > 1 for d in config.dilation):
            text += f" d{_short(config.dilation)}"
        return text + (f" g{config.groups}" if config.groups > 1 else "")

    def check_dy(self, function: str, dy_shape: Shape) -> None:
        """Raises ValueError unless ``dy_shape`` is what the convolution x -> y produces."""
        if tuple(dy_shape) != self.y_shape:
            raise ValueError(
                f"{function}: dy must have the shape of the convolution's output, "
                f"{show(self.y_shape)}, got {show(dy_shape)} (x has shape {show(self.x_shape)}, "
                f"w has shape {show(self.w_shape)}, strides={self.config.strides}, "
                f"padding={self.config.padding}, dilation={self.config.dilation})"
            )

    @property
    def is_empty(self) -> bool:
        """Whether nothing is multiplied with anything, so that all results are zeros.

        True if x, w or y has no elements, or if negative padding crops all of x away and positive padding
        on the other side takes its place.
        """
        if 0 in self.x_shape or 0 in self.w_shape or 0 in self.y_shape:
            return True
        return any(
            known_below(size + min(pair), 1)
            for size, pair in zip(self.in_spatial, self.config.padding, strict=True)
        )


def _short(values: Sequence[Any]) -> str:
    """One value that is the same for all axes, or all of them."""
    return str(values[0]) if len(set(values)) == 1 else "x".join(map(str, values))


def dilated(kernel: int, dilation: int) -> int:
    """Extent of a dilated kernel; a kernel without taps has none."""
    return 0 if is_number(kernel) and kernel == 0 else (kernel - 1) * dilation + 1


def _windows(size: int, kernel: int, stride: int, pair: tuple[int, int], dilation: int) -> int:
    room = size + sum(pair) - dilated(kernel, dilation)
    count: int = compat.at_least_zero(room // stride + 1)
    return count


def _logical(spec: Sequence[int], first: int, second: int, spatial: Shape) -> Shape:
    shape: list[int] = [0] * len(spec)
    for axis, size in zip(spec, (first, second, *spatial), strict=True):
        shape[axis] = size
    return tuple(shape)

"""Reduces convolutions whose stride and dilation have a common factor to smaller ones.

Where stride s and dilation d of an axis share a factor f, window i and tap t meet at i * s + t * d of the
padded image, always a multiple of f: no other element is ever read. What remains is a convolution of every
f-th element, with stride s / f and dilation d / f. Its input gradient, with zeros inserted between the
elements, is the input gradient of the whole; its weight gradient is that of the whole as it is.

Libraries do not see this: XLA computes gradients of dilated kernels with windows as large as dy, cuDNN and
oneDNN have few kernels for stride and dilation at once.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from jax import Array, lax

from jax_convgrad._src.conv.geometry import ConvConfig
from jax_convgrad._src.shapes import Shape


@dataclasses.dataclass(frozen=True)
class Subsample:
    """Every ``steps``-th element of x along each spatial axis, from ``starts`` on, and its convolution.

    ``config`` is that of the smaller convolution, ``x_shape`` its input's shape, ``whole`` the shape of x.
    """

    config: ConvConfig
    x_shape: Shape
    whole: Shape
    starts: tuple[int, ...]
    steps: tuple[int, ...]

    def take(self, x: Array) -> Array:
        """The elements that are read."""
        starts, steps = [0] * x.ndim, [1] * x.ndim
        for axis, start, step in zip(self._axes, self.starts, self.steps, strict=True):
            if step > 1:
                starts[axis], steps[axis] = min(start, x.shape[axis]), step
        return lax.slice(x, starts, x.shape, steps)

    def spread(self, dx: Array) -> Array:
        """Scatters the elements back to where they were taken from, with zeros everywhere else."""
        if 0 in self.x_shape:
            return lax.full(self.whole, 0, dx.dtype)
        amounts = [(0, 0, 0)] * dx.ndim
        for axis, start, step in zip(self._axes, self.starts, self.steps, strict=True):
            if step > 1:
                last = start + (self.x_shape[axis] - 1) * step
                amounts[axis] = (start, self.whole[axis] - 1 - last, step - 1)
        return lax.pad(dx, np.zeros((), dx.dtype), amounts)

    @property
    def _axes(self) -> tuple[int, ...]:
        return tuple(self.config.dimension_numbers.lhs_spec[2:])


def subsample(config: ConvConfig, x_shape: Shape) -> Subsample | None:
    """The smaller convolution; None where no stride shares a factor with its dilation.

    Axes of symbolic size are left as they are.
    """
    axes = config.dimension_numbers.lhs_spec[2:]
    steps = tuple(
        math.gcd(s, d) if isinstance(x_shape[axis], int | np.integer) else 1
        for axis, s, d in zip(axes, config.strides, config.dilation, strict=True)
    )
    if all(step == 1 for step in steps):
        return None
    shape, padding = list(x_shape), []
    starts = tuple(-low % step for (low, _), step in zip(config.padding, steps, strict=True))
    for axis, start, step, (low, high) in zip(axes, starts, steps, config.padding, strict=True):
        if step == 1:
            padding.append((low, high))
            continue
        size = x_shape[axis]
        # Of the padded axis the elements 0, step, 2 * step, ... are left, of which x holds these:
        shape[axis] = max(-(-(size - start) // step), 0)
        left = (size + low + high - 1) // step + 1
        before = (low + start) // step
        padding.append((before, left - shape[axis] - before))
    smaller = config.replace(
        strides=tuple(s // f for s, f in zip(config.strides, steps, strict=True)),
        dilation=tuple(d // f for d, f in zip(config.dilation, steps, strict=True)),
        padding=tuple(padding),
    )
    return Subsample(smaller, tuple(shape), tuple(x_shape), starts, steps)

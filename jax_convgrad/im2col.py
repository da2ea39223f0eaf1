"""Gradients of dense convolutions as one matrix product each, after dy is gathered once for all taps.

    dycol[n, p, t, o] = dy[n, i, o] where window i puts tap t on p, and zero where no window does
    dx[n, p, c] = sum over t, o of dycol[n, p, t, o] * w[o, c, t]
    dw[o, c, t] = sum over n, p of x[n, p, c] * dycol[n, p, t, o]

Both gathers are the same operations of the same dy, so that XLA makes one of them where both gradients are
in one program. It costs kernel elements * output channels / input channels times the memory of x, which
pays where that is little and the products are large. Plain lax: no handler, any platform.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jax_convgrad.shapes import ConvConfig, ConvGeometry, Shape


def applies(operator: str, geometry: ConvGeometry) -> bool:
    """Whether there is such a form: for both gradients of every convolution without groups."""
    return operator in ("conv_dgrad", "conv_wgrad") and geometry.config.groups == 1


def conv_dgrad(
    dy: Array,
    w: Array,
    *,
    x_shape: Shape,
    config: ConvConfig,
    precision: Any,
    preferred_element_type: Any,
) -> Array:
    """Input gradient."""
    x_spec, (out_axis, in_axis, *kernel_axes), _ = config.dimension_numbers
    kernel = tuple(w.shape[axis] for axis in kernel_axes)
    dycol = _gather(dy, tuple(x_shape[axis] for axis in x_spec[2:]), kernel, config)
    rank = config.spatial_rank
    w = w.transpose(*kernel_axes, out_axis, in_axis)
    w = w.reshape(math.prod(kernel) * w.shape[rank], w.shape[rank + 1])
    dx = _product(dycol, w, ((rank + 1,), (0,)), precision, preferred_element_type)
    return dx.transpose(np.argsort(_channels_last(x_spec)))


def conv_wgrad(
    x: Array,
    dy: Array,
    *,
    w_shape: Shape,
    config: ConvConfig,
    precision: Any,
    preferred_element_type: Any,
) -> Array:
    """Weight gradient."""
    x_spec, w_spec, _ = config.dimension_numbers
    x = x.transpose(_channels_last(x_spec))
    kernel = tuple(w_shape[axis] for axis in w_spec[2:])
    dycol = _gather(dy, x.shape[1:-1], kernel, config)
    positions = tuple(range(config.spatial_rank + 1))
    dw = _product(x, dycol, (positions, positions), precision, preferred_element_type)
    dw = dw.reshape(w_shape[w_spec[1]], *kernel, w_shape[w_spec[0]])
    return dw.transpose(np.argsort((w_spec[1], *w_spec[2:], w_spec[0])))


def _gather(dy: Array, x_spatial: Shape, kernel: Shape, config: ConvConfig) -> Array:
    """dycol, of shape (batch, x's spatial sizes, taps * output channels).

    Tap t of window i lies on position i * stride + t * dilation - low: for each tap dy is moved by that
    much, with zeros between the windows and around them, and cropped to the size of x.
    """
    dy = dy.transpose(_channels_last(config.dimension_numbers.out_spec))
    moved = []
    for tap in itertools.product(*map(range, kernel)):
        amounts = [(0, 0, 0)]
        for axis, (t, size, s, d, (low, _)) in enumerate(
            zip(tap, x_spatial, config.strides, config.dilation, config.padding, strict=True)
        ):
            first = t * d - low
            last = first + (dy.shape[1 + axis] - 1) * s
            amounts.append((first, size - 1 - last, s - 1))
        moved.append(lax.pad(dy, np.zeros((), dy.dtype), [*amounts, (0, 0, 0)]))
    return lax.concatenate(moved, dy.ndim - 1)


def _product(
    lhs: Array,
    rhs: Array,
    contracted: tuple[tuple[int, ...], tuple[int, ...]],
    precision: Any,
    dtype: Any,
) -> Array:
    """A matrix product in ``dtype``, of which 16 bits are rounded once, from float32."""
    wide = jnp.promote_types(dtype, jnp.float32)
    product = lax.dot_general(
        lhs, rhs, (contracted, ((), ())), precision=precision, preferred_element_type=wide
    )
    return product.astype(dtype)


def _channels_last(spec: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of an array with dimension specification ``spec`` in the order N, spatial, C."""
    return (spec[0], *spec[2:], spec[1])

"""The convolution family in plain lax: the route wherever no handler serves, and the honest baseline.

Each operator is one `lax.conv_general_dilated`, with the roles of its dimensions swapped so that XLA
sees a convolution without a dilated window wherever the mathematics allows one. Shares nothing with
the handlers it stands beside but the parameters' names.

NOTE [No negative low padding]. XLA:CPU of jaxlib 0.10 gives wrong float32 numbers for some convolutions
with a negative padding at the low side and a positive one at the high side. The low side is therefore
cropped here: from x before a convolution, from the result after one whose input is dilated.

NOTE [What XLA takes for a group]. XLA's algebraic simplifier, when it swaps the operands of a convolution
with more taps than inputs, takes an axis with 2 taps, base dilation 2 and no padding for one that encodes
groups, and a failed check aborts the process (jaxlib 0.10 to 0.12, any dtype, lax's own gradients too). The
zeros of such an axis are inserted by hand, behind a barrier: XLA would take them into the convolution again.

NOTE [A reversal that XLA sees]. XLA:GPU takes a convolution with a dilated input for an input gradient, and
so hands it to cuDNN, only where it finds the kernel reversed in front of it. A layer that reversed its
kernel itself, as a transposed convolution with weights HWIO does, would have its reversal cancelled by the
gradient's, and XLA would insert zeros and compute them: a barrier keeps the two apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jax_convgrad._src import compat
from jax_convgrad._src.conv.geometry import ConvConfig, dilated
from jax_convgrad._src.conv.precision import resolve_precision
from jax_convgrad._src.shapes import Shape

Grouping = Literal["batch", "feature"]


def conv_fprop(
    x: Array, w: Array, *, config: ConvConfig, precision: Any, preferred_element_type: Any
) -> Array:
    """The convolution itself."""
    x, padding = _crop_low(x, config.dimension_numbers.lhs_spec, config.padding)
    return lax.conv_general_dilated(
        x,
        w,
        config.strides,
        padding,
        rhs_dilation=config.dilation,
        dimension_numbers=config.dimension_numbers,
        feature_group_count=config.groups,
        precision=resolve_precision(precision),
        preferred_element_type=preferred_element_type,
    )


def conv_dgrad(
    dy: Array,
    w: Array,
    *,
    x_shape: Shape,
    config: ConvConfig,
    precision: Any,
    preferred_element_type: Any,
) -> Array:
    """Input gradient: dy, dilated by the strides, convolved with the reversed kernel, I and O swapped."""
    x_spec, w_spec, y_spec = config.dimension_numbers
    padding = []
    for axis, (stride, dilation, (low, _)) in enumerate(
        zip(config.strides, config.dilation, config.padding, strict=True)
    ):
        kernel = dilated(w.shape[w_spec[2 + axis]], dilation)
        spread = (dy.shape[y_spec[2 + axis]] - 1) * stride + 1
        low = kernel - 1 - low
        padding.append((low, x_shape[x_spec[2 + axis]] + kernel - 1 - spread - low))
    if config.groups > 1:
        w = move_groups(w, config.groups, w_spec[0], w_spec[1])
    # The result starts with what the crop, see NOTE [No negative low padding], takes away again.
    crop = tuple((min(low, 0), 0) for low, _ in padding)
    padding = [(max(low, 0), high) for low, high in padding]
    strides = list(config.strides)
    for axis, pair in enumerate(padding):  # NOTE [What XLA takes for a group]
        like_groups = strides[axis] == w.shape[w_spec[2 + axis]] == 2 and config.dilation[axis] == 1
        if like_groups and pair == (0, 0):
            strides[axis] = 1
    by_hand = tuple(s // t for s, t in zip(config.strides, strides, strict=True))
    if max(by_hand) > 1:
        dy = lax.optimization_barrier(insert_zeros(dy, by_hand, y_spec))
    if max(strides) > 1:  # NOTE [A reversal that XLA sees]
        w = lax.optimization_barrier(w)
    dx = lax.conv_general_dilated(
        dy,
        lax.rev(w, w_spec[2:]),
        (1,) * config.spatial_rank,
        padding,
        lhs_dilation=strides,
        rhs_dilation=config.dilation,
        dimension_numbers=lax.ConvDimensionNumbers(y_spec, swap_channels(w_spec), x_spec),
        feature_group_count=config.groups,
        precision=resolve_precision(precision),
        preferred_element_type=preferred_element_type,
    )
    return _crop_low(dx, x_spec, crop)[0]


def conv_wgrad(
    x: Array,
    dy: Array,
    *,
    w_shape: Shape,
    config: ConvConfig,
    precision: Any,
    preferred_element_type: Any,
    grouping: Grouping = "feature",
) -> Array:
    """Weight gradient: x convolved with dy, where the batch is what is summed over.

    With groups there are two forms. "batch" is lax's own, with batch_group_count: XLA:GPU knows it,
    XLA:CPU runs it 20 to 400 times slower than "feature", which moves the groups of x beside the
    batch so that an ordinary grouped convolution remains.
    """
    x_spec, w_spec, y_spec = config.dimension_numbers
    padding = []
    for axis, (stride, dilation, (low, _)) in enumerate(
        zip(config.strides, config.dilation, config.padding, strict=True)
    ):
        kernel = dilated(w_shape[w_spec[2 + axis]], dilation)
        spread = (dy.shape[y_spec[2 + axis]] - 1) * stride + 1
        padding.append((low, kernel - 1 + spread - x.shape[x_spec[2 + axis]] - low))
    x, padding = _crop_low(x, x_spec, padding)
    batch_groups = feature_groups = 1
    if config.groups > 1 and grouping == "batch":
        batch_groups = config.groups
    elif config.groups > 1:
        feature_groups = config.groups
        x = move_groups(x, config.groups, x_spec[1], x_spec[0])
    return lax.conv_general_dilated(
        x,
        dy,
        config.dilation,
        padding,
        rhs_dilation=config.strides,
        dimension_numbers=lax.ConvDimensionNumbers(
            swap_channels(x_spec), swap_channels(y_spec), swap_channels(w_spec)
        ),
        feature_group_count=feature_groups,
        batch_group_count=batch_groups,
        precision=resolve_precision(precision),
        preferred_element_type=preferred_element_type,
    )


def _crop_low(
    array: Array, spec: tuple[int, ...], padding: Sequence[tuple[int, int]]
) -> tuple[Array, list[tuple[int, int]]]:
    """Takes a negative low padding off the spatial axes: (the rest of the array, the other padding)."""
    if any(low < 0 for low, _ in padding):
        amounts = [(0, 0, 0)] * array.ndim
        for axis, (low, _) in zip(spec[2:], padding, strict=True):
            amounts[axis] = (min(low, 0), 0, 0)
        array = lax.pad(array, np.zeros((), array.dtype), amounts)
    return array, [(max(low, 0), high) for low, high in padding]


def insert_zeros(array: Array, dilation: tuple[int, ...], spec: tuple[int, ...]) -> Array:
    """``dilation`` - 1 zeros between the elements along each spatial axis."""
    amounts = [(0, 0, 0)] * array.ndim
    for axis, d in zip(spec[2:], dilation, strict=True):
        amounts[axis] = (0, 0, d - 1)
    return lax.pad(array, np.zeros((), array.dtype), amounts)


def swap_channels(spec: tuple[int, ...]) -> tuple[int, ...]:
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

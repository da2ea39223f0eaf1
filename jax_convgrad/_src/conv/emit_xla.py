"""The convolution family in plain lax: where no handler serves, and the honest baseline.

Each operator is one `lax.conv_general_dilated`, with the roles of its dimensions swapped so that XLA
sees a convolution without a dilated window wherever the mathematics allows one. This file shares nothing
with the handlers except the names of parameters.

NOTE [No negative low padding]. XLA:CPU of jaxlib 0.10 gives wrong float32 numbers for some convolutions
with a negative padding at the low side and a positive one at the high side. The low side is therefore
cropped here: from x before a convolution, from the result after one whose input is dilated.

NOTE [What XLA takes for a group]. When XLA's algebraic simplifier swaps the operands of a convolution with
more taps than inputs, it mistakes an axis with 2 taps, base dilation 2 and no padding for an axis that
encodes groups, and a failed check aborts the process (jaxlib 0.10 to 0.12, any dtype, lax's own gradients
too). We insert the zeros of such an axis by hand, behind a barrier, because XLA would otherwise fold them
into the convolution again.

NOTE [A reversal that XLA sees]. XLA:GPU recognizes a convolution with a dilated input as an input gradient,
and hands it to cuDNN, only if it finds the kernel reversed in front of it. A layer that reverses its kernel
itself, as a transposed convolution with HWIO weights does, would have its reversal cancelled by the
gradient's, and XLA would insert zeros and compute with them. A barrier keeps the two reversals apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jax import Array, lax

from jax_convgrad._src.conv.arrays import insert_zeros, move_groups, swap_channels
from jax_convgrad._src.conv.geometry import ConvGeometry, dilated
from jax_convgrad._src.conv.precision import resolve_precision
from jax_convgrad._src.dispatch.problem import ConvProblem


def emit(problem: ConvProblem, first: Array, second: Array, *, rewritten: bool) -> Array:
    """The operator as one `lax.conv_general_dilated`.

    ``rewritten`` says how a grouped weight gradient is written. lax's own form groups the batch
    (batch_group_count). XLA:GPU recognizes it; XLA:CPU runs it 20 to 400 times slower than the rewritten
    form, which moves the groups of x beside the batch so that an ordinary grouped convolution remains.
    """
    if problem.operator == "conv_fprop":
        return _fprop(problem, first, second)
    if problem.operator == "conv_dgrad":
        return _dgrad(problem, first, second)
    return _wgrad(problem, first, second, batch_groups=not rewritten)


def has_rewritten_form(operator: str, geometry: ConvGeometry) -> bool:
    """Whether the rewritten form is another one than lax's own."""
    return operator == "conv_wgrad" and geometry.config.groups > 1


def _fprop(problem: ConvProblem, x: Array, w: Array) -> Array:
    """The convolution itself."""
    config = problem.geometry.config
    x, padding = _crop_low(x, config.dimension_numbers.lhs_spec, config.padding)
    return lax.conv_general_dilated(
        x,
        w,
        config.strides,
        padding,
        rhs_dilation=config.dilation,
        dimension_numbers=config.dimension_numbers,
        feature_group_count=config.groups,
        precision=resolve_precision(problem.precision),
        preferred_element_type=problem.result_dtype,
    )


def _dgrad(problem: ConvProblem, dy: Array, w: Array) -> Array:
    """Input gradient: dy, dilated by the strides, convolved with the reversed kernel, I and O swapped."""
    config, x_shape = problem.geometry.config, problem.geometry.x_shape
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
    # The result begins with rows that the crop removes at the end, see NOTE [No negative low padding].
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
        precision=resolve_precision(problem.precision),
        preferred_element_type=problem.result_dtype,
    )
    return _crop_low(dx, x_spec, crop)[0]


def _wgrad(problem: ConvProblem, x: Array, dy: Array, *, batch_groups: bool) -> Array:
    """Weight gradient: x convolved with dy, summed over the batch."""
    config, w_shape = problem.geometry.config, problem.geometry.w_shape
    x_spec, w_spec, y_spec = config.dimension_numbers
    padding = []
    for axis, (stride, dilation, (low, _)) in enumerate(
        zip(config.strides, config.dilation, config.padding, strict=True)
    ):
        kernel = dilated(w_shape[w_spec[2 + axis]], dilation)
        spread = (dy.shape[y_spec[2 + axis]] - 1) * stride + 1
        padding.append((low, kernel - 1 + spread - x.shape[x_spec[2 + axis]] - low))
    x, padding = _crop_low(x, x_spec, padding)
    batch_group_count = feature_group_count = 1
    if config.groups > 1 and batch_groups:
        batch_group_count = config.groups
    elif config.groups > 1:
        feature_group_count = config.groups
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
        feature_group_count=feature_group_count,
        batch_group_count=batch_group_count,
        precision=resolve_precision(problem.precision),
        preferred_element_type=problem.result_dtype,
    )


def _crop_low(
    array: Array, spec: Sequence[int], padding: Sequence[tuple[int, int]]
) -> tuple[Array, list[tuple[int, int]]]:
    """Takes a negative low padding off the spatial axes: (the rest of the array, the other padding)."""
    if any(low < 0 for low, _ in padding):
        amounts = [(0, 0, 0)] * array.ndim
        for axis, (low, _) in zip(spec[2:], padding, strict=True):
            amounts[axis] = (min(low, 0), 0, 0)
        array = lax.pad(array, np.zeros((), array.dtype), amounts)
    return array, [(max(low, 0), high) for low, high in padding]

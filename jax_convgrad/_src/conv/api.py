"""Layers and operators of the convolution family.

The layers are `jax.lax`'s functions of the same names with a fast backward pass; the operators are the
three bilinear maps themselves. A layer is one operator and, with a bias, a sum. JAX derives everything
else from the operators' own rules, both modes of differentiation included, and leaves out what belongs
to an operand that is not differentiated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike, DTypeLike

from jax_convgrad._src import compat, hints, shapes
from jax_convgrad._src.conv import (
    arguments,
    backward,
    phases,
    primitives,
    tangent,  # noqa: F401 - gives conv_fprop its JVP
)
from jax_convgrad._src.conv.arrays import move_groups, pad_spatial, swap_channels
from jax_convgrad._src.conv.bias import add_bias
from jax_convgrad._src.conv.geometry import MAX_SPATIAL_RANK, ConvConfig, ConvGeometry, dilated
from jax_convgrad._src.dispatch.problem import GRADIENTS, ConvBackwardProblem, ConvProblem
from jax_convgrad._src.dtypes import check_float_dtypes, check_same_dtype, is_ours, result_dtype
from jax_convgrad._src.shapes import Pairs, Shape

# Operators.


@hints.with_keyword_hints(hints.OPERATOR_KEYWORDS, "conv2d")
def conv_fprop(
    x: ArrayLike,
    w: ArrayLike,
    *,
    strides: int | Sequence[int] = 1,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    dimension_numbers: Any = None,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """The convolution ``x -> y``: a bilinear map, differentiable to any order in both modes.

    Definition: XLA's operation semantics, Conv, without base dilation.

    Args:
      x: image; float16, bfloat16, float32 or float64, with a batch, a channel and one to three
        spatial axes in the order that ``dimension_numbers`` says.
      w: weights of the same dtype: output channels, input channels / groups, and the kernel.
      strides: window strides, one int or one per spatial axis.
      padding: "SAME", "SAME_LOWER", "VALID", or one (low, high) pair per spatial axis, in elements of
        ``x``; negative numbers crop.
      dilation: kernel dilation, one int or one per spatial axis.
      groups: feature group count.
      dimension_numbers: the orders of the axes of image, weights and result, such as
        ``("NHWC", "HWIO", "NHWC")``, or a `jax.lax.ConvDimensionNumbers`; None means NCHW, OIHW, NCHW.
      precision: None, a `jax.lax.Precision` or its name. On CUDA the default lets float32 use TF32,
        which HIGHEST forbids.
      preferred_element_type: dtype of the result, the arrays' own by default.

    Returns:
      ``y`` with floor((size + low + high - (kernel - 1) * dilation - 1) / stride) + 1 elements along
      each spatial axis.

    Raises:
      TypeError: dtypes that differ or are not floating point; arguments of the wrong kind.
      ValueError: shapes or arguments that do not fit; the text shows both shapes.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_convgrad import conv_fprop
      >>> conv_fprop(jnp.ones((2, 3, 8)), jnp.ones((4, 3, 5)), strides=2, padding="SAME").shape
      (2, 4, 4)
    """
    x, w = compat.as_array(x), compat.as_array(w)
    dtype = check_float_dtypes("conv_fprop", x=x.dtype, w=w.dtype)
    preferred = result_dtype("conv_fprop", dtype, preferred_element_type)
    return _convolution(
        "conv_fprop",
        x,
        w,
        strides,
        padding,
        dilation,
        dimension_numbers,
        groups,
        precision,
        preferred,
    )


def _convolution(
    name: str,
    x: Array,
    w: Array,
    strides: int | Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    dilation: int | Sequence[int],
    dimension_numbers: Any,
    groups: int,
    precision: Any,
    preferred: np.dtype,
) -> Array:
    """`conv_fprop` of arrays whose dtypes are checked; ``name`` is what errors call it."""
    geometry, beforehand = _geometry(
        name, x.shape, w.shape, strides, padding, dilation, dimension_numbers, groups
    )
    x = _pad(x, beforehand, geometry)
    problem = ConvProblem.make("conv_fprop", geometry, x.dtype, preferred, precision)
    return _bind(problem, x, w)


def _geometry(
    name: str,
    x_shape: Shape,
    w_shape: Shape,
    strides: int | Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    dilation: int | Sequence[int],
    dimension_numbers: Any,
    groups: int,
) -> tuple[ConvGeometry, Pairs]:
    """The checked geometry of the convolution x -> y, and what x is padded by before it."""
    config = arguments.make_config(
        name,
        x_shape,
        w_shape,
        strides=strides,
        padding=padding,
        dilation=dilation,
        groups=groups,
        dimension_numbers=dimension_numbers,
    )
    beforehand, config = arguments.split_symbolic(config)
    padded = [*x_shape]
    for axis, pair in zip(config.dimension_numbers.lhs_spec[2:], beforehand, strict=True):
        padded[axis] += sum(pair)
    return ConvGeometry.make(name, config, tuple(padded), w_shape), beforehand


def _pad(x: Array, beforehand: Pairs, geometry: ConvGeometry) -> Array:
    return pad_spatial(x, beforehand, geometry.config.dimension_numbers.lhs_spec)


def _crop(dx: Array, beforehand: Pairs, geometry: ConvGeometry) -> Array:
    """The transpose of `_pad`."""
    return _pad(dx, tuple((-low, -high) for low, high in beforehand), geometry)


def _bind(problem: ConvProblem, first: Array, second: Array) -> Array:
    """The operator of a user's arrays, whose shardings must say how the result lies."""
    primitives.check_shardings(problem, first, second)
    return primitives.bind(problem, first, second)


def conv_dgrad(
    dy: ArrayLike,
    w: ArrayLike,
    x_shape: Sequence[int],
    *,
    strides: int | Sequence[int] = 1,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    dimension_numbers: Any = None,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """The input gradient ``dx`` of the convolution ``x -> y``: the adjoint of `conv_fprop` in ``x``.

    Definition: <dy, conv_fprop(x, w)> = <conv_dgrad(dy, w, x.shape), x> for all x and dy.

    Args:
      dy: gradient of the convolution's output, in y's shape.
      w: weights of the same dtype: output channels, input channels / groups, and the kernel.
      x_shape: the whole shape of ``x``. It is an argument because several input sizes give the same
        output size when a stride is above 1; rows that no window reads get zeros.
      strides: window strides, one int or one per spatial axis.
      padding: "SAME", "SAME_LOWER", "VALID", or one (low, high) pair per spatial axis, in elements of
        ``x``; negative numbers crop.
      dilation: kernel dilation, one int or one per spatial axis.
      groups: feature group count.
      dimension_numbers: the orders of the axes of image, weights and result, such as
        ``("NHWC", "HWIO", "NHWC")``, or a `jax.lax.ConvDimensionNumbers`; None means NCHW, OIHW, NCHW.
      precision: None, a `jax.lax.Precision` or its name. On CUDA the default lets float32 use TF32,
        which HIGHEST forbids.
      preferred_element_type: dtype of the result, the arrays' own by default.

    Returns:
      ``dx`` with shape ``x_shape``.

    Raises:
      TypeError: dtypes that differ or are not floating point; arguments of the wrong kind.
      ValueError: ``dy`` is not what a convolution of ``x_shape`` with ``w`` gives, or other arguments
        do not fit; the text shows the shapes.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_convgrad import conv_dgrad
      >>> conv_dgrad(jnp.ones((2, 4, 4)), jnp.ones((4, 3, 5)), (2, 3, 8), strides=2, padding="SAME").shape
      (2, 3, 8)
    """
    dy, w = compat.as_array(dy), compat.as_array(w)
    dtype = check_float_dtypes("conv_dgrad", dy=dy.dtype, w=w.dtype)
    preferred = result_dtype("conv_dgrad", dtype, preferred_element_type)
    x_shape = shapes.full_shape("conv_dgrad", "x_shape", x_shape, w.ndim)
    geometry, beforehand = _geometry(
        "conv_dgrad", x_shape, w.shape, strides, padding, dilation, dimension_numbers, groups
    )
    geometry.check_dy("conv_dgrad", dy.shape)
    dx = _bind(ConvProblem.make("conv_dgrad", geometry, dtype, preferred, precision), dy, w)
    return _crop(dx, beforehand, geometry)


def conv_wgrad(
    x: ArrayLike,
    dy: ArrayLike,
    w_shape: Sequence[int],
    *,
    strides: int | Sequence[int] = 1,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    dimension_numbers: Any = None,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """The weight gradient ``dw`` of the convolution ``x -> y``: the adjoint of `conv_fprop` in ``w``.

    Definition: <dy, conv_fprop(x, w)> = <conv_wgrad(x, dy, w.shape), w> for all w and dy.

    Args:
      x: image; float16, bfloat16, float32 or float64, with a batch, a channel and one to three
        spatial axes in the order that ``dimension_numbers`` says.
      dy: gradient of the convolution's output, in y's shape, of the same dtype.
      w_shape: the whole shape of ``w``.
      strides: window strides, one int or one per spatial axis.
      padding: "SAME", "SAME_LOWER", "VALID", or one (low, high) pair per spatial axis, in elements of
        ``x``; negative numbers crop.
      dilation: kernel dilation, one int or one per spatial axis.
      groups: feature group count.
      dimension_numbers: the orders of the axes of image, weights and result, such as
        ``("NHWC", "HWIO", "NHWC")``, or a `jax.lax.ConvDimensionNumbers`; None means NCHW, OIHW, NCHW.
      precision: None, a `jax.lax.Precision` or its name. On CUDA the default lets float32 use TF32,
        which HIGHEST forbids.
      preferred_element_type: dtype of the result, the arrays' own by default.

    Returns:
      ``dw`` with shape ``w_shape``.

    Raises:
      TypeError: dtypes that differ or are not floating point; arguments of the wrong kind.
      ValueError: ``dy`` is not what a convolution of ``x`` with weights of ``w_shape`` gives, or other
        arguments do not fit; the text shows the shapes.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_convgrad import conv_wgrad
      >>> conv_wgrad(jnp.ones((2, 3, 8)), jnp.ones((2, 4, 4)), (4, 3, 5), strides=2, padding="SAME").shape
      (4, 3, 5)
    """
    x, dy = compat.as_array(x), compat.as_array(dy)
    dtype = check_float_dtypes("conv_wgrad", x=x.dtype, dy=dy.dtype)
    preferred = result_dtype("conv_wgrad", dtype, preferred_element_type)
    w_shape = shapes.full_shape("conv_wgrad", "w_shape", w_shape, x.ndim)
    geometry, beforehand = _geometry(
        "conv_wgrad", x.shape, w_shape, strides, padding, dilation, dimension_numbers, groups
    )
    geometry.check_dy("conv_wgrad", dy.shape)
    x = _pad(x, beforehand, geometry)
    return _bind(ConvProblem.make("conv_wgrad", geometry, dtype, preferred, precision), x, dy)


def conv_backward(
    x: ArrayLike,
    w: ArrayLike,
    dy: ArrayLike,
    *,
    strides: int | Sequence[int] = 1,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    dimension_numbers: Any = None,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    wanted: Sequence[str] = ("x", "w", "b"),
) -> tuple[Array | None, Array | None, Array | None]:
    """All gradients of the layer ``y = conv_fprop(x, w) + b``, in one call where one call is faster.

    Definition: ``dx`` is `conv_dgrad` of ``dy`` and ``w``, ``dw`` is `conv_wgrad` of ``x`` and ``dy``, and
    ``db`` is the sum of ``dy`` over the batch and the spatial axes. Where one call is not faster, these
    three are computed, bit for bit. The function can be differentiated to any order in both modes.

    Args:
      x: image; float16, bfloat16, float32 or float64, with a batch, a channel and one to three
        spatial axes in the order that ``dimension_numbers`` says.
      w: weights of the same dtype: output channels, input channels / groups, and the kernel.
      dy: gradient of the convolution's output, in y's shape, of the same dtype.
      strides: window strides, one int or one per spatial axis.
      padding: "SAME", "SAME_LOWER", "VALID", or one (low, high) pair per spatial axis, in elements of
        ``x``; negative numbers crop.
      dilation: kernel dilation, one int or one per spatial axis.
      groups: feature group count.
      dimension_numbers: the orders of the axes of image, weights and result, such as
        ``("NHWC", "HWIO", "NHWC")``, or a `jax.lax.ConvDimensionNumbers`; None means NCHW, OIHW, NCHW.
      precision: None, a `jax.lax.Precision` or its name. On CUDA the default lets float32 use TF32,
        which HIGHEST forbids.
      preferred_element_type: dtype of the result, the arrays' own by default.
      wanted: which gradients to compute: any of "x", "w" and "b", in any order.

    Returns:
      (``dx``, ``dw``, ``db``): ``dx`` with x's shape, ``dw`` with w's, ``db`` with one element per output
      channel; None for what is not wanted. ``db`` is summed in float32 at least.

    Raises:
      TypeError: dtypes that differ or are not floating point; arguments of the wrong kind.
      ValueError: ``dy`` is not what a convolution of ``x`` with ``w`` gives, ``wanted`` names something
        else, or other arguments do not fit; the text shows the shapes.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_convgrad import conv_backward
      >>> x, w, dy = jnp.ones((2, 3, 8)), jnp.ones((4, 3, 5)), jnp.ones((2, 4, 4))
      >>> dx, dw, db = conv_backward(x, w, dy, strides=2, padding="SAME", wanted=("x", "b"))
      >>> dx.shape, dw, db.shape
      ((2, 3, 8), None, (4,))
    """
    name = "conv_backward"
    x, w, dy = compat.as_array(x), compat.as_array(w), compat.as_array(dy)
    dtype = check_float_dtypes(name, x=x.dtype, w=w.dtype, dy=dy.dtype)
    preferred = result_dtype(name, dtype, preferred_element_type)
    named = arguments.check_wanted(name, wanted, GRADIENTS)
    geometry, beforehand = _geometry(
        name, x.shape, w.shape, strides, padding, dilation, dimension_numbers, groups
    )
    geometry.check_dy(name, dy.shape)
    x = _pad(x, beforehand, geometry)
    precision = compat.canonical_precision(precision)
    problem = ConvBackwardProblem(geometry, dtype, preferred, precision, named)
    if "x" in named:
        primitives.check_shardings(problem.dgrad, dy, w)
    if "w" in named:
        primitives.check_shardings(problem.wgrad, x, dy)
    results = backward.bind(problem, x, w, dy) if named else []
    found = dict(zip(named, results, strict=True))
    if "x" in found:
        found["x"] = _crop(found["x"], beforehand, geometry)
    return found.get("x"), found.get("w"), found.get("b")


# Layers.


@hints.with_keyword_hints(hints.CONV_KEYWORDS, "conv2d")
def conv_general_dilated(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: Any = None,
    *,
    bias: ArrayLike | None = None,
) -> Array:
    """`jax.lax.conv_general_dilated` with a fast backward pass, and an optional bias.

    Arguments, their order, defaults and results are those of lax. Derivatives of any order work in both
    modes, and so does every other transformation. An operand that is not differentiated costs nothing.
    With ``out_sharding``, with other than one to three spatial axes, or with arrays of integers, booleans,
    complex numbers or 8-bit floats, this calls lax's own operation.

    Args:
      lhs: image of any dtype that lax takes, with a batch axis, a channel axis and spatial axes; float16,
        bfloat16, float32 and float64 are fast.
      rhs: weights of the same dtype: output channels, input channels / groups, and the kernel's axes.
      window_strides: steps of the window, one per spatial axis.
      padding: "SAME", "SAME_LOWER", "VALID", or one (low, high) pair per spatial axis, in elements of the
        dilated image; negative numbers crop.
      lhs_dilation: distance between neighboring elements of the image after zeros are inserted, one per
        spatial axis; None means 1.
      rhs_dilation: distance between neighboring taps of the kernel, one per spatial axis; None means 1.
      dimension_numbers: the orders of the axes of image, weights and result, such as
        ``("NHWC", "HWIO", "NHWC")``, or a `jax.lax.ConvDimensionNumbers`; None means NCHW, OIHW, NCHW.
      feature_group_count: number of groups that the channels are divided into. Each group of output
        channels reads its own group of input channels.
      batch_group_count: number of groups that the batch is divided into. Each group of output channels
        reads its own part of the batch.
      precision: None, a `jax.lax.Precision` or its name. On CUDA the default lets float32 use TF32,
        which HIGHEST forbids.
      preferred_element_type: dtype of the result, the arrays' own by default.
      out_sharding: sharding of the result in an Explicit mesh; None derives it from the operands.
      bias: None or a vector with one element per output channel, in the arrays' dtype.

    Returns:
      The convolution, in ``preferred_element_type`` (the arrays' dtype by default).

    Raises:
      TypeError: dtypes that differ; arguments of the wrong kind.
      ValueError: shapes or arguments that do not fit; the text shows both shapes.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax_convgrad import conv_general_dilated
      >>> x, w, b = jnp.ones((1, 8, 8, 3)), jnp.ones((3, 3, 3, 4)), jnp.zeros(4)
      >>> numbers = ("NHWC", "HWIO", "NHWC")
      >>> loss = lambda w, b: conv_general_dilated(
      ...     x, w, (2, 2), "SAME", dimension_numbers=numbers, bias=b).sum()
      >>> [g.shape for g in jax.grad(loss, (0, 1))(w, b)]
      [(3, 3, 3, 4), (4,)]
    """
    name = "conv_general_dilated"
    lhs, rhs = compat.as_array(lhs), compat.as_array(rhs)
    bias = None if bias is None else compat.as_array(bias)
    dtype = check_same_dtype(name, lhs=lhs.dtype, rhs=rhs.dtype)
    preferred: Any = preferred_element_type
    if is_ours(dtype):
        preferred = result_dtype(name, dtype, preferred_element_type)
    numbers = arguments.make_dimension_numbers(
        name, lhs.shape, rhs.shape, dimension_numbers, ("lhs", "rhs")
    )
    rank = lhs.ndim - 2
    shown = f"lhs has shape {lhs.shape}, rhs has shape {rhs.shape}"
    strides = shapes.positive_ints(name, "window_strides", window_strides, rank, shown)
    lhs_dilation = shapes.positive_ints(
        name, "lhs_dilation", 1 if lhs_dilation is None else lhs_dilation, rank, shown
    )
    rhs_dilation = shapes.positive_ints(
        name, "rhs_dilation", 1 if rhs_dilation is None else rhs_dilation, rank, shown
    )
    if isinstance(padding, str) and any(d > 1 for d in lhs_dilation):
        raise ValueError(
            f"{name}: padding={padding!r} has no meaning with lhs_dilation={lhs_dilation}; give (low, high) "
            f"pairs or use conv_transpose ({shown})"
        )
    groups = arguments.check_group_counts(
        name,
        lhs.shape,
        rhs.shape,
        numbers,
        feature_group_count,
        batch_group_count,
        padding=padding,
    )
    if bias is not None:
        arguments.check_bias(name, bias.shape, bias.dtype, rhs.shape[numbers.rhs_spec[0]], dtype)

    if out_sharding is not None or not is_ours(dtype) or not 1 <= rank <= MAX_SPATIAL_RANK:
        y = lax.conv_general_dilated(
            lhs,
            rhs,
            strides,
            padding,
            lhs_dilation,
            rhs_dilation,
            numbers,
            feature_group_count,
            batch_group_count,
            precision,
            preferred,
            out_sharding,
        )
        return y if bias is None else add_bias(y, bias, numbers.out_spec[1])

    if batch_group_count > 1:
        # The groups of the batch, moved beside the channels, are groups of channels.
        lhs = move_groups(lhs, batch_group_count, numbers.lhs_spec[0], numbers.lhs_spec[1])

    def convolve(x: Array, w: Array, windows: phases.Windows) -> Array:
        return _convolution(name, x, w, *windows, numbers, groups, precision, preferred)

    def transpose(x: Array, w: Array, lhs_dilation: Shape, windows: phases.Windows) -> Array:
        _, padding, dilation = windows
        rest = numbers, groups, precision, preferred
        return _transposed(name, x, w, None, lhs_dilation, padding, dilation, *rest)

    if all(d == 1 for d in lhs_dilation):
        y = _convolution(
            name, lhs, rhs, strides, padding, rhs_dilation, numbers, groups, precision, preferred
        )
    else:
        pairs = shapes.int_pairs(name, "padding", padding, rank, shown)
        windows = phases.Windows(strides, pairs, rhs_dilation)
        if all(s == 1 for s in strides):
            y = transpose(lhs, rhs, lhs_dilation, windows)
        else:
            config = ConvConfig(*windows, groups, numbers)
            whole = ConvGeometry.make(
                name, config, _dilated_shape(lhs.shape, lhs_dilation, numbers), rhs.shape
            )
            y = phases.convolution(lhs, rhs, whole, lhs_dilation, convolve, transpose, preferred)
    return y if bias is None else add_bias(y, bias, numbers.out_spec[1])


def _dilated_shape(shape: Shape, dilation: Shape, numbers: lax.ConvDimensionNumbers) -> Shape:
    """The shape of an image with ``dilation`` - 1 zeros between its elements."""
    sizes = list(shape)
    for axis, d in zip(numbers.lhs_spec[2:], dilation, strict=True):
        sizes[axis] = dilated(shape[axis], d)
    return tuple(sizes)


@hints.with_keyword_hints(hints.TRANSPOSE_KEYWORDS, "conv_transpose2d")
def conv_transpose(
    lhs: ArrayLike,
    rhs: ArrayLike,
    strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    transpose_kernel: bool = False,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    use_consistent_padding: bool = False,
    *,
    feature_group_count: int = 1,
    output_padding: int | Sequence[int] = 0,
    output_shape: Sequence[int] | None = None,
    bias: ArrayLike | None = None,
) -> Array:
    """`jax.lax.conv_transpose` with fast forward and backward passes, groups, output sizes and a bias.

    A transposed convolution is the input gradient of a convolution used forwards, so its own input
    gradient is a convolution and its weight gradient the convolution's, with image and gradient
    exchanged. Positional arguments, defaults and results are those of lax.

    Args:
      lhs: input of any dtype that lax takes; float16, bfloat16, float32 and float64 are fast, with one to
        three spatial axes. The rest is passed to lax's own operation.
      rhs: weights of the same dtype. Axis I holds the input channels / groups and axis O the output
        channels; with ``transpose_kernel`` it is the other way round.
      strides: upsampling factors, one per spatial axis.
      padding: "SAME", "SAME_LOWER" or "VALID" of the convolution underneath, or one (low, high) pair per
        spatial axis: those of the dilated input, or with ``use_consistent_padding`` those of the
        convolution underneath. The names in any case; lax, which has the first and the last in
        capitals, takes other strings, where strides are 1, for a plain convolution's padding.
      rhs_dilation: kernel dilation, one per spatial axis.
      dimension_numbers: the orders of the axes of input, weights and result, such as
        ``("NCHW", "OIHW", "NCHW")``, or a `jax.lax.ConvDimensionNumbers`; None means NHWC, HWIO, NHWC.
      transpose_kernel: flip the kernel and swap its channel axes, as the gradient of a convolution does.
      precision: None, a `jax.lax.Precision` or its name. On CUDA the default lets float32 use TF32,
        which HIGHEST forbids.
      preferred_element_type: dtype of the result, the arrays' own by default.
      use_consistent_padding: see ``padding``.
      feature_group_count: number of groups.
      output_padding: extra outputs at the high side, smaller than the stride or the dilation.
      output_shape: spatial output sizes, instead of what the padding would give. "SAME" then splits the
        padding evenly; with "VALID" or pairs the low side stays and the high side gives way.
      bias: None or a vector with one element per output channel, in the arrays' dtype.

    Returns:
      The transposed convolution: (size - 1) * stride + 1 + low + high - (kernel - 1) * dilation elements
      along each spatial axis.

    Raises:
      TypeError: dtypes that differ; arguments of the wrong kind.
      ValueError: shapes or arguments that do not fit; the text shows both shapes.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax_convgrad import conv_transpose
      >>> x, w = jnp.ones((1, 8, 8, 6)), jnp.ones((4, 4, 6, 3))
      >>> conv_transpose(x, w, (2, 2), "SAME").shape
      (1, 16, 16, 3)
      >>> jax.grad(lambda w: conv_transpose(x, w, (2, 2), "SAME").sum())(w).shape
      (4, 4, 6, 3)
    """
    name = "conv_transpose"
    lhs, rhs = compat.as_array(lhs), compat.as_array(rhs)
    bias = None if bias is None else compat.as_array(bias)
    dtype = check_same_dtype(name, lhs=lhs.dtype, rhs=rhs.dtype)
    preferred: Any = preferred_element_type
    if is_ours(dtype):
        preferred = result_dtype(name, dtype, preferred_element_type)
    rank = lhs.ndim - 2
    if dimension_numbers is None:
        dimension_numbers = arguments.channels_last_numbers(name, lhs.shape, rhs.shape)
    numbers = arguments.make_dimension_numbers(
        name, lhs.shape, rhs.shape, dimension_numbers, ("lhs", "rhs")
    )
    shown = f"lhs has shape {lhs.shape}, rhs has shape {rhs.shape}"
    strides = shapes.positive_ints(name, "strides", strides, rank, shown)
    dilation = shapes.positive_ints(
        name, "rhs_dilation", 1 if rhs_dilation is None else rhs_dilation, rank, shown
    )
    x_spec, (out_axis, in_axis, *kernel_axes), y_spec = numbers
    pairs = arguments.transposed_padding(
        name,
        tuple(lhs.shape[axis] for axis in x_spec[2:]),
        tuple(dilated(rhs.shape[axis], d) for axis, d in zip(kernel_axes, dilation, strict=True)),
        strides,
        dilation,
        padding,
        use_consistent_padding=use_consistent_padding,
        output_padding=output_padding,
        output_shape=output_shape,
    )
    if transpose_kernel:
        numbers = lax.ConvDimensionNumbers(x_spec, swap_channels(numbers.rhs_spec), y_spec)
        out_axis, in_axis = in_axis, out_axis
    groups = arguments.check_group_counts(
        name, lhs.shape, rhs.shape, numbers, feature_group_count, 1, transposed=True
    )
    if bias is not None:
        arguments.check_bias(name, bias.shape, bias.dtype, rhs.shape[out_axis], dtype)
    if not is_ours(dtype) or not 1 <= rank <= MAX_SPATIAL_RANK:
        y = lax.conv_general_dilated(
            lhs,
            lax.rev(rhs, kernel_axes) if transpose_kernel else rhs,
            (1,) * rank,
            pairs,
            strides,
            dilation,
            numbers,
            groups,
            precision=precision,
            preferred_element_type=preferred,
        )
        return y if bias is None else add_bias(y, bias, y_spec[1])
    return _transposed(
        name,
        lhs,
        rhs,
        bias,
        strides,
        pairs,
        dilation,
        numbers,
        groups,
        precision,
        preferred,
        reverse=transpose_kernel,
    )


def _transposed(
    name: str,
    lhs: Array,
    rhs: Array,
    bias: Array | None,
    strides: tuple[int, ...],
    padding: Pairs,
    dilation: tuple[int, ...],
    numbers: lax.ConvDimensionNumbers,
    groups: int,
    precision: Any,
    preferred: np.dtype,
    *,
    reverse: bool = False,
) -> Array:
    """lax's convolution of an input dilated by ``strides``, as the dgrad that it is.

    The convolution underneath runs from our output to our input, with the kernel reversed, the
    channel axes of the weights exchanged, and the groups where its output channels are. With
    ``reverse`` it is the convolution with the kernel reversed, which the one underneath has as it is.
    """
    lhs_spec, (out_axis, in_axis, *kernel_axes), out_spec = numbers
    kernel = tuple(
        dilated(rhs.shape[axis], d) for axis, d in zip(kernel_axes, dilation, strict=True)
    )
    sizes = tuple(
        arguments.transposed_size(name, lhs.shape[axis], k, s, pair, f"{lhs.shape} and {rhs.shape}")
        for axis, k, s, pair in zip(lhs_spec[2:], kernel, strides, padding, strict=True)
    )
    shape = [0] * lhs.ndim
    for axis, size in zip(
        out_spec, (lhs.shape[lhs_spec[0]], rhs.shape[out_axis], *sizes), strict=True
    ):
        shape[axis] = size
    if 0 in (*sizes, *kernel, *(lhs.shape[axis] for axis in lhs_spec[2:])):
        # The convolution underneath need not have such sizes.
        y = compat.zeros_like_batch(lhs, lhs_spec[0], tuple(shape), out_spec[0], preferred)
        return y if bias is None else add_bias(y, bias, out_spec[1])
    # With stride 1 it is an fprop too, of the weights as they are. Where it grows the windows of that one
    # would read padding: sixteen times as much work for the 4x4 of a 1x1.
    # (With other strides symbolic sizes might not compare.)
    pairs = zip(sizes, lhs_spec[2:], strict=True)
    if (
        all(s == 1 for s in strides)
        and not reverse
        and all(size <= lhs.shape[axis] for size, axis in pairs)
    ):
        y = _convolution(
            name, lhs, rhs, strides, padding, dilation, numbers, groups, precision, preferred
        )
        return y if bias is None else add_bias(y, bias, out_spec[1])
    mirror = not reverse and _mirrors_images(lhs, rhs, math.prod(shape))
    weights = rhs if reverse or mirror else lax.rev(rhs, kernel_axes)
    if groups > 1:
        weights = move_groups(weights, groups, out_axis, in_axis)
    underlying = arguments.underlying_padding(padding, kernel)
    if mirror:
        lhs = lax.rev(lhs, lhs_spec[2:])
        underlying = tuple((high, low) for low, high in underlying)
    config = ConvConfig(
        strides,
        underlying,
        dilation,
        groups,
        lax.ConvDimensionNumbers(out_spec, (in_axis, out_axis, *kernel_axes), lhs_spec),
    )
    geometry = ConvGeometry.make(name, config, tuple(shape), weights.shape)
    geometry.check_dy(name, lhs.shape)
    y = _bind(
        ConvProblem.make("conv_dgrad", geometry, lhs.dtype, preferred, precision), lhs, weights
    )
    y = lax.rev(y, out_spec[2:]) if mirror else y
    return y if bias is None else add_bias(y, bias, out_spec[1])


def _mirrors_images(x: Array, w: Array, y_size: int) -> bool:
    """Whether both images are reversed instead of the weights, which comes to the same.

    It takes less memory where the weights are larger. A copy of them that is below 32 MB fits beside
    what the handlers need, and costs nothing on CUDA, where XLA makes it one with the copy in cuDNN's
    order. Where a size is symbolic that cannot be known, and the weights are reversed.
    """
    sizes = w.size, x.size, y_size
    if not all(isinstance(size, int) for size in sizes):
        return False
    return w.nbytes >= 2**25 and w.size > x.size + y_size

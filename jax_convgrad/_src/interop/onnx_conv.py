"""ONNX's Conv and ConvTranspose, and ONNX Runtime's gradients of them. See `jax_convgrad.onnx`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from jax_convgrad._src import compat, shapes
from jax_convgrad._src.conv import arguments
from jax_convgrad._src.conv.geometry import ConvConfig, dilated
from jax_convgrad._src.dtypes import check_float_dtypes
from jax_convgrad._src.interop import common
from jax_convgrad._src.interop.gradients import Contract
from jax_convgrad._src.shapes import Shape

_AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


def conv(
    X: ArrayLike,
    W: ArrayLike,
    B: ArrayLike | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Convolution. Definition: ONNX operator Conv, version 22.

    Args:
      X: N x C x D1 x ... x Dn, one to three spatial axes; float16, bfloat16, float32 or float64.
      W: M x C/group x k1 x ... x kn, of X's dtype.
      B: None or M, of X's dtype.
      auto_pad: "NOTSET" (``pads`` counts), "SAME_UPPER" or "SAME_LOWER" (ceil(size / stride)
        outputs, an odd padding's extra element at the end or at the beginning), "VALID" (no
        padding).
      dilations: kernel dilation, one per spatial axis; 1 by default.
      group: number of groups.
      kernel_shape: the kernel's spatial sizes; checked against W if given.
      pads: begin of each axis, then end of each axis, at least 0; 0 by default.
      strides: one per spatial axis; 1 by default.

    Returns:
      Y: N x M x space, of X's dtype.

    Raises:
      TypeError: dtypes that differ or are not floating point, attributes of the wrong kind.
      ValueError: shapes or attributes that do not fit, ``pads`` together with ``auto_pad``.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_convgrad import onnx
      >>> X, W = jnp.ones((1, 1, 7, 5)), jnp.ones((1, 1, 3, 3))
      >>> onnx.conv(X, W, strides=[2, 2], pads=[1, 0, 1, 0]).shape
      (1, 1, 4, 2)
    """
    X, W, B = compat.as_array(X), compat.as_array(W), None if B is None else compat.as_array(B)
    check_float_dtypes("onnx.conv", X=X.dtype, W=W.dtype)
    problem = _conv(
        "onnx.conv", X.shape, W.shape, auto_pad, dilations, group, kernel_shape, pads, strides
    )
    contract = Contract("onnx.conv", "onnx.conv_grad", "jax_convgrad.conv_general_dilated")
    return problem.apply(contract, X, W, B, "B")


def conv_grad(
    dY: ArrayLike,
    X: ArrayLike,
    W: ArrayLike,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    output_mask: Sequence[bool] = (True, True, True),
) -> tuple[Array | None, Array | None, Array | None]:
    """Gradients of `conv`. Definition: the adjoints of ONNX operator Conv, version 22.

    Args:
      dY: gradient of the result, of `conv`'s output shape and X's dtype.
      X: N x C x D1 x ... x Dn, one to three spatial axes; float16, bfloat16, float32 or float64.
      W: M x C/group x k1 x ... x kn, of X's dtype.
      auto_pad, dilations, group, kernel_shape, pads, strides: the attributes of the forward
        operator.
      output_mask: which of dX, dW and dB to compute.

    Returns:
      (dX, dW, dB) with the shapes of X and W and (M,), in their dtype; None where masked out. dB of
      16-bit arrays is accumulated in float32.

    Raises:
      TypeError, ValueError: as `conv`, and if dY is not of `conv`'s output shape.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_convgrad import onnx
      >>> X, W = jnp.ones((1, 4, 8, 8)), jnp.ones((6, 2, 3, 3))
      >>> dY = jnp.ones((1, 6, 4, 4))
      >>> dX, dW, dB = onnx.conv_grad(
      ...     dY, X, W, auto_pad="SAME_UPPER", strides=[2, 2], group=2,
      ...     output_mask=(True, True, False))
      >>> dX.shape, dW.shape, dB
      ((1, 4, 8, 8), (6, 2, 3, 3), None)
    """
    dY, X, W = compat.as_array(dY), compat.as_array(X), compat.as_array(W)
    check_float_dtypes("onnx.conv_grad", dY=dY.dtype, X=X.dtype, W=W.dtype)
    problem = _conv(
        "onnx.conv_grad", X.shape, W.shape, auto_pad, dilations, group, kernel_shape, pads, strides
    )
    return _gradients(problem, dY, X, W, output_mask)


def conv_transpose(
    X: ArrayLike,
    W: ArrayLike,
    B: ArrayLike | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
) -> Array:
    """Transposed convolution. Definition: ONNX operator ConvTranspose, version 22.

    Args:
      X: N x C x D1 x ... x Dn, one to three spatial axes; float16, bfloat16, float32 or float64.
      W: C x M/group x k1 x ... x kn, of X's dtype.
      B: None or M, of X's dtype.
      auto_pad: "NOTSET" (``pads`` counts), "SAME_UPPER" or "SAME_LOWER" (size * stride outputs, an
        odd padding's extra element at the end or at the beginning), "VALID" (no padding).
      dilations: kernel dilation, one per spatial axis; 1 by default.
      group: number of groups.
      kernel_shape: the kernel's spatial sizes; checked against W if given.
      pads: cut off the result: begin of each axis, then end of each axis, at least 0; 0 by default.
      strides: one per spatial axis; 1 by default.
      output_padding: elements added at the end of each axis, fewer than its stride or its dilation;
        0 by default. Where the output size is fixed (SAME, ``output_shape``) it only enters the
        padding.
      output_shape: the spatial output sizes; ``pads`` is then ignored and follows from them.

    Returns:
      Y: N x M x space, of X's dtype, with
      stride * (size - 1) + output_padding + (kernel - 1) * dilation + 1 - pads elements along each
      axis unless the size is fixed.

    Raises:
      TypeError: dtypes that differ or are not floating point, attributes of the wrong kind.
      ValueError: shapes or attributes that do not fit, ``pads`` together with ``auto_pad``, an
        output size that no legal ``output_padding`` reaches.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_convgrad import onnx
      >>> X, W = jnp.ones((1, 1, 3, 3)), jnp.ones((1, 2, 3, 3))
      >>> onnx.conv_transpose(X, W, strides=[3, 2], output_shape=[10, 8]).shape
      (1, 2, 10, 8)
    """
    X, W, B = compat.as_array(X), compat.as_array(W), None if B is None else compat.as_array(B)
    check_float_dtypes("onnx.conv_transpose", X=X.dtype, W=W.dtype)
    problem = _conv_transpose(
        "onnx.conv_transpose",
        X.shape,
        W.shape,
        auto_pad,
        dilations,
        group,
        kernel_shape,
        pads,
        strides,
        output_padding,
        output_shape,
    )
    contract = Contract(
        "onnx.conv_transpose", "onnx.conv_transpose_grad", "jax_convgrad.conv_transpose"
    )
    return problem.apply(contract, X, W, B, "B")


def conv_transpose_grad(
    dY: ArrayLike,
    X: ArrayLike,
    W: ArrayLike,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    output_mask: Sequence[bool] = (True, True, True),
) -> tuple[Array | None, Array | None, Array | None]:
    """Gradients of `conv_transpose`. Definition: the adjoints of ONNX operator ConvTranspose,
    version 22.

    Args:
      dY: gradient of the result, of `conv_transpose`'s output shape and X's dtype.
      X: N x C x D1 x ... x Dn, one to three spatial axes; float16, bfloat16, float32 or float64.
      W: C x M/group x k1 x ... x kn, of X's dtype.
      auto_pad, dilations, group, kernel_shape, pads, strides, output_padding, output_shape: the
        attributes of the forward operator.
      output_mask: which of dX, dW and dB to compute.

    Returns:
      (dX, dW, dB) with the shapes of X and W and (M,), in their dtype; None where masked out. dB of
      16-bit arrays is accumulated in float32.

    Raises:
      TypeError, ValueError: as `conv_transpose`, and if dY is not of `conv_transpose`'s output
        shape.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_convgrad import onnx
      >>> X, W = jnp.ones((1, 1, 3, 3)), jnp.ones((1, 2, 3, 3))
      >>> dY = jnp.ones((1, 2, 10, 8))
      >>> dX, dW, dB = onnx.conv_transpose_grad(dY, X, W, strides=[3, 2], output_shape=[10, 8])
      >>> dX.shape, dW.shape, dB
      ((1, 1, 3, 3), (1, 2, 3, 3), Array([80., 80.], dtype=float32))
    """
    dY, X, W = compat.as_array(dY), compat.as_array(X), compat.as_array(W)
    check_float_dtypes("onnx.conv_transpose_grad", dY=dY.dtype, X=X.dtype, W=W.dtype)
    problem = _conv_transpose(
        "onnx.conv_transpose_grad",
        X.shape,
        W.shape,
        auto_pad,
        dilations,
        group,
        kernel_shape,
        pads,
        strides,
        output_padding,
        output_shape,
    )
    return _gradients(problem, dY, X, W, output_mask)


def _conv(
    function: str,
    x_shape: Shape,
    w_shape: Shape,
    auto_pad: str,
    dilations: Sequence[int] | None,
    group: int,
    kernel_shape: Sequence[int] | None,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> common.Convolution:
    config, _ = _config(
        function, x_shape, w_shape, auto_pad, dilations, group, kernel_shape, pads, strides
    )
    common.check_channels(function, config, "group", ("W", w_shape), ("X", x_shape), None)
    if auto_pad != "NOTSET":
        kernel = tuple(map(dilated, w_shape[2:], config.dilation))
        pairs = common.auto_pads(auto_pad, x_shape[2:], kernel, config.strides)
        config = config.replace(padding=pairs)
    return common.plain(function, config, x_shape, w_shape)


def _conv_transpose(
    function: str,
    x_shape: Shape,
    w_shape: Shape,
    auto_pad: str,
    dilations: Sequence[int] | None,
    group: int,
    kernel_shape: Sequence[int] | None,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
    output_padding: Sequence[int] | None,
    output_shape: Sequence[int] | None,
) -> common.Convolution:
    config, arrays = _config(
        function, x_shape, w_shape, auto_pad, dilations, group, kernel_shape, pads, strides
    )
    # Underneath is a convolution from Y to X, so X is the array whose channels are W's first axis.
    common.check_channels(function, config, "group", ("W", w_shape), None, ("X", x_shape))
    rank = config.spatial_rank
    extra = (0,) * rank
    if output_padding is not None:
        extra = common.nonnegative_ints(function, "output_padding", output_padding, rank, arrays)
    for more, stride, dilation in zip(extra, config.strides, config.dilation, strict=True):
        if more >= max(stride, dilation):
            raise ValueError(
                f"{function}: output_padding={extra} must be smaller than the stride or the "
                f"dilation of its axis, strides={config.strides}, dilations={config.dilation} "
                f"({arrays})"
            )
    full = [
        stride * (size - 1) + dilated(kernel, dilation)
        for size, kernel, stride, dilation in zip(
            x_shape[2:], w_shape[2:], config.strides, config.dilation, strict=True
        )
    ]
    if output_shape is not None:
        wanted = shapes.sizes(function, "output_shape", output_shape, rank, 1, arrays)
    elif auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(
            size * stride for size, stride in zip(x_shape[2:], config.strides, strict=True)
        )
    else:
        wanted = tuple(
            size + more - sum(pair)
            for size, more, pair in zip(full, extra, config.padding, strict=True)
        )
        return common.transposed(function, config, x_shape, w_shape, wanted, arrays)
    totals = [
        max(more - arguments.difference(function, "output_shape", size, n), 0)
        for n, more, size in zip(full, extra, wanted, strict=True)
    ]
    smaller, larger = [n // 2 for n in totals], [n - n // 2 for n in totals]
    begins, ends = (smaller, larger) if auto_pad == "SAME_UPPER" else (larger, smaller)
    config = config.replace(padding=common.pairs(begins, ends))
    return common.transposed(function, config, x_shape, w_shape, wanted, arrays)


def _config(
    function: str,
    x_shape: Shape,
    w_shape: Shape,
    auto_pad: str,
    dilations: Sequence[int] | None,
    group: int,
    kernel_shape: Sequence[int] | None,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> tuple[ConvConfig, str]:
    """The checked attributes of both operators, and the arrays' shapes for messages.

    Its padding is ``pads``, zeros if not given.
    """
    rank = common.check_convolution_ranks(function, X=x_shape, W=w_shape)
    arrays = common.describe(X=x_shape, W=w_shape)
    if not isinstance(auto_pad, str):
        raise TypeError(f"{function}: auto_pad must be a string, got {auto_pad!r}")
    if auto_pad not in _AUTO_PADS:
        raise ValueError(
            f"{function}: auto_pad must be one of {', '.join(_AUTO_PADS)}, got {auto_pad!r}"
        )
    if pads is not None and auto_pad != "NOTSET":
        raise ValueError(
            f"{function}: pads={pads} cannot be used together with auto_pad={auto_pad!r}"
        )
    if kernel_shape is not None:
        kernel = shapes.positive_ints(function, "kernel_shape", kernel_shape, rank, arrays)
        if kernel != tuple(w_shape[2:]):
            raise ValueError(f"{function}: kernel_shape={kernel} is not the kernel of W ({arrays})")
    sides = (0,) * (2 * rank)
    if pads is not None:
        sides = common.nonnegative_ints(function, "pads", pads, 2 * rank, arrays)
    axes = tuple(range(rank + 2))
    config = ConvConfig(
        shapes.positive_ints(function, "strides", 1 if strides is None else strides, rank, arrays),
        common.pairs(sides[:rank], sides[rank:]),
        shapes.positive_ints(
            function, "dilations", 1 if dilations is None else dilations, rank, arrays
        ),
        shapes.positive_int(function, "group", group),
        lax.ConvDimensionNumbers(axes, axes, axes),
    )
    return config, arrays


def _gradients(
    problem: common.Convolution, dY: Array, X: Array, W: Array, output_mask: Sequence[bool]
) -> tuple[Array | None, Array | None, Array | None]:
    arrays = common.describe(X=X.shape, W=W.shape)
    problem.check_dst("dY", dY.shape, arrays)
    if not isinstance(output_mask, (Sequence, np.ndarray)) or len(output_mask) != 3:
        raise ValueError(
            f"{problem.function}: output_mask must have 3 entries, for dX, dW and dB, got "
            f"{output_mask!r}"
        )
    return problem.gradients(dY, X, W, output_mask)

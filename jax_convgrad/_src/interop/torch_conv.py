"""PyTorch's convolutions and transposed convolutions. See `jax_convgrad.torch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from jax_convgrad._src import compat, shapes
from jax_convgrad._src.conv import arguments
from jax_convgrad._src.conv.geometry import ConvConfig, dilated
from jax_convgrad._src.dtypes import check_float_dtypes
from jax_convgrad._src.interop import common
from jax_convgrad._src.shapes import Pairs, Shape

Ints = int | Sequence[int]


def conv1d(
    input: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: Ints = 1,
    padding: str | Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Array:
    """Convolution along one axis. Definition: torch.nn.functional.conv1d.

    Args:
      input: batch x channels x length, or channels x length; float16, bfloat16, float32 or float64.
      weight: output channels x channels / groups x kernel, of input's dtype.
      bias: None or one number per output channel, of input's dtype.
      stride: one int, or one per spatial axis.
      padding: elements added at both ends, one int or one per spatial axis; "valid", none; or "same",
        as many outputs as inputs, of an odd padding the larger half at the end, stride 1 only.
      dilation: the kernel's, one int or one per spatial axis.
      groups: number of groups.

    Returns:
      batch x output channels x length, without the batch if input has none, in input's dtype; length is
      floor((length + 2 * padding - (kernel - 1) * dilation - 1) / stride) + 1.

    Raises:
      TypeError: dtypes that differ or are not floating point, arguments of the wrong kind.
      ValueError: shapes or arguments that do not fit, a kernel larger than the padded input.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_convgrad import torch
      >>> torch.conv1d(jnp.ones((2, 4, 9)), jnp.ones((6, 2, 3)), stride=2, groups=2).shape
      (2, 6, 4)
    """
    return _conv(1, input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: Ints = 1,
    padding: str | Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Array:
    """Convolution along two axes. Definition: torch.nn.functional.conv2d.

    Args:
      input: batch x channels x height x width, or without the batch; float16, bfloat16, float32
        or float64.
      weight: output channels x channels / groups x kernel height x kernel width, of input's dtype.
      bias: None or one number per output channel, of input's dtype.
      stride: one int, or one per spatial axis.
      padding: elements added at both ends, one int or one per spatial axis; "valid", none; or "same",
        as many outputs as inputs, of an odd padding the larger half at the end, stride 1 only.
      dilation: the kernel's, one int or one per spatial axis.
      groups: number of groups.

    Returns:
      batch x output channels x height x width, sizes as in `conv1d`.

    Raises:
      TypeError, ValueError: as `conv1d`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax_convgrad import torch
      >>> x, w = jnp.ones((4, 8, 8)), jnp.ones((6, 4, 3, 2))
      >>> torch.conv2d(x, w, jnp.zeros(6), padding="same").shape
      (6, 8, 8)
      >>> jax.grad(lambda w: torch.conv2d(x, w, stride=(2, 1), padding=1).sum())(w).shape
      (6, 4, 3, 2)
    """
    return _conv(2, input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: Ints = 1,
    padding: str | Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Array:
    """Convolution along three axes. Definition: torch.nn.functional.conv3d.

    Args:
      input: batch x channels x depth x height x width, or without the batch; float16, bfloat16, float32
        or float64.
      weight: output channels x channels / groups x kernel depth x kernel height x kernel width, of
        input's dtype.
      bias: None or one number per output channel, of input's dtype.
      stride: one int, or one per spatial axis.
      padding: elements added at both ends, one int or one per spatial axis; "valid", none; or "same",
        as many outputs as inputs, of an odd padding the larger half at the end, stride 1 only.
      dilation: the kernel's, one int or one per spatial axis.
      groups: number of groups.

    Returns:
      batch x output channels x depth x height x width, sizes as in `conv1d`.

    Raises:
      TypeError, ValueError: as `conv1d`.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_convgrad import torch
      >>> torch.conv3d(jnp.ones((1, 2, 5, 6, 7)), jnp.ones((3, 2, 3, 3, 3)), padding=(1, 0, 0)).shape
      (1, 3, 5, 4, 5)
    """
    return _conv(3, input, weight, bias, stride, padding, dilation, groups)


def conv_transpose1d(
    input: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
    *,
    output_size: Sequence[int] | None = None,
) -> Array:
    """Transposed convolution along one axis. Definition: torch.nn.functional.conv_transpose1d.

    Args:
      input: batch x channels x length, or channels x length; float16, bfloat16, float32 or float64.
      weight: channels x output channels / groups x kernel, of input's dtype.
      bias: None or one number per output channel, of input's dtype.
      stride: one int, or one per spatial axis.
      padding: elements cut off at both ends of the result, one int or one per spatial axis.
      output_padding: elements added at the end, fewer than the stride or the dilation; one int or one
        per spatial axis.
      groups: number of groups.
      dilation: the kernel's, one int or one per spatial axis.
      output_size: the result's spatial sizes, with or without batch and channels in front (which are not
        read), as the forward method of torch.nn.ConvTranspose1d takes it: it takes the place of
        ``output_padding``, which is not read then. Sizes from that without output padding up to stride - 1
        more.

    Returns:
      batch x output channels x length, without the batch if input has none, in input's dtype; length is
      (length - 1) * stride - 2 * padding + (kernel - 1) * dilation + output_padding + 1.

    Raises:
      TypeError: dtypes that differ or are not floating point, arguments of the wrong kind.
      ValueError: shapes or arguments that do not fit; an ``output_size`` out of range, with the range.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_convgrad import torch
      >>> x, w = jnp.ones((2, 4, 5)), jnp.ones((4, 3, 3))
      >>> torch.conv_transpose1d(x, w, stride=2, padding=1, output_padding=1).shape
      (2, 3, 10)
      >>> torch.conv_transpose1d(x, w, stride=2, padding=1, output_size=(9,)).shape
      (2, 3, 9)
    """
    return _conv_transpose(
        1, input, weight, bias, stride, padding, output_padding, groups, dilation, output_size
    )


def conv_transpose2d(
    input: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
    *,
    output_size: Sequence[int] | None = None,
) -> Array:
    """Transposed convolution along two axes. Definition: torch.nn.functional.conv_transpose2d.

    Args:
      input: batch x channels x height x width, or without the batch; float16, bfloat16, float32
        or float64.
      weight: channels x output channels / groups x kernel height x kernel width, of input's dtype.
      bias: None or one number per output channel, of input's dtype.
      stride: one int, or one per spatial axis.
      padding: elements cut off at both ends of the result, one int or one per spatial axis.
      output_padding: elements added at the end, fewer than the stride or the dilation; one int or one
        per spatial axis.
      groups: number of groups.
      dilation: the kernel's, one int or one per spatial axis.
      output_size: the result's spatial sizes, with or without batch and channels in front (which are not
        read), as the forward method of torch.nn.ConvTranspose2d takes it: it takes the place of
        ``output_padding``, which is not read then. Sizes from that without output padding up to stride - 1
        more.

    Returns:
      batch x output channels x height x width, sizes as in `conv_transpose1d`.

    Raises:
      TypeError, ValueError: as `conv_transpose1d`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax_convgrad import torch
      >>> x, w = jnp.ones((1, 4, 7, 7)), jnp.ones((4, 3, 4, 4))
      >>> torch.conv_transpose2d(x, w, jnp.zeros(6), 2, 1, groups=2).shape
      (1, 6, 14, 14)
      >>> jax.grad(lambda w: torch.conv_transpose2d(x, w, stride=2).sum())(w).shape
      (4, 3, 4, 4)
    """
    return _conv_transpose(
        2, input, weight, bias, stride, padding, output_padding, groups, dilation, output_size
    )


def conv_transpose3d(
    input: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
    *,
    output_size: Sequence[int] | None = None,
) -> Array:
    """Transposed convolution along three axes. Definition: torch.nn.functional.conv_transpose3d.

    Args:
      input: batch x channels x depth x height x width, or without the batch; float16, bfloat16, float32
        or float64.
      weight: channels x output channels / groups x kernel depth x kernel height x kernel width, of
        input's dtype.
      bias: None or one number per output channel, of input's dtype.
      stride: one int, or one per spatial axis.
      padding: elements cut off at both ends of the result, one int or one per spatial axis.
      output_padding: elements added at the end, fewer than the stride or the dilation; one int or one
        per spatial axis.
      groups: number of groups.
      dilation: the kernel's, one int or one per spatial axis.
      output_size: the result's spatial sizes, with or without batch and channels in front (which are not
        read), as the forward method of torch.nn.ConvTranspose3d takes it: it takes the place of
        ``output_padding``, which is not read then. Sizes from that without output padding up to stride - 1
        more.

    Returns:
      batch x output channels x depth x height x width, sizes as in `conv_transpose1d`.

    Raises:
      TypeError, ValueError: as `conv_transpose1d`.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_convgrad import torch
      >>> x, w = jnp.ones((1, 4, 3, 4, 5)), jnp.ones((4, 2, 3, 3, 3))
      >>> torch.conv_transpose3d(x, w, stride=(1, 2, 2), padding=1, output_size=(3, 8, 9)).shape
      (1, 2, 3, 8, 9)
    """
    return _conv_transpose(
        3, input, weight, bias, stride, padding, output_padding, groups, dilation, output_size
    )


def _conv(
    rank: int,
    input: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None,
    stride: Ints,
    padding: str | Ints,
    dilation: Ints,
    groups: int,
) -> Array:
    function = f"torch.conv{rank}d"
    image, weight, bias, batched = _arrays(function, rank, input, weight, bias)
    arrays = common.describe(input=jnp.shape(input), weight=weight.shape)
    config = _config(function, rank, stride, dilation, groups, arrays)
    common.check_channels(
        function, config, "groups", ("weight", weight.shape), _named(image, batched), None
    )
    kernel = tuple(map(dilated, weight.shape[2:], config.dilation))
    pairs = _padding(function, padding, kernel, config.strides, rank, arrays)
    for axis, (size, extent, pair) in enumerate(zip(image.shape[2:], kernel, pairs, strict=True)):
        if shapes.known_below(size + sum(pair), extent):
            raise ValueError(
                f"{function}: along spatial axis {axis} the kernel spans {extent} elements, more than "
                f"the {size} of input with padding {pair} ({arrays}, dilation={config.dilation})"
            )
    problem = common.plain(function, config.replace(padding=pairs), image.shape, weight.shape)
    return _run(problem, image, weight, bias, batched)


def _conv_transpose(
    rank: int,
    input: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None,
    stride: Ints,
    padding: Ints,
    output_padding: Ints,
    groups: int,
    dilation: Ints,
    output_size: Sequence[int] | None,
) -> Array:
    function = f"torch.conv_transpose{rank}d"
    image, weight, bias, batched = _arrays(function, rank, input, weight, bias)
    arrays = common.describe(input=jnp.shape(input), weight=weight.shape)
    config = _config(function, rank, stride, dilation, groups, arrays)
    # Underneath is a convolution from the result to input, so input is the array whose channels are
    # weight's first axis.
    common.check_channels(
        function, config, "groups", ("weight", weight.shape), None, _named(image, batched)
    )
    if isinstance(padding, str):
        raise TypeError(f"{function}: padding must be integers, got {padding!r}")
    pads = common.nonnegative_ints(function, "padding", _spread(padding, rank), rank, arrays)
    smallest = tuple(
        (size - 1) * s - 2 * pad + dilated(k, d)
        for size, s, pad, k, d in zip(
            image.shape[2:], config.strides, pads, weight.shape[2:], config.dilation, strict=True
        )
    )
    if output_size is None:
        extra = _output_padding(function, output_padding, config, arrays)
    else:
        extra = _extra_for_size(function, output_size, smallest, config, batched, arrays)
    sizes = tuple(size + more for size, more in zip(smallest, extra, strict=True))
    if any(shapes.known_below(size, 0) for size in sizes):
        raise ValueError(
            f"{function}: padding={pads} removes the whole result, sizes would be {sizes} "
            f"({arrays})"
        )
    config = config.replace(padding=common.pairs(pads, pads))
    problem = common.transposed(function, config, image.shape, weight.shape, sizes, arrays)
    return _run(problem, image, weight, bias, batched)


def _arrays(
    function: str, rank: int, input: ArrayLike, weight: ArrayLike, bias: ArrayLike | None
) -> tuple[Array, Array, Array | None, bool]:
    """The arrays, input with a batch axis, and whether it had one."""
    image, weight = compat.as_array(input), compat.as_array(weight)
    operands = {"input": image.dtype, "weight": weight.dtype}
    if bias is not None:
        bias = compat.as_array(bias)
        operands["bias"] = bias.dtype
    check_float_dtypes(function, **operands)
    arrays = common.describe(input=image.shape, weight=weight.shape)
    if image.ndim not in (rank + 1, rank + 2):
        raise ValueError(
            f"{function}: input must have {rank + 2} axes, or {rank + 1} without a batch ({arrays})"
        )
    if weight.ndim != rank + 2:
        raise ValueError(f"{function}: weight must have {rank + 2} axes ({arrays})")
    if 0 in image.shape[-rank:] or 0 in weight.shape[2:]:
        raise ValueError(
            f"{function}: the spatial axes of input and weight must not be empty ({arrays})"
        )
    batched = image.ndim == rank + 2
    return image if batched else image[None], weight, bias, batched


def _run(
    problem: common.Convolution, image: Array, weight: Array, bias: Array | None, batched: bool
) -> Array:
    if bias is not None:
        problem.check_bias("bias", image, bias)
    y = problem.forward(image, weight, bias)
    return y if batched else y[0]


def _config(
    function: str, rank: int, stride: Ints, dilation: Ints, groups: int, arrays: str
) -> ConvConfig:
    """The config that both operators share; the padding is still missing."""
    axes = tuple(range(rank + 2))
    return ConvConfig(
        shapes.positive_ints(function, "stride", _spread(stride, rank), rank, arrays),
        ((0, 0),) * rank,
        shapes.positive_ints(function, "dilation", _spread(dilation, rank), rank, arrays),
        shapes.positive_int(function, "groups", groups),
        lax.ConvDimensionNumbers(axes, axes, axes),
    )


def _padding(
    function: str, padding: Any, kernel: Shape, strides: Shape, rank: int, arrays: str
) -> Pairs:
    if not isinstance(padding, str):
        pads = common.nonnegative_ints(function, "padding", _spread(padding, rank), rank, arrays)
        return common.pairs(pads, pads)
    if padding == "valid":
        return ((0, 0),) * rank
    if padding != "same":
        raise ValueError(
            f"{function}: padding must be integers, 'valid' or 'same', got {padding!r}"
        )
    if any(s != 1 for s in strides):
        raise ValueError(f"{function}: padding='same' needs stride 1, got stride={strides}")
    return tuple(((extent - 1) // 2, extent // 2) for extent in kernel)


def _output_padding(
    function: str, output_padding: Any, config: ConvConfig, arrays: str
) -> tuple[int, ...]:
    rank = config.spatial_rank
    extra = common.nonnegative_ints(
        function, "output_padding", _spread(output_padding, rank), rank, arrays
    )
    for more, stride, dilation in zip(extra, config.strides, config.dilation, strict=True):
        if more >= max(stride, dilation):
            raise ValueError(
                f"{function}: output_padding={extra} must be smaller than the stride or the dilation of "
                f"its axis, stride={config.strides}, dilation={config.dilation} ({arrays})"
            )
    return extra


def _extra_for_size(
    function: str,
    output_size: Any,
    smallest: Shape,
    config: ConvConfig,
    batched: bool,
    arrays: str,
) -> tuple[int, ...]:
    """The output padding that gives ``output_size``: less than the stride, whatever the dilation."""
    rank, leading = config.spatial_rank, 2 if batched else 1
    if isinstance(output_size, str) or not hasattr(output_size, "__len__"):
        raise TypeError(
            f"{function}: output_size must be a sequence of integers, got {output_size!r}"
        )
    if len(output_size) not in (rank, leading + rank):
        raise ValueError(
            f"{function}: output_size must have {rank} or {leading + rank} entries, got "
            f"{tuple(output_size)} ({arrays})"
        )
    wanted = shapes.sizes(function, "output_size", output_size[-rank:], rank, 0, arrays)
    extra = tuple(
        arguments.difference(function, "output_size", size, least)
        for size, least in zip(wanted, smallest, strict=True)
    )
    if any(not 0 <= more < stride for more, stride in zip(extra, config.strides, strict=True)):
        largest = tuple(least + s - 1 for least, s in zip(smallest, config.strides, strict=True))
        raise ValueError(
            f"{function}: output_size={wanted} is impossible, sizes range from {smallest} to {largest} "
            f"({arrays}, stride={config.strides}, dilation={config.dilation})"
        )
    return extra


def _spread(value: Any, rank: int) -> Any:
    """One number, alone or in a sequence, stands for all axes."""
    if isinstance(value, str):
        return value
    if not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0:
        return (value,) * rank
    return tuple(value) * rank if len(value) == 1 else tuple(value)


def _named(image: Array, batched: bool) -> tuple[str, Shape]:
    return ("input" if batched else "input[None]", image.shape)

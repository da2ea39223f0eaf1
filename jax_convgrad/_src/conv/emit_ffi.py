"""Calls of the compiled convolution handlers: attributes, layouts, and what is done before and after.

The handlers take activations channels-last. We ask XLA for that through the operands' layouts, so a
channels-last network pays nothing, and elsewhere XLA converts where it suits it best. On CUDA we ask for an
order of the weights as well, see NOTE [Order of weights]. The CPU handlers accept any order.

NOTE [Order of weights]. cuDNN's channels-last engines read weights in the order output channel, kernel, input
channel (OXI). They accept other orders and compute wrong results with them. Where the weights lie in another
order, XLA reorders them at every call. The thin CUDA kernels read kernel, input channel, output channel (XIO)
as well, the order of Flax's arrays (HWIO). So weights that lie like this are passed as they are to the
problems in which these kernels are likely to be the fastest. If the search finds an engine of cuDNN's to be
faster there, even with the time that reordering takes, the handler reorders them for it, in the workspace.

NOTE [Uneven padding]. cuDNN's errata exclude the engines that are wrong where the two sides of an axis are
padded differently (NOTE [One padding per axis], cudnn/errata.cc). That leaves one engine for weight
gradients in float64, and in float32 without TF32; in float64 it is 70 times slower than the excluded ones.
In these cases the excess of one side over the other is padded beforehand, as XLA does for every such
convolution. In 16 bits and with TF32 other engines are right and fast, and depthwise problems have this
project's own kernels.

NOTE [Pairs of channels]. oneDNN's bfloat16 kernels read the channels that they sum over in pairs. If their
number is odd, the last channel is paired with the memory behind it, which is the first channel of the next
group or pixel, and with a weight of zero. A NaN or an infinity there would leak into a wrong element, under
`jax.vmap` into another example. We therefore append a channel of zeros, which is as fast. The kernels for
depthwise problems have no pairs, except those for some strided input gradients. A channel of zeros would
make these 10x slower, float32 operands make them at most 2x slower: they run in float32, and so do
problems with a symbolic number of channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jax_convgrad._src import compat
from jax_convgrad._src.conv.arrays import pad_spatial
from jax_convgrad._src.conv.geometry import ConvConfig, Role
from jax_convgrad._src.conv.precision import allows_tf32
from jax_convgrad._src.dispatch import thin_cuda
from jax_convgrad._src.dispatch.problem import ROLES, ConvProblem
from jax_convgrad._src.runtime.registry import CONV_TARGETS
from jax_convgrad._src.runtime.settings import Settings
from jax_convgrad._src.shapes import Pairs, Shape

_WORKSPACE_ALIGNMENT = 256
_MEBIBYTE = 2**20
_MIN_WORKSPACE = 32 * _MEBIBYTE

# Of weights in memory, the outermost axis first: output channel (O), kernel (X), input channel (I).
WeightsOrder = Literal["OXI", "XIO"]


def emit(
    problem: ConvProblem,
    platform: str | None,
    settings: Settings | None,
    first: Array,
    second: Array,
) -> Array:
    """The call of the platform's handler. ``settings`` are those of a call on CUDA."""
    run = {"conv_fprop": _fprop, "conv_dgrad": _dgrad, "conv_wgrad": _wgrad}[problem.operator]
    return run(problem, platform, settings, first, second)


def _fprop(
    problem: ConvProblem, platform: str | None, settings: Settings | None, x: Array, w: Array
) -> Array:
    crop, config = split_negative(problem.geometry.config)
    numbers = config.dimension_numbers
    x = pad_spatial(x, crop, numbers.lhs_spec)
    summed, dtype = w.shape[numbers.rhs_spec[1]], problem.result_dtype
    if platform == "cpu" and x.dtype == jnp.bfloat16:
        if not isinstance(summed, int):
            x, w, dtype = x.astype(jnp.float32), w.astype(jnp.float32), np.dtype(np.float32)
        elif summed % 2 and not _is_depthwise(config, w.shape):
            x = _append_channel(x, numbers.lhs_spec[1], config.groups)
            w = _append_channel(w, numbers.rhs_spec[1], 1)
    y = _call(problem, platform, settings, config, problem.result_shape, dtype, x, w)
    return compat.cast(y, problem.result_dtype)


def _dgrad(
    problem: ConvProblem, platform: str | None, settings: Settings | None, dy: Array, w: Array
) -> Array:
    crop, config = split_negative(problem.geometry.config)
    x_spec = config.dimension_numbers.lhs_spec
    cropped = list(problem.result_shape)
    for axis, (low, high) in zip(x_spec[2:], crop, strict=True):
        cropped[axis] += low + high
    out_axis, groups = config.dimension_numbers.rhs_spec[0], config.groups
    summed, dtype = w.shape[out_axis] // groups, problem.result_dtype
    if platform == "cpu" and dy.dtype == jnp.bfloat16:
        depthwise = _is_depthwise(config, w.shape)
        if not isinstance(summed, int) or (depthwise and max(config.strides) > 1):
            dy, w, dtype = dy.astype(jnp.float32), w.astype(jnp.float32), np.dtype(np.float32)
        elif summed % 2 and not depthwise:
            dy = _append_channel(dy, config.dimension_numbers.out_spec[1], groups)
            w = _append_channel(w, out_axis, groups)
    dx = _call(problem, platform, settings, config, tuple(cropped), dtype, dy, w)
    dx = compat.cast(dx, problem.result_dtype)
    return pad_spatial(dx, tuple((-low, -high) for low, high in crop), x_spec)


def _wgrad(
    problem: ConvProblem, platform: str | None, settings: Settings | None, x: Array, dy: Array
) -> Array:
    crop, config = split_negative(problem.geometry.config)
    x = pad_spatial(x, crop, config.dimension_numbers.lhs_spec)
    few_engines = x.dtype == np.float64 or _is_strict(x, problem.precision)
    if platform == "cuda" and few_engines and not _is_depthwise(config, problem.result_shape):
        excess, config = _split_uneven(config)
        x = pad_spatial(x, excess, config.dimension_numbers.lhs_spec)
    shape, dtype = problem.result_shape, problem.result_dtype
    return _call(problem, platform, settings, config, shape, dtype, x, dy)


def _call(
    problem: ConvProblem,
    platform: str | None,
    settings: Settings | None,
    config: ConvConfig,
    shape: Shape,
    dtype: Any,
    *operands: Array,
) -> Array:
    """The handler's call itself, on prepared operands, which ``config`` describes."""
    numbers = config.dimension_numbers
    attributes = attributes_of(config)
    layouts: dict[Role, Any] = {
        "x": channels_last(numbers.lhs_spec),
        "w": None,
        "y": channels_last(numbers.out_spec),
    }
    roles = ROLES[problem.operator]
    results = [jax.ShapeDtypeStruct(shape, dtype)]
    workspace_layouts: list[None] = []
    if platform == "cuda":
        assert settings is not None
        arrays = (*((a.shape, a.dtype) for a in operands), (shape, dtype))
        named = dict(zip(roles, arrays, strict=True))
        limit = settings.workspace_limit
        order = weights_order(problem, named["w"], limit)
        layouts["w"] = weights_layout(numbers.rhs_spec, order)
        attributes["weights"] = order
        attributes["allow_tf32"] = np.bool_(allows_tf32(problem.precision))
        attributes |= settings.attributes
        fast = not _is_strict(operands[0], problem.precision)
        size = _workspace_size(config, named, fast, limit, order)
        results.append(jax.ShapeDtypeStruct((size,), jnp.uint8))
        workspace_layouts.append(None)
    call = jax.ffi.ffi_call(
        CONV_TARGETS[problem.operator],
        results,
        input_layouts=[layouts[role] for role in roles[:2]],
        output_layouts=[layouts[roles[2]], *workspace_layouts],
    )
    return call(*operands, **attributes)[0]


def attributes_of(config: ConvConfig) -> dict[str, Any]:
    """A call's attributes, except those that only one platform or one handler has."""
    numbers = config.dimension_numbers
    low, high = zip(*config.padding, strict=True)
    return {
        "strides": _int64(config.strides),
        "padding_low": _int64(low),
        "padding_high": _int64(high),
        "dilation": _int64(config.dilation),
        "groups": np.int64(config.groups),
        "x_spec": _int64(numbers.lhs_spec),
        "w_spec": _int64(numbers.rhs_spec),
        "y_spec": _int64(numbers.out_spec),
    }


def weights_order(
    problem: ConvProblem, weights: tuple[Shape, Any], limit: int | None
) -> WeightsOrder:
    """The order in which a call on CUDA takes its weights: see NOTE [Order of weights].

    ``weights`` are their logical shape and dtype. It is XIO where the logical array lies like that, a thin
    kernel leads, and the workspace ``limit`` has room for the copy that other engines need.
    With less, no engine might be left: thin kernels for weight gradients need a workspace, too.
    """
    numbers = problem.geometry.config.dimension_numbers
    if tuple(weights_layout(numbers.rhs_spec, "XIO")) != tuple(range(len(numbers.rhs_spec))):
        return "OXI"
    if problem.result_dtype != problem.dtype:
        return "OXI"
    tf32 = allows_tf32(problem.precision)
    if not thin_cuda.leads(problem.operator, problem.geometry, problem.dtype, tf32):
        return "OXI"
    return "OXI" if limit is not None and limit < _copy_size(*weights) else "XIO"


def weights_layout(spec: Sequence[int], order: WeightsOrder) -> tuple[int, ...]:
    """Major-to-minor order of weights with dimension specification ``spec``."""
    return channels_last(spec) if order == "OXI" else (*spec[2:], spec[1], spec[0])


def _copy_size(shape: Shape, dtype: Any) -> int:
    """Bytes of the workspace that a handler takes for an array of known sizes in another order."""
    size: int = math.prod(shape) * jnp.dtype(dtype).itemsize
    return size + -size % _WORKSPACE_ALIGNMENT


def _workspace_size(
    config: ConvConfig,
    arrays: dict[Role, tuple[Shape, Any]],
    fast: bool,
    limit: int | None,
    order: WeightsOrder = "OXI",
) -> Any:
    """Bytes of the workspace that a call on CUDA brings along, as a second result.

    A captured program may not allocate, and lowering may not ask the device what an engine needs, so
    the size comes from a rule, and engines that need more are passed over. XLA lends the memory only
    for the length of the call. `set_workspace_limit` lowers it.

    The rule is what cuDNN 9.19 asked for on an H100, in 86 operators of published layers:
    * Dense problems whose channels are multiples of 8, in 16 bits or with TF32 (``fast`` says that
      the precision does not keep cuDNN from its matrix units): the best engine needed
      next to nothing in 45 of 60, up to 8 MiB in 14, and 16 MiB in one (the partial sums of dcgan4's
      weight gradient, bfloat16: 70 us with 16 MiB, 78 with 4, 83 with none).
    * The others take copies of the arrays in another order (float64: 52 of 57 MiB, 907 us against
      23998 without), with the channels of dense 16-bit arrays filled up to a multiple of 8 (fcn8_up, 21
      channels: forward 276 us with 86 MiB, 188334 without; its gradients found every fast engine to
      need the copies of all three arrays, 98 MiB, and ran at 1778 us with 87).

    For weights in XIO there is room for one more copy of them.
    """
    numbers = config.dimension_numbers
    channels = {
        "x": numbers.lhs_spec[1:2],
        "w": numbers.rhs_spec[:2],
        "y": numbers.out_spec[1:2],
    }
    size: Any = _MEBIBYTE
    limit_if_fast: Any = _MIN_WORKSPACE
    for role, (shape, dtype) in arrays.items():
        itemsize = jnp.dtype(dtype).itemsize
        for axis in channels[role]:
            if shape[axis] % 8 != 0:
                fast = False
                if config.groups == 1 and itemsize == 2:
                    shape = (*shape[:axis], shape[axis] + -shape[axis] % 8, *shape[axis + 1 :])
        if itemsize == 8:
            fast = False
        if role == "w":  # a weight gradient's partial sums are kept in the accumulator's type
            limit_if_fast += 2 * math.prod(shape) * max(itemsize, 4)
            size += 2 * math.prod(shape) * max(itemsize, 4)
        else:
            size += math.prod(shape) * itemsize
    if order == "XIO":
        copy = _copy_size(*arrays["w"])
        limit_if_fast += copy
        size += copy
    # Sizes may be symbolic: an exported program knows them when it runs.
    if fast and config.groups == 1:
        size = compat.min_dim(size, limit_if_fast)
    if limit is not None:
        size = compat.min_dim(size, limit)
    return size + _WORKSPACE_ALIGNMENT


def _is_strict(x: Array, precision: Any) -> bool:
    return x.dtype == np.float32 and not allows_tf32(precision)


def _is_depthwise(config: ConvConfig, w_shape: Shape) -> bool:
    """Whether every channel has one filter."""
    outputs, inputs = (w_shape[axis] for axis in config.dimension_numbers.rhs_spec[:2])
    return 1 < config.groups == outputs and inputs == 1


def _append_channel(array: Array, axis: int, groups: int) -> Array:
    """Appends one channel of zeros to each group."""
    before, after = array.shape[:axis], array.shape[axis + 1 :]
    array = array.reshape(*before, groups, array.shape[axis] // groups, *after)
    amounts = [(0, 0, 0)] * array.ndim
    amounts[axis + 1] = (0, 1, 0)
    array = lax.pad(array, np.zeros((), array.dtype), amounts)
    return array.reshape(*before, groups * array.shape[axis + 1], *after)


def channels_last(spec: Sequence[int]) -> tuple[int, ...]:
    """Major-to-minor order N, spatial, C of an activation with dimension specification ``spec``."""
    return (spec[0], *spec[2:], spec[1])


def split_negative(config: ConvConfig) -> tuple[Pairs, ConvConfig]:
    """Negative padding is cropping: (what to crop, as negative pairs; the config without it)."""
    crop = tuple((min(low, 0), min(high, 0)) for low, high in config.padding)
    kept = tuple((max(low, 0), max(high, 0)) for low, high in config.padding)
    return crop, config.replace(padding=kept)


def _split_uneven(config: ConvConfig) -> tuple[Pairs, ConvConfig]:
    """NOTE [Uneven padding]: (the excess of each side over the other, the config without it)."""
    even = tuple((min(pair), min(pair)) for pair in config.padding)
    excess = tuple(
        (low - e, high - e) for (low, high), (e, _) in zip(config.padding, even, strict=True)
    )
    return excess, config.replace(padding=even)


def _int64(values: Sequence[int]) -> np.ndarray:
    return np.asarray(values, np.int64)

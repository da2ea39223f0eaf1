"""Calls of the compiled convolution handlers: attributes, layouts, and what is settled before them.

The handlers take activations channels-last. XLA is asked for that through the operands' layouts, so a
network that already lies so pays nothing and one that does not is converted where XLA likes best. On
CUDA the same is asked for the weights (output channel, kernel, input channel): cuDNN's channels-last
engines take other orders of them and compute wrong results. The CPU handlers take any.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jax_convgrad import plans
from jax_convgrad.registry import CONV_TARGETS
from jax_convgrad.shapes import ConvConfig, Pairs, Shape

# What the operands and the result of each handler are in the convolution x -> y.
_ROLES = {
    "conv_fprop": ("x", "w", "y"),
    "conv_dgrad": ("y", "w", "x"),
    "conv_wgrad": ("x", "y", "w"),
}
_WORKSPACE_ALIGNMENT = 256
_MEBIBYTE = 2**20


def conv_fprop(
    x: Array,
    w: Array,
    *,
    platform: str | None,
    config: ConvConfig,
    precision: Any,
    result_dtype: Any,
    y_shape: Shape,
) -> Array:
    crop, config = _split_negative(config)
    x = _crop(x, crop, config.dimension_numbers.lhs_spec)
    return _call("conv_fprop", platform, config, precision, y_shape, result_dtype, x, w)


def conv_dgrad(
    dy: Array,
    w: Array,
    *,
    platform: str | None,
    config: ConvConfig,
    precision: Any,
    result_dtype: Any,
    x_shape: Shape,
) -> Array:
    x_spec = config.dimension_numbers.lhs_spec
    crop, config = _split_negative(config)
    cropped = list(x_shape)
    for axis, (low, high) in zip(x_spec[2:], crop, strict=True):
        cropped[axis] += low + high
    dx = _call("conv_dgrad", platform, config, precision, tuple(cropped), result_dtype, dy, w)
    return _crop(dx, tuple((-low, -high) for low, high in crop), x_spec)


def conv_wgrad(
    x: Array,
    dy: Array,
    *,
    platform: str | None,
    config: ConvConfig,
    precision: Any,
    result_dtype: Any,
    w_shape: Shape,
) -> Array:
    crop, config = _split_negative(config)
    x = _crop(x, crop, config.dimension_numbers.lhs_spec)
    return _call("conv_wgrad", platform, config, precision, w_shape, result_dtype, x, dy)


def _call(
    operator: str,
    platform: str | None,
    config: ConvConfig,
    precision: Any,
    shape: Shape,
    dtype: Any,
    *operands: Array,
) -> Array:
    numbers = config.dimension_numbers
    low, high = zip(*config.padding, strict=True)
    attributes: dict[str, Any] = {
        "strides": _int64(config.strides),
        "padding_low": _int64(low),
        "padding_high": _int64(high),
        "dilation": _int64(config.dilation),
        "groups": np.int64(config.groups),
        "x_spec": _int64(numbers.lhs_spec),
        "w_spec": _int64(numbers.rhs_spec),
        "y_spec": _int64(numbers.out_spec),
    }
    layouts: dict[str, Any] = {
        "x": _channels_last(numbers.lhs_spec),
        "w": _channels_last(numbers.rhs_spec) if platform == "cuda" else None,
        "y": _channels_last(numbers.out_spec),
    }
    roles = _ROLES[operator]
    results = [jax.ShapeDtypeStruct(shape, dtype)]
    result_layouts = [layouts[roles[2]]]
    if platform == "cuda":
        attributes["allow_tf32"] = np.bool_(_allows_tf32(precision))
        arrays = (*((a.shape, a.dtype) for a in operands), (shape, dtype))
        size = _workspace_size(dict(zip(roles, arrays, strict=True)))
        results.append(jax.ShapeDtypeStruct((size,), jnp.uint8))
        result_layouts.append(None)
    call = jax.ffi.ffi_call(
        CONV_TARGETS[operator],
        results,
        input_layouts=[layouts[role] for role in roles[:2]],
        output_layouts=result_layouts,
    )
    return call(*operands, **attributes)[0]


def _workspace_size(arrays: dict[str, tuple[Shape, Any]]) -> Any:
    """Bytes of the workspace that a call on CUDA brings along, as a second result.

    A captured program may not allocate, and lowering may not ask the device what an engine needs, so
    the size comes from a rule, and engines that need more are passed over. What engines ask for, seen
    over many problems: nothing or little for 16-bit arrays; copies of the arrays in another order for
    the rest and for engines that transform; partial sums for weight gradients. One copy of each array
    and one more of the weights in the accumulator's type leaves every problem an engine. XLA lends the
    memory only for the length of the call. `set_workspace_limit` lowers it.
    """
    sizes = {
        role: math.prod(shape) * max(jnp.dtype(dtype).itemsize, 4 if role == "w" else 1)
        for role, (shape, dtype) in arrays.items()
    }
    size = sizes["x"] + sizes["y"] + 2 * sizes["w"] + _MEBIBYTE
    limit = plans.workspace_limit()
    if limit is not None and isinstance(size, int):
        size = min(size, limit)
    return size + _WORKSPACE_ALIGNMENT


def _allows_tf32(precision: Any) -> bool:
    """Whether float32 operands may be rounded to TF32: unless HIGHEST is asked for, as in XLA."""
    if precision is None:
        precision = jax.config.jax_default_matmul_precision
    parts = precision if isinstance(precision, tuple | list) else (precision,)
    return all(part is None or lax.Precision(part) != lax.Precision.HIGHEST for part in parts)


def _channels_last(spec: tuple[int, ...]) -> tuple[int, ...]:
    """Major-to-minor order N, spatial, C of an activation with dimension specification ``spec``."""
    return (spec[0], *spec[2:], spec[1])


def _split_negative(config: ConvConfig) -> tuple[Pairs, ConvConfig]:
    """Negative padding is cropping: (what to crop, as negative pairs; the config without it)."""
    crop = tuple((min(low, 0), min(high, 0)) for low, high in config.padding)
    kept = tuple((max(low, 0), max(high, 0)) for low, high in config.padding)
    return crop, config.replace(padding=kept)


def _crop(array: Array, pairs: Pairs, spec: tuple[int, ...]) -> Array:
    """Pads the spatial axes by ``pairs``; negative numbers remove."""
    if not any(low or high for low, high in pairs):
        return array
    amounts = [(0, 0, 0)] * array.ndim
    for axis, (low, high) in zip(spec[2:], pairs, strict=True):
        amounts[axis] = (low, high, 0)
    return lax.pad(array, np.zeros((), array.dtype), amounts)


def _int64(values: tuple[int, ...]) -> np.ndarray:
    return np.asarray(values, np.int64)

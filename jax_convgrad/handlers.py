"""Calls of the compiled convolution handlers: attributes, layouts, and what is settled before them.

The handlers take activations channels-last. XLA is asked for that through the operands' layouts, so a
network that already lies so pays nothing and one that does not is converted where XLA likes best.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import Array, lax

from jax_convgrad.registry import CONV_TARGETS
from jax_convgrad.shapes import ConvConfig, Pairs, Shape


def conv_fprop(
    x: Array, w: Array, *, config: ConvConfig, result_dtype: Any, y_shape: Shape
) -> Array:
    x_spec, _, y_spec = config.dimension_numbers
    crop, config = _split_negative(config)
    x = _crop(x, crop, x_spec)
    layouts = (_channels_last(x_spec), None), _channels_last(y_spec)
    return _call("conv_fprop", config, layouts, y_shape, result_dtype, x, w)


def conv_dgrad(
    dy: Array, w: Array, *, config: ConvConfig, result_dtype: Any, x_shape: Shape
) -> Array:
    x_spec, _, y_spec = config.dimension_numbers
    crop, config = _split_negative(config)
    cropped = list(x_shape)
    for axis, (low, high) in zip(x_spec[2:], crop, strict=True):
        cropped[axis] += low + high
    layouts = (_channels_last(y_spec), None), _channels_last(x_spec)
    dx = _call("conv_dgrad", config, layouts, tuple(cropped), result_dtype, dy, w)
    return _crop(dx, tuple((-low, -high) for low, high in crop), x_spec)


def conv_wgrad(
    x: Array, dy: Array, *, config: ConvConfig, result_dtype: Any, w_shape: Shape
) -> Array:
    x_spec, _, y_spec = config.dimension_numbers
    crop, config = _split_negative(config)
    x = _crop(x, crop, x_spec)
    layouts = (_channels_last(x_spec), _channels_last(y_spec)), None
    return _call("conv_wgrad", config, layouts, w_shape, result_dtype, x, dy)


def _call(
    operator: str, config: ConvConfig, layouts: Any, shape: Shape, dtype: Any, *operands: Array
) -> Array:
    low, high = zip(*config.padding, strict=True)
    numbers = config.dimension_numbers
    call = jax.ffi.ffi_call(
        CONV_TARGETS[operator],
        jax.ShapeDtypeStruct(shape, dtype),
        input_layouts=layouts[0],
        output_layouts=layouts[1],
    )
    return call(
        *operands,
        strides=_int64(config.strides),
        padding_low=_int64(low),
        padding_high=_int64(high),
        dilation=_int64(config.dilation),
        groups=np.int64(config.groups),
        x_spec=_int64(numbers.lhs_spec),
        w_spec=_int64(numbers.rhs_spec),
        y_spec=_int64(numbers.out_spec),
    )


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

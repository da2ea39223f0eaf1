"""Calls of the compiled convolution handlers: operands, layouts and attributes.

The handlers take activations channels-last. We ask XLA for that through the operands' layouts, so a
channels-last network pays nothing, and elsewhere XLA converts where it suits it best. On CUDA we ask for an
order of the weights as well, see NOTE [Order of weights] in layouts.py. The CPU handlers accept any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_convgrad._src import compat
from jax_convgrad._src.conv.arrays import pad_spatial
from jax_convgrad._src.conv.geometry import ConvConfig, Role
from jax_convgrad._src.conv.layouts import WeightsOrder, channels_last, weights_layout
from jax_convgrad._src.conv.precision import allows_tf32, is_strict
from jax_convgrad._src.conv.prepare import Call, prepare
from jax_convgrad._src.conv.workspace import workspace_size
from jax_convgrad._src.dispatch.problem import ROLES, ConvProblem
from jax_convgrad._src.runtime.registry import CONV_TARGETS
from jax_convgrad._src.runtime.settings import Settings
from jax_convgrad._src.shapes import Pairs, Shape


def emit(
    problem: ConvProblem,
    preparation: str,
    settings: Settings | None,
    first: Array,
    second: Array,
) -> Array:
    """The call of the platform's handler. ``settings`` are those of a call on CUDA, None on a CPU."""
    crop, config = split_negative(problem.geometry.config)
    x_spec = config.dimension_numbers.lhs_spec
    shape = problem.result_shape
    if problem.result_role == "x":
        shape = _cropped(shape, crop, x_spec)
    else:
        first = pad_spatial(first, crop, x_spec)
    call = prepare(preparation, problem, Call(config, problem.result_dtype, first, second))
    if settings is None:
        result = _call(problem, call, shape)
    else:
        order: WeightsOrder = "XIO" if preparation == "xio_weights" else "OXI"
        result = _call_on_cuda(problem, call, shape, order, settings)
    result = compat.cast(result, problem.result_dtype)
    if problem.result_role == "x":
        return pad_spatial(result, tuple((-low, -high) for low, high in crop), x_spec)
    return result


def _call(problem: ConvProblem, call: Call, shape: Shape) -> Array:
    """The handler's call itself on a CPU."""
    layouts = _layouts(call.config, None)
    roles = ROLES[problem.operator]
    handler = jax.ffi.ffi_call(
        CONV_TARGETS[problem.operator],
        [jax.ShapeDtypeStruct(shape, call.result_dtype)],
        input_layouts=[layouts[role] for role in roles[:2]],
        output_layouts=[layouts[roles[2]]],
    )
    return handler(call.first, call.second, **attributes_of(call.config))[0]


def _call_on_cuda(
    problem: ConvProblem, call: Call, shape: Shape, order: WeightsOrder, settings: Settings
) -> Array:
    """The handler's call itself on CUDA, which takes weights in an ``order`` and brings a workspace."""
    layouts = _layouts(call.config, order)
    roles = ROLES[problem.operator]
    result = (shape, call.result_dtype)
    arrays = (*((a.shape, a.dtype) for a in (call.first, call.second)), result)
    size = workspace_size(
        call.config,
        dict(zip(roles, arrays, strict=True)),
        not is_strict(call.first.dtype, problem.precision),
        settings.workspace_limit,
        order,
    )
    handler = jax.ffi.ffi_call(
        CONV_TARGETS[problem.operator],
        [jax.ShapeDtypeStruct(*result), jax.ShapeDtypeStruct((size,), jnp.uint8)],
        input_layouts=[layouts[role] for role in roles[:2]],
        output_layouts=[layouts[roles[2]], None],
    )
    return handler(
        call.first,
        call.second,
        **attributes_of(call.config),
        weights=order,
        allow_tf32=np.bool_(allows_tf32(problem.precision)),
        **settings.attributes,
    )[0]


def _layouts(config: ConvConfig, order: WeightsOrder | None) -> dict[Role, Any]:
    """What is asked of XLA for each array; None leaves it as it is."""
    numbers = config.dimension_numbers
    return {
        "x": channels_last(numbers.lhs_spec),
        "w": None if order is None else weights_layout(numbers.rhs_spec, order),
        "y": channels_last(numbers.out_spec),
    }


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


def split_negative(config: ConvConfig) -> tuple[Pairs, ConvConfig]:
    """Negative padding is cropping: (what to crop, as negative pairs; the config without it)."""
    crop = tuple((min(low, 0), min(high, 0)) for low, high in config.padding)
    kept = tuple((max(low, 0), max(high, 0)) for low, high in config.padding)
    return crop, config.replace(padding=kept)


def _cropped(shape: Shape, crop: Pairs, spec: Sequence[int]) -> Shape:
    """``shape`` without what ``crop`` takes off its spatial axes."""
    sizes = list(shape)
    for axis, (low, high) in zip(spec[2:], crop, strict=True):
        sizes[axis] += low + high
    return tuple(sizes)


def _int64(values: Sequence[int]) -> np.ndarray:
    return np.asarray(values, np.int64)

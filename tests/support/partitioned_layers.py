"""Layers, and the ways in which their arrays are split over devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from support.meshes import make_mesh
from support.partitioned_operators import GRID, NUMBERS, ints

from jax_convgrad import (
    conv_general_dilated,
    conv_transpose,
    resize,
)


def conv_layer(x: Any, w: Any, bias: Any) -> jax.Array:
    return conv_general_dilated(x, w, (2, 1), "SAME", dimension_numbers=NUMBERS[2], bias=bias)


def grouped_layer(x: Any, w: Any, bias: Any) -> jax.Array:
    return conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=NUMBERS[2], feature_group_count=8, bias=bias
    )


def transpose_layer(x: Any, w: Any, bias: Any) -> jax.Array:
    return conv_transpose(x, w, (2, 1), "SAME", bias=bias)


def resize_layer(x: Any, w: Any, bias: Any) -> jax.Array:
    """The weights are a factor for each channel."""
    y = resize(x * w, (*x.shape[:1], 4, *x.shape[2:]), "linear", antialias=False)
    return y + bias


# The layer, x, w and its number of output channels.
LAYERS: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...], int]] = {
    "conv": (conv_layer, (8, 32, 3, 8), (4, 3, 8, 16), 16),
    "grouped": (grouped_layer, (8, 32, 3, 16), (3, 3, 2, 8), 8),
    "transpose": (transpose_layer, (8, 16, 3, 8), (4, 3, 8, 16), 16),
    "resize": (resize_layer, (8, 2, 32, 8), (8,), 8),
}

per_layer = pytest.mark.parametrize("name", list(LAYERS))

# x, w and bias, by the mesh axes that split them, and the gradients' all-reduces over devices. XLA makes
# those of the bias.
LAYER_WAYS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]] = {
    "batch": (("data",), (), ()),
    "batch of a grid": ((("data", "model"),), (), ()),
    "rows": ((None, "data"), (), ()),
    "batch and rows": (("model", "data"), (), ()),
    "output channels": ((), (None, None, None, "data"), ("data",)),
    "batch and output channels": (("data",), (None, None, None, "model"), ("model",)),
}


def loss_of(layer: Any, params: Any, x: Any) -> Any:
    return jnp.sum(layer(x, *params) ** 2)


def layer_problem(name: str, rng: np.random.Generator) -> Any:
    layer, *shapes, channels = LAYERS[name]
    x, w, bias = ints(rng, *shapes, (channels,))
    return layer, x, (w, bias)


def layer_specs(name: str, way: str) -> Any:
    x, w, bias = LAYER_WAYS[way]
    if name == "resize":  # along the axis that stays as it is
        x = x if "rows" not in way else (*x[:1], None, *x[1:])
        w = bias
    if name in ("resize", "grouped") and bias:  # its channels belong to those of the result
        x = (*x, *(None,) * (3 - len(x)), *bias)
    return x, w, bias


def layer_mesh(way: str, axis_type: AxisType) -> jax.sharding.Mesh:
    return make_mesh(axis_type, GRID if "model" in str(LAYER_WAYS[way]) else None)


def _assert_placed_alike(got: jax.Array, operand: jax.Array) -> None:
    assert jax.typeof(got).sharding == jax.typeof(operand).sharding
    assert got.sharding.is_equivalent_to(operand.sharding, got.ndim)


def network(params: Any, x: Any) -> Any:
    """Two up-convolutions, a resize and a convolution."""
    first, second, last = params
    x = jnp.maximum(conv_transpose(x, first, (2, 2), "SAME"), 0)
    x = jnp.maximum(conv_transpose(x, second, (2, 2), "SAME"), 0)
    x = resize(x, (*x.shape[:2], 2 * x.shape[2], x.shape[3]), "nearest")
    return conv_general_dilated(x, last, (1, 1), "SAME", dimension_numbers=NUMBERS[2])


def network_problem(rng: np.random.Generator) -> Any:
    x, *params = ints(rng, (8, 8, 2, 3), (4, 4, 3, 4), (2, 2, 4, 5), (3, 3, 5, 1))
    return tuple(params), x


def network_loss(params: Any, x: Any) -> Any:
    return jnp.sum(network(params, x))

"""Layers and their gradients, divided by XLA: one sum for each weight array, and nothing is gathered."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from support.meshes import collectives, make_mesh, put
from support.partitioned_layers import (
    LAYER_WAYS,
    layer_mesh,
    layer_problem,
    layer_specs,
    loss_of,
    per_layer,
)
from support.partitioned_operators import GRID, NUMBERS, assert_same, ints

from jax_convgrad import (
    conv_general_dilated,
    resize,
)

pytestmark = [pytest.mark.optimized, pytest.mark.devices(4)]


@pytest.mark.matrix("jit of sharded arrays, divided", devices=4)
@pytest.mark.parametrize("way", LAYER_WAYS)
@per_layer
def test_layers(name: str, way: str, backend: str, rng: np.random.Generator):
    """Each weight array's gradient is summed once over the devices that split the batch or the rows."""
    layer, x, (w, bias) = layer_problem(name, rng)
    mesh = layer_mesh(way, AxisType.Auto)
    sx, sw, sbias = layer_specs(name, way)
    split = put(w, mesh, *sw), put(x, mesh, *sx), put(bias, mesh, *sbias)
    f = jax.jit(jax.grad(lambda w, x, bias: loss_of(layer, (w, bias), x), (0, 1)))
    compiled = f.lower(*split).compile()
    found = collectives(compiled.as_text())
    over_devices = not way.startswith("output")
    # The input gradient of dense layers sums over output channels.
    inputs = way.endswith("output channels") and name in ("conv", "transpose")
    # The factors of the resize are XLA's own product and sum: over one mesh axis at a time.
    more = {1} if (name, way) == ("resize", "batch and rows") else set()
    assert found["all-reduce"] - (over_devices + inputs) in {0} | more
    assert set(found) <= {"all-reduce", "collective-permute"}
    assert "rows" in way or not found["collective-permute"]
    assert_same(compiled(*split), f(w, x, bias))


@per_layer
def test_the_gradient_of_a_bias(name: str, backend: str, rng: np.random.Generator):
    """A sum that XLA makes: over one mesh axis at a time, and perhaps in one with the weights'."""
    layer, x, params = layer_problem(name, rng)
    mesh = make_mesh(AxisType.Auto, GRID)
    split = tuple(put(p, mesh) for p in params), put(x, mesh, ("data", "model"))
    f = jax.jit(jax.grad(functools.partial(loss_of, layer), (0, 1)))
    compiled = f.lower(*split).compile()
    found = collectives(compiled.as_text())
    assert 1 <= found["all-reduce"] <= 1 + len(mesh.shape) and set(found) == {"all-reduce"}
    assert_same(compiled(*split), f(params, x))


@pytest.mark.parametrize(
    "x, w",
    [
        ((0, 4, 4, 8), (3, 3, 8, 8)),
        ((8, 4, 4, 0), (3, 3, 0, 8)),
        ((8, 4, 4, 8), (3, 3, 8, 0)),
        ((8, 4, 4, 8), (3, 3, 8, 8)),
        ((8, 1, 1, 1), (1, 1, 1, 1)),
    ],
    ids=str,
)
def test_empty_and_single(x: tuple[int, ...], w: tuple[int, ...], rng: np.random.Generator):
    mesh = make_mesh(AxisType.Auto)
    images, weights = ints(rng, x, w)

    def f(w: Any, x: Any) -> Any:
        y = conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NUMBERS[2])
        return jnp.sum(resize(y, (*y.shape[:1], 8, 8, y.shape[3]), "nearest") ** 2)

    step = jax.jit(jax.value_and_grad(f, (0, 1)))
    assert_same(step(put(weights, mesh), put(images, mesh, "data")), step(weights, images))

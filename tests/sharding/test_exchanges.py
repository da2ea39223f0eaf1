"""What cannot stay where it is: rows and channels are exchanged for examples, weights are gathered."""

from __future__ import annotations

import functools
import math
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.meshes import DEVICES, collectives, gathered, make_mesh, put
from support.partitioned_operators import GEOMETRIES, NUMBERS, Geometry, assert_same, ints, operator

from jax_convgrad import (
    conv_fprop,
    conv_general_dilated,
)

pytestmark = [pytest.mark.optimized, pytest.mark.devices(4)]


def test_rows_without_a_common_ratio(backend: str, rng: np.random.Generator):
    """30 rows from 32: the images are exchanged for examples, not gathered."""
    case = Geometry((8, 32, 3, 8), (3, 3), 8, {"padding": "VALID"})
    mesh = make_mesh(AxisType.Auto)
    x, w, y = ints(rng, case.x, case.w, case.y)
    squares = jax.jit(lambda x, w: jnp.sum(operator("fprop", case)(x, w) ** 2))
    split = put(x, mesh, None, "data"), put(w, mesh)
    found = collectives(squares.lower(*split).compile().as_text())
    assert found["all-to-all"] and not found["all-gather"]
    assert_same(squares(*split), squares(x, w))
    wgrad = jax.jit(operator("wgrad", case))
    images = put(x, mesh, None, "data"), put(y, mesh)
    found = collectives(wgrad.lower(*images).compile().as_text())
    assert found == Counter({"all-to-all": 1, "all-reduce": 1})
    assert_same(wgrad(*images), wgrad(x, y))


@pytest.mark.parametrize("kernel", [9, 19])
def test_halos_wider_than_a_part(kernel: int, rng: np.random.Generator):
    """Fewer devices take more rows of fewer examples each, or all rows."""
    case = Geometry((8, 16, 3, 8), (kernel, 1), 8, {})
    mesh = make_mesh(AxisType.Auto)
    x, w, y = ints(rng, case.x, case.w, case.y)
    for name, a, b in (("fprop", x, w), ("dgrad", y, w), ("wgrad", x, y)):
        f = jax.jit(operator(name, case))
        split = (
            put(a, mesh, None, "data"),
            put(b, mesh, *((None, "data") if name == "wgrad" else ())),
        )
        found = collectives(f.lower(*split).compile().as_text())
        assert found["all-reduce"] == (name == "wgrad") and not found["all-gather"]
        assert (found["collective-permute"] > 0) == (kernel == 9 and DEVICES == 8)
        assert_same(f(*split), f(a, b))


def test_one_example_is_gathered_where_nothing_else_serves(rng: np.random.Generator):
    case = Geometry((1, 32, 3, 3), (3, 3), 5, {"padding": "VALID"})
    mesh = make_mesh(AxisType.Auto)
    x, w = ints(rng, case.x, case.w)
    f = jax.jit(operator("fprop", case))
    split = put(x, mesh, None, "data"), put(w, mesh)
    assert collectives(f.lower(*split).compile().as_text())["all-gather"]
    assert_same(f(*split), f(x, w))


def test_images_split_along_different_channels(backend: str, rng: np.random.Generator):
    """Neither is gathered for the weights' gradient: both are exchanged for examples."""
    case = GEOMETRIES["plain"]
    mesh = make_mesh(AxisType.Auto)
    x, y = ints(rng, case.x, case.y)
    f = jax.jit(operator("wgrad", case))
    split = put(x, mesh, None, None, None, "data"), put(y, mesh, None, None, None, "data")
    found = collectives(f.lower(*split).compile().as_text())
    assert found == Counter({"all-to-all": 2, "all-reduce": 1})
    assert_same(f(*split), f(x, y))


def test_weights_move_and_images_stay(rng: np.random.Generator):
    """Weights that are split over the devices which split the batch (FSDP) are what is gathered."""
    case = GEOMETRIES["plain"]
    mesh = make_mesh(AxisType.Auto)
    x, w = ints(rng, case.x, case.w)
    f = jax.jit(operator("fprop", case))
    split = put(x, mesh, "data"), put(w, mesh, None, None, "data")
    text = f.lower(*split).compile().as_text()
    assert collectives(text) == Counter({"all-gather": 1})
    assert gathered(text) == [math.prod(case.w)]
    assert_same(f(*split), f(x, w))


@pytest.mark.parametrize("channels", [2, 3])
@pytest.mark.parametrize("backend", ["handlers"], indirect=True)
def test_rows_that_cannot_stay_are_exchanged_before_weights_are_looked_at(
    channels: int, backend: str, rng: np.random.Generator
):
    """Weights split over the devices of the rows (FSDP along either channels) leave the images alone."""
    mesh = make_mesh(AxisType.Auto)
    x, w = ints(rng, (8, 32, 3, 16), (3, 3, 16, 8))
    ways = {"x": P(None, "data"), "w": P(*(None,) * channels, "data")}

    def loss(x: Any, w: Any) -> Any:
        y = conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=NUMBERS[2])
        return jnp.sum(y * (1 + jnp.arange(y.shape[-1])))

    f = jax.jit(
        jax.grad(loss, (0, 1)),
        out_shardings=tuple(NamedSharding(mesh, way) for way in ways.values()),
    )
    split = tuple(put(a, mesh, *way) for a, way in zip((x, w), ways.values(), strict=True))
    text = f.lower(*split).compile().as_text()
    assert set(gathered(text)) <= {math.prod(w.shape)}
    assert collectives(text)["all-reduce"] <= 1
    assert_same(f(*split), jax.grad(loss, (0, 1))(x, w))


def test_rows_that_the_batch_cannot_take_over_leave_the_weights_alone(rng: np.random.Generator):
    """They are gathered then, and splitting some of the batch instead would gather the weights as well."""
    mesh = make_mesh(AxisType.Auto)
    x, w = ints(rng, (DEVICES // 2, 4 * DEVICES, 3, 16), (3, 3, 16, 8))
    f = jax.jit(functools.partial(conv_fprop, dimension_numbers=NUMBERS[2]))
    split = put(x, mesh, None, "data"), put(w, mesh, None, None, None, "data")
    text = f.lower(*split).compile().as_text()
    assert math.prod(w.shape) not in gathered(text)
    assert_same(f(*split), f(x, w))


def test_weights_larger_than_their_images_are_gathered_where_images_are_held(
    rng: np.random.Generator,
):
    """Without the constraint Shardy has the weights' split spread to the images."""
    mesh = make_mesh(AxisType.Auto)
    x, *ws = ints(rng, (8, 3, 3, 16), *[(3, 3, 16, 16)] * 3)
    assert math.prod(ws[0].shape) > math.prod(x.shape)

    def loss(ws: Any, x: Any, held: bool) -> Any:
        for w in ws:
            x = conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NUMBERS[2])
            x = jnp.sign(x)
            x = lax.with_sharding_constraint(x, NamedSharding(mesh, P("data"))) if held else x
        return jnp.sum(x)

    way = NamedSharding(mesh, P(None, None, None, "data"))
    f = jax.jit(loss, static_argnums=2)
    split = [jax.device_put(w, way) for w in ws], put(x, mesh, "data")
    text = f.lower(*split, True).compile().as_text()
    found = collectives(text)
    assert set(gathered(text)) == {math.prod(ws[0].shape)}
    assert found["all-gather"] == 3 and found["all-to-all"] == 0
    assert_same(f(*split, True), loss(ws, x, False))

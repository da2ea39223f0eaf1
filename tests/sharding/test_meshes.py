"""Meshes of any size, several in one program, and how XLA's shardings are read."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support import jax_internals
from support.meshes import DEVICES, collectives, make_mesh, put
from support.partitioned_operators import GEOMETRIES, GRID, NUMBERS, assert_same, ints, operator

from jax_convgrad import (
    conv_fprop,
)
from jax_convgrad._src.sharding import custom_partitioning

pytestmark = [pytest.mark.optimized, pytest.mark.devices(4)]


def test_two_meshes_in_one_program(rng: np.random.Generator):
    """JAX lets arrays lie on different meshes of the same devices, in the same order."""
    case = GEOMETRIES["plain"]
    x, w = ints(rng, case.x, case.w)
    f = jax.jit(operator("fprop", case))
    line, grid = make_mesh(AxisType.Auto), make_mesh(AxisType.Auto, GRID)
    split = put(x, line, "data"), put(w, grid, None, None, None, "model")
    assert_same(f(*split), f(x, w))


def test_lowering_for_devices_that_are_not_here():
    case = GEOMETRIES["plain"]
    mesh = AbstractMesh((64,), ("data",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct((64, *case.x[1:]), np.float32, sharding=NamedSharding(mesh, P("data")))
    f = jax.jit(lambda x: operator("fprop", case)(x, np.ones(case.w, np.float32)))
    text = f.trace(x).lower(lowering_platforms=("cpu",)).as_text()
    assert "CustomSPMDPartitioning" in text


@pytest.mark.skipif(DEVICES < 8, reason="needs six devices")
@pytest.mark.parametrize("shape", [{"a": 3, "b": 2}, {"a": 2, "b": 3}, {"a": 6}], ids=str)
def test_meshes_of_other_sizes(shape: dict[str, int], rng: np.random.Generator):
    mesh = make_mesh(AxisType.Auto, shape)
    x, w = ints(rng, (6, 12, 3, 4), (3, 3, 4, 6))
    f = functools.partial(conv_fprop, padding="SAME", dimension_numbers=NUMBERS[2])
    names = list(shape)
    ways = [(names[0], *names[1:]), (tuple(names),), (None, tuple(names[::-1]))]
    for way in ways:
        run = jax.jit(f)
        split = put(x, mesh, *way), put(w, mesh)
        assert not collectives(run.lower(*split).compile().as_text())["all-gather"]
        assert_same(run(*split), run(x, w))


def test_shardings_are_read(rng: np.random.Generator):
    """The meshes of prime axes into which XLA's shardings are taken apart say the same as JAX's own."""
    for shape in ({"a": 8}, {"a": 4, "b": 2}, {"a": 2, "b": 2, "c": 2}, {"a": 3, "b": 2}):
        mesh = AbstractMesh(
            tuple(shape.values()), tuple(shape), axis_types=(AxisType.Auto,) * len(shape)
        )
        for _ in range(20):
            names = [*rng.permutation(list(shape))][: rng.integers(1, len(shape) + 1)]
            given: list[tuple[str, ...]] = [(), (), ()]
            for name in names:
                axis = rng.integers(3)
                given[axis] = (*given[axis], str(name))
            sharding = jax_internals.xla_sharding(NamedSharding(mesh, P(*given)), 3)
            found, (split,) = custom_partitioning._read_shardings([(3, sharding)], mesh.size)
            again = jax_internals.xla_sharding(NamedSharding(found, P(*split)), 3)
            assert math.prod(found.axis_sizes) == mesh.size
            assert _tiles(again) == _tiles(sharding)


def test_meshes_of_prime_axes():
    assert list(custom_partitioning._factorizations(1)) == [()]
    assert list(custom_partitioning._factorizations(4096)) == [(2,) * 12]
    assert list(custom_partitioning._factorizations(12)) == [(2, 2, 3), (2, 3, 2), (3, 2, 2)]


def _tiles(sharding: Any) -> Any:
    """Which tile of the array each device has."""
    if sharding.is_replicated():
        return None
    tiles = sharding.tile_assignment_dimensions()[:3]
    devices = np.asarray(sharding.tile_assignment_devices()).reshape(*tiles, -1)
    return tiles, np.sort(devices, -1).tolist()

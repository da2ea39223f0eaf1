"""Resizes in programs that XLA divides among devices."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.meshes import collectives, make_mesh, put
from support.partitioned_operators import assert_same, ints

from jax_convgrad import (
    resample,
    resample_transpose,
    resize,
)

pytestmark = [pytest.mark.optimized, pytest.mark.devices(4)]


def resized(x: Any) -> jax.Array:
    return resample(x, (8, 64, 8, 8), method="linear", antialias=False)


def resized_back(y: Any) -> jax.Array:
    return resample_transpose(y, (8, 32, 8, 8), method="linear", antialias=False)


@pytest.mark.parametrize("axis", [0, 2, 3])
def test_axes_that_are_not_resized(axis: int, backend: str, rng: np.random.Generator):
    mesh = make_mesh(AxisType.Auto)
    for f, shape in ((resized, (8, 32, 8, 8)), (resized_back, (8, 64, 8, 8))):
        (x,) = ints(rng, shape)
        split = put(x, mesh, *(None,) * axis, "data")
        run = jax.jit(functools.partial(f))  # not what is compiled for another backend
        text = run.lower(split).compile().as_text()
        assert not collectives(text)
        assert ("jax_convgrad_resample" in text) == (backend == "handlers")
        assert_same(run(split), run(x))
        assert run(split).sharding.is_equivalent_to(split.sharding, 4)


def test_an_axis_that_is_resized(backend: str, rng: np.random.Generator):
    """The devices exchange rows for examples, and back, so that the result is split as it was."""
    mesh = make_mesh(AxisType.Auto)
    for f, shape in ((resized, (8, 32, 8, 8)), (resized_back, (8, 64, 8, 8))):
        (x,) = ints(rng, shape)
        split = put(x, mesh, None, "data")
        run = jax.jit(functools.partial(f))
        text = run.lower(split).compile().as_text()
        assert collectives(text) == Counter({"all-to-all": 2})
        assert_same(run(split), run(x))
        assert run(split).sharding.is_equivalent_to(split.sharding, 4)


def test_rows_are_resized_where_their_result_is_to_lie(rng: np.random.Generator):
    """The image goes there at once, not by way of the batch."""
    mesh = make_mesh(AxisType.Auto)
    (x,) = ints(rng, (8, 32, 8, 8))
    f = jax.jit(resized, out_shardings=NamedSharding(mesh, P(None, None, None, "data")))
    split = put(x, mesh, None, "data")
    assert collectives(f.lower(split).compile().as_text()) == Counter({"all-to-all": 1})
    assert_same(f(split), resized(x))


def test_a_resize_of_one_example_gathers_the_axis(rng: np.random.Generator):
    mesh = make_mesh(AxisType.Auto)
    (x,) = ints(rng, (1, 16, 3, 5))
    f = jax.jit(lambda x: resize(x, (1, 32, 3, 5), "linear"))
    assert_same(f(put(x, mesh, None, "data")), f(x))

"""Whole training steps on many devices, by jit and by shard_map."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from support.meshes import DEVICES, collectives, make_mesh, put
from support.partitioned_layers import network_loss, network_problem
from support.partitioned_operators import GRID, NUMBERS, assert_same, ints

from jax_convgrad import (
    conv_fprop,
    conv_general_dilated,
)
from jax_convgrad._src.dispatch.override import override_backend

pytestmark = [pytest.mark.optimized, pytest.mark.devices(4)]


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_a_training_step(axis_type: AxisType, backend: str, rng: np.random.Generator):
    """Data parallelism: one all-reduce for each weight array or fewer, and nothing else."""
    params, x = network_problem(rng)
    mesh = make_mesh(axis_type)
    step = jax.jit(jax.grad(network_loss))
    expected = step(params, x)
    with jax.set_mesh(mesh):
        split = jax.tree.map(lambda p: put(p, mesh), params), put(x, mesh, "data")
        compiled = step.lower(*split).compile()
        found = collectives(compiled.as_text())
        assert 1 <= found["all-reduce"] <= len(params) and set(found) == {"all-reduce"}
        assert_same(step(*split), expected)


def test_a_training_step_split_by_rows(backend: str, rng: np.random.Generator):
    """Neighbors exchange rows; no image is gathered."""
    params, x = network_problem(rng)
    mesh = make_mesh(AxisType.Auto)
    step = jax.jit(jax.grad(network_loss, (0, 1)))
    split = jax.tree.map(lambda p: put(p, mesh), params), put(x, mesh, None, "data")
    found = collectives(step.lower(*split).compile().as_text())
    assert 1 <= found["all-reduce"] <= len(params)
    assert set(found) <= {"all-reduce", "collective-permute"}
    assert_same(step(*split), step(params, x))


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("grid", [False, True], ids=["line", "grid"])
def test_shard_map(grid: bool, check_vma: bool, backend: str, rng: np.random.Generator):
    """Gradients of weights that all devices have, by hand and by JAX, are those of one device."""
    params, x = network_problem(rng)
    names = ("data", "model") if grid else ("data",)
    mesh = make_mesh(AxisType.Auto, GRID if grid else None)

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P(), P(names)),
        out_specs=(P(), P(names)),
        check_vma=check_vma,
    )
    def inside(params: Any, x: Any) -> Any:
        dparams, dx = jax.grad(network_loss, (0, 1))(params, x)
        return (dparams if check_vma else lax.psum(dparams, names)), dx

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P(), P(names)), out_specs=P(), check_vma=check_vma
    )
    def summed(params: Any, x: Any) -> Any:
        return lax.psum(network_loss(params, x), names)

    expected = jax.grad(network_loss, (0, 1))(params, x)
    assert_same(jax.jit(inside)(params, x), expected)
    assert_same(jax.jit(jax.grad(summed, (0, 1)))(params, x), expected)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_shard_map_over_one_axis_of_two(
    axis_type: AxisType, check_vma: bool, backend: str, rng: np.random.Generator
):
    """XLA divides the other axis; it cannot ask for the parts of a call there, so there is none."""
    params, x = network_problem(rng)
    mesh = make_mesh(axis_type, GRID)

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P(), P("data")),
        out_specs=(P(), P("data")),
        axis_names={"data"},
        check_vma=check_vma,
    )
    def inside(params: Any, x: Any) -> Any:
        return jax.grad(network_loss, (0, 1))(params, x)

    run = jax.jit(inside)
    with jax.set_mesh(mesh):
        axes = ("data", "model") if axis_type == AxisType.Auto else (("data", "model"),)
        split = jax.tree.map(lambda p: put(p, mesh), params), put(x, mesh, *axes)
        assert "jax_convgrad_conv" not in run.lower(*split).as_text()
        dparams, dx = run(*split)
    if not check_vma:  # each device's own, and JAX says nothing of which it shows
        dparams = None
    expected, dx_expected = jax.grad(network_loss, (0, 1))(params, x)
    assert_same((dparams, dx), (None if dparams is None else expected, dx_expected))


def test_axes_of_one_device_divide_nothing(rng: np.random.Generator):
    """Inside `shard_map` over all other axes the handlers are called."""
    x, w = ints(rng, (8, 6, 6, 4), (3, 3, 4, 4))
    mesh = make_mesh(AxisType.Auto, {"data": DEVICES, "model": 1})
    f = functools.partial(conv_fprop, padding="SAME", dimension_numbers=NUMBERS[2])
    inside = jax.shard_map(
        f, mesh=mesh, in_specs=(P("data"), P()), out_specs=P("data"), axis_names={"data"}
    )
    with override_backend("cudnn" if jax.default_backend() == "gpu" else "onednn"):
        run = jax.jit(inside)
        split = put(x, mesh, "data"), put(w, mesh, None, None, None, "model")
        assert "jax_convgrad_conv_fprop" in run.lower(*split).as_text()
        assert_same(run(*split), f(x, w))


def test_loops(backend: str, rng: np.random.Generator):
    """A scan over layers, whose weights' gradients are summed in it."""
    x, w = ints(rng, (8, 8, 4, 4), (3, 1, 1, 4, 4))

    def f(w: Any, x: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            y = conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NUMBERS[2])
            return jnp.sign(y), None

        y, _ = lax.scan(lambda x, w: (x + layer(x, w)[0] * w[0, 0, 0, 0], None), x, w)
        return jnp.sum(y**2)

    mesh = make_mesh(AxisType.Auto)
    step = jax.jit(jax.value_and_grad(f, (0, 1)))
    split = put(w, mesh), put(x, mesh, "data")
    assert not collectives(step.lower(*split).compile().as_text())["all-gather"]
    assert_same(step(*split), step(w, x))

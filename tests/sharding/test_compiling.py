"""When XLA asks for the parts, by what they are found again, and programs that hold no calls."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from support.meshes import collectives, make_mesh, put
from support.partitioned_layers import network_loss, network_problem
from support.partitioned_operators import GEOMETRIES, NUMBERS, assert_same, ints, operator

from jax_convgrad import (
    conv_fprop,
    resize,
)
from jax_convgrad._src.dispatch.override import override_backend

pytestmark = [pytest.mark.optimized, pytest.mark.devices(4)]


def test_what_was_said_when_a_call_was_lowered_holds(rng: np.random.Generator):
    """XLA asks for the parts later, in another thread."""
    case = GEOMETRIES["plain"]
    mesh = make_mesh(AxisType.Auto)
    split = put(np.ones(case.x, np.float32), mesh, "data"), put(np.ones(case.w, np.float32), mesh)
    f = operator("fprop", case)
    with override_backend("xla_rewritten"), jax.default_matmul_precision("highest"):
        lowered = jax.jit(f).lower(*split)
    text = lowered.compile().as_text()
    assert "jax_convgrad_conv" not in text and "highest" in text
    with override_backend(None):
        text = jax.jit(lambda x, w: f(x, w)).lower(*split).compile().as_text()
    assert "highest" not in text


def test_float64_in_one_thread_only(without_x64: None, rng: np.random.Generator):
    case = GEOMETRIES["plain"]
    mesh = make_mesh(AxisType.Auto)
    with jax.enable_x64(True):
        x, y = (rng.integers(-2, 3, shape).astype(np.float64) for shape in (case.x, case.y))
        f = jax.jit(operator("wgrad", case))
        got = f(put(x, mesh, "data"), put(y, mesh, "data"))
        assert got.dtype == np.float64
        assert_same(got, f(x, y))


def test_calls_of_one_shape_are_not_confused(rng: np.random.Generator):
    """The same arrays, the same ways to split them, another convolution."""
    mesh = make_mesh(AxisType.Auto)
    x, w = ints(rng, (8, 16, 4, 4), (3, 3, 4, 4))
    more: dict[str, Any] = {"dimension_numbers": NUMBERS[2]}
    f = jax.jit(
        lambda x, w: (
            conv_fprop(x, w, padding="SAME", **more),
            conv_fprop(x, w, padding="SAME", dilation=2, **more),
            resize(x, (8, 16, 8, 4), "linear"),
            resize(x, (8, 16, 8, 4), "nearest"),
        )
    )
    assert_same(f(put(x, mesh, "data"), put(w, mesh)), f(x, w))


_CACHED = """
import sys
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from jax import monitoring
from jax_convgrad import conv_fprop

events = []
monitoring.register_event_listener(lambda event, **_: events.append(event))
mesh = jax.make_mesh((len(jax.devices()),), ("data",), axis_types=(AxisType.Auto,))
x = jax.device_put(np.ones((8, 16, 4, 4), np.float32), NamedSharding(mesh, P("data")))
w = jax.device_put(np.ones((3, 3, 4, 4), np.float32), NamedSharding(mesh, P()))
events.clear()
for dilation in (1, 2):
    f = lambda x, w: conv_fprop(
        x, w, padding="SAME", dilation=dilation, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    print(int(np.asarray(jax.jit(f)(x, w)).sum()))
print(sum(event.endswith("cache_hits") for event in events))
"""


@pytest.mark.parametrize("without_pointer", [False, True])
def test_the_persistent_cache_hits(
    without_pointer: bool, tmp_path: Any, subprocess_python: list[str], needs_cpu_handlers: None
):
    """In another process; with JAX's option that leaves a call's key out of the cache's, too."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_CONVGRAD_REQUIRE_CUDA": "0",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        "JAX_REMOVE_CUSTOM_PARTITIONING_PTR_FROM_CACHE_KEY": str(int(without_pointer)),
    }

    def run() -> list[int]:
        command = [*subprocess_python, "-c", _CACHED]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return [int(line) for line in done.stdout.split()]

    first, second = run(), run()
    assert first[:2] == second[:2] and first[0] != first[1]
    assert first[2] == 0 and second[2] == 2


def test_without_shardy(rng: np.random.Generator):
    """The partitioner before it divides operations alone."""
    params, x = network_problem(rng)
    mesh = make_mesh(AxisType.Auto)
    expected = jax.jit(jax.grad(network_loss))(params, x)
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        step = jax.jit(jax.grad(network_loss))
        split = jax.tree.map(lambda p: put(p, mesh), params), put(x, mesh, "data")
        lowered = step.lower(*split)
        assert "jax_convgrad_conv" not in lowered.as_text()
        assert not collectives(lowered.compile().as_text())["all-gather"]
        assert_same(step(*split), expected)
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)


def test_export_of_a_sharded_program(rng: np.random.Generator):
    """It holds operations, which XLA divides wherever it runs."""
    case = GEOMETRIES["plain"]
    mesh = make_mesh(AxisType.Auto)
    x, w = ints(rng, case.x, case.w)
    f = jax.jit(operator("fprop", case))
    split = put(x, mesh, "data"), put(w, mesh)
    exported = jax.export.export(f)(*split)
    assert "custom_call @jax_convgrad" not in exported.mlir_module()
    assert "CustomSPMDPartitioning" not in exported.mlir_module()
    assert_same(jax.jit(exported.call)(*split), f(x, w))

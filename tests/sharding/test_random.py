"""Any convolution, with arrays split in any way."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.meshes import DEVICES, make_mesh, put
from support.partitioned_operators import (
    GRID,
    OPERATORS,
    ROLES,
    Geometry,
    assert_same,
    ints,
    operator,
)

from jax_convgrad._src.dispatch.override import override_backend

pytestmark = [pytest.mark.optimized, pytest.mark.devices(4)]


@pytest.mark.parametrize("seed", range(24))
def test_random(seed: int):
    """Any convolution, arrays split in any way, a result asked for in any way."""
    rng = np.random.default_rng(seed)
    shapes = [{"data": DEVICES}, GRID]
    mesh = make_mesh(AxisType.Auto, shapes[rng.integers(2)])
    rank = int(rng.integers(1, 3))
    groups, inputs, outputs = (int(rng.choice([1, 2, 4, 8])) for _ in range(3))
    kernel = tuple(int(v) for v in rng.integers(1, 6, rank))
    strides = tuple(int(v) for v in rng.integers(1, 4, rank))
    dilation = tuple(int(v) for v in rng.integers(1, 3, rank))
    sizes = tuple(int(v) for v in rng.choice([16, 24, 32, 48], rank))
    padding = []
    for k, d, s in zip(kernel, dilation, strides, strict=True):
        low = int(rng.integers(-1, 4))
        ratio = (k - 1) * d + 1 - s - low + int(rng.integers(0, s))
        padding.append((low, ratio if rng.random() < 0.7 else int(rng.integers(0, 4))))
    case = Geometry(
        (int(rng.choice([1, 2, 8])), *sizes, groups * inputs),
        kernel,
        groups * outputs,
        {"strides": strides, "padding": padding, "dilation": dilation, "groups": groups},
    )

    def any_spec(shape: tuple[int, ...]) -> tuple[Any, ...]:
        split: list[tuple[str, ...]] = [()] * len(shape)
        for name in rng.permutation(list(mesh.shape)):
            axis = int(rng.integers(len(shape)))
            parts = math.prod(mesh.shape[n] for n in split[axis]) * mesh.shape[name]
            if shape[axis] % parts == 0:
                split[axis] = (*split[axis], str(name))
        return tuple(split)

    with override_backend([None, "xla_rewritten"][rng.integers(2)]):
        for name in OPERATORS:
            a, b = ints(rng, *(getattr(case, role) for role in ROLES[name][:2]))
            f = operator(name, case)
            expected = jax.jit(f)(a, b)
            out = NamedSharding(mesh, P(*any_spec(expected.shape)))
            run = jax.jit(f, out_shardings=out if rng.random() < 0.5 else None)
            ways = any_spec(a.shape), any_spec(b.shape)
            assert_same(run(put(a, mesh, *ways[0]), put(b, mesh, *ways[1])), expected)

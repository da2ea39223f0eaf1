"""What the solver may choose."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
from support.partitioned_operators import GEOMETRIES, operator

from jax_convgrad._src.conv import sharding
from jax_convgrad._src.sharding import solver

pytestmark = [pytest.mark.optimized, pytest.mark.devices(4)]


def test_a_solution_takes_each_mesh_axis_once(rng: np.random.Generator):
    case = GEOMETRIES["grouped"]
    shapes = [jax.ShapeDtypeStruct(s, np.float32) for s in (case.x, case.w)]
    (problem,) = (
        equation.params["problem"]
        for equation in jax.make_jaxpr(operator("fprop", case))(*shapes).eqns
    )
    rule = sharding.rule(problem)
    sizes = {"d0": 2, "d1": 2, "d2": 2}
    for _ in range(100):
        splits = []
        for array in rule.arrays:
            split: list[tuple[str, ...]] = [()] * len(array)
            for name in rng.permutation(list(sizes)):
                axis = rng.integers(len(array))
                split[axis] = (*split[axis], str(name))
            splits.append(tuple(split))
        chosen = solver.solve(rule, sizes, splits).chosen
        used = [name for names in chosen.values() for name in names]
        assert len(used) == len(set(used))
        assert all(rule.fits(f, math.prod(sizes[n] for n in names)) for f, names in chosen.items())
        assert "i" not in chosen or math.prod(sizes[n] for n in chosen.get("g", ())) == 8

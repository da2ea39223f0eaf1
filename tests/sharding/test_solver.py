"""What the solver may choose."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
from support.partitioned_operators import GEOMETRIES, operator

from jax_convgrad._src.sharding import solver

pytestmark = [pytest.mark.optimised, pytest.mark.devices(4)]


def test_assign_takes_each_mesh_axis_once(rng: np.random.Generator):
    case = GEOMETRIES["grouped"]
    shapes = [jax.ShapeDtypeStruct(s, np.float32) for s in (case.x, case.w)]
    (config,) = (
        equation.params["config"]
        for equation in jax.make_jaxpr(operator("fprop", case))(*shapes).eqns
    )
    division = solver.conv_fprop(None, "cpu", *shapes, config=config)
    sizes = {"d0": 2, "d1": 2, "d2": 2}
    for _ in range(100):
        splits = []
        for array in division.arrays:
            split: list[tuple[str, ...]] = [()] * len(array)
            for name in rng.permutation(list(sizes)):
                axis = rng.integers(len(array))
                split[axis] = (*split[axis], str(name))
            splits.append(tuple(split))
        chosen = solver.assign(division, sizes, splits)
        used = [name for names in chosen.values() for name in names]
        assert len(used) == len(set(used))
        assert all(
            division.fits(f, math.prod(sizes[n] for n in names)) for f, names in chosen.items()
        )
        assert "i" not in chosen or math.prod(sizes[n] for n in chosen.get("g", ())) == 8

"""`thin_family` says of the thin CUDA kernels what they say themselves."""

from __future__ import annotations

import collections
import math
import pathlib
from collections.abc import Iterator

import numpy as np
import pytest
from support import benchmark_programs, drawn_thin, native
from support.drawn_geometries import drawn_geometries

from jax_convgrad._src.conv import arguments
from jax_convgrad._src.conv.geometry import ConvGeometry
from jax_convgrad._src.dispatch.problem import ConvProblem
from jax_convgrad._src.dispatch.thin_cuda import thin_family

OPERATORS = ("conv_fprop", "conv_dgrad", "conv_wgrad")
DRAWN = 1500


# Sizes beyond what is drawn, along one axis: channels of x and y, pixels, taps, stride, padding, dilation.
EDGES = (
    (1, 64, 4000, 80, 4, 38, 1),
    (1, 24, 30000, 16, 300, 0, 1),
    (1, 24, 30000, 16, 256, 0, 1),
    (4, 8, 30000, 3, 64, 1, 1),
    (4, 8, 30000, 3, 65, 1, 1),
    (1, 8, 30000, 3, 65, 0, 2),
    (1, 8, 30000, 3, 66, 0, 2),
    (1, 8, 30000, 3, 130, 0, 65),
)


def edges() -> Iterator[ConvProblem]:
    for channels, out_channels, pixels, taps, stride, padding, dilation in EDGES:
        x, w = (2, channels, pixels), (out_channels, channels, taps)
        config = arguments.make_config(
            "edges", x, w, strides=stride, padding=[(padding, padding)], dilation=dilation, groups=1,
            dimension_numbers=None,
        )  # fmt: skip
        geometry = ConvGeometry.make("edges", config, x, w)
        for operator in OPERATORS:
            yield ConvProblem.make(operator, geometry, "bfloat16")
            yield ConvProblem.make(operator, geometry, "float32")


def problems() -> Iterator[ConvProblem]:
    yield from edges()
    for geometry in drawn_geometries(11, DRAWN):
        for operator in OPERATORS:
            yield ConvProblem.make(operator, geometry, "bfloat16")
            yield ConvProblem.make(operator, geometry, "float32")
    for seed in range(DRAWN):
        call = drawn_thin.draw(np.random.default_rng(seed))
        yield drawn_thin.problem_of(call)


def is_countable(problem: ConvProblem) -> bool:
    """Whether there are elements, and the kernels count to all of them."""
    sizes = [math.prod(problem.geometry.shape_of(role)) for role in ("x", "w", "y")]
    return 0 < min(sizes) and max(sizes) < 2**24


@pytest.mark.cpp
@pytest.mark.slow
def test_the_family_is_one_that_has_a_plan(tmp_path: pathlib.Path) -> None:
    native.need_compiler()
    coverage = benchmark_programs.load("thin_coverage")
    dense = [p for p in problems() if p.geometry.config.groups == 1 and is_countable(p)]
    lines = [coverage.line(p, p.geometry, 2**40) for p in dense]
    counts: collections.Counter[str | None] = collections.Counter()
    for problem, answer in zip(
        dense, coverage.answers(coverage.build(tmp_path), lines), strict=True
    ):
        found = thin_family(problem.operator, problem.geometry, problem.dtype)
        if answer.startswith("- "):
            assert found is None or "too small" in answer, (problem, answer)
        else:
            engines = [engine for engine in answer.split() if engine.startswith(str(found))]
            assert engines, (problem, found, answer)
        counts[found] += 1
    assert min(counts[name] for name in ("windows", "image", "few_outputs", None)) > DRAWN / 20


@pytest.mark.parametrize("operator", OPERATORS)
def test_other_types_and_groups_have_none(operator: str) -> None:
    for geometry in drawn_geometries(12, 200):
        assert thin_family(operator, geometry, "float64") is None
        assert thin_family(operator, geometry, "float32", tf32=False) is None
        if geometry.config.groups > 1:
            assert thin_family(operator, geometry, "bfloat16") is None

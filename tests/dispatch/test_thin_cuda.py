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
from jax_convgrad._src.dispatch.thin_cuda import leads, thin_family

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
def test_the_family_has_the_first_plan_and_leads_where_that_is_fast(tmp_path: pathlib.Path) -> None:
    native.need_compiler()
    coverage = benchmark_programs.load("thin_coverage")
    dense = [p for p in problems() if p.geometry.config.groups == 1 and is_countable(p)]
    lines = [coverage.line(p, p.geometry, 2**40) for p in dense]
    counts: collections.Counter[str | None] = collections.Counter()
    # Whose family needs more memory than there is, and another does not.
    beyond_memory = []
    for problem, answer in zip(
        dense, coverage.answers(coverage.build(tmp_path), lines), strict=True
    ):
        found = thin_family(problem.operator, problem.geometry, problem.dtype)
        if answer.startswith("- "):
            assert found is None or "too small" in answer, (problem, answer)
        else:
            engines, _, speed = answer.partition("; ")
            if found is not None and not engines.startswith(found):
                beyond_memory.append((problem, found, answer))
                continue
            assert found is not None, (problem, answer)
            leading = leads(problem.operator, problem.geometry, problem.dtype)
            assert leading is (speed == "fast"), (problem, found, answer)
        counts[found] += 1
    assert min(counts[name] for name in ("windows", "image", "few_outputs", None)) > DRAWN / 20
    assert len(beyond_memory) < DRAWN / 100, beyond_memory


@pytest.mark.parametrize("operator", OPERATORS)
def test_other_types_and_groups_have_none(operator: str) -> None:
    for geometry in drawn_geometries(12, 200):
        assert thin_family(operator, geometry, "float64") is None
        assert thin_family(operator, geometry, "float32", tf32=False) is None
        if geometry.config.groups > 1:
            assert thin_family(operator, geometry, "bfloat16") is None


@pytest.mark.parametrize(
    "channels, out_channels, kernel, expected",
    [
        (64, 256, 1, True),
        (128, 512, 1, False),
        (64, 128, 2, True),
        (256, 64, 2, True),
        (256, 72, 2, False),
        (3, 768, 16, True),
    ],
)
def test_large_windows_are_left_to_others(
    channels: int, out_channels: int, kernel: int, expected: bool
) -> None:
    """Side by side, of many channels: a product that memory does not bound."""
    x, w = (2, channels, 64, 64), (out_channels, channels, kernel, kernel)
    config = arguments.make_config(
        "windows", x, w, strides=kernel, padding="VALID", dilation=1, groups=1, dimension_numbers=None
    )  # fmt: skip
    geometry = ConvGeometry.make("windows", config, x, w)
    for operator in OPERATORS:
        assert thin_family(operator, geometry, "bfloat16") == "windows"
        assert leads(operator, geometry, "bfloat16") is expected


@pytest.mark.parametrize(
    "operator, channels, out_channels, kernel, stride, dtype, expected",
    [
        ("conv_fprop", 64, 4, 3, 1, "bfloat16", True),
        ("conv_fprop", 64, 4, 3, 2, "bfloat16", False),
        ("conv_dgrad", 3, 64, 7, 2, "bfloat16", True),
        ("conv_dgrad", 3, 64, 7, 4, "bfloat16", False),
        ("conv_fprop", 3, 64, 7, 4, "float32", True),
        ("conv_fprop", 3, 768, 16, 16, "float32", False),
        ("conv_fprop", 3, 64, 4, 4, "float32", True),
        ("conv_wgrad", 64, 4, 3, 1, "float32", True),
        ("conv_wgrad", 64, 64, 3, 1, "bfloat16", False),
    ],
)
def test_thin_kernels_lead_as_they_say_themselves(
    operator: str, channels: int, out_channels: int, kernel: int, stride: int, dtype: str, expected: bool
) -> None:  # fmt: skip
    """As ThinPlan::IsFast: cpp/cuda/kernels/thin/plan.cu."""
    x, w = (2, channels, 64, 64), (out_channels, channels, kernel, kernel)
    config = arguments.make_config(
        "leads", x, w, strides=stride, padding="VALID", dilation=1, groups=1, dimension_numbers=None
    )  # fmt: skip
    assert leads(operator, ConvGeometry.make("leads", config, x, w), dtype) is expected

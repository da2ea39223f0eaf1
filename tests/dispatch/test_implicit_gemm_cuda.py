"""`has_implicit_gemm` says of the implicit GEMM CUDA kernels what they say themselves."""

from __future__ import annotations

import collections
import math
import pathlib
import subprocess
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from support import benchmark_programs, native
from support.drawn_geometries import drawn_geometries

from jax_convgrad._src.conv import arguments
from jax_convgrad._src.conv.geometry import ConvGeometry
from jax_convgrad._src.dispatch.implicit_gemm_cuda import has_implicit_gemm
from jax_convgrad._src.dispatch.problem import ConvProblem

OPERATORS = ("conv_fprop", "conv_dgrad", "conv_wgrad")
DRAWN = 400
ROOM = 220 * 1024  # bytes of an H200's shared memory, beside results and barriers


def geometries() -> Iterator[ConvGeometry]:
    """Small ones of all kinds, and some with the channels that the kernels are for."""
    yield from (g for g in drawn_geometries(21, DRAWN) if g.config.groups == 1)
    rng = np.random.default_rng(21)
    for _ in range(DRAWN):
        axes = int(rng.integers(1, 4))
        kernel = [int(rng.integers(1, 5)) for _ in range(axes)]
        channels, out_channels = (int(rng.choice([4, 8, 16, 20, 24, 40, 64, 72])) for _ in range(2))
        spatial = [int(rng.integers(12, 30)) for _ in range(axes)]
        yield make(
            channels, out_channels, spatial, kernel,
            strides=1 if rng.random() < 0.8 else 2,
            padding=[(int(rng.integers(-1, 3)), int(rng.integers(-1, 3))) for _ in range(axes)],
            dilation=int(rng.integers(1, 3)),
        )  # fmt: skip


def near_limits() -> Iterator[ConvGeometry]:
    """Some on either side of what rings, boxes and sums of 16-bit elements can be. Of 8 or 16 channels."""
    rng = np.random.default_rng(22)
    for _ in range(DRAWN):
        axes = int(rng.integers(1, 4))
        kernel = [int(rng.integers(1, 4)) for _ in range(axes)]
        dilation = [int(rng.integers(1, 3)) for _ in range(axes)]
        axis = int(rng.integers(0, axes))
        limit = str(rng.choice(["planes", "box", "taps"]))
        if limit == "planes":
            kernel[axis], dilation[axis] = int(rng.integers(13, 19)), 1
        elif limit == "box":  # less the smallest tiles' rows or columns
            reach = 256 - int(rng.choice([1, 8, 16, 64])) + int(rng.integers(-1, 2))
            kernel[axis] = int(rng.choice([k for k in (2, 3, 4, 5) if reach % (k - 1) == 0]))
            dilation[axis] = reach // (kernel[axis] - 1)
        elif axes > 1:
            taps = [(32, 16), (64, 8), (19, 27), (57, 9), (27, 19)]  # 512, or one more
            kernel = [1] * (axes - 2) + list(taps[rng.integers(len(taps))])
            dilation = [1] * axes
        padding = [
            ((k - 1) * d // 2 + int(rng.integers(0, 2)), (k - 1) * d // 2 + 1)
            if (k, rng.random() < 0.5) != (1, True)
            else (0, 0)
            for k, d in zip(kernel, dilation, strict=True)
        ]
        spatial = [int(rng.integers(1, 24)) for _ in range(axes)]
        channels, out_channels = (int(rng.choice([8, 16])) for _ in range(2))
        yield make(
            channels, out_channels, spatial, kernel,
            strides=1, padding=padding, dilation=dilation,
        )  # fmt: skip


def make(
    channels: int, out_channels: int, spatial: list[int], kernel: list[int], **rest
) -> ConvGeometry:
    x, w = (2, channels, *spatial), (out_channels, channels, *kernel)
    config = arguments.make_config("drawn", x, w, groups=1, dimension_numbers=None, **rest)
    return ConvGeometry.make("drawn", config, x, w)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """What the kernels say, in C++."""
    return native.build(
        tmp_path_factory.mktemp("answers"),
        ["tests/cpp/implicit_gemm_answers.cc"],
        "-Wno-unknown-pragmas",
        "-Wno-psabi",
        "-DEMULATED_BULK_COPIES=1",
        headers=("tests/cpp/emulated_cuda", "cpp", "benchmarks"),
    )


@pytest.mark.cpp
@pytest.mark.slow
@pytest.mark.parametrize("drawn", [geometries, near_limits])
def test_the_kernels_serve_what_it_says(
    drawn: Callable[[], Iterator[ConvGeometry]], program: pathlib.Path
) -> None:
    """And they are offered in front of cuDNN's engines."""
    coverage = benchmark_programs.load("thin_coverage")
    problems = [
        ConvProblem.make(operator, geometry, dtype)
        for geometry in drawn()
        for operator in OPERATORS
        for dtype in ("bfloat16", "float16", "float32")
        if 0 < min(math.prod(geometry.shape_of(role)) for role in ("x", "w", "y"))
    ]
    lines = "".join(coverage.line(p, p.geometry, 2**40) + "\n" for p in problems)
    done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    counts: collections.Counter[bool] = collections.Counter()
    for problem, answer in zip(problems, done.stdout.splitlines(), strict=True):
        found = has_implicit_gemm(problem.operator, problem.geometry, problem.dtype, True)
        if answer == "-" and found and not _fit(problem):
            continue
        assert found is answer.endswith("; fast"), (problem, answer)
        counts[found] += 1
    assert min(counts.values()) > DRAWN / 2, counts


def _fit(problem: ConvProblem) -> bool:
    """Whether a block of an H200 has room for what it holds at least, of 16-bit elements.

    Of fprop and dgrad, all weights of 16 channels and one plane more than a step reads: 8x8 positions, or a
    row of 64. Without z, rows may be the planes. Of a weight gradient, two planes of each array.
    """
    geometry, wgrad = problem.geometry, problem.operator == "conv_wgrad"
    lines = [max(16, n) for n in (geometry.in_channels, geometry.out_channels)]
    kernel = (1, 1, *geometry.kernel)[-3:]
    _, y, x = (n - 1 for n in (1, 1, *geometry.dilated_kernel)[-3:])
    if wgrad:
        return 2 * 2 * (16 * (1 + y) * lines[1] + (16 + x) * lines[0]) <= ROOM
    line = lines[problem.operator == "conv_dgrad"]
    rows = (kernel[0] + 1) * (64 + x)
    planes = rows if y == 0 else (kernel[0] + 1) * (8 + y) * (8 + x)
    if geometry.spatial_rank < 3:
        planes = min(planes, (kernel[1] + 1) * (64 + x))
    return 2 * (16 * math.prod(kernel) * line + planes * line) <= ROOM


@pytest.mark.parametrize("operator", OPERATORS)
def test_other_types_groups_and_strides_have_none(operator: str) -> None:
    served = make(32, 32, [16, 16], [3, 3], strides=1, padding="SAME", dilation=1)
    for dtype in ("bfloat16", "float16", "float32"):
        assert has_implicit_gemm(operator, served, dtype, allow_tf32=True)
    assert has_implicit_gemm(operator, served, "bfloat16", allow_tf32=False)
    assert not has_implicit_gemm(operator, served, "float32", allow_tf32=False)
    assert not has_implicit_gemm(operator, served, "float64", allow_tf32=True)
    strided = make(32, 32, [16, 16], [3, 3], strides=(2, 1), padding="SAME", dilation=1)
    assert not has_implicit_gemm(operator, strided, "bfloat16", allow_tf32=True)
    for geometry in drawn_geometries(22, 200):
        if geometry.config.groups > 1:
            assert not has_implicit_gemm(operator, geometry, "bfloat16", allow_tf32=True)

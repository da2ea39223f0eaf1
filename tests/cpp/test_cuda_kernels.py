"""The project's CUDA kernels, compiled for the processor and run over random problems.

tests/cpp/emulated_cuda stands in for CUDA: it runs a block's threads one after the other. Exact results,
no access outside the arrays, no element left unwritten, on any machine with g++.
"""

from __future__ import annotations

import pathlib
import re

import numpy as np
import pytest
from support import native

pytestmark = pytest.mark.cpp

# As many as take some ten seconds.
PROBLEMS = {
    "depthwise": 25,
    "dilated": 8,
    "implicit_gemm": 40,
    "resample": 250,
    "thin_kernels": 20,
    "transpose": 25,
}
# What they are compiled of beside their own file.
SOURCES = {
    "resample": (
        "cpp/cuda/kernels/resample/instances.cc",
        "cpp/cuda/kernels/resample/tiling.cc",
        "cpp/ffi/resample.cc",
    )
}
# Their products on one processor take longer than g++ takes to optimize them.
OPTIMIZED = ("dilated", "implicit_gemm")


@pytest.fixture(
    scope="module",
    params=[
        "depthwise",
        "dilated",
        "implicit_gemm bulk",
        "resample",
        "resample bulk",
        "thin_kernels",
        "thin_kernels bulk",
        "transpose",
    ],
)
def fuzz(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The compiled tests/cpp/NAME_fuzz.cc; "NAME bulk" is a device with bulk copies."""
    name, *bulk = request.param.split()
    # The emulated files come first: what is made of instructions is among them.
    return native.build(
        tmp_path_factory.mktemp(name),
        [f"tests/cpp/{name}_fuzz.cc", *SOURCES.get(name, ())],
        native.CHECKS_ALIGNMENT,
        "-Wno-unknown-pragmas",
        "-Wno-psabi",
        f"-DEMULATED_BULK_COPIES={len(bulk)}",
        level="-O1" if name in OPTIMIZED else "-O0",
        headers=("tests/cpp/emulated_cuda", "cpp"),
    )


@pytest.mark.slow
def test_random_problems(fuzz: pathlib.Path, rng: np.random.Generator) -> None:
    problems = PROBLEMS[fuzz.stem.removesuffix("_fuzz")]
    printed = native.run(fuzz, str(rng.integers(2**32)), str(problems))
    assert f"{problems} problems, 0 failures" in printed.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("fuzz", ["implicit_gemm bulk"], indirect=True)
def test_all_plans_that_fit(fuzz: pathlib.Path, rng: np.random.Generator) -> None:
    """Also those that a problem is not offered, since they are likely slower."""
    problems = 8  # under sanitizers; of each some plans, of which there may be hundreds
    printed = native.run(fuzz, "all", str(rng.integers(2**32)), str(problems))
    assert f"{problems} problems, 0 failures" in printed.splitlines()
    plans = re.search(r"^(\d+) plans$", printed, re.MULTILINE)
    assert plans and int(plans[1]) > 2 * problems, printed


def test_tensor_maps_are_refused_as_by_the_driver(tmp_path: pathlib.Path) -> None:
    native.run(
        native.build(
            tmp_path,
            ["tests/cpp/emulated_tensor_map_test.cc"],
            headers=("tests/cpp/emulated_cuda", "tests/cpp", "cpp"),
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("fuzz", ["thin_kernels bulk"], indirect=True)
def test_problems_beyond_32_bits(fuzz: pathlib.Path) -> None:
    native.run(fuzz, "large")


@pytest.mark.slow
@pytest.mark.parametrize("fuzz", ["resample"], indirect=True)
def test_cuda_would_take_the_launches(fuzz: pathlib.Path, rng: np.random.Generator) -> None:
    native.run(fuzz, "launches", str(rng.integers(2**32)), "6000")

"""Builds and runs the C++ tests of how implicit GEMM kernels are cut, on any machine with g++."""

from __future__ import annotations

import pathlib
import re

import numpy as np
import pytest
from support import native

pytestmark = pytest.mark.cpp

PROBLEMS = 400


@pytest.mark.slow
def test_every_tap_of_a_weight_gradient_meets_every_position_once(
    tmp_path: pathlib.Path, rng: np.random.Generator
) -> None:
    tilings = _tilings("implicit_gemm_tiling_test", tmp_path, rng)
    found = re.fullmatch(r"(\d+) tilings", tilings)
    assert found and int(found[1]) > 3 * PROBLEMS, tilings


@pytest.mark.slow
def test_the_walk_by_warps_stores_every_position_once(
    tmp_path: pathlib.Path, rng: np.random.Generator
) -> None:
    tilings = _tilings("implicit_gemm_walk_test", tmp_path, rng)
    found = re.fullmatch(r"(\d+) tilings, of which (\d+) use slots again", tilings)
    assert found and int(found[1]) > 10 * PROBLEMS, tilings
    assert int(found[2]) > int(found[1]) / 10, tilings


def _tilings(name: str, folder: pathlib.Path, rng: np.random.Generator) -> str:
    """Runs a program over random problems: what it says of the tilings that it has checked."""
    program = native.build(
        folder,
        [f"tests/cpp/{name}.cc"],
        native.CHECKS_ALIGNMENT,
        "-Wno-unknown-pragmas",
        "-Wno-psabi",
        level="-O1",
        headers=("tests/cpp/emulated_cuda", "tests/cpp", "cpp"),
    )
    printed = native.run(program, str(rng.integers(2**32)), str(PROBLEMS))
    *_, problems, tilings = printed.splitlines()
    assert problems == f"{PROBLEMS} problems, 0 failures"
    return tilings

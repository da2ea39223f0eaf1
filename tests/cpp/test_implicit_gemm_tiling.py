"""Builds and runs the C++ test of the implicit GEMM weight gradient's tilings, on any machine with g++."""

from __future__ import annotations

import pathlib
import re

import numpy as np
import pytest
from support import native

pytestmark = pytest.mark.cpp

PROBLEMS = 400


@pytest.mark.slow
def test_every_tap_meets_every_position_once(
    tmp_path: pathlib.Path, rng: np.random.Generator
) -> None:
    program = native.build(
        tmp_path,
        ["tests/cpp/implicit_gemm_tiling_test.cc"],
        native.CHECKS_ALIGNMENT,
        "-Wno-unknown-pragmas",
        level="-O1",
        headers=("tests/cpp/emulated_cuda", "cpp"),
    )
    printed = native.run(program, str(rng.integers(2**32)), str(PROBLEMS))
    *_, problems, tilings = printed.splitlines()
    assert problems == f"{PROBLEMS} problems, 0 failures"
    found = re.fullmatch(r"(\d+) tilings", tilings)
    assert found and int(found[1]) > 3 * PROBLEMS, tilings

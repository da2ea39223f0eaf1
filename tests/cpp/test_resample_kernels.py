"""Builds and runs the C++ test of the CPU's resample under AddressSanitizer and UndefinedBehaviorSanitizer.

It reaches what a test from Python cannot: the instruction sets that the handler would not choose.
"""

from __future__ import annotations

import pathlib

import pytest
from support import native

pytestmark = pytest.mark.cpp

SOURCES = (
    "tests/cpp/resample_sets_test.cc",
    "cpp/ffi/resample.cc",
    "cpp/cpu/kernels/resample/plan.cc",
    "cpp/cpu/kernels/resample/avx2.cc",
    "cpp/cpu/kernels/resample/avx512.cc",
    "cpp/cpu/kernels/resample/sse2.cc",
)


@pytest.mark.slow
def test_native(tmp_path: pathlib.Path) -> None:
    program = native.build(tmp_path, SOURCES, native.CHECKS_ALIGNMENT)
    native.run(program, "0", "150")

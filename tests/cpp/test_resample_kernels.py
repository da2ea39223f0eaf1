"""Builds and runs the C++ tests of resample under AddressSanitizer and UndefinedBehaviorSanitizer.

They reach what a test from Python cannot on this machine: the CUDA kernels without a GPU, and the
instruction sets that the CPU handler would not choose.
"""

from __future__ import annotations

import pathlib

import pytest
from support import native

pytestmark = pytest.mark.cpp

SOURCES = {
    "resample_walk_test": ("cpp/cuda/kernels/resample/tiling.cc",),
    "resample_sets_test": (
        "cpp/cpu/kernels/resample/plan.cc",
        "cpp/cpu/kernels/resample/avx2.cc",
        "cpp/cpu/kernels/resample/avx512.cc",
        "cpp/cpu/kernels/resample/sse2.cc",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_native(name: str, tmp_path: pathlib.Path) -> None:
    sources = [f"tests/cpp/{name}.cc", "cpp/ffi/resample.cc", *SOURCES[name]]
    program = native.build(tmp_path, sources, native.CHECKS_ALIGNMENT)
    native.run(program, "0", "150")

"""Builds and runs the C++ tests of how convolutions use cuDNN, under the sanitizers.

tests/cpp/emulated_cudnn stands in for the headers of CUDA and cuDNN and tests/cpp/fake_cudnn.cc for the
library, so that they run on any machine with g++.
"""

from __future__ import annotations

import pathlib
import subprocess

import pytest
from support import native

pytestmark = pytest.mark.cpp

HEADERS = ("tests/cpp/emulated_cudnn", "tests/cpp", "cpp")
PLANS = (
    "cpp/ffi/conv.cc",
    "cpp/cuda/conv_plan.cc",
    "cpp/cuda/cudnn/plan.cc",
    "cpp/cuda/cudnn/backend_descriptor.cc",
    "cpp/cuda/cudnn/engine_config.cc",
    "cpp/cuda/cudnn/handle.cc",
    "cpp/cuda/cudnn/errata.cc",
)


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """fake_cudnn.cc as a library, not under the sanitizers: a program that is opens it."""
    library = tmp_path_factory.mktemp("fake") / "libcudnn.so.9"
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", f"-Wl,-soname,{library.name}"]
    command += [f"-I{folder}" for folder in HEADERS[:2]]
    command += ["-o", str(library), "tests/cpp/fake_cudnn.cc"]
    subprocess.run(command, cwd=native.ROOT, check=True)
    return library


def test_plans(fake: pathlib.Path, tmp_path: pathlib.Path) -> None:
    sources = ("tests/cpp/cudnn_plan_test.cc", *PLANS)
    program = native.build(tmp_path, sources, "-ldl", headers=HEADERS)
    native.run(program, str(fake))


def test_calls(fake: pathlib.Path, tmp_path: pathlib.Path) -> None:
    sources = (
        "tests/cpp/cuda_conv_call_test.cc",
        "benchmarks/ffi_caller.cc",
        "cpp/cuda/conv_handlers.cc",
        "cpp/cuda/cudnn/late_engines.cc",
        "cpp/cuda/cudnn/scratch.cc",
        "cpp/cuda/cudnn/cache.cc",
        "cpp/cuda/cudnn/search.cc",
        "cpp/cuda/cudnn/workspace_cost.cc",
        "cpp/cuda/kernels/plan.cc",
        "cpp/cuda/kernels/reordered.cc",
        *PLANS,
    )
    program = native.build(tmp_path, sources, "-ldl", "-pthread", headers=HEADERS)
    native.run(program, str(fake))

"""The thin kernels keep everything in registers. Needs nvcc, and no GPU.

They leave the first cache to shared memory, so that a spilled register is a trip to the second. A build with
warnings as errors sees to it for the architectures it compiles for: CI makes one for 90, a release
(scripts/build_wheel.sh) one for all.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess

import pytest

pytestmark = pytest.mark.cpp

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNELS = "cpp/cuda/kernels/thin/plan.cu"


@pytest.fixture(scope="module")
def nvcc() -> str:
    """The compiler. Where the CUDA module must be there, so must be what builds it."""
    places = [os.environ[name] for name in ("CUDAToolkit_ROOT", "CUDA_HOME") if name in os.environ]
    folders = [f"{place}/bin" for place in [*places, "/usr/local/cuda"]]
    found = shutil.which("nvcc") or shutil.which("nvcc", path=os.pathsep.join(folders))
    if found is None:
        end = pytest.fail if os.environ.get("JAX_CONVGRAD_REQUIRE_CUDA") == "1" else pytest.skip
        end("nvcc is not installed")
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["80"])
def test_no_register_is_spilled(nvcc: str, capability: str, tmp_path: pathlib.Path) -> None:
    options = ["-std=c++17", "-O3", "-Icpp", f"-arch=sm_{capability}", "-Xptxas=-v", "-cubin"]
    done = subprocess.run(
        [nvcc, *options, KERNELS, "-o", tmp_path / "kernels.cubin"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[:4000]
    pattern = r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill"
    kernels = re.findall(pattern, done.stdout + done.stderr, re.DOTALL)
    assert len(kernels) > 10, "what ptxas prints has changed"
    spilling = [kernel for kernel in kernels if kernel[1:] != ("0", "0")]
    assert not spilling, "kernel, bytes of stack, bytes spilled"

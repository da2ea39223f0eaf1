"""The kernels for tensor cores keep everything in registers. Needs nvcc, and no GPU.

They leave the first cache to shared memory, so that a spilled register is a trip to the second. A build
with warnings as errors sees to it for the architectures it compiles for: CI makes one for 90,
scripts/build_wheel.sh one for all. JAX_CONVGRAD_SPILL_CAPABILITIES names those that are compiled here; the
workflow "Wheels" compiles for all of a release.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import re
import shutil
import subprocess

import pytest

pytestmark = pytest.mark.cpp

ROOT = pathlib.Path(__file__).resolve().parents[2]
# For all devices, and for Hopper alone.
KERNELS = ("thin/plan.cu", "implicit_gemm/plan.cu")
HOPPER = ("thin/windows_warpgroup.cu", "implicit_gemm/warpgroup/plan.cu")
CAPABILITIES = os.environ.get("JAX_CONVGRAD_SPILL_CAPABILITIES", "80").split()


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
@pytest.mark.parametrize(
    "kernels, capability",
    [*itertools.product(KERNELS, CAPABILITIES), *((kernels, "90a") for kernels in HOPPER)],
)
def test_no_register_is_spilled(
    nvcc: str, kernels: str, capability: str, tmp_path: pathlib.Path
) -> None:
    options = ["-std=c++17", "-O3", "-Icpp", f"-arch=sm_{capability}", "-Xptxas=-v", "-cubin"]
    done = subprocess.run(
        [nvcc, *options, f"cpp/cuda/kernels/{kernels}", "-o", tmp_path / "kernels.cubin"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[:4000]
    pattern = r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill"
    compiled = re.findall(pattern, done.stdout + done.stderr, re.DOTALL)
    assert len(compiled) > 10, "what ptxas prints has changed"
    # For a bulk copy ptxas keeps 8 bytes of stack on 120, and spills nothing.
    spilling = [kernel for kernel in compiled if int(kernel[1]) > 8 or kernel[2] != "0"]
    assert not spilling, "kernel, bytes of stack, bytes spilled"

"""The project's CUDA kernels, compiled for the processor and run over random problems.

tests/cpp/emulated_cuda stands in for CUDA: it runs a block's threads one after the other. Exact results,
no access outside the arrays, no element left unwritten, on any machine with g++.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
PROBLEMS = 100


@pytest.fixture(scope="module", params=["depthwise", "dilated"])
def fuzz(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The compiled tests/cpp/depthwise_fuzz.cc or dilated_fuzz.cc."""
    # Where the CPU module must be there, so must be what builds it.
    end = pytest.fail if os.environ.get("JAX_CONVGRAD_REQUIRE_CPU") == "1" else pytest.skip
    if (compiler := shutil.which("g++")) is None:
        end("g++ compiles the kernels for the processor, and is not installed")
    folder = tmp_path_factory.mktemp(request.param)
    empty = folder / "empty.cc"
    empty.write_text("int main() {}\n")
    command = [compiler, "-std=c++17", "-O1", *SANITIZERS]
    if subprocess.run([*command, empty, "-o", folder / "empty"], capture_output=True).returncode:
        end("without libasan and libubsan a wrong access would not show")
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
    # The emulated files come first: tensor_core.cuh is among them.
    headers = [f"-I{ROOT / 'tests/cpp/emulated_cuda'}", f"-I{ROOT / 'cpp'}"]
    source = ROOT / f"tests/cpp/{request.param}_fuzz.cc"
    program = folder / source.stem
    build = subprocess.run(
        [*command, *warnings, *headers, source, "-o", program], capture_output=True, text=True
    )
    assert build.returncode == 0, build.stderr[-4000:]
    return program


@pytest.mark.slow
def test_random_problems(fuzz: pathlib.Path, rng: np.random.Generator) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    environment["ASAN_OPTIONS"] = "detect_stack_use_after_return=0"
    seed = str(rng.integers(2**32))
    run = subprocess.run(
        [fuzz, seed, str(PROBLEMS)], env=environment, capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, (run.stdout + run.stderr)[-4000:]
    assert run.stdout.splitlines()[-1] == f"{PROBLEMS} problems, 0 failures"

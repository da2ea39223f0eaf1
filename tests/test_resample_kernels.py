"""Builds and runs the C++ tests of resample under AddressSanitizer and UndefinedBehaviorSanitizer.

They reach what a test from Python cannot on this machine: the CUDA kernels without a GPU, and the
instruction sets that the CPU handler would not choose.
"""

from __future__ import annotations

import importlib.util
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = {
    "resample_walk_test": ("cpp/cuda/resample_tiling.cc",),
    "resample_sets_test": (
        "cpp/cpu/resample_plan.cc",
        "cpp/cpu/resample_avx2.cc",
        "cpp/cpu/resample_avx512.cc",
        "cpp/cpu/resample_sse2.cc",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_native(name: str, tmp_path: pathlib.Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None or not (ROOT / "cpp").is_dir():
        pytest.skip("needs g++ and the sources")
    spec = importlib.util.find_spec("jaxlib")
    assert spec is not None and spec.origin is not None
    headers = pathlib.Path(spec.origin).parent / "include"
    sources = [f"tests/cpp/{name}.cc", "cpp/common/resample.cc", *SOURCES[name]]
    # The walk has many instances, which take longer to optimise than to run as they are.
    level = "-O0" if name == "resample_walk_test" else "-O1"
    options = ["-std=c++17", level, "-g", "-Wall", "-Wextra", "-Werror"]
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    includes = ["-Icpp", "-isystem", str(headers)]
    build = subprocess.run(
        [compiler, *options, *sanitizers, *includes, *sources, "-o", str(tmp_path / name)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if "cannot find" in build.stderr and "san" in build.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert build.returncode == 0, build.stderr[:4000]
    run = subprocess.run([str(tmp_path / name), "0", "250"], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]

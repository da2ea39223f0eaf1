"""Builds and runs the C++ test of what happens when something throws, under the sanitizers.

Memory does not run out on demand, so no test from Python reaches this.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ("tests/cpp/failures_test.cc", "cpp/cpu/parallel_for.cc")


def test_what_is_thrown_becomes_an_error(tmp_path: pathlib.Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None or not (ROOT / "cpp").is_dir():
        pytest.skip("needs g++ and the sources")
    spec = importlib.util.find_spec("jaxlib")
    assert spec is not None and spec.origin is not None
    headers = pathlib.Path(spec.origin).parent / "include"
    options = ["-std=c++17", "-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Werror"]
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    includes = ["-Icpp", "-isystem", str(headers)]
    program = str(tmp_path / "failures_test")
    build = subprocess.run(
        [compiler, *options, *sanitizers, *includes, *SOURCES, "-o", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if "cannot find" in build.stderr and "san" in build.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert build.returncode == 0, build.stderr[:4000]
    run = subprocess.run(
        [program],
        # What lies on a stack frame that is gone counts as freed.
        env=os.environ | {"ASAN_OPTIONS": "detect_stack_use_after_return=1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[:4000]

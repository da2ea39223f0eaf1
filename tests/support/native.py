"""The project's C++ tests: compiled by g++ with AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import subprocess
from collections.abc import Sequence

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# AddressSanitizer checks every access through a pointer. If the other sanitizer checked pointers as well,
# that would take half of g++'s time for these files. On a GPU an address that is not aligned is an error:
# programs with kernels for it ask for that check.
SANITIZERS = (
    "-fsanitize=address,undefined",
    "-fno-sanitize=null,pointer-overflow,object-size,alignment",
    "-fno-sanitize-recover=undefined",
)
CHECKS_ALIGNMENT = "-fsanitize=alignment"


def need_compiler() -> str:
    """g++, without which a test is skipped.

    Where the CPU module must be there (JAX_CONVGRAD_REQUIRE_CPU=1), so must be what builds it: then that is a
    failure.
    """
    if (compiler := shutil.which("g++")) is None:
        _end("g++ is not installed")
    return str(compiler)


def _end(reason: str) -> None:
    (pytest.fail if os.environ.get("JAX_CONVGRAD_REQUIRE_CPU") == "1" else pytest.skip)(reason)


def build(
    folder: pathlib.Path,
    sources: Sequence[str],
    *options: str,
    level: str = "-O0",
    headers: Sequence[str] = ("cpp",),
) -> pathlib.Path:
    """The program made of these files of the project, compiled without warnings, named after the first.

    Most have many instances, which g++ takes longer to optimize than they take to run as they are.

    Skipped without g++, see `need_compiler`, and without its sanitizers.
    """
    # Line numbers are all of debug information that a report shows.
    command = [need_compiler(), "-std=c++17", level, "-g1", *SANITIZERS]
    empty = folder / "empty.cc"
    empty.write_text("int main() {}\n")
    if subprocess.run([*command, empty, "-o", folder / "empty"], capture_output=True).returncode:
        _end("without libasan and libubsan a wrong access would not show")
    spec = importlib.util.find_spec("jaxlib")
    assert spec is not None and spec.origin is not None
    includes = [f"-I{header}" for header in headers]
    includes += ["-isystem", str(pathlib.Path(spec.origin).parent / "include")]
    program = folder / pathlib.Path(sources[0]).stem
    warnings = ["-Wall", "-Wextra", "-Wshadow", "-Werror"]
    done = subprocess.run(
        [*command, *warnings, *options, *includes, *sources, "-o", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[:4000]
    return program


def run(program: pathlib.Path, *arguments: str, checks_frames: bool = False) -> str:
    """The output of the program, which must succeed.

    ``checks_frames``: what lies on a stack frame that is gone counts as freed. Not for vectors of 64 bytes,
    which g++ 13.2 then stores at multiples of 32 as if they were aligned.
    """
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    environment["ASAN_OPTIONS"] = f"detect_stack_use_after_return={int(checks_frames)}"
    done = subprocess.run(
        [program, *arguments], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[:4000]
    return done.stdout

"""Builds and runs the C++ test of what happens when something throws, under the sanitizers.

Memory does not run out on demand, so no test from Python reaches this.
"""

from __future__ import annotations

import os
import pathlib
import subprocess

import native

SOURCES = ("tests/cpp/failures_test.cc", "cpp/cpu/parallel_for.cc")


def test_what_is_thrown_becomes_an_error(tmp_path: pathlib.Path) -> None:
    program = native.build(tmp_path, SOURCES, "-pthread")
    run = subprocess.run(
        [program],
        # What lies on a stack frame that is gone counts as freed.
        env=os.environ | {"ASAN_OPTIONS": "detect_stack_use_after_return=1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[:4000]

"""Builds and runs the C++ test of what happens when something throws, under the sanitizers.

Memory does not run out on demand, so no test from Python reaches this.
"""

from __future__ import annotations

import pathlib

import pytest
from support import native

pytestmark = pytest.mark.cpp

SOURCES = (
    "tests/cpp/failures_test.cc",
    "cpp/cpu/runtime/parallel_for.cc",
    "cpp/cpu/runtime/scratch.cc",
)


def test_what_is_thrown_becomes_an_error(tmp_path: pathlib.Path) -> None:
    program = native.build(tmp_path, SOURCES, "-pthread")
    native.run(program, checks_frames=True)

"""Undocumented names of JAX are in compat alone, and those that tests need in tests/support."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRIVATE = re.compile(
    r"""
    jax\._src | jax/_src
    | \bjax\.core\.(?!Tracer\b|ShapedArray\b) | from\ jax\.core\b | from\ jax\ import\ [^\n]*\bcore\b
    | \bjax\.interpreters\.(mlir|xla|partial_eval|pxla)
    | from\ jax\.interpreters\ import\ [^\n]*\b(mlir|xla|partial_eval|pxla)\b
    | \bjaxlib\.\w | from\ jaxlib
    | \b(axis_context|module_context|lowering_parameters|source_info|debug_info|manual_axis_type)\b
    | \._(params|cache_size|to_xla_hlo_sharding|trace)\b
    | \.(mat|vma)\b
    """,
    re.VERBOSE,
)


def found(folder: str, *apart_from: str) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not any(path.is_relative_to(ROOT / folder / other) for other in apart_from)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if PRIVATE.search(line)
    ]


def test_in_the_package():
    assert not found("jax_convgrad", "_src/compat")


def test_in_tests():
    assert not found("tests", "support", "compat")


@pytest.mark.parametrize("folder", ["benchmarks", "docs", "examples"])
def test_elsewhere(folder: str):
    assert (ROOT / folder).is_dir()
    assert not found(folder)


def test_they_are_seen():
    assert found("jax_convgrad/_src/compat")
    assert found("tests/support")

"""The site's matrix says what the marked tests show, no more and no less. See support/matrix.py."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import pathlib
import subprocess
import sys
from types import ModuleType

import pytest
from support import matrix

MARKS = matrix.marks()


@functools.cache
def _module(file: str) -> ModuleType:
    """Files in two folders may have one name, so they are loaded by their paths, as pytest does."""
    spec = importlib.util.spec_from_file_location(
        file.replace("/", "."), matrix.TESTS / f"{file}.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks its own module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_matrix_of_the_marks():
    assert matrix.on_the_page() == matrix.table(MARKS), (
        "run: python tests/support/matrix.py --write"
    )


def test_every_row_is_shown_for_every_layer():
    shown = {(mark.row, layer) for mark in MARKS for layer in mark.layers}
    assert shown == {(row, layer) for row in matrix.ROWS for layer in matrix.LAYERS}


@pytest.mark.parametrize("mark", MARKS, ids=lambda mark: f"{mark.row}: {mark.test}")
def test_a_mark_is_what_its_test_has(mark: matrix.Mark):
    """The test exists by its name, and is not one of those that only some machines run."""
    file, name = mark.test.split(".")
    module = _module(file)
    function = getattr(module, name)
    of_module = getattr(module, "pytestmark", [])
    of_module = of_module if isinstance(of_module, list) else [of_module]
    found = [*of_module, *function.pytestmark]
    own = {m.name for m in found}
    assert "matrix" in own and not own & {"skip", "skipif", "xfail"}
    # What a test needs to run at all, it needs to show something.
    needed = max((m.args[0] for m in found if m.name == "devices"), default=1)
    assert needed <= mark.devices and (mark.devices > 1) == (mark.row in matrix.SHARDED)
    fixtures = set(inspect.signature(function).parameters)
    fixtures |= {name for m in found if m.name == "usefixtures" for name in m.args}
    # These skip where the one or the other is not there.
    assert "needs_cuda_handlers" not in fixtures
    assert "needs_cpu_handlers" not in fixtures or not mark.cuda
    # A test that goes through layers by their names goes through all that it is marked with.
    for parameters in (m for m in function.pytestmark if m.name == "parametrize"):
        if "name" in parameters.args[0]:
            names = {n if isinstance(n, str) else n[0] for n in parameters.args[1]}
            layers = set(matrix.LAYERS)
            if names <= layers or names >= layers:
                assert names & layers == set(mark.layers)


def test_what_is_not_shown_is_not_said():
    """Without a test a cell says no, and a test that needs a CPU says nothing about CUDA."""
    only = matrix.Mark("test_a.test_b", "scan", ("resize",), cuda=False)
    (line,) = [line for line in matrix.table([only]).splitlines() if line.startswith("| `scan`")]
    assert line == "| `scan` | no | no | no | no | yes | no | `test_a.test_b` |"


def test_devices_are_said():
    two = matrix.Mark("test_a.test_b", "pmap", ("resize",), cuda=True, devices=2)
    four = matrix.Mark("test_a.test_c", "pmap", ("resize",), cuda=True, devices=4)
    (line,) = [
        line for line in matrix.table([four, two]).splitlines() if line.startswith("| `pmap`")
    ]
    assert line.startswith("| `pmap` | no | no | no | no | yes | 2 GPUs |")


_SKIPPED = """
import pytest

@pytest.mark.matrix("scan")
def test_a_package_that_is_missing():
    pytest.importorskip("no_module_is_called_so")

@pytest.mark.matrix("pmap", devices=16)
def test_too_few_devices():
    raise AssertionError("runs on too few devices")

def test_no_row():
    pytest.skip("of no row")
"""


def test_a_row_that_is_skipped_is_a_failure(tmp_path: pathlib.Path, subprocess_python: list[str]):
    """With JAX_CONVGRAD_REQUIRE_MATRIX=1, except tests that take more devices than there are."""
    (tmp_path / "test_skipped.py").write_text(_SKIPPED)
    command = [*subprocess_python, "-m", "pytest", "-q", "-rfs", "-p", "conftest", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), "-c", os.devnull, str(tmp_path)],
        env={**os.environ, "JAX_CONVGRAD_REQUIRE_MATRIX": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 2 skipped" in done.stdout, done.stdout + done.stderr
    assert "the matrix's row 'scan' was skipped" in done.stdout
    assert "shown on 16 devices, there are" in done.stdout

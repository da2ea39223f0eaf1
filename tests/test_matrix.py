"""The README's matrix says what the marked tests show, no more and no less. See matrix.py."""

from __future__ import annotations

import importlib
import inspect

import matrix
import pytest

MARKS = matrix.marks()


def test_the_readme_has_the_matrix_of_the_marks():
    assert matrix.in_readme() == matrix.table(MARKS), "run: python tests/matrix.py --write"


def test_every_row_is_shown_for_every_layer():
    shown = {(mark.row, layer) for mark in MARKS for layer in mark.layers}
    assert shown == {(row, layer) for row in matrix.ROWS for layer in matrix.LAYERS}


@pytest.mark.parametrize("mark", MARKS, ids=lambda mark: f"{mark.row}: {mark.test}")
def test_a_mark_is_what_its_test_has(mark: matrix.Mark):
    """The test exists by its name, and is not one of those that only some machines run."""
    file, name = mark.test.split(".")
    function = getattr(importlib.import_module(file), name)
    own = {m.name for m in function.pytestmark}
    assert "matrix" in own and not own & {"skip", "skipif", "xfail"}
    fixtures = set(inspect.signature(function).parameters)
    # These skip where the one or the other is not there.
    assert "needs_cuda_handlers" not in fixtures
    assert "needs_cpu_handlers" not in fixtures or not mark.cuda
    # A test that goes through layers by their names goes through all that it is marked with.
    for parameters in (m for m in function.pytestmark if m.name == "parametrize"):
        if "name" in parameters.args[0]:
            names = {n if isinstance(n, str) else n[0] for n in parameters.args[1]}
            assert names == set(mark.layers) or not names <= set(matrix.LAYERS)


def test_what_is_not_shown_is_not_said():
    """Without a test a cell says no, and a test that needs a CPU says nothing about CUDA."""
    only = matrix.Mark("test_a.test_b", "scan", ("resize",), cuda=False)
    (line,) = [line for line in matrix.table([only]).splitlines() if line.startswith("| `scan`")]
    assert line == "| `scan` | no | no | no | no | yes | no | `test_a.test_b` |"

"""`python -m jax_convgrad explain module:function`."""

from __future__ import annotations

import json
import pathlib
import sys

import pytest

from jax_convgrad import __main__

pytestmark = pytest.mark.usefixtures("uninstalled", "without_x64")

PROGRAM = """
import jax
import jax.numpy as jnp


def step(w, x):
    return jax.grad(lambda w: jnp.sum(jax.lax.conv_transpose(x, w, (2, 2), "SAME") ** 2))(w)


def example():
    return step, jnp.ones((4, 4, 8, 8)), jnp.ones((2, 8, 8, 8))


def wrong():
    return step
"""


@pytest.fixture(autouse=True)
def in_a_folder_with_a_program(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "explained_program.py").write_text(PROGRAM)
    (tmp_path / "broken_program.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("explained_program", None)


def test_the_table(capsys: pytest.CaptureFixture[str]):
    assert __main__.main(["explain", "explained_program:example"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("2 convolutions and resizes on ")
    assert "explained_program.py:7" in text
    assert "conv_wgrad" in text


def test_the_rows_as_json(capsys: pytest.CaptureFixture[str]):
    assert __main__.main(["explain", "explained_program:example", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["operator"] for row in rows] == ["conv_dgrad", "conv_wgrad"]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("explained_program", "expected MODULE:FUNCTION"),
        ("no_such_program:example", "no module 'no_such_program'"),
        ("explained_program:nothing", "has no function 'nothing'"),
        ("explained_program:wrong", "must return the step and its arguments as a tuple"),
    ],
)
def test_slips(program: str, message: str, capsys: pytest.CaptureFixture[str]):
    assert __main__.main(["explain", program]) == 2
    assert message in capsys.readouterr().err


def test_an_import_that_fails_inside_the_module_is_not_hidden():
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        __main__.main(["explain", "broken_program:example"])

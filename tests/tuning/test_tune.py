"""`python -m jax_convgrad tune`, end to end, on two tiny layers."""

from __future__ import annotations

import json
import pathlib

import jax
import jax.numpy as jnp
import pytest

from jax_convgrad import __main__ as command
from jax_convgrad import conv_backward
from jax_convgrad._src.dispatch import decide as decide_module
from jax_convgrad._src.dispatch.devices import Target
from jax_convgrad._src.tuning import measure, report, store
from jax_convgrad._src.tuning.program import problems_of
from jax_convgrad._src.tuning.report import Tuned
from jax_convgrad.bench.case_files import parse_case
from jax_convgrad.bench.problems import problem_of

CASES = [
    {"name": "a", "kind": "conv", "n": 1, "cin": 4, "sp": [6, 6], "cout": 4, "k": 3, "dt": "f32"},
    {"name": "b", "kind": "convt", "n": 1, "cin": 4, "sp": [4, 4], "cout": 4, "k": 2, "s": 2}
    | {"dt": "f32"},
]
X = jnp.ones((1, 2, 5, 5))
PASSES = ("fprop", "dx", "dw")

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="times of a CPU")


@pytest.fixture
def file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    path = tmp_path / "tuning.json"
    monkeypatch.setenv(store.VARIABLE, str(path))
    return path


@pytest.fixture
def cases(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(CASES))
    return str(path)


def test_two_layers(file: pathlib.Path, cases: str, capsys: pytest.CaptureFixture[str]):
    assert command.main(["tune", "--cases", cases]) == 0
    captured = capsys.readouterr()
    assert "6 passes measured" in captured.out and f"6 rows written to {file}" in captured.out
    assert "tune: 6/6" in captured.err
    for entry in CASES:
        for pass_ in PASSES:
            problem = problem_of(parse_case(entry), pass_)
            row, path = store.lookup(problem, "cpu") or pytest.fail("no row")
            assert path == str(file)
            assert set(row.seconds) == set(measure.backends_of(problem, "cpu"))
            assert row.seconds[row.backend] <= measure.TIE * min(row.seconds.values())
            assert decide_module.decide(problem, Target.of("cpu")).backend == row.backend


def test_a_dry_run_writes_nothing(
    file: pathlib.Path, cases: str, capsys: pytest.CaptureFixture[str]
):
    assert command.main(["tune", "--cases", cases, "--only", "^conv a", "--dry-run"]) == 0
    assert "3 passes measured" in capsys.readouterr().out
    assert not file.exists()


def test_no_time_is_no_rows(file: pathlib.Path, cases: str, capsys: pytest.CaptureFixture[str]):
    assert command.main(["tune", "--cases", cases, "--seconds", "0"]) == 0
    assert "6 of 6 passes were not measured" in capsys.readouterr().out
    assert store.read(file).rows == ()


def test_a_model(
    file: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    (tmp_path / "tuned_model.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "def make():\n"
        "    loss = lambda w, x: jnp.sum(jax.lax.conv(x, w, (1, 1), 'SAME') ** 2)\n"
        "    return jax.grad(loss), jnp.ones((2, 2, 3, 3)), jnp.ones((1, 2, 5, 5))\n"
        "def wrong():\n"
        "    return 1\n"
    )
    monkeypatch.chdir(tmp_path)
    assert command.main(["tune", "tuned_model:make"]) == 0
    assert {row.sizes.split()[0] for row in store.read(file).rows} == {"conv_fprop", "conv_wgrad"}
    assert command.main(["tune", "tuned_model:wrong"]) == 2
    assert "must return a tuple" in capsys.readouterr().err
    assert command.main(["tune", "tuned_model:none"]) == 2
    assert command.main(["tune", "no_such_module:make"]) == 2


def test_a_broken_file_is_not_overwritten(
    file: pathlib.Path, cases: str, capsys: pytest.CaptureFixture[str]
):
    file.write_text("{")
    assert command.main(["tune", "--cases", cases]) == 2
    assert str(file) in capsys.readouterr().err and file.read_text() == "{"


def test_off_has_no_file_to_write(monkeypatch: pytest.MonkeyPatch, cases: str):
    monkeypatch.setenv(store.VARIABLE, store.OFF)
    assert command.main(["tune", "--cases", cases]) == 2


@pytest.mark.parametrize("slow", [False, True])
def test_check_fails_where_the_decision_is_slow(
    slow: bool, file: pathlib.Path, cases: str, monkeypatch: pytest.MonkeyPatch
):
    """Another backend is the fastest when it is measured again."""
    calls: list[object] = []

    def times(problem: object, *rest: object) -> tuple[dict[str, float], None]:
        calls.append(problem)
        fast = "xla_rewritten" if slow and len(calls) > 3 else "xla"
        return {"xla": 2e-3, "xla_rewritten": 2e-3} | {fast: 1e-3}, None

    monkeypatch.setattr(measure, "measure", times)
    only = ["--only", "^conv a"]
    assert command.main(["tune", "--cases", cases, "--check", *only]) == int(slow)


def test_a_program_is_decided_once_an_operator_by_a_row_too(
    file: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    f = lambda x, w: jax.lax.conv(x, w, (1, 1), "SAME")  # noqa: E731
    x, w = jnp.ones((1, 2, 5, 5)), jnp.ones((2, 2, 3, 3))
    with store.using(store.Table("no file")):
        (problem,) = problems_of("cpu", f, x, w)
    row = measure.row_of(problem, "cpu", {"xla_rewritten": 1e-3}, None)
    store.write(store.Table(str(file), [row]))
    looked_up = []
    original = store.lookup
    monkeypatch.setattr(store, "lookup", lambda *a: looked_up.append(a) or original(*a))
    from jax_convgrad import conv_fprop

    jax.jit(lambda x, w: conv_fprop(x, w, padding="SAME")).lower(x, w).compile()
    assert len(looked_up) == 1


def test_a_backward_call_is_measured_in_its_parts():
    """Depthwise, which one call computes as well."""
    x, w, dy = jnp.ones((1, 4, 6, 6)), jnp.ones((4, 1, 3, 3)), jnp.ones((1, 4, 4, 4))
    found = problems_of("cpu", lambda *arrays: conv_backward(*arrays, groups=4), x, w, dy)
    assert {problem.operator for problem in found} == {"conv_dgrad", "conv_wgrad"}


def test_a_tie_changes_nothing():
    with store.using(store.Table("no file")):
        (problem,) = problems_of("cpu", lambda x: jax.lax.conv(x, x, (1, 1), "VALID"), X)
    for seconds, backend in ((1.02, "onednn"), (1.2, "xla")):
        times = {"onednn": seconds, "xla": 1.0}
        assert measure.row_of(problem, "cpu", times, None, "onednn").backend == backend


def test_the_table_of_changes():
    times = {"xla": 3e-6, "onednn": 1e-6}
    same, moved = (Tuned("layer", "dx", before, "onednn", times) for before in ("onednn", "xla"))
    text = report.changes([same, moved])
    assert "2 passes measured, 1 changed" in text
    assert text.splitlines()[-1].split() == "layer dx xla -> onednn 3 -> 1".split()

"""benchmarks/gate.py: which results it calls slower, and which it refuses to compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import benchmark_programs

gate = benchmark_programs.load("gate")


def _row(name: str, seconds: float | None, **fields: Any) -> dict[str, Any]:
    row = {"case": {"name": name, "dt": "f32", "n": 8}, "pass": "dx", "form": "ours"}
    return row | {"median_s": seconds, "absent": None, "failure": None} | fields


def _file(path: Path, *rows: dict[str, Any], device: str = "EPYC") -> Path:
    content = {"layout": "NHWC", "device": {"platform": "cpu", "name": device}, "results": rows}
    path.write_text(json.dumps(content))
    return path


def test_names_the_pass_that_is_slower(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = _file(tmp_path / "old.json", _row("a", 1.0), _row("b", 1.0))
    new = _file(tmp_path / "new.json", _row("a", 1.02), _row("b", 1.05))
    assert gate.main([str(old), str(new)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("1.050x  b f32 dx") and "a f32 dx" not in out
    assert "1 of 2 passes slower than 1.03x" in out
    assert gate.main([str(old), str(new), "--slower", "1.06"]) == 0


def test_the_lowest_of_several_runs_counts(tmp_path: Path) -> None:
    old = [_file(tmp_path / f"old{i}.json", _row("a", t)) for i, t in enumerate((1.5, 1.0))]
    new = [_file(tmp_path / f"new{i}.json", _row("a", t)) for i, t in enumerate((1.01, 2.0))]
    assert gate.main(["--old", *map(str, old), "--new", *map(str, new)]) == 0
    assert gate.compare(old, new[1:], "ours").popitem()[1] == 2.0


@pytest.mark.parametrize("missing_in", ["old", "new"])
def test_a_missing_case_is_an_error(
    tmp_path: Path, missing_in: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {"old": [_row("a", 1.0), _row("b", 1.0)], "new": [_row("a", 1.0), _row("b", 1.0)]}
    rows[missing_in].pop()
    old, new = (_file(tmp_path / f"{name}.json", *rows[name]) for name in ("old", "new"))
    assert gate.main([str(old), str(new)]) == 2
    assert f"the {missing_in} side has no b f32 dx" in capsys.readouterr().err


def test_a_failure_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = _file(tmp_path / "old.json", _row("a", 1.0))
    new = _file(tmp_path / "new.json", _row("a", None, failure="XlaRuntimeError"))
    assert gate.main([str(old), str(new)]) == 2
    assert "XlaRuntimeError" in capsys.readouterr().err


def test_another_device_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = _file(tmp_path / "old.json", _row("a", 1.0))
    new = _file(tmp_path / "new.json", _row("a", 1.0), device="Xeon")
    assert gate.main([str(old), str(new)]) == 2
    assert "Xeon" in capsys.readouterr().err


def test_former_names_of_forms_are_read(tmp_path: Path) -> None:
    old = _file(tmp_path / "old.json", _row("a", 1.0, form="swap"))
    new = _file(tmp_path / "new.json", _row("a", 1.0, form="xla_rewritten"))
    assert gate.main([str(old), str(new), "--form", "xla_rewritten"]) == 0


@pytest.mark.parametrize("path", sorted(benchmark_programs.FOLDER.glob("*/bench.json")), ids=str)
def test_committed_results_are_not_slower_than_themselves(path: Path) -> None:
    assert gate.main([str(path), str(path)]) == 0

"""benchmarks/fuzz_speed.py: layers that come again, a second look before a line is printed, and its file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from support import benchmark_programs

import jax_convgrad
from jax_convgrad._src.timing.method import Method

fuzz = benchmark_programs.load("fuzz_speed")


def test_a_layer_is_drawn_again_alone():
    layers = [fuzz.draw(3, index, ["float32", "float16"]) for index in range(12)]
    assert layers[7] == fuzz.draw(3, 7, ["float32", "float16"])
    assert len({str(layer) for layer in layers}) == 12
    assert {layer.dtype for layer in layers} == {"float32", "float16"}
    for layer in layers:
        assert max(math.prod(shape) for shape in (layer.x, layer.w, layer.y)) <= fuzz.ELEMENTS


@pytest.mark.parametrize(
    ("again", "expected"),
    [({"own": 2.0, "install": 1.0}, {"own": 2.0}), ({"own": 1.2, "install": 9.0}, {})],
)
def test_a_suspect_is_measured_longer_before_it_is_printed(
    again: dict[str, float], expected: dict[str, float]
):
    """What is slow in one of the two rounds alone is noise."""
    asked = []

    def measure(layer: Any, method: Method, passes: tuple[str, ...] = fuzz.PASSES) -> Any:
        asked.append((method, passes))
        if method is fuzz.LONG:
            return {"dx": {"lax": 1.0, **again}}
        slow = {"lax": 1.0, "own": 1.5, "install": 1.0}
        return {"forward": dict.fromkeys(slow, 1.0), "dx": slow, "dw": dict.fromkeys(slow, 1.0)}

    layer = fuzz.draw(0, 0, ["float32"])
    rows = list(fuzz.rows_of(layer, 1.3, measure))
    assert asked == [(fuzz.QUICK, fuzz.PASSES), (fuzz.LONG, ("dx",))]
    assert [row.get("slower") for row in rows] == [None, expected, None]
    if expected:
        said = fuzz.line(rows[1], layer, "repeat")
        assert said.startswith("own 2.00x  dx float32") and said.endswith("# repeat")


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a benchmark of the CPU")
def test_install_s_program_has_calls_after_it_is_off(needs_cpu_handlers: None):
    keywords = {
        "window_strides": (1, 1),
        "padding": ((1, 1), (1, 1)),
        "dimension_numbers": jax.lax.conv_dimension_numbers(
            (1, 8, 8, 16), (3, 3, 16, 16), ("NHWC", "HWIO", "NHWC")
        ),
    }
    layer = fuzz.Layer("float32", (1, 8, 8, 16), (3, 3, 16, 16), keywords)
    once = Method(rounds=1, min_rounds=1, sample_seconds=1e-4, pause_seconds=0.0)
    found = fuzz.survey(layer, once)
    assert found.keys() == set(fuzz.PASSES)
    assert all(times.keys() == {"lax", "own", "install"} for times in found.values())

    run = fuzz.Kept(lambda x, w: layer.by(jax.lax.conv_general_dilated)(x, w))
    arrays = [jnp.ones(shape, layer.dtype) for shape in (layer.x, layer.w)]
    with jax_convgrad.install():
        first = run(*arrays)
    assert not jax_convgrad.installed()
    assert "jax_convgrad_conv_fprop" in run.programs[2].as_text()
    assert (run(*arrays) == first).all()


@pytest.mark.slow
def test_writes_a_row_for_each_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    # The processes that measure import the program too.
    monkeypatch.syspath_prepend(str(benchmark_programs.FOLDER))
    out = tmp_path / "out.json"
    assert fuzz.main(["--layers", "1", "--seed", "1", "--json", str(out), "--slower", "1e9"]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [row["pass"] for row in rows] == list(fuzz.PASSES)
    assert all(row["lax"] > 0 and row["own"] > 0 and row["install"] > 0 for row in rows)
    assert "1 layers, 3 passes, 0 slower than" in capsys.readouterr().out

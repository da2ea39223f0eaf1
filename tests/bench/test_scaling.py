"""The scaling benchmark: its network, its arithmetic, its command line and its report."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from support.meshes import need_devices

from jax_convgrad.__main__ import main
from jax_convgrad._src.timing.method import Method
from jax_convgrad.bench import provenance, scaling
from jax_convgrad.bench.scaling import Result, Sizes
from jax_convgrad.bench.scaling_report import Report

TINY = Sizes(width=4, blocks=1, patch=6, batch=2)
QUICK = Method(rounds=3, sample_seconds=0.0, pause_seconds=0.0)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A small network on four devices, and float32 that is float32 on a GPU too."""
    monkeypatch.setattr(Sizes, "usual", classmethod(lambda cls, platform: TINY))
    need_devices(4)
    with jax.default_matmul_precision("highest"):
        yield


@pytest.mark.parametrize("form", ["ours", "lax"])
def test_the_network_is_the_example_s(
    form: str, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    import train_superres
    import training

    example = train_superres.make_model(training.LAYERS[form], "plain", "conv_transpose", 2)
    params = train_superres.init_params(rng, "plain", "conv_transpose", 2, 5)
    made = scaling.init_params(Sizes(width=5, blocks=2, patch=6, batch=1), rng)
    assert {name: value.shape for name, value in made.items()} == {
        name: value.shape for name, value in params.items()
    }
    wide = {name: rng.standard_normal(value.shape) for name, value in made.items()}
    low = rng.random((2, 6, 6, 3))
    found = scaling.make_model(form, 2)(wide, low)
    np.testing.assert_allclose(found, example(wide, low), rtol=1e-12)


def test_what_is_run_for_each_kind() -> None:
    assert scaling.programs(("weak", "strong"), (1, 2, 4), 3) == {
        "weak": [(1, 3), (2, 6), (4, 12)],
        "strong": [(1, 12), (2, 12), (4, 12)],
    }
    assert scaling.programs(("strong",), (1, 2), 5) == {"strong": [(1, 10), (2, 10)]}


def test_efficiencies_are_their_definitions() -> None:
    programs = scaling.programs(("weak", "strong"), (1, 4), 2)

    def result(devices: int, images: int, form: str, seconds: float) -> Result:
        return Result(devices, images, form, samples=[9 * seconds, seconds, seconds])

    found = Report(
        programs,
        [
            result(1, 2, "ours", 1.0),
            result(4, 8, "ours", 1.25),
            result(1, 8, "ours", 4.0),
            result(1, 2, "lax", 3.0),
            result(4, 8, "lax", 1.0),
            Result(1, 8, "lax", failure="RESOURCE_EXHAUSTED"),
        ],
        ["ours", "lax"],
        TINY,
    )
    assert found.efficiency("weak", 4, "ours") == pytest.approx(1.0 / 1.25)
    assert found.efficiency("strong", 4, "ours") == pytest.approx(4.0 / (4 * 1.25))
    assert found.efficiency("weak", 4, "lax") == pytest.approx(3.0)
    assert found.efficiency("strong", 4, "lax") is None
    assert found.efficiency("strong", 1, "ours") == 1.0
    summary = found.summary()
    assert summary["slower_than_lax"] == ["4 devices, 8 images: 1.25"]
    assert summary["failed"] == ["lax on 1, 8 images: RESOURCE_EXHAUSTED"]
    lines = list(found.lines())
    assert lines[0] == "weak scaling, efficiency of jax_convgrad over that of lax: 0.27 on 4"
    assert lines[1].startswith(
        "jax_convgrad slower than lax by more than 5%: 1 programs (4 devices"
    )
    head, body = found.rows()
    efficiencies = [row[head.index("jax_convgrad efficiency")] for row in body]
    assert efficiencies == ["100%", "80%", "100%", "80%"]
    assert [row[head.index("lax")] for row in body][2] == "failed"
    assert [row[head.index("vs lax")] for row in body] == ["3.00x", "0.800x", "-", "0.800x"]


@pytest.mark.parametrize("form", ["ours", "lax"])
def test_the_gradient_does_not_depend_on_the_devices(form: str, tiny: None) -> None:
    """In float32 a sum in another order differs by some of its last bits."""
    gradients = []
    for devices in (1, 4):
        result = Result(devices, 8, form)
        gradient, sample = scaling._prepare(result, TINY, QUICK)
        gradients.append(gradient)
        assert result.steps >= 1 and sample() > 0
    assert np.linalg.norm(gradients[0]) > 0
    apart = np.linalg.norm(gradients[1] - gradients[0]) / np.linalg.norm(gradients[0])
    assert apart < 1e-5


def test_bench_devices_writes_table_json_and_markdown(
    tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, page = tmp_path / "out" / "s.json", tmp_path / "out" / "s.md"
    arguments = ["bench", "--devices", "1,2,4", "--rounds", "3"]
    assert main([*arguments, "--json", str(out), "--markdown", str(page)]) == 0
    text = capsys.readouterr().out
    assert "1 blocks of 4 channels" in text and "images of 6x6 to 12x12" in text
    assert re.search(r"^weak scaling$", text, re.MULTILINE)
    assert re.search(r"^strong scaling$", text, re.MULTILINE)
    if jax.default_backend() == "cpu":
        assert "these devices are virtual ones" in text and "mean nothing" in page.read_text()
    head = "| scaling | devices | images | jax_convgrad | lax | jax_convgrad efficiency |"
    assert head in page.read_text()

    data = json.loads(out.read_text())
    assert data["schema"] == provenance.SCHEMA
    assert data["device"]["platform"] == jax.default_backend()
    assert data["sizes"] == {"width": 4, "blocks": 1, "patch": 6, "batch": 2}
    wanted = [(1, 2), (2, 4), (4, 8), (1, 8), (2, 8)]
    assert [(r["devices"], r["images"], r["form"]) for r in data["results"]] == [
        (*pair, form) for pair in wanted for form in ("ours", "lax")
    ]
    for result in data["results"]:
        assert result["failure"] is None and len(result["samples_s"]) == 3
        low, high = result["quartiles_s"]
        assert 0 < low <= result["median_s"] <= high
        assert (result["gradient_difference"] is None) == (result["form"] == "lax")
        assert result["gradient_difference"] is None or result["gradient_difference"] < 1e-4
    efficiency = data["summary"]["efficiency"]
    times = {(r["devices"], r["images"], r["form"]): r["median_s"] for r in data["results"]}
    assert efficiency["weak"]["lax"]["2"] == times[1, 2, "lax"] / times[2, 4, "lax"]
    assert efficiency["strong"]["ours"]["4"] == times[1, 8, "ours"] / times[4, 8, "ours"] / 4


def test_one_form_and_one_kind(tiny: None, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--forms", "ours", "--scaling", "weak", "--batch", "3", "--rounds", "1"]
    assert main(["bench", "--devices", "2,1", *arguments]) == 0
    text = capsys.readouterr().out
    assert "strong scaling\n" not in text and "vs lax" not in text
    assert re.search(r"^  2 +6 ", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--devices", "2"], "--devices takes numbers of devices such as 1,2,4, and needs 1"),
        (["--devices", "1,two"], "got '1,two'"),
        (["--devices", ""], "got ''"),
        (["--devices", "0,1"], "got '0,1'"),
        (["--devices", "1,9999"], "--devices 1,9999: there are"),
        (["--devices", "1", "--scaling", "both"], "--scaling takes names from weak, strong"),
        (["--devices", "1", "--forms", "torch"], "--forms takes names from ours, lax"),
        (["--devices", "1", "--only", "a", "--plot", "b"], "leave out --only and --plot"),
        (["--devices", "1", "--layout", "NCHW"], "leave out --layout"),
        (["--batch", "4"], "--batch works only with --devices"),
        (["--scaling", "weak"], "--scaling works only with --devices"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bench_refuses_what_makes_no_sense(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_a_batch_that_does_not_divide(tiny: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--devices", "1,2,3", "--batch", "1"]) == 2
    assert "3 images of strong scaling do not divide among 2" in capsys.readouterr().err


def test_a_form_that_breaks_is_reported_and_the_rest_goes_on(
    tiny: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*args: Any, **more: Any) -> Any:
        raise RuntimeError("no such engine")

    monkeypatch.setitem(scaling.FORMS, "ours", (broken, broken))
    assert main(["bench", "--devices", "1", "--rounds", "1"]) == 1
    text = capsys.readouterr().out
    assert "failed: jax_convgrad on 1, 2 images: RuntimeError: no such engine" in text
    assert re.search(r"^  1 +2 +failed +\d", text, re.MULTILINE)


def test_an_interrupted_run_leaves_what_it_found(
    tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    right, done = scaling._prepare, []

    def prepare(result: Result, *more: Any) -> Any:
        gradient, sample = right(result, *more)

        def interrupted() -> float:
            done.append(result.form)
            if len(done) == 8:
                os.kill(os.getpid(), signal.SIGTERM)
            return sample()

        return gradient, interrupted

    monkeypatch.setattr(scaling, "_prepare", prepare)
    path, previous = tmp_path / "s.json", signal.getsignal(signal.SIGTERM)
    try:
        assert main(["bench", "--devices", "1", "--rounds", "5", "--json", str(path)]) == 130
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert "interrupted" in capsys.readouterr().err
    found = json.loads(path.read_text())["results"]
    assert sum(len(result["samples_s"]) for result in found) == 7

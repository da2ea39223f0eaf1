"""benchmarks/thin_coverage.py: the thin kernels' plans are asked for what the handlers are called with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import benchmark_programs, native

coverage = benchmark_programs.load("thin_coverage")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    native.need_compiler()
    return coverage.build(tmp_path_factory.mktemp("program"))


LAYER = {"name": "t", "kind": "conv", "n": 2, "cin": 3, "sp": [20, 16], "cout": 8, "k": 3}


def rows(program: Path, folder: Path, *layers: dict[str, Any]) -> list[Any]:
    path = folder / "cases.json"
    path.write_text(json.dumps([{**LAYER, "dt": "bf16", **layer} for layer in layers]))
    return coverage.rows(path, "", program)


@pytest.mark.cpp
def test_every_pass_has_its_plans_or_reasons(program: Path, tmp_path: Path) -> None:
    found = rows(
        program,
        tmp_path,
        {"p": 1, "s": 2},
        {"cin": 8, "cout": 3, "p": 1},
        {"sp": [20, 17], "cout": 44},
        {"kind": "convt", "cin": 32, "cout": 24, "k": 2, "s": 2},
        {"cin": 32, "cout": 32},
        {"dt": "f32"},
        {"cin": 8, "g": 8},
    )
    assert [(row.pass_, row.plans or row.reasons) for row in found] == [
        ("fprop", ("image_warpgroup",)),
        ("dx", ("few_outputs",)),
        ("dw", ("image_wgrad",)),
        ("fprop", ("few_outputs", "image_warpgroup", "image_warpgroup_512")),
        ("dx", ("image_dgrad_warpgroup",)),
        ("dw", ("few_outputs_wgrad", "image_wgrad")),
        ("fprop", ("image_warpgroup",)),
        ("dx", "few outputs: the other channels are no multiple of 8"),
        ("dw", ("image_wgrad",)),
        (
            "fprop",
            tuple(f"windows_warpgroup_{t}" for t in ("128x128", "128x192", "128x256", "192x192")),
        ),
        ("dx", ("windows_128x64", "windows_128x128")),
        ("dw", ("windows_wgrad_warpgroup_128x128", "windows_wgrad_warpgroup_128x256")),
        *[(pass_, coverage.NOT_THIN) for pass_ in ("fprop", "dx", "dw")],
        ("fprop", ("image", "image_512")),
        ("dx", ("few_outputs", "image_dgrad", "image_dgrad_512")),
        ("dw", ("image_wgrad", "few_outputs_wgrad")),
    ]
    assert "15 are thin, 14 of them are served" in coverage.summary(found)


def test_a_problem_is_the_one_that_the_handler_computes() -> None:
    """Strides and dilation without their common factor; what a transposed layer's output is, is x."""
    layer = coverage.measured.Layer.parse(
        {**LAYER, "dt": "f16", "kind": "convt", "k": 2, "s": 4, "d": 2, "p": [1, 2], "op": [1, 0]}
    )
    problem = layer.problem("fprop")
    line = coverage.line(problem, coverage.computed(problem))
    kind, type_, batch, cin, cout, *axes, _ = map(int, line.split())
    assert (kind, type_, batch, cin, cout) == (1, 0, 2, 8, 3)
    assert axes[3:6] == [1, 2, 2] and axes[6:9] == [1, 20, 16]
    assert axes[9:12] == [1, 2, 2] and axes[15:18] == [1, 1, 1]

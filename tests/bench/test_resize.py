"""The benchmark's resize cases: case files, every form against float64, what is timed, the roofline."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from support import resize_oracles as oracles

from jax_convgrad.__main__ import main
from jax_convgrad._src.timing.method import Method
from jax_convgrad.bench import float64, resize_float64, roofline, timing
from jax_convgrad.bench.case_files import parse_case, published
from jax_convgrad.bench.cases import CaseError
from jax_convgrad.bench.forms import FORMS, PASSES, Inputs
from jax_convgrad.bench.forms.weights import WeightsOrder


def entry(**changes: Any) -> dict[str, Any]:
    plain = {"name": "t", "kind": "resize", "n": 2, "c": 3, "sp": [5, 6], "out": [10, 9]}
    return {**plain, "method": "linear", "ac": False, "aa": False, "dt": "f32", **changes}


SMALL = {
    "linear": entry(),
    "linear-corners": entry(ac=True),
    "linear-aa": entry(sp=[12, 9], out=[5, 4], aa=True),
    "linear-1d": entry(sp=[7], out=[14]),
    "linear-3d": entry(sp=[3, 4, 5], out=[6, 4, 9]),
    "nearest": entry(method="nearest", out=[10, 12]),
    "nearest-odd": entry(method="nearest", sp=[5, 8], out=[7, 3]),
    "nearest-1d": entry(method="nearest", sp=[4], out=[12]),
    "nearest-3d": entry(method="nearest", sp=[2, 3, 4], out=[4, 6, 4]),
    "cubic": entry(method="cubic"),
    "cubic-corners": entry(method="cubic", ac=True),
    "lanczos": entry(method="lanczos3", sp=[12, 9], out=[5, 4], aa=True),
    "float64": entry(dt="f64"),
}
small = pytest.mark.parametrize("name", list(SMALL))


def test_published_resizes() -> None:
    for which in ("cpu", "gpu"):
        cases = [case for case in published(which) if case.kind == "resize"]
        assert {case.ndim for case in cases} == {1, 2, 3}
        assert {case.method for case in cases} == {"nearest", "linear", "cubic", "lanczos3"}
        assert len(cases) == 16
        for case in cases:
            again = parse_case(json.loads(json.dumps(case.to_json())))
            assert again.label == case.label and again.y_shape == case.y_shape


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        ({"name": "t", "kind": "resize"}, "missing n, c, sp, out, method, ac, aa, dt"),
        (entry(k=3), "unknown k"),
        (entry(name=3), "name must be a string"),
        (entry(dt="int8"), "dt must be one of"),
        (entry(method="area"), "method must be one of nearest, linear, cubic, lanczos3"),
        (entry(aa=1), "aa must be true or false, got 1"),
        (entry(ac=True, aa=True), "ac works only with"),
        (entry(ac=True, sp=[1, 4]), "ac needs sizes of at least 2"),
        (entry(sp=[4]), "same length"),
        (entry(out=[]), "out must list 1, 2 or 3"),
        (entry(out=[0, 3]), "out must be a whole number of at least 1, got 0"),
        (entry(n=True), "n must be a whole number"),
    ],
)
def test_a_broken_case_says_what_is_wrong(broken: Any, text: str) -> None:
    with pytest.raises(CaseError, match=text):
        parse_case(broken)


@small
def test_float64_is_the_definition(name: str) -> None:
    case = parse_case(SMALL[name])
    for n, m in zip(case.spatial, case.out_spatial, strict=True):
        expected, _ = oracles.matrix(
            n,
            m,
            case.method,
            antialias=case.antialias,
            mode="align_corners" if case.align_corners else "half_pixel",
            a=-0.75,
            exclude_outside=case.antialias,
        )
        got = resize_float64.matrix(n, m, case.method, case.align_corners, case.antialias)
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-13)


# jax.image computes the indices of nearest-odd in float32, some of them wrongly: see resize/test_bands.py.
FORMS_AND_NAMES = [
    pytest.param(form, name, marks=[pytest.mark.pytorch] if form == "torch" else [])
    for form in ("ours", "lax", "torch")
    for name in SMALL
    if (form, name) != ("lax", "nearest-odd")
]


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize(("form", "name"), FORMS_AND_NAMES)
def test_every_form_computes_the_same(
    form: str, layout: str, name: str, rng: np.random.Generator
) -> None:
    case = parse_case(SMALL[name])
    if FORMS[form].not_applicable(case):
        assert form == "torch" and "lanczos" in name and jax.default_backend() != "cpu"
        return
    inputs = Inputs.random(case, rng)
    truth = float64.passes(case, inputs.x, inputs.w, inputs.dy)
    tolerance = 1e-12 if case.dtype == "f64" else 2e-6
    for pass_, key in (("fprop", "y"), ("dx", "dx")):
        for runner in FORMS[form].runners(case, pass_, layout):
            out = runner.call(runner.load(inputs))
            runner.wait(out)
            (found,) = runner.fetch(out).values()
            scale = np.abs(truth[key]).max()
            np.testing.assert_allclose(found, truth[key], rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("form", ["ours", "lax"])
def test_only_the_gradient_is_in_its_program(form: str) -> None:
    case = parse_case(entry())
    function = FORMS[form].function(case, "dx", "NHWC", WeightsOrder.make(case, "NHWC"))
    shapes = (case.x_shape, case.w_shape, case.y_shape)
    arguments = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    text = jax.jit(function).lower(*arguments).as_text()
    # jit drops arguments that nothing reads: only dy is left.
    signature = re.search(r"func public @main\((.*?)\) ->", text)[1]
    assert re.findall(r"%arg\d+: tensor<(.*?)>", signature) == ["2x10x9x3xf32"]
    assert jax.eval_shape(function, *arguments)[0].shape == case.x_shape


def test_passes_and_forms_that_a_resize_has_not() -> None:
    case = parse_case(entry(sp=[4, 4], out=[8, 8]))
    method = Method(rounds=3, sample_seconds=0.0, pause_seconds=0.0)
    told: list[str] = []
    chosen = [FORMS[name] for name in ("ours", "lax", "xla_rewritten")]
    results = timing.run([case], chosen, PASSES, "NHWC", method, told.append)
    assert told == ["resize t f32 forward", "resize t f32 input gradient"]
    assert [result.absent for result in results] == [None, None, "a resize has no such form"] * 2
    assert all(result.error < 1e-6 for result in results if not result.absent)
    assert "PyTorch has no cubic" in FORMS["torch"].not_applicable(
        parse_case(entry(method="cubic", sp=[4], out=[8]))
    )


def test_the_roofline_counts_what_is_read_and_written() -> None:
    case = parse_case(entry(n=1, c=1, sp=[4], out=[8], dt="bf16"))
    assert roofline.least_bytes(case, "fprop") == roofline.least_bytes(case, "dx") == 2 * (4 + 8)
    down = parse_case(entry(n=1, c=1, sp=[9], out=[3], method="nearest"))
    # Three of nine elements are read; the gradient is written whole.
    assert roofline.least_bytes(down, "fprop") == 4 * (3 + 3)
    assert roofline.least_bytes(down, "dx") == 4 * (3 + 9)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cases.json"
    path.write_text(json.dumps([entry()]))
    arguments = ["--cases", str(path), "--rounds", "3", "--forms", "ours,lax"]
    assert main(["bench", *arguments, "--json", str(tmp_path / "out.json")]) == 0
    text = capsys.readouterr().out
    assert "resize t f32 (2x5x6, 3 to 10x9, linear)" in text
    data = json.loads((tmp_path / "out.json").read_text())
    assert {(r["pass"], r["form"]) for r in data["results"]} == {
        (pass_, form) for pass_ in ("fprop", "dx") for form in ("ours", "lax")
    }

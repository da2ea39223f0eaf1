"""The benchmark: case files, every form against float64, what is inside a timed function, reports.

How fast anything is, is the business of the benchmark's report; nothing here asserts a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import json
import math
import os
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import pytest
from support import torch_oracles
from support.comparisons import may_transform
from support.rounding import may_use_tf32

import jax_convgrad
from jax_convgrad.__main__ import main
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.runtime import registry
from jax_convgrad._src.timing import compare, device
from jax_convgrad._src.timing.method import Method
from jax_convgrad._src.timing.runner import Gpu, Runner, chained
from jax_convgrad.bench import chart, float64, provenance, report, roofline, summary, timing
from jax_convgrad.bench.case_files import PUBLISHED, load_cases, parse_case, published
from jax_convgrad.bench.cases import Case, CaseError, dimension_numbers
from jax_convgrad.bench.cli import DEFAULT_PASSES
from jax_convgrad.bench.forms import FORMS, PASSES, RESULTS, Inputs, present_name
from jax_convgrad.bench.forms.jax_form import JaxForm, dilated_padding
from jax_convgrad.bench.forms.lax import LaxForm
from jax_convgrad.bench.forms.weights import WeightsOrder
from jax_convgrad.bench.forms.xla_rewritten import XlaRewrittenForm

FORM_NAMES = [
    pytest.param(name, marks=[pytest.mark.pytorch] if name == "torch" else []) for name in FORMS
]


def entry(**changes: Any) -> dict[str, Any]:
    """A case file's entry for a small layer."""
    plain = {"name": "t", "kind": "conv", "n": 2, "cin": 4, "sp": [7, 6], "cout": 6, "k": 3}
    return {**plain, "dt": "f32", **changes}


SMALL = {
    "conv-1d": entry(sp=[9]),
    "conv-1d-dilated": entry(sp=[11], k=2, p=2, d=4),
    "conv-2d-stride2": entry(s=2, p=1),
    "conv-2d-unread-row": entry(sp=[8, 7], s=3),
    "conv-2d-groups": entry(p=1, g=2),
    "conv-2d-depthwise": entry(p=1, cout=4, g=4),
    "conv-2d-per-axis": entry(k=[3, 2], s=[1, 2], p=[2, 0], d=[2, 1]),
    "conv-3d": entry(sp=[4, 5, 6], p=1),
    "conv-3d-groups": entry(sp=[4, 5, 6], p=1, g=2),
    "convt-1d": entry(kind="convt", sp=[5], k=4, s=2, p=1),
    "convt-2d": entry(kind="convt", k=4, s=2, p=1),
    "convt-2d-output-padding": entry(kind="convt", k=3, s=2, p=1, op=1),
    "convt-2d-kernel-is-stride": entry(kind="convt", k=2, s=2),
    "convt-2d-gaps": entry(kind="convt", k=2, s=3, op=2),
    "convt-2d-dilated": entry(kind="convt", k=3, s=2, p=2, op=1, d=2),
    "convt-2d-common-factor": entry(kind="convt", k=[3, 2], s=[4, 2], p=[1, 0], d=[6, 1], g=2),
    "convt-2d-groups": entry(kind="convt", k=4, s=2, p=1, g=2),
    "convt-2d-depthwise": entry(kind="convt", k=4, s=2, p=1, cout=4, g=4),
    "convt-3d": entry(kind="convt", sp=[3, 4, 2], k=2, s=2),
    "convt-3d-groups-output-padding": entry(kind="convt", sp=[3, 4, 2], k=3, s=2, p=1, op=1, g=2),
}
SMALL_CASES = [pytest.param(parse_case(value), id=key) for key, value in SMALL.items()]


# --- Case files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["cpu", "gpu"])
def test_published_layers_parse_and_differ(which: str) -> None:
    cases = published(which)
    assert len(cases) >= 10
    assert len({case.label for case in cases}) == len(cases)
    assert {case.kind for case in cases} == {"conv", "convt", "resize"}
    assert {case.ndim for case in cases} == {1, 2, 3}


def test_every_published_layer_is_in_a_set() -> None:
    assert {case.label for case in load_cases(PUBLISHED)} == {
        case.label for which in ("cpu", "gpu") for case in published(which)
    }


def test_a_case_survives_the_way_through_json() -> None:
    for case in published("all"):
        again = parse_case(json.loads(json.dumps(case.to_json())))
        assert again.label == case.label
        assert (again.x_shape, again.w_shape, again.y_shape) == (
            case.x_shape,
            case.w_shape,
            case.y_shape,
        )


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (entry(kind="pool"), "kind must be conv, convt or resize, got 'pool'"),
        ({"name": "t", "kind": "conv"}, "missing n, cin, sp, cout, k, dt"),
        (entry(pad=1), "unknown pad"),
        (entry(dt="int8"), "dt must be one of f32, bf16, f16, f64, got 'int8'"),
        (entry(sp=[]), "sp must list 1, 2 or 3 spatial sizes"),
        (entry(sp=[2, 2, 2, 2]), "sp must list 1, 2 or 3 spatial sizes"),
        (entry(k=[3]), r"k must have one entry per spatial axis \(2\)"),
        (entry(k=0), "k must be a whole number of at least 1, got 0"),
        (entry(s=1.5), "s must be a whole number of at least 1, got 1.5"),
        (entry(kind="convt", p=-1), "p must be a whole number of at least 0, got -1"),
        (entry(p=-9), "p must be a whole number of at least -[0-9]+, got -9"),
        (entry(n=True), "n must be a whole number of at least 1, got True"),
        (entry(g=4), "g = 4 does not divide cin = 4 and cout = 6"),
        (entry(k=9), "the output would be empty"),
        (entry(op=1), r"op \(output padding\) belongs to convt"),
        (entry(kind="convt", s=2, op=2), "op must be below"),
        (7, "a case is an object with named sizes, got 7"),
    ],
)
def test_a_broken_case_says_what_is_wrong(broken: Any, text: str) -> None:
    with pytest.raises(CaseError, match=text):
        parse_case(broken)


def test_a_broken_file_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="cannot read the case file"):
        load_cases(tmp_path / "none.json")
    path = tmp_path / "cases.json"
    path.write_text("[")
    with pytest.raises(CaseError, match="is not JSON"):
        load_cases(path)
    path.write_text("{}")
    with pytest.raises(CaseError, match="must hold a list"):
        load_cases(path)


# --- Numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", SMALL_CASES)
def test_float64_reference_equals_lax(case: Case, rng: np.random.Generator) -> None:
    """Two ways that share nothing: NumPy tap by tap, and lax in float64 on the definition."""
    x, w, dy = (rng.standard_normal(s) for s in (case.x_shape, case.w_shape, case.y_shape))
    dilated = case.stride if case.transposed else (1,) * case.ndim

    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x,
            w,
            (1,) * case.ndim if case.transposed else case.stride,
            dilated_padding(case) if case.transposed else [(p, p) for p in case.padding],
            lhs_dilation=dilated,
            rhs_dilation=case.dilation,
            dimension_numbers=dimension_numbers(case.ndim, "NHWC"),
            feature_group_count=case.groups,
        )

    def penalty(x: jax.Array, w: jax.Array) -> jax.Array:
        dx = jax.grad(lambda x: 0.5 * jax.numpy.sum((layer(x, w) - dy) ** 2))(x)
        return 0.5 * jax.numpy.sum(dx**2)

    y, pull_back = jax.vjp(layer, x, w)
    dx, dw = pull_back(dy)
    ddx, ddw = jax.grad(penalty, (0, 1))(x, w)
    found = float64.passes(case, x, w, dy) | float64.second_order(case, x, w, dy)
    found["dw alone"] = float64.weight_gradient(case, x, dy)
    for name, expected in {
        "y": y,
        "dx": dx,
        "dw": dw,
        "dw alone": dw,
        "db": dy.sum((*range(dy.ndim - 1),)),
        "ddx": ddx,
        "ddw": ddw,
    }.items():
        scale = np.abs(expected).max()
        np.testing.assert_allclose(
            found[name], expected, rtol=1e-12, atol=1e-13 * scale, err_msg=name
        )


@pytest.mark.parametrize(("layout", "weights"), [("NHWC", None), ("NCHW", None), ("NHWC", "OHWI")])
@pytest.mark.parametrize("name", FORM_NAMES)
@pytest.mark.parametrize("case", SMALL_CASES)
def test_every_form_computes_the_same(
    case: Case, name: str, layout: str, weights: str | None, rng: np.random.Generator
) -> None:
    """Small integers are exact in float32, so that any difference is a wrong index.

    On a GPU the others' libraries may transform: see NOTE [Transforming engines] in support/comparisons.py.
    """
    form = FORMS[name]
    on_gpu = jax.default_backend() == "gpu"
    settled = np.rint if may_transform() or (on_gpu and name != "ours") else np.asarray
    if form.not_applicable(case):
        assert name == "xla_rewritten" and case.kind == "conv"
        return
    shapes = (case.x_shape, case.w_shape, case.y_shape)
    for pass_ in PASSES:
        if pass_ == "ddxddw":
            # Products of products: of a few ones, so that what lies between is exact in TF32 too.
            arrays = [rng.integers(-1, 2, shape) * (rng.random(shape) < 0.4) for shape in shapes]
        else:
            arrays = [rng.integers(-3, 4, shape) for shape in shapes]
        inputs = Inputs(*(array.astype(np.float32) for array in arrays))
        compute = float64.second_order if pass_ == "ddxddw" else float64.passes
        truth = compute(case, inputs.x, inputs.w, inputs.dy)
        for runner in form.runners(case, pass_, layout, weights):
            out = runner.call(runner.load(inputs))
            runner.wait(out)
            found = runner.fetch(out)
            assert tuple(found) == RESULTS[pass_]
            for key, value in found.items():
                np.testing.assert_array_equal(settled(value), truth[key], err_msg=f"{pass_} {key}")


def error_limit(case: Case) -> float:
    """The largest error of a float32 case, as the benchmark counts it.

    Where TF32 is allowed the two operands of each product are off by 2**-11 at most.
    """
    limit = 1e-5
    if may_use_tf32("float32"):
        inputs = Inputs.random(case, np.random.default_rng(Method.seed))
        arrays = (inputs.x, inputs.w, inputs.dy)
        truth = float64.passes(case, *arrays)
        largest = float64.passes(case, *map(np.abs, arrays))
        limit += max(2.0**-10 * largest[k].max() / np.abs(truth[k]).max() for k in truth)
    return limit


def test_a_smaller_batch_serves_where_the_reference_would_take_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = parse_case(entry(n=4))
    monkeypatch.setattr(float64, "MAX_MACS", 2 * case.macs // case.n)
    assert float64.affordable_batch(case) == 2
    (result,) = run([case], ["lax"], ["dw"])
    assert result.error_batch == 2
    assert result.error is not None and result.error < error_limit(case.with_batch(2))
    monkeypatch.setattr(float64, "MAX_MACS", 1)
    assert float64.affordable_batch(case) == 1


# --- What is timed -------------------------------------------------------------------------------

CONVOLUTIONS = re.compile(
    r"= [^=]*\bconvolution\("
    r"|custom_call_target=\"(?:jax_convgrad_conv|__onednn\$conv|__cudnn\$conv)"
)


@pytest.mark.parametrize(
    ("pass_", "count"), [("fprop", 1), ("dx", 1), ("dw", 1), ("dxdwdb", 2), ("ddxddw", 6)]
)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ours", "conv"),
        ("ours", "convt"),
        ("lax", "conv"),
        ("lax", "convt"),
        ("xla_rewritten", "convt"),
    ],
)
def test_only_the_pass_asked_for_is_in_the_program(
    name: str, kind: str, pass_: str, count: int
) -> None:
    case = parse_case(entry(kind=kind, sp=[12, 12], cin=8, cout=16, s=2, p=1))
    form = FORMS[name]
    assert isinstance(form, JaxForm)
    shapes = (case.x_shape, case.w_shape, case.y_shape)
    arguments = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    function = form.function(case, pass_, "NHWC", WeightsOrder.make(case, "NHWC"))
    program = jax.jit(function).lower(*arguments).compile().as_text()
    assert len(CONVOLUTIONS.findall(program)) == count, program


def run(cases: list[Case], names: list[str], passes: list[str], **changes: Any) -> list[Any]:
    settings = {"rounds": 3, "sample_seconds": 0.0, "pause_seconds": 0.0, **changes}
    method = Method(**settings)
    told: list[str] = []
    results = timing.run(cases, [FORMS[n] for n in names], passes, "NHWC", method, told.append)
    assert len(told) == len(cases) * len(passes)
    return results


def test_samples_come_from_calls_that_go_through_the_input_sets() -> None:
    loaded, called = [], []

    class Counting(LaxForm):
        name = "counting"

        def runners(self, *arguments: Any) -> list[Runner]:
            (runner,) = super().runners(*arguments)

            def load(inputs: Inputs) -> Any:
                loaded.append(runner.load(inputs))
                return loaded[-1]

            def call(arrays: Any) -> Any:
                called.append(next(i for i, a in enumerate(loaded) if a is arrays))
                return runner.call(arrays)

            return [Runner(load, call, runner.wait, runner.fetch)]

    case = parse_case(entry())
    method = Method(
        rounds=2, sample_seconds=10.0, max_repeats=6, max_input_sets=3, pause_seconds=0.0
    )
    (result,) = timing.run([case], [Counting()], ["dx"], "NHWC", method, lambda text: None)
    assert len(loaded) == result.input_sets == 3
    assert result.repeats == 6
    assert len(result.samples) == 2
    # Each sample: one call that is not timed on the last set, then the sets in turn.
    assert called[-14:] == [2, 0, 1, 2, 0, 1, 2] * 2


def test_a_slow_form_stops_after_the_least_number_of_rounds() -> None:
    (result,) = run([parse_case(entry())], ["lax"], ["dx"], rounds=9, form_seconds=0.0)
    assert len(result.samples) == 3


def test_float64_cases_run_in_float64() -> None:
    (result,) = run([parse_case(entry(dt="f64"))], ["lax"], ["dxdwdb"])
    assert result.error is not None and result.error < 1e-13


@pytest.mark.parametrize("kind", ["conv", "convt"])
def test_second_derivatives_are_timed_and_checked(kind: str) -> None:
    case = parse_case(entry(kind=kind, s=2, p=1, dt="f64"))
    for result in run([case], ["ours", "lax"], ["ddxddw"]):
        assert result.failure is None and len(result.samples) == 3
        assert result.error is not None and result.error < 1e-13


def test_a_wrong_result_shows_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    right = LaxForm.function

    def wrong(self: Any, *arguments: Any) -> Any:
        fn = right(self, *arguments)
        return lambda x, w, dy: tuple(a * 1.5 for a in fn(x, w, dy))

    monkeypatch.setattr(LaxForm, "function", wrong)
    (result,) = run([parse_case(entry())], ["lax"], ["dw"])
    assert result.error == pytest.approx(0.5, rel=1e-3)


# --- A GPU's time, acted out on a CPU -------------------------------------------------------------


@pytest.mark.parametrize("pass_", ["fprop", "dxdwdb"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [("ours", "conv"), ("ours", "convt"), ("lax", "convt"), ("xla_rewritten", "convt")],
)
def test_a_program_of_several_calls(
    name: str, kind: str, pass_: str, rng: np.random.Generator
) -> None:
    """Every call's own result, and nothing of the calls merged, dropped or shared."""
    case = parse_case(entry(kind=kind, sp=[6, 5], cin=8, cout=16, s=2, p=1))
    (runner,) = FORMS[name].runners(case, pass_, "NHWC")
    shapes = (case.x_shape, case.w_shape, case.y_shape)
    sets = [
        Inputs(*(rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes))
        for _ in range(5)
    ]
    loaded = tuple(runner.load(inputs) for inputs in sets)
    outs = runner.enqueue(loaded)
    assert len(outs) == len(sets)
    for inputs, out in zip(sets, outs, strict=True):
        truth = float64.passes(case, inputs.x, inputs.w, inputs.dy)
        for key, value in runner.fetch(out).items():
            np.testing.assert_array_equal(value, truth[key], err_msg=key)

    form = FORMS[name]
    assert isinstance(form, JaxForm)
    order = WeightsOrder.make(case, "NHWC")
    lowered = jax.jit(chained(form.function(case, pass_, "NHWC", order))).lower(loaded)
    assert lowered.as_text().count("stablehlo.optimization_barrier") == 4
    program = lowered.compile().as_text()
    wanted = {"fprop": 1, "dxdwdb": 2}[pass_]
    assert len(CONVOLUTIONS.findall(program)) == 5 * wanted, program
    if (
        pass_ == "dxdwdb" and jax.default_backend() == "cpu"
    ):  # elsewhere sums come in several stages
        entry_computation = program[program.index("ENTRY") :]
        sums = re.findall(r"= f32\[16\]\S* (?:fusion|reduce|call)\(", entry_computation)
        assert len(sums) == 5, program


class Device:
    """Stands in for a GPU's queue and its clock: work takes `seconds` on it, enqueueing takes `host_seconds`.

    Time is the fake's own, so that nothing here depends on the machine's speed. What the host waits for it
    learns `late_by` after it has happened. A mark is the moment when the device comes to it.
    """

    def __init__(self) -> None:
        self.now = self.free_at = 0.0
        self.hold_seconds, self.seconds, self.host_seconds = 3e-3, 20e-6, 5e-6
        self.late_by = 0.0
        self.events: list[str] = []

    def enqueue(self, seconds: float) -> float:
        self.now += self.host_seconds
        self.free_at = max(self.now, self.free_at) + seconds
        return self.free_at

    def wait_until(self, moment: float) -> None:
        self.now = max(self.now, moment) + self.late_by

    def hold(self) -> float:
        self.events.append("hold")
        return self.enqueue(self.hold_seconds)

    def mark(self, after: float) -> float:
        self.events.append("mark")
        return after + 4e-6

    def has_passed(self, mark: float) -> bool:
        self.events.append("passed?")
        return self.now >= mark

    def seconds_between(self, begin: float, end: float) -> float:
        self.events.append("seconds")
        self.wait_until(end)
        return end - begin

    def runner(self) -> Runner:
        def call(arrays: Any) -> float:
            self.events.append(f"call {arrays}")
            return self.enqueue(self.seconds)

        def wait(out: Any) -> None:
            self.events.append("wait")
            self.wait_until(out[-1])

        gpu = Gpu(self, self.hold)
        return Runner(lambda inputs: "a", call, wait, lambda out: {}, gpu=gpu)

    def batch(self, groups: Any = (["a", "b"],), programs: int = 40, **more: Any) -> device.Batch:
        runner = self.runner()
        assert runner.gpu is not None
        return device.Batch(runner, runner.gpu, list(groups), 4, programs, **more)


def test_programs_are_enqueued_behind_what_holds_the_device() -> None:
    gpu = Device()
    batch = gpu.batch(groups=(["a", "b"], ["c", "d"]), programs=3)
    seconds, doubtful = batch.sample()
    calls = [f"call {name}" for name in "abcdab"]
    held = ["hold", "hold", "mark"]
    assert gpu.events == [*held, *calls, "mark", "passed?", "wait", "seconds"]
    assert seconds == pytest.approx(gpu.seconds)
    assert not doubtful


def test_any_functions_are_compared_by_the_device_s_time(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Device()
    monkeypatch.setattr(compare, "jax_runner", lambda function, load, fetch: function(gpu))
    entered: list[str] = []

    def runner(seconds: float) -> Any:
        def make(gpu: Device) -> Runner:
            def call(arrays: Any) -> float:
                return gpu.enqueue(seconds)

            def wait(out: Any) -> None:
                gpu.wait_until(out[-1] if isinstance(out, list) else out)

            return dataclasses.replace(gpu.runner(), call=call, wait=wait)

        return make

    def context(name: str) -> Any:
        return lambda: contextlib.nullcontext(entered.append(name))

    functions = {name: (runner(s), context(name)) for name, s in (("a", 20e-6), ("b", 70e-6))}
    operands = compare.Operands((np.ones(4), np.ones(2)))
    assert operands.nbytes == 8 * 6
    found = compare.compare(functions, operands, Method(rounds=3, pause_seconds=0))
    assert entered == ["a", "b"]
    assert found == {"a": pytest.approx(20e-6), "b": pytest.approx(70e-6)}


def test_a_host_that_is_too_slow_gets_more_time() -> None:
    gpu = Device()
    gpu.host_seconds = 100e-6  # 80 calls: 8 ms, more than the 6 ms that the device is held first
    batch = gpu.batch()
    seconds, doubtful = batch.sample()
    assert batch.holds == 4
    assert seconds == pytest.approx(gpu.seconds)
    assert not doubtful
    gpu.host_seconds = 2e-3  # 160 ms, longer than the device is ever held
    seconds, doubtful = batch.sample()
    assert doubtful and batch.holds == device.MAX_HOLDS
    assert seconds > 10 * gpu.seconds  # what the check is for


def test_a_host_that_learns_late_of_everything_changes_nothing() -> None:
    gpu = Device()
    gpu.late_by = 50e-3
    batch = gpu.batch()
    assert batch.sample() == (pytest.approx(gpu.seconds), False)
    assert batch.holds == 2


class ScriptedClock:
    """What it says is written down before: for each sample whether the hold has ended, and the seconds."""

    def __init__(self, *samples: tuple[bool, float]) -> None:
        self.samples, self.taken = samples, 0
        self.collecting: list[bool] = []

    def mark(self, after: Any) -> str:
        self.collecting.append(gc.isenabled())
        return f"{self.taken} behind {after}"

    def has_passed(self, mark: str) -> bool:
        assert mark == f"{self.taken} behind the hold"
        return self.samples[self.taken][0]

    def seconds_between(self, begin: str, end: str) -> float:
        assert (begin, end) == (f"{self.taken} behind the hold", f"{self.taken} behind b")
        self.taken += 1
        return self.samples[self.taken - 1][1]

    def batch(self, wait: Any = lambda out: None) -> device.Batch:
        runner = Runner(lambda inputs: "a", lambda arrays: arrays, wait, lambda out: {})
        gpu = Gpu(self, lambda: "the hold")
        return device.Batch(runner, gpu, [["a", "b"]], 4, least_seconds=10e-6)


def test_an_impossible_sample_is_taken_again() -> None:
    clock = ScriptedClock((False, 19e-6), (False, 21e-6))
    batch = clock.batch()
    assert batch.sample() == (10.5e-6, False)
    assert batch.holds == 2  # a longer hold would not help
    clock = ScriptedClock(*[(False, 19e-6)] * 4)
    assert clock.batch().sample() == (9.5e-6, True)
    assert clock.taken == 4


def test_a_sample_that_the_host_was_late_for_is_taken_again() -> None:
    clock = ScriptedClock((True, 90e-6), (True, 80e-6), (False, 21e-6))
    batch = clock.batch()
    assert batch.sample() == (10.5e-6, False)
    assert batch.holds == 8
    clock = ScriptedClock((True, 90e-6), (True, 80e-6), (False, 19e-6), (True, 70e-6))
    batch = clock.batch()
    assert batch.sample() == (35e-6, True)
    assert batch.holds == device.MAX_HOLDS


def test_no_garbage_is_collected_while_programs_are_enqueued() -> None:
    def broken(out: Any) -> None:
        raise RuntimeError("no such engine")

    assert gc.isenabled()
    for wait in (lambda out: None, broken):
        clock = ScriptedClock((False, 21e-6))
        with contextlib.suppress(RuntimeError):
            clock.batch(wait).sample()
        assert clock.collecting == [False, False]
        assert gc.isenabled()


@pytest.mark.parametrize(
    ("seconds", "calls"), [(3e-6, 16), (20e-6, 16), (120e-6, 5), (2e-3, 1), (0.3, 1)]
)
def test_samples_last_some_milliseconds(seconds: float, calls: int) -> None:
    gpu = Device()
    gpu.seconds = seconds
    runner, inputs = gpu.runner(), Inputs(*(np.zeros(10),) * 3)
    batch = device.make_batch(
        runner, inputs, device.estimate(runner, "a"), cache=0, method=device.DeviceMethod()
    )
    assert batch.calls == calls
    # All programs and all that holds the device fit XLA's queue, so that enqueueing never blocks.
    assert batch.programs + device.MAX_HOLDS < 32
    assert batch.programs * calls * seconds >= min(0.0039, 20 * 16 * seconds)
    assert batch.sample() == (pytest.approx(seconds), False)


def test_operands_of_a_batch_are_bounded() -> None:
    gpu = Device()
    runner, inputs = gpu.runner(), Inputs(*(np.zeros(100),) * 3)  # 2400 bytes
    for limit, cache, groups, calls in [
        (10**6, 0, 1, 4),
        (10**6, 20000, 3, 4),
        (25000, 20000, 2, 4),
        (5000, 20000, 1, 2),
        (100, 20000, 1, 1),
    ]:
        method = device.DeviceMethod(max_input_bytes=limit, program_seconds=4 * gpu.seconds)
        batch = device.make_batch(runner, inputs, gpu.seconds, cache, method)
        assert (len(batch.groups), batch.calls) == (groups, calls)


@pytest.mark.parametrize("case", SMALL_CASES)
def test_least_bytes_are_what_reaches_a_result(case: Case) -> None:
    """Ones everywhere: an element that is used makes a difference somewhere."""
    ones = [np.ones(shape) for shape in (case.x_shape, case.w_shape, case.y_shape)]
    truth = float64.passes(case, *ones)
    used = {"x": truth["dx"], "w": truth["dw"], "dy": truth["y"]}
    read = {name: int(np.count_nonzero(array)) for name, array in used.items()}
    x, w, dy = (math.prod(array.shape) for array in ones)
    assert roofline.least_bytes(case, "fprop") == 4 * (read["x"] + read["w"] + dy)
    assert roofline.least_bytes(case, "dx") == 4 * (read["dy"] + read["w"] + x)
    assert roofline.least_bytes(case, "dw") == 4 * (read["x"] + read["dy"] + w)
    both = read["x"] + read["w"] + dy + x + w + case.cout
    assert roofline.least_bytes(case, "dxdwdb") == 4 * both
    assert roofline.least_bytes(case, "ddxddw") == 4 * (sum(read.values()) + x + w)


def test_the_roofline_leaves_out_what_a_cache_can_keep() -> None:
    case = parse_case(entry())
    size = roofline.least_bytes(case, "fprop")
    assert roofline.least_seconds(case, "fprop", 4, None) == 0.0
    assert roofline.least_seconds(case, "fprop", 4, roofline.Memory(1e12, 0)) == size / 1e12
    assert roofline.least_seconds(case, "fprop", 4, roofline.Memory(1e12, 2 * size)) == size / 2e12
    assert roofline.least_seconds(case, "fprop", 4, roofline.Memory(1e12, 5 * size)) == 0.0


def test_the_memory_is_described_by_the_driver() -> None:
    class Driver:
        """cuda.h's functions on an H100, device 1."""

        values: ClassVar = {36: 2619000, 37: 5120, 38: 50 * 2**20}
        status = 0

        def cuInit(self, flags: int) -> int:
            return self.status

        def cuDeviceGet(self, found: Any, ordinal: int) -> int:
            found._obj.value = 10 + ordinal
            return 0

        def cuDeviceGetAttribute(self, found: Any, attribute: int, of: Any) -> int:
            assert of.value == 11
            found._obj.value = self.values[attribute]
            return 0

    driver = Driver()
    memory = roofline.read_memory(driver, 1)
    assert memory is not None
    assert memory.bandwidth == pytest.approx(3.352e12, rel=1e-3)
    assert memory.cache == 50 * 2**20
    driver.status = 100
    assert roofline.read_memory(driver, 1) is None
    assert jax.default_backend() == "gpu" or roofline.device_memory() is None


def time_by_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times JAX forms on this CPU by the method for GPUs, as far as it goes without a queue."""

    class Clock:
        def mark(self, after: Any) -> float:
            jax.block_until_ready(after)
            return time.perf_counter()

        def has_passed(self, mark: float) -> bool:
            return False

        def seconds_between(self, begin: float, end: float) -> float:
            return end - begin

    gpu = Gpu(Clock(), lambda: None)
    right = JaxForm.runners

    def runners(self: Any, *arguments: Any) -> Any:
        return [dataclasses.replace(r, gpu=gpu) for r in right(self, *arguments)]

    monkeypatch.setattr(JaxForm, "runners", runners)


def test_forms_by_the_method_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    time_by_the_device(monkeypatch)
    case = parse_case(entry(s=2, kind="convt"))
    for result in run([case], ["ours", "lax", "xla_rewritten"], ["dxdwdb"]):
        assert result.failure is None
        assert len(result.samples) == 3
        assert result.error is not None and result.error < error_limit(case)
        assert result.repeats % result.calls_per_program == 0
        assert result.input_sets >= result.calls_per_program >= 1


def test_an_impossible_figure_is_a_failure_and_not_a_figure(
    monkeypatch: pytest.MonkeyPatch, case_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    time_by_the_device(monkeypatch)
    monkeypatch.setattr(roofline, "device_memory", lambda: roofline.Memory(1.0, 0))
    arguments = ["--cases", str(case_file), "--forms", "ours,lax", "--passes", "dx"]
    assert main(["bench", *arguments, "--rounds", "1"]) == 1
    text = capsys.readouterr().out
    assert re.search(r"input gradient +failed +failed +- +-\n", text), text
    assert (
        "jax_convgrad failed on convt t f32 input gradient: the timing failed: a median of" in text
    )


def test_a_figure_is_judged_by_its_median() -> None:
    def result(*samples: float) -> timing.Result:
        found = timing.Result(parse_case(entry()), "dx", "lax", samples=list(samples))
        found.least_seconds = 10e-6
        found.reject_impossible()
        return found

    kept, rejected = result(4e-6, 10e-6, 11e-6), result(4e-6, 9e-6, 11e-6)
    assert kept.median == 10e-6 and kept.failure is None and kept.rejected is None
    assert rejected.median is None and rejected.quartiles is None and rejected.rejected == 9e-6
    assert rejected.failure is not None and "9.00 us" in rejected.failure


# --- Reports and command line --------------------------------------------------------------------


@pytest.fixture
def case_file(tmp_path: Path) -> Path:
    path = tmp_path / "cases.json"
    path.write_text(json.dumps([entry(kind="convt", s=2), entry(name="other", p=1)]))
    return path


def test_bench_writes_table_json_markdown_and_chart(
    case_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    names = {"json": "b.json", "markdown": "b.md", "plot": "b.png"}
    out = {option: tmp_path / "out" / name for option, name in names.items()}
    arguments = ["bench", "--cases", str(case_file), "--rounds", "3", "--only", "convt"]
    for option, path in out.items():
        arguments += [f"--{option}", str(path)]
    status = main(arguments)
    text = capsys.readouterr().out
    assert status == 0, text
    assert "convt t f32 (2x7x6, 4 to 6, k3 s2)" in text
    assert "conv other" not in text
    assert "lax / jax_convgrad: " in text
    assert "jax_convgrad slower than lax by more than 5%: " in text

    data = json.loads(out["json"].read_text())
    assert set(data) == {
        "schema", "date", "commit", "device", "info", "torch", "layout", "weights", "method",
        "results", "summary",
    }  # fmt: skip
    assert data["schema"] == provenance.SCHEMA
    assert (data["layout"], data["weights"]) == ("NHWC", "HWIO")
    assert "; activations NHWC, weights HWIO\n" in text
    assert "; activations NHWC, weights HWIO\n" in out["markdown"].read_text()
    assert data["device"]["platform"] == jax.default_backend()
    assert data["info"]["versions"]["jax"] == jax.__version__
    passes = DEFAULT_PASSES
    assert len(data["results"]) == len(passes) * len(FORMS)
    assert {(r["pass"], r["form"]) for r in data["results"]} == {
        (pass_, form) for pass_ in passes for form in FORMS
    }
    limit = error_limit(parse_case(data["results"][0]["case"]))
    for result in data["results"]:
        assert parse_case(result["case"]).label == "convt t f32 (2x7x6, 4 to 6, k3 s2)"
        assert result["failure"] is None
        if result["form"] == "torch" and not torch_oracles.HAS_TORCH:
            assert result["absent"] == "PyTorch is not installed"
            continue
        assert len(result["samples_s"]) == 3
        low, high = result["quartiles_s"]
        assert 0 < low <= result["median_s"] <= high
        assert result["error"] < limit
    assert math.isfinite(data["summary"]["geomean_over_ours"]["lax"]["ratio"])

    assert "| case | pass | jax_convgrad | lax |" in out["markdown"].read_text()
    header = out["plot"].read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", header[16:24])
    assert width > 1000 and height > 200


@pytest.mark.parametrize("least", [2.5e-7, 1e-3, 4.0])
@pytest.mark.parametrize("span", [1.2, 3.0, 30.0, 3e4])
def test_no_labels_of_the_charts_axes_overlap(span: float, least: float) -> None:
    pytest.importorskip("matplotlib")
    case = parse_case(entry())
    results = [
        timing.Result(case, pass_, form, samples=[seconds] * 3)
        for pass_ in DEFAULT_PASSES
        for form, seconds in (("ours", least), ("lax", least * span))
    ]
    figure = chart.draw(results, ["ours", "lax"])
    figure.draw_without_rendering()
    labels = [
        label
        for axis in figure.axes
        for which in ("major", "minor")
        for label in axis.get_xticklabels(which=which)
        if label.get_text() and axis.get_xlim()[0] <= label.get_position()[0] <= axis.get_xlim()[1]
    ]
    assert len(labels) >= 2 * len(DEFAULT_PASSES)
    boxes = sorted((label.get_window_extent() for label in labels), key=lambda box: box.x0)
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))
    assert all(float(label.get_text()) for label in labels)


def test_bench_hands_over_the_weights_in_the_order_asked_for(
    case_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "b.json"
    arguments = [
        "--cases",
        str(case_file),
        "--forms",
        "ours,lax",
        "--rounds",
        "1",
        "--json",
        str(path),
    ]
    assert main(["bench", *arguments, "--weights", "OHWI"]) == 0
    assert "; activations NHWC, weights OHWI\n" in capsys.readouterr().out
    data = json.loads(path.read_text())
    assert data["weights"] == "OHWI"
    limit = error_limit(parse_case(data["results"][0]["case"]))
    assert all(result["error"] < limit for result in data["results"])
    assert main(["bench", *arguments, "--layout", "NCHW"]) == 0
    assert "; activations NCHW, weights OIHW\n" in capsys.readouterr().out


@pytest.mark.parametrize("backend", ["xla", "cudnn"])
def test_bench_says_what_decides_in_the_place_of_the_rules(
    backend: str,
    case_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A backend that does not exist here is passed over, so that both run on every machine."""
    caplog.set_level("DEBUG", "jax_convgrad")
    path = tmp_path / "b.json"
    arguments = ["--cases", str(case_file), "--forms", "ours", "--passes", "fprop", "--rounds", "1"]
    arguments += ["--json", str(path), "--backend", backend]
    assert main(["bench", *arguments]) == 0
    assert f"weights HWIO, backend {backend}\n" in capsys.readouterr().out
    decisions = [record.getMessage() for record in caplog.records if "conv_" in record.getMessage()]
    assert decisions
    assert backend == "cudnn" or all(text.endswith("xla (overridden)") for text in decisions)
    data = json.loads(path.read_text())
    assert data["backend"] == backend


def test_bench_knows_its_backends(case_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--cases", str(case_file), "--backend", "mkl"]) == 2
    assert (
        "--backend takes one of cudnn, gemm, native, onednn, parts, xla" in capsys.readouterr().err
    )


def test_an_interrupted_run_leaves_what_it_found(
    case_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    right, done = timing._run_pass, []

    def run_pass(case: Case, pass_: str, *more: Any) -> Any:
        if done:
            os.kill(os.getpid(), signal.SIGTERM)
        done.append(pass_)
        return right(case, pass_, *more)

    monkeypatch.setattr(timing, "_run_pass", run_pass)
    path = tmp_path / "b.json"
    arguments = ["--cases", str(case_file), "--forms", "ours,lax", "--passes", "fprop,dx"]
    previous = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["bench", *arguments, "--rounds", "1", "--json", str(path)]) == 130
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert "interrupted" in capsys.readouterr().err
    found = json.loads(path.read_text())["results"]
    assert [(result["pass"], result["form"]) for result in found] == [
        ("fprop", "ours"),
        ("fprop", "lax"),
    ]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", ["conv", "convt"])
def test_ohwi_weights_are_those_that_the_handlers_read(
    kind: str, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No reordering is left between OHWI weights and a CUDA handler, except for grouped conv_transpose.

    (A handler for thin layers takes HWIO as well.)
    """
    found = registry.PlatformHandlers(
        frozenset(registry.CONV_TARGETS.values()), frozenset({"float32"})
    )
    monkeypatch.setattr(registry, "require", lambda platform, warn=True: found)
    case = parse_case(entry(kind=kind, s=2, p=1, cin=24, cout=48, g=groups))

    def reordered(weights: str) -> bool:
        order = WeightsOrder.make(case, "NHWC", weights)
        stored = order.store(np.zeros(case.w_shape, np.float32))
        arguments = (np.zeros(case.x_shape, np.float32), stored, np.zeros(case.y_shape, np.float32))
        function = FORMS["ours"].function(case, "fprop", "NHWC", order)  # type: ignore[attr-defined]
        with override_backend("cudnn"):
            text = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
        (call,) = [line for line in text.splitlines() if "@jax_convgrad_conv" in line]
        layouts = re.search(r"operand_layouts = \[dense<.*?>.*?, dense<\[(.*?)\]>", call)
        assert layouts is not None, call
        reversals = text.count("stablehlo.reverse")
        return layouts[1] != "3, 2, 1, 0" or "stablehlo.transpose" in text or reversals % 2 == 1

    assert reordered("HWIO")
    assert reordered("OHWI") == (kind == "convt" and groups > 1)


def test_bench_lists_cases(case_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--cases", str(case_file), "--list"]) == 0
    assert "conv other f32 (2x7x6, 4 to 6, k3 s1 p1)" in capsys.readouterr().out


def test_a_reader_who_has_read_enough() -> None:
    command = [sys.executable, "-m", "jax_convgrad", "bench", "--list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        said = process.stderr.read().decode()
    assert process.returncode == 1 and "Traceback" not in said and "BrokenPipe" not in said


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--forms", "ours,jax"], "--forms takes names from ours, lax, xla_rewritten, torch"),
        (["--passes", ""], "--passes takes names from forward, input-gradient"),
        (["--only", "("], "--only '('"),
        (["--only", "no such case"], "no case is left to run"),
        (["--only", "^resize", "--passes", "dw"], "no case is left to run"),
        (["--cases", "no-such-file.json"], "cannot read the case file"),
        (["--list", "--json", "."], ". cannot be written: Is a directory"),
        (["--list", "--markdown", "/dev/null/b.md"], "/dev/null/b.md cannot be written: "),
    ],
)
def test_bench_refuses_what_makes_no_sense(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_bench_takes_no_negative_seed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as status:
        main(["bench", "--seed", "-3"])
    assert status.value.code == 2
    assert "--seed: must be at least 0" in capsys.readouterr().err


def test_lax_is_not_what_is_installed(case_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jax_convgrad.install()
    try:
        assert main(["bench", "--cases", str(case_file), "--list"]) == 0
        assert not jax_convgrad.installed()
    finally:
        jax_convgrad.uninstall()


def test_a_form_that_breaks_is_reported_and_the_rest_goes_on(
    case_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("no such engine")

    monkeypatch.setattr(XlaRewrittenForm, "function", broken)
    arguments = ["--cases", str(case_file), "--forms", "xla_rewritten,lax", "--passes", "dx"]
    assert main(["bench", *arguments, "--rounds", "1"]) == 1
    text = capsys.readouterr().out
    assert (
        "xla_rewritten failed on convt t f32 input gradient: RuntimeError: no such engine" in text
    )
    assert re.search(r"input gradient +failed +\d", text)


def test_bench_runs_without_tqdm_and_matplotlib(
    case_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    arguments = ["bench", "--cases", str(case_file), "--forms", "lax", "--passes", "dx"]
    assert main([*arguments, "--rounds", "1"]) == 0
    assert "[2/2] conv other f32 input gradient" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="--plot needs matplotlib"):
        main([*arguments, "--plot", "chart.png"])


def test_summary_counts_what_is_slower() -> None:
    case = parse_case(entry())

    def results(pass_: str, ours: float, lax: float, torch: float) -> list[timing.Result]:
        times = {"ours": ours, "lax": lax, "torch": torch}
        return [
            timing.Result(case, pass_, form, samples=[seconds] * 3)
            for form, seconds in times.items()
        ]

    both = results("dx", 1.0, 4.0, 0.95) + results("dw", 1.0, 0.9, 0.5)
    found = summary.summary(both)
    mean = {k: v["ratio"] for k, v in found["geomean_over_ours"].items()}
    assert mean["lax"] == pytest.approx(math.sqrt(4.0 * 0.9))
    assert mean["best"] == pytest.approx(math.sqrt(0.95 * 0.5))
    assert found["slower_than"]["lax"]["passes"] == ["conv t f32 dw: 1.11"]
    assert found["slower_than"]["torch"]["passes"] == ["conv t f32 dw: 2.00"]
    lines = summary.summary_lines(both, ["ours", "lax", "torch"])
    slower = (
        "jax_convgrad slower than lax by more than 5%: 1 passes (conv t f32 weight gradient: 1.11)"
    )
    assert slower in lines


def test_the_table_says_what_is_compared() -> None:
    """In words of a reader who has not seen this package's code."""
    case = parse_case(entry())
    results = [
        timing.Result(case, "dx", form, samples=[seconds] * 3)
        for form, seconds in {"ours": 1.0, "lax": 4.0, "torch": 0.5}.items()
    ]
    head, (row,) = report.rows(results, ["ours", "lax", "torch"])
    assert head == ["case", "pass", "jax_convgrad", "lax", "torch", "vs lax", "vs best"]
    assert row[-2:] == ["4.00x", "0.500x"]
    both = "time of lax or of the fastest other form, over jax_convgrad's."
    assert report.legend(["ours", "lax", "torch"]).endswith(both)
    one = "time of the fastest other form, over jax_convgrad's."
    assert report.legend(["ours", "torch"]).endswith(one)
    assert report.rows(results, ["ours"])[0] == ["case", "pass", "jax_convgrad"]
    assert "The last columns" not in report.legend(["ours"])
    text = report.table(results, ["ours", "lax", "torch"])
    assert "ours" not in text


def test_info_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert re.search(rf"^ +jax +{re.escape(jax.__version__)}$", text, re.MULTILINE)
    assert re.search(r"^ +available +(yes|no)$", text, re.MULTILINE)
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["handlers"]["cpu"]) >= {"available", "dtypes", "reason", "versions"}


def test_committed_results_name_forms_by_their_present_names() -> None:
    """benchmarks/ keeps files of every schema, and the documentation reads them all."""
    folder = Path(__file__).parents[2] / "benchmarks"
    names = {
        row["form"]
        for path in sorted(folder.glob("*/*.json"))
        if isinstance(content := json.loads(path.read_text()), dict) and "layout" in content
        for row in content["results"]
    }
    assert names == set(FORMS)


def test_results_from_elsewhere_may_have_former_names() -> None:
    assert present_name("swap") == "xla_rewritten"
    assert present_name("ours") == "ours"

"""Times operators of layers on CUDA by each backend: what the rules of CUDA cite.

    python benchmarks/survey_cuda.py --json benchmarks/h100/backends.json --per-rule 8
    python benchmarks/survey_cuda.py --cases benchmarks/patch_cases.json --backends cudnn,xla,gemm,torch

The default choice of engines and the size of the workspace come from what this prints, too. "cudnn" is the
handler with an exhaustive search (or as --search says), "first" the first engine in the order of the
heuristics (timed by that search), "xla" the plain operation, "gemm" the matrix product where windows do not
overlap, "native" the resize kernel, "torch" PyTorch. Times are microseconds of device time, measured as
`python -m jax_convgrad bench` does; a "!" marks one that the host was too slow to measure.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import re
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import measured
import numpy as np

import jax_convgrad
from jax_convgrad import plans
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.timing import device
from jax_convgrad._src.timing.processors import last_level_cache
from jax_convgrad.bench import case_files, forms, problems, roofline

HERE = pathlib.Path(__file__).parent
CASES = [
    HERE / "backend_cases.json",
    HERE / "patch_cases.json",
    HERE / "float64_cases.json",
    case_files.PUBLISHED,
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="OUT", help="write all figures as JSON")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after that many")
    parser.add_argument(
        "--cases", metavar="FILE", nargs="+", help="default: all that the rules were made from"
    )
    parser.add_argument("--only", metavar="REGEX", default="", help="cases whose label matches")
    parser.add_argument("--per-rule", type=int, help="no more operators of any rule than so many")
    parser.add_argument("--backends", default="cudnn,xla,gemm,native", help="default: %(default)s")
    parser.add_argument("--search", default="exhaustive", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    arguments = parser.parse_args()
    wanted = arguments.backends.split(",")
    jax_convgrad.set_algorithm_search(arguments.search)
    head = measured.header("cuda", "us", search=arguments.search, rounds=arguments.rounds)
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}")
    layers = measured.load_layers(arguments.cases or CASES)
    layers = [
        layer
        for layer in layers
        if re.search(arguments.only, layer.label)
        and not (layer.case.sets and "gpu" not in layer.case.sets)
    ]
    chosen = measured.spread_over_rules(layers, "cuda", arguments.per_rule or len(layers))
    started = time.monotonic()
    rows: list[dict[str, Any]] = []
    made_for = None
    for layer, pass_ in chosen:
        if time.monotonic() - started > arguments.seconds:
            print(f"out of time, {len(rows)} of {len(chosen)} operators measured")
            break
        if made_for != layer:
            inputs, made_for = forms.Inputs.random(layer.case, np.random.default_rng(0)), layer
        with (
            jax.enable_x64(layer.case.dtype == "f64"),
            jax.default_matmul_precision(layer.precision)
            if layer.precision
            else contextlib.nullcontext(),
        ):
            rows.append(survey(layer, pass_, inputs, wanted, arguments.rounds))
        print(line(rows[-1]), flush=True)
        if arguments.json:
            measured.write(arguments.json, head, rows)


def survey(
    layer: measured.Layer, pass_: str, inputs: forms.Inputs, wanted: list[str], rounds: int
) -> dict[str, Any]:
    """One operator of one layer by each of the wanted backends that can compute it."""
    row: dict[str, Any] = {"case": layer.label, "pass": pass_, "layer": layer.to_json()}
    results: dict[str, Any] = {}
    samples: dict[str, Callable[[], tuple[float, bool]]] = {}
    plans.clear()  # which has every jitted function lowered anew: not behind another backend
    for backend in able(layer, pass_, wanted):
        before = time.perf_counter()
        try:
            results[backend], samples[backend] = prepare(backend, layer.case, pass_, inputs)
        except Exception as error:  # a backend that breaks is a result too
            row[f"{backend}_failure"] = f"{type(error).__name__}: {error}"[:2000]
        row[f"{backend}_first_call_seconds"] = round(time.perf_counter() - before, 3)
        if backend == "cudnn" and (found := plans.list()):
            row["plan"] = found[0]
    for backend, sample in samples.items():
        times, slow = zip(*(sample() for _ in range(rounds)), strict=True)
        row[backend] = round(1e6 * statistics.median(times), 2)
        row[f"{backend}_host_bound"] = any(slow)
    if "xla" in results:
        scale = float(np.abs(results["xla"]).max())
        for backend, result in results.items():
            difference = float(np.abs(result - results["xla"]).max()) / scale
            row[f"{backend}_difference"] = float(f"{difference:.1e}")
    return row


def able(layer: measured.Layer, pass_: str, wanted: list[str]) -> list[str]:
    """The wanted backends that have the operator. An override of another one would be passed over."""
    features = problems.features_of(layer.problem(pass_))
    if layer.case.kind == "resize":
        return [b for b in wanted if b in ("native", "xla", "torch")]
    assert isinstance(features, problems.ConvFeatures)
    without = {"native"} if features.has_nonoverlapping_windows else {"native", "gemm"}
    return [b for b in wanted if b not in without]


def prepare(
    backend: str, case: case_files.AnyCase, pass_: str, inputs: forms.Inputs
) -> tuple[np.ndarray, Callable[[], tuple[float, bool]]]:
    """The result by one backend, and what takes a sample of its time."""
    form = forms.FORMS["torch" if backend == "torch" else "ours"]
    if reason := form.unavailable() or form.not_applicable(case):
        raise RuntimeError(reason)
    with contextlib.nullcontext() if backend == "torch" else override_backend(backend):
        (runner, *_) = form.runners(case, pass_, "NHWC")
        arrays = runner.load(inputs)
        out = runner.call(arrays)
        runner.wait(out)
        # The programs of several calls are lowered in here too, while the override holds.
        batch = device.make_batch(
            runner,
            inputs,
            device.estimate(runner, arrays),
            2 * last_level_cache(),
            device.DeviceMethod(),
            lambda calls: roofline.least_seconds(case, pass_, calls, roofline.device_memory()),
        )
    result = runner.fetch(out)[forms.RESULTS[pass_][0]]
    return result, batch.sample


def line(row: dict[str, Any]) -> str:
    texts = [f"{row['case']:75} {row['pass']:5}"]
    plan = row.get("plan", {})
    timed = [t for t in plan.get("tried", ()) if t["microseconds"]]
    for name, value in (
        ("cudnn", row.get("cudnn")),
        ("timed", plan.get("microseconds")),
        ("first", timed[0]["microseconds"] if timed else None),
        ("xla", row.get("xla")),
        ("gemm", row.get("gemm")),
        ("native", row.get("native")),
        ("torch", row.get("torch")),
    ):
        mark = "!" if row.get(f"{name}_host_bound") else " "
        texts.append(f"{name} {value:8.1f}{mark}" if value else f"{name}        - ")
    if plan:
        engine = plan["engine"]
        name = engine if engine.startswith("native_") else engine.split("_")[0]
        texts.append(f"{name} ws {plan['workspace_bytes'] / 2**20:.1f}M")
        texts.append(f"of {len(timed)}")
    for key in ("cudnn_difference", "gemm_difference", "native_difference", "torch_difference"):
        if key in row:
            texts.append(f"{row[key]:.0e}")
    failures = [f"{k}: {v[:300]}" for k, v in row.items() if k.endswith("_failure")]
    return "  ".join(texts + failures + ([plan["note"]] if plan.get("note") else []))


if __name__ == "__main__":
    main()

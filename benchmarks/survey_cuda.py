"""Times every operator of every published GPU layer on each route, and lists what cuDNN offers.

    python benchmarks/survey_cuda.py --json survey.json --seconds 300
    python benchmarks/survey_cuda.py --cases benchmarks/route_cases.json --routes cudnn,xla
    python benchmarks/survey_cuda.py --cases benchmarks/patch_cases.json --routes cudnn,xla,matmul

The rows of jax_convgrad/routes.py for CUDA, the default choice of engines and the size of the
workspace come from what this prints. "cudnn" is the handler with an exhaustive search (or as --search
says), "first" the first engine in the order of the heuristics (timed by that search), "xla" the pure-JAX
form, "matmul" the matrix product where windows lie side by side, "torch" PyTorch. Times are microseconds of
device time, measured as `python -m jax_convgrad bench` does; a "!" marks one that the host was too slow to
measure.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import numpy as np

import jax_convgrad
from jax_convgrad import plans
from jax_convgrad._src.dispatch import routes
from jax_convgrad._src.timing import device
from jax_convgrad._src.timing.processors import last_level_cache
from jax_convgrad.bench import case_files, forms, roofline
from jax_convgrad.bench.case_files import AnyCase

PASSES = ("fprop", "dx", "dw")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="OUT", help="write all figures as JSON")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after that many")
    parser.add_argument("--cases", metavar="FILE", help="default: the published ones for a GPU")
    parser.add_argument("--only", metavar="REGEX", default="", help="cases whose label matches")
    parser.add_argument("--routes", default="cudnn,xla,torch", help="default: %(default)s")
    parser.add_argument("--passes", default=",".join(PASSES), help="default: %(default)s")
    parser.add_argument("--search", default="exhaustive", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    arguments = parser.parse_args()
    wanted = arguments.routes.split(",")
    jax_convgrad.set_algorithm_search(arguments.search)
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}")
    started, rows = time.monotonic(), []
    every = (
        case_files.load_cases(arguments.cases) if arguments.cases else case_files.published("gpu")
    )
    for case in (case for case in every if case.kind != "resize"):
        if not re.search(arguments.only, case.label):
            continue
        with jax.enable_x64(True) if case.dtype == "f64" else contextlib.nullcontext():
            inputs = forms.Inputs.random(case, np.random.default_rng(0))
            for pass_ in arguments.passes.split(","):
                if time.monotonic() - started > arguments.seconds:
                    print("out of time")
                    break
                rows.append(survey(case, pass_, inputs, wanted, arguments.rounds))
                print(line(rows[-1]), flush=True)
                if arguments.json:
                    with open(arguments.json, "w") as file:
                        json.dump(rows, file, indent=1)


def survey(
    case: AnyCase, pass_: str, inputs: forms.Inputs, wanted: list[str], rounds: int
) -> dict[str, Any]:
    """One operator of one layer on each of the wanted routes."""
    row: dict[str, Any] = {"case": case.label, "pass": pass_}
    results: dict[str, Any] = {}
    samples: dict[str, Callable[[], tuple[float, bool]]] = {}
    plans.clear()  # which has every jitted function lowered anew: not behind a route that is forced
    for route in wanted:
        before = time.perf_counter()
        try:
            results[route], samples[route] = prepare(route, case, pass_, inputs)
        except Exception as error:  # a route that breaks is a result too
            row[f"{route}_failure"] = f"{type(error).__name__}: {error}"[:2000]
        row[f"{route}_first_call_seconds"] = time.perf_counter() - before
        if route == "cudnn" and (found := plans.list()):
            row["plan"] = found[0]
    for route, sample in samples.items():
        times, slow = zip(*(sample() for _ in range(rounds)), strict=True)
        row[route], row[f"{route}_host_bound"] = 1e6 * statistics.median(times), any(slow)
    if "xla" in results:
        scale = float(np.abs(results["xla"]).max())
        for route, result in results.items():
            row[f"{route}_difference"] = float(np.abs(result - results["xla"]).max()) / scale
    return row


def prepare(
    route: str, case: AnyCase, pass_: str, inputs: forms.Inputs
) -> tuple[np.ndarray, Callable[[], tuple[float, bool]]]:
    """The result on one route, and what takes a sample of its time."""
    form = forms.FORMS["torch" if route == "torch" else "ours"]
    if reason := form.unavailable():
        raise RuntimeError(reason)
    with contextlib.nullcontext() if route == "torch" else routes.force(route):
        (runner, *_) = form.runners(case, pass_, "NHWC")
        arrays = runner.load(inputs)
        out = runner.call(arrays)
        runner.wait(out)
        # The programs of several calls are lowered in here too, while the route is forced.
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
        ("matmul", row.get("matmul")),
        ("torch", row.get("torch")),
    ):
        mark = "!" if row.get(f"{name}_host_bound") else " "
        texts.append(f"{name} {value:8.1f}{mark}" if value else f"{name}        - ")
    if plan:
        texts.append(f"{plan['engine'].split('_')[0]} ws {plan['workspace_bytes'] / 2**20:.1f}M")
        texts.append(f"of {len(timed)}")
    for key in ("cudnn_difference", "matmul_difference", "torch_difference"):
        if key in row:
            texts.append(f"{row[key]:.0e}")
    failures = [f"{k}: {v[:300]}" for k, v in row.items() if k.endswith("_failure")]
    return "  ".join(texts + failures + ([plan["note"]] if plan.get("note") else []))


if __name__ == "__main__":
    main()

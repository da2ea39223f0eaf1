"""The place of the fastest engine in the heuristics' order, for every operator of every published GPU layer.

    python benchmarks/rank_engines.py --json ranks.json
    python benchmarks/rank_engines.py --cases benchmarks/thin_cases.json --seconds 200

The number of engines that the default search times, and the choice of them (cpp/cuda/cudnn/search.cc),
rest on this program's output. Every operator goes to the handlers twice: with the default search, and with
the exhaustive one. All ratios use the exhaustive search's times, in the heuristics' order. A line has the
number of engines that ran, the fastest engine and its place, and the time relative to it of the first
engine, of the best of the first 12 and of the engine that the default search took. Where one of the
project's own kernels comes first, the summary has a part of its own. The searches measure these times
themselves, on memory that stays in the cache, and the times vary by some percent between
searches: "default" is the exhaustive search's time for the engine that the default search took.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import measured
import numpy as np

import jax_convgrad
from jax_convgrad import plans
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.runtime import registry
from jax_convgrad._src.runtime.plans import AlgorithmSearch
from jax_convgrad.bench import case_files, forms
from jax_convgrad.bench.case_files import AnyCase

PASSES = ("fprop", "dx", "dw")
FRONTS = (1, 6, 12, 16, 20, 24, 32)
# Of cuDNN's engines, behind the project's own.
FRONTS_BEHIND_OWN = (0, 1, 2, 4, 12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="OUT", help="write all times as JSON")
    parser.add_argument("--only", metavar="REGEX", default="", help="cases whose label matches")
    parser.add_argument(
        "--cases", metavar="FILE", nargs="+", default=[case_files.PUBLISHED], help="their file"
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after that many")
    arguments = parser.parse_args()
    if not registry.require("cuda").serves(registry.CONV_TARGETS["conv_fprop"], "float32"):
        parser.error("no CUDA handlers")
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}")
    rows: list[Row] = []
    started = time.monotonic()
    for layer in measured.load_layers(arguments.cases):
        case = layer.case
        if case.sets and "gpu" not in case.sets:
            continue
        # float64 has few engines, and XLA computes most of it.
        if case.kind == "resize" or case.dtype == "f64":
            continue
        if not re.search(arguments.only, case.label):
            continue
        if time.monotonic() - started > arguments.seconds:
            print("out of time")
            break
        inputs = forms.Inputs.random(case, np.random.default_rng(0))
        for pass_ in PASSES:
            rows.append(rank(case, pass_, inputs))
            print(line(rows[-1]), flush=True)
    summarize(rows)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)


def rank(case: AnyCase, pass_: str, inputs: forms.Inputs) -> dict[str, Any]:
    """One operator of one layer: every engine's time in the heuristics' order, and what was chosen."""
    chosen = search("default", case, pass_, inputs)
    every = search("exhaustive", case, pass_, inputs)
    times = [(t["engine"], t["microseconds"]) for t in every["tried"] if t["microseconds"]]
    # A single engine is taken without timing it.
    times = times or [(every["engine"], math.nan)]
    return {
        "case": case.label,
        "operator": every["problem"].split(":")[0],
        "times": times,
        "default": chosen["engine"],
        "default_timed": sum(bool(t["microseconds"]) for t in chosen["tried"]),
    }


def search(how: AlgorithmSearch, case: AnyCase, pass_: str, inputs: forms.Inputs) -> dict[str, Any]:
    """The plan of a search without any earlier choices."""
    jax_convgrad.set_algorithm_search(how)
    plans.clear()
    with override_backend("cudnn"):
        (runner,) = forms.FORMS["ours"].runners(case, pass_, "NHWC", "OHWI")
        runner.wait(runner.call(runner.load(inputs)))
    (plan,) = plans.list()
    return plan


Row = dict[str, Any]
Choice = Callable[[Row], Sequence[float]]  # the times of the engines that a search would look at


def front(count: int) -> Choice:
    return lambda row: [time for _, time in row["times"][:count]]


def behind_own(count: int) -> Choice:
    def times(row: Row) -> list[float]:
        own = [time for engine, time in row["times"] if is_own(engine)]
        return own + [time for engine, time in row["times"] if not is_own(engine)][:count]

    return times


def is_own(engine: str) -> bool:
    return engine.startswith("native_")


def default(row: Row) -> list[float]:
    # Near the device's memory limit, a search may fail to run an engine that another one ran.
    return [time for engine, time in row["times"] if engine == row["default"]] or [math.nan]


def regret(row: Row, choice: Choice) -> float:
    """The time of the best of some engines, relative to the fastest engine."""
    return min(choice(row)) / min(time for _, time in row["times"])


def line(row: Row) -> str:
    place, (engine, time) = min(enumerate(row["times"]), key=lambda entry: entry[1][1])
    return (
        f"{row['case']:75} {row['operator'][5:]}  {len(row['times']):2} engines, {row['default_timed']:2} by "
        f"default; fastest is number {place + 1:2}, {time:7.1f} us, {engine.split('_')[0]:6}; "
        f"first {regret(row, front(1)):.3f}, first 12 {regret(row, front(12)):.3f}, "
        f"default {regret(row, default):.3f}"
    )


def summarize(rows: Sequence[Row]) -> None:
    own = [row for row in rows if is_own(row["times"][0][0])]
    others = [row for row in rows if row not in own]
    fronts = {f"first {count}": front(count) for count in FRONTS}
    summarize_choices("cuDNN first", others, fronts | {"default": default})
    fronts = {f"own and {count}": behind_own(count) for count in FRONTS_BEHIND_OWN}
    summarize_choices("own kernels first", own, fronts | {"default": default})


def summarize_choices(what: str, rows: Sequence[Row], choices: dict[str, Choice]) -> None:
    print(f"{what}: {len(rows)} operators; times of the fastest: geometric mean, worst, over 1.01")
    for name, choice in choices.items():
        found = [ratio for row in rows if not math.isnan(ratio := regret(row, choice))]
        if not found:
            continue
        mean = math.exp(sum(map(math.log, found)) / len(found))
        late = sum(ratio > 1.01 for ratio in found)
        print(f"  {name:10}  {mean:.4f}  {max(found):.3f}  {late} of {len(found)}")


if __name__ == "__main__":
    main()

"""Times operators of layers on a CPU by each backend: what the rules of CPUs cite.

    python benchmarks/survey_cpu.py --json benchmarks/cpu/backends.json
    python benchmarks/survey_cpu.py --dtypes float16,float64 --only patches

"onednn" is the handler, which has float32 and bfloat16, and computes float16 in float32; "xla_rewritten" is
the pure-JAX form, "gemm" the matrix product where windows do not overlap; of resizes "native" is the kernel
and "xla" the pure-JAX form.
Milliseconds, medians of rounds in which the backends take turns. Problems are channels-last. Each runs in a
worker process: one in which a library crashes is a row with a failure, and the others go on.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import math
import multiprocessing
import os
import re
import statistics
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import jax
import measured
import numpy as np

from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.dispatch.preparation import call_dtype
from jax_convgrad._src.runtime import registry
from jax_convgrad.bench import case_files, forms, problems, provenance
from jax_convgrad.bench.cases import DTYPES

# name, batch, spatial sizes, input channels, output channels, kernel, then what differs from groups 1,
# stride 1, padding 1, dilation 1.
PROBLEMS: list[tuple[str, int, tuple[int, ...], int, int, int, dict[str, int]]] = [
    ("stem 3 to 64, k7 s2", 4, (112, 112), 3, 64, 7, {"stride": 2, "padding": 3}),
    ("stem 3 to 32, k3 s2", 4, (112, 112), 3, 32, 3, {"stride": 2}),
    ("3 to 16, k3", 4, (64, 64), 3, 16, 3, {}),
    ("1 to 32, k3", 4, (64, 64), 1, 32, 3, {}),
    ("4 to 32, k3", 4, (64, 64), 4, 32, 3, {}),
    ("8 to 32, k3", 4, (64, 64), 8, 32, 3, {}),
    ("16 to 16, k3", 4, (64, 64), 16, 16, 3, {}),
    ("32 to 3, k3", 4, (64, 64), 32, 3, 3, {}),
    ("64 to 3, k3", 4, (64, 64), 64, 3, 3, {}),
    ("128 to 3, k3", 4, (64, 64), 128, 3, 3, {}),
    ("128 to 8, k3", 4, (64, 64), 128, 8, 3, {}),
    ("3 to 128, k3", 4, (64, 64), 3, 128, 3, {}),
    ("32 to 8, k3", 4, (64, 64), 32, 8, 3, {}),
    ("3 to 64, k4 s2", 4, (64, 64), 3, 64, 4, {"stride": 2}),
    ("64 to 1, k7", 4, (64, 64), 64, 1, 7, {"padding": 3}),
    ("4 to 4, k3", 4, (64, 64), 4, 4, 3, {}),
    ("8 to 8, k3", 4, (64, 64), 8, 8, 3, {}),
    ("16 to 3, k3", 4, (64, 64), 16, 3, 3, {}),
    ("24 to 8, k3", 4, (64, 64), 24, 8, 3, {}),
    ("4 to 24, k4 s2", 4, (64, 64), 4, 24, 4, {"stride": 2}),
    ("16 to 1, k7", 4, (64, 64), 16, 1, 7, {"padding": 3}),
    ("3 to 16, k7 s2", 4, (112, 112), 3, 16, 7, {"stride": 2, "padding": 3}),
    ("1-D 4 to 4, k3", 4, (8192,), 4, 4, 3, {}),
    ("1-D 8 to 8, k3 d5", 4, (8192,), 8, 8, 3, {"padding": 5, "dilation": 5}),
    ("1-D 16 to 1, k7", 4, (8192,), 16, 1, 7, {"padding": 3}),
    ("1-D 8 to 16, k4 s2", 4, (8192,), 8, 16, 4, {"stride": 2}),
    ("1-D 1 to 16, k5 s2", 4, (16000,), 1, 16, 5, {"stride": 2, "padding": 2}),
    ("21 to 21, k16 s8", 2, (128, 128), 21, 21, 16, {"stride": 8, "padding": 4}),
    (
        "21 to 21, k16 s8, 21 groups",
        2,
        (128, 128),
        21,
        21,
        16,
        {"stride": 8, "padding": 4, "groups": 21},
    ),
    ("17 to 23, k3", 4, (40, 40), 17, 23, 3, {}),
    ("30 to 50, k3", 4, (40, 40), 30, 50, 3, {}),
    ("64 to 64, k3", 4, (56, 56), 64, 64, 3, {}),
    ("64 to 64, k3 d2", 4, (56, 56), 64, 64, 3, {"padding": 2, "dilation": 2}),
    ("64 to 64, k3 s2 d2", 4, (56, 56), 64, 64, 3, {"stride": 2, "padding": 2, "dilation": 2}),
    ("64 to 64, k3 s2 d3", 4, (56, 56), 64, 64, 3, {"stride": 2, "padding": 3, "dilation": 3}),
    ("64 to 64, k3 s3 d2", 4, (56, 56), 64, 64, 3, {"stride": 3, "padding": 2, "dilation": 2}),
    ("256 to 64, k3 d12", 4, (33, 33), 256, 64, 3, {"padding": 12, "dilation": 12}),
    ("64 to 64, k3, padding 5", 4, (32, 32), 64, 64, 3, {"padding": 5}),
    ("64 to 128, k2 s2", 4, (56, 56), 64, 128, 2, {"stride": 2, "padding": 0}),
    ("patches 3 to 192, k16 s16", 4, (224, 224), 3, 192, 16, {"stride": 16, "padding": 0}),
    ("patches 3 to 96, k4 s4", 4, (112, 112), 3, 96, 4, {"stride": 4, "padding": 0}),
    ("patches 3 to 768, k16 s16", 8, (224, 224), 3, 768, 16, {"stride": 16, "padding": 0}),
    ("patches 3 to 1024, k14 s14", 2, (224, 224), 3, 1024, 14, {"stride": 14, "padding": 0}),
    ("patches 1 to 384, k16 s16", 2, (128, 1024), 1, 384, 16, {"stride": 16, "padding": 0}),
    ("patches 3 to 48, k8 s8", 8, (128, 128), 3, 48, 8, {"stride": 8, "padding": 0}),
    ("patches 3 to 512, k4 s4", 8, (64, 64), 3, 512, 4, {"stride": 4, "padding": 0}),
    ("patches 3 to 8, k4 s4", 8, (128, 128), 3, 8, 4, {"stride": 4, "padding": 0}),
    ("patches 4 to 1152, k2 s2", 8, (32, 32), 4, 1152, 2, {"stride": 2, "padding": 0}),
    ("patches 3 to 32, k2 s2", 8, (64, 64), 3, 32, 2, {"stride": 2, "padding": 0}),
    ("patches 8 to 128, k4 s4", 8, (128, 128), 8, 128, 4, {"stride": 4, "padding": 0}),
    ("patches 64 to 64, k8 s8", 2, (128, 128), 64, 64, 8, {"stride": 8, "padding": 0}),
    ("patches 128 to 128, k4 s4", 4, (56, 56), 128, 128, 4, {"stride": 4, "padding": 0}),
    ("patches 384 to 768, k2 s2", 8, (14, 14), 384, 768, 2, {"stride": 2, "padding": 0}),
    ("1-D patches 1 to 256, k16 s16", 8, (16000,), 1, 256, 16, {"stride": 16, "padding": 0}),
    ("3-D patches 3 to 384, k8 s8", 1, (16, 96, 96), 3, 384, 8, {"stride": 8, "padding": 0}),
    ("64 to 256, k1", 4, (56, 56), 64, 256, 1, {"padding": 0}),
    ("256 to 512, k1 s2", 4, (28, 28), 256, 512, 1, {"stride": 2, "padding": 0}),
    ("512 to 512, k3, 7x7", 4, (7, 7), 512, 512, 3, {}),
    ("512 to 512, k3, 8x2x2", 8, (2, 2), 512, 512, 3, {}),
    ("512 to 512, k3, 4x4x4", 4, (4, 4), 512, 512, 3, {}),
    ("512 to 512, k4 s2, 8x2x2", 8, (2, 2), 512, 512, 4, {"stride": 2}),
    ("512 to 512, k4 s2, 8x4x4", 8, (4, 4), 512, 512, 4, {"stride": 2}),
    ("256 to 256, k3, 8x2x2", 8, (2, 2), 256, 256, 3, {}),
    ("1024 to 1024, k1, 8x2x2", 8, (2, 2), 1024, 1024, 1, {"padding": 0}),
    (
        "256 to 108, k8 s5 d3, 7x9x9",
        7,
        (9, 9),
        256,
        108,
        8,
        {"stride": 5, "padding": 9, "dilation": 3},
    ),
    ("1-D 512 to 512, k5, 8x8", 8, (8,), 512, 512, 5, {"padding": 2}),
    ("64 to 64, k3, batch 1", 1, (56, 56), 64, 64, 3, {}),
    ("8 to 8, k3, 1x8x8", 1, (8, 8), 8, 8, 3, {}),
    ("32 to 32, k15", 4, (40, 40), 32, 32, 15, {"padding": 7}),
    ("1-D 64 to 64, k31", 4, (4000,), 64, 64, 31, {"padding": 15}),
    ("16 to 16, k15 s2", 4, (40, 40), 16, 16, 15, {"stride": 2, "padding": 7}),
    ("16 to 16, k16 s8", 4, (64, 64), 16, 16, 16, {"stride": 8, "padding": 4}),
    ("64 to 64, k15 s4", 4, (40, 40), 64, 64, 15, {"stride": 4, "padding": 7}),
    ("1-D 16 to 16, k15", 4, (2048,), 16, 16, 15, {"padding": 7}),
    ("1-D 16 to 32, k16 s8", 4, (1024,), 16, 32, 16, {"stride": 8, "padding": 4}),
    ("1-D 32 to 64, k16 s8", 4, (1024,), 32, 64, 16, {"stride": 8, "padding": 4}),
    ("1-D 64 to 64, k15 s2", 4, (2048,), 64, 64, 15, {"stride": 2, "padding": 7}),
    ("1-D 64 to 64, k31 s4", 4, (2048,), 64, 64, 31, {"stride": 4, "padding": 15}),
    ("1-D 128 to 256, k16 s8", 4, (1024,), 128, 256, 16, {"stride": 8, "padding": 4}),
    ("1-D 256 to 256, k15 s4", 4, (1024,), 256, 256, 15, {"stride": 4, "padding": 7}),
    ("32 to 32, k5", 4, (40, 40), 32, 32, 5, {"padding": 2}),
    ("depthwise 128, k3", 4, (56, 56), 128, 128, 3, {"groups": 128}),
    ("depthwise 96, k7", 4, (56, 56), 96, 96, 7, {"groups": 96, "padding": 3}),
    ("depthwise 96, k3 s2", 4, (56, 56), 96, 96, 3, {"groups": 96, "stride": 2}),
    ("depthwise 32 to 64, k3", 4, (56, 56), 32, 64, 3, {"groups": 32}),
    ("depthwise 17, k3", 4, (56, 56), 17, 17, 3, {"groups": 17}),
    ("depthwise 64, k3 d4", 4, (56, 56), 64, 64, 3, {"groups": 64, "padding": 4, "dilation": 4}),
    ("2 groups, 64 to 64, k3", 4, (56, 56), 64, 64, 3, {"groups": 2}),
    ("32 groups, 128 to 128, k3", 4, (56, 56), 128, 128, 3, {"groups": 32}),
    ("3 groups, 21 to 21, k3", 4, (56, 56), 21, 21, 3, {"groups": 3}),
    ("1-D 64 to 64, k3", 4, (4000,), 64, 64, 3, {}),
    ("1-D 64 to 64, k2 d64", 4, (4000,), 64, 64, 2, {"padding": 32, "dilation": 64}),
    ("1-D 64 to 128, k16 s8", 4, (2048,), 64, 128, 16, {"stride": 8, "padding": 4}),
    ("1-D depthwise 64, k5", 4, (4000,), 64, 64, 5, {"padding": 2, "groups": 64}),
    ("1-D 1 to 32, k5 s2", 4, (16000,), 1, 32, 5, {"stride": 2, "padding": 2}),
    ("3-D 16 to 16, k3", 1, (32, 32, 32), 16, 16, 3, {}),
    ("3-D 1 to 16, k3", 1, (32, 32, 32), 1, 16, 3, {}),
    ("3-D 32 to 64, k2 s2", 1, (32, 32, 32), 32, 64, 2, {"stride": 2, "padding": 0}),
    ("3-D depthwise 32, k3", 1, (32, 32, 32), 32, 32, 3, {"groups": 32}),
    ("3-D 4 groups, 32 to 32, k3", 1, (24, 24, 24), 32, 32, 3, {"groups": 4}),
    ("3-D 32 to 32, k1", 1, (32, 32, 32), 32, 32, 1, {"padding": 0}),
]
# Of this only windows that do not overlap have a choice.
PRODUCT_DTYPE = "float64"
ROUNDS = 9
# No operator takes longer than that by each backend, except in its first round.
SECONDS = 3.0
# A sample lasts at least that long, in as many calls as it takes.
SAMPLE_SECONDS = 2e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", default="float32,bfloat16,float16,float64")
    parser.add_argument("--only", default="", help="problems whose names match")
    parser.add_argument("--json", metavar="OUT")
    arguments = parser.parse_args()
    found = registry.require("cpu")
    if found.reason is not None:
        raise SystemExit(f"there are no CPU handlers to measure: {found.reason}")
    isa = {key: value for key, value in os.environ.items() if key.startswith("ONEDNN_")}
    head = measured.header("cpu", "ms", environment=isa)
    print(f"{provenance.describe_device()}, {dict(found.versions)}, load {os.getloadavg()}")
    rows: list[dict[str, Any]] = []
    worker = make_worker()
    for layer in layers(arguments.dtypes.split(",")):
        if not re.search(arguments.only, layer.label):
            continue
        for pass_ in layer.passes:
            row: dict[str, Any] = {"case": layer.label, "pass": pass_, "layer": layer.to_json()}
            try:
                row |= worker.submit(survey, layer, pass_).result()
            except BrokenProcessPool:
                row["failure"] = "the process crashed"
                worker = make_worker()
            rows.append(row)
            print(line(row), flush=True)
            if arguments.json:
                measured.write(arguments.json, head, rows)
    worker.shutdown()


def make_worker() -> concurrent.futures.ProcessPoolExecutor:
    return concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def layers(dtypes: list[str]) -> list[measured.Layer]:
    """The problems above in each dtype, and the published resizes."""
    short = {long: name for name, long in DTYPES.items()}
    found = []
    for dtype in dtypes:
        for name, batch, spatial, cin, cout, kernel, other in PROBLEMS:
            if dtype == PRODUCT_DTYPE and "patches" not in name:
                continue
            sizes = {"n": batch, "sp": list(spatial), "cin": cin, "cout": cout, "k": kernel}
            rest = {
                "s": other.get("stride", 1),
                "p": other.get("padding", 1),
                "d": other.get("dilation", 1),
                "g": other.get("groups", 1),
            }
            entry = {"name": name, "kind": "conv", "dt": short[dtype], **sizes, **rest}
            found.append(measured.Layer.parse(entry, f"{name}, {dtype}"))
        found += [
            measured.Layer(case)
            for case in case_files.published("cpu")
            if case.kind == "resize" and DTYPES[case.dtype] == dtype
        ]
    return found


def survey(layer: measured.Layer, pass_: str) -> dict[str, float]:
    """Milliseconds of one operator by each backend that has it."""
    features = problems.features_of(layer.problem(pass_))
    if not isinstance(features, problems.ConvFeatures):
        backends = ["native", "xla"]
    else:
        backends = ["xla_rewritten"]
        if call_dtype("cpu", features.dtype) in registry.require("cpu").dtypes:
            backends.insert(0, "onednn")
        if features.has_nonoverlapping_windows:
            backends.append("gemm")
    with jax.enable_x64(layer.case.dtype == "f64"):
        inputs = forms.Inputs.random(layer.case, np.random.default_rng(0))
        calls, arrays = {}, None
        for backend in backends:
            with override_backend(backend):
                (runner, *_) = forms.FORMS["ours"].runners(layer.case, pass_, "NHWC")
                arrays = runner.load(inputs) if arrays is None else arrays
                jax.block_until_ready(runner.call(arrays))
            calls[backend] = runner.call
        return {b: float(f"{1e3 * s:.4g}") for b, s in medians(calls, arrays).items()}


def medians(calls: dict[str, Callable[[Any], Any]], arrays: Any) -> dict[str, float]:
    """Seconds a call, the backends taking turns."""

    def seconds(backend: str, count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            jax.block_until_ready(calls[backend](arrays))
        return (time.perf_counter() - start) / count

    counts = {b: max(1, math.ceil(SAMPLE_SECONDS / seconds(b, 1))) for b in calls}
    samples: dict[str, list[float]] = {backend: [] for backend in calls}
    started = time.perf_counter()
    for _ in range(ROUNDS):
        for backend, times in samples.items():
            times.append(seconds(backend, counts[backend]))
        if time.perf_counter() - started > SECONDS * len(calls):
            break
    return {backend: statistics.median(times) for backend, times in samples.items()}


def line(row: dict[str, Any]) -> str:
    times = [
        f"{b} {row[b]:8.4g}"
        for b in ("onednn", "xla_rewritten", "gemm", "native", "xla")
        if b in row
    ]
    return "  ".join([f"{row['case']:60} {row['pass']:5}", *times, row.get("failure", "")])


if __name__ == "__main__":
    main()

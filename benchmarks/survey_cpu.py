"""The measurement behind the CPU rows of `jax_convgrad/routes.py`.

    python benchmarks/survey_cpu.py [float32|bfloat16|float16|float64] [--only REGEX] [--markdown OUT.md]

Each operator of each problem by the oneDNN handler, which has the first two dtypes, and by the pure-JAX
route, interleaved in one run, the median of several rounds in milliseconds. Where windows lie side by side
a matrix product is the third. Problems are channels-last; a time is marked where the handler loses by more
than 5 %. Strides and dilations with a common factor are divided by it first, as the package does.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import platform
import re
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_convgrad._src.conv import arguments, emit_ffi, emit_gemm, emit_xla
from jax_convgrad._src.conv.geometry import ConvGeometry
from jax_convgrad._src.conv.subsample import subsample
from jax_convgrad._src.dtypes import FLOAT_DTYPES
from jax_convgrad._src.runtime import registry

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
ROUNDS = 9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dtype", nargs="?", default="float32", choices=FLOAT_DTYPES)
    parser.add_argument("--only", default="", help="problems whose names match")
    parser.add_argument("--markdown", metavar="OUT.md")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", arguments.dtype == "float64")
    found = registry.require("cpu")
    if found.reason is not None:
        raise SystemExit(f"there are no CPU handlers to measure: {found.reason}")
    lines = [
        f"# Handler against pure JAX, {arguments.dtype}, channels-last",
        "",
        f"{os.cpu_count()} cores of {cpu_name()}; jax {jax.__version__}, {dict(found.versions)}. "
        "Milliseconds, handler / pure JAX (/ matrix product), medians of "
        f"{ROUNDS} interleaved rounds; bold where the handler loses by more than 5 %.",
        "",
        "| problem | fprop | dgrad | wgrad |",
        "|---|---|---|---|",
    ]
    print("\n".join(lines))
    for problem in (entry for entry in PROBLEMS if re.search(arguments.only, entry[0])):
        lines.append(row(arguments.dtype, *problem))
        print(lines[-1], flush=True)
    if arguments.markdown:
        with open(arguments.markdown, "w") as file:
            file.write("\n".join(lines) + "\n")


def row(
    dtype: str,
    name: str,
    batch: int,
    spatial: tuple[int, ...],
    in_channels: int,
    out_channels: int,
    kernel: int,
    other: dict[str, int],
) -> str:
    rank, letters = len(spatial), "HWD"[: len(spatial)]
    groups, padding = other.get("groups", 1), other.get("padding", 1)
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(batch, *spatial, in_channels)), dtype)
    w = jnp.asarray(
        rng.normal(size=(kernel,) * rank + (in_channels // groups, out_channels)), dtype
    )
    config = arguments.make_config(
        "survey",
        x.shape,
        w.shape,
        strides=other.get("stride", 1),
        padding=[(padding, padding)] * rank,
        dilation=other.get("dilation", 1),
        groups=groups,
        dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
    )
    if smaller := subsample(config, x.shape):  # as in primitives.py
        x, config = smaller.take(x), smaller.config
    geometry = ConvGeometry.make("survey", config, x.shape, w.shape)
    y_shape = geometry.y_shape
    dy = jnp.asarray(rng.normal(size=y_shape), dtype)
    ours: dict[str, Any] = {
        "platform": "cpu",
        "config": config,
        "precision": None,
        "result_dtype": dtype,
    }
    jaxs: dict[str, Any] = {"config": config, "precision": None, "preferred_element_type": dtype}
    operators = (
        ("conv_fprop", (x, w), {"y_shape": y_shape}, {}),
        ("conv_dgrad", (dy, w), {"x_shape": x.shape}, {"x_shape": x.shape}),
        ("conv_wgrad", (x, dy), {"w_shape": w.shape}, {"w_shape": w.shape}),
    )
    cells = []
    for operator, arrays, our_shape, jax_shape in operators:
        forms = [functools.partial(getattr(emit_xla, operator), **jaxs, **jax_shape)]
        if geometry.tiles:
            shape = jax_shape if operator == "conv_dgrad" else {}
            forms.append(functools.partial(getattr(emit_gemm, operator), **jaxs, **shape))
        if served := dtype in registry.require("cpu").dtypes:
            forms.insert(0, functools.partial(getattr(emit_ffi, operator), **ours, **our_shape))
        times = medians([jax.jit(form) for form in forms], arrays)
        cell = " / ".join(([] if served else ["-"]) + [*map(show, times)])
        cells.append(f"**{cell}**" if served and times[0] > 1.05 * min(times[1:]) else cell)
    return f"| {name} | " + " | ".join(cells) + " |"


def medians(functions: list[Callable[..., Any]], arrays: tuple[Any, ...]) -> list[float]:
    """Milliseconds per call, the functions taking turns."""
    samples: list[list[float]] = [[] for _ in functions]
    for function in functions:
        jax.block_until_ready(function(*arrays))
    for _ in range(ROUNDS):
        for function, times in zip(functions, samples, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(function(*arrays))
            times.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(times) for times in samples]


def show(milliseconds: float) -> str:
    return f"{milliseconds:.{max(0, 2 - int(math.log10(max(milliseconds, 0.1))))}f}"


def cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(
                line.partition(":")[2].strip() for line in file if line.startswith("model name")
            )
    except (OSError, StopIteration):
        return platform.processor() or "an unknown processor"


if __name__ == "__main__":
    main()

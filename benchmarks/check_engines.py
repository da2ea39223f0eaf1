"""Runs every engine there is on small problems, and lists those that compute wrong numbers.

    python benchmarks/check_engines.py --seconds 100

The problems are the test suite's, filled with small integers, of which every sum is exact. A result may
differ where an engine transforms (Winograd, FFT) or rounds partial sums; one that is off by more than a
tenth of the largest value is wrong. What the handlers keep out (cpp/cuda/wrong_engines.cc) rests on this
list, and is not among the engines that are run.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import re
import sys
import time
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))

import jax
import jax.numpy as jnp
import numpy as np
from cases import PLAIN_CASES, Case, conv_oracle, from_layout, to_layout

import jax_convgrad
from jax_convgrad import handlers, plans, registry, shapes

# Problems beside the suite's: groups and depth in sizes that more engines accept.
MORE_CASES = [
    Case("3d-groups2", (1, 4, 5, 6, 7), (6, 2, 2, 2, 3), groups=2),
    Case("3d-groups2-stride", (1, 4, 5, 6, 7), (6, 2, 2, 2, 3), (1, 2, 1), groups=2),
    Case("3d-groups2-dilation", (1, 4, 5, 6, 7), (6, 2, 2, 2, 3), (), "VALID", (2, 1, 2), 2),
    Case(
        "3d-groups2-padding",
        (1, 4, 5, 6, 7),
        (6, 2, 2, 2, 3),
        (),
        ((1, 0), (0, 2), (1, 1)),
        groups=2,
    ),
    Case("3d-groups2-of-8", (2, 16, 4, 5, 4), (16, 8, 2, 2, 2), groups=2),
    Case("3d-groups4-of-4", (2, 16, 4, 5, 4), (32, 4, 2, 2, 2), (), "SAME", groups=4),
    Case("3d-depthwise8", (2, 8, 4, 5, 4), (8, 1, 3, 3, 3), (), "SAME", groups=8),
    Case("3d-depthwise-multiplier", (1, 4, 4, 5, 4), (8, 1, 2, 2, 2), groups=4),
    Case("2d-groups2-of-8", (2, 16, 6, 5), (16, 8, 3, 3), (), "SAME", groups=2),
    Case("2d-dense-16", (2, 16, 6, 5), (16, 16, 3, 3), (2, 2), "SAME"),
    Case("3d-dense-16", (1, 16, 4, 5, 4), (16, 16, 2, 2, 2), (2, 2, 2), "SAME"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="OUT", help="write all results as JSON")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after that many")
    parser.add_argument("--only", metavar="REGEX", default="3d|groups|depthwise|dense|dilation")
    parser.add_argument("--dtypes", default="bfloat16,float32,float16,float64")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    jax_convgrad.set_algorithm_search("exhaustive")
    if not registry.handlers("cuda").serve(registry.CONV_TARGETS["conv_fprop"], "float32"):
        sys.exit("check_engines: no CUDA handlers")
    started, rows = time.monotonic(), []
    for dtype in arguments.dtypes.split(","):
        for case in MORE_CASES + PLAIN_CASES:
            if 0 in (*case.x, *case.w, *case.y) or not re.search(arguments.only, case.id):
                continue
            for operator in registry.CONV_TARGETS:
                if time.monotonic() - started < arguments.seconds:
                    rows += check(case, dtype, operator)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=1))
    wrong = [row for row in rows if row["wrong"]]
    for row in wrong:
        print("WRONG", *row.values())
    for name, chosen in (("engines run", rows), ("wrong", wrong)):
        counts = collections.Counter((r["operator"], r["engine"].split("_")[0]) for r in chosen)
        print(
            f"{name}: {len(chosen)}:", *(f"{o[5:]} {e} {n};" for (o, e), n in counts.most_common())
        )
    if time.monotonic() - started >= arguments.seconds:
        print("out of time")


def check(case: Case, dtype: str, operator: str) -> list[dict[str, Any]]:
    """One row for each engine that runs."""
    rng = np.random.default_rng(0)
    x, w, dy = case.data(rng, dtype)
    y, dx, dw = conv_oracle(case, x, w, dy)
    x_spec, w_spec, y_spec = case.numbers
    first, second, spec, truth, shape = {
        "conv_fprop": ((x, x_spec), (w, w_spec), y_spec, y, "y_shape"),
        "conv_dgrad": ((dy, y_spec), (w, w_spec), x_spec, dx, "x_shape"),
        "conv_wgrad": ((x, x_spec), (dy, y_spec), w_spec, dw, "w_shape"),
    }[operator]
    operands = [jnp.asarray(to_layout(a, s), dtype) for a, s in (first, second)]
    x_shape, w_shape = (to_layout(a, s).shape for a, s in ((x, x_spec), (w, w_spec)))
    keywords = dict(case.operator_keywords)
    numbers = keywords.pop("dimension_numbers", None)
    defaults = {"strides": 1, "padding": "VALID", "dilation": 1, "groups": 1}
    config = shapes.make_config(
        operator, x_shape, w_shape, **(defaults | keywords), dimension_numbers=numbers
    )
    geometry = shapes.ConvGeometry.make(operator, config, x_shape, w_shape)
    crop, config = handlers._split_negative(config)
    cropped = list(geometry.x_shape)
    for axis, pair in zip(x_spec[2:], crop, strict=True):
        cropped[axis] += sum(pair)
    result_shape = {
        "y_shape": geometry.y_shape, "x_shape": tuple(cropped), "w_shape": tuple(w_shape)
    }[shape]  # fmt: skip
    if operator != "conv_dgrad":
        operands[0] = handlers._crop(operands[0], crop, x_spec)

    @jax.jit
    def run(*arrays: Any) -> Any:
        out = handlers._call(
            operator, "cuda", config, None, result_shape, jnp.dtype(dtype), *arrays
        )
        return (
            handlers._crop(out, tuple((-a, -b) for a, b in crop), x_spec)
            if shape == "x_shape"
            else out
        )

    what = {"operator": operator, "case": case.id, "dtype": dtype}
    plans.clear()
    try:
        jax.block_until_ready(run(*operands))
    except jax.errors.JaxRuntimeError as error:
        return [what | {"engine": "none", "error": str(error)[:300], "wrong": False}]
    (plan,) = plans.list()
    rows = []
    for engine in [t["engine"] for t in plan["tried"] if not t["failure"]]:
        plans.clear()
        registry.cuda_module().remember_choices([(plan["problem"], engine)])
        got = np.asarray(from_layout(run(*operands), spec)).astype(np.float64)
        (used,) = plans.list()
        if used["engine"] != engine:
            continue
        error = float(np.abs(got - truth).max() / max(np.abs(truth).max(), 1))
        rows.append(what | {"engine": engine, "error": error, "wrong": not error < 0.1})
    return rows


if __name__ == "__main__":
    main()

"""Runs every available engine on many small problems, and lists those that compute wrong numbers.

    python benchmarks/check_engines.py --seconds 100

`python -m jax_convgrad check-engines` does so with a few. These problems are those of the test suite, filled
with small integers so that every sum is exact. A result may differ where an engine transforms (Winograd, FFT)
or rounds partial sums. A result that is off by more than a tenth of the largest value is wrong. The errata
(cpp/cuda/cudnn/errata.cc) rest on this list. Engines that they exclude are not run. The five kinds of
arithmetic ("strict" is float32 without TF32) take turns on every problem. The problems are ordered so that
any beginning of the list is a sample: a run that is short of time has seen some of everything.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from functools import partial
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))

import jax
import jax.numpy as jnp
import numpy as np
from support.conv_cases import PLAIN_CASES, Case
from support.conv_oracle import conv_oracle
from support.layouts import from_layout, to_layout

import jax_convgrad
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.runtime import registry
from jax_convgrad.bench.engines import ARITHMETIC, TOLERANCE, error, results_of_engines

# Problems in addition to the suite's: groups and depth in sizes that more engines accept.
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


# Cases with errata, or with engines of their own, come first.
FIRST = "3d|groups|depthwise|dense|dilation|asymmetric|uneven|even"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="OUT", help="write all results as JSON")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this many seconds")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument(
        "--only", metavar="REGEX", default=".", help="only problems whose name matches"
    )
    parser.add_argument("--dtypes", default=",".join(ARITHMETIC))
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part is None:
        rows, done = in_processes(arguments)
        if arguments.json:
            pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=1))
        report(arguments, rows, done)
    else:
        print(json.dumps(run_part(arguments)))


def in_processes(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str]]:
    """All rows, and the kind of arithmetic of every problem that the run reached."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    running = [
        subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--part", str(part)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for part in range(arguments.jobs)
    ]
    rows, done = [], []
    for part, process in enumerate(running):
        output, _ = process.communicate()
        if process.returncode != 0:
            sys.exit(f"check_engines: process {part} failed: exit status {process.returncode}")
        own, kinds = json.loads(output.splitlines()[-1])
        rows += own
        done += kinds
    return rows, done


def run_part(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str]]:
    jax.config.update("jax_enable_x64", True)
    jax_convgrad.set_algorithm_search("exhaustive")
    if not registry.require("cuda").serves(registry.CONV_TARGETS["conv_fprop"], "float32"):
        sys.exit("check_engines: no CUDA handlers")
    started, rows, done = time.monotonic(), [], []
    every = [*itertools.product(problems(arguments.only), arguments.dtypes.split(","))]
    for problem, kind in every[arguments.part :: arguments.jobs]:
        if time.monotonic() - started >= arguments.seconds:
            break
        rows += check(*problem, kind)
        done.append(kind)
    return rows, done


def report(arguments: argparse.Namespace, rows: list[dict[str, Any]], done: list[str]) -> None:
    kinds, total = arguments.dtypes.split(","), len(problems(arguments.only))
    wrong = [row for row in rows if row["wrong"]]
    for row in wrong:
        print("WRONG", *row.values())
    for name, chosen in (("engines run", rows), ("wrong", wrong)):
        counts = collections.Counter((r["operator"], r["engine"].split("_")[0]) for r in chosen)
        print(
            f"{name}: {len(chosen)}:", *(f"{o[5:]} {e} {n};" for (o, e), n in counts.most_common())
        )
    for kind in kinds:
        own = [row for row in rows if row["dtype"] == kind]
        none = sum(row["engine"] == "none" for row in own)
        print(
            f"{kind}: {done.count(kind)} of {total} problems, {len(own) - none} engines run, "
            f"{none} problems without an engine, {sum(row['wrong'] for row in own)} wrong"
        )
    if len(done) < total * len(kinds):
        print("out of time")


def problems(only: str) -> list[tuple[Case, str]]:
    """(case, operator): FIRST, then the others, each spread evenly."""
    cases = [
        case
        for case in MORE_CASES + PLAIN_CASES
        if 0 not in (*case.x, *case.w, *case.y) and re.search(only, case.id)
    ]
    every = [*itertools.product(cases, registry.CONV_TARGETS)]
    spread = [every[i] for i in np.random.default_rng(0).permutation(len(every))]
    return sorted(spread, key=lambda problem: re.search(FIRST, problem[0].id) is None)


def check(case: Case, operator: str, kind: str) -> list[dict[str, Any]]:
    """One row for each engine that runs."""
    dtype, precision = ARITHMETIC[kind]
    rng = np.random.default_rng(0)
    x, w, dy = case.data(rng, dtype)
    y, dx, dw = conv_oracle(case, x, w, dy)
    x_spec, w_spec, y_spec = case.numbers
    x, w, dy = (
        jnp.asarray(to_layout(a, s), dtype) for a, s in ((x, x_spec), (w, w_spec), (dy, y_spec))
    )
    keywords = case.operator_keywords | {"precision": precision}
    run, operands, spec, truth = {
        "conv_fprop": (partial(jax_convgrad.conv_fprop, **keywords), (x, w), y_spec, y),
        "conv_dgrad": (
            partial(jax_convgrad.conv_dgrad, x_shape=x.shape, **keywords), (dy, w), x_spec, dx
        ),
        "conv_wgrad": (
            partial(jax_convgrad.conv_wgrad, w_shape=w.shape, **keywords), (x, dy), w_spec, dw
        ),
    }[operator]  # fmt: skip

    def result() -> Any:
        # A program keeps its engine, so that each engine needs a program of its own.
        with override_backend("cudnn"):
            return jax.block_until_ready(jax.jit(run)(*operands))

    what = {"operator": operator, "case": case.id, "dtype": kind}
    rows = []
    for engine, found in results_of_engines(result):
        if engine == "none":
            rows.append(what | {"engine": engine, "error": found[:300], "wrong": False})
            continue
        difference = error(from_layout(found, spec), truth)
        wrong = not difference < TOLERANCE
        rows.append(what | {"engine": engine, "error": difference, "wrong": wrong})
    return rows


if __name__ == "__main__":
    main()

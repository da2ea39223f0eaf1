"""What one call for dx and dw would gain in training steps under install(), CPU.

    python benchmarks/one_backward_call.py --rounds 60 --json OUT.json

JAX differentiates `lax.conv_general_dilated` itself, so install() computes dx and dw of a layer in two calls.
The JVP rule of this package's own layers transposes to one `conv_backward`, which reads dy once in depthwise
layers. This program traces each step twice, once with lax's JVP rule and once with ours in its place, and
times both in turns. The package itself never replaces the rule.

Seconds are medians; the ratio is the median of the ratios of each turn, two for two, with its quartiles.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import measured
import models
import models_tasks
import numpy as np
from jax import lax
from jax.interpreters import ad

import jax_convgrad
from jax_convgrad._src.conv import tangent
from jax_convgrad._src.conv.backward import is_zero
from jax_convgrad._src.dispatch.decide import has_backward_kernel
from jax_convgrad._src.dispatch.problem import ConvBackwardProblem, ConvProblem
from jax_convgrad._src.install.match import NoMatch, match

DEPTHWISE = "ConvNeXt|MobileNet|EfficientNet|RepLKNet"
_NOT_OF_A_MATCH = {"precision", "preferred_element_type", "out_sharding"}


@contextlib.contextmanager
def one_call() -> Iterator[None]:
    """Gives lax's convolutions the JVP of this package's layers."""
    primitive = lax.conv_general_dilated_p
    theirs = ad.primitive_jvps[primitive]

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        if any(map(is_zero, tangents)):
            return theirs(primals, tangents, **params)
        y = primitive.bind(*primals, **params)
        shapes = (array.shape for array in (*primals, y))
        found = match(*shapes, **{k: v for k, v in params.items() if k not in _NOT_OF_A_MATCH})
        if isinstance(found, NoMatch) or found.operator != "conv_fprop" or found.group_axis_move:
            return theirs(primals, tangents, **params)
        dtype, precision = np.dtype(y.dtype), params["precision"]
        whole = ConvBackwardProblem(found.geometry, dtype, dtype, precision, ("x", "w"))
        if not has_backward_kernel(whole):
            return theirs(primals, tangents, **params)
        problem = ConvProblem("conv_fprop", found.geometry, dtype, dtype, precision)
        return y, tangent.conv_tangent_p.bind(*primals, *tangents, problem=problem)

    ad.primitive_jvps[primitive] = jvp
    try:
        yield
    finally:
        ad.primitive_jvps[primitive] = theirs


def calls_of(problem: models.Problem) -> int:
    """How many of the step's layers, as it is traced now, have their dx and dw from one call."""
    step, init = models.flax_step(problem.task)
    with jax_convgrad.install():
        lowered = jax.jit(step).lower(problem.weights, init(problem.weights), problem.x, problem.y)
    return lowered.as_text().count("@jax_convgrad_conv_backward")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=DEPTHWISE, help="models whose names match")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", metavar="OUT")
    arguments = parser.parse_args()
    head, rows = measured.header("cpu", "ms"), []
    small = [n for n in models_tasks.SMALL_TASKS if re.search(arguments.only, n)]
    names = dict.fromkeys(name.split(",")[0] for name in small)
    for model, dtype in itertools.product(names, ("float32", "bfloat16")):
        name = f"{model}, {dtype}"
        task = dataclasses.replace(models_tasks.SMALL_TASKS[f"{model}, float32"], dtype=dtype)
        problem = models.Problem.make(task)
        two = models.flax_contender(problem, True, False)
        with one_call():
            jax.clear_caches()
            one = models.flax_contender(problem, True, False)
            calls = calls_of(problem)
        times: dict[str, list[float]] = {"two calls": [], "one call": []}
        for contender in (two, one):
            contender.run(3)
        for turn in range(arguments.rounds):
            pair = [("two calls", two), ("one call", one)]
            for label, contender in pair if turn % 2 else pair[::-1]:
                started = time.perf_counter()
                contender.run(1)
                times[label].append((time.perf_counter() - started) * 1e3)
        ratios = np.divide(times["two calls"], times["one call"])
        rows.append(
            {
                "case": name,
                "calls": calls,
                **{label: round(statistics.median(each), 3) for label, each in times.items()},
                "ratio": [round(float(q), 4) for q in np.percentile(ratios, (50, 25, 75))],
            }
        )
        print(rows[-1], flush=True)
        if arguments.json:
            measured.write(arguments.json, head, rows)


if __name__ == "__main__":
    main()

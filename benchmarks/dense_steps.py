"""The cost of dense stride-1 layers in whole programs, by the backend that computes them.

    python benchmarks/dense_steps.py --markdown OUT.md

By itself, such a layer takes the same time with the handlers and with XLA. In a program it does not. XLA's
command buffers (CUDA graphs) hold the handlers' calls and, by default, none of its own convolutions, which
the host launches one by one. On the other hand, XLA fuses the bias and the ReLU into its own forward
convolutions. The rules for dense layers with stride 1 rest on this program's output.

The programs are training steps and forward passes of the models of models.py with install(), and of a stack
of six layers, 64 to 64 channels, 3x3, with bias and ReLU, channels first. The contenders differ in what
computes dense layers with stride 1: with "XLA", XLA computes everything; with "gradients", the handlers
compute dX and dW; with "handlers", everything. "captured": XLA's command buffers hold its convolutions too
(`CAPTURE` in models.py). The contenders take turns, in both orders, as in models.py. The table has
milliseconds a run: the median, the minimum and the maximum. "by XLA" counts XLA's convolutions.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import pathlib
import re
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import measured
import models
import models_tasks
import numpy as np
from jax import lax

import jax_convgrad
from jax_convgrad._src.dispatch import decide, tables
from jax_convgrad._src.dispatch.features import ConvFeatures
from jax_convgrad._src.dispatch.rules import Rule
from jax_convgrad._src.runtime import registry
from jax_convgrad.bench.provenance import device_name

ROUNDS = 8
SAMPLE_SECONDS = 0.2
GRADIENTS = ("conv_dgrad", "conv_wgrad")
# Which operators the handlers compute, and whether XLA's command buffers hold the others.
CONTENDERS = {
    "XLA": ((), False),
    "gradients": (GRADIENTS, False),
    "handlers": (("conv_fprop", *GRADIENTS), False),
    "XLA, captured": ((), True),
    "gradients, captured": (GRADIENTS, True),
}
Program = tuple[Callable[..., Any], tuple[Any, ...]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="REGEX", default="", help="programs whose name matches")
    parser.add_argument("--seconds", type=float, default=1e9, help="no new program after that many")
    parser.add_argument("--markdown", metavar="OUT", type=pathlib.Path)
    parser.add_argument("--json", metavar="OUT", help="what the rules cite")
    arguments = parser.parse_args()
    if not registry.require("cuda").serves(registry.CONV_TARGETS["conv_fprop"], "float32"):
        parser.error("no CUDA handlers")
    head = measured.header("cuda", "ms", kind="programs", rounds=ROUNDS)
    lines = [
        "# Dense layers with stride 1 in whole programs",
        "",
        f"`python benchmarks/dense_steps.py` on {device_name()}; "
        f"{', '.join(f'{k} {v}' for k, v in models.versions().items())}.",
        "",
        f"| program | {' | '.join(f'{c}, ms (by XLA)' for c in CONTENDERS)} |",
        "|---|" + "---|" * len(CONTENDERS),
    ]
    started, rows = time.monotonic(), []
    for name, make in programs():
        if not re.search(arguments.only, name):
            continue
        if time.monotonic() - started > arguments.seconds:
            lines += ["", "Stopped by the time limit."]
            break
        found = measure(*make())
        lines.append(markdown(name, found))
        print(lines[-1], flush=True)
        rows += rows_of(name, found)
        if arguments.markdown:
            arguments.markdown.write_text("\n".join(lines) + "\n")
        if arguments.json:
            measured.write(arguments.json, head, rows)


def programs() -> Iterator[tuple[str, Callable[[], Program]]]:
    """What there is to run: a name, and what makes the function with its arguments."""
    for name in ("bfloat16", "float32"):
        yield f"six layers, {name}: step", partial(six_layers, name, step=True)
        yield f"six layers, {name}: forward", partial(six_layers, name, step=False)
    for name, task in models_tasks.TASKS.items():
        if task.kind != "unet" or len(task.x) == 4:  # 3-D is the handlers' altogether
            yield f"{name}: step", partial(of_model, task, step=True)
            yield f"{name}: forward", partial(of_model, task, step=False)


def six_layers(dtype: str, step: bool) -> Program:
    rng = np.random.default_rng(0)
    weights = [
        (
            jnp.asarray(0.05 * rng.standard_normal((64, 64, 3, 3)), dtype),
            jnp.zeros((64, 1, 1), dtype),
        )
        for _ in range(6)
    ]
    x = jnp.asarray(rng.standard_normal((64, 64, 56, 56)), dtype)

    def forward(weights: Any, x: Any) -> Any:
        for w, bias in weights:
            x = jax.nn.relu(lax.conv_general_dilated(x, w, (1, 1), "SAME") + bias)
        return x

    def descend(weights: Any, x: Any) -> Any:
        slopes = jax.grad(lambda weights: (forward(weights, x).astype(jnp.float32) ** 2).mean())(
            weights
        )
        return jax.tree.map(lambda w, slope: w - 0.01 * slope, weights, slopes)

    return descend if step else forward, (weights, x)


def of_model(task: Any, step: bool) -> Program:
    problem = models.Problem.make(task)
    x, y = jax.device_put((problem.x, problem.y))
    if not step:
        return task.model().apply, (problem.weights, x)
    function, init = models.flax_step(task)
    return function, (problem.weights, init(problem.weights), x, y)


@contextlib.contextmanager
def computed_by_handlers(operators: tuple[str, ...]) -> Iterator[None]:
    """Dense layers with stride 1: these operators by the handlers, the others by XLA."""

    def choose(platform: str, device_class: str | None, features: Any) -> tuple[Rule, str]:
        dense = isinstance(features, ConvFeatures) and features.is_dense
        if not dense or features.spatial_rank > 2 or features.is_strided or features.is_dilated:
            return tables.choose(platform, device_class, features)
        backend = "cudnn" if features.operator in operators else "xla"
        return Rule("to be measured", {}, backend, "to be measured", ()), device_class or ""

    with mock.patch.object(decide, "choose", choose):
        yield


@dataclasses.dataclass(frozen=True)
class Measured:
    """Of one program by one contender: milliseconds a run, and how many convolutions are XLA's."""

    times: tuple[float, ...]
    by_xla: int

    @property
    def median(self) -> float:
        return statistics.median(self.times)


def measure(function: Callable[..., Any], arguments: tuple[Any, ...]) -> dict[str, Measured]:
    """One program by each contender."""
    compiled: dict[str, Any] = {}
    samples: dict[str, list[float]] = {contender: [] for contender in CONTENDERS}
    for contender, (operators, captured) in CONTENDERS.items():
        with computed_by_handlers(operators):
            jax_convgrad.install()
            # A function of its own each, which JAX has traced and lowered for no other contender.
            options = models.CAPTURE if captured else None
            fresh = jax.jit(lambda *a: function(*a), compiler_options=options)
            compiled[contender] = fresh.lower(*arguments).compile()
            jax_convgrad.uninstall()

    def seconds(contender: str, count: int) -> float:
        begun = time.perf_counter()
        for _ in range(count):
            result = compiled[contender](*arguments)
        jax.block_until_ready(result)
        return (time.perf_counter() - begun) / count

    for contender in CONTENDERS:
        seconds(contender, 3)
    counts = {c: max(1, round(SAMPLE_SECONDS / seconds(c, 3))) for c in CONTENDERS}
    for round_ in range(ROUNDS):
        for contender in list(CONTENDERS)[:: 1 if round_ % 2 else -1]:
            seconds(contender, 1)
            samples[contender].append(1e3 * seconds(contender, counts[contender]))
    by_xla = {
        c: len(re.findall(r'custom_call_target="__cudnn\$conv', compiled[c].as_text()))
        for c in CONTENDERS
    }
    return {c: Measured(tuple(times), by_xla[c]) for c, times in samples.items()}


def markdown(name: str, found: dict[str, Measured]) -> str:
    """The line of one program."""
    cells = [
        f"{m.median:.3f}, {min(m.times):.3f} to {max(m.times):.3f} ({m.by_xla})"
        for m in found.values()
    ]
    return f"| {name} | {' | '.join(cells)} |"


def rows_of(name: str, found: dict[str, Measured]) -> list[dict[str, Any]]:
    """What a program says of the two questions: who computes the gradients, and who the forward pass.

    Programs that compute no gradients say nothing of the first.
    """
    xla, gradients, handlers = (found[c].median for c in ("XLA", "gradients", "handlers"))
    questions = {"fprop": (gradients, handlers)}
    if name.endswith("step"):
        questions["gradients"] = (xla, gradients)
    contenders = {c: {"ms": list(m.times), "by_xla": m.by_xla} for c, m in found.items()}
    return [
        {"case": name, "pass": pass_, "xla": by_xla, "cudnn": by_cudnn, "contenders": contenders}
        for pass_, (by_xla, by_cudnn) in questions.items()
    ]


if __name__ == "__main__":
    main()

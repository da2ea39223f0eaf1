"""What dense layers with stride 1 cost a whole program, by whose convolutions they are.

    python benchmarks/dense_steps.py --markdown OUT.md

Alone such a layer takes cuDNN as long by the handlers as by XLA. In a program it does not: XLA's command
buffers (CUDA graphs) hold the handlers' calls and by default none of its own convolutions, which the host
launches one by one; but to its own forward convolutions XLA adds the bias, and takes the maximum with zero,
in the same kernel. `_cuda_dense` in jax_convgrad/routes.py rests on what this prints.

The programs are training steps and forward passes of the models of models.py with install(), and of a stack
of six layers, 64 to 64 channels, 3x3, with bias and relu, channels first. The contenders differ in who
computes dense layers with stride 1: "XLA" all of it, "gradients" has the handlers compute dX and dW, and
"handlers" all. "captured": XLA's command buffers hold its convolutions too (`CAPTURE` in models.py). They
take turns, in both orders, as in models.py: milliseconds a run, medians, with the
smallest and the largest. "by XLA" counts the convolutions that are XLA's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import re
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import models
import models_flax
import numpy as np
from jax import lax

import jax_convgrad
from jax_convgrad._src.conv.geometry import ConvGeometry
from jax_convgrad._src.dispatch import routes
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
    arguments = parser.parse_args()
    if not registry.handlers("cuda").serve(registry.CONV_TARGETS["conv_fprop"], "float32"):
        parser.error("no CUDA handlers")
    lines = [
        "# Dense layers with stride 1 in whole programs",
        "",
        f"`python benchmarks/dense_steps.py` on {device_name()}; "
        f"{', '.join(f'{k} {v}' for k, v in models.versions().items())}.",
        "",
        f"| program | {' | '.join(f'{c}, ms (by XLA)' for c in CONTENDERS)} |",
        "|---|" + "---|" * len(CONTENDERS),
    ]
    started = time.monotonic()
    for name, make in programs():
        if not re.search(arguments.only, name):
            continue
        if time.monotonic() - started > arguments.seconds:
            lines += ["", "Stopped by the time limit."]
            break
        lines.append(measure(name, *make()))
        print(lines[-1], flush=True)
        if arguments.markdown:
            arguments.markdown.write_text("\n".join(lines) + "\n")


def programs() -> Iterator[tuple[str, Callable[[], Program]]]:
    """What there is to run: a name, and what makes the function with its arguments."""
    for name in ("bfloat16", "float32"):
        yield f"six layers, {name}: step", lambda name=name: six_layers(name, step=True)
        yield f"six layers, {name}: forward", lambda name=name: six_layers(name, step=False)
    for name, task in models_flax.TASKS.items():
        if task.kind != "unet" or len(task.x) == 4:  # 3-D is the handlers' altogether
            yield f"{name}: step", lambda task=task: of_model(task, step=True)
            yield f"{name}: forward", lambda task=task: of_model(task, step=False)


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
    measured = routes.choose

    def choose(platform: Any, operator: str, geometry: ConvGeometry, *rest: Any) -> routes.Route:
        config = geometry.config
        steps = (*config.strides, *config.dilation)
        if config.groups > 1 or geometry.spatial_rank > 2 or any(step > 1 for step in steps):
            return measured(platform, operator, geometry, *rest)
        return routes.Route("cudnn" if operator in operators else "xla", "to be measured")

    with mock.patch.object(routes, "choose", choose):
        yield


def measure(name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """The line of one program."""
    compiled, samples = {}, {contender: [] for contender in CONTENDERS}
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
    cells = []
    for contender, times in samples.items():
        by_xla = len(
            re.findall(r'custom_call_target="__cudnn\$conv', compiled[contender].as_text())
        )
        cells.append(
            f"{statistics.median(times):.3f}, {min(times):.3f} to {max(times):.3f} ({by_xla})"
        )
    return f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()

"""What the first call of a training step costs: tracing, compiling, and choosing engines.

    python benchmarks/first_call.py --seconds 300 --markdown OUT.md --json OUT.json

Two models, each written once over a module that has `conv_general_dilated` and `conv_transpose`: the
network of examples/train_superres.py, and a U-Net. Each measurement runs in its own process, so that
nothing is cached from another one. The contenders take turns: plain lax; jax_convgrad with each of the
three ways to choose engines; and jax_convgrad with the choices of an exhaustive search loaded from a
file. A search of each model comes first and does not count: it warms the file caches and produces the
choices to load.

The clock starts when JAX's backend is up and the operands are on the device. "lower" is tracing and
lowering. "compile" is XLA's compilation, including its own choice of engines. "first run" ends when the
results arrive; the handlers choose their engines in it. "step" is the median of later steps, many in a row.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any, cast

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONTENDERS = ("lax", "default", "heuristic", "exhaustive", "loaded")
PHASES = ("lower", "compile", "first run", "first call", "step")
TIMEOUT = 300

Step = Any  # a jitted function (state, *batch) -> (state, loss)


# --- The models -----------------------------------------------------------------------------------


def superres(layers: ModuleType) -> tuple[Step, tuple[Any, ...]]:
    """The training example's step at its default sizes."""
    import jax
    import numpy as np

    sys.path.insert(0, str(ROOT / "examples"))
    import train_superres as example

    defaults = example.parse_arguments([])
    rng = np.random.default_rng(0)
    params = example.init_params(rng, defaults.body, defaults.up, defaults.blocks, defaults.width)
    model = example.make_model(cast(Any, layers), defaults.body, defaults.up, defaults.blocks)
    step = jax.jit(example.make_step(model, defaults.rate, defaults.steps))
    low = rng.random((defaults.batch, defaults.patch, defaults.patch, 3)).astype(np.float32)
    high = low.repeat(2, 1).repeat(2, 2)
    return step, (example.init_adam(params), low, high)


def unet(layers: ModuleType) -> tuple[Step, tuple[Any, ...]]:
    """A U-Net in bfloat16: strided convolutions down, 2x2 transposed convolutions up."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    rng, params = np.random.default_rng(0), {}
    widths, numbers = (64, 128, 256), ("NHWC", "HWIO", "NHWC")

    def add(name: str, size: int, inputs: int, outputs: int) -> None:
        scale = (2 / (size * size * inputs)) ** 0.5
        params[name] = jnp.asarray(
            scale * rng.standard_normal((size, size, inputs, outputs)), "bfloat16"
        )

    add("in", 3, 3, widths[0])
    for level, (upper, lower) in enumerate(itertools.pairwise(widths)):
        add(f"left{level}", 3, upper, upper)
        add(f"down{level}", 3, upper, lower)
        add(f"up{level}", 2, lower, upper)
        add(f"right{level}", 3, 2 * upper, upper)
    add("middle", 3, widths[-1], widths[-1])
    add("out", 1, widths[0], 1)

    def conv(params: Any, name: str, x: Any, stride: int = 1) -> Any:
        return layers.conv_general_dilated(
            x, params[name], (stride, stride), "SAME", dimension_numbers=numbers
        )

    def loss_of(params: Any, image: Any, target: Any) -> Any:
        x, kept = jax.nn.relu(conv(params, "in", image)), []
        for level in range(len(widths) - 1):
            x = jax.nn.relu(conv(params, f"left{level}", x))
            kept.append(x)
            x = jax.nn.relu(conv(params, f"down{level}", x, 2))
        x = jax.nn.relu(conv(params, "middle", x))
        for level in reversed(range(len(widths) - 1)):
            x = layers.conv_transpose(
                x, params[f"up{level}"], (2, 2), "SAME", dimension_numbers=numbers
            )
            x = jax.nn.relu(conv(params, f"right{level}", jnp.concatenate([x, kept[level]], -1)))
        return jnp.mean((conv(params, "out", x).astype("float32") - target) ** 2)

    @jax.jit
    def step(params: Any, image: Any, target: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, image, target)
        return jax.tree.map(lambda p, g: p - (0.01 * g).astype(p.dtype), params, gradients), loss

    image = rng.standard_normal((8, 128, 128, 3)).astype(jnp.bfloat16)
    return step, (params, image, rng.random((8, 128, 128, 1)).astype(np.float32))


MODELS = {"superres": superres, "unet": unet}


# --- One measurement ------------------------------------------------------------------------------


def measure(model: str, contender: str, choices: str) -> dict[str, Any]:
    """Seconds of each phase, and the loss after the first step."""
    import jax
    import jax.numpy as jnp

    import jax_convgrad
    from jax_convgrad import plans
    from jax_convgrad._src.runtime.plans import AlgorithmSearch

    step, (state, *batch) = MODELS[model](jax.lax if contender == "lax" else jax_convgrad)
    batch = [jnp.asarray(array) for array in batch]
    jax.block_until_ready((state, batch, jnp.ones(8) + 1))
    clock = time.perf_counter
    times = [clock()]
    if contender == "loaded":
        plans.load(choices)
    elif contender != "lax":
        jax_convgrad.set_algorithm_search(cast(AlgorithmSearch, contender))
    lowered = step.lower(state, *batch)
    times.append(clock())
    compiled = lowered.compile()
    times.append(clock())
    _, loss = jax.block_until_ready(compiled(state, *batch))
    times.append(clock())
    if contender == "exhaustive":
        plans.save(choices)
    found: dict[str, Any] = {
        name: end - start for name, start, end in zip(PHASES, times, times[1:], strict=False)
    }
    found["first call"] = times[-1] - times[0]
    found["step"] = step_seconds(compiled, state, batch)
    found["loss"] = float(loss)
    found["plans"] = {}
    for plan in plans.list():
        found["plans"][plan["chosen_by"]] = found["plans"].get(plan["chosen_by"], 0) + 1
    found["device"] = jax.devices()[0].device_kind
    found["jax"] = jax.__version__
    return found


def step_seconds(step: Step, state: Any, batch: list[Any]) -> float:
    import jax

    def run(count: int) -> float:
        now, started = state, time.perf_counter()
        for _ in range(count):
            now, _ = step(now, *batch)
        jax.block_until_ready(now)
        return (time.perf_counter() - started) / count

    count = max(1, min(200, round(0.1 / max(run(2), 1e-6))))
    return statistics.median(run(count) for _ in range(7))


# --- All of them ----------------------------------------------------------------------------------


def in_process(model: str, contender: str, choices: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--measure", model, contender, choices]
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT, env=environment, check=False
    )
    if done.returncode != 0:
        sys.exit(f"first_call: {model} {contender} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--repeats", type=int, default=7, help="maximum number of rounds that count (7)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=1e9,
        help="start nothing after this many seconds and a first round",
    )
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--markdown", metavar="OUT", type=pathlib.Path)
    parser.add_argument("--json", metavar="OUT", type=pathlib.Path)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(*arguments.measure)))
        return
    models = arguments.models.split(",")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            in_process(model, "exhaustive", f"{folder}/{model}.json")
        started = time.monotonic()
        for number, (round_, model, contender) in enumerate(turns(arguments.repeats, models)):
            complete = number >= len(models) * len(CONTENDERS)
            if complete and time.monotonic() - started > arguments.seconds:
                break
            found = in_process(model, contender, f"{folder}/{model}.json")
            print(round_, model, contender, found, flush=True)
            rows.append({"model": model, "contender": contender, **found})
    text = report(rows, models)
    print("\n" + text)
    if arguments.markdown:
        arguments.markdown.write_text(text)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


def turns(rounds: int, models: list[str]) -> Iterator[tuple[int, str, str]]:
    """Round, model and contender of each measurement, in an order that rotates."""
    for round_ in range(rounds):
        for model in models:
            turn = round_ % len(CONTENDERS)
            for contender in CONTENDERS[turn:] + CONTENDERS[:turn]:
                yield round_, model, contender


def report(rows: list[dict[str, Any]], models: list[str]) -> str:
    """Medians, and for the first call also the minimum and the maximum."""
    lines = [
        "# The first call of a training step",
        "",
        f"`python benchmarks/first_call.py` on {rows[0]['device']}, jax {rows[0]['jax']}: medians of "
        "processes in turn; see the program for what the columns mean.",
        "",
        "| model | layers | processes | lower, s | compile, s | first run, s | "
        "first call, s (least to most) | over lax | step, ms |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for model in models:
        medians = {}
        for contender in CONTENDERS:
            chosen = [r for r in rows if (r["model"], r["contender"]) == (model, contender)]
            medians[contender] = {p: statistics.median(r[p] for r in chosen) for p in PHASES}
            calls = [r["first call"] for r in chosen]
            medians[contender]["range"] = f"{min(calls):.2f} to {max(calls):.2f}"
            medians[contender]["count"] = len(calls)
        for contender, m in medians.items():
            name = "lax" if contender == "lax" else f"jax_convgrad, {contender}"
            ratio = m["first call"] / medians["lax"]["first call"]
            lines.append(
                f"| {model} | {name} | {m['count']} | {m['lower']:.2f} | {m['compile']:.2f} | "
                f"{m['first run']:.2f} | "
                f"{m['first call']:.2f} ({m['range']}) | {ratio:.2f} | {1e3 * m['step']:.3f} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

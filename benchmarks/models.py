"""Training steps of whole models: Flax, Flax after install(), pure JAX, PyTorch.

    python benchmarks/models.py --markdown OUT.md --json OUT.json

models_tasks.py names the models and their sizes. models_flax.py and models_flax_depthwise.py have them,
written as a user of Flax writes them. models_torch.py and models_torch_depthwise.py have the same models in
PyTorch, which get the same weights. A step computes the mean squared error, its gradients, and an Adam
update, on the same batch every time. bfloat16 is what users of each library call mixed precision: weights in
float32, the layers' computation in bfloat16 (`dtype=` in Flax, `autocast` in PyTorch).

The contenders of a model are compiled and warmed up. Then they take turns, in an order that rotates. A
sample is a quarter of a second of steps in a row with one wait at the end, as in a
training loop. Results are medians. PyTorch runs in both memory formats (one for 1-D models), with
cudnn.benchmark on and TF32 allowed, as in JAX's default. "compile" is the time to trace, lower and compile
the step, each in its own process so that nothing is cached from another; it includes loading the handlers'
libraries. Losses are those of the first ten steps from the same weights; "differ" is the largest
relative difference from Flax's loss.

"pure JAX" is the step after install() without any handler: every convolution is matched to its operator,
which is emitted as plain JAX in the form that XLA runs best. A careful user can reach that without custom
calls.

On a GPU the contenders Flax and install() run once more, "captured": XLA then puts its own convolutions
into its command buffers (CUDA graphs), which it does not do by default. This is what
XLA_FLAGS=--xla_gpu_enable_command_buffer=+CONVOLUTION does.

With --alone, "alone" is the sum of the times of the step's convolutions and resizes, each on its backend and
measured by itself (`explain` with `measure=True`), and their useful operations: with install() no step can
be faster, whatever else it contains.

--small selects models that two CPU cores can train. PyTorch's threads disturb others on a CPU unless
OMP_WAIT_POLICY=PASSIVE is in the environment; this program sets it.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import json
import math
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

FLAX, INSTALL, TORCH, TORCH_LAST = "Flax", "install()", "PyTorch", "PyTorch, channels last"
PURE = "pure JAX"
FLAX_CAPTURED, INSTALL_CAPTURED = f"{FLAX}, captured", f"{INSTALL}, captured"
# Options of jax.jit: XLA's default and CONVOLUTION. One program cannot add to the default.
CAPTURE = {
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,CONDITIONAL,"
    "DYNAMIC_SLICE_FUSION,CONVOLUTION"
}
STEPS_COMPARED = 10
SAMPLE_SECONDS = 0.25
TIMEOUT = 900


@dataclasses.dataclass
class Contender:
    """A training loop. ``run`` takes a number of steps, waits, and returns the last loss."""

    name: str
    run: Callable[[int], float]
    losses: list[float] = dataclasses.field(default_factory=list)
    samples: list[float] = dataclasses.field(default_factory=list)
    steps: int = 1


# --- The contenders -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Problem:
    """A task with its data and first weights."""

    task: Any
    x: Any
    y: Any
    weights: Any

    @classmethod
    def make(cls, task: Any) -> Problem:
        import jax
        import numpy as np

        rng = np.random.default_rng(0)
        x, y = (rng.standard_normal(shape, np.float32) for shape in (task.x, task.y))
        return cls(task, x, y, jax.jit(task.model().init)(jax.random.key(0), x))


def flax_step(task: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The step of a Flax user's program, not compiled, and the function that makes its optimizer state."""
    import jax
    import jax.numpy as jnp
    import optax

    model, adam = task.model(), optax.adam(1e-4)

    def loss(weights: Any, x: Any, y: Any) -> Any:
        return jnp.mean((model.apply(weights, x).astype(jnp.float32) - y) ** 2)

    def step(weights: Any, state: Any, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, x, y)
        updates, state = adam.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, value

    return step, adam.init


def flax_contender(
    problem: Problem, installed: bool, captured: bool, backend: str | None = None
) -> Contender:
    """The compiled step, with or without install(). A compiled program does not change after uninstall().

    ``captured``: with XLA's convolutions in its command buffers. ``backend``: the one that every operator is
    sent to, instead of the backend that the rules choose.
    """
    import jax

    import jax_convgrad
    from jax_convgrad._src.dispatch.override import override_backend

    step, init = flax_step(problem.task)
    data = jax.device_put((problem.x, problem.y))
    arguments = problem.weights, init(problem.weights), *data
    jax_convgrad.uninstall()
    if installed:
        jax_convgrad.install()
    options = CAPTURE if captured else None
    with override_backend(backend):
        compiled = jax.jit(step, compiler_options=options).lower(*arguments).compile()
    jax_convgrad.uninstall()
    latest = {"state": arguments[:2]}

    def run(count: int) -> float:
        for _ in range(count):
            *state, value = compiled(*latest["state"], *arguments[2:])
            latest["state"] = state
        jax.block_until_ready(state)
        return float(value)

    names = (FLAX_CAPTURED, INSTALL_CAPTURED) if captured else (FLAX, INSTALL)
    return Contender(PURE if backend else names[installed], run)


def torch_contender(problem: Problem, channels_last: bool) -> Contender:
    """The same step in PyTorch."""
    import jax
    import models_flax_layers
    import models_torch_layers
    import torch

    from jax_convgrad._src.timing.processors import cpu_threads

    on_gpu = jax.default_backend() == "gpu"
    device = torch.device("cuda" if on_gpu else "cpu")
    if not on_gpu:
        torch.set_num_threads(cpu_threads())
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    task = problem.task
    model = task.torch_model()
    order = models_flax_layers.weights_in_order(task.model(), problem.weights, problem.x)
    models_torch_layers.load(model, order)
    rank = max(len(task.x), len(task.y)) - 2
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}
    memory = formats[rank] if channels_last else torch.contiguous_format
    model = model.to(device)
    if channels_last:
        model = model.to(memory_format=memory)

    def tensor(array: Any) -> Any:
        t = torch.from_numpy(array).to(device)
        if t.ndim == 2:
            return t
        t = t.permute(0, t.ndim - 1, *range(1, t.ndim - 1))
        return t.contiguous(memory_format=memory)

    x, y = tensor(problem.x), tensor(problem.y)
    adam = torch.optim.Adam(model.parameters(), lr=1e-4)
    mixed = task.dtype == "bfloat16"

    def run(count: int) -> float:
        for _ in range(count):
            adam.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=mixed):
                out = model(x)
            loss = torch.mean((out.float() - y) ** 2)
            loss.backward()
            adam.step()
        if on_gpu:
            torch.cuda.synchronize()
        return float(loss.detach())

    return Contender(TORCH_LAST if channels_last else TORCH, run)


def contenders(problem: Problem) -> list[functools.partial[Contender]]:
    """The contenders, made one after the other."""
    import jax

    from jax_convgrad._src.dispatch.decide import fallback

    makers = [
        functools.partial(flax_contender, problem, installed, captured)
        for captured in ((False, True) if jax.default_backend() == "gpu" else (False,))
        for installed in (False, True)
    ]
    # What the package itself emits where it has no handlers.
    pure = fallback("cuda" if jax.default_backend() == "gpu" else jax.default_backend())
    makers.append(functools.partial(flax_contender, problem, True, False, pure))
    if has_torch():
        formats = (False,) if len(problem.task.y) == 3 else (False, True)
        makers += [functools.partial(torch_contender, problem, last) for last in formats]
    return makers


def has_torch() -> bool:
    """Whether PyTorch is installed and sees the device that JAX runs on."""
    if importlib.util.find_spec("torch") is None:
        return False
    import jax
    import torch

    return jax.default_backend() == "cpu" or torch.cuda.is_available()


# --- Measuring ------------------------------------------------------------------------------------


def measure(name: str, task: Any, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """One row for each contender of a model. The row of a contender that fails has its error."""
    problem = Problem.make(task)
    taking, rows = [], []
    for make in contenders(problem):
        label = f"{make.func.__name__}{make.args[1:]}"
        try:
            contender = make()
            contender.losses = [contender.run(1) for _ in range(STEPS_COMPARED)]
        except Exception as error:  # the other contenders go on
            text = str(error).strip().splitlines() or [""]
            rows.append(
                {"model": name, "by": label, "failure": f"{type(error).__name__}: {text[0]}"}
            )
            continue
        started = time.perf_counter()
        contender.run(1)
        once = time.perf_counter() - started
        contender.steps = max(1, math.ceil(SAMPLE_SECONDS / once))
        taking.append(contender)
    started = time.monotonic()
    for round_ in range(rounds):
        if round_ >= 3 and time.monotonic() - started > seconds:
            break
        turn = round_ % max(1, len(taking))
        for contender in taking[turn:] + taking[:turn]:
            contender.run(1)
            begun = time.perf_counter()
            contender.run(contender.steps)
            contender.samples.append((time.perf_counter() - begun) / contender.steps)
    first = taking[0].losses if taking and taking[0].name == FLAX else None
    return rows + [_row(name, contender, first) for contender in taking]


def _row(name: str, contender: Contender, first: list[float] | None) -> dict[str, Any]:
    differ = None
    if first is not None:
        pairs = zip(contender.losses, first, strict=True)
        differ = max(abs(a - b) / abs(b) for a, b in pairs)
    return {
        "model": name,
        "by": contender.name,
        "seconds": statistics.median(contender.samples),
        "samples": contender.samples,
        "steps": contender.steps,
        "losses": contender.losses,
        "differ": differ,
    }


def explained(task: Any, alone: bool = False) -> dict[str, Any]:
    """How many convolutions and resizes explain() finds in the step, and how many this package computes.

    If they are timed by themselves, also how long they take and how much they compute.
    """
    import jax

    import jax_convgrad

    problem = Problem.make(task)
    step, init = flax_step(task)
    rows = jax_convgrad.explain(
        jax.jit(step), problem.weights, init(problem.weights), problem.x, problem.y, measure=alone
    ).rows
    found: dict[str, Any] = {"rows": len(rows), "ours": sum(row.ours for row in rows)}
    if alone:
        found["seconds"] = sum(row.seconds if row.ours else row.xla_seconds for row in rows)
        found["operations"] = sum(row.roofline.operations for row in rows if row.roofline)
    return found


def compile_seconds(task: Any, installed: bool) -> float:
    """Seconds to lower and compile the step, in a process that has compiled nothing like it."""
    import jax

    import jax_convgrad

    problem = Problem.make(task)
    step, init = flax_step(task)
    arguments = jax.block_until_ready(
        jax.device_put((problem.weights, init(problem.weights), problem.x, problem.y))
    )
    if installed:
        jax_convgrad.install()
    started = time.perf_counter()
    jax.jit(step).lower(*arguments).compile()
    return time.perf_counter() - started


def compile_in_process(name: str, small: bool, installed: bool) -> float:
    command = [sys.executable, __file__, "--compile", name, INSTALL if installed else FLAX]
    done = subprocess.run(
        command + ["--small"] * small,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
        env={k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"},
    )
    if done.returncode != 0:
        sys.exit(f"models: compiling {name} failed:\n{done.stderr[-3000:]}")
    return float(done.stdout.splitlines()[-1])


# --- The report -----------------------------------------------------------------------------------


def report(result: dict[str, Any]) -> str:
    """A table, a line for each model."""
    columns = [FLAX, INSTALL]
    if any(row["by"] == INSTALL_CAPTURED for row in result["rows"]):
        columns += [FLAX_CAPTURED, INSTALL_CAPTURED]
    if any(row["by"] == PURE for row in result["rows"]):
        columns.append(PURE)
    if any(row["by"].startswith(TORCH) for row in result["rows"]):
        columns += [TORCH, TORCH_LAST]
    lines = [
        "# Training steps",
        "",
        f"`python benchmarks/models.py{' --small' if result['small'] else ''}` on {result['device']}; "
        f"{', '.join(f'{k} {v}' for k, v in result['versions'].items())}. Milliseconds a step, medians; "
        "see the program for what the columns mean.",
        "",
        f"| model | {' | '.join(columns)} | Flax / install() | best other / install() | losses differ: "
        "install(), PyTorch | compile, s: Flax, install() | explained, ours | alone, ms, GFLOP |",
        "|---|" + "---|" * (len(columns) + 6),
    ]
    for name in dict.fromkeys(row["model"] for row in result["rows"]):
        rows = {row["by"]: row for row in result["rows"] if row["model"] == name}
        times = {by: row.get("seconds") for by, row in rows.items()}
        ours = (INSTALL, INSTALL_CAPTURED)
        others = [t for by, t in times.items() if by not in ours and t is not None]
        cells = [_milliseconds(times.get(by)) for by in columns]
        cells.append(_ratio(times.get(FLAX), times.get(INSTALL)))
        cells.append(_ratio(min(others, default=None), times.get(INSTALL)))
        differ = [rows[by]["differ"] for by in (INSTALL, TORCH) if "differ" in rows.get(by, {})]
        cells.append(", ".join(f"{value:.1e}" for value in differ if value is not None) or "-")
        found = result["models"][name]
        cells.append(", ".join(f"{s:.2f}" for s in found["compile"]) or "-")
        seen = found["explained"]
        cells.append(f"{seen['rows']}, {seen['ours']}")
        alone = "seconds" in seen
        cells.append(
            f"{1e3 * seen['seconds']:.2f}, {seen['operations'] / 1e9:.3g}" if alone else "-"
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    failures = [row for row in result["rows"] if "failure" in row]
    if failures:
        lines += ["", *(f"- {r['model']}, {r['by']} failed: {r['failure']}" for r in failures)]
    return "\n".join(lines) + "\n"


def _milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    value = 1e3 * seconds
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _ratio(other: float | None, ours: float | None) -> str:
    return "-" if other is None or ours is None else f"{other / ours:.2f}"


def versions() -> dict[str, str]:
    import importlib.metadata as metadata

    found = {"Python": platform.python_version()}
    for name in ("jax", "jaxlib", "flax", "optax", "torch", "jax-convgrad"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="models for two CPU cores")
    parser.add_argument("--models", help="only models whose name contains this text")
    parser.add_argument(
        "--rounds", type=int, default=7, help="maximum number of samples of each (7)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=60,
        help="after 3 rounds, start none later than this (60)",
    )
    parser.add_argument("--compiles", type=int, default=1, help="processes that compile each (1)")
    parser.add_argument(
        "--alone", action="store_true", help="also time each convolution and resize by itself"
    )
    parser.add_argument("--markdown", metavar="OUT", type=pathlib.Path)
    parser.add_argument("--json", metavar="OUT", type=pathlib.Path)
    parser.add_argument("--compile", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    # Before JAX and PyTorch start: memory for both on a GPU, threads that do not spin on a CPU.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    import models_tasks

    tasks = models_tasks.SMALL_TASKS if arguments.small else models_tasks.TASKS
    if arguments.compile:
        name, by = arguments.compile
        print(compile_seconds(tasks[name], by == INSTALL))
        return
    chosen = {k: v for k, v in tasks.items() if arguments.models is None or arguments.models in k}
    if not chosen:
        parser.error(f"no model's name holds {arguments.models!r}: {', '.join(tasks)}")
    from jax_convgrad.bench.provenance import device_name

    result: dict[str, Any] = {
        "small": arguments.small,
        "device": device_name(),
        "versions": versions(),
        "models": {},
        "rows": [],
    }
    for name, task in chosen.items():
        rows = measure(name, task, arguments.rounds, arguments.seconds)
        result["models"][name] = {"compile": [], "explained": explained(task, arguments.alone)}
        result["rows"] += rows
        for row in rows:
            text = row.get("failure") or f"{_milliseconds(row['seconds'])} ms"
            print(f"{name}, {row['by']}: {text}", file=sys.stderr, flush=True)
        write(result, arguments)
    for name in chosen if arguments.compiles else ():
        found: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(arguments.compiles):
            for installed, times in found.items():
                times.append(compile_in_process(name, arguments.small, installed))
        result["models"][name]["compile"] = [statistics.median(times) for times in found.values()]
        print(f"{name}: compiled in {list(found.values())} s", file=sys.stderr, flush=True)
        write(result, arguments)
    print(report(result))


def write(result: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Writes the results so far, so that an interrupted run leaves them."""
    if arguments.markdown:
        arguments.markdown.write_text(report(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

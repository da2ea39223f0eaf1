"""Code that the examples share: the layers to compare, Adam, step times, and options."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from data_parallel import DataParallel

import jax_convgrad

DIMENSIONS = ("NHWC", "HWIO", "NHWC")
MIN_SECONDS = 0.05  # for one measurement of step times

Params = dict[str, jax.Array]
Step = Callable[..., tuple[Any, Any]]  # (state, *batch) -> (state, losses)


# --- Layers --------------------------------------------------------------------------------------


class Layers(NamedTuple):
    """The functions that a model is made of, and the library that they come from."""

    name: str
    conv_general_dilated: Callable[..., jax.Array]
    conv_transpose: Callable[..., jax.Array]
    resize: Callable[..., jax.Array]


LAYERS = {
    "ours": Layers(
        "jax_convgrad",
        jax_convgrad.conv_general_dilated,
        jax_convgrad.conv_transpose,
        jax_convgrad.resize,
    ),
    "lax": Layers("lax", jax.lax.conv_general_dilated, jax.lax.conv_transpose, jax.image.resize),
}


# --- Adam ----------------------------------------------------------------------------------------


class Adam(NamedTuple):
    """Parameters and their moments."""

    params: Params
    mean: Params
    square: Params
    step: jax.Array


def init_adam(params: Params) -> Adam:
    """Adam before its first step."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return Adam(params, zeros, zeros, jnp.zeros((), jnp.int32))


def update_adam(
    state: Adam,
    gradients: Params,
    rate: jax.Array | float,
    betas: tuple[float, float] = (0.9, 0.99),
) -> Adam:
    """One step of Adam."""
    first, second = betas
    count = state.step + 1
    mean = jax.tree.map(lambda m, g: first * m + (1 - first) * g, state.mean, gradients)
    square = jax.tree.map(lambda s, g: second * s + (1 - second) * g * g, state.square, gradients)
    now = rate * jnp.sqrt(1 - second**count) / (1 - first**count)
    params = jax.tree.map(
        lambda p, m, s: p - now * m / (jnp.sqrt(s) + 1e-8), state.params, mean, square
    )
    return Adam(params, mean, square, count)


def last_gradient(before: Adam, after: Adam, first: float = 0.9) -> jax.Array:
    """The gradients that led from one state to the next, times 1 - `first`, flat."""
    scaled = jax.tree.map(lambda new, old: new - first * old, after.mean, before.mean)
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(scaled)])


# --- Step times ----------------------------------------------------------------------------------


def run_steps(step: Step, state: Any, batch: tuple[jax.Array, ...], count: int) -> float:
    """Seconds of a number of steps, each from the state that the previous one reached."""
    started = time.perf_counter()
    for _ in range(count):
        state, _ = step(state, *batch)
    jax.block_until_ready(state)
    return time.perf_counter() - started


def compare_steps(
    steppers: dict[str, Step],
    state: Any,
    batch: tuple[jax.Array, ...],
    rounds: int,
    gradient: Callable[[Any, Any], jax.Array],
    parallel: DataParallel,
) -> tuple[dict[str, float], float]:
    """Median seconds of one training step of each, measured in turn from the same batch and state.

    Also returns the difference of the steps' gradients, relative to their norm.
    `gradient` computes them from the states before and after.
    """
    gradients = {name: gradient(state, step(state, *batch)[0]) for name, step in steppers.items()}
    # A GPU computes while the host prepares the next step, as in training. The clock runs over many steps
    # in a row, so that the host's work at both ends does not matter.
    repeats = 1
    while True:
        seconds = min(run_steps(step, state, batch, repeats) for step in steppers.values())
        seconds = parallel.agree(seconds)
        if seconds >= MIN_SECONDS:
            break
        repeats = max(2 * repeats, math.ceil(repeats * MIN_SECONDS / seconds))
    times: dict[str, list[float]] = {name: [] for name in steppers}
    for _ in range(rounds):
        for name, step in steppers.items():
            times[name].append(run_steps(step, state, batch, repeats) / repeats)
    first, *others = gradients.values()
    apart = [jnp.linalg.norm(other - first) / jnp.linalg.norm(first) for other in others]
    medians = {name: statistics.median(samples) for name, samples in times.items()}
    return medians, float(max(apart, default=0.0))


def describe_times(times: dict[str, float], rounds: int, difference: float) -> str:
    """The step times and the difference of the gradients, in words."""
    text = ", ".join(f"{name} {1e3 * value:.1f} ms" for name, value in times.items())
    if len(times) == 2:
        ours, lax = times["jax_convgrad"], times["lax"]
        text += f": {lax / ours:.2f}x as fast as lax; gradients agree to {difference:.0e} relative"
    return f"training step (median of {rounds}, in turn): {text}"


# --- Set-up --------------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that all examples have: which layers, how to time them, where results go."""
    parser.add_argument(
        "--layers",
        choices=("ours", "lax", "both"),
        default="both",
        help="train with jax_convgrad, with plain lax, or (default) with jax_convgrad and measure "
        "the step time of both",
    )
    parser.add_argument("--rounds", type=int, help="timed steps of each (15, or 7 with --quick)")
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="the same bits for the same seed on a GPU too, at some cost in speed",
    )
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=pathlib.Path(__file__).parent / "out",
        help="folder for the picture and the numbers (out, next to this file)",
    )


def require(*modules: str) -> None:
    """Says what to install, before anything runs."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        names = " ".join({"sklearn": "scikit-learn"}.get(name, name) for name in missing)
        sys.exit(f"this example needs {names}: pip install {names}")


def make_deterministic() -> None:
    """Keeps XLA and jax_convgrad from choosing by timing, and from nondeterministic engines.

    XLA reads its flags when its first program runs, so this must come before it.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_deterministic_ops=true".strip()
    jax_convgrad.set_deterministic(True)

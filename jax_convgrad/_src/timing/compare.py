"""Any JAX functions of the same operands, timed as the benchmark times layers: interleaved, in one run."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jax_convgrad._src.timing import device
from jax_convgrad._src.timing.calls import count_input_sets, estimate_call, sample_calls
from jax_convgrad._src.timing.device import Batch
from jax_convgrad._src.timing.method import Method
from jax_convgrad._src.timing.processors import last_level_cache
from jax_convgrad._src.timing.runner import Runner, jax_runner

# A context to compile a function in, for what it does while it is lowered.
Context = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclasses.dataclass(frozen=True)
class Operands:
    """Arrays that every function is called with; what a `Runner` loads."""

    arrays: tuple[jax.Array, ...]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)


def compare(
    functions: Mapping[str, tuple[Callable[..., Any], Context]],
    operands: Operands,
    method: Method,
) -> dict[str, float]:
    """Median seconds of one call of each function, by name.

    Args:
      functions: a JAX function of the operands and the context that it is compiled in, by name.
      operands: what they are called with.
      method: the settings.
    """
    contestants = {}
    for name, (function, context) in functions.items():
        with context():
            contestants[name] = prepare(
                jax_runner(function, load, lambda out: {}), operands, method
            )
    return take_turns(contestants, method)


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A function that is compiled and warmed up.

    Attributes:
      sample: takes a sample, in seconds a call.
      estimate: what one will be like.
    """

    sample: Callable[[], float]
    estimate: float


def take_turns(
    contestants: Mapping[str, Contestant],
    method: Method,
    figure: Callable[[list[float]], float] = statistics.median,
) -> dict[str, float]:
    """One ``figure`` of the samples of each, by name; they are taken in turns."""
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    spent = dict.fromkeys(contestants, 0.0)
    estimates = {name: contestant.estimate for name, contestant in contestants.items()}
    # A call that is known to be so much slower is not timed any better.
    limit = method.hopeless_ratio * min(estimates.values(), default=0.0)
    names = [name for name in contestants if estimates[name] <= limit]
    for round_ in range(method.rounds):
        turn = round_ % max(1, len(names))
        for name in names[turn:] + names[:turn]:
            if round_ >= method.min_rounds and spent[name] > method.form_seconds:
                continue
            time.sleep(method.pause_seconds)
            started = time.perf_counter()
            samples[name].append(contestants[name].sample())
            spent[name] += time.perf_counter() - started
    return {name: figure(times) if times else estimates[name] for name, times in samples.items()}


def prepare(runner: Runner, operands: Operands, method: Method) -> Contestant:
    """Compiles what the runner calls and warms it up."""
    first = runner.load(operands)
    runner.wait(runner.call(first))
    estimate = estimate_call(runner, first)
    if runner.gpu:
        batch = device.make_batch(runner, operands, estimate, 2 * last_level_cache(), method.device)
        return Contestant(lambda: _sample_batch(batch), estimate)
    count = count_input_sets(operands.nbytes, method)
    sets = [first, *(runner.load(operands) for _ in range(count - 1))]
    repeats = max(1, min(method.max_repeats, math.ceil(method.sample_seconds / estimate)))
    return Contestant(lambda: _sample(runner, sets, repeats), estimate)


def load(operands: Operands) -> tuple[jax.Array, ...]:
    """What a runner of a function of the operands loads: copies."""
    copies: tuple[jax.Array, ...] = jax.block_until_ready(tuple(map(jnp.copy, operands.arrays)))
    return copies


def _sample(runner: Runner, sets: list[Any], repeats: int) -> float:
    runner.wait(runner.call(sets[-1]))
    return sample_calls(runner, sets, repeats)


def _sample_batch(batch: Batch) -> float:
    batch.warm_up()
    return batch.sample()[0]

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
            contestants[name] = _prepare(function, operands, method)
    samples: dict[str, list[float]] = {name: [] for name in functions}
    spent = dict.fromkeys(functions, 0.0)
    names = list(functions)
    for round_ in range(method.rounds):
        turn = round_ % max(1, len(names))
        for name in names[turn:] + names[:turn]:
            if round_ >= method.min_rounds and spent[name] > method.form_seconds:
                continue
            time.sleep(method.pause_seconds)
            started = time.perf_counter()
            samples[name].append(contestants[name]())
            spent[name] += time.perf_counter() - started
    return {name: statistics.median(times) for name, times in samples.items()}


def _prepare(
    function: Callable[..., Any], operands: Operands, method: Method
) -> Callable[[], float]:
    """Compiles the function and warms it up. What is returned gives one sample, in seconds a call."""
    runner = jax_runner(function, _load, lambda out: {})
    first = runner.load(operands)
    runner.wait(runner.call(first))
    estimate = estimate_call(runner, first)
    if runner.gpu:
        batch = device.make_batch(runner, operands, estimate, 2 * last_level_cache(), method.device)
        return lambda: _sample_batch(batch)
    count = count_input_sets(operands.nbytes, method)
    sets = [first, *(runner.load(operands) for _ in range(count - 1))]
    repeats = max(1, min(method.max_repeats, math.ceil(method.sample_seconds / estimate)))
    return lambda: _sample(runner, sets, repeats)


def _load(operands: Operands) -> tuple[jax.Array, ...]:
    return jax.block_until_ready(tuple(map(jnp.copy, operands.arrays)))


def _sample(runner: Runner, sets: list[Any], repeats: int) -> float:
    runner.wait(runner.call(sets[-1]))
    return sample_calls(runner, sets, repeats)


def _sample_batch(batch: Batch) -> float:
    batch.warm_up()
    return batch.sample()[0]

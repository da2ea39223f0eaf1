"""Times the forms: one method for all of them, interleaved in one run.

Every form of a pass is compiled and warmed up, and checked against float64, before anything is
timed. Then, round by round, each form gives one sample in turn, in an order that rotates. A sample
is

1. a pause, in which the worker threads of the form before go to sleep (an OpenMP pool spins for a
   while),
2. one call that is not timed, which wakes this form's own threads and leaves the caches as this
   form leaves them,
3. a batch of calls long enough for the clock, timed together.

The calls of a batch go through several copies of the inputs in turn. There are as many copies as it takes
to exceed the last-level cache (within limits), so that no form reads its operands from a cache that its own
last call filled.

On a CPU the host waits for every call. On a GPU the time is the device's: see _src/timing/device.py.

The figures are the median over the rounds and the quartiles. A median below the time in which the device
can move the pass's bytes (roofline.py) is a failure of the timing, not a figure.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import gc
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jax_convgrad._src.timing import device
from jax_convgrad._src.timing.calls import count_input_sets, estimate_call, sample_calls
from jax_convgrad._src.timing.device import Batch
from jax_convgrad._src.timing.method import Method
from jax_convgrad._src.timing.processors import last_level_cache
from jax_convgrad._src.timing.runner import Runner
from jax_convgrad._src.timing.samples import Sampled
from jax_convgrad.bench import float64, roofline
from jax_convgrad.bench.case_files import AnyCase
from jax_convgrad.bench.cases import Case
from jax_convgrad.bench.forms import PASS_TITLES, Form, Inputs


@dataclasses.dataclass
class Result(Sampled):
    """One form's figures for one pass of one case. Times are in seconds."""

    case: AnyCase
    pass_: str
    form: str
    samples: list[float] = dataclasses.field(default_factory=list)
    repeats: int = 0
    calls_per_program: int = 1
    input_sets: int = 0
    error: float | None = None
    error_batch: int | None = None
    variant: str = ""
    host_bound_samples: int = 0
    # A lower bound on the time of a call, 0 if unknown, and a median below it.
    least_seconds: float = 0.0
    rejected: float | None = None
    # Why there is no time: "-" in the tables if the form does not exist for the case, "failed" if it
    # failed.
    absent: str | None = None
    failure: str | None = None

    @property
    def host_bound(self) -> bool:
        """Whether more than a quarter of the samples may include time of the host."""
        return 4 * self.host_bound_samples > len(self.samples)

    def reject_impossible(self) -> None:
        """Turns a median that is shorter than the device can take into a failure."""
        median = self.median
        if median is None or median >= self.least_seconds:
            return
        self.rejected, self.samples = median, []
        self.failure = (
            f"the timing failed: a median of {1e6 * median:.2f} us, but the memory needs "
            f"{1e6 * self.least_seconds:.2f} us for what the pass reads and writes"
        )


Say = Callable[[str], None]


def run(
    cases: Sequence[AnyCase],
    forms: Sequence[Form],
    passes: Sequence[str],
    layout: str,
    method: Method,
    advance: Say,
    weights: str | None = None,
) -> list[Result]:
    """Times all cases. `advance` is called with a text after each pass of each case.

    A KeyboardInterrupt ends the run but keeps its results: the passes done so far are returned.
    """
    results: list[Result] = []
    with contextlib.suppress(KeyboardInterrupt):
        for case in cases:
            with _x64_for(case):
                wanted = [name for name in passes if name in case.passes]
                yardstick = _Yardstick(case, wanted, method.seed)
                for pass_ in wanted:
                    results += _run_pass(case, pass_, forms, (layout, weights), method, yardstick)
                    advance(f"{case.id} {PASS_TITLES[pass_]}")
            gc.collect()
    return results


class _Yardstick:
    """Random inputs of a case and the right answers for them."""

    def __init__(self, case: AnyCase, passes: Sequence[str], seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.inputs = Inputs.random(case, rng)
        self.batch = float64.affordable_batch(case)
        self.case = case.with_batch(self.batch)
        n = self.batch
        self.small = Inputs(self.inputs.x[:n], self.inputs.w, self.inputs.dy[:n])
        self.truth = float64.passes(self.case, self.small.x, self.small.w, self.small.dy)
        if "ddxddw" in passes and isinstance(self.case, Case):
            self.truth |= float64.second_order(self.case, self.small.x, self.small.w, self.small.dy)
        self._largest = {key: max(_largest(value), 1e-300) for key, value in self.truth.items()}

    def error(self, out: dict[str, np.ndarray]) -> float:
        """The largest difference from float64, relative to the largest value of the truth."""
        worst = 0.0
        for key, value in out.items():
            truth = self.truth[key]
            if value.shape != truth.shape:
                raise ValueError(f"{key} has shape {value.shape}, expected {truth.shape}")
            difference = _largest(value, truth)
            if math.isnan(difference):
                return math.nan
            worst = max(worst, difference / self._largest[key])
        return worst


def _largest(a: np.ndarray, b: np.ndarray | None = None) -> float:
    """The largest absolute value of ``a``, or of ``a - b``, found on all cores. NaN if there is one."""

    def of_part(part: slice) -> float:
        values = a[part] if b is None else a[part] - b[part]
        return float(np.max(np.abs(values), initial=0.0))

    step = max(1, len(a) * 2**20 // max(1, a.size))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(of_part, [slice(i, i + step) for i in range(0, len(a), step)])
        return float(np.max(list(found)))


@dataclasses.dataclass
class _Contestant:
    result: Result
    runner: Runner
    sets: list[Any]
    repeats: int = 1
    batch: Batch | None = None
    spent: float = 0.0

    def sample(self) -> tuple[float, bool]:
        """One call that is not timed, then a sample: seconds per call, and whether it is doubtful."""
        if self.batch is not None:
            self.batch.warm_up()
            return self.batch.sample()
        self.runner.wait(self.runner.call(self.sets[-1]))
        return sample_calls(self.runner, self.sets, self.repeats), False


def _run_pass(
    case: AnyCase,
    pass_: str,
    forms: Sequence[Form],
    orders: tuple[str, str | None],
    method: Method,
    yardstick: _Yardstick,
) -> list[Result]:
    results, contestants = [], []
    for form in forms:
        result = Result(case, pass_, form.name)
        results.append(result)
        result.absent = form.unavailable() or form.not_applicable(case)
        if result.absent:
            continue
        try:
            contestants.append(_prepare(result, form, orders, yardstick, method))
        except Exception as error:  # One form that fails must not end the run: it is reported.
            result.failure = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}"
    for round_ in range(method.rounds):
        turn = round_ % max(1, len(contestants))
        for entry in contestants[turn:] + contestants[:turn]:
            if round_ >= method.min_rounds and entry.spent > method.form_seconds:
                continue
            time.sleep(method.pause_seconds)
            started = time.perf_counter()
            seconds, doubtful = entry.sample()
            entry.result.samples.append(seconds)
            entry.result.host_bound_samples += doubtful
            entry.spent += time.perf_counter() - started
    for result in results:
        result.reject_impossible()
    return results


def _prepare(
    result: Result,
    form: Form,
    orders: tuple[str, str | None],
    yardstick: _Yardstick,
    method: Method,
) -> _Contestant:
    """Compiles, checks against float64 and warms up, and finds how many calls make a sample."""
    case, pass_ = result.case, result.pass_
    candidates = []
    for runner in form.runners(case, pass_, *orders):
        first = runner.load(yardstick.inputs)
        out = runner.call(first)
        runner.wait(out)
        candidates.append((estimate_call(runner, first), runner, first, out))
    estimate, runner, first, out = min(candidates, key=lambda entry: entry[0])
    result.variant = runner.variant
    entry = _Contestant(result, runner, [])
    if runner.gpu:
        memory = roofline.device_memory()
        entry.batch = batch = device.make_batch(
            runner,
            yardstick.inputs,
            estimate,
            2 * last_level_cache(),
            method.device,
            lambda calls: roofline.least_seconds(case, pass_, calls, memory),
        )
        # The function that is timed is the one that is checked.
        out = batch.warm_up()
        result.repeats, result.calls_per_program = batch.programs * batch.calls, batch.calls
        result.input_sets = len(batch.groups) * batch.calls
        result.least_seconds = batch.least_seconds
    else:
        result.input_sets = count_input_sets(yardstick.inputs.nbytes, method)
        copies = range(result.input_sets - 1)
        entry.sets = [first, *(runner.load(yardstick.inputs) for _ in copies)]
        most = method.max_repeats
        entry.repeats = max(1, min(most, math.ceil(method.sample_seconds / estimate)))
        result.repeats = entry.repeats
    if yardstick.batch < case.n:
        (runner_small,) = [
            r for r in form.runners(yardstick.case, pass_, *orders) if r.variant == runner.variant
        ]
        out = runner_small.call(runner_small.load(yardstick.small))
        result.error = yardstick.error(runner_small.fetch(out))
        result.error_batch = yardstick.batch
    else:
        result.error = yardstick.error(runner.fetch(out))
    return entry


@contextlib.contextmanager
def _x64_for(case: AnyCase) -> Iterator[None]:
    """Enables float64 while a float64 case runs."""
    if case.dtype == "f64":
        with jax.enable_x64(True):
            yield
    else:
        yield

"""Times work on a GPU: by the device's own clock, over many calls one after the other.

A form's calls come in programs of several calls, each call with its own operands and results. For a JAX
form that is one compiled program, in which every call waits for the one before; for PyTorch the calls are
made in a row. A sample is taken in three steps:

1. the device, idle until then, is held with matrix products, and a mark is put behind them,
2. the host enqueues programs behind them, as many as last some milliseconds, and a mark behind the last,
3. only then does the host wait. The sample is the time between the two marks (device_clock.py), which the
   device itself takes. Nothing is subtracted.

The host's clock plays no part, so a host that learns of anything late does no harm. Two problems are
detected, and the sample is then taken again:

* The products had ended before the host had enqueued everything: the device may have waited for the host
  between two programs, and the time would include that. The device is then held for twice as long.
* The time is less than the device can take (roofline.py).

If no try gives a sound sample, the last one counts anyway, and is marked (`host_bound`). A median
below the roofline is a failure.
"""

from __future__ import annotations

import dataclasses
import gc
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jax_convgrad._src.timing.runner import Gpu, Runner

# The most matrix products in a row that hold the device.
MAX_HOLDS = 8


@dataclasses.dataclass(frozen=True)
class DeviceMethod:
    """The settings of a run on a GPU."""

    # The intended length of a sample, and the number of calls of one program: the device pauses for 2 to 3
    # microseconds between two of XLA's programs, which is then below 1%.
    sample_seconds: float = 0.004
    program_seconds: float = 0.0005
    max_calls: int = 16
    # XLA lets 32 programs wait in a GPU's queue, including those that hold it (MAX_HOLDS), and then
    # enqueueing blocks. Marks do not count as programs.
    max_programs: int = 20
    # The bytes of all copies of the operands, at most a 32nd of the device's memory. The results take the
    # same amount again, twice.
    max_input_bytes: int = 2 * 2**30
    max_input_fraction: float = 1 / 32
    tries: int = 4


@dataclasses.dataclass
class Batch:
    """A form's programs, ready to be sampled. ``groups`` are the operands of the calls of each."""

    runner: Runner
    gpu: Gpu
    groups: Sequence[Sequence[Any]]
    tries: int
    programs: int = 1
    least_seconds: float = 0.0
    holds: int = 2

    @property
    def calls(self) -> int:
        """Calls in one program."""
        return len(self.groups[0])

    def warm_up(self) -> Any:
        """Runs one program and waits for it. Returns the results of its last call."""
        out = self.runner.enqueue(self.groups[0])
        self.runner.wait(out)
        return out[-1]

    def sample(self) -> tuple[float, bool]:
        """Seconds per call, and whether all tries were unsound."""
        seconds = 0.0
        for _ in range(self.tries):
            seconds, in_time = self._try()
            if in_time and seconds >= self.least_seconds:
                return seconds, False
            if not in_time:
                self.holds = min(2 * self.holds, MAX_HOLDS)
        return seconds, True

    def _try(self) -> tuple[float, bool]:
        """Seconds per call, and whether the host was in time."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            return self._enqueue_and_wait()
        finally:
            if collecting:
                gc.enable()

    def _enqueue_and_wait(self) -> tuple[float, bool]:
        runner, groups, clock = self.runner, self.groups, self.gpu.clock
        for _ in range(self.holds):
            held = self.gpu.hold()
        begin = clock.mark(held)
        for i in range(self.programs):
            out = runner.enqueue(groups[i % len(groups)])
        # The calls wait for one another, so the last one's results are the last.
        end = clock.mark(out[-1])
        in_time = not clock.has_passed(begin)
        runner.wait(out)
        return clock.seconds_between(begin, end) / (self.programs * self.calls), in_time


def make_batch(
    runner: Runner,
    inputs: Any,
    estimate: float,
    cache: int,
    method: DeviceMethod,
    least_seconds: Callable[[int], float] = lambda calls: 0.0,
) -> Batch:
    """Loads the operands and finds how many calls make a program, and how many programs a sample.

    Args:
      runner: the runner of one pass of one case; it has a GPU.
      inputs: the operands' values, which the runner loads, with their size as `nbytes`.
      estimate: the approximate seconds of one call.
      cache: the bytes that the copies of the operands are to exceed in all, so that no call reads
        from the cache what the call before left there.
      method: the settings.
      least_seconds: from the number of calls with their own operands and results to a lower bound on the
        time of a call.
    """
    assert runner.gpu is not None
    affordable = max(1, min(method.max_calls, _input_bytes(method) // max(1, inputs.nbytes)))
    calls = max(1, min(affordable, math.ceil(method.program_seconds / max(estimate, 1e-9))))
    wanted = math.ceil(cache / max(1, inputs.nbytes * calls))
    count = max(1, min(wanted, affordable // calls))
    sets = runner.load_sets(inputs, count * calls)
    groups = [sets[i : i + calls] for i in range(0, len(sets), calls)]
    batch = Batch(runner, runner.gpu, groups, method.tries, 1, least_seconds(calls))
    batch.warm_up()
    # The estimate comes from a single call, which takes longer than a call in a row.
    for _ in range(3):
        lasted = batch.sample()[0] * calls
        wanted = min(method.max_programs, math.ceil(method.sample_seconds / max(lasted, 1e-9)))
        if wanted <= batch.programs:
            break
        batch.programs = wanted
    return batch


def estimate(runner: Runner, arrays: Any) -> float:
    """The approximate seconds of one call."""
    assert runner.gpu is not None
    single = Batch(runner, runner.gpu, [[arrays]], tries=1)
    single.warm_up()
    return min(single.sample()[0] for _ in range(3))


def _input_bytes(method: DeviceMethod) -> int:
    """The number of bytes that the copies of the operands may take."""
    stats = jax.local_devices()[0].memory_stats() or {}
    total = stats.get("bytes_limit")
    if not total:
        return method.max_input_bytes
    return min(method.max_input_bytes, int(total * method.max_input_fraction))

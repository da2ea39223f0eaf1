"""Calls of a runner on a CPU, timed by the host, and the preparation that both kinds of device share."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Sequence
from typing import Any

from jax_convgrad._src.timing import device
from jax_convgrad._src.timing.method import Method
from jax_convgrad._src.timing.processors import last_level_cache
from jax_convgrad._src.timing.runner import Runner


def estimate_call(runner: Runner, arrays: Any) -> float:
    """The approximate seconds of one call."""
    if runner.gpu:
        return device.estimate(runner, arrays)
    estimate = min(sample_calls(runner, [arrays], 1) for _ in range(2))
    if estimate < 0.1:
        estimate = min(estimate, *(sample_calls(runner, [arrays], 1) for _ in range(3)))
    return estimate


def sample_calls(runner: Runner, sets: Sequence[Any], repeats: int) -> float:
    """Seconds per call over a batch of calls on a CPU."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        call, wait, count = runner.call, runner.wait, len(sets)
        started = time.perf_counter()
        for i in range(repeats):
            wait(call(sets[i % count]))
        return (time.perf_counter() - started) / repeats
    finally:
        if collecting:
            gc.enable()


def count_input_sets(nbytes: int, method: Method) -> int:
    """The number of copies of the inputs that exceed the last-level cache, within limits."""
    wanted = math.ceil(2 * last_level_cache() / max(1, nbytes))
    affordable = method.max_input_bytes // max(1, nbytes)
    return max(1, min(wanted, affordable, method.max_input_sets))

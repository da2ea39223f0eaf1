"""A GPU's own clock: what it asks of CUDA's driver, on a stand-in for it, and on a GPU what it says.

On a GPU as tests/cuda/test_handlers.py runs: skipped without one, or failed with JAX_CONVGRAD_REQUIRE_CUDA=1.
"""

from __future__ import annotations

import ctypes
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jax_convgrad._src.timing import cuda_driver, device, runner
from jax_convgrad._src.timing.device_clock import ClockError, JaxClock, TorchClock
from jax_convgrad._src.timing.method import Method
from jax_convgrad._src.timing.runner import Gpu, jax_runner
from jax_convgrad.bench import timing
from jax_convgrad.bench.case_files import parse_case
from jax_convgrad.bench.forms import FORMS
from jax_convgrad.bench.forms.torch import torch_gpu

# --- On a stand-in for the driver -----------------------------------------------------------------


class Driver:
    """cuda.h's functions. Streams and events are numbers from 10 on; `calls` says what was asked of them."""

    def __init__(self) -> None:
        self.current: list[int] = []
        self.calls: list[tuple[Any, ...]] = []
        self.alive: set[int] = set()
        self.query, self.milliseconds = 0, 2.5
        self._made = 10

    def _make(self, place: Any) -> int:
        assert self.current == [7]
        place._obj.value = self._made
        self._made += 1
        return place._obj.value

    def cuDeviceGet(self, found: Any, ordinal: int) -> int:
        found._obj.value = ordinal
        return 0

    def cuDevicePrimaryCtxRetain(self, found: Any, of: ctypes.c_int) -> int:
        found._obj.value = 7 + of.value
        return 0

    def cuCtxPushCurrent_v2(self, context: ctypes.c_void_p) -> int:
        assert context.value is not None
        self.current.append(context.value)
        return 0

    def cuCtxPopCurrent_v2(self, found: Any) -> int:
        found._obj.value = self.current.pop()
        return 0

    def cuStreamCreate(self, found: Any, flags: int) -> int:
        assert flags == 1  # it does not wait for the default stream
        self.calls.append(("stream", self._make(found)))
        return 0

    def cuEventCreate(self, found: Any, flags: int) -> int:
        assert not flags & 2  # which would be an event without time
        self.alive.add(self._make(found))
        return 0

    def cuEventRecord(self, event: ctypes.c_void_p, stream: ctypes.c_void_p) -> int:
        assert self.current == [7] and event.value in self.alive
        self.calls.append(("record", event.value, stream.value))
        return 0

    def cuEventQuery(self, event: ctypes.c_void_p) -> int:
        assert self.current == [7] and event.value in self.alive
        return self.query

    def cuEventSynchronize(self, event: ctypes.c_void_p) -> int:
        self.calls.append(("synchronize", event.value))
        return 0

    def cuEventElapsedTime(self, found: Any, begin: Any, end: Any) -> int:
        assert {begin.value, end.value} <= self.alive
        self.calls.append(("elapsed", begin.value, end.value))
        found._obj.value = self.milliseconds
        return 0

    def cuEventDestroy_v2(self, event: ctypes.c_void_p) -> int:
        self.alive.remove(event.value)  # type: ignore[arg-type]
        return 0

    def cuGetErrorString(self, status: int, found: Any) -> int:
        found._obj.value = f"error number {status}".encode()
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver()
    monkeypatch.setattr(cuda_driver, "_driver", lambda: found)
    monkeypatch.setattr(cuda_driver, "_context", cuda_driver._context.__wrapped__)
    return found


class Array:
    """An array that a stream can be made to wait for."""

    def __init__(self, name: str, driver: Driver, error: str = "") -> None:
        self.name, self.driver, self.error = name, driver, error

    def __dlpack__(self, *, stream: int) -> None:
        if self.error:
            raise jax.errors.JaxRuntimeError(self.error)
        self.driver.calls.append(("wait", self.name, stream))


def test_marks_of_jax_lie_behind_arrays_in_a_stream_that_waits_for_them(driver: Driver) -> None:
    clock = JaxClock()
    begin = clock.mark(Array("held", driver))
    end = clock.mark((Array("dx", driver), Array("dw", driver)))
    waits = [("wait", "dx", 10), ("wait", "dw", 10)]
    assert driver.calls == [
        ("stream", 10),
        ("wait", "held", 10),
        ("record", 11, 10),
        *waits,
        ("record", 12, 10),
    ]
    assert clock.seconds_between(begin, end) == 2.5e-3
    assert driver.calls[-2:] == [("synchronize", 12), ("elapsed", 11, 12)]
    assert not driver.alive and not driver.current


def test_marks_of_torch_lie_in_its_current_stream(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = [0, 99]

    def current_stream(device: int) -> types.SimpleNamespace:
        assert device == 0
        return types.SimpleNamespace(cuda_stream=handles.pop(0))

    cuda = types.SimpleNamespace(current_device=lambda: 0, current_stream=current_stream)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    clock = TorchClock()
    marks = [clock.mark(None), clock.mark(None)]
    assert driver.calls == [("record", 10, None), ("record", 11, 99)]
    assert clock.seconds_between(*marks) == 2.5e-3
    assert not driver.alive and not driver.current


def test_a_mark_has_passed_or_has_not(driver: Driver) -> None:
    clock = JaxClock()
    mark = clock.mark(Array("held", driver))
    assert clock.has_passed(mark)
    driver.query = 600
    assert not clock.has_passed(mark)
    driver.query = 700
    with pytest.raises(cuda_driver.CudaError, match=r"cuEventQuery: error number 700 \(700\)"):
        clock.has_passed(mark)
    assert not driver.current


def test_a_jax_without_marks_says_so(driver: Driver) -> None:
    array: Any = Array("held", driver, "UNIMPLEMENTED: no stream extension")
    if jax.default_backend() == "cpu":
        array = jnp.ones(3)
    with pytest.raises(ClockError, match=r"cannot wait for an array.*UNIMPLEMENTED"):
        JaxClock().mark(array)


def test_a_program_that_failed_is_no_fault_of_the_clock(driver: Driver) -> None:
    array = Array("dx", driver, "RESOURCE_EXHAUSTED: Out of memory")
    with pytest.raises(jax.errors.JaxRuntimeError, match="Out of memory"):
        JaxClock().mark(array)


def test_without_a_driver_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    monkeypatch.setattr(cuda_driver, "_driver", cuda_driver._driver.__wrapped__)
    monkeypatch.setattr(cuda_driver, "_context", cuda_driver._context.__wrapped__)
    monkeypatch.setattr(runner, "jax_gpu", runner.jax_gpu.__wrapped__)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    layer = {"name": "t", "kind": "conv", "n": 1, "cin": 2, "sp": [5, 4], "cout": 3, "k": 3}
    case = parse_case({**layer, "dt": "f32"})
    (result,) = timing.run(
        [case], [FORMS["lax"]], ["dx"], "NHWC", Method(rounds=1), lambda text: None
    )
    assert result.failure is not None and result.median is None
    assert "CUDA's driver cannot be loaded: libcuda.so.1: cannot open" in result.failure


# --- On a GPU -------------------------------------------------------------------------------------


@pytest.fixture(params=["jax", "torch"])
def gpu(request: pytest.FixtureRequest, needs_cuda_handlers: None) -> Gpu:
    """What a form has to be timed by, with a hold that has run before."""
    if request.param == "torch" and (reason := FORMS["torch"].unavailable()):
        pytest.skip(reason)
    found = runner.jax_gpu() if request.param == "jax" else torch_gpu()
    _finish(found.hold())
    return found


def _finish(out: Any) -> None:
    if isinstance(out, jax.Array):
        jax.block_until_ready(out)
    else:
        import torch

        torch.cuda.synchronize()


def _tries(attempt: Callable[[], bool], count: int = 5) -> bool:
    """Whether one attempt of several succeeds: a host may be busy elsewhere for some milliseconds."""
    return any(attempt() for _ in range(count))


def test_marks_are_put_while_the_device_is_held(gpu: Gpu) -> None:
    """A mark that waited for what it lies behind would have passed when the next one is put."""

    def attempt() -> bool:
        for _ in range(device.MAX_HOLDS):
            held = gpu.hold()
        begin = gpu.clock.mark(held)
        last = gpu.hold()
        end = gpu.clock.mark(last)
        passed = gpu.clock.has_passed(begin), gpu.clock.has_passed(end)
        _finish(last)
        seconds = gpu.clock.seconds_between(begin, end)
        assert seconds > 1e-4  # of a whole hold
        return passed == (False, False)

    assert _tries(attempt)


def test_a_mark_passes_when_its_work_is_done(gpu: Gpu) -> None:
    held = gpu.hold()
    mark = gpu.clock.mark(held)
    _finish(held)
    latest = time.monotonic() + 10
    while not gpu.clock.has_passed(mark) and time.monotonic() < latest:
        pass
    assert gpu.clock.has_passed(mark)
    assert gpu.clock.seconds_between(mark, gpu.clock.mark(held)) >= 0


def test_a_long_time_is_the_host_s_time(gpu: Gpu) -> None:
    """Of many holds in a row, which last long beside what the host needs to begin and to learn the end."""

    def attempt() -> bool:
        ready = gpu.hold()
        _finish(ready)
        started = time.perf_counter()
        begin = gpu.clock.mark(ready)
        for _ in range(20):
            out = gpu.hold()
        seconds = gpu.clock.seconds_between(begin, gpu.clock.mark(out))
        by_host = time.perf_counter() - started
        assert seconds < 1.001 * by_host  # it lies within, except for the two clocks' own speeds
        return seconds > 0.9 * by_host

    assert _tries(attempt)


def test_a_sample_is_the_time_of_the_calls(needs_cuda_handlers: None) -> None:
    """A call that is a matrix product takes its share of many in a row."""
    square = jnp.ones((4096, 4096), jnp.float32)
    runner = jax_runner(lambda a: (a @ a,), lambda inputs: (jnp.copy(square),), lambda out: {})
    assert runner.gpu is not None
    batch = device.Batch(runner, runner.gpu, [[(square,)] * 4], tries=4, programs=10)
    batch.warm_up()

    def attempt() -> bool:
        seconds, doubtful = batch.sample()
        started = time.perf_counter()
        for _ in range(20):
            out = runner.enqueue(batch.groups[0])
        runner.wait(out)
        by_host = (time.perf_counter() - started) / 80
        # Other programs may use the device too, now more and now less.
        return not doubtful and abs(seconds - by_host) < 0.2 * by_host

    assert _tries(attempt, 10)

"""The stress programs of benchmarks/: they run, and find what they are there to find."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import native

import jax_convgrad
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.runtime import registry

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import ffi_caller  # noqa: E402
import stress_memory  # noqa: E402
import stress_threads  # noqa: E402


@pytest.fixture
def callable_handlers(needs_cpu_handlers: None) -> None:
    native.need_compiler()


@pytest.mark.usefixtures("callable_handlers")
def test_handlers_run_past_jax(rng: np.random.Generator) -> None:
    x, w = (rng.integers(-3, 4, s).astype(np.float32) for s in ((2, 16, 6, 5), (16, 16, 3, 3)))
    f = lambda x, w: jax_convgrad.conv_fprop(x, w, padding="SAME")  # noqa: E731
    with override_backend("onednn"):
        call = ffi_caller.recorded(f, x, w, platform="cpu")
    assert call.target == "jax_convgrad_conv_fprop"
    x_, w_, y_ = (*call.operands, *call.results)
    assert x_.order == y_.order == (0, 2, 3, 1)
    arrays = [x_.to_memory(x), w_.to_memory(w), np.full((2, 6, 5, 16), np.nan, np.float32)]
    handler = registry._import_cpu().handlers()[call.target]
    addresses = [array.ctypes.data for array in arrays]
    ffi_caller.Call(handler, call, addresses).run()
    expected = jax.lax.conv_general_dilated(
        x.astype(np.float64), w.astype(np.float64), (1, 1), "SAME"
    )
    np.testing.assert_array_equal(y_.from_memory(arrays[2]), expected)

    wrong = dataclasses.replace(call, results=(dataclasses.replace(y_, shape=(1, 16, 6, 5)),))
    with pytest.raises(ffi_caller.HandlerError, match="INVALID_ARGUMENT: conv_fprop: y has shape"):
        ffi_caller.Call(handler, wrong, addresses).run()


@pytest.mark.usefixtures("callable_handlers")
def test_threads_get_the_bits_of_one_thread(tmp_path: Path) -> None:
    path = tmp_path / "readings.json"
    options = ["--seconds", "2", "--threads", "3", "--json", str(path)]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "stress_threads.py"), *options],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_CONVGRAD_REQUIRE_CUDA": "0"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert path.exists(), done.stderr
    content = json.loads(path.read_text())
    # Two seconds are too short to tell a leak from a start.
    assert [text for text in content["failures"] if not text.startswith("leak")] == []
    assert len(content["readings"]) == stress_threads.READINGS
    names = {name.split()[0] for counts in content["calls"] for name in counts}
    assert names == {"jit", "handlers"}


class Job:
    """Gives other bits at the third call, or breaks."""

    name, expected = "job", [b"right"]

    def __init__(self, error: Exception | None = None) -> None:
        self._calls, self._error = 0, error

    def bits(self) -> list[bytes]:
        self._calls += 1
        if self._calls != 3:
            return [b"right"]
        if self._error is not None:
            raise self._error
        return [b"wrong"]


def test_a_difference_is_a_failure() -> None:
    run = stress_threads.Run("cpu", [[Job()], [Job()]], 0.2)
    run()
    assert sorted(run.failures) == ["thread 0: job: other bits", "thread 1: job: other bits"]
    assert len(run.readings) == stress_threads.READINGS


def test_an_error_ends_the_run() -> None:
    run = stress_threads.Run("cpu", [[Job(ValueError("broke"))], [Job()]], 0.2)
    run()
    assert any("thread 0: ValueError: broke" in failure for failure in run.failures)
    assert len(run.readings) < stress_threads.READINGS


def test_growth_is_what_goes_on() -> None:
    readings = [
        stress_threads.Reading(
            seconds=i, calls=i, device=100 * (i >= late), arrays=7, host=10 * i + 5 * (i >= 6)
        )
        for late in (2, 7)
        for i in range(9)
    ]
    for run in readings[:9], readings[9:]:
        grown = {name: stress_threads.growth(run, name) for name in ("device", "arrays", "host")}
        assert grown == {"device": 0, "arrays": 0, "host": 30}


def test_wrong_numbers_are_refused() -> None:
    case = stress_threads.CASES[0]
    truth = np.ones(4)
    stress_threads.check(case, "y", jnp.ones(4), truth)
    with pytest.raises(SystemExit, match=r"error 0\.01"):
        stress_threads.check(case, "y", jnp.full(4, 1.01), truth)


@pytest.mark.parametrize(
    ("rest", "outcome", "afterwards", "operands", "fault"),
    [
        ("half", "right", "right", "untouched", None),
        ("half", "exhausted: E: text", "right", "untouched", None),
        ("no scratch", "exhausted: E: text", "right", "untouched", "there was room"),
        ("half", "other error: E: text", "right", "untouched", "other error"),
        ("half", "WRONG y: error 1", "right", "untouched", "WRONG y"),
        ("half", "right", "WRONG y: error 1", "untouched", "afterwards: WRONG"),
        ("half", "right", "right", "CHANGED", "the operands changed"),
    ],
)
def test_what_is_a_fault(
    rest: str, outcome: str, afterwards: str, operands: str, fault: str | None
) -> None:
    found = {"outcome": outcome, "afterwards": afterwards, "operands": operands}
    got = stress_memory.fault(stress_memory.Trial("convt f64", rest), found)
    assert (got is None) == (fault is None)
    assert fault is None or fault in got


def test_an_error_must_say_how_much() -> None:
    describe = stress_memory.describe
    text = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 134217728 bytes"
    assert describe(RuntimeError(text)).startswith("exhausted")
    assert describe(RuntimeError(text.partition(" while")[0])).startswith("other error")
    assert describe(RuntimeError("INTERNAL: 12 bytes")).startswith("other error")

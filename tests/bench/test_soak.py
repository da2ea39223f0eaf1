"""benchmarks/soak.py: a short run has everything in it, and each verdict can be that it failed."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from support import benchmark_programs

import jax_convgrad

soak = benchmark_programs.load("soak")
calls = benchmark_programs.load("soak_calls")
children = benchmark_programs.load("soak_children")
interrupts = benchmark_programs.load("soak_interrupts")
report = benchmark_programs.load("soak_report")

MEBIBYTE = 2**20


@pytest.fixture(autouse=True)
def off():
    jax_convgrad.uninstall()
    yield
    jax_convgrad.uninstall()


@pytest.mark.slow
@pytest.mark.on_cpu
def test_a_short_run(tmp_path: Path, subprocess_python: list[str]):
    path, seconds = tmp_path / "soak.json", 15
    options = [
        "--seconds",
        str(seconds),
        "--json",
        str(path),
        "--markdown",
        str(tmp_path / "soak.md"),
    ]
    begun = time.monotonic()
    done = subprocess.run(
        [*subprocess_python, str(benchmark_programs.FOLDER / "soak.py"), *options],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_CONVGRAD_REQUIRE_CUDA": "0"},
        capture_output=True,
        text=True,
        timeout=seconds + 90,
    )
    assert path.exists(), done.stderr
    found = json.loads(path.read_text())
    assert found["failures"] == []
    assert done.returncode == 0
    assert time.monotonic() - begun < seconds + 70  # its start counts
    events = found["events"]
    for kind in children.KINDS:
        assert events[kind] >= 1, kind
    for what in ("known", "new"):
        assert sum(n for name, n in events.items() if name.startswith(f"call, {what}")) >= 1
    assert any(name.startswith("interrupt, ") for name in events)
    assert found["readings"]
    assert found["memory"]["growth"] is None, "seconds are too short to tell"
    assert "Verdict: passed" in (tmp_path / "soak.md").read_text()


# Results.


@pytest.mark.parametrize("family", range(calls.families()))
def test_results_are_exact(family: int, rng: np.random.Generator):
    problem = calls.draw(rng, family)
    for run in problem.jitted().values():
        assert problem.fault(run) is None
    wrong = [array.copy() for array in problem.expected]
    wrong[0].flat[0] += 1
    for other in (wrong, [array.astype(np.int8) for array in problem.expected]):
        fault = dataclasses.replace(problem, expected=tuple(other)).fault(run)
        assert fault is not None and "result 0" in fault


def a_run(seconds: float = 0.3) -> Any:
    clock, findings = soak.Clock(seconds), report.Findings()
    watchdog = soak.Watchdog(clock, lambda reason: None, 60)
    kids = children.Children(lambda: 60.0)
    return soak.Soak(clock, findings, watchdog, kids, 0), findings


@pytest.mark.parametrize("broken", [False, True])
def test_a_wrong_result_fails_the_run(broken: bool, monkeypatch: pytest.MonkeyPatch):
    def draw(rng: np.random.Generator, family: int | None = None) -> Any:
        x, y = np.ones(3), np.full(3, 3.0 if broken else 2.0)
        return calls.Problem("p", (x,), (y,), {form: lambda x: (x + 1,) for form in calls.FORMS})

    monkeypatch.setattr(calls, "draw", draw)
    run, findings = a_run()
    run.control()
    assert findings.readings
    assert findings.events.total() >= soak.THREADS
    assert bool(findings.verdict()) == broken
    if broken:
        assert "3 of 3 numbers of result 0 are wrong" in findings.verdict()[0]
        assert report.page(findings, "c", "d", 1).endswith("Verdict: FAILED\n")


def test_an_error_in_a_thread_fails_the_run(monkeypatch: pytest.MonkeyPatch):
    run, findings = a_run()

    def draw(rng: np.random.Generator, family: int | None = None) -> Any:
        raise ValueError("broken inside")

    monkeypatch.setattr(calls, "draw", draw)
    run.control()
    assert "broken inside" in findings.verdict()[0]


# Memory.


def readings(growth: float, noise: float = 0.5, count: int = 90, start: float = 0) -> list[Any]:
    """An hour's, in MiB: `growth` an hour, and `start` in the first quarter."""
    rng = np.random.default_rng(7)
    found = []
    for hours in np.linspace(0.01, 1, count).tolist():
        size = 300 + growth * hours + start * min(hours, 0.25) / 0.25 + rng.normal(0, noise)
        found.append(report.Reading(3600 * hours, int(size * MEBIBYTE), 0))
    return found


@pytest.mark.parametrize(
    ("growth", "noise", "start", "is_flat"),
    [
        (0, 0.5, 0, True),
        (0, 5, 80, True),  # caches fill up
        (-50, 0.5, 0, True),  # given back
        (10, 0.5, 0, True),  # as much as the allocator's heaps
        (25, 0.5, 0, False),
        (60, 5, 80, False),
        (100, 30, 0, False),  # no noise excuses that
    ],
)
def test_a_leak_is_what_grows_in_the_second_half(
    growth: float, noise: float, start: float, is_flat: bool
):
    found = report.Findings(readings(growth, noise, start=start))
    assert report.memory_of(found.readings).is_flat == is_flat
    assert bool(found.verdict()) != is_flat
    if not is_flat:
        assert found.verdict()[0].startswith("memory: it grew by")


def test_a_jump_is_no_slope():
    found = readings(0)
    found[60:] = [dataclasses.replace(r, resident=r.resident + 6 * MEBIBYTE) for r in found[60:]]
    found[70] = dataclasses.replace(found[70], resident=found[70].resident * 2)
    assert report.memory_of(found).is_flat


def test_a_start_tells_nothing():
    short = [dataclasses.replace(r, seconds=r.seconds / 60) for r in readings(5000)]
    for few in (short, readings(5000, count=10)):
        assert report.memory_of(few).is_flat is None
        assert report.Findings(few).verdict() == []


def test_no_reading_is_a_failure():
    assert report.Findings().verdict() == ["no round ended"]


# What hangs.


def test_a_child_that_hangs_is_ended_and_says_where():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(99)'])"
    begun = time.monotonic()
    fault = children.Children(lambda: 60.0, limit=3).run(["-c", code])
    assert fault is not None
    assert fault.startswith("hangs: no end within 3 s") and "subprocess.py" in fault
    assert time.monotonic() - begun < 3 + 2 * children.ABORT_SECONDS


def test_a_child_that_ignores_sigterm_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(children, "TERMINATION_SECONDS", 1)
    program = tmp_path / "program.py"
    program.write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('computing', flush=True)\ntime.sleep(99)\n"
    )
    for way in ("terminate", "terminate-handled"):
        fault = children.Children(lambda: 60.0).run([str(program), way])
        assert fault is not None and fault.startswith("hangs: no end within 1 s")


def test_a_child_with_another_exit_status_is_a_failure():
    kids = children.Children(lambda: 60.0)
    assert kids.run(["-c", "import sys; sys.exit('wrong numbers')"]) == (
        "exit status 1, not 0: wrong numbers"
    )
    assert kids.run(["-c", "pass"]) is None


def test_a_child_without_time_is_not_judged():
    with pytest.raises(children.CutOffError):
        children.Children(lambda: 0.5).run(["-c", "import time; time.sleep(99)"])


def test_all_ways_take_turns():
    """A fork, whose way and state both follow from the round, in every state."""
    base = lambda index: interrupts.BASES[index % len(interrupts.BASES)]  # noqa: E731
    forks = {(children.arguments_of("fork", i)[1], base(i)) for i in range(9)}
    reloads = {tuple(children.arguments_of("reload", i)[2:]) for i in range(6)}
    ends = {children.arguments_of("terminated child", i)[1] for i in range(6)}
    assert (len(forks), len(reloads), len(ends)) == (9, 6, 2)


def test_the_watchdog_ends_what_hangs():
    reasons: list[str] = []
    done = threading.Event()
    clock = soak.Clock(100)
    watchdog = soak.Watchdog(clock, lambda reason: (reasons.append(reason), done.set()), 0.5)
    watchdog.alive("thread 1")
    watchdog.rests("thread 1")
    watchdog.alive("thread 2")
    assert watchdog.reason() is None
    watchdog.start()
    assert done.wait(30)
    assert reasons == ["thread 2 hangs: no sign of life for 0.5 s"]


def test_the_watchdog_ends_a_run_that_does_not_end():
    watchdog = soak.Watchdog(soak.Clock(-soak.END_SECONDS - 1), lambda reason: None, 1)
    assert watchdog.reason() == "the run hangs: it did not end in time"


# Interrupts.


def test_an_interrupt_hits_where_it_should():
    interrupter = interrupts.Interrupter()

    def work() -> None:
        interrupter.phase = "asleep"
        time.sleep(30)

    with interrupter.handling():
        assert interrupter.run(work, 0.1) == "asleep"
        assert interrupter.run(lambda: None, 30) is None


def test_an_interrupt_of_somebody_else_s_is_not_swallowed():
    interrupter = interrupts.Interrupter()
    before = signal.getsignal(signal.SIGINT)  # a shell's background jobs ignore it
    with pytest.raises(KeyboardInterrupt), interrupter.handling():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture
def storm() -> Any:
    return interrupts.Storm(interrupts.Interrupter(), 1)


def hit_in(storm: Any, monkeypatch: pytest.MonkeyPatch, phase: str | None) -> list[str]:
    """What is found wrong after an interrupt of the calls in that phase."""
    storm._works = {"calls": lambda: None}
    monkeypatch.setattr(storm._interrupter, "run", lambda work, delay: phase)
    return storm.once(("cpu", "cuda"))


@pytest.mark.on_cpu
def test_what_an_interrupt_leaves_is_looked_at(storm: Any, monkeypatch: pytest.MonkeyPatch):
    assert hit_in(storm, monkeypatch, "calls") == []
    assert storm.counts == {"calls: calls": 1}

    def lost(work: Any, delay: float) -> str:
        jax_convgrad.uninstall()
        return "calls"

    monkeypatch.setattr(storm._interrupter, "run", lost)
    (fault,) = storm.once(("cpu", "cuda"))
    assert "installed() is (), not ('cpu', 'cuda')" in fault


@pytest.mark.on_cpu
def test_a_program_that_is_not_dropped_is_found(storm: Any, monkeypatch: pytest.MonkeyPatch):
    """install() was interrupted before it emptied JAX's caches, and nothing has emptied them since."""

    def interrupted(work: Any, delay: float) -> str:
        jax_convgrad.uninstall()
        storm._program()
        with monkeypatch.context() as patch:
            patch.setattr(jax, "clear_caches", lambda: None)
            jax_convgrad.install()
        return "install()"

    monkeypatch.setattr(interrupts, "settle", lambda base: None)
    jax_convgrad.install()
    monkeypatch.setattr(storm._interrupter, "run", interrupted)
    assert any("a program is not the one" in fault for fault in storm.once(("cpu", "cuda")))


def test_a_lock_that_is_left_behind_is_found(monkeypatch: pytest.MonkeyPatch):
    assert interrupts.lock_is_free()
    free = threading.Event()
    monkeypatch.setattr(interrupts, "LOCK_SECONDS", 0.5)
    monkeypatch.setattr(interrupts.jax_convgrad, "installed", lambda: free.wait(60))
    try:
        assert not interrupts.lock_is_free()
    finally:
        free.set()

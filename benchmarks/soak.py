"""An hour of threads, forks before use, signals and reloads: all results right, nothing hangs, memory flat.

    python benchmarks/soak.py --seconds 3600 --json OUT.json --markdown OUT.md

In rounds, in one process:

* Threads, new in each round, call layers and resizes with their gradients, this package's own and lax's:
  known ones, and a few that JAX's caches do not have (`soak_calls.py`). Results are whole numbers and simple
  fractions, known beforehand and compared exactly. install() is on, off, or on for the CPU alone, in turn.
* In the first half of a round the main thread is interrupted (SIGINT) in compilations, in calls, and inside
  install() and its like, while those threads run (`soak_interrupts.py`). In the second half nothing
  empties JAX's caches, and known programs are found in them.
* Child programs (`soak_children.py`) fork before JAX is used and compute in the child, are interrupted in
  their first calls, are ended by SIGTERM in the middle of a call, and import the package anew while install()
  is on.

After each round JAX's caches are emptied and the resident memory is read; this package's caches stay, and
fill up to their bounds. `soak_report.py` says what counts as flat. A call or a child that exceeds its time
limit hangs: the run ends there, with the stacks of all threads.

It ends within a minute after the given seconds, whatever happens; children that had no time to end are not
counted. --control does the same with lax alone, without install() and children: what JAX's own memory does.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import faulthandler
import gc
import itertools
import json
import os
import pathlib
import platform
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

# oneDNN's own cache is full after the first minutes then.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")

import jax
import numpy as np
import soak_calls
from soak_children import KINDS, Children, CutOffError, arguments_of
from soak_interrupts import BASES, Interrupter, Storm, settle
from soak_report import Findings, Reading, memory_of, page
from stress_layers import resident_bytes

from jax_convgrad._src.dispatch.override import override_backend

THREADS, NEW_PROBLEMS, KNOWN_PROBLEMS, LANES = 3, 8, 4, 2
# Between two signs of life of a thread.
CALL_SECONDS = 150
# After the given seconds: children are cut off, the run is ended from another thread, and by the system.
CUT_OFF_SECONDS, END_SECONDS, LAST_SECONDS = 35, 47, 56
Runs = dict[str, Callable[..., Any]]


class Clock:
    def __init__(self, seconds: float) -> None:
        self.started, self.seconds = time.monotonic(), seconds

    def now(self) -> float:
        return time.monotonic() - self.started

    def left(self, more: float = 0) -> float:
        return self.seconds + more - self.now()


class Watchdog:
    """Calls `end` with a reason where a thread gives no sign of life, or the time is over."""

    def __init__(self, clock: Clock, end: Callable[[str], None], limit: float) -> None:
        self._clock, self._end, self._limit = clock, end, limit
        self._signs: dict[str, float] = {}

    def start(self) -> None:
        threading.Thread(target=self._watch, daemon=True).start()

    def alive(self, name: str) -> None:
        self._signs[name] = time.monotonic()

    def rests(self, name: str) -> None:
        self._signs.pop(name, None)

    def reason(self) -> str | None:
        """Why the run must end, None if it need not."""
        for name, when in list(self._signs.items()):
            if time.monotonic() - when > self._limit:
                return f"{name} hangs: no sign of life for {self._limit:g} s"
        return (
            "the run hangs: it did not end in time" if self._clock.left(END_SECONDS) < 0 else None
        )

    def _watch(self) -> None:
        while (reason := self.reason()) is None:
            time.sleep(0.5)
        self._end(reason)


class Soak:
    """The rounds."""

    def __init__(
        self, clock: Clock, findings: Findings, watchdog: Watchdog, children: Children, seed: int
    ) -> None:
        self._clock, self._findings = clock, findings
        self._watchdog, self._children = watchdog, children
        self._rng = np.random.default_rng(seed)
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        # A hundred rounds an hour, several in a short run.
        self._round_seconds = min(36.0, clock.seconds / 4)
        self._known = [
            (problem, problem.jitted())
            for problem in (soak_calls.draw(self._rng, f) for f in range(soak_calls.families()))
        ]

    def run(self) -> None:
        interrupter = Interrupter()
        with interrupter.handling():
            self._watchdog.alive("main thread")
            storm = Storm(interrupter, int(self._rng.integers(2**31)))
            index = 0
            while index == 0 or self._clock.left() > 0:
                self._round(index, storm)
                index += 1
            self._findings.events.update({f"interrupt, {k}": n for k, n in storm.counts.items()})
            self._watchdog.rests("main thread")

    def control(self) -> None:
        index = 0
        while index == 0 or self._clock.left() > 0:
            self._round(index, None)
            index += 1

    def _round(self, index: int, storm: Storm | None) -> None:
        base = BASES[index % len(BASES)] if storm else ()
        settle(base)
        chosen = self._rng.permutation(len(self._known))[:KNOWN_PROBLEMS]
        self._known_now = [self._known[i] for i in chosen]
        begun = self._clock.now()
        until = min(begun + self._round_seconds, max(self._clock.seconds, begun + 1))
        threads = [
            threading.Thread(target=self._work, args=(i, until, storm is not None), daemon=True)
            for i in range(THREADS)
        ]
        if storm:
            for lane in range(LANES):
                arguments = index, KINDS[lane::LANES]
                threads.append(threading.Thread(target=self._lane, args=arguments, daemon=True))
        for thread in threads:
            thread.start()
        while storm:
            self._watchdog.alive("main thread")
            for fault in storm.once(base):
                self._fail(f"round {index}, {base or 'nothing'} installed: {fault}")
            if self._clock.now() > (begun + until) / 2:
                break
        self._watchdog.rests("main thread")
        for thread in threads:
            thread.join()
        self._watchdog.alive("main thread")
        self._read()

    def _fail(self, text: str) -> None:
        self._findings.failures.append(text)
        print(f"{self._clock.now():.0f} s: {text}", flush=True)

    def _count(self, event: str) -> None:
        with self._lock:
            self._findings.events[event] += 1

    def _work(self, number: int, until: float, ours: bool) -> None:
        name = f"thread {number}"
        try:
            self._watchdog.alive(name)
            with self._lock:
                rng = np.random.default_rng(int(self._rng.integers(2**31)))
            new = [soak_calls.numbered(next(self._numbers)) for _ in range(NEW_PROBLEMS)]
            while True:  # once at least, however slow the machine is
                self._watchdog.alive(name)
                form = soak_calls.FORMS[int(rng.integers(2))] if ours else "lax"
                if new and rng.random() < 0.3:
                    problem, what = new.pop(), "new"
                    runs, backend = problem.jitted(), (None, "onednn")[int(rng.integers(2))]
                else:
                    problem, runs = self._known_now[int(rng.integers(KNOWN_PROBLEMS))]
                    what, backend = "known", None
                with override_backend(backend if ours else None):
                    fault = problem.fault(runs[form])
                if fault is not None:
                    self._fail(f"{name}, {form}, backend {backend}: {fault}")
                self._count(f"call, {what} problem, {form}")
                if self._clock.now() >= until:
                    break
        except BaseException:
            self._fail(f"{name}: {traceback.format_exc()[-2000:]}")
        finally:
            self._watchdog.rests(name)

    def _lane(self, index: int, kinds: tuple[str, ...]) -> None:
        """Children of several kinds, one after the other."""
        try:
            for kind in kinds:
                # Each kind has been there at least once, if the first ones take all the time too.
                if self._clock.left() <= 0 and index > 0:
                    return
                arguments = arguments_of(kind, index)
                what = " ".join(a for a in arguments if len(a) < 20)
                fault = self._children.run(arguments)
                if fault is not None:
                    self._fail(f"round {index}, {kind}, {what}: {fault}")
                self._count(kind)
        except CutOffError:
            pass
        except BaseException:
            self._fail(f"round {index}, children: {traceback.format_exc()[-2000:]}")

    def _read(self) -> None:
        jax.clear_caches()
        gc.collect()
        return_free_memory()
        calls = sum(n for name, n in self._findings.events.items() if name.startswith("call"))
        self._findings.readings.append(Reading(self._clock.now(), resident_bytes(), calls))


def return_free_memory() -> None:
    """To the system: what the host's allocator keeps is not in use. A C library without this keeps it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Outcome:
    """Writes what was found, once, whoever ends the run."""

    def __init__(self, arguments: argparse.Namespace, clock: Clock, findings: Findings) -> None:
        self._arguments, self._clock, self._findings = arguments, clock, findings
        self._lock = threading.Lock()
        self._is_written = False

    def write(self) -> int:
        """The exit status."""
        with self._lock:
            found = self._findings
            failed = bool(found.verdict())
            if self._is_written:
                return failed
            self._is_written = True
            command = f"python benchmarks/soak.py --seconds {self._clock.seconds:g}"
            command += " --control" if self._arguments.control else ""
            device = jax.devices()[0].device_kind
            where = f"{device}, Python {platform.python_version()}, jax {jax.__version__}"
            text = page(found, command, where, self._clock.now())
            print(text, flush=True)
            if self._arguments.markdown:
                self._arguments.markdown.write_text(text)
            if self._arguments.json:
                content = {
                    "readings": [dataclasses.asdict(reading) for reading in found.readings],
                    "events": dict(found.events),
                    "failures": found.failures,
                    "memory": dataclasses.asdict(memory_of(found.readings))
                    if found.readings
                    else None,
                }
                self._arguments.json.write_text(json.dumps(content, indent=1) + "\n")
            return failed


def main() -> NoReturn:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--control", action="store_true", help="lax alone")
    parser.add_argument("--markdown", metavar="OUT", type=pathlib.Path)
    parser.add_argument("--json", metavar="OUT", type=pathlib.Path)
    arguments = parser.parse_args()
    clock, findings = Clock(arguments.seconds), Findings()
    # The last resort: faulthandler ends the process even where a thread holds Python's lock.
    faulthandler.dump_traceback_later(arguments.seconds + LAST_SECONDS, exit=True)
    jax.config.update("jax_enable_x64", True)
    children = Children(lambda: clock.left(CUT_OFF_SECONDS))
    outcome = Outcome(arguments, clock, findings)

    def end(reason: str) -> None:
        faulthandler.dump_traceback(all_threads=True)
        findings.failures.append(reason)
        children.kill()
        outcome.write()
        os._exit(1)

    watchdog = Watchdog(clock, end, CALL_SECONDS)
    watchdog.start()
    soak = Soak(clock, findings, watchdog, children, arguments.seed)
    soak.control() if arguments.control else soak.run()
    status = outcome.write()
    faulthandler.cancel_dump_traceback_later()
    sys.exit(status)


if __name__ == "__main__":
    main()

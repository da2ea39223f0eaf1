"""Runs the child programs of `soak.py`, each with a time limit."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import soak_programs
from soak_interrupts import BASES

FOLDER = pathlib.Path(__file__).parent
PROGRAMS = FOLDER / "soak_programs.py"
REIMPORT = FOLDER.parent / "tests" / "support" / "reimport.py"
KINDS = ("fork", "reload", "interrupted child", "terminated child")
RELOADS = list(itertools.product(("reload", "purge", "reload-all"), ("0", "1")))

# What takes longer hangs: from the start to the end, on a machine that does other things too, and from
# SIGTERM to the end.
CHILD_SECONDS, TERMINATION_SECONDS = 150, 45
ABORT_SECONDS = 5


class CutOffError(Exception):
    """There was no time for the child to end."""


def arguments_of(kind: str, index: int) -> list[str]:
    """Those of Python in the round `index`: the ways of a kind take turns."""
    if kind == "reload":
        return ["-c", REIMPORT.read_text(), *RELOADS[index % len(RELOADS)]]
    ways = {
        "fork": soak_programs.FORKS,
        "interrupted child": ("interrupt",),
        "terminated child": soak_programs.TERMINATIONS,
    }[kind]
    # They shift, so that each way meets each state of install(), which `index` decides too.
    way = ways[(index + index // len(BASES)) % len(ways)]
    return [str(PROGRAMS), way, str(index)]


class Children:
    """The children of a run. `left` says how many seconds they have."""

    def __init__(self, left: Callable[[], float], limit: float = CHILD_SECONDS) -> None:
        self._left, self._limit = left, limit
        self._running: set[subprocess.Popen[str]] = set()

    def run(self, arguments: Sequence[str]) -> str | None:
        """What went wrong with a child, None if nothing did. Raises CutOffError."""
        child = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # what it starts is ended with it
        )
        self._running.add(child)
        try:
            terminated = arguments[1] if arguments[1] in soak_programs.TERMINATIONS else None
            if terminated:
                assert child.stdout is not None
                with self._limited(child, self._limit) as late:
                    child.stdout.readline()  # it computes, or it has ended
                if not late:
                    time.sleep(random.uniform(0, 1))
                    child.terminate()
            with self._limited(child, TERMINATION_SECONDS if terminated else self._limit) as late:
                _, errors = child.communicate()
            end = " ".join(errors.split()[-200:])
            if late:
                return f"hangs: no end within {late[0]:g} s: {end}"
            wanted = -signal.SIGTERM if terminated == "terminate" else 0
            if child.returncode != wanted:
                return f"exit status {child.returncode}, not {wanted}: {end}"
            return None
        finally:
            self._running.discard(child)
            _send(child, signal.SIGKILL)
            child.wait()

    @contextlib.contextmanager
    def _limited(self, child: subprocess.Popen[str], limit: float) -> Iterator[list[float]]:
        """Aborts the child after that time. The list then has the limit, or CutOffError is raised."""
        late: list[float] = []
        left = self._left()

        def end() -> None:
            late.append(limit)
            _send(child, signal.SIGABRT)  # it prints where it is
            time.sleep(ABORT_SECONDS)
            _send(child, signal.SIGKILL)

        timer = threading.Timer(max(0.0, min(limit, left)), end)
        timer.daemon = True
        timer.start()
        try:
            yield late
        finally:
            timer.cancel()
        if late and left < limit:
            raise CutOffError

    def kill(self) -> None:
        """All of them, now."""
        for child in list(self._running):
            _send(child, signal.SIGKILL)


def _send(child: subprocess.Popen[str], number: int) -> None:
    """To the child and to what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)

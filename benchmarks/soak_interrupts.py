"""KeyboardInterrupt at random moments: inside compilation, calls, and install() and its like.

An interrupt may come inside `install` or `uninstall` itself. What they leave then is one of the states on
the way, and the next `uninstall` must lead out of it; but a block that was interrupted in its body must have
undone itself, results must be right at any time, no lock may be left behind, and programs must be those of
what is installed.
"""

from __future__ import annotations

import collections
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import soak_calls

import jax_convgrad

BASES: tuple[tuple[str, ...], ...] = (("cpu", "cuda"), (), ("cpu",))
# A lock that is not free within this time never will be.
LOCK_SECONDS = 60
_SWITCHES = ("install()", "uninstall()", "disabled()")


class Interrupter:
    """Sends SIGINT to the main thread while that works."""

    def __init__(self) -> None:
        self.phase = ""
        self._armed = self._expected = False
        self._hit: str | None = None

    @contextlib.contextmanager
    def handling(self) -> Iterator[None]:
        """In the main thread. A SIGINT that nobody here has sent ends the program as ever."""
        before, hook = signal.signal(signal.SIGINT, self._handle), sys.unraisablehook

        def print_others(unraisable: Any) -> None:
            # In a callback of the garbage collector, as JAX has one, nobody can catch it: work goes on.
            if unraisable.exc_type is not KeyboardInterrupt:
                hook(unraisable)

        sys.unraisablehook = print_others
        try:
            yield
        finally:
            sys.unraisablehook = hook
            signal.signal(signal.SIGINT, before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._armed:
            self._armed = False
            self._hit = self.phase
            raise KeyboardInterrupt
        if not self._expected:
            raise KeyboardInterrupt

    def run(self, work: Callable[[], None], delay: float) -> str | None:
        """Interrupts `work` after `delay` seconds; the phase in which that was, None if it ended before."""
        self.phase, self._hit = "", None
        thread = threading.main_thread().ident
        assert thread is not None
        timer = threading.Timer(delay, signal.pthread_kill, (thread, signal.SIGINT))
        self._expected = True
        try:
            timer.start()
            self._armed = True
            work()
            self._armed = False
        except KeyboardInterrupt:
            if self._hit is None:
                raise
        finally:
            self._armed = False
            timer.cancel()
            timer.join()
            self._expected = False
        return self._hit


class Storm:
    """Interrupts one piece of work after the other, and looks at what is left each time."""

    def __init__(self, interrupter: Interrupter, seed: int) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self._interrupter = interrupter
        self._rng = np.random.default_rng(seed)
        self._warm = [
            (problem, problem.jitted())
            for problem in (soak_calls.draw(self._rng, f) for f in range(soak_calls.families()))
        ]
        self._seconds: dict[str, float] = {}
        self._failures: list[str] = []
        self._works: dict[str, Callable[[], None]] = {
            "compile": self._compile,
            "calls": self._calls,
            "install block": lambda: self._block(jax_convgrad.install),
            "disabled block": lambda: self._block(jax_convgrad.disabled),
            "switches": self._switch,
        }
        image, kernel = jnp.ones((1, 8, 8, 32)), jnp.ones((4, 4, 32, 16))

        def loss(kernel: Any) -> Any:
            return jnp.sum(jax.lax.conv_transpose(image, kernel, (2, 2), "SAME") ** 2)

        gradient = jax.jit(jax.grad(loss))
        # A function that is known before, so that what JAX keeps of it is seen too.
        self._program: Callable[[], str] = lambda: gradient.lower(kernel).as_text()
        self._programs: dict[tuple[str, ...], str] = {}
        for base in BASES:
            settle(base)
            self._programs[base] = self._program()

    def once(self, base: tuple[str, ...]) -> list[str]:
        """One interrupt where `base` is installed, which it is again at the end. Returns what was wrong."""
        self._failures = []
        name = list(self._works)[int(self._rng.integers(len(self._works)))]
        self._next = soak_calls.numbered(int(self._rng.integers(soak_calls.POOL)))
        if jax_convgrad.installed() != base:
            settle(base)
        delay = float(self._rng.uniform(0, 1.2 * self._seconds.get(name, 0.5)))
        started = time.monotonic()
        try:
            hit = self._interrupter.run(self._works[name], delay)
        except Exception as error:
            self._failures.append(f"{type(error).__name__}: {str(error)[:500]}")
            hit = "error"
        if hit is None:
            self._seconds[name] = time.monotonic() - started
            self.counts["ended before the interrupt"] += 1
        else:
            self.counts[f"{name}: {hit}"] += 1
        self._look(base, hit not in _SWITCHES and name != "switches")
        return [f"interrupt of {name} in {hit}: {text}" for text in self._failures]

    def _look(self, base: tuple[str, ...], has_not_switched: bool) -> None:
        if not lock_is_free():
            self._failures.append("a lock is still held")
            return  # whatever came next would hang
        on = jax_convgrad.installed()
        if has_not_switched and on != base:
            self._failures.append(f"installed() is {on}, not {base}")
        self._check(*self._warm[int(self._rng.integers(len(self._warm)))])
        if on != base or not has_not_switched:
            settle(base)
            if (on := jax_convgrad.installed()) != base:
                self._failures.append(f"installed() is {on}, not {base} as asked for again")
        if self._program() != self._programs[base]:
            self._failures.append(f"a program is not the one of {base or 'nothing'} installed")
            jax.clear_caches()

    def _check(self, problem: soak_calls.Problem, runs: dict[str, Callable[..., Any]]) -> None:
        for form, run in runs.items():
            if (fault := problem.fault(run)) is not None:
                self._failures.append(f"{form}: {fault}")

    # What is interrupted. The phase says where, for `_look`.

    def _compile(self) -> None:
        self._interrupter.phase = "compilation"
        self._check(self._next, self._next.jitted())

    def _calls(self) -> None:
        self._interrupter.phase = "calls"
        for problem, runs in self._warm[:3]:
            self._check(problem, runs)

    def _block(self, block: Callable[[], Any]) -> None:
        self._interrupter.phase = f"{block.__name__}()"
        with block():
            self._interrupter.phase = f"{block.__name__} block's body"
            self._check(self._next, self._next.jitted())
            self._interrupter.phase = f"{block.__name__}()"
        self._interrupter.phase = "after a block"

    def _switch(self) -> None:
        for platforms in (None, "cpu", "cuda") * 2:
            self._interrupter.phase = "install()"
            jax_convgrad.install(platforms)
            self._interrupter.phase = "a program"
            self._program()  # which must not outlive what it was compiled with
            self._interrupter.phase = "uninstall()"
            jax_convgrad.uninstall()


def settle(base: tuple[str, ...]) -> None:
    """Whatever was installed, `base` is now."""
    jax_convgrad.uninstall()
    if base:
        jax_convgrad.install(base)


def lock_is_free() -> bool:
    """Whether another thread gets an answer."""
    asking = threading.Thread(target=jax_convgrad.installed, daemon=True)
    asking.start()
    asking.join(LOCK_SECONDS)
    return not asking.is_alive()

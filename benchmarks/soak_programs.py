"""The child programs of `soak.py`: `python soak_programs.py WAY SEED`, exit status 0 where all was right.

fork, os.fork, forkserver: forks before any backend of JAX has started, then computes in the children.
interrupt: interrupts in a young process, whose handlers are not loaded yet.
terminate, terminate-handled: computes in two threads until SIGTERM ends it, by itself or by a handler.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from types import FrameType

import jax
import numpy as np
import soak_calls
import soak_interrupts

import jax_convgrad

FORKS = ("fork", "os.fork", "forkserver")
TERMINATIONS = ("terminate", "terminate-handled")
# What a child prints once it computes.
READY = "computing"
CHILDREN = 2
CHILD_SECONDS = 60
INTERRUPTS = 6


def main(way: str, seed: int) -> None:
    faulthandler.enable()  # the parent aborts what hangs, to see where
    jax.config.update("jax_enable_x64", True)
    if way in FORKS:
        fork(way, seed)
    elif way in TERMINATIONS:
        compute_until_terminated(seed, way == "terminate-handled")
    else:
        interrupt(seed)


# Forks.


def fork(way: str, seed: int) -> None:
    """Forks, or has a server fork that has imported the package; the children compute."""
    base = soak_interrupts.BASES[seed % len(soak_interrupts.BASES)]
    soak_interrupts.settle(base)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if way == "os.fork":
            wait_for(*(fork_here(base, seed + i) for i in range(CHILDREN)))
        else:
            context = multiprocessing.get_context(way)
            if isinstance(context, multiprocessing.context.ForkServerContext):
                context.set_forkserver_preload(["soak_programs"])
                base = ()  # the server has imported the package, and nobody has called install() there
            processes = [
                context.Process(target=compute_in_fork, args=(base, seed + i))  # type: ignore[attr-defined]
                for i in range(CHILDREN)
            ]
            for process in processes:
                process.start()
            for process in processes:
                process.join(CHILD_SECONDS)
                if process.exitcode != 0:
                    sys.exit(f"{way}: a child ended with {process.exitcode}")
    # JAX warns of a fork if its threads exist: then this program has not tried what it is for.
    if late := [str(w.message) for w in caught if "JAX is multithreaded" in str(w.message)]:
        sys.exit(f"{way}: {late[0]}")
    compute_in_fork(soak_interrupts.BASES[seed % len(soak_interrupts.BASES)], seed)


def compute_in_fork(base: tuple[str, ...], seed: int) -> None:
    """Ends the process with status 1 where something is wrong."""
    faulthandler.enable()
    jax.config.update("jax_enable_x64", True)
    if (on := jax_convgrad.installed()) != base:
        sys.exit(f"after the fork installed() is {on}, not {base}")
    compute(drawn(seed, 2))
    soak_interrupts.settle(("cpu", "cuda"))
    compute(drawn(seed, 1))


def fork_here(base: tuple[str, ...], seed: int) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        compute_in_fork(base, seed)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)  # not through the parent's exit handlers


def wait_for(*children: int) -> None:
    for child in children:
        _, status = os.waitpid(child, 0)  # the parent's time limit is for all
        if status:
            sys.exit(f"os.fork: a child ended with {os.waitstatus_to_exitcode(status)}")


def compute(problems: Sequence[soak_calls.Problem]) -> None:
    for problem in problems:
        for form, run in problem.jitted().items():
            if (fault := problem.fault(run)) is not None:
                sys.exit(f"{form}: {fault}")


def drawn(seed: int, count: int) -> list[soak_calls.Problem]:
    rng = np.random.default_rng(seed)
    return [soak_calls.draw(rng) for _ in range(count)]


# Signals.


def interrupt(seed: int) -> None:
    interrupter = soak_interrupts.Interrupter()
    base = soak_interrupts.BASES[seed % len(soak_interrupts.BASES)]
    with interrupter.handling():
        storm = soak_interrupts.Storm(interrupter, seed)
        faults = [fault for _ in range(INTERRUPTS) for fault in storm.once(base)]
    if faults:
        sys.exit("\n".join(faults))


def compute_until_terminated(seed: int, handled: bool) -> None:
    """In two threads, some of it in compilation."""
    stop, begun = threading.Event(), threading.Barrier(CHILDREN + 1)
    faults: list[str] = []

    def work(own: int) -> None:
        try:
            waits = True
            while not stop.is_set():
                own += CHILDREN
                problem = drawn(own, 1)[0]
                for run in problem.jitted().values():
                    faults.extend(filter(None, [problem.fault(run)]))
                if waits:
                    begun.wait()
                    waits = False
        except BaseException:
            faults.append(traceback.format_exc())
            stop.set()
            begun.abort()

    def handle(number: int, frame: FrameType | None) -> None:
        stop.set()

    if handled:
        signal.signal(signal.SIGTERM, handle)
    jax_convgrad.install()
    threads = [threading.Thread(target=work, args=(seed + i,)) for i in range(CHILDREN)]
    for thread in threads:
        thread.start()
    begun.wait()
    print(READY, flush=True)
    for thread in threads:
        thread.join()
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

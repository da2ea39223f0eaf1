"""Random problems in great number, compared with the definition in float64: each has to be in its bounds.

    python benchmarks/random_problems.py --problems 20000 --first 1000000 --out OUT.txt

The problems are those of the test suite's generators, from seeds that the suite does not have: operators,
layers and adapters of this package, its resizes, and convolutions with their second derivatives and resizes
under install(), in float64, float32, bfloat16 and float16. Small integers have exact results, equal to
float64 bit for bit; others may be off by what rounding allows (support/rounding.py). Where lax itself
may be wrong, a problem under install() is left out and replaced by the next seed. Each failure is printed
with what runs it alone.

Set XLA_FLAGS, JAX_DISABLE_MOST_OPTIMIZATIONS and the like as you please; nothing here depends on them.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import importlib
import itertools
import multiprocessing
import os
import pathlib
import platform
import sys
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))

import jax

import jax_convgrad

CHUNK = 50
LEFT_OUT = "left out"


@dataclasses.dataclass(frozen=True)
class Kind:
    """Problems of one generator. ``share`` of 100 are of it."""

    name: str
    module: str
    share: int
    installed: bool
    run: str = "run_seed"
    # Its bounds have been checked on CPUs alone.
    of_cpu: bool = False

    def outcome(self, seed: int) -> str | None:
        """None if the problem passes, LEFT_OUT, or what is wrong."""
        return getattr(importlib.import_module(self.module), self.run)(seed)


KINDS = (
    Kind("operators, layers and adapters", "conv.test_random", 40, installed=False),
    Kind("resizes", "resize.test_random", 20, installed=False, of_cpu=True),
    Kind("convolutions under install(), 32 and 64 bits", "install.test_random", 20, installed=True),
    Kind(
        *("convolutions under install(), 16 bits", "install.test_random", 10),
        installed=True,
        run="run_seed_of_16_bits",
        of_cpu=True,
    ),
    Kind("resizes under install()", "install.test_random_resizes", 10, installed=True, of_cpu=True),
)


def run_chunk(kind: Kind, seeds: range) -> dict[int, str]:
    """What is to be said of the seeds that do not pass."""
    jax.config.update("jax_enable_x64", True)
    with jax_convgrad.install() if kind.installed else contextlib.nullcontext():
        outcomes = {seed: kind.outcome(seed) for seed in seeds}
    # Compiled programs of one chunk are of no use to the next.
    jax.clear_caches()
    return {seed: outcome for seed, outcome in outcomes.items() if outcome is not None}


@dataclasses.dataclass
class Tally:
    """Of one kind."""

    wanted: int
    compared: int = 0
    left_out: int = 0
    failures: list[str] = dataclasses.field(default_factory=list)

    def add(self, seeds: range, outcomes: dict[int, str]) -> None:
        left_out = sum(outcome == LEFT_OUT for outcome in outcomes.values())
        self.left_out += left_out
        self.compared += len(seeds) - left_out
        self.failures += [outcome for outcome in outcomes.values() if outcome != LEFT_OUT]


def tallies(kinds: list[Kind], problems: int) -> dict[Kind, Tally]:
    """As many problems as asked for: the first kind has what rounding the shares leaves."""
    shares = sum(kind.share for kind in kinds)
    found = {kind: Tally(problems * kind.share // shares) for kind in kinds}
    found[kinds[0]].wanted += problems - sum(tally.wanted for tally in found.values())
    return found


def run(found: dict[Kind, Tally], first: int, processes: int) -> Iterator[list[str]]:
    """Fills the tallies, all kinds in turn; yields what failed in each turn."""
    pool = _pool(processes)
    beginnings = {kind: itertools.count(first, CHUNK) for kind in found}
    while waiting := [kind for kind, tally in found.items() if tally.compared < tally.wanted]:
        chunks = []
        for kind in waiting:
            begin = next(beginnings[kind])
            # At the end no more than is missing.
            count = min(CHUNK, found[kind].wanted - found[kind].compared)
            chunks.append((kind, range(begin, begin + count)))
        known = {failure for tally in found.values() for failure in tally.failures}
        futures = [pool.submit(run_chunk, kind, seeds) for kind, seeds in chunks]
        for (kind, seeds), future in zip(chunks, futures, strict=True):
            try:
                outcomes = future.result()
            except BrokenProcessPool:  # perhaps by another chunk
                outcomes, pool = run_alone(kind, seeds), _pool(processes)
            found[kind].add(seeds, outcomes)
        failures = itertools.chain.from_iterable(tally.failures for tally in found.values())
        yield [failure for failure in failures if failure not in known]


def run_alone(kind: Kind, seeds: range) -> dict[int, str]:
    """As `run_chunk`, in a process of its own, which may crash."""
    with _pool(1) as pool:
        try:
            return pool.submit(run_chunk, kind, seeds).result()
        except BrokenProcessPool:
            text = f"the process crashes in one of {seeds} of {kind.module}, {kind.run}"
            return dict.fromkeys(seeds[1:], LEFT_OUT) | {seeds[0]: text}


def _pool(processes: int) -> concurrent.futures.ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return concurrent.futures.ProcessPoolExecutor(processes, context)


def page(found: dict[Kind, Tally], command: str, seconds: float) -> str:
    """What is written to a file."""
    handlers = jax_convgrad.info()["handlers"].items()
    dtypes = "; ".join(f"{name} {', '.join(e['dtypes'])}" for name, e in handlers if e["available"])
    lines = [
        command,
        f"{jax.devices()[0].device_kind}, Python {platform.python_version()}, jax {jax.__version__}; "
        f"handlers: {dtypes or 'none'}",
        "",
    ]
    total: collections.Counter[str] = collections.Counter()
    for kind, tally in found.items():
        text = f"{kind.name}: {tally.compared:,} compared, {len(tally.failures)} outside of their bounds"
        lines.append(f"{text}, {tally.left_out} left out" if tally.left_out else text)
        total["compared"] += tally.compared
        total["outside"] += len(tally.failures)
    lines += [
        f"all: {total['compared']:,} compared, {total['outside']} outside of their bounds, {seconds:,.0f} s",
        *(failure for tally in found.values() for failure in tally.failures),
    ]
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--out", metavar="OUT", type=pathlib.Path)
    arguments = parser.parse_args(argv)
    kinds = [kind for kind in KINDS if not kind.of_cpu or jax.default_backend() == "cpu"]
    found = tallies(kinds, arguments.problems)
    command = "python benchmarks/random_problems.py"
    command += f" --problems {arguments.problems} --first {arguments.first} --processes {arguments.processes}"
    started = time.monotonic()
    text = ""
    for failures in run(found, arguments.first, arguments.processes):
        print(*failures, sep="\n", end="\n" if failures else "", flush=True)
        text = page(found, command, time.monotonic() - started)
        if arguments.out:  # as it goes, so that a run that is interrupted has its results
            arguments.out.write_text(text)
    print(text, flush=True)
    return any(tally.failures for tally in found.values())


if __name__ == "__main__":
    raise SystemExit(main())

"""What `soak.py` found: its readings of memory, its verdict, its page."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import statistics
from collections.abc import Sequence

MEBIBYTE = 2**20
WINDOWS = 6
# Fewer readings, or readings of a shorter time, are those of a start.
MIN_READINGS, MIN_SECONDS = 24, 600
# See `Memory`.
SLACK = 8 * MEBIBYTE
DEVIATIONS = 2
MAX_ALLOWED = 24 * MEBIBYTE


@dataclasses.dataclass(frozen=True)
class Reading:
    """Resident bytes after a round: nothing runs, JAX's caches are empty, free memory is returned."""

    seconds: float
    resident: int
    calls: int


@dataclasses.dataclass(frozen=True)
class Memory:
    """Whether resident memory is flat: what it grew by in the second half of a run, and what noise explains.

    The first half does not count. Caches that are bounded fill up in it: this package's 512 plans and 512
    checked calls, oneDNN's primitives, what Python keeps. JAX keeps something of every shape that it has
    seen, its caches emptied or not: with lax alone 20 KiB of each problem, still after 700 of them. So the
    soak has POOL problems only, all of which come in the first minutes. What was seen before costs nothing
    (50 problems by turns: 267 MiB after 100 and after 350 calls; jax 0.12, two cores).

    The slope is that of WINDOWS windows of the second half, each with the median of its readings: the median
    of the slopes between any two of them (Theil and Sen). A single jump, or a reading while something still
    ran, moves neither.

    Allowed is a growth over the second half of SLACK and DEVIATIONS standard deviations of one reading about
    that line, at most MAX_ALLOWED. SLACK is the host allocator's: it keeps a heap for each thread, of this
    program and of XLA's pools, and takes up to 1 MiB at a time for it (`stress_threads.py` has the same). The
    deviation is estimated from the readings (the median of their magnitudes), as it is the
    machine's: how many threads met in a compilation decides how many heaps there are. It cannot excuse more
    than MAX_ALLOWED, so readings that scatter wildly fail too.

    An hour on two cores has about 50 rounds in its second half, in which 1,200 problems are compiled: a leak
    of 7 KiB for each is found where there is little noise, and one of 20 KiB whatever the noise.
    """

    first: int
    last: int
    largest: int
    slope: float | None  # bytes a second
    growth: float | None
    allowed: float | None

    @property
    def is_flat(self) -> bool | None:
        """None where the run was too short to tell."""
        if self.growth is None or self.allowed is None:
            return None
        return self.growth <= self.allowed


def memory_of(readings: Sequence[Reading]) -> Memory:
    resident = [reading.resident for reading in readings]
    ends = resident[0], resident[-1], max(resident)
    if len(readings) < MIN_READINGS or readings[-1].seconds - readings[0].seconds < MIN_SECONDS:
        return Memory(*ends, None, None, None)
    middle = readings[-1].seconds / 2
    half = [reading for reading in readings if reading.seconds >= middle]
    slope = robust_slope(half)
    rests = [reading.resident - slope * reading.seconds for reading in half]
    center = statistics.median(rests)
    # The standard deviation of normal noise is 1.48 times the median magnitude.
    deviation = 1.48 * statistics.median(abs(rest - center) for rest in rests)
    growth = slope * (half[-1].seconds - half[0].seconds)
    return Memory(*ends, slope, growth, min(SLACK + DEVIATIONS * deviation, MAX_ALLOWED))


def robust_slope(readings: Sequence[Reading]) -> float:
    """Bytes a second, see `Memory`."""
    size = len(readings) / WINDOWS
    windows = [readings[round(i * size) : round((i + 1) * size)] for i in range(WINDOWS)]
    points = [
        (statistics.median(r.seconds for r in w), statistics.median(r.resident for r in w))
        for w in windows
        if w
    ]
    pairs = itertools.combinations(points, 2)
    return statistics.median((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs if b[0] > a[0])


@dataclasses.dataclass
class Findings:
    """All that a run has seen, filled from several threads."""

    readings: list[Reading] = dataclasses.field(default_factory=list)
    events: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    failures: list[str] = dataclasses.field(default_factory=list)

    def verdict(self) -> list[str]:
        """Why the run failed; empty where it passed."""
        reasons = list(self.failures)
        if not self.readings:
            reasons.append("no round ended")
        elif (memory := memory_of(self.readings)).is_flat is False:
            assert memory.growth is not None and memory.allowed is not None
            reasons.append(
                f"memory: it grew by {memory.growth / MEBIBYTE:.1f} MiB in the second half, "
                f"{memory.allowed / MEBIBYTE:.1f} are allowed"
            )
        return reasons


def page(findings: Findings, command: str, where: str, seconds: float) -> str:
    """Markdown; ends with the verdict."""
    reasons = findings.verdict()
    lines = [
        "# Soak",
        "",
        f"`{command}` on {where}: {len(findings.readings)} rounds, {seconds:.0f} s.",
    ]
    lines += ["", "| event | count |", "|---|---|"]
    lines += [f"| {name} | {count} |" for name, count in sorted(findings.events.items())]
    if findings.readings:
        memory = memory_of(findings.readings)
        sizes = [f"{size / MEBIBYTE:.0f}" for size in (memory.first, memory.last, memory.largest)]
        if memory.slope is None or memory.growth is None or memory.allowed is None:
            flat = ["too short to tell"] * 3
        else:
            growth, allowed = memory.growth / MEBIBYTE, memory.allowed / MEBIBYTE
            flat = [f"{3600 * memory.slope / MEBIBYTE:+.1f}", f"{growth:+.1f}", f"{allowed:.1f}"]
        lines += [
            "",
            "| resident MiB: first | last | largest | slope of the second half, MiB an hour | its growth | "
            "allowed |",
            "|---|---|---|---|---|---|",
            f"| {' | '.join(sizes + flat)} |",
        ]
    lines += ["", f"Failures: {len(reasons)}", "", *(f"* {reason}" for reason in reasons[:50])]
    return "\n".join(lines) + f"\n\nVerdict: {'FAILED' if reasons else 'passed'}\n"

"""The output of `tune`: its progress, and tables of the changes and of how good the result is."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import TextIO

WIDTH = 24


@dataclasses.dataclass(frozen=True)
class Tuned:
    """A problem whose backends were measured.

    Attributes:
      layer: the layer that it comes from.
      pass_: "fprop", "dx" or "dw" of the layer; the operator's name in a program.
      before: the backend that computed it.
      after: the backend that computes it from now on.
      seconds: the time by backend.
    """

    layer: str
    pass_: str
    before: str
    after: str
    seconds: dict[str, float]

    @property
    def ratio(self) -> float:
        """The time of the backend that is used, over the best backend's."""
        return self.seconds[self.after] / min(self.seconds.values())


class Progress:
    """A bar on one line of a terminal; elsewhere, a line for each tenth of the way."""

    def __init__(self, total: int, stream: TextIO):
        self._total, self._stream = total, stream
        self._started, self._told = time.monotonic(), -1

    def show(self, done: int, what: str) -> None:
        """Shows that ``done`` problems are measured, and that ``what`` is next."""
        elapsed = f"{time.monotonic() - self._started:.0f} s"
        if self._stream.isatty():
            full = WIDTH * done // max(1, self._total)
            bar = "#" * full + "." * (WIDTH - full)
            text = f"[{bar}] {done}/{self._total} {elapsed} {what}"
            print(f"\r{text[:110]:110}", end="", file=self._stream, flush=True)
        elif (tenth := 10 * done // max(1, self._total)) > self._told:
            self._told = tenth
            print(f"tune: {done}/{self._total}, {elapsed}", file=self._stream, flush=True)

    def close(self) -> None:
        if self._stream.isatty():
            print(file=self._stream)


def changes(rows: Sequence[Tuned]) -> str:
    """A line for each problem whose backend has changed."""
    changed = [row for row in rows if row.before != row.after]
    if not changed:
        return f"{len(rows)} passes measured, nothing changed: every pass has its fastest backend"
    table = [("layer", "pass", "before -> after", "us")]
    for row in changed:
        before = _us(row.seconds.get(row.before))
        table.append(
            (
                row.layer,
                row.pass_,
                f"{row.before} -> {row.after}",
                f"{before} -> {_us(row.seconds[row.after])}",
            )
        )
    return f"{len(rows)} passes measured, {len(changed)} changed:\n" + _aligned(table)


def check(rows: Sequence[Tuned], tolerance: float) -> str:
    """A line for each problem with the time of every backend; says which exceed the tolerance."""
    table = [("layer", "pass", "decided", "over best", "us by backend")]
    for row in rows:
        times = ", ".join(f"{b} {_us(s)}" for b, s in row.seconds.items())
        table.append((row.layer, row.pass_, row.after, f"{row.ratio:.3f}", times))
    slow = [row for row in rows if row.ratio > 1 + tolerance]
    end = f"{len(rows)} passes, {len(slow)} slower than their best backend by more than {tolerance:.0%}"
    return f"{_aligned(table)}\n\n{end}"


def _us(seconds: float | None) -> str:
    return "?" if seconds is None else f"{1e6 * seconds:.4g}"


def _aligned(table: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = (zip(line, widths, strict=True) for line in table)
    return "\n".join("  ".join(c.ljust(w) for c, w in line).rstrip() for line in lines)

"""Tables of figures as text, for a terminal and as a Markdown page."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable, Sequence

import jax

from jax_convgrad.bench.provenance import describe_device


def unit() -> tuple[str, float]:
    """The unit of the tables on this device, and how many of them make one second."""
    return ("ms", 1e3) if jax.default_backend() == "cpu" else ("us", 1e6)


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    digits = 0 if value <= 0 else 2 - math.floor(math.log10(value))
    return f"{value:.{max(0, min(digits, 4))}f}"


def time_cell(median: float | None, quartiles: tuple[float, float] | None) -> str:
    """A median and its spread."""
    if median is None or quartiles is None:
        return "failed"
    _, scale = unit()
    low, high = quartiles
    return f"{number(median * scale)} ±{100 * (high - low) / median:.0f}%"


def times(value: float | None) -> str:
    """A ratio of times."""
    return "-" if value is None else f"{number(value)}x"


def aligned(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Columns for a terminal. A value of the first column appears once, above the rows that share it."""
    head = head[1:]
    widths = [max(len(r[i + 1]) for r in [["", *head], *body]) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first, *rest = cells
        aligned = [c.rjust(w) for c, w in zip(rest, widths[1:], strict=True)]
        return "  ".join(["  " + first.ljust(widths[0]), *aligned]).rstrip()

    lines, case = [line(head), "  " + "-" * (sum(widths) + 2 * len(widths) - 2)], None
    for row in body:
        if row[0] != case:
            case = row[0]
            lines.append(case)
        lines.append(line(row[1:]))
    return "\n".join(lines)


def page(
    title: str,
    where: str,
    legend: str,
    rows: tuple[Sequence[str], Sequence[Sequence[str]]],
    notes: Sequence[str],
) -> str:
    """A Markdown document of one table and the notes below it."""
    head, body = rows
    lines = [f"# {title}", "", f"{describe_device()}; {where}", "", legend, ""]
    lines += ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in body]
    lines += ["", *(f"- {text}" for text in notes)]
    return "\n".join(lines) + "\n"


def write(path: str, text: str, say: Callable[[str], None]) -> None:
    """Writes a file, and its folder if need be, and says so."""
    target = pathlib.Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    say(f"wrote {path}")

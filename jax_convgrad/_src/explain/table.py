"""Rows as text: a line for each, and below, once for all rows that share it, the reasons."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Sequence

from jax_convgrad._src.explain.rows import ExplanationRow


def render(platform: str, installed: bool, rows: Sequence[ExplanationRow]) -> str:
    """The whole text."""
    notes = _Notes()
    lines = [_headline(platform, installed, rows)]
    if rows:
        columns = [(title, cell) for title, cell, wanted in _COLUMNS if wanted(rows)]
        cells = [[cell(row) for _, cell in columns] for row in rows]
        for row, line in zip(rows, cells, strict=True):
            line += [
                notes.letter(f"{_who(row)}: {row.reason}"),
                notes.letter(f"XLA has: {row.xla}"),
            ]
        titles = [*(title for title, _ in columns), "why", "XLA has"]
        lines += ["", *_align([titles, *cells]), "", *notes.lines]
    return "\n".join(lines)


def _headline(platform: str, installed: bool, rows: Sequence[ExplanationRow]) -> str:
    ours = sum(row.ours for row in rows)
    what = "convolution or resize" if len(rows) == 1 else "convolutions and resizes"
    text = f"{len(rows)} {what} on {platform}, install() is "
    if installed:
        return f"{text}on; this package computes {ours}"
    return f"{text}off; with it this package computes {ours}"


class _Notes:
    """Texts by letter, each once."""

    def __init__(self) -> None:
        self._letters: dict[str, str] = {}

    def letter(self, text: str) -> str:
        return self._letters.setdefault(text, _name(len(self._letters)))

    @property
    def lines(self) -> list[str]:
        width = max(map(len, self._letters.values()), default=0)
        return [f"{letter.ljust(width)}  {text}" for text, letter in self._letters.items()]


def _name(number: int) -> str:
    """a, b, ..., z, aa, ab, ..."""
    letters = string.ascii_lowercase
    head, last = divmod(number, len(letters))
    return (_name(head - 1) if head else "") + letters[last]


def _align(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    ]


def _where(row: ExplanationRow) -> str:
    return f"{row.source} {row.scope}".rstrip()


def _what(row: ExplanationRow) -> str:
    return row.operator or "convolution"


def _when(row: ExplanationRow) -> str:
    parts = ["backward" if row.backward else "forward", *row.within]
    return ", ".join(parts if row.used else [*parts, "unused"])


def _dtype(row: ExplanationRow) -> str:
    same = row.dtype == row.result_dtype
    return row.dtype if same else f"{row.dtype} to {row.result_dtype}"


def _count(row: ExplanationRow) -> str:
    return "?" if row.count is None else str(row.count)


def _who(row: ExplanationRow) -> str:
    return row.backend if row.ours else "XLA"


def _roofline(row: ExplanationRow) -> str:
    if row.roofline is None:
        return "-"
    text = f"{_short(row.roofline.bytes / 1e6)} MB, {_short(row.roofline.operations / 1e9)} Gop"
    return text if row.roofline_seconds is None else f"{text}, {_time(row.roofline_seconds)}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{_short(1e3 * seconds)} ms" if seconds >= 1e-3 else f"{_short(1e6 * seconds)} us"


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _always(rows: Iterable[ExplanationRow]) -> bool:
    return True


def _measured(rows: Iterable[ExplanationRow]) -> bool:
    return any(row.xla_seconds is not None or row.seconds is not None for row in rows)


_COLUMNS: list[
    tuple[str, Callable[[ExplanationRow], str], Callable[[Sequence[ExplanationRow]], bool]]
] = [
    ("where", _where, _always),
    ("pass", _when, _always),
    ("operator", _what, _always),
    ("sizes", lambda row: row.sizes, _always),
    ("dtype", _dtype, _always),
    ("runs", _count, lambda rows: any(row.count != 1 for row in rows)),
    ("by", _who, _always),
    ("roofline", _roofline, _always),
    ("ours", lambda row: _time(row.seconds), _measured),
    ("XLA", lambda row: _time(row.xla_seconds), _measured),
]

"""Rows as text: a line for each, and below, once for all rows that share it, the reasons.

Lines stay short enough for a terminal: what is long is a note, and what all rows share is in the headline.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterable, Sequence

from jax_convgrad._src.explain import gain
from jax_convgrad._src.explain.rows import ExplanationRow

# Of a gain that may be off by more, the table shows the lower end.
MAX_SPREAD = 2.0


def render(
    platform: str, device_class: str | None, installed: bool, rows: Sequence[ExplanationRow]
) -> str:
    """The whole text."""
    notes = _Notes()
    lines = [_headline(platform, installed, rows)]
    if rows:
        lines += [_expectation(device_class, rows), *_measurement(rows)]
        columns = [(title, cell) for title, cell, wanted in _COLUMNS if wanted(rows)]
        cells = [[cell(row) for _, cell in columns] for row in rows]
        for row, line in zip(rows, cells, strict=True):
            texts = [f"{_who(row)}: {row.reason}", f"XLA has: {row.xla}"]
            texts += _measured_gain(row, device_class)
            line.append(" ".join(map(notes.letter, texts)))
        titles = [*(title for title, _ in columns), "notes"]
        lines += ["", *_align([titles, *cells]), "", *notes.lines, *_missing(rows)]
    return "\n".join(lines)


def _headline(platform: str, installed: bool, rows: Sequence[ExplanationRow]) -> str:
    ours = sum(row.ours for row in rows)
    what = "convolution or resize" if len(rows) == 1 else "convolutions and resizes"
    dtypes = {_dtype(row) for row in rows}
    dtype = f" in {dtypes.pop()}" if len(dtypes) == 1 else ""
    text = f"{len(rows)} {what} on {platform}{dtype}, install() is "
    if installed:
        return f"{text}on; this package computes {ours}"
    return f"{text}off; with it this package computes {ours}"


def _expectation(device_class: str | None, rows: Sequence[ExplanationRow]) -> str:
    """Of all rows together."""
    text = "expected gain over XLA"
    used = [row for row in rows if row.used]
    known, count = gain.rows_known(rows)
    low, value = (gain.of_program(rows, direction) for direction in (-1, 0))
    if low is not None and value is not None:
        shown = f"at least {_times(low)}" if value > MAX_SPREAD * low else _times(value)
        if known == count or value == 1:
            return f"{text}, all rows together (not the whole program): {shown}"
        return f"{text}, {known} of {count} rows together (the others are not known): {shown}"
    if not used:
        return f"{text}: none, nothing depends on these rows"
    if device_class is None:
        return f"{text}: unknown, this device is of no known class"
    if any(row.count is None and row.expected_xla_seconds is not None for row in used):
        return f"{text}: unknown, it is not known how often the rows run"
    if all(row.operator == "conv_backward" for row in used):
        return f"{text}: unknown, whole backward passes were measured against their parts alone"
    return f"{text}: unknown, no measured layers are similar enough"


def _measurement(rows: Sequence[ExplanationRow]) -> list[str]:
    """The measured gain of all rows together, where each was timed both ways."""
    used = [row for row in rows if row.used]
    times = [(row.count, row.xla_seconds, row.seconds) for row in used]
    if not used or not all(
        n and xla and (ours or not row.ours)
        for (n, xla, ours), row in zip(times, used, strict=True)
    ):
        return []
    total = ours_total = 0.0
    for row in used:
        assert row.count is not None and row.xla_seconds is not None
        total += row.count * row.xla_seconds
        ours_total += row.count * (row.seconds if row.ours and row.seconds else row.xla_seconds)
    return [
        f"measured gain over XLA, all rows together (not the whole program): {_times(total / ours_total)}"
    ]


def _missing(rows: Sequence[ExplanationRow]) -> list[str]:
    """Why handlers are missing that rows were to run on, and the command that helps: once."""
    told = dict.fromkeys(row.missing for row in rows if row.missing)
    return [line for text in told for line in ("", text[0].upper() + text[1:])]


def _measured_gain(row: ExplanationRow, device_class: str | None) -> list[str]:
    """The measurements that a gain comes from, if there is one."""
    if not row.gain_evidence:
        return []
    nearest, *others = row.gain_evidence
    text = f"gain from: benchmarks/{nearest}"
    if others:
        text += f" and {len(others)} more"
    if set(row.gain_measured_on) != {device_class}:
        text += f" (on {', '.join(row.gain_measured_on)})"
    return [text]


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


def _gain(row: ExplanationRow) -> str:
    """Where four in five predictions of its kind were not within a factor of two, the lower end."""
    if row.gain is None:
        return "-"
    spread = row.gain_spread or 1
    return _times(row.gain) if spread <= MAX_SPREAD else f"{_times(row.gain / spread)}+"


def _times(value: float) -> str:
    """Two digits: no more is known."""
    value = float(f"{value:.2g}")
    return f"{value:.{max(0, 1 - math.floor(math.log10(value)))}f}x"


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
    ("dtype", _dtype, lambda rows: len(set(map(_dtype, rows))) > 1),
    ("runs", _count, lambda rows: any(row.count != 1 for row in rows)),
    ("by", _who, _always),
    ("gain", _gain, _always),
    ("roofline", _roofline, _always),
    ("ours", lambda row: _time(row.seconds), _measured),
    ("XLA", lambda row: _time(row.xla_seconds), _measured),
]

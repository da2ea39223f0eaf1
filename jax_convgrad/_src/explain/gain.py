"""How much faster than XLA a problem is expected to be: as fast as the most similar ones that were measured.

`measured.json` holds the measurements of benchmarks/ by kind of problem (see `similar`); benchmarks/gains.py
writes it, and says there how well a measured problem is predicted when it is left out.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from jax_convgrad._src.explain.rows import ExplanationRow
from jax_convgrad._src.explain.similar import Sketch

FILE = pathlib.Path(__file__).with_name("measured.json")
NEIGHBORS = 3
# Sizes that differ by factors whose product is 256. benchmarks/notes.md says how it was chosen.
LIMIT = 8.0
# Another class of devices of the same platform is as far away as sizes that differ fourfold.
OTHER_CLASS = 2.0
# The distance by which rounding may separate equal problems, and what keeps the weight of near ones finite.
_SAME, _SOFTENING = 0.1, 0.5


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One problem as XLA and this package computed it.

    Attributes:
      evidence: FILE#CASE#PASS under benchmarks/.
      device_class: of the device.
      sizes, work: of the problem, as in `Sketch`.
      xla_seconds: by XLA.
      backend: this package's; None where it leaves the problem to XLA.
      seconds: by that backend; None where it was not measured.
      together: whether both times are those of all gradients of the layer.
    """

    evidence: str
    device_class: str
    sizes: tuple[float, ...]
    work: int
    xla_seconds: float
    backend: str | None
    seconds: float | None
    together: bool = False

    @property
    def gain(self) -> float:
        assert self.seconds is not None
        return self.xla_seconds / self.seconds


@dataclasses.dataclass(frozen=True)
class Table:
    """The measurements.

    Attributes:
      kinds: by platform and kind.
      spread: by platform, kind, backend, and whether gradients were measured together, the factor within
        which four in five measurements are predicted by the others. Where there is none they do not predict
        each other: a gain is known only where the problem itself was measured.
    """

    kinds: Mapping[tuple[str, str], tuple[Measurement, ...]]
    spread: Mapping[tuple[str, str, str, bool], float]


class Expectation(NamedTuple):
    """What measurements say of a problem that is similar to theirs.

    Attributes:
      gain: XLA's time over this package's.
      spread: as in `Table`; 1 where the problem itself was measured.
      evidence: the measurements, nearest first.
      measured_on: the classes of devices that they were made on.
    """

    gain: float
    spread: float
    evidence: tuple[str, ...]
    measured_on: tuple[str, ...]


class Expected(NamedTuple):
    """What is expected of a row of `explain`, as `ExplanationRow` has it."""

    gain: float | None
    spread: float | None = None
    evidence: tuple[str, ...] = ()
    measured_on: tuple[str, ...] = ()
    xla_seconds: float | None = None


@functools.cache
def shipped() -> Table:
    """The table that is in the package."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    kinds, spread = {}, {}
    for platform, of_platform in content["kinds"].items():
        for kind, found in of_platform.items():
            kinds[platform, kind] = tuple(
                Measurement(evidence, device_class, tuple(sizes), *rest)
                for evidence, device_class, sizes, *rest in found["measurements"]
            )
            for backend, together, factor in found["spread"]:
                spread[platform, kind, backend, together] = factor
    return Table(kinds, spread)


def expect(
    platform: str, device_class: str | None, sketch: Sketch | None, backend: str | None
) -> Expected:
    """What the shipped table says. Without a ``backend`` XLA keeps the problem."""
    seconds, found = None, None
    if sketch is not None:
        arguments = shipped(), platform, device_class, sketch
        seconds = expected_xla_seconds(*arguments)
        found = None if backend is None else expected_gain(*arguments, backend)
    if backend is None:
        return Expected(1.0, 1.0, xla_seconds=seconds)
    return Expected(None, xla_seconds=seconds) if found is None else Expected(*found, seconds)


def of_program(rows: Sequence[ExplanationRow], direction: int = 0) -> float | None:
    """Of all rows whose gain and time are known, together; None where there are none.

    With a ``direction`` of -1 or 1 every row gains as little, or as much, as its spread allows.
    """
    used = [row for row in rows if row.used]
    if used and all(row.gain == 1 for row in used):
        return 1.0
    known = [row for row in used if _is_known(row)]
    ours = sum(_weight(row) / _gain(row, direction) for row in known)
    return sum(map(_weight, known)) / ours if ours else None


def _gain(row: ExplanationRow, direction: int) -> float:
    assert row.gain is not None
    return row.gain * (row.gain_spread or 1) ** direction


def rows_known(rows: Iterable[ExplanationRow]) -> tuple[int, int]:
    """How many rows `of_program` counts, of how many that anything depends on."""
    used = [row for row in rows if row.used]
    return sum(map(_is_known, used)), len(used)


def _is_known(row: ExplanationRow) -> bool:
    known = row.gain is not None and row.expected_xla_seconds is not None
    return known and row.used and row.count is not None


def _weight(row: ExplanationRow) -> float:
    assert row.expected_xla_seconds is not None and row.count is not None
    return row.count * row.expected_xla_seconds


def expected_gain(
    table: Table,
    platform: str,
    device_class: str | None,
    sketch: Sketch,
    backend: str,
    limit: float = LIMIT,
) -> Expectation | None:
    """The gain of ``backend`` over XLA on devices of a class; None where nothing near enough was measured.

    Measurements of a single operator come before those of all gradients of a layer.

    Args:
      table: the measurements.
      platform: JAX's name.
      device_class: None where it is not known; nothing is expected of such a device.
      sketch: of the problem.
      backend: of this package.
      limit: how far away measurements may be.
    """
    if device_class is None:
        return None
    for together in (False, True):
        spread = table.spread.get((platform, sketch.kind, backend, together))
        found = _near(
            (
                m
                for m in table.kinds.get((platform, sketch.kind), ())
                if m.backend == backend and m.seconds is not None and m.together == together
            ),
            device_class,
            sketch,
            _SAME if spread is None else limit,
        )
        if found:
            value = _mean([(math.log(m.gain), away) for away, m in found])
            evidence = tuple(m.evidence for _, m in found)
            classes = tuple(dict.fromkeys(m.device_class for _, m in found))
            if spread is None or found[0][0] <= _SAME:
                spread = 1.0
            return Expectation(math.exp(value), spread, evidence, classes)
    return None


def expected_xla_seconds(
    table: Table,
    platform: str,
    device_class: str | None,
    sketch: Sketch,
) -> float | None:
    """The time of XLA: of similar problems, in proportion to the work. None where there is none near enough.

    It weighs the rows of a program and is no promise.
    """
    if device_class is None:
        return None
    for together in (False, True):
        found = _near(
            (m for m in table.kinds.get((platform, sketch.kind), ()) if m.together == together),
            device_class,
            sketch,
            LIMIT,
        )
        if found:
            rates = [(math.log(m.xla_seconds / m.work), away) for away, m in found]
            return math.exp(_mean(rates)) * sketch.work
    return None


def _near(
    measurements: Iterable[Measurement],
    device_class: str,
    sketch: Sketch,
    limit: float,
) -> list[tuple[float, Measurement]]:
    """The nearest measurements and their distances; of a problem that was measured itself, these alone."""
    found = [
        (away + (0 if m.device_class == device_class else OTHER_CLASS), m)
        for m in measurements
        if (away := distance(m, sketch)) <= limit
    ]
    found.sort(key=lambda pair: pair[0])
    return [pair for pair in found if pair[0] <= _SAME] or found[:NEIGHBORS]


def distance(m: Measurement, sketch: Sketch) -> float:
    """How far apart two problems of a kind are: the sum of the base-2 logarithms of their sizes' ratios."""
    return sum(abs(a - b) for a, b in zip(m.sizes, sketch.sizes, strict=True))


def _mean(pairs: Sequence[tuple[float, float]]) -> float:
    """Of values, weighted by nearness."""
    weights = [1 / (_SOFTENING + distance) for _, distance in pairs]
    return sum(w * value for w, (value, _) in zip(weights, pairs, strict=True)) / sum(weights)

"""The tuning file: the fastest backend of each problem that was measured on this device.

`decide` asks `lookup` before the shipped rules. The file is read once a process, when the first operator
is lowered. JAX_CONVGRAD_TUNING names it; "off" stands for none.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import hashlib
import json
import os
import pathlib
import threading
import uuid
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from jax_convgrad._src.dispatch.problem import ConvProblem, ResampleProblem
from jax_convgrad._src.dispatch.rules import BACKENDS
from jax_convgrad._src.runtime import registry
from jax_convgrad._src.tuning.versions import MadeOn, made_on

VARIABLE = "JAX_CONVGRAD_TUNING"
OFF = "off"
FORMAT = "jax_convgrad tuning 1"

Problem = ConvProblem | ResampleProblem


class StaleTuningWarning(UserWarning):
    """The tuning file was measured on another device or with other versions."""


class TuningFileError(RuntimeError):
    """The tuning file cannot be used."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A problem's backends, measured.

    Attributes:
      key: the problem's key, see `key_of`.
      sizes: the problem in one line, for people.
      made_on: the device and versions that it holds for, see `versions`.
      backend: the fastest backend.
      seconds: a call's time by each backend that was measured.
      plan: where cuDNN was measured, the "problem" and the "engine" of its fastest plan.
    """

    key: str
    sizes: str
    made_on: MadeOn
    backend: str
    seconds: dict[str, float]
    plan: dict[str, str] | None = None

    @property
    def reason(self) -> str:
        times = sorted(self.seconds.items(), key=lambda entry: entry[1])
        return "measured on this device: " + ", ".join(f"{b} {1e6 * s:.3g} us" for b, s in times)


class Table:
    """The rows of one file."""

    def __init__(self, path: str, rows: Iterable[Row] = ()):
        self.path = path
        self.rows = tuple(rows)
        self._lock = threading.RLock()
        self._current: dict[str, dict[str, Row]] = {}

    def lookup(self, problem: Problem, platform: str) -> Row | None:
        """The problem's row, if it was measured on this device with these versions."""
        current = self.current(platform)
        return current.get(key_of(problem) or "") if current else None

    def current(self, platform: str) -> dict[str, Row]:
        """The platform's rows that hold on this machine, by their keys."""
        with self._lock:
            if platform not in self._current:
                self._current[platform] = self._select(platform)
            return self._current[platform]

    def _select(self, platform: str) -> dict[str, Row]:
        rows = [row for row in self.rows if row.made_on["platform"] == platform]
        here = made_on(platform) if rows else None
        if here is None:
            return {}
        found = {row.key: row for row in rows if row.made_on == here}
        if not found:
            told = {key: (rows[-1].made_on[key], here[key]) for key in here}
            changed = [f"{k} {old!r}, here {new!r}" for k, (old, new) in told.items() if old != new]
            warnings.warn(
                f"the tuning file {self.path} is ignored: it was measured with {'; '.join(changed)}. "
                "Run `python -m jax_convgrad tune` again",
                StaleTuningWarning,
                stacklevel=2,
            )
        plans = [(row.plan["problem"], row.plan["engine"]) for row in found.values() if row.plan]
        if plans and (module := registry.cuda_module()) is not None:
            module.load_choices(plans)
        return found

    def merged(self, rows: Iterable[Row]) -> Table:
        """The table with new rows added. Rows of the same device with other versions are dropped."""
        new = {(row.made_on["device"], row.key): row for row in rows}
        latest = {row.made_on["device"]: row.made_on for row in new.values()}
        kept = [
            row
            for row in self.rows
            if (row.made_on["device"], row.key) not in new
            and latest.get(row.made_on["device"], row.made_on) == row.made_on
        ]
        return Table(self.path, [*kept, *new.values()])


_using: contextvars.ContextVar[Table | None] = contextvars.ContextVar(
    "jax_convgrad_tuning", default=None
)
_lock = threading.Lock()
_tables: dict[str, Table] = {}


def lookup(problem: Problem, platform: str | None) -> tuple[Row, str] | None:
    """The row that decides a problem, and the file that it is from; None without one.

    Raises:
      TuningFileError: there is a tuning file, but it cannot be used.
    """
    if platform is None:
        return None
    table = _using.get() or table_in_use()
    row = None if table is None else table.lookup(problem, platform)
    return None if row is None or table is None else (row, table.path)


@contextlib.contextmanager
def using(table: Table) -> Iterator[None]:
    """Decides by these rows inside, whatever the file has."""
    token = _using.set(table)
    try:
        yield
    finally:
        _using.reset(token)


def path() -> pathlib.Path | None:
    """The file that is read, whether it exists or not; None where the variable says "off"."""
    named = os.environ.get(VARIABLE)
    if named == OFF:
        return None
    if named:
        return pathlib.Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (
        (pathlib.Path(cache) if cache else pathlib.Path("~/.cache").expanduser())
        / "jax_convgrad"
        / "tuning.json"
    )


def table_in_use() -> Table | None:
    """This process's rows, read at the first call; None without a file.

    Raises:
      TuningFileError: as `read`, or JAX_CONVGRAD_TUNING names a file that does not exist.
    """
    file = path()
    if file is None:
        return None
    with _lock:
        if str(file) not in _tables:
            if os.environ.get(VARIABLE) and not file.exists():
                raise TuningFileError(
                    f"{VARIABLE} names {file}, which does not exist. Write it with "
                    f"`python -m jax_convgrad tune`, or set {VARIABLE}={OFF}"
                )
            _tables[str(file)] = read(file)
        return _tables[str(file)]


def read(file: str | os.PathLike[str]) -> Table:
    """The rows of a file; none if it does not exist.

    Raises:
      TuningFileError: the file cannot be read, or was not written by `write`.
    """
    try:
        content = json.loads(pathlib.Path(file).read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}, expected {FORMAT!r}")
        return Table(os.fspath(file), [_row(entry) for entry in content["rows"]])
    except FileNotFoundError:
        return Table(os.fspath(file))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise TuningFileError(
            f"the tuning file {os.fspath(file)} cannot be used ({type(error).__name__}: {error}). "
            f"Delete it and run `python -m jax_convgrad tune`, or set {VARIABLE}={OFF}"
        ) from error


def _row(entry: dict[str, Any]) -> Row:
    row = Row(**entry)
    if row.backend not in BACKENDS:
        raise ValueError(f"{row.backend!r} is not a backend")
    if not {"platform", "device", "library", "package"} == row.made_on.keys():
        raise ValueError(f"made_on has {sorted(row.made_on)}")
    if not all(isinstance(seconds, float) for seconds in row.seconds.values()):
        raise ValueError(f"seconds are {row.seconds}")
    if row.plan is not None and row.plan.keys() != {"problem", "engine"}:
        raise ValueError(f"a plan has {sorted(row.plan)}")
    return row


def write(table: Table) -> None:
    """Replaces the file as a whole. Processes that have read it keep the rows that they read.

    Raises:
      OSError: it cannot be written.
    """
    target = pathlib.Path(os.path.realpath(table.path))
    target.parent.mkdir(parents=True, exist_ok=True)
    rows = ",\n".join(json.dumps(dataclasses.asdict(row)) for row in table.rows)
    partial = target.with_name(f".{uuid.uuid4().hex}.partial")
    try:
        partial.write_text(f'{{"format": {json.dumps(FORMAT)}, "rows": [\n{rows}\n]}}\n')
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def key_of(problem: Problem) -> str | None:
    """A key that is the same for equal problems in every process, and different for others; None for symbolic
    sizes."""
    if isinstance(problem, ResampleProblem):
        sizes: tuple[Any, ...] = problem.shape
        bands = [band.digest.hex() for band in problem.bands]
        parts: list[Any] = ["resample", str(problem.dtype), *problem.axes, *bands]
    else:
        geometry, config = problem.geometry, problem.geometry.config
        sizes = (
            geometry.batch,
            geometry.in_channels,
            geometry.out_channels,
            *geometry.in_spatial,
            *geometry.kernel,
        )
        parts = [
            problem.operator,
            str(problem.dtype),
            str(problem.result_dtype),
            str(problem.precision),
            config.strides,
            config.padding,
            config.dilation,
            config.groups,
            tuple(map(tuple, config.dimension_numbers)),
        ]
    if not all(isinstance(size, int | np.integer) for size in sizes):
        return None
    text = json.dumps([*sizes, *parts], default=int)  # NumPy's integers count as integers
    return hashlib.sha256(text.encode()).hexdigest()[:32]

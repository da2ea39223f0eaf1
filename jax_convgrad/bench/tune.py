"""The command line of `tune`: chooses the problems to measure, and saves or checks the rows."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import re
import sys
import time
from collections.abc import Iterator

from jax_convgrad._src.tuning import report, store
from jax_convgrad._src.tuning.report import Tuned
from jax_convgrad._src.tuning.store import Problem, Row
from jax_convgrad._src.tuning.versions import made_on
from jax_convgrad.bench import case_files
from jax_convgrad.bench.cases import CaseError

# `--check` fails if a backend is slower by more than this in a second measurement.
TOLERANCE = 0.05


@dataclasses.dataclass(frozen=True)
class Work:
    """A problem and where it comes from."""

    layer: str
    pass_: str
    problem: Problem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tune`."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODULE:FUNCTION",
        help="a function without arguments that returns a step and the step's arguments, as a tuple: the "
        "convolutions and resizes of that step are measured (default: published layers)",
    )
    parser.add_argument("--cases", metavar="FILE", help="a JSON file of cases, as bench has them")
    parser.add_argument("--only", metavar="REGEX", help="only layers whose label matches")
    parser.add_argument(
        "--seconds",
        type=float,
        default=600.0,
        help="start no measurement after this time (default: 600)",
    )
    parser.add_argument("--dry-run", action="store_true", help="measure and print, write nothing")
    parser.add_argument(
        "--check",
        action="store_true",
        help="measure everything again with the new decisions; exit status 1 if a pass is slower than "
        f"its best backend by more than {100 * TOLERANCE:.0f}%%",
    )


def main(arguments: argparse.Namespace) -> int:
    """Tunes. Exit status 1: `--check` found a slow pass; 2: the arguments or the file are invalid."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        return _tune(arguments)
    except (CaseError, store.TuningFileError) as error:
        print(f"tune: {error}", file=sys.stderr)
        return 2


def _tune(arguments: argparse.Namespace) -> int:
    from jax_convgrad._src import compat
    from jax_convgrad._src.dispatch.decide import HANDLER_BACKENDS
    from jax_convgrad._src.runtime import plans
    from jax_convgrad._src.timing.memory import keep_freed_memory

    keep_freed_memory()
    platform = compat.platform()
    if platform not in HANDLER_BACKENDS:
        raise CaseError(
            f"there is only one backend on {platform}, so there is nothing to choose from"
        )
    path = store.path()
    if path is None:
        raise CaseError(
            f"{store.VARIABLE}={store.OFF} turns the tuning file off; set it to a file's path"
        )
    old = store.read(path)
    started = time.monotonic()
    with store.using(old):
        # The file's engines are loaded once, here, and forgotten: a loaded engine is taken without a search,
        # so a second `tune` would keep the engines of the first.
        old.current(platform)
        plans.clear()
        work = list(_work(arguments, platform))
        if not work:
            raise CaseError("there is nothing to measure")
        measured, rows, tuned = _measure(work, platform, started + arguments.seconds)
    new = old.merged(rows)
    print(", ".join(f"{name} {value}" for name, value in (made_on(platform) or {}).items()))
    print(
        f"{len({entry.layer for entry in measured})} layers in {time.monotonic() - started:.0f} s"
    )
    print(report.changes(tuned))
    if len(tuned) < len(work):
        print(f"{len(work) - len(tuned)} of {len(work)} passes were not measured")
    if arguments.dry_run:
        print(f"dry run: {path} is unchanged")
    else:
        store.write(new)
        print(f"{len(rows)} rows written to {path}")
    if not arguments.check:
        return 0
    with store.using(new):
        checked = _check(measured, platform)
    print(f"\n{report.check(checked, TOLERANCE)}")
    return int(any(row.ratio > 1 + TOLERANCE for row in checked))


def _work(arguments: argparse.Namespace, platform: str) -> Iterator[Work]:
    """The distinct problems, in order."""
    found = _of_model(arguments.model, platform) if arguments.model else _of_cases(arguments)
    seen: set[str | None] = {None}  # symbolic sizes have no key
    for entry in found:
        key = store.key_of(entry.problem)
        if key not in seen and re.search(arguments.only or "", entry.layer):
            seen.add(key)
            yield entry


def _of_model(name: str, platform: str) -> Iterator[Work]:
    from jax_convgrad._src.tuning.measure import sizes_of
    from jax_convgrad._src.tuning.program import problems_of

    module, _, function = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        made = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError, ValueError) as error:
        raise CaseError(f"{name} cannot be called as MODULE:FUNCTION: {error}") from error
    if not isinstance(made, tuple) or not made or not callable(made[0]):
        raise CaseError(f"{name}() must return a tuple of a function and its arguments")
    for problem in problems_of(platform, *made):
        yield Work(sizes_of(problem), getattr(problem, "operator", "resample"), problem)


def _of_cases(arguments: argparse.Namespace) -> Iterator[Work]:
    import jax

    from jax_convgrad.bench.problems import problem_of

    which = "cpu" if jax.default_backend() == "cpu" else "gpu"
    if arguments.cases:
        cases = case_files.load_cases(arguments.cases)
    else:
        cases = case_files.published(which)
    for case in cases:
        for pass_ in ("fprop", "dx", "dw"):
            if pass_ in case.passes:
                yield Work(case.label, pass_, problem_of(case, pass_))


def _measure(
    work: list[Work], platform: str, until: float
) -> tuple[list[Work], list[Row], list[Tuned]]:
    """The problems that could be measured in time."""
    import jax

    from jax_convgrad._src.tuning.measure import decided, measure, row_of

    progress = report.Progress(len(work), sys.stderr)
    measured: list[Work] = []
    rows: list[Row] = []
    tuned: list[Tuned] = []
    for done, entry in enumerate(work):
        if time.monotonic() > until:
            break
        progress.show(done, f"{entry.layer} {entry.pass_}")
        before = decided(entry.problem, platform)
        try:
            row = row_of(entry.problem, platform, *measure(entry.problem, platform), before)
        except jax.errors.JaxRuntimeError as error:  # too large for this device, for example
            print(f"tune: {entry.layer} {entry.pass_} failed: {error}", file=sys.stderr)
            continue
        except KeyboardInterrupt:  # what is measured is kept
            break
        measured.append(entry)
        rows.append(row)
        tuned.append(Tuned(entry.layer, entry.pass_, before, row.backend, row.seconds))
    progress.show(len(rows), "")
    progress.close()
    return measured, rows, tuned


def _check(work: list[Work], platform: str) -> list[Tuned]:
    """Measures every pass again, and one that looks slow once more."""
    from jax_convgrad._src.tuning.measure import decided, measure

    progress = report.Progress(len(work), sys.stderr)
    checked = []
    for done, entry in enumerate(work):
        progress.show(done, f"check {entry.layer} {entry.pass_}")
        backend = decided(entry.problem, platform)
        found = Tuned(
            entry.layer, entry.pass_, backend, backend, measure(entry.problem, platform)[0]
        )
        if found.ratio > 1 + TOLERANCE:
            found = dataclasses.replace(found, seconds=measure(entry.problem, platform)[0])
        checked.append(found)
    progress.close()
    return checked

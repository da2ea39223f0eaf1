"""Fails where this package became slower: results of before against results of now.

    python benchmarks/gate.py OLD.json NEW.json --slower 1.03
    python benchmarks/gate.py --old OLD_1.json OLD_2.json --new NEW_1.json NEW_2.json

The files come from `python -m jax_convgrad bench --json`. A side may have several, from repeated runs.
Of those, each pass counts with its lowest median: other programs on a machine only ever add time, so
the lowest is the closest to what the code costs, and one disturbed run of three cannot fail the gate.
Run both sides in turns on one machine.

Exit status: 0 where no pass is slower than allowed, 1 where one is, 2 where the files cannot be
compared: another device, a pass that is missing or has no time on one of the sides.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jax_convgrad.bench.forms import present_name

Times = dict[str, float]


class Incomparable(Exception):
    """The two sides do not measure the same."""


def pass_name(content: dict[str, Any], row: dict[str, Any]) -> str:
    """Names a pass of a case so that no two have the same name: all of the case's fields are in it."""
    case = row["case"]
    fields = " ".join(f"{key}={case[key]}" for key in sorted(case) if key not in ("name", "dt"))
    order = f"{content['layout']}/{content.get('weights', 'HWIO')}"
    variant = row.get("variant") or "default"
    return f"{case['name']} {case['dt']} {row['pass']} ({order} {variant} {fields})"


def times_of(path: Path, form: str) -> tuple[str, Times]:
    """A file's device, and the median time in seconds of each pass that it has for a form."""
    content = json.loads(path.read_text())
    times: Times = {}
    for row in content["results"]:
        if present_name(row["form"]) != form or row.get("absent"):
            continue
        name = pass_name(content, row)
        if row["median_s"] is None:
            raise Incomparable(f"{path}: no time for {name}: {row.get('failure')}")
        if name in times:
            raise Incomparable(f"{path}: two times for {name}")
        times[name] = row["median_s"]
    if not times:
        raise Incomparable(f"{path}: no times for the form {form!r}")
    device = content["device"]
    return f"{device['platform']} {device['name']}", times


def side(paths: Sequence[Path], form: str) -> tuple[str, Times]:
    """The device of several runs, and each pass's lowest median. All runs must have the same passes."""
    device, lowest = times_of(paths[0], form)
    for path in paths[1:]:
        other_device, times = times_of(path, form)
        same_device(str(paths[0]), device, str(path), other_device)
        same_passes(str(paths[0]), lowest, str(path), times)
        lowest = {name: min(time, times[name]) for name, time in lowest.items()}
    return device, lowest


def same_device(here: str, device: str, there: str, other: str) -> None:
    if device != other:
        raise Incomparable(
            f"{here} was measured on {device}, {there} on {other}: measure both on one"
        )


def same_passes(here: str, times: Times, there: str, others: Times) -> None:
    missing = [f"{there} has no {name}" for name in sorted(times.keys() - others.keys())]
    missing += [f"{here} has no {name}" for name in sorted(others.keys() - times.keys())]
    if missing:
        raise Incomparable("\n".join(missing))


def compare(old: Sequence[Path], new: Sequence[Path], form: str) -> dict[str, float]:
    """New time / old time of each pass, the slowest first. Raises Incomparable."""
    old_device, before = side(old, form)
    new_device, now = side(new, form)
    same_device("the old side", old_device, "the new side", new_device)
    same_passes("the old side", before, "the new side", now)
    ratios = {name: now[name] / time for name, time in before.items()}
    return dict(sorted(ratios.items(), key=lambda item: -item[1]))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="OLD.json NEW.json")
    parser.add_argument(
        "--old", nargs="+", type=Path, metavar="FILE", help="several runs of before"
    )
    parser.add_argument("--new", nargs="+", type=Path, metavar="FILE", help="several runs of now")
    parser.add_argument(
        "--slower", type=float, default=1.03, help="the highest ratio that passes (%(default)s)"
    )
    parser.add_argument("--form", default="ours", help="whose times (%(default)s)")
    args = parser.parse_args(arguments)
    if args.files and (args.old or args.new):
        parser.error("give either OLD.json NEW.json, or --old and --new")
    if args.files and len(args.files) != 2:
        parser.error("expected two files; for several runs a side use --old and --new")
    if not args.files and not (args.old and args.new):
        parser.error("expected OLD.json NEW.json, or --old and --new")
    old, new = ([args.files[0]], [args.files[1]]) if args.files else (args.old, args.new)

    try:
        ratios = compare(old, new, args.form)
    except Incomparable as error:
        print(error, file=sys.stderr)
        return 2
    slower = {name: ratio for name, ratio in ratios.items() if ratio > args.slower}
    for name, ratio in slower.items():
        print(f"{ratio:.3f}x  {name}")
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    print(f"{len(slower)} of {len(ratios)} passes slower than {args.slower}x; mean {mean:.3f}x")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())

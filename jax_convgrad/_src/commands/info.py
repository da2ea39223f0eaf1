"""`jax-convgrad info`: a report to paste into an issue."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from jax_convgrad._src.commands import machine

HELP = (
    "a report to paste into an issue: device, versions, handlers, what is missing and how to get it"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints the report. Exit status 0, whatever is missing."""
    found = report()
    if arguments.json:
        print(json.dumps(found, indent=2, default=str))
    else:
        print("\n".join(_lines(found)))
    return 0


def report() -> dict[str, Any]:
    """The report of `jax_convgrad.info`, and the machine, what is missing, and where install() is on."""
    import jax_convgrad
    from jax_convgrad._src.dispatch.unserved import bfloat16_on_this_cpu
    from jax_convgrad._src.install.switch import PLATFORMS

    found = jax_convgrad.info()
    missing = {
        f"{platform} handlers": entry["remedy"] or "not for this machine"
        for platform, entry in found["handlers"].items()
        if not entry["available"]
    }
    cpu = found["handlers"]["cpu"]
    if cpu["available"] and "bfloat16" not in cpu["dtypes"]:
        missing["bfloat16 on this CPU"] = bfloat16_on_this_cpu()
    installed = jax_convgrad.installed()
    return {
        **found,
        "machine": machine.describe(),
        "missing, and how to get it": missing,
        "install()": {name: "on" if name in installed else "off" for name in PLATFORMS},
    }


def _lines(value: Mapping[str, Any], indent: int = 0) -> list[str]:
    """Nested mappings as indented lines, the values of each level in one column."""
    width = max((len(str(key)) for key in value), default=0)
    lines = []
    for key, entry in value.items():
        start = " " * indent + str(key)
        if isinstance(entry, Mapping) and entry:
            lines += [start, *_lines(entry, indent + 2)]
        else:
            lines.append(f"{start.ljust(indent + width)}  {_plain(entry)}")
    return lines


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == {}:
        return "-"
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(map(str, value)) or "-"
    return str(value)

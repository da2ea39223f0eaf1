"""The command line: `python -m jax_convgrad info` and `python -m jax_convgrad bench`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from jax_convgrad.bench import cli as bench


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the arguments and runs the command. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m jax_convgrad", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    text = "versions, which handlers are there and, where not, why; whether install() is on"
    info = commands.add_parser("info", help=text, description=text)
    info.add_argument("--json", action="store_true", help="as JSON")
    text = "time convolution layers on the present device"
    bench.add_arguments(commands.add_parser("bench", help=text, description=text))
    arguments = parser.parse_args(argv)
    if arguments.command == "bench":
        return bench.main(arguments)
    return _info(arguments.json)


def _info(as_json: bool) -> int:
    import jax_convgrad
    from jax_convgrad._src.install.lowering_rules import PLATFORMS

    on = {platform: platform in jax_convgrad.installed() for platform in PLATFORMS}
    found = {**jax_convgrad.info(), "install() is on": on}
    if as_json:
        print(json.dumps(found, indent=2, default=str))
    else:
        print("\n".join(_lines(found)))
    return 0


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


if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read has read enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)

"""The command line, `jax-convgrad` or `python -m jax_convgrad`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from jax_convgrad._src.commands import bench, check_engines, explain, info, tune
from jax_convgrad._src.runtime.registry import version

COMMANDS = {
    "info": info,
    "explain": explain,
    "bench": bench,
    "tune": tune,
    "check-engines": check_engines,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the arguments and runs the command, or prints the help where there is none. Returns the exit
    status."""
    parser = argparse.ArgumentParser(prog="jax-convgrad", description=__doc__)
    parser.add_argument("--version", action="version", version=f"jax-convgrad {version()}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    for name, command in COMMANDS.items():
        command.add_arguments(
            commands.add_parser(name, help=command.HELP, description=command.HELP)
        )
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help()
        return 0
    status: int = COMMANDS[arguments.command].run(arguments)
    return status


def run() -> int:
    """The console script: `main`, which ends quietly when a pipe's reader, such as `head`, has closed
    it."""
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    return status


if __name__ == "__main__":
    sys.exit(run())

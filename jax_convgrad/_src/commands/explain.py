"""The command line of `explain`: `jax-convgrad explain module:function`."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import sys
from typing import Any

from jax_convgrad._src.explain.program import explain

HELP = "the convolutions and resizes of a training step, and the backend of each"
_CONTRACT = "return step, params, batch"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's arguments."""
    parser.add_argument(
        "program",
        metavar="MODULE:FUNCTION",
        help="a function without arguments that returns the step to explain and the step's arguments in one "
        f"tuple: `{_CONTRACT}`; the module is looked for in the current folder first",
    )
    parser.add_argument(
        "--measure", action="store_true", help="time each row on this device, a second or two each"
    )
    parser.add_argument("--json", action="store_true", help="the rows as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command. Returns the exit status: 2 where the program cannot be found."""
    try:
        step, *args = load(arguments.program)
    except ValueError as error:
        print(f"explain: {error}", file=sys.stderr)
        return 2
    found = explain(step, *args, measure=arguments.measure)
    if arguments.json:
        print(json.dumps([dataclasses.asdict(row) for row in found.rows], indent=2, default=str))
    else:
        print(found)
    return 0


def load(program: str) -> tuple[Any, ...]:
    """The step that MODULE:FUNCTION returns and the step's arguments.

    Raises:
      ValueError: there is no such module or function, or it returns something else.
    """
    module_name, _, name = program.partition(":")
    if not module_name or not name:
        raise ValueError(f"expected MODULE:FUNCTION, such as train:example, got {program!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, but one that it imports is not
        raise ValueError(
            f"no module {module_name!r} in {os.getcwd()} or on Python's path; a module is named without .py"
        ) from None
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{module_name} has no function {name!r}")
    returned = function()
    if not isinstance(returned, tuple) or not returned or not callable(returned[0]):
        raise ValueError(
            f"{program} must return the step and its arguments as a tuple (`{_CONTRACT}`), got a value of "
            f"type {type(returned).__name__}"
        )
    return returned

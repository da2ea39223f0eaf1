"""`jax-convgrad check-engines`: whether the loaded cuDNN's engines compute right numbers."""

from __future__ import annotations

import argparse
import sys

import jax

from jax_convgrad._src.runtime import registry, remedies, settings
from jax_convgrad.bench import engines

HELP = "run every engine of this machine's cuDNN on small problems, and list those that are wrong"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds",
        type=float,
        default=600.0,
        help="begin with no problem after this time (default: 600)",
    )
    parser.add_argument("--verbose", action="store_true", help="print engines that are right too")


def run(arguments: argparse.Namespace) -> int:
    """Checks the engines. Exit status 1: one is wrong; 2: there are no CUDA handlers."""
    handlers = registry.find("cuda")
    if handlers.reason is not None:
        reason = remedies.with_command("cuda", handlers.reason)
        print(f"check-engines: no CUDA handlers: {reason}", file=sys.stderr)
        return 2
    loaded, validated = dict(handlers.versions)["cudnn"], dict(handlers.validated)["cudnn"]
    print(f"cuDNN {loaded}; its errata were validated on {validated}", flush=True)

    def progress(row: engines.Row) -> None:
        if row.is_wrong or arguments.verbose:
            print(row, flush=True)

    before = settings.current().search
    settings.change(search="exhaustive")
    try:
        with jax.enable_x64(True):
            rows, left = engines.run(arguments.seconds, progress)
    finally:
        settings.change(search=before)
    wrong = sum(row.is_wrong for row in rows)
    ran = sum(row.engine != "none" for row in rows)
    rest = f"; no time for {left} problems" if left else ""
    print(f"{ran} engines run, {wrong} wrong{rest}")
    if wrong:
        print(
            f"The search may choose these engines for such layers: install cuDNN {validated}, and report "
            "this output."
        )
    return int(wrong > 0)

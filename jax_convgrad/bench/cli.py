"""The command line of the benchmark."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import re
import signal
import sys
from collections.abc import Callable, Sequence

from jax_convgrad.bench import cases as case_files
from jax_convgrad.bench.cases import LAYOUTS, Case, CaseError

DEFAULT_PASSES = "fprop,dx,dw,dxdwdb"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `bench`."""
    parser.add_argument(
        "--cases", metavar="FILE", help="a JSON file of cases instead of those shipped"
    )
    parser.add_argument(
        "--set",
        choices=("cpu", "gpu", "all"),
        help="which of the layers shipped with the package (default: those for the present device)",
    )
    parser.add_argument("--only", metavar="REGEX", help="only cases whose label matches")
    parser.add_argument("--list", action="store_true", help="list the cases and stop")
    parser.add_argument(
        "--forms",
        default="ours,lax,swap,torch",
        help="what to compare: ours, lax, swap, torch (default: all four); of a resize lax is jax.image",
    )
    parser.add_argument(
        "--passes",
        default=DEFAULT_PASSES,
        help="what to time: fprop, dx, dw, dxdwdb (default: these four), ddxddw, which is a double "
        "backward: the gradients of a squared input gradient; a resize has fprop and dx",
    )
    parser.add_argument("--layout", choices=LAYOUTS, default="NHWC", help="default: NHWC")
    parser.add_argument(
        "--weights",
        choices=("HWIO", "OHWI"),
        help="how the weights lie in memory that the JAX forms are given: HWIO, which is what Flax stores "
        "and is reordered at every call where cuDNN is called with channels last, or OHWI, which is what "
        "PyTorch holds (for conv_transpose of the convolution underneath) and is not "
        "(default: HWIO; with --layout NCHW: OIHW)",
    )
    parser.add_argument(
        "--rounds", type=_positive, default=9, help="samples of each form (default: 9)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs (default: 0)")
    parser.add_argument("--json", metavar="OUT", help="write all figures as JSON")
    parser.add_argument("--markdown", metavar="OUT", help="write the table as Markdown")
    parser.add_argument("--plot", metavar="OUT.png", help="draw a bar chart (needs matplotlib)")


def main(arguments: argparse.Namespace) -> int:
    """Runs the benchmark. Exit status 1: a form failed; 2: the arguments make no sense."""
    # PyTorch shares the GPU with JAX: without this JAX takes three quarters of its memory at the
    # start.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    from jax_convgrad.bench import report, timing
    from jax_convgrad.bench.forms import FORMS, PASSES, cpu_threads

    try:
        forms = _names("--forms", arguments.forms, tuple(FORMS))
        passes = _names("--passes", arguments.passes, PASSES)
        platform = "cpu" if jax.default_backend() == "cpu" else "gpu"
        cases = _select(arguments, platform)
    except CaseError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    if arguments.list:
        for case in cases:
            print(case.label)
        return 0
    if not cases:
        print("bench: no case is left to run", file=sys.stderr)
        return 2
    if arguments.plot:
        _require_matplotlib()

    weights = arguments.weights or case_files.default_weights(arguments.layout)
    method = dataclasses.replace(timing.Method(), rounds=arguments.rounds, seed=arguments.seed)
    load = report.load_average()
    if platform == "cpu" and load is not None and load > 0.5 * cpu_threads():
        print(
            f"note: the load average is {load:.1f} on {cpu_threads()} processors: if another "
            "program is running, no time here is to be trusted",
            file=sys.stderr,
        )
    count = sum(name in case.passes for case in cases for name in passes)
    # Whoever ends a long run gets the passes that are done, by a time limit too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _Progress(count) as advance:
        results = timing.run(
            cases,
            [FORMS[name] for name in forms],
            passes,
            arguments.layout,
            method,
            advance,
            weights,
        )
    print(f"{report.describe_device()}; {report.describe_layout(arguments.layout, weights)}")
    print(report.legend())
    print()
    print(report.table(results, forms))
    print()
    for line in report.summary_lines(results, forms):
        print(line)
    if arguments.json:
        data = report.to_json(results, arguments.layout, weights, method, load)
        report.write(arguments.json, json.dumps(data, indent=1, default=str) + "\n", print)
    if arguments.markdown:
        where = report.describe_layout(arguments.layout, weights)
        report.write(arguments.markdown, report.markdown(results, forms, where), print)
    if arguments.plot:
        pathlib.Path(arguments.plot).parent.mkdir(parents=True, exist_ok=True)
        report.plot(results, forms, arguments.plot)
        print(f"wrote {arguments.plot}")
    if len(results) < count * len(forms):
        print("bench: interrupted, the passes after these are missing", file=sys.stderr)
        return 130
    return 1 if any(result.failure for result in results) else 0


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _names(option: str, text: str, known: Sequence[str]) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise CaseError(f"{option} takes names out of {', '.join(known)}, got {text!r}")
    return list(dict.fromkeys(names))


def _select(arguments: argparse.Namespace, platform: str) -> list[Case]:
    if arguments.cases:
        if arguments.set:
            raise CaseError(
                "--set chooses among the layers shipped, --cases replaces them: use one"
            )
        cases = case_files.load_cases(arguments.cases)
    else:
        cases = case_files.published(arguments.set or platform)
    if arguments.only:
        try:
            pattern = re.compile(arguments.only)
        except re.error as error:
            raise CaseError(
                f"--only {arguments.only!r} is not a regular expression: {error}"
            ) from error
        cases = [case for case in cases if pattern.search(case.label)]
    return cases


def _require_matplotlib() -> None:
    """Fails before the run rather than after it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise SystemExit("--plot needs matplotlib: pip install matplotlib") from None


class _Progress:
    """A progress bar, or plain lines where tqdm is not installed."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0

    def __enter__(self) -> Callable[[str], None]:
        try:
            from tqdm import tqdm
        except ImportError:
            self.bar = None
        else:
            self.bar = tqdm(total=self.total, unit="pass", dynamic_ncols=True)
        return self.advance

    def advance(self, text: str) -> None:
        self.done += 1
        if self.bar is None:
            print(f"[{self.done}/{self.total}] {text}", file=sys.stderr)
        else:
            self.bar.set_postfix_str(text, refresh=False)
            self.bar.update()

    def __exit__(self, *exc: object) -> None:
        if self.bar is not None:
            self.bar.close()

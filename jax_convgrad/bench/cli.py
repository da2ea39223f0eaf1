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
from collections.abc import Callable, Iterable, Sequence

from jax_convgrad.bench import case_files
from jax_convgrad.bench.case_files import AnyCase
from jax_convgrad.bench.cases import LAYOUTS, Case, CaseError, default_weights

DEFAULT_PASSES = ("fprop", "dx", "dw", "dxdwdb")
# For --quick: this many of the smallest convolutions, and as many of the smallest transposed convolutions.
QUICK_PASSES = ("fprop", "dxdwdb")
QUICK_FORMS = ("ours", "lax")
QUICK_CASES = 1
# The time to compile, check and sample one pass of one form, a rough mean over the shipped layers.
SECONDS_OF_A_PASS = 3.0
# The options of the benchmark of layers only, and those of the benchmark of training steps only.
LAYER_OPTIONS = (
    *("cases", "set", "only", "list", "passes", "layout", "weights", "backend", "plot", "quick"),
)
STEP_OPTIONS = ("scaling", "batch")


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
        help="what to compare: ours (this package), lax, xla_rewritten, torch (default: all four); of a "
        "resize lax is jax.image; with --devices ours and lax",
    )
    parser.add_argument(
        "--passes",
        help="what to time: forward, input-gradient, weight-gradient, backward, which is both and the "
        "bias's (default: these four), double-backward, which is the gradients of a squared input "
        "gradient; a resize has forward and input-gradient",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="under a minute: a few small layers, forward and backward, this package and lax, 3 samples",
    )
    parser.add_argument("--layout", choices=LAYOUTS, help="default: NHWC")
    parser.add_argument(
        "--weights",
        choices=("HWIO", "OHWI"),
        help="memory layout of the weights that the JAX forms are given: HWIO, which is what Flax stores "
        "and is reordered at every call where cuDNN is called with channels last, or OHWI, which is what "
        "PyTorch holds (for conv_transpose of the convolution underneath) and is not "
        "(default: HWIO; with --layout NCHW: OIHW)",
    )
    parser.add_argument(
        "--backend",
        metavar="NAME",
        help="the backend of all of this package's operators that it can compute, such as cudnn, onednn or "
        "xla (default: what this package chooses)",
    )
    parser.add_argument(
        "--rounds", type=_positive, default=9, help="samples of each form (default: 9)"
    )
    parser.add_argument(
        "--seed", type=_not_negative, default=0, help="seed of the random inputs (default: 0)"
    )
    parser.add_argument("--json", metavar="OUT", help="write all figures as JSON")
    parser.add_argument("--markdown", metavar="OUT", help="write the table as Markdown")
    parser.add_argument("--plot", metavar="OUT.png", help="draw a bar chart (needs matplotlib)")
    scaling = parser.add_argument_group(
        "scaling", "a training step, data-parallel, instead of layers"
    )
    scaling.add_argument(
        "--devices", metavar="1,2,...", help="the numbers of devices, 1 among them"
    )
    scaling.add_argument(
        "--scaling",
        help="weak (the batch grows with the devices), strong (it does not), or weak,strong (default)",
    )
    scaling.add_argument(
        "--batch",
        type=_positive,
        help="images of each device in weak scaling, and of each of the most devices in strong scaling "
        "(default: 4 on a CPU, 64 on a GPU)",
    )


def main(arguments: argparse.Namespace) -> int:
    """Runs the benchmark. Exit status 1: a form failed; 2: the arguments make no sense."""
    # PyTorch shares the GPU with JAX: without this JAX takes three quarters of its memory at startup.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    from jax_convgrad._src.install.switch import uninstall
    from jax_convgrad._src.timing.memory import keep_freed_memory

    keep_freed_memory()
    platform = "cpu" if jax.default_backend() == "cpu" else "gpu"
    uninstall()  # the environment may have turned it on: "lax" must be plain lax
    try:
        _check_together(arguments)
        _check_outputs(arguments.json, arguments.markdown, arguments.plot)
        # If a long run is ended, by a time limit for example, its results so far are written.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        run = _time_layers if arguments.devices is None else _time_steps
        return run(arguments, platform)
    except CaseError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


def _check_together(arguments: argparse.Namespace) -> None:
    """Reports options that do not go together."""
    of_layers, of_steps = (
        [f"--{name}" for name in names if getattr(arguments, name)]
        for names in (LAYER_OPTIONS, STEP_OPTIONS)
    )
    if arguments.devices is not None and of_layers:
        raise CaseError(
            f"--devices times a training step, no layers: leave out {' and '.join(of_layers)}"
        )
    if arguments.devices is None and of_steps:
        raise CaseError(f"{' and '.join(of_steps)} works only with --devices")


def _check_outputs(*paths: str | None) -> None:
    """Makes the folders, and opens the files before anything is timed."""
    for given in filter(None, paths):
        path = pathlib.Path(os.path.realpath(given))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            was_there = path.exists()
            with path.open("a"):
                pass
            if not was_there:
                path.unlink()
        except OSError as error:
            raise CaseError(f"{given} cannot be written: {error.strerror}") from None


def _time_layers(arguments: argparse.Namespace, platform: str) -> int:
    """The benchmark of layers."""
    from jax_convgrad._src.dispatch.override import override_backend
    from jax_convgrad._src.dispatch.rules import BACKENDS
    from jax_convgrad._src.timing.method import Method
    from jax_convgrad.bench import chart, report, summary, tables, timing
    from jax_convgrad.bench.forms import FORMS, title
    from jax_convgrad.bench.provenance import describe_device

    quick = arguments.quick
    forms = _names("--forms", arguments.forms, tuple(FORMS), QUICK_FORMS if quick else FORMS)
    passes = _passes(arguments.passes, QUICK_PASSES if quick else DEFAULT_PASSES)
    layout = arguments.layout or "NHWC"
    cases = _select(arguments, platform)
    if quick:
        cases = _smallest(cases)
    if arguments.list:
        for case in cases:
            print(case.label)
        return 0
    count = sum(name in case.passes for case in cases for name in passes)
    if not count:
        raise CaseError("no case is left to run")
    if arguments.plot:
        _require_matplotlib()

    weights = arguments.weights or default_weights(layout)
    backend = arguments.backend
    if backend is not None and backend not in BACKENDS:
        raise CaseError(f"--backend takes one of {', '.join(sorted(BACKENDS))}, got {backend!r}")
    method = dataclasses.replace(
        Method(), rounds=3 if quick else arguments.rounds, seed=arguments.seed
    )
    seconds = count * len(forms) * SECONDS_OF_A_PASS
    print(
        f"bench: {len(cases)} layers, {count} passes by {', '.join(map(title, forms))}: "
        f"about {_duration(seconds)}",
        file=sys.stderr,
        flush=True,
    )
    load = _load(platform)
    with override_backend(backend), _Progress(count, "pass") as advance:
        chosen = [FORMS[name] for name in forms]
        results = timing.run(cases, chosen, passes, layout, method, advance, weights)
    where = report.describe_run(layout, weights, backend)
    print(f"{describe_device()}; {where}")
    print(report.legend(forms))
    print()
    print(report.table(results, forms))
    print()
    for line in summary.summary_lines(results, forms):
        print(line)
    if arguments.json:
        data = report.to_json(results, layout, weights, method, load, backend)
        tables.write(arguments.json, json.dumps(data, indent=1, default=str) + "\n", print)
    if arguments.markdown:
        tables.write(arguments.markdown, report.markdown(results, forms, where), print)
    if arguments.plot:
        pathlib.Path(arguments.plot).parent.mkdir(parents=True, exist_ok=True)
        chart.plot(results, forms, arguments.plot)
        print(f"wrote {arguments.plot}")
    if len(results) < count * len(forms):
        print("bench: interrupted, the passes after these are missing", file=sys.stderr)
        return 130
    return 1 if any(result.failure for result in results) else 0


def _time_steps(arguments: argparse.Namespace, platform: str) -> int:
    """The benchmark of scaling."""
    import jax

    from jax_convgrad._src.timing.method import Method
    from jax_convgrad.bench import scaling, tables
    from jax_convgrad.bench.provenance import describe_device
    from jax_convgrad.bench.scaling_report import Report

    counts = _counts(arguments.devices, jax.local_device_count(), platform)
    kinds = _names("--scaling", arguments.scaling, scaling.KINDS, scaling.KINDS)
    forms = _names("--forms", arguments.forms, tuple(scaling.FORMS), scaling.FORMS)
    sizes = scaling.Sizes.usual(platform)
    sizes = dataclasses.replace(sizes, batch=arguments.batch or sizes.batch)
    programs = scaling.programs(kinds, counts, sizes.batch)
    for pairs in programs.values():
        for devices, images in pairs:
            if images % devices:
                raise CaseError(
                    f"{images} images of strong scaling do not divide among {devices} devices: "
                    "choose another --batch"
                )
    wanted = list(dict.fromkeys(pair for pairs in programs.values() for pair in pairs))
    method = dataclasses.replace(
        Method(), rounds=arguments.rounds, seed=arguments.seed, sample_seconds=0.1
    )
    load = _load(platform)
    with _Progress(len(wanted) * len(forms), "program") as advance:
        results, finished = scaling.run(wanted, forms, sizes, method, advance)
    found = Report(programs, results, forms, sizes)
    print(f"{describe_device()}; {found.describe()}")
    print(found.legend())
    print()
    print(found.table())
    print()
    for line in found.lines():
        print(line)
    if arguments.json:
        data = found.to_json(method, load)
        tables.write(arguments.json, json.dumps(data, indent=1, default=str) + "\n", print)
    if arguments.markdown:
        tables.write(arguments.markdown, found.markdown(), print)
    if not finished:
        print("bench: interrupted, samples are missing", file=sys.stderr)
        return 130
    return 1 if any(result.failure for result in results) else 0


def _counts(text: str, present: int, platform: str) -> list[int]:
    """The requested numbers of devices."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts) or "1" not in parts or "0" in parts:
        raise CaseError(
            f"--devices takes numbers of devices such as 1,2,4, and needs 1 to compare with; got {text!r}"
        )
    counts = sorted(set(map(int, parts)))
    if counts[-1] > present:
        advice = (
            f"; XLA_FLAGS=--xla_force_host_platform_device_count={counts[-1]} makes virtual ones"
        )
        raise CaseError(
            f"--devices {text}: there are {present} here{advice if platform == 'cpu' else ''}"
        )
    return counts


def _load(platform: str) -> float | None:
    """The load average, with a note where it is high."""
    from jax_convgrad._src.timing.processors import cpu_threads
    from jax_convgrad.bench.provenance import load_average

    load = load_average()
    if platform == "cpu" and load is not None and load > 0.5 * cpu_threads():
        print(
            f"note: the load average is {load:.1f} on {cpu_threads()} processors: if another "
            "program is running, do not trust these times",
            file=sys.stderr,
        )
    return load


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _not_negative(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must be at least 0")
    return value


def _names(
    option: str, text: str | None, known: Sequence[str], default: Iterable[str]
) -> list[str]:
    if text is None:
        return list(default)
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise CaseError(f"{option} takes names from {', '.join(known)}, got {text!r}")
    return list(dict.fromkeys(names))


def _passes(text: str | None, default: Sequence[str]) -> list[str]:
    """The keys of the passes that a user named, by their command-line words or by the keys themselves."""
    from jax_convgrad.bench.forms import PASS_WORDS, PASSES

    if text is None:
        return list(default)
    names = [PASS_WORDS.get(name.strip(), name.strip()) for name in text.split(",") if name.strip()]
    if not names or not set(names) <= set(PASSES):
        raise CaseError(f"--passes takes names from {', '.join(PASS_WORDS)}, got {text!r}")
    return list(dict.fromkeys(names))


def _smallest(cases: Sequence[AnyCase]) -> list[AnyCase]:
    """The layers of --quick."""
    chosen: list[AnyCase] = []
    for kind in ("conv", "convt"):
        of_kind = [case for case in cases if isinstance(case, Case) and case.kind == kind]
        chosen += sorted(of_kind, key=lambda case: case.macs)[:QUICK_CASES]
    return chosen


def _duration(seconds: float) -> str:
    """A time in words, as rough as the estimate."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"


def _select(arguments: argparse.Namespace, platform: str) -> list[AnyCase]:
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

    def __init__(self, total: int, unit: str) -> None:
        self.total, self.unit = total, unit
        self.done = 0

    def __enter__(self) -> Callable[[str], None]:
        try:
            from tqdm import tqdm
        except ImportError:
            self.bar = None
        else:
            self.bar = tqdm(total=self.total, unit=self.unit, dynamic_ncols=True)
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

"""How many digits each pass of a layer keeps, beside lax: both errors against float64.

    python benchmarks/accuracy.py --json OUT.json --markdown OUT.md

The error of a pass is the root mean square of its difference from the float64 result, relative to the root
mean square of that result. Both forms get the same random numbers, several times if there are few weights.
The float64 result is that of `jax_convgrad.bench.float64`, which sums in NumPy. The layers are those of
`accuracy_cases.json`: sums of up to 2**26 products, where the order of the additions decides what is left of
float32.

The exit status is 1 if a pass of this package has more than `--bound` times the error of lax.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
import time
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from jax_convgrad.bench import float64
from jax_convgrad.bench.case_files import load_cases
from jax_convgrad.bench.cases import Case
from jax_convgrad.bench.forms.inputs import Inputs
from jax_convgrad.bench.forms.jax_form import JaxForm
from jax_convgrad.bench.forms.lax import LaxForm
from jax_convgrad.bench.forms.ours import OursForm

CASES = pathlib.Path(__file__).with_name("accuracy_cases.json")
RESULTS = {"fprop": "y", "dx": "dx", "dw": "dw"}
BOUND = 2.0
# A layer is drawn again until so many weights have been seen.
MIN_ELEMENTS, MAX_DRAWS = 128, 4


@dataclasses.dataclass(frozen=True)
class Row:
    """The errors of one pass of one layer, and the products in each of its sums."""

    layer: str
    pass_: str
    products: int
    lax: float
    ours: float

    @property
    def ratio(self) -> float:
        """This package's error over that of lax."""
        if self.lax == 0.0:
            return 1.0 if self.ours == 0.0 else float("inf")
        return self.ours / self.lax


def rows(case: Case, seed: int, passes: Sequence[str] = tuple(RESULTS)) -> Iterator[Row]:
    """The passes of one layer."""
    elements = int(np.prod(case.w_shape))
    draws = min(MAX_DRAWS, -(-MIN_ELEMENTS // elements))  # the ratio of a few numbers is chance
    forms = (LaxForm(), OursForm())
    squares = {pass_: np.zeros(len(forms)) for pass_ in passes}
    scales = dict.fromkeys(passes, 0.0)
    for draw in range(draws):
        inputs = Inputs.random(case, np.random.default_rng((seed, draw)))
        exact = _exact(case, inputs, passes)
        for pass_ in passes:
            key = RESULTS[pass_]
            scales[pass_] += np.mean(np.square(exact[key]))
            for i, form in enumerate(forms):
                error = _result(form, case, pass_, key, inputs).astype(np.float64) - exact[key]
                squares[pass_][i] += np.mean(np.square(error))
    for pass_ in passes:
        errors = np.sqrt(squares[pass_] / scales[pass_])
        yield Row(case.label, pass_, products(case, pass_), *map(float, errors))


def _exact(case: Case, inputs: Inputs, passes: Sequence[str]) -> dict[str, np.ndarray]:
    if tuple(passes) == ("dw",):
        return {"dw": float64.weight_gradient(case, inputs.x, inputs.dy)}
    return float64.passes(case, inputs.x, inputs.w, inputs.dy)


def _result(form: JaxForm, case: Case, pass_: str, key: str, inputs: Inputs) -> np.ndarray:
    # On a GPU operands may be rounded to TF32 otherwise: the sums are looked at, not the products.
    with jax.default_matmul_precision("highest"):
        (runner,) = form.runners(case, pass_, "NHWC")
        return runner.fetch(runner.call(runner.load(inputs)))[key]


def products(case: Case, pass_: str) -> int:
    """Products in the longest sum of a pass."""
    taps = int(np.prod(case.kernel))
    channels = {"fprop": case.cin, "dx": case.cout}
    if case.transposed:
        taps //= int(np.prod(case.stride)) if pass_ == "fprop" else 1
    elif pass_ == "dx":
        taps = max(1, taps // int(np.prod(case.stride)))
    if pass_ != "dw":
        return taps * channels[pass_] // case.groups
    return case.n * int(np.prod(case.spatial if case.transposed else case.out_spatial))


def table(found: list[Row]) -> str:
    """The rows in Markdown."""
    lines = ["| layer | pass | products | lax | ours | ours / lax |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {r.layer} | {r.pass_} | {r.products} | {r.lax:.1e} | {r.ours:.1e} | {r.ratio:.2f} |"
        for r in found
    ]
    return "\n".join(lines) + "\n"


def summary(found: list[Row], bound: float) -> str:
    """The largest ratio, and how many passes are beyond the bound."""
    worst = max(found, key=lambda row: row.ratio)
    beyond = sum(row.ratio > bound for row in found)
    layers = len({row.layer for row in found})
    return (
        f"{layers} layers, {len(found)} passes: the largest error is {worst.ratio:.2f} times that of lax "
        f"({worst.pass_} of {worst.layer}); {beyond} beyond {bound:g} times."
    )


def main(argv: list[str] | None = None) -> int:
    """Prints the table as it comes, and writes what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=pathlib.Path, default=CASES, help="a case file")
    parser.add_argument("--only", default="", help="layers whose label contains this")
    parser.add_argument("--passes", nargs="+", choices=RESULTS, default=list(RESULTS))
    parser.add_argument(
        "--bound", type=float, default=BOUND, help="largest error, in errors of lax"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=pathlib.Path, help="writes the rows there")
    parser.add_argument("--markdown", type=pathlib.Path, help="writes the table there")
    arguments = parser.parse_args(argv)

    found: list[Row] = []
    cases = [c for c in load_cases(arguments.cases) if arguments.only in c.label]
    if not cases:
        parser.error(f"no layer has {arguments.only!r} in its label")
    for case in cases:
        assert isinstance(case, Case)
        start = time.perf_counter()
        of_case = list(rows(case, arguments.seed, arguments.passes))
        found += of_case
        print(table(of_case).split("\n", 2)[2], end="", flush=True)
        print(f"{time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
    text = summary(found, arguments.bound)
    print(text)
    if arguments.json:
        entries = [dataclasses.asdict(row) for row in found]
        arguments.json.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    if arguments.markdown:
        arguments.markdown.write_text(f"{text}\n\n{table(found)}", encoding="utf-8")
    return int(any(row.ratio > arguments.bound for row in found))


if __name__ == "__main__":
    sys.exit(main())

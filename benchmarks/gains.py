"""Makes the table by which `explain` expects gains, from the committed measurements, and tests it.

    python benchmarks/gains.py                 how well each measured problem is predicted without itself
    python benchmarks/gains.py --write         writes jax_convgrad/_src/explain/measured.json and two pages

A measured problem's kind comes from the program that lax really gives XLA for the pass: it is traced, and its
equation described by the code that `explain` uses. Files of `bench` have this package's time and lax's; files
of the surveys have backends and XLA, in the form of this package's own lax code. A file is read only as far
as it still says what the present rules do: patch layers have become matrix products since most were made.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import math
import pathlib
import statistics
from collections.abc import Iterable, Iterator
from typing import Any, cast

import jax
import jax.numpy as jnp
import measured
import numpy as np
from jax import lax

from jax_convgrad._src.conv.primitives import PRIMITIVES
from jax_convgrad._src.conv.subsample import subsample
from jax_convgrad._src.dispatch import tables
from jax_convgrad._src.dispatch.problem import ConvProblem, ResampleProblem
from jax_convgrad._src.explain import gain, similar, walk
from jax_convgrad._src.explain.gain import Measurement, Table
from jax_convgrad._src.explain.similar import Sketch
from jax_convgrad._src.install.match import Match, match
from jax_convgrad._src.resize.primitives import resample_p
from jax_convgrad._src.runtime import registry
from jax_convgrad.bench import problems
from jax_convgrad.bench.case_files import AnyCase, parse_case
from jax_convgrad.bench.cases import DTYPES
from jax_convgrad.bench.forms import present_name
from jax_convgrad.bench.forms.jax_form import JaxForm
from jax_convgrad.bench.forms.lax import LaxForm
from jax_convgrad.bench.forms.ours import OursForm
from jax_convgrad.bench.forms.weights import WeightsOrder, activation_axes

HERE = pathlib.Path(__file__).parent
# The pages that show the figures: the notes all of them, the users' page those of what `explain` shows.
NOTES = HERE / "notes.md"
PAGE = HERE.parent / "docs" / "existing_models.md"
BEGIN, END = "<!-- gains: written by benchmarks/gains.py -->\n", "<!-- end of the gains -->\n"
# What `bench --json` wrote.
BENCH = (
    "cpu/bench.json",
    "cpu/unseen.json",
    "cpu/resize_nhwc.json",
    "cpu/resize_nchw.json",
    "h100/conv_ohwi.json",
    "h100/unseen.json",
    "h100/unseen_patches.json",
    "h100/resize_nhwc.json",
    "h100/resize_nchw.json",
)
# Of these, the ones made since patch layers are matrix products.
WITH_PRODUCTS = {"h100/unseen_patches.json"}
# What the surveys wrote.
SURVEYS = (
    "cpu/backends.json",
    "h100/backends.json",
    "h100/thin.json",
    "h100/thin_f32.json",
    "h200/windows.json",
)
# The files name devices. cpu/backends.json has the class of the first, cpu/guarded.txt of the second.
CLASSES = {
    "Intel(R) Xeon(R) Processor": "amx",
    "AMD EPYC": "avx512",
    "NVIDIA H100 80GB HBM3": "sm_90",
    "NVIDIA H200": "sm_90",
}
UNITS = {"ms": 1e-3, "us": 1e-6}
# A kind is predictable if that many of its problems were predicted, in the median within that factor. Its
# spread is the factor within which that share of them was.
MIN_PREDICTIONS, MAX_MEDIAN, SHARE = 3, 2.0, 0.8

_OWN = {*PRIMITIVES.values(), resample_p}
_DIGITS = 4


@dataclasses.dataclass(frozen=True)
class Entry:
    """A measurement and where it belongs. ``layer`` is left out when one of its problems is predicted."""

    platform: str
    sketch: Sketch
    measurement: Measurement
    layer: str


def entries() -> list[Entry]:
    """All that the committed files have for the table."""
    found: list[Entry] = []
    for file in BENCH:
        found += _of_bench(file)
    for file in SURVEYS:
        found += _of_survey(file)
    return found


# Files of `bench`.


def _of_bench(file: str) -> Iterator[Entry]:
    content = json.loads((HERE / file).read_text())
    device_class = CLASSES[content["device"]["name"]]
    seconds: dict[tuple[AnyCase, str], dict[str, float]] = {}
    for result in content["results"]:
        if result["median_s"] and not result["failure"]:
            forms = seconds.setdefault((parse_case(result["case"]), result["pass"]), {})
            forms[present_name(result["form"])] = result["median_s"]
    order = content["layout"], content.get("weights", "HWIO")
    for (case, pass_), forms in seconds.items():
        if "ours" in forms and "lax" in forms:
            yield from _of_pass(file, device_class, case, pass_, order, forms)


def _of_pass(
    file: str,
    device_class: str,
    case: AnyCase,
    pass_: str,
    order: tuple[str, str],
    forms: dict[str, float],
) -> Iterator[Entry]:
    pairs = list(_operators(case, pass_, *order))
    backends = [_backend(_platform(file), problem) for problem, _ in pairs]
    if "gemm" in backends and file not in WITH_PRODUCTS:
        return
    ours = [
        None if _is_kept(problem, sketch, backend) else backend
        for (problem, sketch), backend in zip(pairs, backends, strict=True)
    ]
    together = len(pairs) > 1
    # lax's weight gradient of a transposed convolution takes nearly all of the time of both gradients.
    exchanged = [together and similar.EXCHANGED in sketch.kind for _, sketch in pairs]
    for (_, sketch), backend, alone in zip(pairs, ours, exchanged, strict=True):
        if together and (backend is None or (any(exchanged) and not alone)):
            continue
        share = sum(b is not None for b in ours) if together and not alone else 1
        yield _entry(
            f"{file}#{case.label}#{pass_}",
            device_class,
            case.name,
            sketch,
            forms["lax"] / share,
            backend,
            forms["ours"] / share,
            together,
        )


def _operators(
    case: AnyCase, pass_: str, layout: str, weights: str
) -> Iterator[tuple[ConvProblem | ResampleProblem, Sketch]]:
    """This package's problems in a pass, each with the sketch of the program that lax gives XLA.

    A transposed convolution of stride 1 is a plain one to `install`, and another operator to this package's
    layer, which is the one that was measured: it is left out.
    """
    own = [
        found.equation.params["problem"]
        for found in walk.find(_trace(OursForm(), case, pass_, layout, weights), _is_own)
        if found.used
    ]
    if case.kind == "resize":
        sketches = {own[-1]: similar.sketch_of_problem(own[-1])}
    else:
        jaxpr = _trace(LaxForm(), case, pass_, layout, weights)
        theirs = dict(_sketches(jaxpr))
        if case.kind == "conv" and theirs.keys() != {p.operator for p in own}:
            # With weights OHWI, `install` takes a gradient of stride 1 for a forward pass. The form is ours.
            theirs = {p.operator: similar.sketch_of_problem(p) for p in own}
        sketches = {p: theirs.get(p.operator) for p in own}
    if None not in sketches.values():
        yield from cast("dict[ConvProblem | ResampleProblem, Sketch]", sketches).items()


def _sketches(jaxpr: Any) -> Iterator[tuple[str, Sketch | None]]:
    for found in walk.find(jaxpr, lambda e, _: e.primitive is lax.conv_general_dilated_p):
        if found.used:
            matched = match_of(found.equation)
            sketch = similar.sketch_of_equation(found.equation, matched, found.kernel_reversed)
            yield matched.operator, sketch


def match_of(equation: Any) -> Match:
    params, arrays = equation.params, (*equation.invars, *equation.outvars)
    names = (
        "window_strides padding lhs_dilation rhs_dilation dimension_numbers feature_group_count "
        "batch_group_count"
    )
    found = match(*(v.aval.shape for v in arrays), **{name: params[name] for name in names.split()})
    assert isinstance(found, Match), found
    return found


def _trace(form: JaxForm, case: AnyCase, pass_: str, layout: str, weights: str) -> Any:
    """The form's program for a pass."""
    order = WeightsOrder.make(case, layout, weights)
    to_x, _ = activation_axes(case.ndim, layout)
    dtype = jnp.dtype(DTYPES[case.dtype])
    # Arrays without memory.
    x, w, dy = (np.broadcast_to(np.int8(0), s) for s in (case.x_shape, case.w_shape, case.y_shape))
    shapes = (x.transpose(to_x).shape, order.store(w).shape, dy.transpose(to_x).shape)
    with jax.enable_x64(case.dtype == "f64"):
        function = form.function(case, pass_, layout, order)
        return jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(s, dtype) for s in shapes)).jaxpr


def _is_own(equation: Any, partitioned: bool) -> bool:
    return equation.primitive in _OWN


def _backend(platform: str, problem: ConvProblem | ResampleProblem) -> str:
    """By the present rules."""
    module = registry.cpu_module() if platform == "cpu" else None
    features = problems.features_of(problem, module.is_thin if module else None)
    return tables.choose(platform, None, features)[0].choice


def _is_kept(problem: ConvProblem | ResampleProblem, sketch: Sketch, backend: str) -> bool:
    """Whether this package would give XLA what it has already."""
    return similar.EXCHANGED not in sketch.kind and similar.is_xla_form(problem, backend)


def _platform(file: str) -> str:
    return "cpu" if file.startswith("cpu/") else "cuda"


def _entry(
    evidence: str,
    device_class: str,
    layer: str,
    sketch: Sketch,
    xla_seconds: float,
    backend: str | None,
    seconds: float | None,
    together: bool = False,
) -> Entry:
    ours = None if backend is None or seconds is None else _short(seconds)
    measurement = Measurement(
        evidence,
        device_class,
        sketch.sizes,
        sketch.work,
        _short(xla_seconds),
        backend,
        ours,
        together,
    )
    return Entry(_platform(evidence), sketch, measurement, layer)


def _short(seconds: float) -> float:
    return float(f"{seconds:.{_DIGITS}g}")


# Files of the surveys.


def _of_survey(file: str) -> Iterator[Entry]:
    content = json.loads((HERE / file).read_text())
    unit = UNITS[content["unit"]]
    for row in content["rows"]:
        layer = measured.Layer.parse(row["layer"])
        device_class = _class_of(row, content)
        if device_class is None or layer.case.kind == "resize":
            continue  # the "xla" of a resize is this package's form, not jax.image's
        with jax.enable_x64(layer.case.dtype == "f64"):
            problem = layer.problem(row["pass"])
            if subsample(problem.geometry.config, problem.geometry.x_shape) is not None:
                continue  # XLA was given what is left of it
            sketch = similar.sketch_of_problem(problem)
        theirs = row.get(_xla_of(file, problem))
        if sketch is None or not isinstance(theirs, int | float):
            continue
        backend: str | None = _backend(_platform(file), problem)
        if _is_kept(problem, sketch, str(backend)):
            backend = None
        ours = row.get(backend)
        yield _entry(
            f"{file}#{row['case']}#{row['pass']}",
            device_class,
            layer.case.name,
            sketch,
            unit * theirs,
            backend,
            unit * ours if isinstance(ours, int | float) else None,
        )


def _class_of(row: dict[str, Any], content: dict[str, Any]) -> str | None:
    """Of the file's device. In a file of several devices each row names its own, or its source does."""
    if content["device"]["name"] in CLASSES:
        return CLASSES[content["device"]["name"]]
    text = f"{row.get('device')} {row['source']}"
    named = {CLASSES[name] for name in CLASSES if name in text}
    return named.pop() if len(named) == 1 else None


def _xla_of(file: str, problem: ConvProblem) -> str:
    """The column with lax's form. For CPUs that is the rewritten one, which differs in grouped dW."""
    if _platform(file) == "cuda":
        return "xla"
    grouped = problem.operator == "conv_wgrad" and problem.geometry.config.groups > 1
    return "absent" if grouped else "xla_rewritten"


# The table, and how well it predicts.


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A measured problem, expected without its layer."""

    entry: Entry
    gain: float
    distance: float
    xla_seconds: float | None

    @property
    def key(self) -> tuple[str, str, str, bool]:
        return _key(self.entry)

    @property
    def factor(self) -> float:
        """By which the expected gain is off, at least 1."""
        return math.exp(abs(math.log(self.gain / self.entry.measurement.gain)))


def _key(entry: Entry) -> tuple[str, str, str, bool]:
    m = entry.measurement
    return entry.platform, entry.sketch.kind, str(m.backend), m.together


def predictions(
    found: list[Entry], limit: float = gain.LIMIT, other_class: bool = False
) -> list[Prediction]:
    """Every measured problem that this package computes, as expected from the other layers' measurements.

    With ``other_class`` only from those of another class of devices.
    """
    table = _table(found, {})
    layers = {entry.measurement: entry.layer for entry in found}
    result = []
    for entry in found:
        m = entry.measurement
        if m.backend is None or m.seconds is None:
            continue
        # Alone and together are not compared with each other.
        rest = Table(
            {
                (entry.platform, entry.sketch.kind): tuple(
                    other
                    for other in table.kinds[entry.platform, entry.sketch.kind]
                    if other.together == m.together
                    and layers[other] != entry.layer
                    and other.sizes != m.sizes
                    and not (other_class and other.device_class == m.device_class)
                )
            },
            {_key(entry): 1.0},
        )
        arguments = rest, entry.platform, m.device_class, entry.sketch
        expected = gain.expected_gain(*arguments, m.backend, limit)
        if expected is not None:
            nearest = {o.evidence: o for rows in rest.kinds.values() for o in rows}
            distance = gain.distance(nearest[expected.evidence[0]], entry.sketch)
            xla_seconds = gain.expected_xla_seconds(*arguments)
            result.append(Prediction(entry, expected.gain, distance, xla_seconds))
    return result


def _table(found: Iterable[Entry], spread: dict[tuple[str, str, str, bool], float]) -> Table:
    kinds: dict[tuple[str, str], list[Measurement]] = collections.defaultdict(list)
    for entry in found:
        kinds[entry.platform, entry.sketch.kind].append(entry.measurement)
    return Table({key: tuple(rows) for key, rows in kinds.items()}, spread)


def table() -> tuple[Table, list[Entry], list[Prediction]]:
    """The table, what it is made of, and the predictions that say which kinds are predictable."""
    found = entries()
    predicted = predictions(found)
    of_kind: dict[tuple[str, str, str, bool], list[float]] = collections.defaultdict(list)
    for prediction in predicted:
        of_kind[prediction.key].append(prediction.factor)
    spread = {
        key: float(f"{sorted(factors)[math.ceil(SHARE * len(factors)) - 1]:.2g}")
        for key, factors in of_kind.items()
        if len(factors) >= MIN_PREDICTIONS and statistics.median(factors) <= MAX_MEDIAN
    }
    return _table(found, spread), found, predicted


def as_json(made: Table) -> str:
    """One line a measurement."""
    platforms: dict[str, list[str]] = collections.defaultdict(list)
    for (platform, kind), rows in sorted(made.kinds.items()):
        spread = sorted(
            [*key[2:], factor] for key, factor in made.spread.items() if key[:2] == (platform, kind)
        )
        lines = ",\n".join(
            "   " + json.dumps(list(dataclasses.astuple(m)))
            for m in sorted(rows, key=lambda m: (m.evidence, m.device_class))
        )
        platforms[platform].append(
            f'  {json.dumps(kind)}: {{"spread": {json.dumps(spread)}, "measurements": [\n{lines}\n  ]}}'
        )
    columns = [field.name for field in dataclasses.fields(Measurement)]
    body = ",\n".join(
        f" {json.dumps(platform)}: {{\n" + ",\n".join(kinds) + "\n }"
        for platform, kinds in platforms.items()
    )
    head = {"written_by": "python benchmarks/gains.py --write", "columns": columns}
    text = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items())
    return f'{{\n{text},\n"kinds": {{\n{body}\n}}\n}}\n'


# What is said of it.

_BANDS = ((0, 2), (2, 4), (4, 6), (6, 8), (8, 12), (12, 16))
_GROUPS = ("CPU", "GPU, one operator", "GPU, gradients together")


def _group(entry: Entry) -> str:
    if entry.platform == "cpu":
        return _GROUPS[0]
    return _GROUPS[2 if entry.measurement.together else 1]


def report(made: Table, found: list[Entry], predicted: list[Prediction]) -> str:
    """The figures, in Markdown."""
    return _all_kinds(made, found, predicted) + "\n" + _bands(found)


def _all_kinds(made: Table, found: list[Entry], predicted: list[Prediction]) -> str:
    shown = [p for p in predicted if p.key in made.spread]
    lines = [
        "| | expected, of measured | geometric error | median error | within 1.5x | within 2x | "
        "expected above 1.1x of those without gain | XLA's time, median error |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for title, some in (("all kinds", predicted), ("kinds that `explain` shows", shown)):
        for group in _GROUPS:
            part = [p for p in some if _group(p.entry) == group]
            total = sum(_group(e) == group and e.measurement.seconds is not None for e in found)
            lines.append(f"| {group}: {title} | {len(part)} of {total} | {_figures(part)} |")
    return "\n".join(lines) + "\n"


def short_report(made: Table, found: list[Entry], predicted: list[Prediction]) -> str:
    """The figures of the kinds that `explain` shows."""
    lines = [
        "| | problems | median error | within 1.5x | within 2x | measured no gain | of these, predicted a "
        "gain above 1.1x |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    shown = [p for p in predicted if p.key in made.spread]
    groups = {group: [p for p in shown if _group(p.entry) == group] for group in _GROUPS}
    # The only platform of which two classes were measured.
    across = [p for p in predictions(found, other_class=True) if p.key in made.spread]
    groups["CPU, from another class of CPU alone"] = across
    for title, part in groups.items():
        without = [p for p in part if p.entry.measurement.gain <= 1]
        cells = [
            str(len(part)),
            f"{statistics.median(p.factor for p in part):.2f}x",
            _within(1.5, part),
            _within(2, part),
            str(len(without)),
            str(sum(p.gain > 1.1 for p in without)),
        ]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _bands(found: list[Entry]) -> str:
    far = predictions(found, _BANDS[-1][1])
    lines = [
        "| all kinds, within 2x by distance | "
        + " | ".join(f"{a} to {b}" for a, b in _BANDS)
        + " |",
        "|---|" + "---:|" * len(_BANDS),
    ]
    for group in _GROUPS:
        cells = [
            _within(2, [p for p in far if _group(p.entry) == group and a < p.distance <= b])
            for a, b in _BANDS
        ]
        lines.append(f"| {group} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _figures(part: list[Prediction]) -> str:
    factors = [p.factor for p in part]
    mean = math.exp(statistics.fmean(map(math.log, factors)))
    without = [p for p in part if p.entry.measurement.gain <= 1]
    times = [
        math.exp(abs(math.log(p.xla_seconds / p.entry.measurement.xla_seconds)))
        for p in part
        if p.xla_seconds is not None
    ]
    cells = [
        f"{mean:.2f}x",
        f"{statistics.median(factors):.2f}x",
        _within(1.5, part),
        _within(2, part),
        f"{sum(p.gain > 1.1 for p in without)} of {len(without)}",
        f"{statistics.median(times):.2f}x",
    ]
    return " | ".join(cells)


def _within(factor: float, part: list[Prediction]) -> str:
    return f"{sum(p.factor <= factor for p in part) / len(part):.0%}" if part else "-"


def written_in(page: pathlib.Path) -> str:
    """What this program has written into a page."""
    return page.read_text().partition(BEGIN)[2].partition(END)[0]


def _write_into(page: pathlib.Path, text: str) -> None:
    before, rest = page.read_text().split(BEGIN)
    page.write_text(before + BEGIN + text + END + rest.partition(END)[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table and the pages")
    arguments = parser.parse_args()
    made, found, predicted = table()
    text = report(made, found, predicted)
    print(text)
    if arguments.write:
        gain.FILE.write_text(as_json(made))
        _write_into(NOTES, text)
        _write_into(PAGE, short_report(made, found, predicted))


if __name__ == "__main__":
    main()

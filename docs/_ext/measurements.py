"""Tables, plots and numbers of the pages, made from the files under benchmarks/ when the site is built.

In a page:

    ```{measured-table} h100/conv_ohwi.json          a table, one row for each pass of each layer
    :cases: ^convt                                   a pattern for the layers' labels; default: all
    :passes: fprop dxdwdb
    ```
    ```{measured-plot} h100/conv_ohwi.json           the peers' times over this package's, as dots
    :pass: dxdwdb
    ```
    ```{measured-errors} cpu/bench.json h100/convt.json
    ```                                              the largest errors, by device, dtype and kind of layer
    ```{measured-models}
    ```                                              training steps of whole models
    {measured-ratio}`h100/conv_ohwi.json ^convt dxdwdb lax`    geometric mean of peer / this package
    {measured-range}`h100/conv_ohwi.json ^convt dxdwdb best`   smallest and largest
    {measured-count}`h100/conv_ohwi.json ^convt dxdwdb`        how many layers that is
    {measured-time}`cpu/bench.json ^convt.unet3d dw lax`       the only time that matches

Passes are fprop, dx, dw, dxdwdb and ddxddw, or "backward" for dx, dw and dxdwdb; peers are lax (jax.image
for a resize), xla_rewritten (the best pure-JAX form), torch, or best (the fastest of them).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import pathlib
import re
from collections.abc import Iterable
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from figures import save
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective, SphinxRole

from jax_convgrad.bench.case_files import parse_case
from jax_convgrad.bench.cases import DTYPES
from jax_convgrad.bench.chart import COLORS
from jax_convgrad.bench.forms import PASS_TITLES, present_name

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
PEERS = ("lax", "xla_rewritten", "torch")
TITLES = {"ours": "this package", "lax": "lax", "xla_rewritten": "pure JAX", "torch": "PyTorch"}
MARKERS = {"lax": "o", "xla_rewritten": "D", "torch": "s"}
BACKWARD = ("dx", "dw", "dxdwdb")


@dataclasses.dataclass(frozen=True)
class Pass:
    """One pass of one layer: seconds and errors by form, for the forms that were measured."""

    case: Any
    name: str
    seconds: dict[str, float]
    errors: dict[str, float]
    failed: tuple[str, ...]

    def ratio(self, peer: str) -> float | None:
        """The peer's time over this package's."""
        ours = self.seconds.get("ours")
        if peer == "best":
            other = min((s for f, s in self.seconds.items() if f != "ours"), default=None)
        else:
            other = self.seconds.get(peer)
        return None if ours is None or other is None else other / ours


@dataclasses.dataclass(frozen=True)
class Run:
    """One committed file."""

    name: str
    device: str
    platform: str
    versions: str
    passes: tuple[Pass, ...]

    @property
    def unit(self) -> tuple[str, float]:
        return ("ms", 1e3) if self.platform == "cpu" else ("µs", 1e6)

    def select(self, cases: str, passes: Iterable[str]) -> list[Pass]:
        wanted = {p for name in passes for p in (BACKWARD if name == "backward" else (name,))}
        pattern = re.compile(cases)
        found = [p for p in self.passes if p.name in wanted and pattern.search(p.case.label)]
        if not found:
            raise ExtensionError(
                f"benchmarks/{self.name} has no pass {wanted} of cases that match {cases!r}"
            )
        return found


@functools.cache
def load(name: str) -> Run:
    """A file under benchmarks/, as `python -m jax_convgrad bench --json` writes it."""
    content = json.loads((BENCHMARKS / name).read_text())
    grouped: dict[tuple[Any, str], list[dict[str, Any]]] = {}
    for result in content["results"]:
        grouped.setdefault((parse_case(result["case"]), result["pass"]), []).append(result)
    passes = tuple(
        Pass(
            case,
            pass_,
            {
                present_name(r["form"]): r["median_s"]
                for r in results
                if r["median_s"] and not r["failure"]
            },
            {present_name(r["form"]): r["error"] for r in results if r["error"] is not None},
            tuple(present_name(r["form"]) for r in results if r["failure"]),
        )
        for (case, pass_), results in grouped.items()
    )
    device, versions = content["device"], content["info"]["versions"]
    threads = f", {device['threads']} threads" if device["threads"] else ""
    order = f", weights {content['weights']}" if "weights" in content else ""
    return Run(
        name,
        f"{device['name']}{threads}",
        device["platform"],
        f"jax {versions['jax']}, PyTorch {content['torch']}; activations {content['layout']}{order}",
        passes,
    )


def geometric_mean(values: Iterable[float]) -> float:
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))


def number(value: float) -> str:
    """Three digits, no exponent."""
    digits = 0 if value <= 0 else 2 - math.floor(math.log10(value))
    return f"{value:.{max(0, min(digits, 4))}f}"


def _source(run: Run) -> nodes.paragraph:
    text = f"{run.device}; {run.versions}. Source: "
    paragraph = nodes.paragraph("", text, classes=["source"])
    paragraph += nodes.literal("", f"benchmarks/{run.name}")
    return paragraph


class Table(SphinxDirective):
    required_arguments = 1
    option_spec = {  # noqa: RUF012  (how docutils declares options)
        "cases": directives.unchanged,
        "passes": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        run = load(self.arguments[0])
        self.env.note_dependency(str(BENCHMARKS / run.name))
        passes = self.options.get("passes", "fprop backward").split()
        rows = run.select(self.options.get("cases", ""), passes)
        forms = [f for f in TITLES if any(f in row.seconds or f in row.failed for row in rows)]
        image = all(row.case.kind == "resize" for row in rows)
        titles = {**TITLES, "lax": "jax.image"} if image else TITLES
        unit, scale = run.unit
        head = ["layer", "pass", *(f"{titles[form]}, {unit}" for form in forms)]
        ratios = [peer for peer in ("lax", "best") if len(forms) > 1]
        head += [f"{titles.get(peer, peer)} / ours" for peer in ratios]
        body = []
        for row in rows:
            cells = [row.case.label, PASS_TITLES[row.name]]
            cells += [_cell(row, form, scale) for form in forms]
            cells += ["-" if (r := row.ratio(p)) is None else number(r) for p in ratios]
            body.append(cells)
        return [_table(head, body), _source(run)]


def _cell(row: Pass, form: str, scale: float) -> str:
    if form in row.seconds:
        return number(row.seconds[form] * scale)
    return "failed" if form in row.failed else "-"


def _table(head: list[str], body: list[list[str]]) -> nodes.Node:
    group = nodes.tgroup(cols=len(head))
    group += [nodes.colspec(colwidth=1) for _ in head]
    group += nodes.thead("", nodes.row("", *map(_entry, head)))
    rows = nodes.tbody()
    for _, together in itertools.groupby(body, key=lambda cells: cells[0]):
        first, *others = together
        # Consecutive rows share their first cell.
        rows += nodes.row("", _entry(first[0], morerows=len(others)), *map(_entry, first[1:]))
        rows += [nodes.row("", *map(_entry, cells[1:])) for cells in others]
    group += rows
    return nodes.table("", group, classes=["measurements"])


def _entry(text: str, **attributes: int) -> nodes.entry:
    is_number = text == "-" or text[:1].isdigit()
    classes = ["number"] if is_number else []
    return nodes.entry("", nodes.paragraph("", text), classes=classes, **attributes)


class Plot(SphinxDirective):
    required_arguments = 1
    option_spec = {  # noqa: RUF012
        "cases": directives.unchanged,
        "pass": directives.unchanged_required,
        "peers": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        run = load(self.arguments[0])
        self.env.note_dependency(str(BENCHMARKS / run.name))
        pass_ = self.options.get("pass", "dxdwdb")
        rows = run.select(self.options.get("cases", ""), [pass_])
        peers = self.options.get("peers", " ".join(PEERS)).split()
        peers = [peer for peer in peers if any(peer in row.seconds for row in rows)]
        name = f"{run.name.removesuffix('.json').replace('/', '_')}_{self.env.new_serialno('plot')}"
        title = f"{PASS_TITLES[pass_]}: time relative to this package"
        uri = save(self.env, name, _dots(rows, peers, title))
        alternative = f"{title}; the numbers are in benchmarks/{run.name}"
        return [nodes.image(uri=uri, alt=alternative), _source(run)]


class Errors(SphinxDirective):
    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        runs = [load(name) for name in self.arguments[0].split()]
        found: dict[tuple[str, str, str], list[Pass]] = {}
        for run in runs:
            self.env.note_dependency(str(BENCHMARKS / run.name))
            for row in run.passes:
                what = "resize" if row.case.kind == "resize" else "convolution"
                found.setdefault((run.device, what, DTYPES[row.case.dtype]), []).append(row)
        forms = ("ours", "lax", "torch")
        titles = {**TITLES, "lax": "jax.lax, jax.image"}
        head = ["device", "", "dtype", "passes", *(titles[form] for form in forms)]
        body = []
        for key, rows in sorted(found.items()):
            largest = [max((r.errors[f] for r in rows if f in r.errors), default=0) for f in forms]
            body.append([*key, str(len(rows)), *(f"{error:.0e}" for error in largest)])
        paragraph = nodes.paragraph("", "Sources: ", classes=["source"])
        for i, run in enumerate(runs):
            paragraph += [nodes.Text(", " * (i > 0)), nodes.literal("", f"benchmarks/{run.name}")]
        return [_table(head, body), paragraph]


def _dots(rows: list[Pass], peers: list[str], title: str) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    figure = Figure(figsize=(8, 1.0 + 0.24 * len(rows)), layout="constrained")
    axes = figure.subplots()
    image = all(row.case.kind == "resize" for row in rows)
    axes.axvline(1, color=COLORS["ours"], linewidth=2, label=TITLES["ours"], zorder=1)
    for peer in peers:
        found = [(y, r) for y, row in enumerate(rows) if (r := row.ratio(peer)) is not None]
        label = "jax.image" if image and peer == "lax" else TITLES[peer]
        axes.scatter(
            [ratio for _, ratio in found],
            [y for y, _ in found],
            30,
            color=COLORS[peer],
            marker=MARKERS[peer],
            label=label,
            zorder=2,
        )
    axes.set_xscale("log")
    for axis in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        axis(FuncFormatter(lambda x, _: f"{x:g}" if f"{x:g}".strip("0.")[0] in "125" else ""))
    axes.tick_params(axis="x", which="both", labelsize=7)
    axes.set_yticks(range(len(rows)), [row.case.label for row in rows], fontsize=7)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("time relative to this package (log scale)", fontsize=8)
    axes.set_title(title, fontsize=10)
    axes.grid(linewidth=0.3)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


class Models(SphinxDirective):
    """Training steps of whole models: every committed file that benchmarks/models.py wrote."""

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()  # a new file may have been added
        files = sorted(BENCHMARKS.glob("*/models*.json"))
        if not files:
            return [nodes.paragraph("", "No measurement of whole models is committed yet.")]
        return [node for file in files for node in self._file(file)]

    def _file(self, file: pathlib.Path) -> list[nodes.Node]:
        content = json.loads(file.read_text())
        ours, flax = "install()", "Flax"
        found: dict[str, dict[str, float]] = {}
        failures = nodes.bullet_list()
        for row in content["rows"]:
            times = found.setdefault(row["model"], {})
            if "failure" in row:
                text = f"{row['model']}, {row['by']} failed: {row['failure']}"
                failures += nodes.list_item("", nodes.paragraph("", text))
            else:
                times[row["by"]] = row["seconds"]
        columns = list(dict.fromkeys([flax, ours, *(by for row in found.values() for by in row)]))
        head = ["model, ms a step", *columns, "Flax / install()", "best other / install()"]
        head += ["compiling, s: Flax", "install()"]
        body = []
        for model, times in found.items():
            others = [
                seconds for by, seconds in times.items() if seconds and not by.startswith(ours)
            ]
            cells = [_milliseconds(times.get(by)) for by in columns]
            for other in (times.get(flax), min(others, default=None)):
                mine = times.get(ours)
                cells.append(number(other / mine) if other and mine else "-")
            compiling = content["models"][model]["compile"] or (None, None)
            cells += ["-" if seconds is None else number(seconds) for seconds in compiling]
            body.append([model, *cells])
        versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
        source = nodes.paragraph("", "", classes=["source"])
        source += nodes.Text(f"{content['device']}; {versions}. Source: ")
        source += nodes.literal("", str(file.relative_to(BENCHMARKS.parent)))
        return [_table(head, body), source, *([failures] if failures.children else [])]


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else number(1e3 * seconds)


class Ratio(SphinxRole):
    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        file, cases, pass_, peer = self.text.split()
        rows = load(file).select(cases, [pass_])
        ratios = [r for row in rows if (r := row.ratio(peer)) is not None]
        return [nodes.Text(self.show(ratios))], []

    def show(self, ratios: list[float]) -> str:
        return number(geometric_mean(ratios))


class Range(Ratio):
    def show(self, ratios: list[float]) -> str:
        return f"{number(min(ratios))} to {number(max(ratios))}"


class Count(SphinxRole):
    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        file, cases, pass_ = self.text.split()
        return [nodes.Text(str(len(load(file).select(cases, [pass_]))))], []


class Time(SphinxRole):
    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        file, cases, pass_, form = self.text.split()
        run = load(file)
        rows = run.select(cases, [pass_])
        if len(rows) != 1:
            raise ExtensionError(f"{self.text}: {len(rows)} passes match, expected one")
        seconds = rows[0].seconds[form]
        text = f"{number(1e6 * seconds)} µs" if seconds < 1e-3 else f"{number(1e3 * seconds)} ms"
        return [nodes.Text(text)], []


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("measured-table", Table)
    app.add_directive("measured-plot", Plot)
    app.add_directive("measured-errors", Errors)
    app.add_directive("measured-models", Models)
    for name, role in (("ratio", Ratio), ("range", Range), ("count", Count), ("time", Time)):
        app.add_role(f"measured-{name}", role())
    return {"parallel_read_safe": True, "parallel_write_safe": True}

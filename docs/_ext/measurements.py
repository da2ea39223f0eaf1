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
    ```{measured-models} h100/models.json            training steps of whole models
    ```
    ```{measured-chart} h100/models.json             the chart of these alone
    ```
    ```{measured-compile-times} h100/models.json     how long they take to compile
    ```
    {measured-ratio}`h100/conv_ohwi.json ^convt dxdwdb lax`    geometric mean of peer / this package
    {measured-range}`h100/conv_ohwi.json ^convt dxdwdb best`   smallest and largest
    {measured-count}`h100/conv_ohwi.json ^convt dxdwdb`        how many layers that is
    {measured-time}`cpu/bench.json ^convt.unet3d dw lax`       the only time that matches

Passes are fprop, dx, dw, dxdwdb and ddxddw, or "backward" for dx, dw and dxdwdb; peers are lax (jax.image
for a resize), xla_rewritten (the best pure-JAX form), torch, or best (the fastest of them).
"""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import steps
from docutils import nodes
from docutils.parsers.rst import directives
from figures import themed
from runs import BENCHMARKS, Pass, Run, geometric_mean, load, number
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective, SphinxRole
from titles import layer_title

from jax_convgrad.bench.cases import DTYPES
from jax_convgrad.bench.chart import COLORS
from jax_convgrad.bench.forms import PASS_TITLES

PEERS = ("lax", "xla_rewritten", "torch")
TITLES = {"ours": "this package", "lax": "lax", "xla_rewritten": "pure JAX", "torch": "PyTorch"}
MARKERS = {"lax": "o", "xla_rewritten": "D", "torch": "s"}
# What PASS_TITLES abbreviates.
PASS_LONG = {
    "fprop": "forward pass",
    "dx": "gradient of the image (dX)",
    "dw": "gradient of the weights (dW)",
    "dxdwdb": "all gradients (dX, dW and dB)",
    "ddxddw": "double backward, as in a gradient penalty",
}


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
        head += [f"faster than {titles.get(peer, 'the best other')}" for peer in ratios]
        body = []
        for row in rows:
            cells = [f"{layer_title(row.case)} ({row.case.name})", PASS_TITLES[row.name]]
            cells += [_cell(row, form, scale) for form in forms]
            cells += ["-" if (r := row.ratio(p)) is None else f"{number(r)}x" for p in ratios]
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
    is_number = re.fullmatch(r"-|[\d.]+(e-?\d+)?x?", text)
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
        title = f"{PASS_LONG[pass_]}"
        alternative = f"{title}; the numbers are in benchmarks/{run.name}"
        draw = functools.partial(_dots, rows, peers, title)
        return [*themed(self.env, name, draw, alternative), _source(run)]


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

    figure = Figure(figsize=(9.4, 1.3 + 0.25 * len(rows)), layout="constrained")
    axes = figure.subplots()
    image = all(row.case.kind == "resize" for row in rows)
    axes.axvline(1, color=COLORS["ours"], linewidth=2, label=TITLES["ours"], zorder=1)
    for peer in peers:
        found = [(y, r) for y, row in enumerate(rows) if (r := row.ratio(peer)) is not None]
        label = "jax.image" if image and peer == "lax" else TITLES[peer]
        axes.scatter(
            [ratio for _, ratio in found],
            [y for y, _ in found],
            36,
            color=COLORS[peer],
            marker=MARKERS[peer],
            label=label,
            zorder=2,
        )
    axes.set_xscale("log")
    for axis in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        axis(FuncFormatter(lambda x, _: f"{x:g}" if f"{x:g}".strip("0.")[0] in "125" else ""))
    axes.tick_params(axis="x", which="both", labelsize=7)
    axes.set_yticks(range(len(rows)), [layer_title(row.case) for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("times slower than this package (log scale); left of 1 is faster", fontsize=8)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    axes.grid(linewidth=0.3)
    figure.legend(fontsize=8, loc="outside upper right", ncols=4, frameon=False)
    return figure


class Models(SphinxDirective):
    """Training steps of whole models: a chart, a table and the times to compile, of one committed file."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        found = steps.load(self.arguments[0])
        self.env.note_dependency(str(BENCHMARKS / found.name))
        head = ["model, ms a step", *(steps.TITLES[form] for form in found.forms)]
        head += ["faster than lax", "faster than the best other"]
        body = [
            [
                row.model,
                *(steps.milliseconds(row.seconds.get(form)) for form in found.forms),
                *(steps.times_faster(row.ratio(form)) for form in ("lax", "best")),
            ]
            for row in found.rows
        ]
        versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
        source = nodes.paragraph("", "", classes=["source"])
        source += nodes.Text(f"{found.device}; {versions}. Source: ")
        source += nodes.literal("", f"benchmarks/{found.name}")
        failures = nodes.bullet_list()
        for text in found.failures:
            failures += nodes.list_item("", nodes.paragraph("", text))
        return [
            *_chart(self.env, found),
            _table(head, body),
            source,
            *([failures] if failures.children else []),
        ]


class Chart(SphinxDirective):
    """The chart of `Models` alone."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        found = steps.load(self.arguments[0])
        self.env.note_dependency(str(BENCHMARKS / found.name))
        return _chart(self.env, found)


def _chart(env: BuildEnvironment, found: steps.Steps) -> list[nodes.Node]:
    name = f"steps_{found.name.removesuffix('.json').replace('/', '_')}"
    alternative = f"Milliseconds for one training step; the numbers are in benchmarks/{found.name}"
    return themed(env, name, functools.partial(steps.draw, found), alternative)


class CompileTimes(SphinxDirective):
    """How long the steps of whole models take to compile, without install() and with it."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        found = steps.load(self.arguments[0])
        self.env.note_dependency(str(BENCHMARKS / found.name))
        body = [
            [model, *(number(seconds) for seconds in both)]
            for model, both in found.compile_seconds.items()
        ]
        return [_table(["seconds to compile a step", "JAX (lax)", "install()"], body)]


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
    app.add_directive("measured-chart", Chart)
    app.add_directive("measured-compile-times", CompileTimes)
    for name, role in (("ratio", Ratio), ("range", Range), ("count", Count), ("time", Time)):
        app.add_role(f"measured-{name}", role())
    return {"parallel_read_safe": True, "parallel_write_safe": True}

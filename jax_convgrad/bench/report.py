"""What a run found: a table, Markdown, JSON and a bar chart."""

from __future__ import annotations

import dataclasses
import datetime
import math
import os
import pathlib
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from jax_convgrad.bench.cases import Case
from jax_convgrad.bench.forms import PASS_TITLES, cpu_threads
from jax_convgrad.bench.timing import Method, Result

SCHEMA = 3
BASE = "ours"
# What counts as slower. Medians of one run wander by a few per cent.
LIMITS = {"lax": 1.05, "torch": 1.10}
COLORS = {"ours": "#1b7837", "lax": "#bf5b17", "swap": "#7570b3", "torch": "#666666"}

Group = dict[str, Result]  # form name -> result, of one pass of one case


def groups(results: Iterable[Result]) -> dict[tuple[Case, str], Group]:
    """The results of each pass of each case together."""
    grouped: dict[tuple[Case, str], Group] = {}
    for result in results:
        grouped.setdefault((result.case, result.pass_), {})[result.form] = result
    return grouped


def unit() -> tuple[str, float]:
    """The unit of the tables on this device, and how many of it are one second."""
    return ("ms", 1e3) if jax.default_backend() == "cpu" else ("us", 1e6)


def ratio(group: Group, peer: str) -> float | None:
    """How many times slower than ours the peer is."""
    ours, other = group.get(BASE), group.get(peer)
    if ours is None or other is None or not ours.median or not other.median:
        return None
    return other.median / ours.median


def best_peer(group: Group) -> Result | None:
    """The fastest form that is not ours."""
    peers = [r for name, r in group.items() if name != BASE and r.median]
    return min(peers, key=lambda r: r.median or math.inf, default=None)


# --- Tables ---------------------------------------------------------------------------------------


def _number(value: float) -> str:
    """Three significant digits, without an exponent."""
    digits = 0 if value <= 0 else 2 - math.floor(math.log10(value))
    return f"{value:.{max(0, min(digits, 4))}f}"


def time_cell(median: float | None, quartiles: tuple[float, float] | None) -> str:
    """A median and its spread."""
    if median is None or quartiles is None:
        return "failed"
    _, scale = unit()
    low, high = quartiles
    return f"{_number(median * scale)} ±{100 * (high - low) / median:.0f}%"


def _cell(result: Result | None) -> str:
    if result is None or result.absent:
        return "-"
    if result.failure or result.median is None:
        return "failed"
    error = "nan" if result.error is None else f"{result.error:.0e}"
    return f"{time_cell(result.median, result.quartiles)} {error}"


def times(value: float | None) -> str:
    """A ratio of times."""
    return "-" if value is None else f"{_number(value)}x"


def rows(results: Sequence[Result], forms: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """The table: one row for each pass of each case."""
    compare = BASE in forms and len(forms) > 1
    head = ["case", "pass", *forms]
    if compare:
        head += [f"{peer}/{BASE}" for peer in forms if peer == "lax"] + [f"best/{BASE}"]
    body = []
    for (case, pass_), group in groups(results).items():
        row = [case.label, PASS_TITLES[pass_], *(_cell(group.get(form)) for form in forms)]
        if compare:
            if "lax" in forms:
                row.append(times(ratio(group, "lax")))
            best = best_peer(group)
            row.append(times(ratio(group, best.form)) if best else "-")
        body.append(row)
    return head, body


def legend() -> str:
    """What the cells mean."""
    name, _ = unit()
    return (
        f"Cells: median in {name}, spread between the quartiles in per cent of it, largest error "
        "against float64 relative to the largest value. The lax of a resize is jax.image."
    )


def table(results: Sequence[Result], forms: Sequence[str]) -> str:
    """The table for a terminal."""
    return aligned(*rows(results, forms))


def aligned(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Columns for a terminal. What is in the first one stands once, above the rows that share it."""
    head = head[1:]
    widths = [max(len(r[i + 1]) for r in [["", *head], *body]) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first, *rest = cells
        aligned = [c.rjust(w) for c, w in zip(rest, widths[1:], strict=True)]
        return "  ".join(["  " + first.ljust(widths[0]), *aligned]).rstrip()

    lines, case = [line(head), "  " + "-" * (sum(widths) + 2 * len(widths) - 2)], None
    for row in body:
        if row[0] != case:
            case = row[0]
            lines.append(case)
        lines.append(line(row[1:]))
    return "\n".join(lines)


def markdown(results: Sequence[Result], forms: Sequence[str], where: str) -> str:
    """The same as a Markdown document. `where` says how the arrays lie."""
    return page("Benchmark", where, legend(), rows(results, forms), summary_lines(results, forms))


def page(
    title: str,
    where: str,
    legend: str,
    rows: tuple[Sequence[str], Sequence[Sequence[str]]],
    notes: Sequence[str],
) -> str:
    """A Markdown document of one table and the notes below it."""
    head, body = rows
    lines = [f"# {title}", "", f"{describe_device()}; {where}", "", legend, ""]
    lines += ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in body]
    lines += ["", *(f"- {text}" for text in notes)]
    return "\n".join(lines) + "\n"


# --- Summary --------------------------------------------------------------------------------------


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """Geometric means, and the passes in which ours is slower."""
    grouped = groups(results)
    out: dict[str, Any] = {
        "passes": len(grouped),
        "geomean_over_ours": {},
        "slower_than": {},
        "failed": [f"{r.case.id} {r.pass_} {r.form}" for r in results if r.failure],
    }
    peers = [name for name in dict.fromkeys(r.form for r in results) if name != BASE]
    for peer in [*peers, "best"]:
        ratios = []
        for group in grouped.values():
            found = best_peer(group) if peer == "best" else group.get(peer)
            value = ratio(group, found.form) if found else None
            if value is not None:
                ratios.append(value)
        if ratios:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            out["geomean_over_ours"][peer] = {"ratio": mean, "passes": len(ratios)}
    for peer, limit in LIMITS.items():
        compared = {key: ratio(group, peer) for key, group in grouped.items()}
        if any(value is not None for value in compared.values()):
            out["slower_than"][peer] = {
                "by_more_than": limit - 1,
                "passes": [
                    f"{case.id} {pass_}: {1 / value:.2f}"
                    for (case, pass_), value in compared.items()
                    if value is not None and value * limit < 1
                ],
            }
    return out


def summary_lines(results: Sequence[Result], forms: Sequence[str]) -> list[str]:
    """The summary in words."""
    found = summary(results)
    lines = []
    for peer, entry in found["geomean_over_ours"].items():
        what = "the best peer" if peer == "best" else peer
        lines.append(
            f"{what} / {BASE}: {entry['ratio']:.2f} (geometric mean of {entry['passes']} passes)"
        )
    for peer, entry in found["slower_than"].items():
        slow = entry["passes"]
        lines.append(
            f"{BASE} slower than {peer} by more than {entry['by_more_than']:.0%}: "
            f"{len(slow)} passes" + (f" ({'; '.join(slow)})" if slow else "")
        )
    for result in results:
        if result.failure:
            lines.append(
                f"{result.form} failed on {result.case.id} {result.pass_}: {result.failure}"
            )
        if result.host_bound:
            lines.append(
                f"{result.form} on {result.case.id} {result.pass_}: the host was too slow to "
                "measure the device's time"
            )
    absent = {
        (r.form, r.absent) for r in results if r.absent and r.form == "torch" and "torch" in forms
    }
    lines += [f"{form} was not timed: {why}" for form, why in sorted(absent)]
    return lines


# --- Where and with what --------------------------------------------------------------------------


def device_name() -> str:
    """The device's own name: for a CPU the processor's, which JAX does not know."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        return device.device_kind
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def describe_device() -> str:
    """One line: the device and what ran on it."""
    where = device_name()
    if jax.default_backend() == "cpu":
        where += f", {cpu_threads()} threads"
    versions = [f"jax {jax.__version__}"]
    if "torch" in sys.modules:
        versions.append(f"torch {sys.modules['torch'].__version__}")
    text = f"{where}; {', '.join(versions)}; Python {platform.python_version()}"
    found = commit()
    if found is None:
        return text
    return f"{text}; commit {found[:12]}{'-dirty' if found.endswith('-dirty') else ''}"


def describe_layout(layout: str, weights: str) -> str:
    """How the arrays that the JAX forms are given lie in memory."""
    return f"activations {layout}, weights {weights}"


def load_average() -> float | None:
    """How many programs wanted a processor during the last minute, where the system says."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def commit() -> str | None:
    """What JAX_CONVGRAD_COMMIT says, or the commit of the checkout the package lies in.

    The latter with `-dirty` if files differ from it.
    """
    if said := os.environ.get("JAX_CONVGRAD_COMMIT"):
        return said
    folder = pathlib.Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def provenance(load_before: float | None) -> dict[str, Any]:
    """Where, when and with what something was measured."""
    import jax_convgrad

    return {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "device": {
            "platform": jax.default_backend(),
            "name": device_name(),
            "threads": cpu_threads() if jax.default_backend() == "cpu" else None,
            "load_before": load_before,
        },
        "info": jax_convgrad.info(),
    }


def to_json(
    results: Sequence[Result],
    layout: str,
    weights: str,
    method: Method,
    load_before: float | None,
) -> dict[str, Any]:
    """Everything that was measured, with enough beside it to know where and how."""
    return {
        **provenance(load_before),
        "torch": getattr(sys.modules.get("torch"), "__version__", None),
        "layout": layout,
        "weights": weights,
        "method": dataclasses.asdict(method),
        "results": [
            {
                "case": result.case.to_json(),
                "pass": result.pass_,
                "form": result.form,
                "variant": result.variant,
                "median_s": result.median,
                "quartiles_s": result.quartiles,
                "samples_s": result.samples,
                "calls_per_sample": result.repeats,
                "calls_per_program": result.calls_per_program,
                "least_s": result.least_seconds,
                "rejected_s": result.rejected,
                "input_sets": result.input_sets,
                "host_bound_samples": result.host_bound_samples,
                "error": result.error,
                "error_batch": result.error_batch,
                "absent": result.absent,
                "failure": result.failure,
            }
            for result in results
        ],
        "summary": summary(results),
    }


# --- Chart ----------------------------------------------------------------------------------------


def plot(results: Sequence[Result], forms: Sequence[str], path: str) -> None:
    """A bar chart: a panel for each pass, a group of bars for each case, logarithmic times."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    grouped = groups(results)
    cases = list(dict.fromkeys(case for case, _ in grouped))
    passes = list(dict.fromkeys(pass_ for _, pass_ in grouped))
    drawn = [form for form in forms if any(r.form == form and r.median for r in results)]
    name, scale = unit()
    row = 0.17 * len(drawn) + 0.22
    height = 1.5 + max(1.2, row * len(cases))
    with matplotlib.rc_context({"font.size": 9, "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=(3.4 + 3.3 * len(passes), height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, len(passes), sharex=True, sharey=True, squeeze=False)[0]
        thickness = 0.82 / max(1, len(drawn))
        times = [result.median * scale for result in results if result.median]
        for axis, pass_ in zip(axes, passes, strict=True):
            for index, form in enumerate(drawn):
                places, values, spreads = [], [], ([], [])
                for place, case in enumerate(cases):
                    result = grouped.get((case, pass_), {}).get(form)
                    if result is None or result.median is None or result.quartiles is None:
                        continue
                    low, high = result.quartiles
                    places.append(place + (index - (len(drawn) - 1) / 2) * thickness)
                    values.append(result.median * scale)
                    spreads[0].append((result.median - low) * scale)
                    spreads[1].append((high - result.median) * scale)
                axis.barh(
                    places,
                    values,
                    height=thickness * 0.92,
                    color=COLORS.get(form),
                    label=form,
                    xerr=spreads,
                    error_kw={"elinewidth": 0.8, "ecolor": "black"},
                )
                for place, value, above in zip(places, values, spreads[1], strict=True):
                    axis.annotate(
                        _number(value),
                        (value + above, place),
                        xytext=(4, 0),
                        textcoords="offset points",
                        va="center",
                        fontsize=7,
                    )
            axis.set_xscale("log")
            axis.set_title(PASS_TITLES[pass_], fontsize=10)
            axis.set_xlabel(f"{name}, logarithmic")
            axis.grid(axis="x", which="major", color="#dddddd", linewidth=0.7)
            axis.set_axisbelow(True)
            axis.spines[["top", "right"]].set_visible(False)
            axis.tick_params(axis="y", length=0)
        if times:
            # Room on the right for the figures beside the longest bars.
            axes[0].set_xlim(min(times) / 2, max(times) * 5)
        labels = [case.label.replace(" (", "\n").rstrip(")") for case in cases]
        axes[0].set_yticks(range(len(cases)), labels, fontsize=8)
        axes[0].set_ylim(len(cases) - 0.5, -0.5)
        for axis in axes:
            for place in range(len(cases) - 1):
                axis.axhline(place + 0.5, color="#eeeeee", linewidth=0.7, zorder=0)
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(drawn), frameon=False)
        figure.suptitle(f"Time per call, lower is better: {describe_device()}", fontsize=10)
        figure.savefig(path, dpi=110)


def write(path: str, text: str, say: Callable[[str], None]) -> None:
    """Writes a file, its folder too if need be, and says so."""
    target = pathlib.Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    say(f"wrote {path}")

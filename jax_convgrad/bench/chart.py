"""The results of a run as a bar chart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jax_convgrad.bench.forms import PASS_TITLES, title
from jax_convgrad.bench.provenance import describe_device
from jax_convgrad.bench.summary import groups
from jax_convgrad.bench.tables import number, unit
from jax_convgrad.bench.timing import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = {"ours": "#1b7837", "lax": "#bf5b17", "xla_rewritten": "#7570b3", "torch": "#666666"}
# Narrower than this, an axis has labels at 1, 2 and 5 of each decade; wider, at the decades alone.
WIDE_AXIS_RATIO = 100


def plot(results: Sequence[Result], forms: Sequence[str], path: str) -> None:
    """Writes the bar chart of `draw` to a file."""
    draw(results, forms).savefig(path, dpi="figure")


def draw(results: Sequence[Result], forms: Sequence[str]) -> Figure:
    """A bar chart: a panel for each pass, a group of bars for each case, logarithmic times."""
    import matplotlib
    from matplotlib import ticker
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
        figure = Figure(figsize=(3.4 + 3.3 * len(passes), height), dpi=110, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, len(passes), sharex=True, sharey=True, squeeze=False)[0]
        thickness = 0.82 / max(1, len(drawn))
        medians = [result.median * scale for result in results if result.median]
        for axis, pass_ in zip(axes, passes, strict=True):
            for index, form in enumerate(drawn):
                places: list[float] = []
                values: list[float] = []
                spreads: tuple[list[float], list[float]] = ([], [])
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
                    label=title(form),
                    xerr=spreads,
                    error_kw={"elinewidth": 0.8, "ecolor": "black"},
                )
                for middle, value, above in zip(places, values, spreads[1], strict=True):
                    axis.annotate(
                        number(value),
                        (value + above, middle),
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
        if medians:
            # Room on the right for the figures beside the longest bars.
            low, high = min(medians) / 2, max(medians) * 5
            axes[0].set_xlim(low, high)
            subs = (1.0, 2.0, 5.0) if high / low < WIDE_AXIS_RATIO else (1.0,)
            for axis in axes:
                axis.xaxis.set_major_locator(ticker.LogLocator(subs=subs))
                axis.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
                axis.xaxis.set_minor_formatter(ticker.NullFormatter())
        labels = [case.label.replace(" (", "\n").rstrip(")") for case in cases]
        axes[0].set_yticks(range(len(cases)), labels, fontsize=8)
        axes[0].set_ylim(len(cases) - 0.5, -0.5)
        for axis in axes:
            for place in range(len(cases) - 1):
                axis.axhline(place + 0.5, color="#eeeeee", linewidth=0.7, zorder=0)
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(drawn), frameon=False)
        figure.suptitle(f"Time per call, lower is better: {describe_device()}", fontsize=10)
        # While the font is set: the labels of ticks are made as the figure is drawn.
        figure.draw_without_rendering()
    return figure

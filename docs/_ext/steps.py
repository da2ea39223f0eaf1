"""Training steps of whole models, as benchmarks/models.py measured them: the data and the chart.

The README and the site show the same rows. A row has at most four times:

    lax             the Flax model as it is
    xla_rewritten   the faster of that and the same model in pure JAX without any handler ("best pure JAX")
    torch           PyTorch, in its faster memory format
    ours            the Flax model after install()

Steps with XLA's convolutions in its command buffers ("captured") are left out here.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterable
from typing import Any

from jax_convgrad.bench.chart import COLORS

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
TITLES = {
    "lax": "JAX (lax)",
    "xla_rewritten": "best pure JAX",
    "torch": "PyTorch",
    "ours": "this package",
}
# The names that benchmarks/models.py writes.
_MEASURED = {
    "Flax": ("lax", "xla_rewritten"),
    "pure JAX": ("xla_rewritten",),
    "PyTorch": ("torch",),
    "PyTorch, channels last": ("torch",),
    "install()": ("ours",),
}


@dataclasses.dataclass(frozen=True)
class Step:
    """One model's training step: seconds by form, for the forms that were measured."""

    model: str
    seconds: dict[str, float]

    def ratio(self, form: str) -> float | None:
        """The form's time over this package's; of "best", the fastest other form's."""
        ours = self.seconds.get("ours")
        others = {name: s for name, s in self.seconds.items() if name != "ours"}
        other = min(others.values(), default=None) if form == "best" else others.get(form)
        return None if ours is None or other is None else other / ours


@dataclasses.dataclass(frozen=True)
class Steps:
    """One committed file."""

    name: str
    device: str
    versions: dict[str, str]
    rows: tuple[Step, ...]
    compile_seconds: dict[str, tuple[float, float]]
    failures: tuple[str, ...]

    @property
    def forms(self) -> list[str]:
        """The forms that some row has, in the order of the columns."""
        return [form for form in TITLES if any(form in row.seconds for row in self.rows)]


def load(name: str) -> Steps:
    """A file under benchmarks/, as `benchmarks/models.py --json` writes it."""
    content = json.loads((BENCHMARKS / name).read_text())
    found: dict[str, dict[str, float]] = {}
    failures = []
    # Without a run in pure JAX of its own, the column is left out and not filled with lax's time.
    in_pure_jax = {row["model"] for row in content["rows"] if row["by"] == "pure JAX"}
    for row in content["rows"]:
        times = found.setdefault(row["model"], {})
        if "failure" in row:
            failures.append(f"{row['model']}, {row['by']} failed: {row['failure']}")
            continue
        for form in _MEASURED.get(row["by"], ()):
            if form != "xla_rewritten" or row["model"] in in_pure_jax:
                times[form] = min(row["seconds"], times.get(form, row["seconds"]))
    return Steps(
        name,
        content["device"],
        content["versions"],
        tuple(Step(model, times) for model, times in found.items()),
        {
            model: (compiled[0], compiled[1])
            for model in found
            if (compiled := content["models"][model]["compile"])
        },
        tuple(failures),
    )


def milliseconds(seconds: float | None) -> str:
    """Three digits."""
    if seconds is None:
        return "-"
    value = 1e3 * seconds
    return f"{value:#.3g}".rstrip(".") if value < 1000 else f"{value:.0f}"


def times_faster(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1f}x"


def between(ratios: Iterable[float | None]) -> str:
    """The smallest and the largest of some ratios."""
    known = [ratio for ratio in ratios if ratio is not None]
    return f"{min(known):.1f} to {max(known):.1f}x"


def draw(steps: Steps) -> Any:
    """A panel for each model, a bar for each form, each with its time."""
    from matplotlib.figure import Figure

    columns = 3
    lines = -(-len(steps.rows) // columns)
    thickness = 0.27 * len(steps.forms) + 0.55
    figure = Figure(figsize=(9.2, lines * thickness + 0.2), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, row in zip(panels, steps.rows, strict=False):
        forms = [form for form in steps.forms if form in row.seconds]
        places = [steps.forms.index(form) for form in forms]
        values = [1e3 * row.seconds[form] for form in forms]
        axes.barh(places, values, 0.78, color=[COLORS[form] for form in forms])
        for place, form, value in zip(places, forms, values, strict=True):
            weight = "bold" if form == "ours" else "normal"
            text = f"{milliseconds(value / 1e3)} ms"
            axes.annotate(
                text,
                (value, place),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=10,
                weight=weight,
            )
        axes.set_title(row.model, fontsize=11, loc="left")
        axes.set_xlim(0, 1.4 * max(values))
        axes.set_ylim(len(steps.forms) - 0.4, -0.6)
        axes.set_xticks([])
        # The names stand beside the first panel of each line only.
        first = list(panels).index(axes) % columns == 0
        names = [TITLES[form] for form in steps.forms] if first else [""] * len(steps.forms)
        axes.set_yticks(range(len(steps.forms)), names, fontsize=10)
        axes.tick_params(length=0)
        for side in axes.spines:
            axes.spines[side].set_visible(side == "left")
    for axes in panels[len(steps.rows) :]:
        axes.set_axis_off()
    return figure

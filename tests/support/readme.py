"""The parts of README.md that programs write: the training steps, their chart, and `explain`'s output.

    python tests/support/readme.py --write

The numbers come from the files under benchmarks/, by the code that the site uses (docs/_ext/steps.py).
"""

from __future__ import annotations

import contextlib
import io
import pathlib
import re
import sys
import unittest.mock
from collections.abc import Iterator

from jax_convgrad._src.dispatch import devices, rules_cpu

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))
import runs  # noqa: E402
import steps  # noqa: E402
from drawing import draw_themes  # noqa: E402

README = ROOT / "README.md"
DRAWINGS = ROOT / "docs" / "drawings"
CHART = "steps"
GPU, CPU = "h100/models.json", "cpu/models.json"
LAYERS = "h100/conv_ohwi.json"
BEGIN, END = "<!-- steps: written by tests/support/readme.py -->\n", "<!-- end of the steps -->\n"
EXPLAINED = re.compile(r"^```python\n(# train\.py\n.*?)^```\n\n```text\n(.*?)^```", re.M | re.S)
# Not prose: fenced blocks, tables, comments, the chart, and the targets of links.
_NOT_PROSE = re.compile(
    r"^```.*?^```|^\|.*?$|<!--.*?-->|<picture>.*?</picture>|\]\([^)]*\)", re.M | re.S
)


def words(text: str) -> list[str]:
    """The words of the prose, headings and lists included."""
    return [word for word in _NOT_PROSE.sub(" ", text).split() if re.search(r"\w", word)]


def measured() -> str:
    """The sentence, the table and the chart of whole training steps, in Markdown."""
    gpu, cpu = steps.load(GPU), steps.load(CPU)
    head = [f"training step, {gpu.device.removesuffix(' HBM3')}", *_titles(gpu), "faster than JAX"]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for row in gpu.rows:
        cells = [steps.milliseconds(row.seconds.get(form)) for form in gpu.forms]
        fastest = min(row.seconds, key=row.seconds.__getitem__)
        cells = [
            f"**{cell} ms**" if form == fastest else f"{cell} ms"
            for form, cell in zip(gpu.forms, cells, strict=True)
        ]
        lines.append(
            f"| {row.model} | {' | '.join(cells)} | {steps.times_faster(row.ratio('lax'))} |"
        )
    layers = runs.load(LAYERS).select("^convt", ["dxdwdb"])
    mean = {peer: runs.geometric_mean(_ratios(layers, peer)) for peer in ("lax", "best")}
    networks = {row.model.partition(",")[0] for row in cpu.rows}
    sentence = (
        '"Best pure JAX" is the faster of the unchanged model and the same model rewritten in plain JAX. In '
        f"each row this package is {steps.between(row.ratio('best') for row in gpu.rows)} as fast as the "
        f"fastest other column. Layer by layer, the backward passes of {len(layers)} published transposed "
        f"convolutions run {mean['lax']:.0f}x faster than plain JAX and {mean['best']:.1f}x faster "
        "than the best other form (geometric means). On two CPU cores, smaller versions of "
        f"{len(networks)} of these networks train "
        f"{steps.between(row.ratio('lax') for row in cpu.rows)} faster than plain JAX."
    )
    chart = (
        "<picture>\n"
        f'  <source media="(prefers-color-scheme: dark)" srcset="docs/drawings/{CHART}_dark.svg">\n'
        f'  <img alt="Bar chart of the table above" src="docs/drawings/{CHART}_light.svg">\n'
        "</picture>"
    )
    table = "\n".join(lines)
    return f"{table}\n\n{chart}\n\n{sentence}\n"


def _ratios(layers: list[runs.Pass], peer: str) -> list[float]:
    return [ratio for layer in layers if (ratio := layer.ratio(peer)) is not None]


def _titles(found: steps.Steps) -> list[str]:
    return [steps.TITLES[form] for form in found.forms]


def in_readme() -> str:
    return README.read_text().partition(BEGIN)[2].partition(END)[0]


def printed(block: str) -> str:
    """The output of a Python block, run under the name in its first line."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), measured_device():
        exec(compile(block, "train.py", "exec"), {"__name__": "__main__"})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


@contextlib.contextmanager
def measured_device() -> Iterator[None]:
    """Every CPU is of the class that the rules were measured on: `explain` says the same on all machines."""
    with unittest.mock.patch.object(devices, "_cpu_class", lambda: rules_cpu.AMX.device_class):
        yield


def write() -> None:
    text = README.read_text()
    before, rest = text.split(BEGIN)
    text = before + BEGIN + measured() + END + rest.partition(END)[2]
    explained = EXPLAINED.search(text)
    assert explained is not None
    text = text[: explained.start(2)] + printed(explained[1]) + text[explained.end(2) :]
    README.write_text(text)
    gpu = steps.load(GPU)
    draw_themes(lambda: steps.draw(gpu), DRAWINGS, CHART)


if __name__ == "__main__":
    write() if sys.argv[1:] == ["--write"] else print(measured())

"""Figures drawn while the site is built, and the help text of the command line.

```{bands} 4 7
```
draws the matrix of a linear resize from 4 elements to 7 and its transpose, from the package's own tables.

```{command-help} bench
```
shows what `python -m jax_convgrad bench --help` prints.
"""

from __future__ import annotations

import functools
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from docutils import nodes
from drawing import draw_themes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective

FOLDER = "_generated"


def themed(
    env: BuildEnvironment, name: str, draw: Callable[[], Any], alternative: str
) -> list[nodes.Node]:
    """A figure, as an image for light pages and one for dark pages. The theme shows one of them."""
    folder = pathlib.Path(env.srcdir) / FOLDER
    return [
        nodes.image(uri=f"/{FOLDER}/{path.name}", alt=alternative, classes=[f"only-{theme}"])
        for theme, path in draw_themes(draw, folder, name).items()
    ]


class Bands(SphinxDirective):
    required_arguments = 2

    def run(self) -> list[nodes.Node]:
        n, m = map(int, self.arguments)
        text = f"The matrix of a linear resize of {n} elements to {m}, and its transpose: both are banded."
        return themed(self.env, f"bands_{n}_{m}", functools.partial(_draw_bands, n, m), text)


def _draw_bands(n: int, m: int) -> Any:
    from matplotlib.figure import Figure

    from jax_convgrad._src.resize.bands import Rule, make_band

    forward = make_band(n, m, Rule("linear"))
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    pairs = zip(figure.subplots(1, 2), (forward, forward.transpose), strict=True)
    titles = (f"forward: {n} elements to {m}", f"gradient: {m} elements to {n}")
    for (axes, band), title in zip(pairs, titles, strict=True):
        axes.imshow(band.dense(), cmap="Greens", vmin=0, vmax=1.6)
        for i, (start, weights) in enumerate(zip(band.start, band.weights, strict=True)):
            for t, weight in enumerate(weights):
                axes.text(
                    start + t,
                    i,
                    f"{weight:.2f}",
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="#1f2328",
                )
            # A frame around what one output reads.
            left, width = start - 0.5, band.taps
            axes.plot(
                [left, left + width, left + width, left, left],
                [i - 0.45, i - 0.45, i + 0.45, i + 0.45, i - 0.45],
                color="#1b7837",
                linewidth=1,
            )
        axes.set_title(f"{title}; {band.taps} taps", fontsize=9)
        axes.set_xlabel("element read", fontsize=8)
        axes.set_ylabel("element written", fontsize=8)
        axes.set_xticks(range(band.size))
        axes.set_yticks(range(band.out_size))
        axes.tick_params(labelsize=7)
    return figure


class CommandHelp(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        command = [sys.executable, "-m", "jax_convgrad", self.arguments[0], "--help"]
        result = subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "COLUMNS": "88", "NO_COLOR": "1"},
        )
        return [nodes.literal_block("", result.stdout, language="text")]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("bands", Bands)
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

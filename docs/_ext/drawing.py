"""How every figure is drawn: once for a light page and once for a dark one, on a transparent ground.

Text stays text in the SVG, so that readers can select it and tests can read it.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

INK = {"light": "#1f2328", "dark": "#e6edf3"}


def draw_themes(
    draw: Callable[[], Any], folder: pathlib.Path, name: str
) -> dict[str, pathlib.Path]:
    """Writes what ``draw`` returns, a matplotlib figure, as NAME_light.svg and NAME_dark.svg."""
    import matplotlib

    folder.mkdir(exist_ok=True)
    written = {}
    for theme, ink in INK.items():
        colors = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
        settings = {
            **dict.fromkeys(colors, ink),
            "axes.facecolor": "none",
            "font.family": "sans-serif",
            "svg.fonttype": "none",
            # Drawing a figure again gives the same file.
            "svg.hashsalt": name,
        }
        written[theme] = folder / f"{name}_{theme}.svg"
        with matplotlib.rc_context(settings):
            draw().savefig(written[theme], transparent=True, metadata={"Date": None})
    return written

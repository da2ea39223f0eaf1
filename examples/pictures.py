"""Pictures that both examples draw: loss curves, and rows of small images."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure that is drawn without a screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_losses(path: pathlib.Path, title: str, curves: Mapping[str, Sequence[float]]) -> None:
    """One panel with a curve for each loss: every step in pale ink, the running mean in full."""
    figure = new_figure(8, 4.2)
    axes = figure.subplots()
    for index, (name, values) in enumerate(curves.items()):
        color = f"C{index}"
        steps = np.arange(1, len(values) + 1)
        axes.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
        window = max(1, len(values) // 25)
        means = np.convolve(values, np.full(window, 1 / window), "valid")
        axes.plot(steps[window - 1 :], means, color=color, linewidth=2, label=name)
    axes.set_yscale("log")
    for axis in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        axis("{x:g}")
    axes.set_xlabel("training step", fontsize=11)
    axes.set_ylabel("loss (log scale)", fontsize=11)
    axes.set_title(title, fontsize=13, loc="left")
    axes.grid(linewidth=0.3)
    axes.legend(fontsize=11, frameon=False)
    figure.savefig(path, dpi=100)


def draw_rows(path: pathlib.Path, title: str, rows: Mapping[str, np.ndarray]) -> None:
    """A labeled row for each batch of gray images (count, height, width), values in [-1, 1]."""
    figure = new_figure(10, 0.62 * len(rows) + 0.6)
    # Labels hang over the left edge of images that fill the width.
    figure.get_layout_engine().set(rect=(0.02, 0, 0.98, 1))
    axes = figure.subplots(len(rows), 1, squeeze=False)[:, 0]
    for row, (label, images) in zip(axes, rows.items(), strict=True):
        framed = np.pad(images, ((0, 0), (1, 1), (1, 1)), constant_values=-1)
        row.imshow(np.concatenate(list(framed), axis=1), cmap="gray", vmin=-1, vmax=1)
        row.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=11)
        row.set_xticks([])
        row.set_yticks([])
    figure.suptitle(title, fontsize=13)
    figure.savefig(path, dpi=100)

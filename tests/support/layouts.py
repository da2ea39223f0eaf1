"""Canonical order of axes, and a layout's.

x (batch, channels, spatial), w (output channels, input channels / groups, kernel), y like x.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

Shape = tuple[int, ...]

Pairs = tuple[tuple[int, int], ...]


def to_layout(array: np.ndarray, spec: Sequence[int]) -> np.ndarray:
    """Canonical order to the order of ``spec``, one of lax.ConvDimensionNumbers' three tuples."""
    return np.moveaxis(array, range(array.ndim), spec)


def from_layout(array: Any, spec: Sequence[int]) -> np.ndarray:
    return np.transpose(np.asarray(array), spec)


def default_numbers(rank: int) -> lax.ConvDimensionNumbers:
    return lax.ConvDimensionNumbers(*(tuple(range(rank)),) * 3)


def _channels_last(spatial: str) -> tuple[str, str, str]:
    return f"N{spatial}C", f"{spatial}IO", f"N{spatial}C"


NWC, NHWC, NDHWC = map(_channels_last, ("W", "HW", "DHW"))

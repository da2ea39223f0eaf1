"""The orders of axes in memory that the handlers ask XLA for, major to minor.

NOTE [Order of weights]. cuDNN's channels-last engines read weights in the order output channel, kernel, input
channel (OXI). They accept other orders and compute wrong results with them. Where the weights lie in another
order, XLA reorders them at every call. The thin CUDA kernels read kernel, input channel, output channel (XIO)
as well, the order of Flax's arrays (HWIO). So weights that lie like this are passed as they are to the
problems in which these kernels are likely to be the fastest. If the search finds an engine of cuDNN's to be
faster there, even with the time that reordering takes, the handler reorders them for it, in the workspace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

# Of weights, the outermost axis first: output channel (O), kernel (X), input channel (I).
WeightsOrder = Literal["OXI", "XIO"]


def channels_last(spec: Sequence[int]) -> tuple[int, ...]:
    """The order N, spatial, C of an activation with dimension specification ``spec``."""
    return (spec[0], *spec[2:], spec[1])


def weights_layout(spec: Sequence[int], order: WeightsOrder) -> tuple[int, ...]:
    """An order of weights with dimension specification ``spec``."""
    return channels_last(spec) if order == "OXI" else (*spec[2:], spec[1], spec[0])


def lies_as_xio(spec: Sequence[int]) -> bool:
    """Whether an array of weights in row-major order lies in the order XIO."""
    return tuple(weights_layout(spec, "XIO")) == tuple(range(len(spec)))

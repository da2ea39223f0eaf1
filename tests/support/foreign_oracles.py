"""Transposed convolution as foreign standards define it, and its gradients, in float64 numpy.

Canonical order: x (N, C, space), w (C, M/groups, kernel), y (N, M, space). The full result, of
stride * (size - 1) + dilated kernel elements, is computed without any padding; ``begins`` elements
are cut off at its beginning, and what ``out`` has beyond its end is zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from support import oracles

Shape = tuple[int, ...]


def full_spatial(x_shape: Shape, w_shape: Shape, strides: Shape, dilation: Shape) -> Shape:
    sizes = zip(x_shape[2:], w_shape[2:], strides, dilation, strict=True)
    return tuple((n - 1) * s + (k - 1) * d + 1 for n, k, s, d in sizes)


def transposed(
    x: Any, w: Any, begins: Shape, out: Shape, *, strides: Shape, dilation: Shape, groups: int
) -> np.ndarray:
    """The result, of spatial size ``out``; it begins at ``begins`` of the full result."""
    shape = (x.shape[0], w.shape[1] * groups, *full_spatial(x.shape, w.shape, strides, dilation))
    no_pads = ((0, 0),) * len(strides)
    full = oracles.conv_dgrad(
        x, w, shape, strides=strides, padding=no_pads, dilation=dilation, groups=groups
    )
    y = np.zeros((*full.shape[:2], *out))
    inner, outer = _overlap(full.shape[2:], begins, out)
    y[inner] = full[outer]
    return y


def transposed_gradients(
    dy: Any, x: Any, w: Any, begins: Shape, *, strides: Shape, dilation: Shape, groups: int
) -> tuple[np.ndarray, np.ndarray]:
    """(dx, dw): a plain convolution of dy, placed in the frame of the full result."""
    full = np.zeros((*dy.shape[:2], *full_spatial(x.shape, w.shape, strides, dilation)))
    inner, outer = _overlap(full.shape[2:], begins, dy.shape[2:])
    full[outer] = np.asarray(dy, np.float64)[inner]
    no_pads = ((0, 0),) * len(strides)
    keywords = {"strides": strides, "padding": no_pads, "dilation": dilation, "groups": groups}
    return oracles.conv_fprop(full, w, **keywords), oracles.conv_wgrad(full, x, w.shape, **keywords)


def _overlap(full: Shape, begins: Shape, out: Shape) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The elements that the result and the full result share, in the coordinates of both."""
    inner, outer = [slice(None)] * 2, [slice(None)] * 2
    for size, begin, length in zip(full, begins, out, strict=True):
        count = max(min(size - begin, length), 0)
        inner.append(slice(0, count))
        outer.append(slice(begin, begin + count))
    return tuple(inner), tuple(outer)


def bias_gradient(dy: Any) -> np.ndarray:
    return np.asarray(dy, np.float64).sum((0, *range(2, np.ndim(dy))))

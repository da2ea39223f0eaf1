"""The right answer for a resize, in float64 with NumPy alone: one dense matrix per spatial axis."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from jax_convgrad.bench.resize_cases import ResizeCase

Array = npt.NDArray[np.float64]

_RADIUS = {"linear": 1, "cubic": 2, "lanczos3": 3}


def passes(case: ResizeCase, x: Array, dy: Array) -> dict[str, Array]:
    """The output and the input's gradient, channels last."""
    y, dx = np.asarray(x, np.float64), np.asarray(dy, np.float64)
    for axis, (n, m) in enumerate(zip(case.spatial, case.out_spatial, strict=True), 1):
        dense = matrix(n, m, case.method, case.align_corners, case.antialias)
        y = np.moveaxis(np.tensordot(dense, y, (1, axis)), 0, axis)
        dx = np.moveaxis(np.tensordot(dense, dx, (0, axis)), 0, axis)
    return {"y": y, "dx": dx}


def matrix(n: int, m: int, method: str, align_corners: bool, antialias: bool) -> Array:
    """[m, n]. Without antialias the edge is repeated; with it, what is outside is left out."""
    i = np.arange(m)
    if method == "nearest":
        return np.eye(n)[(2 * i + 1) * n // (2 * m)]
    x = i * (n - 1) / (m - 1) if align_corners else (i + 0.5) * n / m - 0.5
    stretch = max(n / m, 1.0) if antialias else 1.0
    reach = int(np.ceil(_RADIUS[method] * stretch)) + 1
    columns = np.arange(0, n) if antialias else np.arange(-reach, n + reach)
    weights = _kernel(method, np.abs(x[:, None] - columns) / stretch)
    weights /= weights.sum(1, keepdims=True)
    dense = np.zeros((m, n))
    for place, column in enumerate(np.clip(columns, 0, n - 1)):
        dense[:, column] += weights[:, place]
    return dense


def _kernel(method: str, x: Array) -> Array:
    if method == "linear":
        return np.maximum(0.0, 1.0 - x)
    if method == "cubic":
        near = 1.25 * x**3 - 2.25 * x**2 + 1
        far = -0.75 * (x**3 - 5 * x**2 + 8 * x - 4)
        return np.where(x < 1, near, np.where(x < 2, far, 0.0))
    return np.where(x < 3, np.sinc(x) * np.sinc(x / 3), 0.0)

"""Resize by definition: one dense float64 matrix per axis, built element by element.

Coordinates are rational numbers. Shares nothing with the package.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

HALF = Fraction(1, 2)
# A sum of weights that jax.image takes for zero.
NEGLIGIBLE = 1000 * 2.0**-23
RADIUS = {"linear": 1, "cubic": 2, "lanczos3": 3, "lanczos5": 5}


def coordinate(i, n, m, mode, scale=None, roi=(0, 1), translation=0):
    """Where output ``i`` of ``m`` lies among ``n`` inputs."""
    scale = Fraction(m, n) if scale is None else Fraction(scale)
    length = scale * n
    if mode == "half_pixel":
        return (i + HALF - Fraction(translation)) / scale - HALF
    if mode == "half_pixel_symmetric":
        return Fraction(n, 2) * (1 - m / length) + (i + HALF) / scale - HALF
    if mode == "pytorch_half_pixel":
        return (i + HALF) / scale - HALF if length > 1 else Fraction(0)
    if mode == "align_corners":
        return Fraction(i * (n - 1)) / (length - 1) if length != 1 else Fraction(0)
    if mode == "asymmetric":
        return i / scale
    start, end = map(Fraction, roi)
    if length > 1:
        return start * (n - 1) + i * (end - start) * (n - 1) / (length - 1)
    return HALF * (start + end) * (n - 1)


def nearest(x, mode):
    if mode == "round_prefer_floor":
        return math.ceil(x - HALF)
    if mode == "round_prefer_ceil":
        return math.floor(x + HALF)
    return math.floor(x) if mode == "floor" else math.ceil(x)


def kernel(method, x, a):
    x = abs(x)
    if method == "linear":
        return max(0.0, 1 - x)
    if method == "cubic":
        if x < 1:
            return (a + 2) * x**3 - (a + 3) * x**2 + 1
        return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0
    radius = RADIUS[method]
    if x <= 1e-3:
        return 1.0
    if x > radius:
        return 0.0
    return float(np.sinc(x) * np.sinc(x / radius))


def matrix(
    n,
    m,
    method,
    *,
    antialias=False,
    mode="half_pixel",
    nearest_mode="round_prefer_ceil",
    a=-0.5,
    exclude_outside=False,
    scale=None,
    roi=(0, 1),
    translation=0,
    beyond="extend",
):
    """(A, outside): the matrix [m, n], and which rows tf_crop_and_resize reads from outside.

    ``beyond`` says what jax.image.scale_and_translate has where the coordinate is outside: "zero"s, or the
    edge as far as the filter's "reach" and zeros behind it.
    """
    dense = np.zeros((m, n))
    outside = np.zeros(m, bool)
    ratio = Fraction(m, n) if scale is None else Fraction(scale)
    for i in range(m):
        if method.startswith("area"):
            low, high = ((k - Fraction(translation)) / ratio for k in (i, i + 1))
            if method == "area-pytorch":
                low, high = math.floor(low), math.ceil(high)
            if beyond == "zero" and not 0 <= (low + high) / 2 <= n:
                continue
            covered = min(high, n) - max(low, 0)
            for j in range(n):
                dense[i, j] = max(min(high, j + 1) - max(low, j), 0) / covered
            continue
        x = coordinate(i, n, m, mode, scale, roi, translation)
        if mode == "tf_crop_and_resize" and not 0 <= x <= n - 1:
            outside[i] = True
            continue
        if method == "nearest":
            dense[i, min(max(nearest(x, nearest_mode), 0), n - 1)] = 1
            continue
        if beyond == "zero" and not -HALF <= x <= n - HALF:
            continue
        stretch = max(1 / ratio, 1) if antialias else 1
        reach = math.ceil(RADIUS[method] * stretch) + 1
        window = range(math.floor(x) - reach, math.floor(x) + reach + 2)
        if exclude_outside:
            window = [j for j in window if 0 <= j < n]
        if beyond == "reach":
            window = [j for j in window if -RADIUS[method] <= j < n + RADIUS[method]]
        weights = [kernel(method, float((x - j) / stretch), a) for j in window]
        total = sum(weights)
        if abs(total) <= NEGLIGIBLE:
            continue
        for j, weight in zip(window, weights, strict=True):
            dense[i, min(max(j, 0), n - 1)] += weight / total
    return dense, outside


def apply(x, matrices):
    """``x`` in float64 with {axis: matrix} applied."""
    x = np.asarray(x).astype(np.float64)
    for axis, dense in matrices.items():
        x = np.moveaxis(np.tensordot(dense, x, (1, axis)), 0, axis)
    return x

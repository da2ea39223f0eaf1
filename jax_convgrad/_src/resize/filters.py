"""The interpolation filters, and the dense weights of a resize whose scale is traced.

The filters work on numpy and on JAX arrays: `bands` evaluates them in float64 on the host where all
sizes and scales are known, `weight_matrix` evaluates them in a program where they are not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

# The distance beyond which each filter is zero.
RADIUS = {"linear": 1, "cubic": 2, "lanczos3": 3, "lanczos5": 5}

# A sum of weights smaller than this counts as zero, as in jax.image.
NEGLIGIBLE = 1000.0 * float(np.finfo(np.float32).eps)

Filter = Callable[[Any], Any]


def get(method: str, cubic_coeff_a: float, xp: Any = np) -> Filter:
    """The filter of ``method`` as a function of the distance (>= 0), in the namespace ``xp``."""
    if method == "linear":
        return functools.partial(_triangle, xp)
    if method == "cubic":
        return functools.partial(_keys, xp, cubic_coeff_a)
    return functools.partial(_lanczos, xp, RADIUS[method])


def _triangle(xp: Any, x: Any) -> Any:
    return xp.maximum(0, 1 - xp.abs(x))


def _keys(xp: Any, a: float, x: Any) -> Any:
    """Keys' cubic convolution with the slope ``a`` at distance 1."""
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    return xp.where(x >= 2.0, 0.0, xp.where(x >= 1.0, far, near))


def _lanczos(xp: Any, radius: int, x: Any) -> Any:
    """sinc(x) sinc(x / radius), replaced by 1 below a distance of 1e-3, which is jax.image's rule."""
    wave = radius * xp.sin(np.pi * x) * xp.sin(np.pi * x / radius)
    safe = xp.where(x > 1e-3, np.pi**2 * x**2, 1.0)
    return xp.where(x > radius, 0.0, xp.where(x > 1e-3, wave / safe, 1.0))


def normalize(weights: Any, axis: int, xp: Any = np) -> Any:
    """Weights divided by their sum along ``axis``; zeros where the sum is almost zero."""
    total = xp.sum(weights, axis=axis, keepdims=True)
    safe = xp.where(total != 0, total, 1)
    return xp.where(xp.abs(total) > NEGLIGIBLE, weights / safe, 0)


def weight_matrix(
    n: int,
    m: int,
    scale: Array,
    translation: Array,
    *,
    method: str,
    cubic_coeff_a: float,
    antialias: bool,
    reach: int | None,
) -> Array:
    """Dense weights [n, m] of `scale_and_translate` along one axis, for a traced scale.

    Differentiable in ``scale`` and ``translation``, in their dtype. If ``reach`` is None, weights outside
    the image are left out; a number says how far beyond the image the edge pixels are repeated.
    """
    dtype = jnp.result_type(scale, translation)
    inverse = 1.0 / scale
    outputs = jnp.arange(m, dtype=dtype)[None, :]
    sample = (outputs + 0.5) * inverse - translation * inverse - 0.5
    if method == "area":
        left = outputs * inverse - translation * inverse
        inputs = jnp.arange(n, dtype=dtype)[:, None]
        overlap = jnp.minimum(left + inverse, inputs + 1.0) - jnp.maximum(left, inputs)
        weights = jnp.maximum(0.0, overlap)
    else:
        stretch = jnp.maximum(inverse, 1.0) if antialias else 1.0
        beyond = 0 if reach is None else reach
        inputs = jnp.arange(-beyond, n + beyond, dtype=dtype)[:, None]
        weights = get(method, cubic_coeff_a, jnp)(jnp.abs(sample - inputs) / stretch)
        if beyond:
            low, inside, high = jnp.split(weights, (beyond, beyond + n))
            weights = inside.at[0].add(low.sum(0)).at[n - 1].add(high.sum(0))
    weights = normalize(weights, 0, jnp)
    if reach is None:
        weights = jnp.where((sample >= -0.5) & (sample <= n - 0.5), weights, 0)
    return weights

"""Layers of lax whose gradients this package computes faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest
from jax import lax

NHWC = ("NHWC", "HWIO", "NHWC")


def strided(x: Any, w: Any) -> jax.Array:
    return lax.conv_general_dilated(x, w, (2, 1), "SAME", dimension_numbers=NHWC)


def depthwise(x: Any, w: Any) -> jax.Array:
    return lax.conv_general_dilated(
        x, w, (1, 1), ((1, 0), (2, 1)), None, (1, 2), NHWC, feature_group_count=x.shape[-1]
    )


def transposed(x: Any, w: Any) -> jax.Array:
    return lax.conv_transpose(x, w, (2, 2), "SAME")


def three(x: Any, w: Any) -> jax.Array:
    return lax.conv_transpose(x, w, (2, 1, 2), "VALID")


# lax's layer, x, w
LAYERS: dict[str, tuple[Callable[..., jax.Array], tuple[int, ...], tuple[int, ...]]] = {
    "strided": (strided, (2, 6, 5, 12), (3, 2, 12, 12)),
    "depthwise": (depthwise, (2, 5, 6, 4), (3, 2, 1, 4)),
    "transposed": (transposed, (2, 3, 2, 16), (4, 4, 16, 16)),
    "three": (three, (1, 3, 2, 3, 4), (2, 3, 3, 4, 3)),
}
per_layer = pytest.mark.parametrize("name", list(LAYERS))

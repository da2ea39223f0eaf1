"""Convolutions whose windows lie side by side, as matrix products.

Such a layer cuts images into patches and multiplies each with one matrix: the patch embedding of a vision
transformer, the stem of a ConvNeXt; transposed, it puts patches together to an image. To cut moves every
element of x once. Libraries' kernels for convolutions are made for windows that share what they read, and
with few channels and large windows they take a multiple of that.

The three operators are those of `reference`, for every geometry of which `ConvGeometry.tiles` holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
from jax import Array

from jax_convgrad._src.conv.geometry import ConvConfig
from jax_convgrad._src.conv.precision import gemm_precision
from jax_convgrad._src.shapes import Shape

# Names for einsum, beside n, c and o: which patch along each spatial axis, and which place in it.
_PATCH, _PLACE = "def", "uvw"


def conv_fprop(
    x: Array, w: Array, *, config: ConvConfig, precision: Any, preferred_element_type: Any
) -> Array:
    """Each patch times the weights."""
    x_axes, w_axes, y_axes = _axes(config)
    return jnp.einsum(
        f"{x_axes},{w_axes}->{y_axes}",
        _cut(x, config),
        w,
        precision=gemm_precision(precision),
        preferred_element_type=preferred_element_type,
    )


def conv_dgrad(
    dy: Array,
    w: Array,
    *,
    x_shape: Shape,
    config: ConvConfig,
    precision: Any,
    preferred_element_type: Any,
) -> Array:
    """Each element of dy times the weights is a patch."""
    x_axes, w_axes, y_axes = _axes(config)
    patches = jnp.einsum(
        f"{y_axes},{w_axes}->{x_axes}",
        dy,
        w,
        precision=gemm_precision(precision),
        preferred_element_type=preferred_element_type,
    )
    return patches.reshape(x_shape)


def conv_wgrad(
    x: Array, dy: Array, *, config: ConvConfig, precision: Any, preferred_element_type: Any
) -> Array:
    """The sum over all patches, each times its element of dy."""
    x_axes, w_axes, y_axes = _axes(config)
    return jnp.einsum(
        f"{x_axes},{y_axes}->{w_axes}",
        _cut(x, config),
        dy,
        precision=gemm_precision(precision),
        preferred_element_type=preferred_element_type,
    )


def _cut(x: Array, config: ConvConfig) -> Array:
    """x with each spatial axis as two, the patch and the place in it."""
    spatial = config.dimension_numbers.lhs_spec[2:]
    sizes: list[tuple[int, ...]] = [(size,) for size in x.shape]
    for axis, size in zip(spatial, config.strides, strict=True):
        sizes[axis] = (x.shape[axis] // size, size)
    return x.reshape(sum(sizes, ()))


def _axes(config: ConvConfig) -> tuple[str, str, str]:
    """The axes of x once it is cut, of w and of y."""
    rank = config.spatial_rank
    patch, place = _PATCH[:rank], _PLACE[:rank]
    x_spec, w_spec, y_spec = config.dimension_numbers
    return (
        _ordered(x_spec, ("n", "c", *map("".join, zip(patch, place, strict=True)))),
        _ordered(w_spec, ("o", "c", *place)),
        _ordered(y_spec, ("n", "o", *patch)),
    )


def _ordered(spec: tuple[int, ...], names: Iterable[str]) -> str:
    """Names of batch or output channels, channels and spatial axes, as the array has its axes."""
    return "".join(name for _, name in sorted(zip(spec, names, strict=True)))

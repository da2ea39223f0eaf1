"""Convolutions with non-overlapping windows, as matrix products.

Such a layer cuts images into patches and multiplies each with one matrix: the patch embedding of a vision
transformer, the stem of a ConvNeXt. Transposed, it assembles an image from patches. Cutting moves every
element of x once. The convolution kernels of libraries are made for overlapping windows, and are several
times slower where channels are few and windows are large.

It serves every geometry that `ConvGeometry.has_nonoverlapping_windows` holds for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import jax.numpy as jnp
from jax import Array

from jax_convgrad._src.conv.geometry import ConvConfig
from jax_convgrad._src.conv.precision import gemm_precision
from jax_convgrad._src.dispatch.problem import ConvProblem

# einsum's letters beside n, c and o: the patch along each spatial axis, and the position in it.
_PATCH, _PLACE = "def", "uvw"


def emit(problem: ConvProblem, first: Array, second: Array) -> Array:
    """The operator as one product: patches times weights, dy times weights, or patches times dy."""
    config = problem.geometry.config
    axes = dict(zip("xwy", _axes(config), strict=True))
    one, other = problem.operand_roles
    product = jnp.einsum(
        f"{axes[one]},{axes[other]}->{axes[problem.result_role]}",
        _cut(first, config) if one == "x" else first,
        second,
        precision=gemm_precision(problem.precision),
        preferred_element_type=problem.result_dtype,
    )
    # An input gradient comes out as patches.
    return product.reshape(problem.result_shape)


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


def _ordered(spec: Sequence[int], names: Iterable[str]) -> str:
    """Names of batch or output channels, channels and spatial axes, as the array has its axes."""
    return "".join(name for _, name in sorted(zip(spec, names, strict=True)))

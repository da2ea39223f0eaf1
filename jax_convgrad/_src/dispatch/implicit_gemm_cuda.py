"""What the implicit GEMM CUDA kernels are fast at: 8 to 64 channels without strides on a Hopper device.

In 16 bits, and in float32 as TF32. The kernels say it themselves in C++, implicit_gemm/plan.h. The rules need
it where no CUDA module is installed. A test holds the two together, except for the limits of a device's
memory, which are left out here: the search then finds no such engine, and takes another.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jax_convgrad._src.conv.geometry import ConvGeometry

MIN_CHANNELS, MAX_CHANNELS = 8, 64
MAX_KERNEL = 64  # taps along an axis
# Of floats, the weights of 16 output channels, which a block of fprop or dgrad has at least.
MAX_FLOAT_WEIGHTS = 32 * 1024
# Of 16 bits: planes that a step reads, of fprop or dgrad, and taps of a weight gradient.
MAX_PLANES, MAX_WGRAD_TAPS = 15, 512
MAX_BOX = 256  # pixels along an axis of what is copied at once
# Rows and columns of a tile of fprop or dgrad, and the least columns of one of a weight gradient.
_TILE, _WGRAD_COLUMNS = 8, 16
_HALVES = {"float16", "bfloat16"}


def has_implicit_gemm(operator: str, geometry: ConvGeometry, dtype: Any, allow_tf32: bool) -> bool:
    """Whether implicit GEMM kernels compute an operator in ``dtype`` and are likely to be the fastest."""
    config, floats = geometry.config, str(np.dtype(dtype)) == "float32" and allow_tf32
    if config.groups != 1 or math.prod(config.strides) != 1:
        return False
    if not floats and str(np.dtype(dtype)) not in _HALVES:
        return False
    channels = (geometry.in_channels, geometry.out_channels)
    sizes = (*geometry.in_spatial, *geometry.out_spatial, *geometry.kernel, *channels)
    if not all(isinstance(n, int | np.integer) for n in sizes):
        return False
    if not all(MIN_CHANNELS <= n <= MAX_CHANNELS and n % 8 == 0 for n in channels):
        return False
    taps = math.prod(geometry.kernel)
    if floats and operator != "conv_wgrad":
        depth = channels[0 if operator == "conv_fprop" else 1]
        if 16 * taps * depth > MAX_FLOAT_WEIGHTS:
            return False
    # Of one tap it is a plain product of matrices, which libraries have.
    if taps == 1 or max(geometry.kernel) > MAX_KERNEL:
        return False
    return floats or _is_within_limits(operator, geometry)


def _is_within_limits(operator: str, geometry: ConvGeometry) -> bool:
    """Whether rings of planes and boxes of pixels, in 16 bits, are no larger than the kernels name them."""
    absent = 3 - geometry.spatial_rank
    kernel = (1,) * absent + tuple(geometry.kernel)
    dilation = (1,) * absent + tuple(geometry.config.dilation)
    reach = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    # Of z. Handlers get x without what negative padding leaves out.
    size, result, low = 1, 1, 0
    if not absent:
        pair, result = geometry.config.padding[0], geometry.out_spatial[0]
        size, low = geometry.in_spatial[0] + sum(min(p, 0) for p in pair), max(pair[0], 0)
    if operator == "conv_wgrad":
        has_z = (kernel[0], size, result, low) != (1, 1, 1, 0)
        fits_rows = not has_z or 1 + reach[1] <= MAX_BOX
        fits = fits_rows and _WGRAD_COLUMNS + reach[2] <= MAX_BOX
        return fits and math.prod(kernel) <= MAX_WGRAD_TAPS
    fits = reach[1] == 0 or _TILE + max(reach[1:]) <= MAX_BOX
    # Without z, blocks may also walk along y: their planes are rows, which come in several boxes.
    walks_rows = kernel[0] == 1 and low == 0 and size == result
    return (kernel[0] <= MAX_PLANES and fits) or (walks_rows and kernel[1] <= MAX_PLANES)

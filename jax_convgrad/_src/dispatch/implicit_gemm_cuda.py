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
    return taps > 1 and max(geometry.kernel) <= MAX_KERNEL

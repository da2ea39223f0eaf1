"""What the implicit GEMM CUDA kernels serve: convolutions of 8 to 64 channels, without strides, in 16 bits.

The kernels themselves say it in C++ (cpp/cuda/kernels/implicit_gemm/plan.h); the rules need it where no CUDA
module is installed. A test holds the two together, except for the limits of a device's memory, which are left
out here: the search then finds no such engine, and takes another.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jax_convgrad._src.conv.geometry import ConvGeometry

MIN_CHANNELS, MAX_CHANNELS = 8, 64
MAX_KERNEL = 64  # taps along an axis
_HALVES = {"float16", "bfloat16"}


def has_implicit_gemm(operator: str, geometry: ConvGeometry, dtype: Any) -> bool:
    """Whether implicit GEMM kernels compute an operator in ``dtype`` and are likely to be the fastest."""
    config = geometry.config
    if config.groups != 1 or str(np.dtype(dtype)) not in _HALVES or math.prod(config.strides) != 1:
        return False
    channels = (geometry.in_channels, geometry.out_channels)
    sizes = (*geometry.in_spatial, *geometry.out_spatial, *geometry.kernel, *channels)
    if not all(isinstance(n, int | np.integer) for n in sizes):
        return False
    fits = all(MIN_CHANNELS <= n <= MAX_CHANNELS and n % 8 == 0 for n in channels)
    # Of one tap it is a plain product of matrices, which libraries have.
    return fits and math.prod(geometry.kernel) > 1 and max(geometry.kernel) <= MAX_KERNEL

"""What the thin CUDA kernels serve: convolutions that memory bounds, without groups, in 16 bits or as TF32.

The kernels themselves say it in C++ (cpp/cuda/kernels/thin/plan.h has the table); the rules need it where no
CUDA module is installed. A test holds the two together, except for the limits of a device's memory, which are
left out here: the search then finds no such engine, and takes another.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jax_convgrad._src.conv.geometry import ConvGeometry

# Channels of a thin side: few, or with one tap some more that libraries have to pad.
MAX_CHANNELS, MAX_PADDED_CHANNELS = 16, 32
MAX_COLUMNS = 32  # channels of a thin result times taps along the innermost axis
MAX_PERIOD = 256  # channels of a thin dX times the innermost stride
MAX_KERNEL = 64  # taps along an axis
# Weights of windows side by side, up to which memory bounds their product: of one tap, and on Hopper of more.
MAX_BOUND_POINTWISE, MAX_BOUND_WEIGHTS = 256 * 128, 512 * 128
MAX_FLOATS_SIDE_BY_SIDE = 256  # elements of such a window
MAX_STRIDE = 16  # product of the strides, from which few_outputs is slow
_HALVES = {"float16", "bfloat16"}


def thin_family(operator: str, geometry: ConvGeometry, dtype: Any, tf32: bool = True) -> str | None:
    """The family of thin kernels that computes an operator in ``dtype``, None if there is none.

    ``tf32`` says whether float32 may be rounded to TF32. "windows": windows side by side, in 16 bits.
    "image": the side that each window reads is thin. "few_outputs": the result, or for a weight gradient
    y, is thin. Of two that serve, the answer is what the search is offered first.
    """
    config = geometry.config
    in_halves = str(np.dtype(dtype)) in _HALVES
    if config.groups != 1 or not (in_halves or (np.dtype(dtype) == np.float32 and tf32)):
        return None
    y, kernel = geometry.out_spatial, geometry.kernel
    few, many = geometry.in_channels, geometry.out_channels
    sizes = (*geometry.in_spatial, *y, *kernel, few, many)
    if not all(isinstance(n, int | np.integer) for n in sizes) or max(kernel) > MAX_KERNEL:
        return None
    # Handlers get x without what negative padding leaves out.
    pairs = zip(geometry.in_spatial, config.padding, strict=True)
    x = [n + sum(min(p, 0) for p in pair) for n, pair in pairs]
    if in_halves and _has_windows(operator, geometry, x):
        return "windows"
    if operator == "conv_wgrad":
        # With stride 1, y's gradient may be the image: the one with fewer channels is.
        has_y = math.prod(config.strides) == 1 and _is_image(geometry, many)
        if _is_image(geometry, few):
            return "few_outputs" if has_y and many < few else "image"
        return "few_outputs" if has_y else None
    has_few, has_image = _has_few_outputs(operator, geometry), _has_image(operator, geometry)
    if has_few and has_image:  # of two thin sides, the thinner one says how
        unstrided = few >= many and math.prod(config.strides) == 1
        return "few_outputs" if (few < many if operator == "conv_dgrad" else unstrided) else "image"
    return "few_outputs" if has_few else "image" if has_image else None


def leads(operator: str, geometry: ConvGeometry, dtype: Any, tf32: bool = True) -> bool:
    """Whether there is a thin kernel that is likely to be faster than cuDNN: ThinPlan::IsFast on Hopper."""
    family = thin_family(operator, geometry, dtype, tf32)
    taps = math.prod(geometry.kernel)
    stride = math.prod(geometry.config.strides)
    if family == "windows":
        window = taps * geometry.in_channels
        most = MAX_BOUND_POINTWISE if taps == 1 else MAX_BOUND_WEIGHTS
        return _is_thin(geometry, geometry.in_channels) or window * geometry.out_channels <= most
    if family == "image":
        # Of floats, the weights of large windows side by side take all shared memory.
        channels = geometry.out_channels if operator == "conv_dgrad" else geometry.in_channels
        is_large = taps * channels > MAX_FLOATS_SIDE_BY_SIDE
        side_by_side = geometry.kernel == geometry.config.strides
        return not (side_by_side and is_large and np.dtype(dtype).itemsize == 4)
    if family == "few_outputs" and operator == "conv_fprop":
        return stride == 1
    if family == "few_outputs" and operator == "conv_dgrad":
        return stride < MAX_STRIDE
    return family is not None


def _has_image(operator: str, geometry: ConvGeometry) -> bool:
    """Of fprop and dgrad: with stride 1, y's gradient is an image too, whose windows are the pixels of x."""
    config = geometry.config
    if operator == "conv_fprop":
        return _is_image(geometry, geometry.in_channels)
    return math.prod(config.strides) == 1 and _is_image(geometry, geometry.out_channels)


def _has_few_outputs(operator: str, geometry: ConvGeometry) -> bool:
    """Of fprop and dgrad."""
    config = geometry.config
    few, many = geometry.in_channels, geometry.out_channels
    if operator == "conv_fprop":
        few, many = many, few
    elif not all(map(_has_steps, config.strides, config.dilation)):
        return False
    period = few * config.strides[-1] if operator == "conv_dgrad" else few
    fits = few * geometry.kernel[-1] <= MAX_COLUMNS and period <= MAX_PERIOD
    return _is_thin(geometry, few) and fits and many % 8 == 0


def _has_steps(stride: int, dilation: int) -> bool:
    """Whether dX's kernel finds the taps of a position: it tries all steps of a dilated window."""
    common = math.gcd(stride, dilation)
    return dilation == common or stride // common <= MAX_KERNEL


def _has_windows(operator: str, geometry: ConvGeometry, x: list[int]) -> bool:
    """Whether windows lie side by side, in rows of an even number of elements."""
    config = geometry.config
    axes = zip(geometry.kernel, config.strides, config.dilation, config.padding, strict=True)
    beside = all(
        kernel == stride and dilation == 1 and low <= 0
        for kernel, stride, dilation, (low, _) in axes
    )
    read = [y * kernel for y, kernel in zip(geometry.out_spatial, geometry.kernel, strict=True)]
    covers = all(
        r == n if operator == "conv_dgrad" else r <= n for r, n in zip(read, x, strict=True)
    )
    channels = geometry.in_channels
    even = geometry.kernel[-1] * channels % 2 == 0 and x[-1] * channels % 2 == 0
    return beside and covers and even and geometry.out_channels % 8 == 0


def _is_thin(geometry: ConvGeometry, channels: int) -> bool:
    pads = channels <= MAX_PADDED_CHANNELS and channels % 8 != 0
    return channels <= MAX_CHANNELS or (pads and math.prod(geometry.kernel) == 1)


def _is_image(geometry: ConvGeometry, channels: int) -> bool:
    """Whether an array of ``channels`` can be read as an image."""
    return _is_thin(geometry, channels) and geometry.config.dilation[-1] == 1

"""The features of a problem that the rules look at: plain values, each computed once.

Symbolic sizes, which `jax.export` makes, are None: a condition on a size holds for them only if it says None.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jax_convgrad._src.conv.geometry import ConvGeometry
from jax_convgrad._src.conv.layouts import lies_as_xio
from jax_convgrad._src.conv.precision import allows_tf32, is_strict
from jax_convgrad._src.dispatch.implicit_gemm_cuda import has_implicit_gemm
from jax_convgrad._src.dispatch.thin_cuda import leads, thin_family
from jax_convgrad._src.shapes import known_below

# (operator, in_channels, out_channels, kernel, strides) -> whether the CPU's thin kernels compute it.
IsThin = Callable[[str, int, int, tuple[int, ...], tuple[int, ...]], bool]

MAX_PIXELS = 2**40  # of the largest array that a device holds


@dataclasses.dataclass(frozen=True)
class ConvFeatures:
    """A convolution's operator as the rules see it. The geometry is that of x -> y for all three.

    Attributes:
      operator: "conv_fprop", "conv_dgrad" or "conv_wgrad".
      dtype: of the operands.
      result_dtype: of the result.
      widens: the result has another dtype than the operands.
      allows_tf32: float32 operands may be rounded to TF32.
      spatial_rank: the number of spatial axes.
      groups: `feature_group_count`.
      is_dense: there is one group.
      is_depthwise: there are several groups of one input channel each.
      multiplier: output channels a group.
      in_channels: of x.
      out_channels: of y.
      known_channels: the channels and the window have no symbolic sizes.
      has_odd_channels: the channels of x or y are not a multiple of 8, a tensor core's row of 16-bit
        elements.
      kernel: the window's sizes.
      taps: the window's number of elements.
      weights: the number of w's elements.
      result_pixels: those of y, of all images, which a weight gradient sums over.
      inner_kernel: the window's size along the innermost spatial axis.
      inner_stride: the stride along the innermost spatial axis.
      inner_overlap: how many windows share an element along the innermost spatial axis, at most.
      is_strided: a stride is above 1.
      stride_product: the product of all strides.
      is_dilated: a dilation of the window is above 1.
      is_cropped: the padding is negative somewhere.
      has_uneven_padding: an axis has different padding at its two ends.
      has_nonoverlapping_windows: each element of x is in exactly one window.
      is_beyond_memory: no memory holds x with its padding, or dy with the zeros of the strides.
      is_thin: the thin kernels of this CPU compute it: float32, dense, one or two spatial axes.
      thin_family: of the thin CUDA kernels, which serve 16 bits and TF32: "windows", "image" or
        "few_outputs"; None if none of them computes it.
      has_implicit_gemm: implicit GEMM kernels compute it fast on a Hopper device, in 16 bits or TF32.
    """

    operator: str
    dtype: str
    result_dtype: str
    widens: bool
    allows_tf32: bool
    spatial_rank: int
    groups: int
    is_dense: bool
    is_depthwise: bool
    multiplier: int | None
    in_channels: int | None
    out_channels: int | None
    known_channels: bool
    has_odd_channels: bool
    kernel: tuple[int, ...] | None
    taps: int | None
    weights: int | None
    result_pixels: int | None
    inner_kernel: int | None
    inner_stride: int
    inner_overlap: int | None
    is_strided: bool
    stride_product: int
    is_dilated: bool
    is_cropped: bool
    has_uneven_padding: bool
    has_nonoverlapping_windows: bool
    is_beyond_memory: bool
    is_thin: bool
    thin_family: str | None
    has_implicit_gemm: bool


@dataclasses.dataclass(frozen=True)
class BackwardFeatures:
    """A backward pass that a kernel can compute in one call, as the rules see it: depthwise, known sizes.

    Attributes:
      dtype: of all arrays.
      wants_both: both dx and dw are wanted.
      channels: of x and y.
      taps: the window's number of elements.
      spatial_rank: the number of spatial axes.
      is_strided: a stride is above 1.
      inner_size: of x along the innermost spatial axis.
      multiplies_bfloat16: oneDNN multiplies bfloat16 on this CPU without widening it first.
    """

    dtype: str
    wants_both: bool
    channels: int
    taps: int
    spatial_rank: int
    is_strided: bool
    inner_size: int
    multiplies_bfloat16: bool


@dataclasses.dataclass(frozen=True)
class PreparationFeatures:
    """A handler's call as the rules of what is done to its operands see it.

    Attributes:
      operator: "conv_fprop", "conv_dgrad" or "conv_wgrad".
      dtype: of the operands.
      widens: the result has another dtype than the operands.
      spatial_rank: the number of spatial axes.
      is_strict: the operands are float32 and must not be rounded to TF32.
      multiplier: filters a channel of a depthwise convolution; None of another.
      in_channels: of x; None if they are symbolic.
      is_strided: a stride is above 1.
      is_dilated: a dilation of the window is above 1.
      taps: the window's number of elements; None if it is symbolic.
      has_uneven_padding: an axis has different padding at its two ends.
      sums_pairs: each group's channels that are summed over are of an even number; None if it is symbolic.
        A weight gradient sums over no channels: True.
      has_xio_weights: the weights lie in the order kernel, input channel, output channel.
      thin_leads: a thin CUDA kernel is likely to be the fastest.
      has_implicit_gemm: as ConvFeatures has it.
      has_bfloat16: oneDNN has kernels for bfloat16 on this CPU.
      multiplies_bfloat16: oneDNN multiplies bfloat16 on this CPU without widening it first.
    """

    operator: str
    dtype: str
    widens: bool
    spatial_rank: int
    is_strict: bool
    multiplier: int | None
    in_channels: int | None
    is_strided: bool
    is_dilated: bool
    taps: int | None
    has_uneven_padding: bool
    sums_pairs: bool | None
    has_xio_weights: bool
    thin_leads: bool
    has_implicit_gemm: bool
    has_bfloat16: bool
    multiplies_bfloat16: bool


@dataclasses.dataclass(frozen=True)
class ResampleFeatures:
    """A resample as the rules see it.

    Attributes:
      dtype: of the array.
      copies: the result consists of copies of elements.
      grows: no axis shrinks.
    """

    dtype: str
    copies: bool
    grows: bool


def conv_features(
    operator: str,
    geometry: ConvGeometry,
    dtype: Any,
    result_dtype: Any,
    precision: Any = None,
    is_thin: IsThin | None = None,
) -> ConvFeatures:
    """The features of one operator.

    ``geometry`` is the geometry that is computed, after `subsample` has taken out the common factor.
    ``precision`` is lax's.
    ``is_thin`` is the CPU module's answer for its thin kernels; without it no problem is thin.
    """
    config = geometry.config
    dtype, result_dtype = str(np.dtype(dtype)), str(np.dtype(result_dtype))
    in_channels, out_channels = _known(geometry.in_channels), _known(geometry.out_channels)
    kernel = tuple(geometry.kernel) if all(map(_is_known, geometry.kernel)) else None
    dense = config.groups == 1
    known = thin = odd = False
    if in_channels is not None and out_channels is not None and kernel is not None:
        known, odd = True, bool(in_channels % 8 or out_channels % 8)
        may_be_thin = dense and dtype == result_dtype == "float32" and config.spatial_rank <= 2
        if is_thin is not None and may_be_thin:
            thin = is_thin(operator, in_channels, out_channels, kernel, config.strides)
    return ConvFeatures(
        operator=operator,
        dtype=dtype,
        result_dtype=result_dtype,
        widens=result_dtype != dtype,
        allows_tf32=allows_tf32(precision),
        spatial_rank=config.spatial_rank,
        groups=config.groups,
        is_dense=dense,
        is_depthwise=not dense and config.groups == in_channels,
        multiplier=None if out_channels is None else out_channels // config.groups,
        in_channels=in_channels,
        out_channels=out_channels,
        known_channels=known,
        has_odd_channels=odd,
        kernel=kernel,
        taps=None if kernel is None else math.prod(kernel),
        weights=_product(geometry.w_shape),
        result_pixels=_product((geometry.batch, *geometry.out_spatial)),
        inner_kernel=None if kernel is None else kernel[-1],
        inner_stride=config.strides[-1],
        inner_overlap=None if kernel is None else -(-kernel[-1] // config.strides[-1]),
        is_strided=any(s > 1 for s in config.strides),
        stride_product=math.prod(config.strides),
        is_dilated=any(d > 1 for d in config.dilation),
        is_cropped=any(known_below(n, 0) for pair in config.padding for n in pair),
        has_uneven_padding=any(low != high for low, high in config.padding),
        has_nonoverlapping_windows=geometry.has_nonoverlapping_windows,
        is_beyond_memory=_is_beyond_memory(geometry),
        is_thin=thin,
        thin_family=(
            thin_family(operator, geometry, dtype, allows_tf32(precision))
            if result_dtype == dtype
            else None
        ),
        has_implicit_gemm=(
            result_dtype == dtype
            and has_implicit_gemm(operator, geometry, dtype, allows_tf32(precision))
        ),
    )


def backward_features(
    wanted: tuple[str, ...], geometry: ConvGeometry, dtype: Any, multiplies_bfloat16: bool
) -> BackwardFeatures:
    """The features of a backward pass of known sizes that computes the ``wanted`` gradients."""
    config = geometry.config
    return BackwardFeatures(
        dtype=str(np.dtype(dtype)),
        wants_both={"x", "w"} <= set(wanted),
        channels=geometry.in_channels,
        taps=math.prod(geometry.kernel),
        spatial_rank=config.spatial_rank,
        is_strided=any(s > 1 for s in config.strides),
        inner_size=geometry.in_spatial[-1],
        multiplies_bfloat16=multiplies_bfloat16,
    )


def preparation_features(
    operator: str,
    geometry: ConvGeometry,
    dtype: Any,
    result_dtype: Any,
    precision: Any,
    has_bfloat16: bool,
    multiplies_bfloat16: bool,
) -> PreparationFeatures:
    """The features of a handler's call of one operator on a ``geometry``."""
    config = geometry.config
    in_channels, out_channels = _known(geometry.in_channels), _known(geometry.out_channels)
    summed = {"conv_fprop": in_channels, "conv_dgrad": out_channels, "conv_wgrad": 0}[operator]
    return PreparationFeatures(
        operator=operator,
        dtype=str(np.dtype(dtype)),
        widens=np.dtype(result_dtype) != np.dtype(dtype),
        spatial_rank=config.spatial_rank,
        is_strict=is_strict(dtype, precision),
        multiplier=(
            out_channels // config.groups
            if out_channels is not None and 1 < config.groups == in_channels
            else None
        ),
        in_channels=in_channels,
        is_strided=any(s > 1 for s in config.strides),
        is_dilated=any(d > 1 for d in config.dilation),
        taps=math.prod(geometry.kernel) if all(map(_is_known, geometry.kernel)) else None,
        has_uneven_padding=any(low != high for low, high in config.padding),
        sums_pairs=None if summed is None else summed // config.groups % 2 == 0,
        has_xio_weights=lies_as_xio(config.dimension_numbers.rhs_spec),
        thin_leads=leads(operator, geometry, dtype, allows_tf32(precision)),
        has_implicit_gemm=has_implicit_gemm(operator, geometry, dtype, allows_tf32(precision)),
        has_bfloat16=has_bfloat16,
        multiplies_bfloat16=multiplies_bfloat16,
    )


def resample_features(dtype: Any, copies: bool, grows: bool) -> ResampleFeatures:
    """The features of a resample, on any platform."""
    return ResampleFeatures(str(np.dtype(dtype)), copies, grows)


def _is_known(size: Any) -> bool:
    return isinstance(size, int | np.integer)


def _product(sizes: Sequence[Any]) -> int | None:
    return math.prod(sizes) if all(map(_is_known, sizes)) else None


def _known(size: Any) -> int | None:
    return size if _is_known(size) else None


def _is_beyond_memory(geometry: ConvGeometry) -> bool:
    """XLA does not compile a program with such an array once its size overflows."""
    config = geometry.config
    axes = list(
        zip(geometry.in_spatial, geometry.out_spatial, config.strides, config.padding, strict=True)
    )
    if not all(_is_known(n) for x, y, _, pair in axes for n in (x, y, *pair)):
        return False
    spans = [
        max(x + max(low, 0) + max(high, 0), (y - 1) * stride + 1)
        for x, y, stride, (low, high) in axes
    ]
    return math.prod(spans) > MAX_PIXELS

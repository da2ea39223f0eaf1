"""Who does which problem: a pure function, with the measurement behind every row.

Routes: "onednn" and "cudnn" (the handlers on CPU and CUDA), "xla" (the plain lax op, where XLA is at its
best and can fuse), "matmul" (`patches`: a matrix product, where windows lie side by side) and "swap" (pure
JAX in its role-swapped form, which is also where a problem goes that no handler of its platform serves).
A resample goes to "native", the platform's own kernel, or to "xla", the forms in `resample_reference`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from jax_convgrad._src.conv.geometry import ConvGeometry
from jax_convgrad._src.conv.precision import allows_tf32

# Where each route of the handlers is.
PLATFORMS = {"onednn": "cpu", "cudnn": "cuda"}
HANDLER_ROUTES = frozenset(PLATFORMS)
MATMUL = "matmul"
NATIVE = "native"

_forced: str | None = None


class Route(NamedTuple):
    """A route's name and why it was chosen."""

    name: str
    reason: str


# Beside the rows: what XLA:CPU makes of lax's own grouped weight gradients.
BATCH_GROUPS_ON_CPU = "XLA:CPU runs batch_group_count 20 to 400 times slower than feature groups"
UNKNOWN = "channels or a window of symbolic size: a handler serves all of them"
OPERATIONS_ONLY = Route(
    "xla",
    "divided by XLA inside shard_map over other axes (or without Shardy): it would gather a call's operands",
)


def choose(
    platform: str | None,
    operator: str,
    geometry: ConvGeometry,
    dtype: Any,
    result_dtype: Any,
    precision: Any = None,
) -> Route:
    """The route of one operator ("conv_fprop", "conv_dgrad", "conv_wgrad") on one platform.

    ``geometry`` is what is computed, after `subsample` has taken out what stride and dilation share.

    ``platform`` is JAX's name for it, None where a program is lowered for no platform in particular;
    ``precision`` is lax's.
    """
    if geometry.is_empty:
        return Route("xla", "nothing to compute: zeros")
    if _forced in PLATFORMS:
        if PLATFORMS[_forced] == platform and result_dtype == dtype:
            return Route(_forced, "forced")
    elif _forced == MATMUL:
        if geometry.has_nonoverlapping_windows:
            return Route(MATMUL, "forced")
    elif _forced not in (None, NATIVE):
        return Route(_forced, "forced")
    if platform == "cpu":
        return _cpu(operator, geometry, str(dtype), str(result_dtype))
    if platform == "cuda":
        return _cuda(operator, geometry, str(dtype), str(result_dtype), precision)
    return fallback(platform)


def choose_resample(platform: str | None, dtype: Any, copies: bool, grows: bool) -> Route:
    """The route of a resample on one platform, None as in `choose`.

    ``copies``: y has nothing but copies of x's elements.
    ``grows``: no axis shrinks.

    Forced by "native", by a convolution handlers' route (the kernel of its platform), by "xla" and by
    "swap" (the pure-JAX forms).
    """
    if _forced in ("xla", "swap"):
        return Route("xla", "forced")
    if platform not in ("cpu", "cuda"):
        return Route("xla", "no kernel for this platform")
    if PLATFORMS.get(_forced or "", platform) != platform:
        return Route("xla", "forced for another platform")
    if copies and _forced in (None, MATMUL):
        if platform == "cpu":
            return Route(
                "xla",
                "copies, which XLA:CPU does faster: nearest 2x f32 0.73 ms by the kernel, 0.40 by XLA, "
                "bf16 0.88 and 0.40; half f32 0.17 and 0.10",
            )
        if grows and dtype == "float32":
            return Route(
                "xla",
                "copies, which XLA fuses: nearest2x f32 123 us by the kernel, 115 by XLA, channels first 129 "
                "and 117; bf16 64 and 81",
            )
    return Route(NATIVE, "one pass over memory for all axes")


def is_lax_form(name: str, operator: str, geometry: ConvGeometry, swapped: bool) -> bool:
    """Whether a route would compute an equation of lax's in the form in which lax has it already.

    ``swapped`` says that the equation has the operator's operands the other way round: lax then dilates
    its lhs, or has a window as large as an image, where the routes' own forms do not.
    """
    if name in HANDLER_ROUTES or name == MATMUL or swapped:
        return False
    # "swap" has weight gradients in feature groups, lax in groups of the batch.
    return name == "xla" or operator != "conv_wgrad" or geometry.config.groups == 1


@contextlib.contextmanager
def force(name: str | None) -> Iterator[None]:
    """One route for every problem lowered inside, for tests and for measuring the rows below.

    A handlers' route leaves out other platforms, and problems whose result is wider than the operands;
    "matmul" all that `ConvGeometry.tiles` does not hold of.
    None is no route in particular, whatever was forced outside.
    """
    global _forced
    previous, _forced = _forced, name
    try:
        yield
    finally:
        _forced = previous


def forced() -> str | None:
    """The name that `force` was called with, None outside of it."""
    return _forced


def fallback(platform: str | None) -> Route:
    """Where a problem goes when its platform's handlers are not there."""
    if platform == "cpu":
        return Route("swap", f"no handler; {BATCH_GROUPS_ON_CPU}")
    return Route("xla", "no handler; XLA's own grouped weight gradient is at its best here")


def _cpu(operator: str, geometry: ConvGeometry, dtype: str, result_dtype: str) -> Route:
    """Rows measured by benchmarks/survey_cpu.py, its output in benchmarks/cpu/."""
    if dtype not in ("float32", "bfloat16") or result_dtype not in (dtype, "float32"):
        if geometry.has_nonoverlapping_windows and (
            route := _cpu_tiles_without_onednn(operator, geometry, dtype)
        ):
            return route
        return Route("swap", f"oneDNN's CPU convolutions have no {dtype} to {result_dtype}")
    if not _has_known_channels(geometry):
        return Route("onednn", UNKNOWN)
    if (
        operator == "conv_dgrad"
        and geometry.has_nonoverlapping_windows
        and geometry.in_channels <= 4
    ):
        # In float32 XLA:CPU and this project's kernels for few channels are faster for small windows.
        few = geometry.spatial_rank <= 2 and _has_few_channels(operator, geometry)
        taps = math.prod(geometry.kernel)
        if taps >= 64 and not few if dtype == "float32" else taps >= 16:
            return Route(
                MATMUL,
                "dX of patches: 16x16, 3 to 768, f32 10 ms against 60 by oneDNN, bf16 10 against 35; 3-D "
                "8x8x8, 3 to 384, 2.4 against 12, 2.3 against 7.4; bf16 4x4, 3 to 512, 1.6 against 2.7; "
                "2x2, 4 to 1152, 2.8 against 2.0",
            )
    config = geometry.config
    if dtype == "bfloat16":
        if operator == "conv_wgrad" and 1 < config.groups == geometry.in_channels:
            if geometry.out_channels > config.groups:
                return Route("swap", "depthwise with a multiplier: 32 ms by oneDNN, 14 by XLA:CPU")
        return Route("onednn", "1.1 to 500 times faster than XLA:CPU")
    if config.groups == 1 and geometry.spatial_rank <= 2:
        reason = _cpu_plane_slow(operator, geometry)
        if reason is not None:
            return Route("swap", reason)
    return Route("onednn", "1.05 to 500 times faster than XLA:CPU")


def _cpu_tiles_without_onednn(operator: str, geometry: ConvGeometry, dtype: str) -> Route | None:
    """Windows side by side in a dtype that XLA:CPU computes: benchmarks/cpu/survey_patches.md."""
    if dtype == "float64":
        return Route(
            MATMUL,
            "forward, dX, dW: patches of 16x16, 3 to 768, f64 21, 21, 22 ms against 23, 168, 34 by XLA:CPU's "
            "convolutions; of 4x4, 128 to 128, 11, 6, 8 against 12, 100, 12",
        )
    large = geometry.in_channels <= 4 and math.prod(geometry.kernel) >= 64
    if operator == "conv_wgrad" or (operator == "conv_dgrad" and large):
        return Route(
            MATMUL,
            "dX, dW: patches of 16x16, 3 to 768, f16 11, 11 ms against 148, 13 by XLA:CPU's convolutions; dW "
            "of 4x4, 128 to 128, 4.4 against 6.5; but dX of 2x2, 4 to 1152, 1.7 against 1.1",
        )
    return None


def _cpu_plane_slow(operator: str, geometry: ConvGeometry) -> str | None:
    """Why the handler is slower than XLA:CPU for a dense float32 problem in one or two dimensions, if so.

    oneDNN computes result channels in blocks of 16, so a handful of them costs as much as 16; and it has no
    kernels of its own, only matrix products, for some weight gradients. Where this project's kernels for few
    channels serve there is less to lose (benchmarks/cpu/survey_few_channels.md): 64 to 1, k7 7.7 ms by them,
    15.9 by XLA:CPU; dX of 3 to 64, k7 s2 4.7 and 15.9; dW of 32 to 32, k15 23.0 and 26.9.
    """
    config = geometry.config
    few = _has_few_channels(operator, geometry)
    if (
        operator == "conv_fprop"
        and geometry.out_channels <= 8
        and geometry.in_channels > 16
        and not few
    ):
        return "few output channels, many weights: 64 to 1, k7 9.2 ms by oneDNN, 3.6 by XLA:CPU"
    # XLA inserts the zeros of a strided gradient: at 16x16 it multiplies 256 times too much.
    few_inputs = geometry.in_channels <= 8 and geometry.out_channels > 16
    if operator == "conv_dgrad" and few_inputs and math.prod(config.strides) < 64:
        if not few:
            return (
                "few input channels, many weights: 3 to 64, k7 s2 7.7 ms by oneDNN, 3.5 by XLA:CPU"
            )
        if geometry.in_channels >= 4 and math.prod(config.strides) == 1:
            return "4 to 8 input channels: 4 to 32, k3 1.00 ms by the handler, 0.69 by XLA:CPU"
    if operator == "conv_wgrad" and geometry.kernel[-1] >= 15 > config.strides[-1] and not few:
        # A vocoder's windows touch no others than their neighbours: 1-D 16 to 32, k16 s8 0.38 ms by oneDNN,
        # 0.65 by XLA:CPU, 128 to 256 4.4 and 5.1 (benchmarks/cpu/survey_wide_windows.md).
        beside = geometry.spatial_rank == 1 and geometry.kernel[0] <= 2 * config.strides[0]
        if not beside or geometry.in_channels > 128:
            return "wide overlapping windows: 1-D 256 to 256, k15 s4 70.9 ms by oneDNN, 28.4 by XLA:CPU"
    return None


def _has_few_channels(operator: str, geometry: ConvGeometry) -> bool:
    """Whether cpp/cpu/kernels/thin/conv.cc serves a dense float32 problem in one or two dimensions.

    The bounds are those of HasFewChannels there, but for those that only small work or one processor has.
    """
    strides = geometry.config.strides
    channels = geometry.in_channels, geometry.out_channels
    weights = math.prod((*channels, *geometry.kernel))
    if max(channels) > 96 or max(geometry.kernel) > 128 or max(strides) > 64:
        return False
    if operator == "conv_wgrad":
        whole = any(count % 4 == 0 for count in channels)
        return whole and geometry.in_channels >= 4 and weights <= 2**20
    dgrad = operator == "conv_dgrad"
    result, operand = channels if dgrad else channels[::-1]
    if operand < 4 and geometry.spatial_rank > 1:
        return False
    most = 2**16 if dgrad and max(strides) > 1 else 2**14
    return weights <= most and (result % 4 == 0 or (result < 4 and operand % 4 == 0))


# Microseconds of device time on an H100 (jax 0.11.2, cuDNN 9.19, channels-last arrays, the layers of
# bench/published.json), cuDNN's best engine against XLA's program for the same operator. Where the two
# are within 3 per cent the row says XLA, which fuses, except where other layers of the row gain, and where
# there is nothing to fuse (`_cuda_dense`).
def _cuda(
    operator: str, geometry: ConvGeometry, dtype: str, result_dtype: str, precision: Any
) -> Route:
    config = geometry.config
    if result_dtype != dtype:
        return Route("xla", f"the handlers have no {dtype} to {result_dtype}")
    if _is_beyond_memory(geometry):
        return Route(
            "cudnn", "XLA's forms hold arrays with the padding and the zeros: no memory does"
        )
    if not _has_known_channels(geometry):
        return Route("cudnn", UNKNOWN)
    half = dtype in ("float16", "bfloat16")
    if geometry.has_nonoverlapping_windows and (
        half or (dtype == "float32" and allows_tf32(precision))
    ):
        if route := _cuda_tiles(operator, geometry):
            return route
    strided = any(s > 1 for s in config.strides)
    if geometry.in_channels == geometry.out_channels == config.groups > 1:
        return _cuda_depthwise(operator, geometry, strided, half)
    dilated = any(d > 1 for d in config.dilation)
    cropped = any(low < 0 or high < 0 for low, high in config.padding)
    if dtype == "float64" and strided and config.groups == 1 and not dilated and not cropped:
        return _cuda_double(operator, geometry)
    if geometry.spatial_rank == 3:
        return Route(
            "cudnn",
            "XLA transposes 3-D arrays: unet3d_up 336, 122, 133 against 2207, 723, 732; "
            "conv3d bf16 43, 44, 37 against 75, 72, 75, f32 81, 93, 172 against 123, 132, 229",
        )
    if dilated:
        return _cuda_dilated(operator, geometry, dtype, strided)
    if cropped and operator == "conv_wgrad":
        return Route(
            "cudnn",
            "XLA computes cropped weight gradients with a window as large as dy: 32x56x56, 64 to 64, k3 p-1 "
            "bf16 34 against 585, f32 89 against 470; 16x28x28, 256 to 256, k3 p-2 26 against 110, 75 "
            "against 177",
        )
    if config.groups > 1:
        if not strided:
            return Route(
                "xla",
                "resnext_g32 bf16: 97, 110, 140 against 92, 92, 131, f32 equal; per_example bf16 17, 18, 17 "
                "against 20, 17, 18, f32 28, 30, 44 against 29, 28, 48",
            )
        return _cuda_grouped_strided(operator, config.groups, dtype)
    if not strided:
        return _cuda_dense(operator, geometry, dtype, precision)
    if operator == "conv_dgrad":
        return Route(
            "cudnn",
            "XLA inserts zeros: dcgan4 67 against 241, fcn8_up 264 against 5123; "
            "resnet_3x3s2 equal, stem7x7 934 against 913",
        )
    if half and _has_odd_channels(geometry):
        return Route(
            "xla",
            "XLA fills up odd channels, once for all operators: dW of dcgan5 59 against 48, of fcn8_up 369 "
            "against 330, of stem7x7 311 against 317; dX of dcgan5 66 against 72 alone, 138 against 137 "
            "together with dW; forward of stem7x7 466 against 466",
        )
    if operator == "conv_fprop" and all(low == high for low, high in config.padding):
        return Route("xla", "times are equal (dcgan4, unet_up, resnet_3x3s2), and XLA fuses")
    if operator == "conv_fprop":
        return Route("cudnn", "XLA pads first where the sides differ: k3s2p1op1 20 against 32")
    return Route("cudnn", "dcgan2 47 against 69, dcgan4 62 against 66, unet_up equal")


def _cuda_tiles(operator: str, geometry: ConvGeometry) -> Route | None:
    """Windows side by side: benchmarks/patch_cases.json, benchmarks/h100/patches.txt.

    With more channels a convolution's kernels read patches as fast as they lie, and what has been cut is
    written and read once more: dX of downsample2, 96 to 192, bf16 42 us by cuDNN, 66 as a product.
    """
    if geometry.in_channels <= 4:
        return Route(
            MATMUL,
            "forward, dX, dW: vit_patch16 bf16 49, 47, 60 against 463, 109, 121, f32 95, 92, 129 against "
            "475, 168, 379; stem4 bf16 39, 40, 76 against 124, 108, 132, f32 77, 72, 133 against 106, 149, "
            "162; dit_patch2 bf16 17, 17, 19 against 39, 49, 33; tubelet bf16 46, 46, 51 against 721, 648, "
            "243",
        )
    if operator == "conv_dgrad" and math.prod(geometry.kernel) >= 16:
        return Route(
            MATMUL,
            "dX: reduce8 bf16 19 against 24 by XLA and 47 by cuDNN, reduce4 bf16 11 against 15, f32 21 "
            "against 30, patch4_8ch bf16 32 against 98; windows of four: reduce2 bf16 9 against 16, "
            "downsample2 66 against 40",
        )
    return None


def _cuda_dense(operator: str, geometry: ConvGeometry, dtype: str, precision: Any) -> Route:
    """One group, no strides, no dilation: alone both take the same time, in a program they do not.

    XLA's command buffers (CUDA graphs) hold the handlers' calls and by default none of its own convolutions,
    which it launches one by one; what it can do with its own is to add a bias and to take the maximum with
    zero in the same kernel. benchmarks/dense_steps.py, benchmarks/h100/dense_steps.md.

    With stride 1 dX is a convolution like the forward pass, and only the order of the weights tells an
    equation of lax's apart: OHWI's dX is taken for a forward pass, and a forward pass with HWOI or IOHW for
    dX. It loses XLA's fusion then: six layers IOHW with bias and relu bf16 0.40 ms against 0.33, f32 0.79
    against 0.59, their training step 1.05 against 1.07 and 2.48 against 2.44.
    """
    if operator == "conv_fprop":
        return Route(
            "xla",
            "dense with stride 1: times are equal (resnet_3x3, 1x1), and XLA fuses: six layers with bias and "
            "relu bf16 0.40 ms against 0.32, f32 0.76 against 0.60, forward pass of a 2-D U-Net 1.74 against "
            "1.59, 3.21 against 2.78",
        )
    if dtype == "float32" and not allows_tf32(precision):
        return Route(
            "xla",
            "dense with stride 1, no TF32: XLA may take engines that transform (Winograd), the handlers' "
            "default search leaves them out",
        )
    if dtype == "float64" or (dtype != "float32" and _has_odd_channels(geometry)):
        return Route("xla", "dense with stride 1: times are equal; in a program not measured")
    return Route(
        "cudnn",
        "dense with stride 1: dX + dW + dB of resnet_3x3 bf16 101 against 104, f32 268 against 274, of 1x1 "
        "bf16 120 against 121 (cropped bf16 34 against 30, 31 against 36), and command buffers hold the "
        "calls: training steps of a segmenter bf16 2.34 ms against 2.43, of a vocoder f32 14.6 against 14.9, "
        "of a 2-D U-Net bf16 5.52 against 5.57, f32 11.55 against 11.66, of six layers 1.04 against 1.06, "
        "f32 2.454 against 2.450",
    )


def _is_beyond_memory(geometry: ConvGeometry) -> bool:
    """Whether an image with its padding, or a gradient with its zeros, has more than 2**40 pixels.

    XLA does not even compile a program with such an array once its size overflows.
    """
    config = geometry.config
    axes = list(
        zip(geometry.in_spatial, geometry.out_spatial, config.strides, config.padding, strict=True)
    )
    if not all(isinstance(n, int) for x, y, _, pair in axes for n in (x, y, *pair)):
        return False  # symbolic
    spans = [
        max(x + max(low, 0) + max(high, 0), (y - 1) * stride + 1)
        for x, y, stride, (low, high) in axes
    ]
    return math.prod(spans) > 2**40


def _has_known_channels(geometry: ConvGeometry) -> bool:
    """Whether channels and windows are numbers, as they are but for exports with other symbolic sizes."""
    sizes = (geometry.in_channels, geometry.out_channels, *geometry.kernel)
    return all(isinstance(size, int) for size in sizes)


def _has_odd_channels(geometry: ConvGeometry) -> bool:
    """Whether a tensor core's rows of eight 16-bit elements would not be full."""
    return bool(geometry.in_channels % 8 or geometry.out_channels % 8)


def _cuda_double(operator: str, geometry: ConvGeometry) -> Route:
    """Layers with strides: benchmarks/float64_cases.json, benchmarks/h100/float64.txt."""
    if operator == "conv_fprop" and geometry.spatial_rank == 3:
        return Route(
            "cudnn",
            "XLA transposes 3-D arrays: dX of unet3d_up f64 44 against 64, of k4s2_3d 536 against 838",
        )
    if operator == "conv_wgrad":
        return Route(
            "xla",
            "cuDNN's engines for f64 change formats at each call, XLA where it must: dcgan4 755 against 754, "
            "dcgan3 813 against 741, k3s2 295 against 309, unet_up_wide 395 against 484, unet3d_up 552 "
            "against 257, k4s2_3d 6138 against 266, vocoder_up 376 against 370",
        )
    if operator == "conv_dgrad":
        return Route(
            "xla",
            "forward of dcgan4 f64 898 against 884, dcgan3 802 against 800, unet_up_wide 388 against 376, "
            "unet3d_up 65 against 63, vocoder_up 404 against 395; k3s2p1op1, whose sides differ, 2838 "
            "against 372; dX of resnet_3x3s2 972 against 958, k5s2 670 against 661",
        )
    return Route(
        "xla",
        "XLA shares changes of format between a layer's operators: dX of dcgan4 f64 671 against 591, dcgan3 "
        "670 against 570, unet_up 62 against 86, k6s2 587 against 631, k3s2p1op1, whose sides differ, 2536 "
        "against 107, vocoder_up 350 against 333; resnet_3x3s2 319 against 367, k5s2 520 against 454",
    )


def _cuda_grouped_strided(operator: str, groups: int, dtype: str) -> Route:
    """Measured with 4 groups and with 32: benchmarks/backend_cases.json, benchmarks/h100/backend_cases.txt."""
    if dtype == "float64" and operator != "conv_dgrad":
        return Route(
            "xla",
            "forward, dW: resnext_g32_s2 f64 602, 604 against 490, 539; dX, dW of group4_up f64 685, 490 "
            "against 619, 492",
        )
    if operator == "conv_fprop":
        return Route(
            "cudnn",
            "group4_up bf16 dX 46 against 48, f32 97 against 96; resnext_g32_s2 bf16 59 against 64, f32 96 "
            "against 95; per_example_s2 bf16 14 against 16, f32 18 against 19",
        )
    if dtype == "float64":
        return Route(
            "cudnn",
            "XLA inserts zeros: dX of resnext_g32_s2 f64 934 against 1451, forward of group4_up f64 1389 "
            "against 2223",
        )
    if dtype == "float32" and operator == "conv_dgrad" and groups <= 8:
        return Route("cudnn", "group4_up f32 forward: 375 against 396")
    if dtype == "float32":
        return Route(
            "xla",
            "dX, dW: resnext_g32_s2 f32 604, 366 against 354, 366, per_example_s2 f32 47, 58 against 47, 24; "
            "dW of group4_up f32 177 against 177",
        )
    if operator == "conv_dgrad" and groups <= 8:
        return Route("xla", "group4_up bf16 forward: 225 against 189")
    return Route(
        "cudnn",
        "dX, dW: resnext_g32_s2 bf16 171, 58 against 247, 59, per_example_s2 bf16 22, 15 against 28, 16; "
        "dW of group4_up bf16 59 against 62",
    )


def _cuda_dilated(operator: str, geometry: ConvGeometry, dtype: str, strided: bool) -> Route:
    if not strided and operator == "conv_fprop" and geometry.spatial_rank == 2:
        return Route("xla", "aspp_d12 bf16 158 against 149, f32 395 against 396")
    if not strided and operator == "conv_dgrad" and geometry.spatial_rank == 1:
        return Route("xla", "wavenet_d512 f32 67 against 63")
    return Route(
        "cudnn",
        "weight gradients: wavenet_d512 165 against 2741, aspp_d12 bf16 89 against 1191, f32 155 (by this "
        "project's kernels, alone) against 600; forward: wavenet_d512 41 against 65; dX: aspp_d12 bf16 86 "
        "against 115, f32 114 (likewise) against 244; "
        "strided, a common factor still in it: convt_dil2 85 against 165, 21 against 68, 33 against 3578",
    )


def _cuda_depthwise(operator: str, geometry: ConvGeometry, strided: bool, half: bool) -> Route:
    """One filter per channel: this project's own kernels and cuDNN's, whichever are faster.

    cuDNN has kernels for channels-last windows of 3x3, 5x5 and 7x7, which XLA calls too. The handlers'
    figures are those of the search; conv3d_dw's are those of the kernels alone.
    """
    plain = geometry.spatial_rank == 2 and all(d == 1 for d in geometry.config.dilation)
    window = tuple(geometry.kernel) if plain else None
    if window == (3, 3) and strided and operator == "conv_fprop":
        return Route("xla", "times are equal: mobilenet_dw bf16 83 against 83, f32 130 against 131")
    if window == (7, 7) and not strided and half and operator == "conv_wgrad":
        return Route("xla", "times are equal: convnext_dw7 bf16 124 against 125, 47 against 45")
    return Route(
        "cudnn",
        "forward, dX, dW: dla_dw_up bf16 37, 63, 47 against 2263, 869, 698, f32 64, 86, 75 against 2758, "
        "962, 1367; fcn8_up_g f32 79, 203, 156 against 12673, 1356, 2245; convnext_dw7 f32 109, 111, 147 "
        "against 380, 376, 4315; dX, dW: mobilenet_dw bf16 73, 80 against 246, 119, f32 144, 141 against "
        "382, 154; forward, dX: convnext_dw7 bf16 104, 106 against 139, 141, 14x14 34, 34 against 46, 45; "
        "conv3d_dw bf16 27, 28, 38 against 188 forward, 498 for all gradients",
    )

"""The backend of a convolution on a CPU (benchmarks/cpu/backends.json, bfloat16.json, float16.json).

oneDNN computes result channels in blocks of 16, so a handful of channels costs as much as 16, and for some
weight gradients it has only matrix products. Where the thin kernels serve, these losses are smaller.
"""

from __future__ import annotations

from jax_convgrad._src.dispatch.features import ConvFeatures
from jax_convgrad._src.dispatch.rules import Rule, RuleTable, at_least, at_most, between, none_of


def _measured(case: str, *passes: str) -> tuple[str, ...]:
    return tuple(f"cpu/backends.json#{case}#{pass_}" for pass_ in passes)


def _measured_float16(case: str, *passes: str) -> tuple[str, ...]:
    return tuple(f"cpu/float16.json#{case}, float16#{pass_}" for pass_ in passes)


def _measured_bfloat16(case: str, *passes: str) -> tuple[str, ...]:
    return tuple(f"cpu/bfloat16.json#{case}, bfloat16#{pass_}" for pass_ in passes)


def _measured_of_few_pixels(case: str, *dtypes: str) -> tuple[str, ...]:
    return tuple(f"cpu/few_pixels.json#{case}, {dtype}#dw" for dtype in dtypes)


# The dtypes that oneDNN's convolutions do not take, in float32 either.
_UNSERVED = (
    {"dtype": none_of("float32", "bfloat16", "float16")},
    {"widens": True, "result_dtype": none_of("float32")},
)
_DENSE_FLOAT32 = {"dtype": "float32", "is_dense": True, "spatial_rank": at_most(2)}
_WIDE_WINDOWS = {
    **_DENSE_FLOAT32,
    "operator": "conv_wgrad",
    "inner_kernel": at_least(15),
    "inner_stride": at_most(14),
    "is_thin": False,
}


AMX = RuleTable(
    "amx",
    ConvFeatures,
    (
        Rule(
            name="float64 patches",
            when={"dtype": "float64", "has_nonoverlapping_windows": True},
            choice="gemm",
            reason="oneDNN has no float64, and a matrix product is faster than XLA:CPU's convolution",
            evidence=(
                *_measured("1-D patches 1 to 256, k16 s16, float64", "dw", "dx", "fprop"),
                *_measured("3-D patches 3 to 384, k8 s8, float64", "dw", "fprop", "dx"),
                *_measured("patches 384 to 768, k2 s2, float64", "dx", "dw", "fprop"),
                *_measured("patches 128 to 128, k4 s4, float64", "dx", "dw", "fprop"),
            ),
            against=(
                *_measured("patches 3 to 8, k4 s4, float64", "fprop"),
                *_measured("patches 3 to 48, k8 s8, float64", "fprop"),
            ),
            device_class="avx512",
        ),
        Rule(
            name="dW of many weights over at most 64 pixels",
            when={
                "dtype": none_of("float64"),
                "operator": "conv_wgrad",
                "is_dense": True,
                "spatial_rank": at_most(2),
                "weights": at_least(2**19),
                "result_pixels": at_most(64),
                "has_nonoverlapping_windows": False,
            },
            choice="xla_rewritten",
            reason="oneDNN goes through all weights for a handful of pixels at a time",
            evidence=(
                *_measured_of_few_pixels("512 to 512, k3, 8x2x2", "float32", "bfloat16", "float16"),
                *_measured_of_few_pixels("512 to 512, k3, 4x4x4", "float32", "bfloat16", "float16"),
                *_measured_of_few_pixels(
                    "512 to 512, k4 s2, 8x2x2", "float32", "bfloat16", "float16"
                ),
                *_measured_of_few_pixels(
                    "512 to 512, k4 s2, 8x4x4", "float32", "bfloat16", "float16"
                ),
                *_measured_of_few_pixels("256 to 256, k3, 8x2x2", "float32", "bfloat16", "float16"),
                *_measured_of_few_pixels(
                    "1024 to 1024, k1, 8x2x2", "float32", "bfloat16", "float16"
                ),
                *_measured_of_few_pixels(
                    "256 to 108, k8 s5 d3, 7x9x9", "float32", "bfloat16", "float16"
                ),
                *_measured_of_few_pixels(
                    "1-D 512 to 512, k5, 8x8", "float32", "bfloat16", "float16"
                ),
            ),
            device_class="avx512",
        ),
        Rule(
            name="dX of large float16 patches of thin images",
            when={
                "dtype": "float16",
                "operator": "conv_dgrad",
                "has_nonoverlapping_windows": True,
                "in_channels": at_most(4),
                "taps": at_least(64),
            },
            choice="gemm",
            reason="oneDNN fills so few result channels up to a block, a matrix product does not",
            evidence=(
                *_measured_float16("patches 3 to 192, k16 s16", "dx"),
                *_measured_float16("patches 3 to 768, k16 s16", "dx"),
                *_measured_float16("patches 3 to 1024, k14 s14", "dx"),
                *_measured_float16("patches 1 to 384, k16 s16", "dx"),
                *_measured_float16("patches 3 to 48, k8 s8", "dx"),
                *_measured_float16("3-D patches 3 to 384, k8 s8", "dx"),
            ),
            device_class="avx512",
        ),
        Rule(
            name="dX of float16 patches of thin images",
            when={
                "dtype": "float16",
                "operator": "conv_dgrad",
                "has_nonoverlapping_windows": True,
                "spatial_rank": at_most(2),
                "in_channels": at_most(8),
                "result_dtype": none_of("float64", "bfloat16"),
            },
            choice="xla_rewritten",
            reason="oneDNN fills so few result channels up to a block, XLA:CPU does not",
            evidence=(
                *_measured_float16("patches 3 to 96, k4 s4", "dx"),
                *_measured_float16("patches 3 to 512, k4 s4", "dx"),
                *_measured_float16("patches 4 to 1152, k2 s2", "dx"),
                *_measured_float16("patches 8 to 128, k4 s4", "dx"),
            ),
            against=(
                *_measured_float16("patches 3 to 8, k4 s4", "dx"),
                *_measured_float16("patches 3 to 32, k2 s2", "dx"),
                *_measured_float16("1-D patches 1 to 256, k16 s16", "dx"),
            ),
            device_class="avx512",
        ),
        Rule(
            name="float16",
            when={"dtype": "float16", "result_dtype": none_of("float64", "bfloat16")},
            choice="onednn",
            reason="XLA:CPU is slow in float16, and oneDNN computes it in float32",
            evidence=(
                *_measured_float16("stem 3 to 64, k7 s2", "dx", "dw"),
                *_measured_float16("1 to 32, k3", "fprop", "dx"),
                *_measured_float16("4 to 32, k3", "fprop", "dw"),
                *_measured_float16("16 to 16, k3", "fprop", "dx", "dw"),
                *_measured_float16("64 to 3, k3", "fprop", "dw"),
                *_measured_float16("128 to 8, k3", "dw"),
                *_measured_float16("3 to 128, k3", "dw"),
                *_measured_float16("64 to 1, k7", "dx", "dw"),
                *_measured_float16("8 to 8, k3", "fprop", "dx", "dw"),
                *_measured_float16("1-D 16 to 1, k7", "fprop", "dx", "dw"),
                *_measured_float16("1-D 1 to 16, k5 s2", "fprop", "dx", "dw"),
                *_measured_float16("21 to 21, k16 s8", "fprop", "dx"),
                *_measured_float16("21 to 21, k16 s8, 21 groups", "fprop", "dx", "dw"),
                *_measured_float16("64 to 64, k3", "dw"),
                *_measured_float16("64 to 64, k3 s2 d2", "fprop"),
                *_measured_float16("64 to 64, k3 s2 d3", "fprop", "dx", "dw"),
                *_measured_float16("64 to 64, k3, padding 5", "fprop", "dw"),
                *_measured_float16("64 to 128, k2 s2", "fprop", "dx", "dw"),
                *_measured_float16("patches 3 to 192, k16 s16", "fprop"),
                *_measured_float16("patches 3 to 96, k4 s4", "fprop"),
                *_measured_float16("patches 3 to 768, k16 s16", "fprop", "dw"),
                *_measured_float16("patches 1 to 384, k16 s16", "dw"),
                *_measured_float16("patches 3 to 48, k8 s8", "dw"),
                *_measured_float16("patches 3 to 8, k4 s4", "fprop", "dw"),
                *_measured_float16("patches 3 to 32, k2 s2", "dw"),
                *_measured_float16("patches 8 to 128, k4 s4", "fprop", "dw"),
                *_measured_float16("patches 64 to 64, k8 s8", "dx", "dw"),
                *_measured_float16("patches 128 to 128, k4 s4", "dw"),
                *_measured_float16("1-D patches 1 to 256, k16 s16", "dw"),
                *_measured_float16("3-D patches 3 to 384, k8 s8", "fprop", "dw"),
                *_measured_float16("64 to 256, k1", "fprop", "dx", "dw"),
                *_measured_float16("256 to 512, k1 s2", "fprop", "dx", "dw"),
                *_measured_float16("512 to 512, k3, 7x7", "fprop", "dx"),
                *_measured_float16("64 to 64, k3, batch 1", "fprop", "dx", "dw"),
                *_measured_float16("8 to 8, k3, 1x8x8", "fprop", "dx"),
                *_measured_float16("32 to 32, k15", "fprop", "dx", "dw"),
                *_measured_float16("1-D 64 to 64, k31", "fprop", "dx", "dw"),
                *_measured_float16("16 to 16, k15 s2", "fprop", "dx", "dw"),
                *_measured_float16("1-D 16 to 16, k15", "fprop", "dx", "dw"),
                *_measured_float16("1-D 64 to 64, k31 s4", "fprop", "dx", "dw"),
                *_measured_float16("depthwise 128, k3", "fprop", "dx", "dw"),
                *_measured_float16("depthwise 96, k7", "fprop", "dx", "dw"),
                *_measured_float16("depthwise 96, k3 s2", "fprop", "dx", "dw"),
                *_measured_float16("depthwise 32 to 64, k3", "fprop", "dx", "dw"),
                *_measured_float16("depthwise 17, k3", "fprop", "dx", "dw"),
                *_measured_float16("2 groups, 64 to 64, k3", "fprop", "dx", "dw"),
                *_measured_float16("32 groups, 128 to 128, k3", "fprop", "dx", "dw"),
                *_measured_float16("3 groups, 21 to 21, k3", "fprop", "dx", "dw"),
                *_measured_float16("1-D 64 to 64, k3", "fprop", "dx", "dw"),
                *_measured_float16("1-D depthwise 64, k5", "fprop", "dx", "dw"),
                *_measured_float16("3-D 16 to 16, k3", "fprop", "dx", "dw"),
                *_measured_float16("3-D 1 to 16, k3", "fprop", "dx", "dw"),
                *_measured_float16("3-D 32 to 64, k2 s2", "fprop", "dx", "dw"),
                *_measured_float16("3-D depthwise 32, k3", "fprop", "dx", "dw"),
                *_measured_float16("3-D 4 groups, 32 to 32, k3", "fprop", "dx", "dw"),
                *_measured_float16("3-D 32 to 32, k1", "dx", "dw"),
            ),
            against=(
                *_measured_float16("stem 3 to 64, k7 s2", "fprop"),
                *_measured_float16("1 to 32, k3", "dw"),
                *_measured_float16("4 to 32, k3", "dx"),
                *_measured_float16("64 to 3, k3", "dx"),
                *_measured_float16("128 to 8, k3", "fprop", "dx"),
                *_measured_float16("3 to 128, k3", "fprop", "dx"),
                *_measured_float16("64 to 1, k7", "fprop"),
                *_measured_float16("21 to 21, k16 s8", "dw"),
                *_measured_float16("64 to 64, k3", "fprop", "dx"),
                *_measured_float16("64 to 64, k3 s2 d2", "dx", "dw"),
                *_measured_float16("64 to 64, k3, padding 5", "dx"),
                *_measured_float16("patches 3 to 192, k16 s16", "dw"),
                *_measured_float16("patches 3 to 96, k4 s4", "dw"),
                *_measured_float16("patches 3 to 1024, k14 s14", "fprop", "dw"),
                *_measured_float16("patches 1 to 384, k16 s16", "fprop"),
                *_measured_float16("patches 3 to 48, k8 s8", "fprop"),
                *_measured_float16("patches 3 to 512, k4 s4", "fprop", "dw"),
                *_measured_float16("patches 4 to 1152, k2 s2", "fprop", "dw"),
                *_measured_float16("patches 3 to 32, k2 s2", "fprop"),
                *_measured_float16("patches 64 to 64, k8 s8", "fprop"),
                *_measured_float16("patches 128 to 128, k4 s4", "fprop", "dx"),
                *_measured_float16("patches 384 to 768, k2 s2", "fprop", "dx", "dw"),
                *_measured_float16("1-D patches 1 to 256, k16 s16", "fprop"),
                *_measured_float16("512 to 512, k3, 7x7", "dw"),
                *_measured_float16("8 to 8, k3, 1x8x8", "dw"),
                *_measured_float16("3-D 32 to 32, k1", "fprop"),
            ),
            device_class="avx512",
        ),
        Rule(
            name="dtypes that oneDNN lacks",
            when=_UNSERVED,
            choice="xla_rewritten",
            reason="oneDNN's CPU convolutions have no such dtypes",
            evidence=(),
        ),
        Rule(
            name="symbolic channels",
            when={"known_channels": False},
            choice="onednn",
            reason="a handler serves channels and windows of every size",
            evidence=(),
        ),
        Rule(
            name="dX of large patches of thin images",
            when=tuple(
                {
                    "operator": "conv_dgrad",
                    "has_nonoverlapping_windows": True,
                    "in_channels": at_most(4),
                    **rest,
                }
                for rest in (
                    {"dtype": "float32", "taps": at_least(64), "is_thin": False},
                    {"dtype": "bfloat16", "taps": at_least(16)},
                )
            ),
            choice="gemm",
            reason="oneDNN fills so few result channels up to a block, a matrix product does not",
            evidence=(
                *_measured("patches 3 to 768, k16 s16, float32", "dx"),
                *_measured("3-D patches 3 to 384, k8 s8, float32", "dx"),
                *_measured("patches 3 to 192, k16 s16, float32", "dx"),
                *_measured("patches 3 to 192, k16 s16, bfloat16", "dx"),
            ),
            against=(
                *_measured("patches 3 to 512, k4 s4, bfloat16", "dx"),
                *_measured("patches 3 to 48, k8 s8, bfloat16", "dx"),
            ),
            device_class="avx512",
        ),
        Rule(
            name="bfloat16",
            when={"dtype": "bfloat16"},
            choice="onednn",
            reason="oneDNN is faster than XLA:CPU, which converts to float32",
            evidence=(
                *_measured_bfloat16("depthwise 32 to 64, k3", "fprop", "dx", "dw"),
                *_measured_bfloat16("3-D depthwise 32, k3", "fprop", "dx", "dw"),
                *_measured_bfloat16("3-D 4 groups, 32 to 32, k3", "fprop", "dx", "dw"),
                *_measured_bfloat16("32 groups, 128 to 128, k3", "fprop", "dx", "dw"),
                *_measured("3-D 32 to 64, k2 s2, bfloat16", "dx", "dw", "fprop"),
                *_measured("64 to 64, k3, padding 5, bfloat16", "dw", "dx", "fprop"),
                *_measured("21 to 21, k16 s8, 21 groups, bfloat16", "dx", "fprop", "dw"),
                *_measured("3-D 16 to 16, k3, bfloat16", "dx", "dw", "fprop"),
            ),
            against=(
                *_measured_bfloat16("stem 3 to 64, k7 s2", "fprop"),
                *_measured_bfloat16("3-D patches 3 to 384, k8 s8", "dw"),
                *_measured_bfloat16("512 to 512, k3, 7x7", "dw"),
                *_measured_bfloat16("512 to 512, k3, 4x4x4", "fprop"),
                *_measured_bfloat16("3-D 32 to 32, k1", "fprop", "dx"),
                *_measured("64 to 1, k7, bfloat16", "dx"),
                *_measured("patches 1 to 384, k16 s16, bfloat16", "fprop"),
                *_measured("patches 4 to 1152, k2 s2, bfloat16", "dx"),
            ),
        ),
        Rule(
            name="thin y, many weights",
            when={
                **_DENSE_FLOAT32,
                "operator": "conv_fprop",
                "out_channels": at_most(8),
                "in_channels": at_least(17),
                "is_thin": False,
            },
            choice="xla_rewritten",
            reason="oneDNN fills so few result channels up to a block, XLA:CPU does not",
            evidence=(
                *_measured("128 to 8, k3, float32", "fprop"),
                *_measured("128 to 3, k3, float32", "fprop"),
            ),
        ),
        # XLA inserts the zeros of a strided gradient: at 16x16 it multiplies 256 times too much.
        Rule(
            name="dX of thin layers, many weights",
            when={
                **_DENSE_FLOAT32,
                "operator": "conv_dgrad",
                "in_channels": at_most(8),
                "out_channels": at_least(17),
                "stride_product": at_most(63),
                "is_thin": False,
            },
            choice="xla_rewritten",
            reason="oneDNN fills so few result channels up to a block, XLA:CPU does not",
            evidence=(
                *_measured("patches 4 to 1152, k2 s2, float32", "dx"),
                *_measured("3 to 128, k3, float32", "dx"),
                *_measured("patches 3 to 512, k4 s4, float32", "dx"),
                *_measured("patches 8 to 128, k4 s4, float32", "dx"),
            ),
            against=(*_measured("1-D patches 1 to 256, k16 s16, float32", "dx"),),
            device_class="avx512",
        ),
        Rule(
            name="dX of 4 to 8 channels, unstrided",
            when={
                **_DENSE_FLOAT32,
                "operator": "conv_dgrad",
                "in_channels": between(4, 8),
                "out_channels": at_least(17),
                "stride_product": 1,
            },
            choice="xla_rewritten",
            reason="XLA:CPU's matrix products are faster than the thin kernels here",
            evidence=(
                *_measured("4 to 32, k3, float32", "dx"),
                *_measured("8 to 32, k3, float32", "dx"),
            ),
            device_class="avx512",
        ),
        # A vocoder's windows overlap only their neighbors: the handler is faster there.
        Rule(
            name="dW of wide overlapping windows",
            when=(
                {**_WIDE_WINDOWS, "spatial_rank": 2},
                {**_WIDE_WINDOWS, "inner_overlap": at_least(3)},
                {**_WIDE_WINDOWS, "in_channels": at_least(129)},
            ),
            choice="xla_rewritten",
            reason="oneDNN has matrix products only for wide windows, and copies each window for them",
            evidence=(
                *_measured("21 to 21, k16 s8, float32", "dw"),
                *_measured("1-D 256 to 256, k15 s4, float32", "dw"),
            ),
        ),
        Rule(
            name="float32",
            when={},
            choice="onednn",
            reason="oneDNN's and this project's kernels are faster than XLA:CPU's",
            evidence=(
                *_measured("21 to 21, k16 s8, 21 groups, float32", "dx", "fprop", "dw"),
                *_measured("3-D 32 to 64, k2 s2, float32", "dx", "dw", "fprop"),
                *_measured("depthwise 96, k3 s2, float32", "dx", "fprop", "dw"),
                *_measured("3-D depthwise 32, k3, float32", "fprop", "dx", "dw"),
            ),
            against=(
                *_measured("patches 3 to 768, k16 s16, float32", "dw"),
                *_measured("1-D patches 1 to 256, k16 s16, float32", "fprop"),
                *_measured("64 to 1, k7, float32", "dx"),
                *_measured("patches 384 to 768, k2 s2, float32", "dw"),
                *_measured("patches 4 to 1152, k2 s2, float32", "fprop"),
                *_measured("patches 3 to 512, k4 s4, float32", "fprop"),
                *_measured("64 to 64, k3, padding 5, float32", "dx"),
                *_measured("patches 3 to 1024, k14 s14, float32", "dw"),
                *_measured("3-D patches 3 to 384, k8 s8, float32", "dw"),
                *_measured("64 to 3, k3, float32", "dx"),
                *_measured("512 to 512, k3, 7x7, float32", "dw"),
            ),
        ),
    ),
)

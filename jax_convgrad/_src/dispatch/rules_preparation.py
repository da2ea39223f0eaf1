"""What is done to the operands of a handler's call beforehand (benchmarks/*/preparations.json).

NOTE [Pairs of channels]. oneDNN's bfloat16 kernels read the channels that they sum over in pairs. If their
number is odd, the last channel is paired with the memory behind it, which is the first channel of the next
group or pixel, and with a weight of zero. A NaN or an infinity there would leak into a wrong element, under
`jax.vmap` into another example. So such a call gets one more channel, of zeros, or operands in float32. The
kernels for depthwise problems have no pairs, except those for some strided input gradients of two axes: these
must run in float32. No measurement may send a call of either kind to "none". One of the kernels also reads
behind the whole array, whoever calls it: that is an erratum in C++ (cpu/onednn/errata.cc).

NOTE [Uneven padding]. cuDNN's errata exclude the engines that are wrong where the two sides of an axis are
padded differently (NOTE [One padding per axis], cudnn/errata.cc). That leaves one engine for weight
gradients in float64, and in float32 without TF32. In these cases the excess of one side over the other is
padded beforehand, as XLA does for every such convolution. In 16 bits and with TF32 other engines are right
and fast, and depthwise problems have this project's own kernels.
"""

from __future__ import annotations

from jax_convgrad._src.dispatch.features import PreparationFeatures
from jax_convgrad._src.dispatch.rules import Rule, RuleTable, at_least, at_most, none_of


def _measured_cpu(case: str, *passes: str) -> tuple[str, ...]:
    return tuple(f"cpu/preparations.json#{case}#{pass_}" for pass_ in passes)


def _measured_multiplier(case: str, *passes: str) -> tuple[str, ...]:
    return tuple(f"cpu/multiplier.json#{case}#{pass_}" for pass_ in passes)


def _measured_amx(case: str, *passes: str) -> tuple[str, ...]:
    return tuple(f"cpu/preparations_amx.json#{case}#{pass_}" for pass_ in passes)


def _measured_cuda(case: str, *passes: str) -> tuple[str, ...]:
    return tuple(f"h100/preparations.json#{case}#{pass_}" for pass_ in passes)


def _measured_h200(case: str, *passes: str) -> tuple[str, ...]:
    return tuple(f"h200/preparations.json#{case}#{pass_}" for pass_ in passes)


_WIDENING_DEPTHWISE = {
    "dtype": "bfloat16",
    "multiplies_bfloat16": False,
    "multiplier": 1,
}

AVX512 = RuleTable(
    "avx512",
    PreparationFeatures,
    (
        Rule(
            name="operands in float16",
            when={"dtype": "float16"},
            choice="float32",
            reason="oneDNN has no float16",
            evidence=(),
        ),
        Rule(
            name="bfloat16 without AVX-512",
            when={"dtype": "bfloat16", "has_bfloat16": False},
            choice="float32",
            reason="oneDNN has no bfloat16 on a processor without AVX-512",
            evidence=(),
        ),
        Rule(
            name="bfloat16 dW of several filters a channel",
            when={"dtype": "bfloat16", "operator": "conv_wgrad", "multiplier": at_least(2)},
            choice="float32",
            reason="oneDNN has no fast bfloat16 kernel for several filters a channel",
            evidence=(
                *_measured_multiplier("depthwise 32 to 64, k3, bf16", "dw"),
                *_measured_multiplier("depthwise 24 to 96, k5 s2, bf16", "dw"),
                *_measured_multiplier("1-D depthwise 64 to 128, k9, bf16", "dw"),
            ),
        ),
        Rule(
            name="bfloat16 with a symbolic number of channels",
            when={"dtype": "bfloat16", "sums_pairs": None},
            choice="float32",
            reason="whether the channels are pairs is known when the program runs",
            evidence=(),
        ),
        Rule(
            name="depthwise signals, volumes and dilated dX",
            when=tuple(
                {
                    "dtype": "bfloat16",
                    "widens": False,
                    "multiplier": 1,
                    "in_channels": at_least(8),  # kMinChannels, depthwise/conv.cc
                    **rest,
                }
                for rest in (
                    {"operator": "conv_fprop", "spatial_rank": none_of(2)},
                    {"operator": "conv_dgrad", "spatial_rank": none_of(2)},
                    {"operator": "conv_dgrad", "is_dilated": True},
                )
            ),
            choice="none",
            reason="this project's own kernel widens bfloat16 once, while it reads it",
            evidence=(
                *_measured_cpu("1-D depthwise 64, k5, bf16", "fprop", "dx"),
                *_measured_cpu("1-D depthwise 64, k5 s2, bf16", "dx"),
                *_measured_cpu("1-D depthwise 256, k31, bf16", "fprop", "dx"),
                *_measured_cpu("3-D depthwise 32, k3, bf16", "fprop", "dx"),
                *_measured_cpu("depthwise 128, k3 d2, bf16", "dx"),
            ),
        ),
        Rule(
            name="small depthwise windows, no instructions for bfloat16",
            when=tuple(
                {**_WIDENING_DEPTHWISE, "spatial_rank": 2, **rest}
                for rest in (
                    {"operator": "conv_fprop", "taps": at_most(9)},
                    {"operator": "conv_fprop", "taps": at_most(25), "is_strided": True},
                    {"operator": "conv_dgrad", "taps": at_most(9), "is_strided": False},
                    {"operator": "conv_wgrad", "taps": at_most(9), "is_strided": False},
                )
            ),
            choice="none",
            reason="reading and writing takes longer there than widening",
            evidence=(
                *_measured_cpu("depthwise 128, k3, bf16", "fprop", "dx", "dw"),
                *_measured_cpu("depthwise 96, k3 s2, bf16", "fprop"),
                *_measured_cpu("depthwise 32, k3, bf16", "fprop", "dx", "dw"),
                *_measured_cpu("depthwise 672, k5 s2, bf16", "fprop"),
            ),
        ),
        Rule(
            name="dW of depthwise windows, no instructions for bfloat16",
            when=tuple(
                {**_WIDENING_DEPTHWISE, "operator": "conv_wgrad", **rest}
                for rest in ({"spatial_rank": none_of(2)}, {"is_strided": True})
            ),
            choice="none",
            reason="this project's own kernels widen bfloat16 once, while they read it",
            evidence=(
                *_measured_cpu("depthwise 96, k3 s2, bf16", "dw"),
                *_measured_cpu("depthwise 672, k5 s2, bf16", "dw"),
                *_measured_cpu("1-D depthwise 64, k5, bf16", "dw"),
            ),
            against=(
                *_measured_cpu("1-D depthwise 256, k31, bf16", "dw"),
                *_measured_cpu("3-D depthwise 32, k3, bf16", "dw"),
            ),
        ),
        Rule(
            name="no instructions for bfloat16",
            when={"dtype": "bfloat16", "multiplies_bfloat16": False},
            choice="float32",
            reason="oneDNN widens bfloat16 at every use, and here it is widened once",
            evidence=(
                *_measured_cpu("3 to 64, k3, bf16", "fprop"),
                *_measured_cpu("64 to 3, k3, bf16", "dx"),
                *_measured_cpu("stem 3 to 64, k7 s2, bf16", "fprop"),
                *_measured_cpu("9 to 32, k3, bf16", "fprop"),
                *_measured_cpu("32 to 9, k3, bf16", "dx"),
                *_measured_cpu("65 to 64, k3, bf16", "fprop"),
                *_measured_cpu("64 to 65, k3, bf16", "dx"),
                *_measured_cpu("1-D 1 to 64, k15, bf16", "fprop"),
                *_measured_cpu("1-D 64 to 1, k15, bf16", "dx"),
                *_measured_cpu("4 groups of 3 to 16, k3, bf16", "fprop"),
                *_measured_cpu("4 groups of 16 to 3, k3, bf16", "dx"),
                *_measured_cpu("3-D 1 to 32, k3, bf16", "fprop"),
                *_measured_cpu("depthwise 24, k3 s2, bf16", "dx"),
                *_measured_cpu("depthwise 64, k3 s2, bf16", "dx"),
                *_measured_cpu("depthwise 96, k3 s2, bf16", "dx"),
                *_measured_cpu("depthwise 240, k5 s2, bf16", "dx"),
                *_measured_cpu("64 to 64, k3, bf16", "fprop", "dx", "dw"),
                *_measured_cpu("128 to 256, k3 s2, bf16", "fprop", "dx", "dw"),
                *_measured_cpu("64 to 256, k1, bf16", "fprop", "dx", "dw"),
                *_measured_cpu("4 to 32, k3, bf16", "fprop", "dx", "dw"),
                *_measured_cpu("3 to 64, k7 s2, bf16", "dw"),
                *_measured_cpu("1-D 64 to 64, k3, bf16", "fprop", "dx", "dw"),
                *_measured_cpu("3-D 16 to 16, k3, bf16", "fprop", "dx", "dw"),
                *_measured_cpu("32 groups, 128 to 128, k3, bf16", "fprop", "dx", "dw"),
                *_measured_cpu("depthwise 96, k7, bf16", "fprop", "dx", "dw"),
                *_measured_cpu("depthwise 240, k5, bf16", "fprop", "dx", "dw"),
            ),
        ),
        Rule(
            name="dX of strided depthwise windows in bfloat16",
            when={
                "dtype": "bfloat16",
                "operator": "conv_dgrad",
                "multiplier": 1,
                "is_strided": True,
            },
            choice="float32",
            reason="some of oneDNN's kernels for it read pairs of channels, and a depthwise layer has none",
            evidence=(
                *_measured_amx("depthwise 24, k3 s2, bf16", "dx"),
                *_measured_amx("depthwise 64, k3 s2, bf16", "dx"),
                *_measured_amx("depthwise 96, k3 s2, bf16", "dx"),
                *_measured_amx("depthwise 240, k5 s2, bf16", "dx"),
            ),
            device_class="amx",
        ),
        Rule(
            name="bfloat16 with an odd number of channels",
            when={"dtype": "bfloat16", "sums_pairs": False, "multiplier": none_of(1)},
            choice="zero_channel",
            reason="the last channel needs a partner, since oneDNN reads pairs of channels",
            evidence=(
                *_measured_amx("3 to 64, k3, bf16", "fprop"),
                *_measured_amx("64 to 3, k3, bf16", "dx"),
                *_measured_amx("stem 3 to 64, k7 s2, bf16", "fprop"),
                *_measured_amx("9 to 32, k3, bf16", "fprop"),
                *_measured_amx("32 to 9, k3, bf16", "dx"),
                *_measured_amx("65 to 64, k3, bf16", "fprop"),
                *_measured_amx("64 to 65, k3, bf16", "dx"),
                *_measured_amx("1-D 1 to 64, k15, bf16", "fprop"),
                *_measured_amx("1-D 64 to 1, k15, bf16", "dx"),
            ),
            against=(
                *_measured_amx("4 groups of 3 to 16, k3, bf16", "fprop"),
                *_measured_amx("4 groups of 16 to 3, k3, bf16", "dx"),
                *_measured_amx("3-D 1 to 32, k3, bf16", "fprop"),
            ),
            device_class="amx",
        ),
        Rule(
            name="instructions for bfloat16",
            when={"dtype": "bfloat16", "multiplies_bfloat16": True},
            choice="none",
            reason="the processor multiplies bfloat16 as it is",
            evidence=(
                *_measured_amx("64 to 64, k3, bf16", "fprop", "dx", "dw"),
                *_measured_amx("128 to 256, k3 s2, bf16", "fprop", "dx", "dw"),
                *_measured_amx("64 to 256, k1, bf16", "fprop", "dx", "dw"),
                *_measured_amx("4 to 32, k3, bf16", "fprop", "dx", "dw"),
                *_measured_amx("3 to 64, k7 s2, bf16", "dw"),
                *_measured_amx("1-D 64 to 64, k3, bf16", "fprop", "dx", "dw"),
                *_measured_amx("3-D 16 to 16, k3, bf16", "fprop", "dx", "dw"),
                *_measured_amx("32 groups, 128 to 128, k3, bf16", "fprop", "dx"),
                *_measured_amx("depthwise 128, k3, bf16", "fprop", "dx", "dw"),
                *_measured_amx("depthwise 96, k3 s2, bf16", "fprop", "dw"),
                *_measured_amx("depthwise 32, k3, bf16", "fprop", "dx", "dw"),
                *_measured_amx("depthwise 240, k5, bf16", "fprop", "dx"),
                *_measured_amx("depthwise 672, k5 s2, bf16", "fprop", "dw"),
                *_measured_amx("1-D depthwise 64, k5, bf16", "dw"),
                *_measured_amx("3-D depthwise 32, k3, bf16", "dw"),
            ),
            against=(
                *_measured_amx("32 groups, 128 to 128, k3, bf16", "dw"),
                *_measured_amx("depthwise 96, k7, bf16", "fprop", "dx", "dw"),
                *_measured_amx("depthwise 240, k5, bf16", "dw"),
                *_measured_amx("1-D depthwise 256, k31, bf16", "dw"),
            ),
            device_class="amx",
        ),
        Rule(
            name="operands as they are",
            when={},
            choice="none",
            reason="the handler takes the operands as they are",
            evidence=(),
        ),
    ),
)

SM_90 = RuleTable(
    "sm_90",
    PreparationFeatures,
    (
        Rule(
            name="uneven padding of weight gradients in full precision",
            when=tuple(
                {
                    "operator": "conv_wgrad",
                    "has_uneven_padding": True,
                    "multiplier": none_of(1),
                    **precision,
                }
                for precision in ({"dtype": "float64"}, {"is_strict": True})
            ),
            choice="even_padding",
            reason="cuDNN's fast engines compute these wrongly where the padding is uneven",
            evidence=(
                *_measured_cuda("128 to 128, k3 s2, f32", "dw"),
                *_measured_cuda("128 to 128, k3 s2, f64", "dw"),
                *_measured_cuda("64 to 64, k4, f32", "dw"),
                *_measured_cuda("64 to 64, k4, f64", "dw"),
                *_measured_cuda("1-D 64 to 64, k3, causal, f32", "dw"),
                *_measured_cuda("1-D 64 to 64, k3, causal, f64", "dw"),
                *_measured_cuda("3-D 32 to 32, k3 s2, f32", "dw"),
            ),
            against=(*_measured_cuda("3-D 32 to 32, k3 s2, f64", "dw"),),
        ),
        Rule(
            name="weights that thin kernels read as they lie",
            when={"thin_leads": True, "has_xio_weights": True, "widens": False},
            choice="xio_weights",
            reason="XLA would reorder the weights at every call",
            evidence=(
                *_measured_cuda("stem 3 to 64, k7 s2, bf16", "dx", "dw"),
                *_measured_cuda("3 to 32, k3 s2, bf16", "fprop", "dw"),
                *_measured_cuda("64 to 3, k3, bf16", "fprop", "dx", "dw"),
                *_measured_cuda("256 to 4, k3, bf16", "fprop", "dx", "dw"),
                *_measured_cuda("1-D 1 to 32, k7, bf16", "fprop", "dw"),
                *_measured_cuda("patches 3 to 768, k16, bf16", "fprop"),
                *_measured_cuda("stem 3 to 64, k7 s2, f32", "dw"),
                *_measured_cuda("64 to 3, k3, f32", "fprop", "dx", "dw"),
                *_measured_h200("3-D 16 to 16, k3, bf16", "fprop", "dx", "dw"),
            ),
            against=(
                *_measured_cuda("stem 3 to 64, k7 s2, bf16", "fprop"),
                *_measured_cuda("patches 3 to 768, k16, bf16", "dw"),
                *_measured_cuda("stem 3 to 64, k7 s2, f32", "fprop"),
            ),
        ),
        Rule(
            name="weights that implicit GEMM reads as they lie",
            when={"has_implicit_gemm": True, "has_xio_weights": True, "widens": False},
            choice="xio_weights",
            reason="XLA would reorder the weights at every call",
            evidence=(
                *_measured_h200("32 to 32, k3, bf16", "fprop", "dx", "dw"),
                *_measured_h200("64 to 64, k3, bf16", "fprop", "dx", "dw"),
                *_measured_h200("1-D 32 to 32, k11, bf16", "fprop", "dx", "dw"),
                *_measured_h200("32 to 32, k3, f32", "fprop", "dx", "dw"),
                *_measured_h200("64 to 64, k3, f32", "fprop", "dw"),
                *_measured_h200("1-D 32 to 32, k11, f32", "fprop", "dx", "dw"),
            ),
            against=(*_measured_h200("64 to 64, k3, f32", "dx"),),
        ),
        Rule(
            name="operands as they are",
            when={},
            choice="none",
            reason="the handler takes the operands as they are",
            evidence=(),
        ),
    ),
)

"""Whether a backward pass is one call or its parts, on a CPU (benchmarks/cpu/backward.json).

The rules are asked about what the kernel can compute: depthwise layers, one filter a channel. One sweep
loads each element of dy once, for dx and for dw. The parts are faster where rows are short, and for many
layers in bfloat16.
"""

from __future__ import annotations

from jax_convgrad._src.dispatch.features import BackwardFeatures
from jax_convgrad._src.dispatch.rules import Rule, RuleTable, at_least


def _measured(*cases: str) -> tuple[str, ...]:
    return tuple(f"cpu/backward.json#{case}#backward" for case in cases)


_BOTH = {"wants_both": True, "channels": at_least(16)}

AVX512 = RuleTable(
    "avx512",
    BackwardFeatures,
    (
        Rule(
            name="depthwise signals and volumes",
            when={**_BOTH, "spatial_rank": frozenset({1, 3}), "is_strided": False},
            choice="native",
            reason="oneDNN has depthwise kernels for two spatial axes only",
            evidence=_measured(
                "Conformer 1-D 400, 256, k31, float32, dx dw db",
                "Conformer 1-D 400, 256, k31, float32, dx dw",
                "Mamba 1-D 1024, 768, k4, float32, dx dw db",
                "Mamba 1-D 1024, 768, k4, float32, dx dw",
                "3-D 16x16x16, 32, k3, float32, dx dw db",
                "3-D 16x16x16, 32, k3, float32, dx dw",
                "Conformer 1-D 400, 256, k31, bfloat16, dx dw db",
                "Conformer 1-D 400, 256, k31, bfloat16, dx dw",
                "Mamba 1-D 1024, 768, k4, bfloat16, dx dw db",
                "Mamba 1-D 1024, 768, k4, bfloat16, dx dw",
                "3-D 16x16x16, 32, k3, bfloat16, dx dw db",
                "3-D 16x16x16, 32, k3, bfloat16, dx dw",
            ),
        ),
        Rule(
            name="depthwise images, float32",
            when=tuple(
                {**_BOTH, "spatial_rank": 2, "is_strided": False, "dtype": "float32", **rest}
                for rest in (
                    {"inner_size": at_least(56)},
                    {"taps": at_least(49)},
                )
            ),
            choice="native",
            reason="one sweep reads dy once for all gradients",
            evidence=_measured(
                "MobileNet 112x112, 32, k3, float32, dx dw db",
                "MobileNet 112x112, 32, k3, float32, dx dw",
                "MobileNet 56x56, 128, k3, float32, dx dw db",
                "MobileNet 56x56, 128, k3, float32, dx dw",
                "MobileNetV2 56x56, 144, k3, float32, dx dw db",
                "MobileNetV2 56x56, 144, k3, float32, dx dw",
                "ConvNeXt 56x56, 96, k7, float32, dx dw db",
                "ConvNeXt 56x56, 96, k7, float32, dx dw",
                "ConvNeXt 28x28, 192, k7, float32, dx dw db",
                "ConvNeXt 28x28, 192, k7, float32, dx dw",
                "ConvNeXt 14x14, 384, k7, float32, dx dw db",
                "ConvNeXt 14x14, 384, k7, float32, dx dw",
                "ConvNeXt 7x7, 768, k7, float32, dx dw db",
                "ConvNeXt 7x7, 768, k7, float32, dx dw",
            ),
        ),
        Rule(
            name="depthwise images, bfloat16 and strided",
            when={**_BOTH, "spatial_rank": 2, "is_strided": True, "dtype": "bfloat16"},
            choice="native",
            reason="oneDNN's strided input gradients of bfloat16 run in float32",
            evidence=_measured(
                "MobileNet 112x112, 64, k3 s2, bfloat16, dx dw db",
                "MobileNet 112x112, 64, k3 s2, bfloat16, dx dw",
                "MobileNet 56x56, 128, k3 s2, bfloat16, dx dw db",
                "MobileNet 56x56, 128, k3 s2, bfloat16, dx dw",
                "EfficientNet 14x14, 672, k5 s2, bfloat16, dx dw db",
                "EfficientNet 14x14, 672, k5 s2, bfloat16, dx dw",
            ),
        ),
        Rule(
            name="parts",
            when={},
            choice="parts",
            reason="the parts have kernels of their own, which are faster",
            evidence=_measured(
                "MobileNet 112x112, 64, k3 s2, float32, dx dw",
                "MobileNet 56x56, 128, k3 s2, float32, dx dw db",
                "MobileNet 56x56, 128, k3 s2, float32, dx dw",
                "MobileNet 14x14, 512, k3, float32, dx dw db",
                "MobileNet 14x14, 512, k3, float32, dx dw",
                "MobileNet 7x7, 1024, k3, float32, dx dw db",
                "MobileNet 7x7, 1024, k3, float32, dx dw",
                "EfficientNet 28x28, 240, k5, float32, dx dw db",
                "EfficientNet 14x14, 672, k5 s2, float32, dx dw db",
                "EfficientNet 14x14, 672, k5 s2, float32, dx dw",
                "thin 56x56, 8, k3, float32, dx dw db",
                "thin 56x56, 8, k3, float32, dx dw",
                "MobileNet 112x112, 32, k3, bfloat16, dx dw",
                "MobileNet 28x28, 256, k3, bfloat16, dx dw db",
                "MobileNet 28x28, 256, k3, bfloat16, dx dw",
                "MobileNet 14x14, 512, k3, bfloat16, dx dw db",
                "MobileNet 14x14, 512, k3, bfloat16, dx dw",
                "MobileNet 7x7, 1024, k3, bfloat16, dx dw db",
                "MobileNet 7x7, 1024, k3, bfloat16, dx dw",
                "EfficientNet 28x28, 240, k5, bfloat16, dx dw db",
                "EfficientNet 28x28, 240, k5, bfloat16, dx dw",
                "ConvNeXt 7x7, 768, k7, bfloat16, dx dw db",
                "ConvNeXt 7x7, 768, k7, bfloat16, dx dw",
                "thin 56x56, 8, k3, bfloat16, dx dw db",
                "thin 56x56, 8, k3, bfloat16, dx dw",
            ),
            against=_measured(
                "MobileNet 112x112, 64, k3 s2, float32, dx dw db",
                "MobileNet 28x28, 256, k3, float32, dx dw db",
                "MobileNet 28x28, 256, k3, float32, dx dw",
                "EfficientNet 28x28, 240, k5, float32, dx dw",
                "tiny 8x8, 16, k3, float32, dx dw db",
                "tiny 8x8, 16, k3, float32, dx dw",
                "MobileNet 112x112, 32, k3, bfloat16, dx dw db",
                "MobileNet 56x56, 128, k3, bfloat16, dx dw db",
                "MobileNet 56x56, 128, k3, bfloat16, dx dw",
                "MobileNetV2 56x56, 144, k3, bfloat16, dx dw db",
                "MobileNetV2 56x56, 144, k3, bfloat16, dx dw",
                "ConvNeXt 56x56, 96, k7, bfloat16, dx dw db",
                "ConvNeXt 56x56, 96, k7, bfloat16, dx dw",
                "ConvNeXt 28x28, 192, k7, bfloat16, dx dw db",
                "ConvNeXt 28x28, 192, k7, bfloat16, dx dw",
                "ConvNeXt 14x14, 384, k7, bfloat16, dx dw db",
                "ConvNeXt 14x14, 384, k7, bfloat16, dx dw",
                "tiny 8x8, 16, k3, bfloat16, dx dw db",
                "tiny 8x8, 16, k3, bfloat16, dx dw",
            ),
        ),
    ),
)

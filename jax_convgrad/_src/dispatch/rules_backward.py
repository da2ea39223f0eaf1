"""Whether a backward pass is one call or its parts, on a CPU (benchmarks/cpu/backward*.json).

The rules are asked about what the kernel can compute: depthwise layers, one filter a channel. One sweep
loads each element of dy once, for dx and for dw. Two processors were measured. On both the parts are faster
where rows are short; where bfloat16 is multiplied by instructions of its own, they are for many layers in it.
"""

from __future__ import annotations

from jax_convgrad._src.dispatch.features import BackwardFeatures
from jax_convgrad._src.dispatch.rules import Rule, RuleTable, at_least

_WANTED = ("dx dw db", "dx dw")


def _measured(*cases: str) -> tuple[str, ...]:
    """On a processor that does not multiply bfloat16."""
    return tuple(f"cpu/backward.json#{case}#backward" for case in cases)


def _measured_native(*cases: str) -> tuple[str, ...]:
    """On one that does."""
    return tuple(f"cpu/backward_native_bfloat16.json#{case}#backward" for case in cases)


def _each(*layers: str) -> tuple[str, ...]:
    """With the gradient of a bias and without."""
    return tuple(f"{layer}, {wanted}" for layer in layers for wanted in _WANTED)


_BOTH = {"wants_both": True, "channels": at_least(8)}
_FLOAT32 = (
    "MobileNet 112x112, 32, k3, float32",
    "MobileNet 56x56, 128, k3, float32",
    "MobileNet 28x28, 256, k3, float32",
    "MobileNetV2 56x56, 144, k3, float32",
    "EfficientNet 28x28, 240, k5, float32",
    "ConvNeXt 56x56, 96, k7, float32",
    "ConvNeXt 28x28, 192, k7, float32",
    "ConvNeXt 14x14, 384, k7, float32",
    "ConvNeXt 7x7, 768, k7, float32",
)
_STRIDED_BFLOAT16 = (
    "MobileNet 112x112, 64, k3 s2, bfloat16",
    "MobileNet 56x56, 128, k3 s2, bfloat16",
    "EfficientNet 14x14, 672, k5 s2, bfloat16",
)

AVX512 = RuleTable(
    "avx512",
    BackwardFeatures,
    (
        Rule(
            name="depthwise signals and volumes",
            when=tuple(
                {**_BOTH, "is_strided": False, **rest}
                for rest in (
                    {"spatial_rank": 3},
                    {"spatial_rank": 1, "dtype": "bfloat16"},
                    {"spatial_rank": 1, "taps": at_least(9)},
                )
            ),
            choice="native",
            reason="one sweep reads dy once for all gradients",
            evidence=_measured(
                *_each(
                    "Conformer 1-D 400, 256, k31, float32",
                    "3-D 16x16x16, 32, k3, float32",
                    "Conformer 1-D 400, 256, k31, bfloat16",
                    "Mamba 1-D 1024, 768, k4, bfloat16",
                    "3-D 16x16x16, 32, k3, bfloat16",
                )
            ),
        ),
        Rule(
            name="depthwise images, float32",
            when=tuple(
                {**_BOTH, "spatial_rank": 2, "is_strided": False, "dtype": "float32", **rest}
                for rest in ({"inner_size": at_least(28)}, {"taps": at_least(49)})
            ),
            choice="native",
            reason="one sweep reads dy once for all gradients",
            evidence=(
                *_measured(*_each(*_FLOAT32, "thin 56x56, 8, k3, float32")),
                *_measured_native(*_each(*_FLOAT32)),
            ),
        ),
        Rule(
            name="depthwise images, bfloat16 and strided",
            when={**_BOTH, "spatial_rank": 2, "is_strided": True, "dtype": "bfloat16"},
            choice="native",
            reason="oneDNN's strided input gradients of bfloat16 run in float32",
            evidence=(
                *_measured(*_each(*_STRIDED_BFLOAT16)),
                *_measured_native(*_each(*_STRIDED_BFLOAT16)),
            ),
        ),
        Rule(
            name="depthwise images, no instructions for bfloat16",
            when={
                **_BOTH,
                "spatial_rank": 2,
                "is_strided": False,
                "dtype": "bfloat16",
                "multiplies_bfloat16": False,
            },
            choice="native",
            reason="one sweep widens bfloat16 once for all gradients",
            evidence=(
                *_measured(
                    "MobileNet 112x112, 32, k3, bfloat16, dx dw db",
                    "MobileNet 112x112, 32, k3, bfloat16, dx dw",
                    "MobileNet 56x56, 128, k3, bfloat16, dx dw db",
                    "MobileNet 56x56, 128, k3, bfloat16, dx dw",
                    "MobileNet 28x28, 256, k3, bfloat16, dx dw db",
                    "MobileNet 28x28, 256, k3, bfloat16, dx dw",
                    "MobileNet 14x14, 512, k3, bfloat16, dx dw db",
                    "MobileNet 14x14, 512, k3, bfloat16, dx dw",
                    "MobileNet 7x7, 1024, k3, bfloat16, dx dw db",
                    "MobileNet 7x7, 1024, k3, bfloat16, dx dw",
                    "MobileNetV2 56x56, 144, k3, bfloat16, dx dw db",
                    "MobileNetV2 56x56, 144, k3, bfloat16, dx dw",
                    "EfficientNet 28x28, 240, k5, bfloat16, dx dw db",
                    "EfficientNet 28x28, 240, k5, bfloat16, dx dw",
                    "ConvNeXt 56x56, 96, k7, bfloat16, dx dw db",
                    "ConvNeXt 28x28, 192, k7, bfloat16, dx dw db",
                    "ConvNeXt 28x28, 192, k7, bfloat16, dx dw",
                    "ConvNeXt 14x14, 384, k7, bfloat16, dx dw db",
                    "ConvNeXt 14x14, 384, k7, bfloat16, dx dw",
                    "ConvNeXt 7x7, 768, k7, bfloat16, dx dw db",
                    "ConvNeXt 7x7, 768, k7, bfloat16, dx dw",
                    "thin 56x56, 8, k3, bfloat16, dx dw db",
                    "thin 56x56, 8, k3, bfloat16, dx dw",
                    "tiny 8x8, 16, k3, bfloat16, dx dw db",
                    "tiny 8x8, 16, k3, bfloat16, dx dw",
                ),
            ),
            against=(
                *_measured(
                    "ConvNeXt 56x56, 96, k7, bfloat16, dx dw",
                ),
            ),
        ),
        Rule(
            name="parts",
            when={},
            choice="parts",
            reason="the parts have kernels of their own, which are faster",
            evidence=(
                *_measured(
                    "MobileNet 112x112, 64, k3 s2, float32, dx dw",
                    "MobileNet 56x56, 128, k3 s2, float32, dx dw db",
                    "MobileNet 14x14, 512, k3, float32, dx dw",
                    "MobileNet 7x7, 1024, k3, float32, dx dw db",
                    "MobileNet 7x7, 1024, k3, float32, dx dw",
                    "EfficientNet 14x14, 672, k5 s2, float32, dx dw db",
                    "Mamba 1-D 1024, 768, k4, float32, dx dw db",
                    "Mamba 1-D 1024, 768, k4, float32, dx dw",
                    "tiny 8x8, 16, k3, float32, dx dw",
                ),
                *_measured_native(
                    "MobileNet 112x112, 64, k3 s2, float32, dx dw",
                    "MobileNet 56x56, 128, k3 s2, float32, dx dw db",
                    "MobileNet 56x56, 128, k3 s2, float32, dx dw",
                    "MobileNet 14x14, 512, k3, float32, dx dw db",
                    "MobileNet 14x14, 512, k3, float32, dx dw",
                    "MobileNet 7x7, 1024, k3, float32, dx dw db",
                    "MobileNet 7x7, 1024, k3, float32, dx dw",
                    "EfficientNet 14x14, 672, k5 s2, float32, dx dw db",
                    "EfficientNet 14x14, 672, k5 s2, float32, dx dw",
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
                ),
            ),
            against=(
                *_measured(
                    "MobileNet 112x112, 64, k3 s2, float32, dx dw db",
                    "MobileNet 56x56, 128, k3 s2, float32, dx dw",
                    "MobileNet 14x14, 512, k3, float32, dx dw db",
                    "EfficientNet 14x14, 672, k5 s2, float32, dx dw",
                    "tiny 8x8, 16, k3, float32, dx dw db",
                ),
                *_measured_native(
                    "MobileNet 112x112, 64, k3 s2, float32, dx dw db",
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
    ),
)

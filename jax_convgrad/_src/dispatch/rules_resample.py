"""Which resamples the platform's own kernel computes: one pass over memory for all axes."""

from __future__ import annotations

from jax_convgrad._src.dispatch.features import ResampleFeatures
from jax_convgrad._src.dispatch.rules import Rule, RuleTable


def _measured_cpu(case: str, *passes: str) -> tuple[str, ...]:
    return tuple(f"cpu/backends.json#{case}#{pass_}" for pass_ in passes)


def _measured_cuda(case: str, *passes: str) -> tuple[str, ...]:
    return tuple(f"h100/backends.json#{case}#{pass_}" for pass_ in passes)


AMX = RuleTable(
    "amx",
    ResampleFeatures,
    (
        Rule(
            name="copies",
            when={"copies": True},
            choice="xla",
            reason="XLA:CPU copies elements faster than the kernel sums them",
            evidence=(
                *_measured_cpu("resize nearest2x bf16 (2x32x32, 128 to 64x64, nearest)", "fprop"),
                *_measured_cpu("resize nearest2x f32 (2x32x32, 128 to 64x64, nearest)", "fprop"),
            ),
        ),
        Rule(
            name="sums",
            when={},
            choice="native",
            reason="the kernel passes over memory once for all axes",
            evidence=(
                *_measured_cpu(
                    "resize lanczos_down f32 (8x256x256, 3 to 112x112, lanczos3 antialias)",
                    "dx",
                    "fprop",
                ),
                *_measured_cpu(
                    "resize linear_aa_down f32 (8x256x256, 3 to 112x112, linear antialias)",
                    "fprop",
                    "dx",
                ),
                *_measured_cpu(
                    "resize deeplab_ac f32 (2x33x33, 21 to 257x257, linear align_corners)",
                    "dx",
                    "fprop",
                ),
                *_measured_cpu("resize trilinear2x f32 (1x32x32x32, 16 to 64x64x64, linear)", "dx"),
            ),
            against=(
                *_measured_cpu(
                    "resize trilinear2x f32 (1x32x32x32, 16 to 64x64x64, linear)", "fprop"
                ),
                *_measured_cpu("resize odd_scale f32 (2x75x113, 32 to 187x301, linear)", "dx"),
            ),
        ),
    ),
)

SM_90 = RuleTable(
    "sm_90",
    ResampleFeatures,
    (
        Rule(
            name="copies that grow, float32",
            when={"copies": True, "grows": True, "dtype": "float32"},
            choice="xla",
            reason="XLA copies float32 elements as fast as the kernel, and fuses the copy",
            evidence=(
                *_measured_cuda("resize nearest2x f32 (8x64x64, 512 to 128x128, nearest)", "fprop"),
            ),
        ),
        Rule(
            name="sums and other copies",
            when={},
            choice="native",
            reason="the kernel passes over memory once for all axes",
            evidence=(
                *_measured_cuda(
                    "resize nearest_down2x bf16 (8x128x128, 512 to 64x64, nearest)", "dx"
                ),
                *_measured_cuda(
                    "resize nearest2x bf16 (8x64x64, 512 to 128x128, nearest)", "fprop"
                ),
            ),
            against=(
                *_measured_cuda(
                    "resize nearest_down2x bf16 (8x128x128, 512 to 64x64, nearest)", "fprop"
                ),
                *_measured_cuda(
                    "resize nearest_down2x f32 (8x128x128, 512 to 64x64, nearest)", "fprop", "dx"
                ),
            ),
        ),
    ),
)

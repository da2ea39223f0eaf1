"""The backend of a convolution on CUDA, as measured on an H100, benchmarks/h100/backends.json, thin.json and
thin_f32.json, and on H200s: benchmarks/h200/windows.json (windows side by side in 16 bits), thin_odd.json
(channels of odd numbers beside thin images), highres.json and highres_f32.json (8 to 64 channels in 16 bits
and in TF32).

Where cuDNN and XLA's program for the same operator tie, the rule chooses XLA, which fuses, unless other
layers of the rule gain from cuDNN or there is nothing to fuse.
"""

from __future__ import annotations

from jax_convgrad._src.dispatch.features import ConvFeatures
from jax_convgrad._src.dispatch.rules import Rule, RuleTable, at_least, at_most, between, none_of


def _measured(case: str, *passes: str) -> tuple[str, ...]:
    return tuple(f"h100/backends.json#{case}#{pass_}" for pass_ in passes)


def _thin(case: str, *passes: str) -> tuple[str, ...]:
    return tuple(f"h100/thin.json#{case}#{pass_}" for pass_ in passes)


def _thin_f32(case: str, *passes: str) -> tuple[str, ...]:
    return tuple(f"h100/thin_f32.json#{case}#{pass_}" for pass_ in passes)


def _windows(case: str, *passes: str) -> tuple[str, ...]:
    return tuple(f"h200/windows.json#{case}#{pass_}" for pass_ in passes)


def _thin_odd(case: str, *passes: str) -> tuple[str, ...]:
    return tuple(f"h200/thin_odd.json#{case}#{pass_}" for pass_ in passes)


def _highres(case: str, *passes: str) -> tuple[str, ...]:
    return tuple(f"h200/highres.json#{case}#{pass_}" for pass_ in passes)


def _highres_f32(case: str, *passes: str) -> tuple[str, ...]:
    return tuple(f"h200/highres_f32.json#{case}#{pass_}" for pass_ in passes)


def _in_a_program(pass_: str, *programs: str) -> tuple[str, ...]:
    return tuple(f"h100/dense_steps.json#{program}#{pass_}" for program in programs)


_HALF = {"float16", "bfloat16"}
# Strided layers with one group for which cuDNN has float64 engines.
_DOUBLE = {
    "dtype": "float64",
    "is_strided": True,
    "is_dense": True,
    "is_dilated": False,
    "is_cropped": False,
}
_DEPTHWISE = {"is_depthwise": True, "multiplier": 1}
_GROUPED = {"is_dense": False}
_SMALL_PATCHES = {"in_channels": at_most(4), "out_channels": at_most(128), "taps": at_most(16)}
_FEW_TO_MANY = {"in_channels": at_most(16), "out_channels": at_least(256), "taps": at_least(2)}
# Windows that do not overlap.
_PATCHES = {"has_nonoverlapping_windows": True}
_LARGE_DX = {"operator": "conv_dgrad", "taps": at_least(16)}
_SEQUENCE = {
    **_PATCHES,
    "thin_family": "windows",
    "spatial_rank": 1,
    "taps": at_least(2),
    "out_channels": at_least(65),
}
_FEW_ON_BOTH_SIDES = {
    "thin_family": "windows",
    "in_channels": at_most(64),
    "out_channels": at_most(64),
}


SM_90 = RuleTable(
    "sm_90",
    ConvFeatures,
    (
        Rule(
            name="wider result",
            when={"widens": True},
            choice="xla",
            reason="the handlers' results have the dtype of their operands",
            evidence=(),
        ),
        Rule(
            name="beyond memory",
            when={"is_beyond_memory": True},
            choice="cudnn",
            reason="XLA's forms store the padding and the zeros, which no memory can hold",
            evidence=(),
        ),
        Rule(
            name="symbolic channels",
            when={"known_channels": False},
            choice="cudnn",
            reason="a handler serves channels and windows of every size",
            evidence=(),
        ),
        Rule(
            name="small patches of thin images, except dX in 16 bits",
            when=(
                {
                    "thin_family": "windows",
                    "operator": {"conv_fprop", "conv_wgrad"},
                    **_SMALL_PATCHES,
                },
                {
                    "dtype": "float32",
                    "thin_family": {"image", "few_outputs"},
                    "has_nonoverlapping_windows": True,
                    **_SMALL_PATCHES,
                },
            ),
            choice="cudnn",
            reason="this project's kernel reads the image once, in place",
            evidence=(
                *_thin("conv convnext_stem bf16 (64x224x224, 3 to 96, k4 s4)", "fprop", "dw"),
                *_thin("conv swin3d_patch bf16 (4x96x96x96, 1 to 48, k2 s2)", "fprop", "dw"),
                *_thin_f32(
                    "conv convnext_stem_f32 f32 (64x224x224, 3 to 96, k4 s4)", "fprop", "dx", "dw"
                ),
            ),
        ),
        Rule(
            name="patches of thin images",
            when=(
                {**_PATCHES, "dtype": _HALF, "in_channels": at_most(4)},
                {**_PATCHES, "dtype": "float32", "allows_tf32": True, "in_channels": at_most(4)},
            ),
            choice="gemm",
            reason="a matrix product of patches is faster than a convolution of so thin an image",
            evidence=(
                *_windows(
                    "conv tubelet bf16 (4x16x224x224, 3 to 768, k2x16x16 s2x16x16)", "dx", "dw"
                ),
                *_windows(
                    "conv vit_patch16 bf16 (64x224x224, 3 to 768, k16 s16)", "fprop", "dx", "dw"
                ),
                *_windows(
                    "conv vit_patch14 bf16 (32x224x224, 3 to 1280, k14 s14)", "fprop", "dx", "dw"
                ),
                *_windows("conv vit_patch32 bf16 (64x224x224, 3 to 768, k32 s32)", "fprop", "dw"),
                *_windows(
                    "conv mae_patch16 bf16 (32x224x224, 3 to 1280, k16 s16)", "fprop", "dx", "dw"
                ),
                *_measured(
                    "conv vit_patch16 f32 (64x224x224, 3 to 768, k16 s16)", "fprop", "dw", "dx"
                ),
                *_measured("conv stem4 bf16 (64x224x224, 3 to 96, k4 s4)", "dx"),
            ),
            against=(
                *_windows("conv tubelet bf16 (4x16x224x224, 3 to 768, k2x16x16 s2x16x16)", "fprop"),
                *_windows("conv vit_patch8 bf16 (16x224x224, 3 to 384, k8 s8)", "fprop"),
                *_windows("conv vit14 bf16 (64x224x224, 3 to 1024, k14 s14)", "fprop"),
                *_windows("conv vit_patch32 bf16 (64x224x224, 3 to 768, k32 s32)", "dx"),
                *_windows("conv ast_patch16 bf16 (32x128x1024, 1 to 768, k16 s16)", "dx", "dw"),
            ),
        ),
        Rule(
            name="windows side by side along a sequence, in 16 bits",
            when=(
                {**_SEQUENCE, "operator": {"conv_fprop", "conv_dgrad"}},
                {**_SEQUENCE, "operator": "conv_wgrad", "in_channels": at_least(17)},
            ),
            choice="gemm",
            reason="windows are rows of a matrix as they lie, and nothing is copied for its product",
            evidence=(
                *_windows(
                    "conv conv1d_down4 bf16 (16x16384, 64 to 128, k4 s4)", "fprop", "dx", "dw"
                ),
                *_windows("convt up1d_4 bf16 (16x4096, 128 to 64, k4 s4)", "fprop", "dx", "dw"),
                *_windows("conv conv1d_patch16 bf16 (32x5000, 12 to 512, k8 s8)", "fprop", "dx"),
            ),
        ),
        Rule(
            name="windows side by side, thin on both sides",
            when=(
                {
                    **_FEW_ON_BOTH_SIDES,
                    "operator": {"conv_dgrad", "conv_wgrad"},
                    "taps": at_least(2),
                },
                {**_FEW_ON_BOTH_SIDES, "operator": "conv_fprop", "taps": between(2, 8)},
            ),
            choice="cudnn",
            reason="this project's kernel reads and writes every element once",
            evidence=(
                *_thin("conv segformer_reduce bf16 (8x128x128, 64 to 64, k8 s8)", "dx", "dw"),
                *_thin("convt sam_up2 bf16 (8x128x128, 64 to 32, k2 s2)", "fprop", "dx", "dw"),
                *_thin("convt unet3d_up bf16 (2x64x64x64, 64 to 32, k2 s2)", "fprop", "dx", "dw"),
                *_windows(
                    "convt nnunet_up bf16 (2x48x48x48, 64 to 32, k2 s2)", "fprop", "dx", "dw"
                ),
            ),
        ),
        Rule(
            name="dX of large patches, except by the kernels for windows",
            when=(
                {**_PATCHES, "dtype": _HALF, "thin_family": none_of("windows"), **_LARGE_DX},
                {**_PATCHES, "dtype": _HALF, "has_odd_channels": True, **_LARGE_DX},
                {**_PATCHES, "dtype": "float32", "allows_tf32": True, **_LARGE_DX},
            ),
            choice="gemm",
            reason="a matrix product writes each patch of dX once",
            evidence=(*_measured("conv reduce4 f32 (8x64x64, 128 to 128, k4 s4)", "dx"),),
        ),
        Rule(
            name="gradients of thin patches",
            when=(
                {
                    **_PATCHES,
                    "dtype": _HALF,
                    "operator": "conv_dgrad",
                    **_FEW_TO_MANY,
                    "taps": between(2, 15),
                },
                {
                    **_PATCHES,
                    "dtype": _HALF,
                    "operator": "conv_wgrad",
                    **_FEW_TO_MANY,
                    "taps": between(2, 4),
                },
                {
                    **_PATCHES,
                    "dtype": _HALF,
                    "operator": "conv_wgrad",
                    **_FEW_TO_MANY,
                    "taps": at_least(65),
                },
                {
                    **_PATCHES,
                    "dtype": "float32",
                    "allows_tf32": True,
                    "operator": {"conv_dgrad", "conv_wgrad"},
                    **_FEW_TO_MANY,
                },
            ),
            choice="gemm",
            reason="a matrix product reads the gradient of many channels once",
            evidence=(
                *_windows("conv patch2_16ch bf16 (64x64x64, 16 to 1536, k2 s2)", "dx", "dw"),
                *_windows("conv latent_patch2 bf16 (32x64x64, 16 to 1152, k2 s2)", "dx", "dw"),
                *_measured("conv patch2_16ch f32 (64x64x64, 16 to 1536, k2 s2)", "dx", "dw"),
                *_thin_f32("conv patch2_16ch_f32 f32 (64x64x64, 16 to 1536, k2 s2)", "dx"),
            ),
        ),
        Rule(
            name="patches of thin images, in 16 bits, except dX",
            when={
                "thin_family": "windows",
                "operator": {"conv_fprop", "conv_wgrad"},
                "in_channels": at_most(16),
                "taps": at_least(2),
            },
            choice="cudnn",
            reason="this project's kernel reads the image once, in place",
            evidence=(
                *_windows("conv patch4_8ch bf16 (64x128x128, 8 to 256, k4 s4)", "fprop", "dw"),
                *_windows("conv patch2_16ch bf16 (64x64x64, 16 to 1536, k2 s2)", "fprop"),
                *_windows("conv conv1d_patch16 bf16 (32x5000, 12 to 512, k8 s8)", "dw"),
            ),
            against=(*_windows("conv latent_patch2 bf16 (32x64x64, 16 to 1152, k2 s2)", "fprop"),),
        ),
        Rule(
            name="thin image",
            when={"thin_family": "image", "operator": {"conv_fprop", "conv_wgrad"}},
            choice="cudnn",
            reason="this project's kernels read the image once for all taps",
            evidence=(
                *_thin("conv stem7x7 bf16 (64x224x224, 3 to 64, k7 s2 p3)", "fprop", "dw"),
                *_thin("conv effnet_stem bf16 (64x224x224, 3 to 32, k3 s2 p1)", "fprop", "dw"),
                *_thin("conv vgg_stem bf16 (32x224x224, 3 to 64, k3 s1 p1)", "fprop", "dw"),
                *_thin("conv unet_stem bf16 (8x572x572, 1 to 64, k3 s1)", "fprop", "dw"),
                *_thin("conv sd_latent_in bf16 (8x64x64, 4 to 320, k3 s1 p1)", "fprop", "dw"),
                *_thin("conv dqn_in bf16 (256x84x84, 4 to 32, k8 s4)", "fprop", "dw"),
                *_thin("conv segformer_patch bf16 (16x512x512, 3 to 64, k7 s4 p3)", "fprop", "dw"),
                *_thin("convt dcgan_out bf16 (128x32x32, 128 to 3, k4 s2 p1)", "dx", "dw"),
                *_thin("convt fsrcnn_up bf16 (16x128x128, 56 to 1, k9 s3 p4 op2)", "dx", "dw"),
                *_thin("conv encodec_in bf16 (16x24000, 1 to 32, k7 s1 p3)", "fprop", "dw"),
                *_thin("conv demucs_in bf16 (4x343980, 2 to 48, k8 s4 p2)", "fprop", "dw"),
                *_thin_f32("conv stem7x7_f32 f32 (64x224x224, 3 to 64, k7 s2 p3)", "fprop", "dw"),
                *_thin_f32(
                    "conv inception_stem_f32 f32 (64x299x299, 3 to 32, k3 s2)", "fprop", "dw"
                ),
                *_thin_f32("conv encodec_in_f32 f32 (16x24000, 1 to 32, k7 s1 p3)", "fprop", "dw"),
                *_thin_f32(
                    "conv unet3d_in_f32 f32 (2x128x128x128, 1 to 32, k3 s1 p1)", "fprop", "dw"
                ),
                *_thin_f32("convt dcgan_out_f32 f32 (128x32x32, 128 to 3, k4 s2 p1)", "dx", "dw"),
                *_thin_f32("conv patch2_16ch_f32 f32 (64x64x64, 16 to 1536, k2 s2)", "fprop"),
                *_thin_f32("conv dqn_in_f32 f32 (256x84x84, 4 to 32, k8 s4)", "dw"),
                *_thin_odd(
                    "conv r3d_stem bf16 (8x16x112x112, 3 to 64, k3x7x7 s1x2x2 p1x3x3)",
                    "fprop",
                    "dw",
                ),
                *_thin_odd(
                    "conv r2plus1d_stem bf16 (8x16x112x112, 3 to 45, k1x7x7 s1x2x2 p0x3x3)",
                    "fprop",
                    "dw",
                ),
                *_thin_odd("conv med3d_stem bf16 (2x56x224x224, 1 to 64, k7 s2 p3)", "fprop", "dw"),
                *_thin_odd(
                    "conv slowfast_stem bf16 (4x32x224x224, 3 to 8, k5x7x7 s1x2x2 p2x3x3)",
                    "fprop",
                    "dw",
                ),
                *_thin_odd("conv deeplab_stem bf16 (16x513x513, 3 to 32, k3 s2 p1)", "fprop", "dw"),
                *_thin_odd("conv lenet_in bf16 (512x28x28, 1 to 6, k5 s1 p2)", "fprop", "dw"),
                *_thin_odd("conv basset_in bf16 (64x600, 4 to 300, k19 s1 p9)", "fprop", "dw"),
                *_thin_odd("conv basset_f32 f32 (64x600, 4 to 300, k19 s1 p9)", "fprop", "dw"),
            ),
            against=_thin_f32("conv dqn_in_f32 f32 (256x84x84, 4 to 32, k8 s4)", "fprop"),
        ),
        Rule(
            name="gradients of a thin y",
            when=(
                {"thin_family": "image", "operator": "conv_dgrad"},
                {"thin_family": "few_outputs", "operator": "conv_wgrad"},
            ),
            choice="cudnn",
            reason="this project's kernels read the result's gradient once for all taps",
            evidence=(
                *_thin("conv cyclegan_out bf16 (4x256x256, 64 to 3, k7 s1 p3)", "dx", "dw"),
                *_thin("conv edsr_out bf16 (8x192x192, 64 to 3, k3 s1 p1)", "dx", "dw"),
                *_thin("conv sd_out bf16 (8x64x64, 320 to 4, k3 s1 p1)", "dx", "dw"),
                *_thin("conv unet_mask_head bf16 (8x512x512, 64 to 2, k1 s1)", "dx", "dw"),
                *_thin("conv encodec_out bf16 (16x24000, 32 to 1, k7 s1 p3)", "dx", "dw"),
                *_thin("conv unet3d_head bf16 (2x128x128x128, 32 to 3, k1 s1)", "dx", "dw"),
                *_thin_f32("conv cyclegan_out_f32 f32 (4x256x256, 64 to 3, k7 s1 p3)", "dx", "dw"),
                *_thin_f32("conv stylegan_rgb_f32 f32 (8x256x256, 64 to 3, k1 s1)", "dx", "dw"),
                *_thin_f32("conv encodec_out_f32 f32 (16x24000, 32 to 1, k7 s1 p3)", "dx", "dw"),
                *_thin_odd("conv voc_head bf16 (8x256x256, 64 to 21, k1 s1)", "dx", "dw"),
                *_thin_odd("conv cityscapes_head bf16 (8x128x256, 256 to 19, k1 s1)", "dx", "dw"),
                *_thin_odd("conv totalseg_head bf16 (1x128x128x128, 32 to 25, k1 s1)", "dx", "dw"),
                *_thin_odd("conv voc_head_f32 f32 (8x256x256, 64 to 21, k1 s1)", "dx", "dw"),
            ),
        ),
        Rule(
            name="thin results",
            when=(
                {
                    "thin_family": "few_outputs",
                    "operator": "conv_fprop",
                    "is_strided": False,
                },
                {"thin_family": "few_outputs", "operator": "conv_dgrad"},
            ),
            choice="cudnn",
            reason="this project's kernel reads the other side once for each row of taps",
            evidence=(
                *_thin("conv cyclegan_out bf16 (4x256x256, 64 to 3, k7 s1 p3)", "fprop"),
                *_thin("conv edsr_out bf16 (8x192x192, 64 to 3, k3 s1 p1)", "fprop"),
                *_thin("conv sd_out bf16 (8x64x64, 320 to 4, k3 s1 p1)", "fprop"),
                *_thin("conv encodec_out bf16 (16x24000, 32 to 1, k7 s1 p3)", "fprop"),
                *_thin("conv unet_mask_head bf16 (8x512x512, 64 to 2, k1 s1)", "fprop"),
                *_thin("conv unet3d_head bf16 (2x128x128x128, 32 to 3, k1 s1)", "fprop"),
                *_thin_odd("conv voc_head bf16 (8x256x256, 64 to 21, k1 s1)", "fprop"),
                *_thin_odd("conv cityscapes_head bf16 (8x128x256, 256 to 19, k1 s1)", "fprop"),
                *_thin_odd("conv totalseg_head bf16 (1x128x128x128, 32 to 25, k1 s1)", "fprop"),
                *_thin_odd("conv med3d_stem bf16 (2x56x224x224, 1 to 64, k7 s2 p3)", "dx"),
                *_thin("conv stem7x7 bf16 (64x224x224, 3 to 64, k7 s2 p3)", "dx"),
                *_thin("conv effnet_stem bf16 (64x224x224, 3 to 32, k3 s2 p1)", "dx"),
                *_thin("conv vgg_stem bf16 (32x224x224, 3 to 64, k3 s1 p1)", "dx"),
                *_thin("conv unet3d_in bf16 (2x128x128x128, 1 to 32, k3 s1 p1)", "dx"),
                *_thin("convt dcgan_out bf16 (128x32x32, 128 to 3, k4 s2 p1)", "fprop"),
                *_thin("convt fsrcnn_up bf16 (16x128x128, 56 to 1, k9 s3 p4 op2)", "fprop"),
                *_thin("conv encodec_in bf16 (16x24000, 1 to 32, k7 s1 p3)", "dx"),
                *_thin("conv demucs_in bf16 (4x343980, 2 to 48, k8 s4 p2)", "dx"),
                *_thin_f32("conv stem7x7_f32 f32 (64x224x224, 3 to 64, k7 s2 p3)", "dx"),
                *_thin_f32("conv cyclegan_out_f32 f32 (4x256x256, 64 to 3, k7 s1 p3)", "fprop"),
                *_thin_f32("conv sdvae_out_f32 f32 (2x512x512, 128 to 3, k3 s1 p1)", "fprop"),
                *_thin_f32("conv unet3d_head_f32 f32 (2x128x128x128, 32 to 3, k1 s1)", "fprop"),
                *_thin_f32("convt demucs_out_f32 f32 (4x85000, 48 to 4, k8 s4 p2)", "fprop"),
            ),
        ),
        Rule(
            name="8 to 64 channels, unstrided, in 16 bits or TF32",
            when=(  # all others have cuDNN's search already
                {"has_implicit_gemm": True, "operator": "conv_fprop", "spatial_rank": at_most(2)},
                {"has_implicit_gemm": True, "is_dilated": True, "spatial_rank": 1},
            ),
            choice="cudnn",
            reason="this project's kernels read the image once for all taps",
            evidence=(
                *_highres("conv unet_64 bf16 (4x570x570, 64 to 64, k3 s1)", "fprop"),
                *_highres("conv unetpp_32 bf16 (8x512x512, 32 to 32, k3 s1 p1)", "fprop"),
                *_highres("conv u2net_d2 bf16 (8x160x160, 32 to 32, k3 s1 p2 d2)", "fprop"),
                *_highres("conv taesd_64 bf16 (2x512x512, 64 to 64, k3 s1 p1)", "fprop"),
                *_highres("conv hrnet_w48 bf16 (32x96x72, 48 to 48, k3 s1 p1)", "fprop"),
                *_highres("conv edsr_64 bf16 (16x96x96, 64 to 64, k3 s1 p1)", "fprop"),
                *_highres("conv esrgan_rdb1 bf16 (16x128x128, 64 to 32, k3 s1 p1)", "fprop"),
                *_highres("conv dncnn_64 bf16 (128x50x50, 64 to 64, k3 s1 p1)", "fprop"),
                *_highres("conv resnet20_32 bf16 (256x16x16, 32 to 32, k3 s1 p1)", "fprop"),
                *_highres("conv effnetv2_fused24 bf16 (32x192x192, 24 to 24, k3 s1 p1)", "fprop"),
                *_highres(
                    "conv hifigan_32 bf16 (16x8192, 32 to 32, k11 s1 p25 d5)", "fprop", "dx", "dw"
                ),
                *_highres(
                    "conv hifigan_64 bf16 (16x4096, 64 to 64, k7 s1 p9 d3)", "fprop", "dx", "dw"
                ),
                *_highres("conv bigvgan_24 bf16 (8x32768, 24 to 24, k11 s1 p5)", "fprop"),
                *_highres("conv waveunet_15 bf16 (16x16384, 24 to 48, k15 s1 p7)", "fprop"),
                *_highres("conv spliceai_k11 bf16 (12x15000, 32 to 32, k11 s1 p20 d4)", "dx", "dw"),
                *_highres(
                    "conv wavenet_64 bf16 (4x16000, 64 to 64, k3 s1 p8 d8)", "fprop", "dx", "dw"
                ),
                *_highres_f32("conv unetpp_32 f32 (8x256x256, 32 to 32, k3 s1 p1)", "fprop"),
                *_highres_f32("conv edsr_64 f32 (16x96x96, 64 to 64, k3 s1 p1)", "fprop"),
                *_highres_f32("conv dncnn_64 f32 (128x50x50, 64 to 64, k3 s1 p1)", "fprop"),
                *_highres_f32("conv stylegan2_64 f32 (4x256x256, 64 to 64, k3 s1 p1)", "fprop"),
                *_highres_f32("conv hrnet_w32 f32 (32x64x64, 32 to 32, k3 s1 p1)", "fprop"),
                *_highres_f32(
                    "conv hifigan_32 f32 (16x8192, 32 to 32, k11 s1 p25 d5)", "fprop", "dx", "dw"
                ),
                *_highres_f32(
                    "conv hifigan_64 f32 (16x4096, 64 to 64, k7 s1 p9 d3)", "fprop", "dx", "dw"
                ),
                *_highres_f32("conv bigvgan_24 f32 (8x32768, 24 to 24, k11 s1 p5)", "fprop"),
                *_highres_f32(
                    "conv spliceai_k11 f32 (12x15000, 32 to 32, k11 s1 p20 d4)", "fprop", "dx", "dw"
                ),
                *_highres_f32("conv waveunet_15 f32 (16x16384, 24 to 48, k15 s1 p7)", "fprop"),
            ),
        ),
        Rule(
            name="depthwise 3x3 forward, strided",
            when={
                **_DEPTHWISE,
                "operator": "conv_fprop",
                "kernel": (3, 3),
                "is_strided": True,
                "is_dilated": False,
            },
            choice="xla",
            reason="XLA calls the same kernel of cuDNN, and fuses",
            evidence=(
                *_measured("conv mobilenet_dw f32 (64x112x112, 96 to 96, k3 s2 p1 g96)", "fprop"),
                *_measured("conv mobilenet_dw bf16 (64x112x112, 96 to 96, k3 s2 p1 g96)", "fprop"),
            ),
        ),
        Rule(
            name="depthwise 7x7 dW, 16 bits",
            when={
                **_DEPTHWISE,
                "operator": "conv_wgrad",
                "dtype": _HALF,
                "kernel": (7, 7),
                "is_strided": False,
                "is_dilated": False,
            },
            choice="xla",
            reason="XLA calls the same kernel of cuDNN, and fuses",
            evidence=(
                *_measured("conv convnext_dw7 bf16 (64x14x14, 384 to 384, k7 s1 p3 g384)", "dw"),
                *_measured("conv convnext_dw7 bf16 (64x56x56, 96 to 96, k7 s1 p3 g96)", "dw"),
            ),
        ),
        Rule(
            name="depthwise",
            when=_DEPTHWISE,
            choice="cudnn",
            reason="this project has a fast kernel for one filter per channel, XLA does not",
            evidence=(
                *_measured(
                    "convt fcn8_up_g f32 (8x64x64, 21 to 21, k16 s8 p4 g21)", "fprop", "dw", "dx"
                ),
                *_measured(
                    "convt dla_dw_up bf16 (8x64x64, 256 to 256, k4 s2 p1 g256)", "fprop", "dx", "dw"
                ),
                *_measured(
                    "convt dla_dw_up f32 (8x64x64, 256 to 256, k4 s2 p1 g256)", "fprop", "dw", "dx"
                ),
                *_measured(
                    "conv convnext_dw7 f32 (64x56x56, 96 to 96, k7 s1 p3 g96)", "dw", "fprop", "dx"
                ),
            ),
        ),
        Rule(
            name="float64 forward, 3-D",
            when={**_DOUBLE, "operator": "conv_fprop", "spatial_rank": 3},
            choice="cudnn",
            reason="XLA transposes 3-D arrays",
            evidence=(*_measured("convt k4s2_3d f64 (2x12x12x12, 64 to 64, k4 s2 p1)", "dx"),),
            against=(*_measured("convt unet3d_up f64 (1x16x16x16, 64 to 32, k2 s2)", "dx"),),
        ),
        Rule(
            name="float64 dW",
            when={**_DOUBLE, "operator": "conv_wgrad"},
            choice="xla",
            reason="cuDNN's float64 engines change formats at each call, XLA only where it must",
            evidence=(
                *_measured("convt k4s2_3d f64 (2x12x12x12, 64 to 64, k4 s2 p1)", "dw"),
                *_measured("convt dcgan3 f64 (32x8x8, 512 to 256, k4 s2 p1)", "dw"),
                *_measured("convt k6s2 f64 (16x16x16, 128 to 128, k6 s2 p2)", "dw"),
                *_measured("convt k3s2p1op1 f64 (8x32x32, 128 to 64, k3 s2 p1 op1)", "dw"),
            ),
            against=(
                *_measured("convt unet3d_up f64 (1x16x16x16, 64 to 32, k2 s2)", "dw"),
                *_measured("convt unet_up f64 (2x32x32, 256 to 128, k2 s2)", "dw"),
                *_measured("convt unet_up_wide f64 (4x32x32, 512 to 256, k2 s2)", "dw"),
                *_measured("conv k3s2 f64 (16x64x64, 64 to 128, k3 s2 p1)", "dw"),
            ),
        ),
        Rule(
            name="float64 dX",
            when={**_DOUBLE, "operator": "conv_dgrad"},
            choice="xla",
            reason="cuDNN has no fast float64 engine where the sides' padding differs, and ties elsewhere",
            evidence=(
                *_measured("convt k3s2p1op1 f64 (8x32x32, 128 to 64, k3 s2 p1 op1)", "fprop"),
                *_measured("convt unet_up_wide f64 (4x32x32, 512 to 256, k2 s2)", "fprop"),
                *_measured("convt vocoder_up f64 (8x512, 256 to 128, k16 s8 p4)", "fprop"),
                *_measured("conv k3s2 f64 (16x64x64, 64 to 128, k3 s2 p1)", "dx"),
            ),
            against=(
                *_measured("convt unet3d_up f64 (1x16x16x16, 64 to 32, k2 s2)", "fprop"),
                *_measured("convt unet_up f64 (2x32x32, 256 to 128, k2 s2)", "fprop"),
            ),
        ),
        Rule(
            name="float64 forward",
            when={**_DOUBLE, "operator": "conv_fprop"},
            choice="xla",
            reason="XLA shares changes of format between a layer's operators",
            evidence=(
                *_measured("convt k3s2p1op1 f64 (8x32x32, 128 to 64, k3 s2 p1 op1)", "dx"),
                *_measured("convt dcgan3 f64 (32x8x8, 512 to 256, k4 s2 p1)", "dx"),
                *_measured("conv k5s2 f64 (16x64x64, 64 to 64, k5 s2 p2)", "fprop"),
                *_measured("convt dcgan4 f64 (32x16x16, 256 to 128, k4 s2 p1)", "dx"),
            ),
            against=(
                *_measured("convt unet_up f64 (2x32x32, 256 to 128, k2 s2)", "dx"),
                *_measured("conv resnet_3x3s2 f64 (16x56x56, 128 to 128, k3 s2 p1)", "fprop"),
                *_measured("convt k6s2 f64 (16x16x16, 128 to 128, k6 s2 p2)", "dx"),
            ),
        ),
        Rule(
            name="3-D",
            when={"spatial_rank": 3},
            choice="cudnn",
            reason="XLA transposes 3-D arrays",
            evidence=(
                *_measured("convt vnet_k3 f32 (2x32x32x32, 64 to 64, k3 s2 p1 op1)", "dx", "fprop"),
                *_measured(
                    "conv conv3d bf16 (2x32x32x32, 64 to 64, k3 s1 p1)", "dw", "fprop", "dx"
                ),
                *_measured("conv conv3d f32 (2x32x32x32, 64 to 64, k3 s1 p1)", "fprop", "dx", "dw"),
            ),
            against=_thin_odd(
                "conv r2plus1d_stem_f32 f32 (8x16x112x112, 3 to 45, k1x7x7 s1x2x2 p0x3x3)", "dx"
            ),
        ),
        Rule(
            name="dilated forward, 2-D",
            when={
                "operator": "conv_fprop",
                "is_dilated": True,
                "is_strided": False,
                "spatial_rank": 2,
            },
            choice="xla",
            reason="times tie, and XLA fuses",
            evidence=(
                *_measured("conv aspp_d12 bf16 (4x33x33, 2048 to 256, k3 s1 p12 d12)", "fprop"),
                *_measured("conv aspp_d12 f32 (4x33x33, 2048 to 256, k3 s1 p12 d12)", "fprop"),
            ),
        ),
        Rule(
            name="dilated dX, 1-D",
            when={
                "operator": "conv_dgrad",
                "is_dilated": True,
                "is_strided": False,
                "spatial_rank": 1,
            },
            choice="xla",
            reason="XLA's engine for the dX of dilated sequences is faster",
            evidence=(
                *_measured("conv wavenet_d512 f32 (4x16000, 128 to 128, k2 s1 p256 d512)", "dx"),
            ),
        ),
        Rule(
            name="dilated",
            when={"is_dilated": True},
            choice="cudnn",
            reason="XLA computes gradients of dilated kernels with windows as large as dy",
            evidence=(
                *_measured(
                    "conv wavenet_d512 f32 (4x16000, 128 to 128, k2 s1 p256 d512)", "dw", "fprop"
                ),
                *_measured("conv aspp_d12 bf16 (4x33x33, 2048 to 256, k3 s1 p12 d12)", "dw", "dx"),
                *_measured("conv aspp_d12 f32 (4x33x33, 2048 to 256, k3 s1 p12 d12)", "dw", "dx"),
            ),
        ),
        Rule(
            name="cropped dW",
            when={"operator": "conv_wgrad", "is_cropped": True},
            choice="cudnn",
            reason="XLA computes cropped weight gradients with a window as large as dy",
            evidence=(
                *_measured("conv cropped bf16 (32x56x56, 64 to 64, k3 s1 p-1)", "dw"),
                *_measured("conv cropped f32 (32x56x56, 64 to 64, k3 s1 p-1)", "dw"),
                *_measured("conv cropped_2 bf16 (16x28x28, 256 to 256, k3 s1 p-2)", "dw"),
                *_measured("conv cropped_2 f32 (16x28x28, 256 to 256, k3 s1 p-2)", "dw"),
            ),
        ),
        Rule(
            name="grouped, unstrided",
            when={**_GROUPED, "is_strided": False},
            choice="xla",
            reason="times tie or XLA's engines are faster, and XLA fuses",
            evidence=(
                *_measured(
                    "conv resnext_g32 bf16 (64x56x56, 128 to 128, k3 s1 p1 g32)",
                    "dx",
                    "dw",
                    "fprop",
                ),
                *_measured(
                    "conv per_example f32 (1x32x32, 2048 to 2048, k3 s1 p1 g32)", "dx", "fprop"
                ),
                *_measured("conv per_example bf16 (1x32x32, 2048 to 2048, k3 s1 p1 g32)", "dx"),
            ),
            against=(
                *_measured(
                    "conv per_example bf16 (1x32x32, 2048 to 2048, k3 s1 p1 g32)", "fprop", "dw"
                ),
                *_measured("conv per_example f32 (1x32x32, 2048 to 2048, k3 s1 p1 g32)", "dw"),
            ),
        ),
        Rule(
            name="grouped float64 forward and dW, strided",
            when={
                **_GROUPED,
                "dtype": "float64",
                "operator": {"conv_fprop", "conv_wgrad"},
            },
            choice="xla",
            reason="cuDNN's float64 engines change formats at each call, XLA only where it must",
            evidence=(
                *_measured(
                    "conv resnext_g32_s2 f64 (16x56x56, 256 to 256, k3 s2 p1 g32)", "dw", "fprop"
                ),
                *_measured("convt group4_up f64 (2x64x64, 256 to 256, k4 s2 p1 g4)", "dx", "dw"),
            ),
        ),
        Rule(
            name="grouped forward, strided",
            when={**_GROUPED, "operator": "conv_fprop"},
            choice="cudnn",
            reason="the search finds a faster engine for strided groups than XLA takes",
            evidence=(
                *_measured(
                    "conv per_example_s2 bf16 (1x32x32, 2048 to 2048, k4 s2 p1 g32)", "fprop"
                ),
                *_measured(
                    "conv per_example_s2 f32 (1x32x32, 2048 to 2048, k4 s2 p1 g32)", "fprop"
                ),
                *_measured("conv resnext_g32_s2 f32 (64x56x56, 256 to 256, k3 s2 p1 g32)", "fprop"),
                *_measured("convt group4_up f32 (8x64x64, 256 to 256, k4 s2 p1 g4)", "dx"),
            ),
        ),
        Rule(
            name="grouped float64 dX, strided",
            when={**_GROUPED, "dtype": "float64"},
            choice="cudnn",
            reason="XLA inserts the zeros of the strides",
            evidence=(
                *_measured("convt group4_up f64 (2x64x64, 256 to 256, k4 s2 p1 g4)", "fprop"),
                *_measured("conv resnext_g32_s2 f64 (16x56x56, 256 to 256, k3 s2 p1 g32)", "dx"),
            ),
        ),
        Rule(
            name="grouped float32 dX, strided, few groups",
            when={
                **_GROUPED,
                "dtype": "float32",
                "operator": "conv_dgrad",
                "groups": at_most(8),
            },
            choice="cudnn",
            reason="the search finds a faster engine for few groups than XLA takes",
            evidence=(
                *_measured("convt group4_up f32 (8x64x64, 256 to 256, k4 s2 p1 g4)", "fprop"),
            ),
        ),
        Rule(
            name="grouped float32 gradients, strided",
            when={**_GROUPED, "dtype": "float32"},
            choice="xla",
            reason="XLA's tuning finds engines for many groups that cuDNN's heuristics do not offer",
            evidence=(
                *_measured("conv per_example_s2 f32 (1x32x32, 2048 to 2048, k4 s2 p1 g32)", "dw"),
                *_measured(
                    "conv resnext_g32_s2 f32 (64x56x56, 256 to 256, k3 s2 p1 g32)", "dx", "dw"
                ),
                *_measured("convt group4_up f32 (8x64x64, 256 to 256, k4 s2 p1 g4)", "dw"),
            ),
            against=(
                *_measured("conv per_example_s2 f32 (1x32x32, 2048 to 2048, k4 s2 p1 g32)", "dx"),
            ),
        ),
        Rule(
            name="grouped dX in 16 bits, strided, few groups",
            when={**_GROUPED, "operator": "conv_dgrad", "groups": at_most(8)},
            choice="xla",
            reason="XLA's engine for few wide groups in 16 bits is faster",
            evidence=(
                *_measured("convt group4_up bf16 (8x64x64, 256 to 256, k4 s2 p1 g4)", "fprop"),
            ),
        ),
        Rule(
            name="grouped gradients in 16 bits, strided",
            when=_GROUPED,
            choice="cudnn",
            reason="the search finds a faster engine for strided groups than XLA takes",
            evidence=(
                *_measured(
                    "conv resnext_g32_s2 bf16 (64x56x56, 256 to 256, k3 s2 p1 g32)", "dx", "dw"
                ),
                *_measured(
                    "conv per_example_s2 bf16 (1x32x32, 2048 to 2048, k4 s2 p1 g32)", "dx", "dw"
                ),
                *_measured("convt group4_up bf16 (8x64x64, 256 to 256, k4 s2 p1 g4)", "dw"),
            ),
        ),
        Rule(
            name="dense forward, unstrided",
            when={"operator": "conv_fprop", "is_strided": False},
            choice="xla",
            reason="times tie, and XLA adds the bias and takes the ReLU in the same kernel",
            evidence=(
                *_in_a_program(
                    "fprop",
                    "six layers, bfloat16: forward",
                    "six layers, float32: forward",
                    "2-D U-Net, bfloat16: forward",
                    "2-D U-Net, float32: forward",
                ),
                *_measured("conv vgg_3x3 f32 (32x28x28, 256 to 256, k3 s1 p1), highest", "fprop"),
                *_measured("conv resnet_3x3 f64 (16x56x56, 64 to 64, k3 s1 p1)", "fprop"),
            ),
            against=(
                *_measured("conv cropped_2 f32 (16x28x28, 256 to 256, k3 s1 p-2)", "fprop"),
                *_windows("conv sd_skip1 bf16 (8x32x32, 1920 to 640, k1 s1)", "fprop"),
                *_windows("conv mn_1x1 bf16 (128x14x14, 480 to 112, k1 s1)", "fprop"),
                *_thin_odd("conv hyperspectral_in bf16 (16x128x128, 31 to 64, k3 s1 p1)", "fprop"),
            ),
        ),
        Rule(
            name="dense gradients without TF32, unstrided",
            when={"dtype": "float32", "allows_tf32": False, "is_strided": False},
            choice="xla",
            reason="XLA may take engines that transform (Winograd), which the handlers' search leaves out",
            evidence=(
                *_measured(
                    "conv vgg_3x3 f32 (32x28x28, 256 to 256, k3 s1 p1), highest", "dw", "dx"
                ),
                *_measured(
                    "conv resnet_3x3 f32 (64x56x56, 64 to 64, k3 s1 p1), highest", "dx", "dw"
                ),
            ),
        ),
        Rule(
            name="dense float64 and odd gradients, unstrided",
            when=(
                {"dtype": "float64", "is_strided": False},
                {"dtype": _HALF, "has_odd_channels": True, "is_strided": False},
            ),
            choice="xla",
            reason="times tie, and XLA fuses",
            evidence=(*_measured("conv resnet_3x3 f64 (16x56x56, 64 to 64, k3 s1 p1)", "dw"),),
            against=(*_measured("conv resnet_3x3 f64 (16x56x56, 64 to 64, k3 s1 p1)", "dx"),),
        ),
        Rule(
            name="dense gradients, unstrided",
            when={"is_strided": False},
            choice="cudnn",
            reason="times tie, and XLA's command buffers hold the handlers' calls but none of its own",
            evidence=(
                *_in_a_program(
                    "gradients",
                    "six layers, bfloat16: step",
                    "six layers, float32: step",
                    "2-D U-Net, bfloat16: step",
                    "2-D U-Net, float32: step",
                    "vocoder, float32: step",
                ),
                *_measured(
                    "convt convt_dil2 bf16 (8x64x64, 128 to 128, k3 s2 p2 op1 d2)", "fprop", "dw"
                ),
                *_measured("conv resnet_3x3 bf16 (64x56x56, 64 to 64, k3 s1 p1)", "dw", "dx"),
            ),
            against=(
                *_measured("conv cropped f32 (32x56x56, 64 to 64, k3 s1 p-1)", "dx"),
                *_measured("conv cropped bf16 (32x56x56, 64 to 64, k3 s1 p-1)", "dx"),
                *_measured("conv cropped_2 f32 (16x28x28, 256 to 256, k3 s1 p-2)", "dx"),
                *_measured("conv cropped_2 bf16 (16x28x28, 256 to 256, k3 s1 p-2)", "dx"),
                *_windows("conv sd_skip1 bf16 (8x32x32, 1920 to 640, k1 s1)", "dx"),
                *_windows("conv mn_1x1 bf16 (128x14x14, 480 to 112, k1 s1)", "dx"),
            ),
        ),
        Rule(
            name="dense dX, strided",
            when={"operator": "conv_dgrad"},
            choice="cudnn",
            reason="XLA inserts the zeros of the strides",
            evidence=(
                *_measured("convt fcn8_up bf16 (8x64x64, 21 to 21, k16 s8 p4)", "fprop"),
                *_measured("convt dcgan4 f32 (128x16x16, 256 to 128, k4 s2 p1)", "fprop"),
                *_measured("conv downsample2 bf16 (64x56x56, 96 to 192, k2 s2)", "dx"),
                *_windows("conv patch4_8ch bf16 (64x128x128, 8 to 256, k4 s4)", "dx"),
                *_windows("conv pvt_reduce4 bf16 (16x64x64, 128 to 128, k4 s4)", "dx"),
                *_windows("convt unet_up bf16 (8x256x256, 128 to 64, k2 s2)", "fprop"),
                *_windows("convt up4 bf16 (8x64x64, 128 to 32, k4 s4)", "fprop"),
                *_windows("convt sam_up bf16 (8x64x64, 256 to 64, k2 s2)", "fprop"),
            ),
            against=(
                *_thin("convt sam_up bf16 (8x64x64, 256 to 64, k2 s2)", "fprop"),
                *_windows("conv reduce2 bf16 (8x32x32, 320 to 320, k2 s2)", "dx"),
                *_windows("conv reduce4 bf16 (8x64x64, 128 to 128, k4 s4)", "dx"),
                *_windows("conv convnext_down bf16 (64x56x56, 96 to 192, k2 s2)", "dx"),
                *_windows("conv convnext_down3 bf16 (64x14x14, 384 to 768, k2 s2)", "dx"),
                *_windows("convt maskrcnn_mask_up bf16 (128x14x14, 256 to 256, k2 s2)", "fprop"),
            ),
        ),
        Rule(
            name="dense in 16 bits with odd channels, strided",
            when={"dtype": _HALF, "has_odd_channels": True},
            choice="xla",
            reason="XLA fills up odd channels once for all operators of a layer",
            evidence=(*_measured("convt fcn8_up bf16 (8x64x64, 21 to 21, k16 s8 p4)", "dw", "dx"),),
        ),
        Rule(
            name="dense forward, strided, even padding",
            when={"operator": "conv_fprop", "has_uneven_padding": False},
            choice="xla",
            reason="times tie, and XLA fuses",
            evidence=(
                *_measured("conv downsample2 bf16 (64x56x56, 96 to 192, k2 s2)", "fprop"),
                *_measured("conv reduce4 f32 (8x64x64, 128 to 128, k4 s4)", "fprop"),
                *_windows("conv reduce4 bf16 (8x64x64, 128 to 128, k4 s4)", "fprop"),
                *_windows("conv convnext_down2 bf16 (64x28x28, 192 to 384, k2 s2)", "fprop"),
                *_windows("convt unet_up_deep bf16 (8x64x64, 512 to 256, k2 s2)", "dx"),
            ),
            against=(
                *_measured("conv reduce8 bf16 (8x128x128, 64 to 64, k8 s8)", "fprop"),
                *_windows("conv reduce2 bf16 (8x32x32, 320 to 320, k2 s2)", "fprop"),
                *_windows("conv convnext_down3 bf16 (64x14x14, 384 to 768, k2 s2)", "fprop"),
                *_windows("convt up4 bf16 (8x64x64, 128 to 32, k4 s4)", "dx"),
            ),
        ),
        Rule(
            name="dense forward, strided, uneven padding",
            when={"operator": "conv_fprop"},
            choice="cudnn",
            reason="XLA pads in a pass of its own where the two sides differ",
            evidence=(
                *_measured("convt k3s2p1op1 f32 (16x32x32, 256 to 128, k3 s2 p1 op1)", "dx"),
                *_measured("convt k3s2p1op1 bf16 (16x32x32, 256 to 128, k3 s2 p1 op1)", "dx"),
            ),
        ),
        Rule(
            name="dense dW, strided",
            when={},
            choice="cudnn",
            reason="the search finds a faster engine for strided weight gradients than XLA takes",
            evidence=(
                *_measured("convt dcgan2 bf16 (128x4x4, 1024 to 512, k4 s2 p1)", "dw"),
                *_measured("conv reduce4 f32 (8x64x64, 128 to 128, k4 s4)", "dw"),
                *_windows("conv pvt_reduce4 bf16 (16x64x64, 128 to 128, k4 s4)", "dw"),
                *_windows("convt up4 bf16 (8x64x64, 128 to 32, k4 s4)", "dw"),
            ),
            against=(*_thin("convt sam_up bf16 (8x64x64, 256 to 64, k2 s2)", "dw"),),
        ),
    ),
)

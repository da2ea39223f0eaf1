"""The models of models.py and their sizes, in both libraries."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import models_flax
import models_flax_depthwise

Axes = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Task:
    """A model, and the shapes of its input and output, channels last."""

    kind: str
    sizes: dict[str, Any]
    x: Axes
    y: Axes
    dtype: str

    def model(self) -> Any:
        """The model in Flax."""
        kinds = {
            "unet": models_flax.UNet,
            "vocoder": models_flax.Vocoder,
            "generator": models_flax.Generator,
            "segmenter": models_flax.Segmenter,
            "resnet": models_flax.ResNet,
            "convnext": models_flax_depthwise.ConvNeXt,
            "mobilenet": models_flax_depthwise.MobileNet,
            "replknet": models_flax_depthwise.RepLKStage,
        }
        return kinds[self.kind](**self.sizes, dtype=jnp.dtype(self.dtype))

    def torch_model(self) -> Any:
        """The same in PyTorch, which need not be installed for anything else here."""
        import models_torch
        import models_torch_depthwise

        kinds = {
            "unet": models_torch.UNet,
            "vocoder": models_torch.Vocoder,
            "generator": models_torch.Generator,
            "segmenter": models_torch.Segmenter,
            "resnet": models_torch.ResNet,
            "convnext": models_torch_depthwise.ConvNeXt,
            "mobilenet": models_torch_depthwise.MobileNet,
            "replknet": models_torch_depthwise.RepLKStage,
        }
        return kinds[self.kind](self.x[-1], **self.sizes)


def unet(rank: int, batch: int, size: int, inputs: int, widths: Axes, dtype: str) -> Task:
    space = (batch, *(size,) * rank)
    return Task("unet", {"widths": widths, "rank": rank}, (*space, inputs), (*space, 1), dtype)


def vocoder(batch: int, frames: int, width: int, kernels: Axes, dtype: str) -> Task:
    steps = ((16, 8), (16, 8), (4, 2), (4, 2))
    sizes = {"width": width, "steps": steps, "kernels": kernels}
    return Task("vocoder", sizes, (batch, frames, 80), (batch, 256 * frames, 1), dtype)


def generator(batch: int, width: int, dtype: str) -> Task:
    return Task("generator", {"width": width}, (batch, 100), (batch, 64, 64, 3), dtype)


def segmenter(batch: int, size: int, width: int, features: int, dtype: str) -> Task:
    shape = (batch, size, size)
    sizes = {"width": width, "features": features}
    return Task("segmenter", sizes, (*shape, 3), (*shape, 21), dtype)


def resnet(batch: int, size: int, blocks: Axes, width: int, classes: int, dtype: str) -> Task:
    sizes = {"blocks": blocks, "width": width, "classes": classes}
    return Task("resnet", sizes, (batch, size, size, 3), (batch, classes), dtype)


def convnext(batch: int, size: int, blocks: Axes, widths: Axes, classes: int, dtype: str) -> Task:
    sizes = {"blocks": blocks, "widths": widths, "classes": classes}
    return Task("convnext", sizes, (batch, size, size, 3), (batch, classes), dtype)


# Kernel, stride, expanded channels, channels, squeezed channels and activation of each block. A quarter of
# the expanded channels is squeezed, rounded to a multiple of eight.
_MOBILENET_V3 = (
    (3, 1, 16, 16, 0, "relu"),
    (3, 2, 64, 24, 0, "relu"),
    (3, 1, 72, 24, 0, "relu"),
    (5, 2, 72, 40, 24, "relu"),
    (5, 1, 120, 40, 32, "relu"),
    (5, 1, 120, 40, 32, "relu"),
    (3, 2, 240, 80, 0, "hard_swish"),
    (3, 1, 200, 80, 0, "hard_swish"),
    (3, 1, 184, 80, 0, "hard_swish"),
    (3, 1, 184, 80, 0, "hard_swish"),
    (3, 1, 480, 112, 120, "hard_swish"),
    (3, 1, 672, 112, 168, "hard_swish"),
    (5, 2, 672, 160, 168, "hard_swish"),
    (5, 1, 960, 160, 240, "hard_swish"),
    (5, 1, 960, 160, 240, "hard_swish"),
)


def mobilenet_v3(batch: int, size: int, classes: int, dtype: str) -> Task:
    """MobileNetV3-Large."""
    sizes = {
        "stem": 16,
        "blocks": _MOBILENET_V3,
        "last": 960,
        "hidden": 1280,
        "classes": classes,
        "activation": "hard_swish",
        "excite": ("relu", "hard_sigmoid"),
    }
    return Task("mobilenet", sizes, (batch, size, size, 3), (batch, classes), dtype)


# Kernel, first stride, expansion, channels and number of blocks of each stage of EfficientNet-B0.
_EFFICIENTNET = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)


def efficientnet(batch: int, size: int, classes: int, dtype: str) -> Task:
    """EfficientNet-B0. A quarter of a block's channels, before they are expanded, is squeezed."""
    stem = inputs = 32
    blocks = []
    for kernel, stride, expansion, width, count in _EFFICIENTNET:
        for block in range(count):
            step = 1 if block else stride
            blocks.append((kernel, step, expansion * inputs, width, inputs // 4, "silu"))
            inputs = width
    sizes = {
        "stem": stem,
        "blocks": tuple(blocks),
        "last": 1280,
        "hidden": 0,
        "classes": classes,
        "activation": "silu",
        "excite": ("silu", "sigmoid"),
    }
    return Task("mobilenet", sizes, (batch, size, size, 3), (batch, classes), dtype)


def replknet(batch: int, size: int, width: int, blocks: int, kernel: int, dtype: str) -> Task:
    """A stage, each block with a parallel convolution of 5x5."""
    shape = (batch, size, size, width)
    return Task("replknet", {"blocks": blocks, "kernel": kernel, "small": 5}, shape, shape, dtype)


# The sizes that were also measured layer by layer: 8x256x256 up to 64 channels, 2x64x64x64 up to 32,
# 16 excerpts of 32 frames, 128 pictures of 64x64, 4x33x33 features of 2048 channels.
TASKS = {
    "2-D U-Net, bfloat16": unet(2, 8, 256, 3, (64, 128, 256, 512), "bfloat16"),
    "2-D U-Net, float32": unet(2, 8, 256, 3, (64, 128, 256, 512), "float32"),
    "3-D U-Net, bfloat16": unet(3, 2, 64, 1, (32, 64, 128), "bfloat16"),
    "3-D U-Net, float32": unet(3, 2, 64, 1, (32, 64, 128), "float32"),
    "vocoder, bfloat16": vocoder(16, 32, 512, (3, 7, 11), "bfloat16"),
    "vocoder, float32": vocoder(16, 32, 512, (3, 7, 11), "float32"),
    "DCGAN generator, bfloat16": generator(128, 1024, "bfloat16"),
    "DCGAN generator, float32": generator(128, 1024, "float32"),
    "segmenter, bfloat16": segmenter(4, 257, 64, 2048, "bfloat16"),
    "segmenter, float32": segmenter(4, 257, 64, 2048, "float32"),
    "ResNet-50, bfloat16": resnet(64, 224, (3, 4, 6, 3), 64, 1000, "bfloat16"),
    "ConvNeXt-T, bfloat16": convnext(64, 224, (3, 3, 9, 3), (96, 192, 384, 768), 1000, "bfloat16"),
    "MobileNetV3-Large, bfloat16": mobilenet_v3(64, 224, 1000, "bfloat16"),
    "EfficientNet-B0, bfloat16": efficientnet(64, 224, 1000, "bfloat16"),
    # The first stage of RepLKNet-31B.
    "RepLKNet-31 stage, bfloat16": replknet(64, 56, 128, 2, 31, "bfloat16"),
}
# For two CPU cores.
SMALL_TASKS = {
    "2-D U-Net, float32": unet(2, 2, 64, 3, (16, 32, 64), "float32"),
    "3-D U-Net, float32": unet(3, 1, 24, 1, (8, 16, 32), "float32"),
    "3-D U-Net, bfloat16": unet(3, 1, 24, 1, (8, 16, 32), "bfloat16"),
    "vocoder, float32": vocoder(2, 16, 64, (3,), "float32"),
    "DCGAN generator, float32": generator(8, 128, "float32"),
    "segmenter, float32": segmenter(1, 97, 16, 128, "float32"),
    "ResNet, float32": resnet(2, 64, (1, 1), 16, 10, "float32"),
    "ConvNeXt, float32": convnext(4, 128, (1, 1, 3, 1), (32, 64, 128, 256), 10, "float32"),
    "ConvNeXt, bfloat16": convnext(4, 128, (1, 1, 3, 1), (32, 64, 128, 256), 10, "bfloat16"),
    "MobileNetV3, float32": mobilenet_v3(8, 96, 10, "float32"),
    "EfficientNet, float32": efficientnet(2, 96, 10, "float32"),
    "RepLKNet stage, float32": replknet(2, 28, 32, 1, 31, "float32"),
}

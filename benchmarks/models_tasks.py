"""The models of models.py and their sizes, in both libraries."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import models_flax

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
        }
        return kinds[self.kind](**self.sizes, dtype=jnp.dtype(self.dtype))

    def torch_model(self) -> Any:
        """The same in PyTorch, which need not be installed for anything else here."""
        import models_torch

        kinds = {
            "unet": models_torch.UNet,
            "vocoder": models_torch.Vocoder,
            "generator": models_torch.Generator,
            "segmenter": models_torch.Segmenter,
            "resnet": models_torch.ResNet,
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
}

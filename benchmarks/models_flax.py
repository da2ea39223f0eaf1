"""The models of models.py as a user of Flax writes them. models_torch.py has the same ones."""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

Axes = tuple[int, ...]


class Double(nn.Module):
    """Two convolutions of 3 along each axis, each with a ReLU."""

    width: int
    rank: int
    dtype: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for _ in range(2):
            x = nn.relu(nn.Conv(self.width, (3,) * self.rank, dtype=self.dtype)(x))
        return x


class UNet(nn.Module):
    """Pooling down, transposed convolutions up, and skip connections between levels."""

    widths: Axes
    rank: int
    dtype: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        two = (2,) * self.rank
        levels = []
        for width in self.widths[:-1]:
            x = Double(width, self.rank, self.dtype)(x)
            levels.append(x)
            x = nn.max_pool(x, two, two)
        x = Double(self.widths[-1], self.rank, self.dtype)(x)
        for width, level in zip(self.widths[-2::-1], levels[::-1], strict=True):
            x = nn.ConvTranspose(width, two, two, dtype=self.dtype)(x)
            x = Double(width, self.rank, self.dtype)(jnp.concatenate([level, x], -1))
        return nn.Conv(1, (1,) * self.rank, dtype=self.dtype)(x)


class Residual(nn.Module):
    """HiFi-GAN's residual block: pairs of a dilated and a plain convolution with a shortcut."""

    kernel: int
    dtype: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        width, kernel = x.shape[-1], (self.kernel,)
        for dilation in (1, 3, 5):
            y = nn.leaky_relu(x, 0.1)
            y = nn.Conv(width, kernel, kernel_dilation=(dilation,), dtype=self.dtype)(y)
            y = nn.Conv(width, kernel, dtype=self.dtype)(nn.leaky_relu(y, 0.1))
            x = x + y
        return x


class Vocoder(nn.Module):
    """A generator like HiFi-GAN's: transposed convolutions, residual blocks of several kernels."""

    width: int
    steps: tuple[tuple[int, int], ...]  # kernel and stride
    kernels: Axes
    dtype: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.Conv(self.width, (7,), dtype=self.dtype)(x)
        for number, (kernel, stride) in enumerate(self.steps, 1):
            x = nn.leaky_relu(x, 0.1)
            width = self.width >> number
            x = nn.ConvTranspose(width, (kernel,), (stride,), dtype=self.dtype)(x)
            blocks = [Residual(size, self.dtype)(x) for size in self.kernels]
            x = sum(blocks[1:], blocks[0]) / len(blocks)
        return nn.tanh(nn.Conv(1, (7,), dtype=self.dtype)(nn.leaky_relu(x, 0.1)))


class Generator(nn.Module):
    """DCGAN's generator, without its batch normalization."""

    width: int
    dtype: Any

    @nn.compact
    def __call__(self, z: Any) -> Any:
        x = nn.Dense(16 * self.width, dtype=self.dtype)(z)
        x = nn.relu(x.reshape(-1, 4, 4, self.width))
        for number in (1, 2, 3):
            width = self.width >> number
            x = nn.relu(nn.ConvTranspose(width, (4, 4), (2, 2), dtype=self.dtype)(x))
        return nn.tanh(nn.ConvTranspose(3, (4, 4), (2, 2), dtype=self.dtype)(x))


class Segmenter(nn.Module):
    """Like DeepLab: a strided encoder, parallel dilated convolutions, a resize to the image's size."""

    width: int
    features: int
    dtype: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        size = x.shape[1:3]
        x = nn.relu(nn.Conv(self.width, (7, 7), (2, 2), padding=3, dtype=self.dtype)(x))
        for number in (1, 2):
            width = self.width << number
            x = nn.relu(nn.Conv(width, (3, 3), (2, 2), padding=1, dtype=self.dtype)(x))
            x = nn.relu(nn.Conv(width, (3, 3), padding=1, dtype=self.dtype)(x))
        x = nn.relu(nn.Conv(self.features, (1, 1), dtype=self.dtype)(x))
        narrow = self.width << 2
        parts = [nn.relu(nn.Conv(narrow, (1, 1), dtype=self.dtype)(x))]
        for rate in (6, 12, 18):
            layer = nn.Conv(
                narrow, (3, 3), padding=rate, kernel_dilation=(rate, rate), dtype=self.dtype
            )
            parts.append(nn.relu(layer(x)))
        x = nn.relu(nn.Conv(narrow, (1, 1), dtype=self.dtype)(jnp.concatenate(parts, -1)))
        x = nn.Conv(21, (1, 1), dtype=self.dtype)(x)
        return jax.image.resize(x, (x.shape[0], *size, 21), "linear")


class BatchNorm(nn.Module):
    """Batch normalization by the batch's own statistics, as in training; no running averages."""

    dtype: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = x.astype(jnp.promote_types(self.dtype, jnp.float32))
        axes = tuple(range(x.ndim - 1))
        mean = jnp.mean(x, axes)
        variance = jnp.mean(x * x, axes) - mean * mean
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        x = (x - mean) * (jax.lax.rsqrt(variance + 1e-5) * scale) + bias
        return x.astype(self.dtype)


class Normalized(nn.Module):
    """A convolution without bias, and batch normalization."""

    width: int
    kernel: int
    stride: int
    dtype: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        sizes, strides = (self.kernel,) * 2, (self.stride,) * 2
        x = nn.Conv(self.width, sizes, strides, self.kernel // 2, use_bias=False, dtype=self.dtype)(
            x
        )
        return BatchNorm(self.dtype)(x)


class ResNet(nn.Module):
    """ResNet-50 for ImageNet, each block's stride at its 3x3 convolution."""

    blocks: Axes
    width: int
    classes: int
    dtype: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.relu(Normalized(self.width, 7, 2, self.dtype)(x))
        x = nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
        for stage, count in enumerate(self.blocks):
            narrow = self.width << stage
            for block in range(count):
                stride = 2 if stage and not block else 1
                y = nn.relu(Normalized(narrow, 1, 1, self.dtype)(x))
                y = nn.relu(Normalized(narrow, 3, stride, self.dtype)(y))
                y = Normalized(4 * narrow, 1, 1, self.dtype)(y)
                if not block:
                    x = Normalized(4 * narrow, 1, stride, self.dtype)(x)
                x = nn.relu(x + y)
        return nn.Dense(self.classes, dtype=self.dtype)(jnp.mean(x, (1, 2)))


@dataclasses.dataclass(frozen=True)
class Task:
    """A model, and the shapes of its input and output, channels last."""

    kind: str
    sizes: dict[str, Any]
    x: Axes
    y: Axes
    dtype: str

    def model(self) -> nn.Module:
        kinds = {
            "unet": UNet,
            "vocoder": Vocoder,
            "generator": Generator,
            "segmenter": Segmenter,
            "resnet": ResNet,
        }
        return kinds[self.kind](**self.sizes, dtype=jnp.dtype(self.dtype))


def weights_in_order(model: nn.Module, variables: Any, x: Any) -> list[Any]:
    """The weights of each layer, in the order in which the model calls them."""
    paths = []

    def note(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        layer = isinstance(context.module, nn.Conv | nn.ConvTranspose | nn.Dense | BatchNorm)
        if layer and context.method_name == "__call__":
            paths.append(context.module.path)
        return call(*args, **kwargs)

    with nn.intercept_methods(note):
        jax.eval_shape(model.apply, variables, x)
    return [functools.reduce(operator.getitem, path, variables["params"]) for path in paths]


def _unet(rank: int, batch: int, size: int, inputs: int, widths: Axes, dtype: str) -> Task:
    space = (batch, *(size,) * rank)
    return Task("unet", {"widths": widths, "rank": rank}, (*space, inputs), (*space, 1), dtype)


def _vocoder(batch: int, frames: int, width: int, kernels: Axes, dtype: str) -> Task:
    steps = ((16, 8), (16, 8), (4, 2), (4, 2))
    sizes = {"width": width, "steps": steps, "kernels": kernels}
    return Task("vocoder", sizes, (batch, frames, 80), (batch, 256 * frames, 1), dtype)


def _generator(batch: int, width: int, dtype: str) -> Task:
    return Task("generator", {"width": width}, (batch, 100), (batch, 64, 64, 3), dtype)


def _segmenter(batch: int, size: int, width: int, features: int, dtype: str) -> Task:
    shape = (batch, size, size)
    sizes = {"width": width, "features": features}
    return Task("segmenter", sizes, (*shape, 3), (*shape, 21), dtype)


def _resnet(batch: int, size: int, blocks: Axes, width: int, classes: int, dtype: str) -> Task:
    sizes = {"blocks": blocks, "width": width, "classes": classes}
    return Task("resnet", sizes, (batch, size, size, 3), (batch, classes), dtype)


# The sizes that were also measured layer by layer: 8x256x256 up to 64 channels, 2x64x64x64 up to 32,
# 16 excerpts of 32 frames, 128 pictures of 64x64, 4x33x33 features of 2048 channels.
TASKS = {
    "2-D U-Net, bfloat16": _unet(2, 8, 256, 3, (64, 128, 256, 512), "bfloat16"),
    "2-D U-Net, float32": _unet(2, 8, 256, 3, (64, 128, 256, 512), "float32"),
    "3-D U-Net, bfloat16": _unet(3, 2, 64, 1, (32, 64, 128), "bfloat16"),
    "3-D U-Net, float32": _unet(3, 2, 64, 1, (32, 64, 128), "float32"),
    "vocoder, bfloat16": _vocoder(16, 32, 512, (3, 7, 11), "bfloat16"),
    "vocoder, float32": _vocoder(16, 32, 512, (3, 7, 11), "float32"),
    "DCGAN generator, bfloat16": _generator(128, 1024, "bfloat16"),
    "DCGAN generator, float32": _generator(128, 1024, "float32"),
    "segmenter, bfloat16": _segmenter(4, 257, 64, 2048, "bfloat16"),
    "segmenter, float32": _segmenter(4, 257, 64, 2048, "float32"),
    "ResNet-50, bfloat16": _resnet(64, 224, (3, 4, 6, 3), 64, 1000, "bfloat16"),
}
# For two CPU cores.
SMALL_TASKS = {
    "2-D U-Net, float32": _unet(2, 2, 64, 3, (16, 32, 64), "float32"),
    "3-D U-Net, float32": _unet(3, 1, 24, 1, (8, 16, 32), "float32"),
    "3-D U-Net, bfloat16": _unet(3, 1, 24, 1, (8, 16, 32), "bfloat16"),
    "vocoder, float32": _vocoder(2, 16, 64, (3,), "float32"),
    "DCGAN generator, float32": _generator(8, 128, "float32"),
    "segmenter, float32": _segmenter(1, 97, 16, 128, "float32"),
    "ResNet, float32": _resnet(2, 64, (1, 1), 16, 10, "float32"),
}

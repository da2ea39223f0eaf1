"""Networks of dense convolutions as a user of Flax writes them. models_torch.py has the same ones."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from models_flax_layers import Normalized

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

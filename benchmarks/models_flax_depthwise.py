"""Networks of depthwise convolutions as a user of Flax writes them.

models_torch_depthwise.py has the same ones. Each follows its paper, without dropout and stochastic depth.
Padding is half a kernel on both sides, as in PyTorch, also where the stride is 2.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from models_flax_layers import BatchNorm, LayerScale, Normalized

Axes = tuple[int, ...]
Inverted = tuple[int, int, int, int, int, str]  # the fields of InvertedResidual

_FUNCTIONS = {
    "relu": nn.relu,
    "silu": nn.silu,
    "hard_swish": nn.hard_swish,
    "sigmoid": nn.sigmoid,
    "hard_sigmoid": nn.hard_sigmoid,
}


class ConvNeXtBlock(nn.Module):
    """A depthwise 7x7 convolution and a dense network of each pixel, scaled, with a shortcut."""

    dtype: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        width = x.shape[-1]
        y = nn.Conv(width, (7, 7), padding=3, feature_group_count=width, dtype=self.dtype)(x)
        y = nn.LayerNorm(1e-6, dtype=self.dtype)(y)
        y = nn.gelu(nn.Dense(4 * width, dtype=self.dtype)(y), approximate=False)
        y = nn.Dense(width, dtype=self.dtype)(y)
        return x + LayerScale(1e-6, self.dtype)(y)


class ConvNeXt(nn.Module):
    """Liu, Mao, Wu, Feichtenhofer, Darrell, Xie: A ConvNet for the 2020s, 2022."""

    blocks: Axes
    widths: Axes
    classes: int
    dtype: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for stage, (count, width) in enumerate(zip(self.blocks, self.widths, strict=True)):
            if stage:
                x = nn.LayerNorm(1e-6, dtype=self.dtype)(x)
                x = nn.Conv(width, (2, 2), (2, 2), "VALID", dtype=self.dtype)(x)
            else:
                x = nn.Conv(width, (4, 4), (4, 4), "VALID", dtype=self.dtype)(x)
                x = nn.LayerNorm(1e-6, dtype=self.dtype)(x)
            for _ in range(count):
                x = ConvNeXtBlock(self.dtype)(x)
        x = nn.LayerNorm(1e-6, dtype=self.dtype)(jnp.mean(x, (1, 2)))
        return nn.Dense(self.classes, dtype=self.dtype)(x)


class SqueezeExcite(nn.Module):
    """Hu, Shen, Sun: Squeeze-and-Excitation Networks, 2018. Each channel times a factor of its picture."""

    squeezed: int
    activation: str
    gate: str
    dtype: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        y = nn.Dense(self.squeezed, dtype=self.dtype)(jnp.mean(x, (1, 2), keepdims=True))
        y = nn.Dense(x.shape[-1], dtype=self.dtype)(_FUNCTIONS[self.activation](y))
        return x * _FUNCTIONS[self.gate](y)


class InvertedResidual(nn.Module):
    """A depthwise convolution between one that widens and one that narrows, with a shortcut if it fits."""

    kernel: int
    stride: int
    expanded: int
    width: int
    squeezed: int  # 0: without squeeze and excitation
    activation: str
    excite: tuple[str, str]
    dtype: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        activate, expanded, inputs = _FUNCTIONS[self.activation], self.expanded, x.shape[-1]
        y = x
        if expanded != inputs:
            y = activate(Normalized(expanded, 1, 1, self.dtype)(y))
        y = activate(Normalized(expanded, self.kernel, self.stride, self.dtype, expanded)(y))
        if self.squeezed:
            y = SqueezeExcite(self.squeezed, *self.excite, self.dtype)(y)
        y = Normalized(self.width, 1, 1, self.dtype)(y)
        return x + y if self.stride == 1 and self.width == inputs else y


class MobileNet(nn.Module):
    """A network of inverted residuals: MobileNetV3 or EfficientNet.

    Howard, Sandler, Chu, Chen, Chen, Tan, Wang, Zhu, Pang, Vasudevan, Le, Adam: Searching for MobileNetV3,
    2019.
    Tan, Le: EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks, 2019.
    """

    stem: int
    blocks: tuple[Inverted, ...]
    last: int
    hidden: int  # 0: without the dense layer of MobileNetV3 before the last one
    classes: int
    activation: str  # of the layers that are in no block
    excite: tuple[str, str]  # activation and gate of squeeze and excitation
    dtype: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        activate = _FUNCTIONS[self.activation]
        x = activate(Normalized(self.stem, 3, 2, self.dtype)(x))
        for block in self.blocks:
            x = InvertedResidual(*block, self.excite, self.dtype)(x)
        x = jnp.mean(activate(Normalized(self.last, 1, 1, self.dtype)(x)), (1, 2))
        if self.hidden:
            x = activate(nn.Dense(self.hidden, dtype=self.dtype)(x))
        return nn.Dense(self.classes, dtype=self.dtype)(x)


class LargeKernelBlock(nn.Module):
    """A large depthwise convolution and a small one beside it, which are one after training."""

    kernel: int
    small: int
    dtype: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        width = x.shape[-1]
        y = nn.relu(Normalized(width, 1, 1, self.dtype)(BatchNorm(self.dtype)(x)))
        large, small = (
            Normalized(width, size, 1, self.dtype, width)(y) for size in (self.kernel, self.small)
        )
        return x + Normalized(width, 1, 1, self.dtype)(nn.relu(large + small))


class ConvFFN(nn.Module):
    """A dense network of each pixel, of 1x1 convolutions with batch normalization, with a shortcut."""

    dtype: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        width = x.shape[-1]
        y = Normalized(4 * width, 1, 1, self.dtype)(BatchNorm(self.dtype)(x))
        return x + Normalized(width, 1, 1, self.dtype)(nn.gelu(y, approximate=False))


class RepLKStage(nn.Module):
    """A stage of RepLKNet, in the form in which it trains.

    Ding, Zhang, Zhou, Han, Ding, Sun: Scaling Up Your Kernels to 31x31: Revisiting Large Kernel Design in
    CNNs, 2022.
    """

    blocks: int
    kernel: int
    small: int
    dtype: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = jnp.asarray(x, self.dtype)  # as the stage before it returns it
        for _ in range(self.blocks):
            x = LargeKernelBlock(self.kernel, self.small, self.dtype)(x)
            x = ConvFFN(self.dtype)(x)
        return x

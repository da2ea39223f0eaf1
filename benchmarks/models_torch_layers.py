"""Layers of several models in PyTorch, and how a model gets the weights of the one in Flax."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def with_weights(model: nn.Module) -> Iterator[nn.Module]:
    """The layers that have weights themselves, in the order in which they were created."""
    return (
        layer for layer in model.modules() if any(True for _ in layer.parameters(recurse=False))
    )


class Network(nn.Module):
    def layers(self) -> Iterator[nn.Module]:
        """The layers with weights in the order in which the model of Flax calls them."""
        return with_weights(self)


class Normalized(nn.Module):
    def __init__(self, inputs: int, width: int, kernel: int, stride: int, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, width, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(width, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


class LayerNorm(nn.LayerNorm):
    """In the dtype of its input. Autocast alone would leave each sum with its result in float32."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).to(x.dtype)


class LayerScale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.register_parameter("bias", None)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.to(x.dtype)


def load(model: Network, weights: Sequence[Any]) -> None:
    """Takes over the weights of Flax's layers, in the order in which its model calls them."""
    with torch.no_grad():
        for layer, given in zip(model.layers(), weights, strict=True):
            if "scale" in given:
                weight = np.asarray(given["scale"])
            else:
                weight = _reversed(layer, np.asarray(given["kernel"]))
            layer.weight.copy_(torch.from_numpy(np.array(weight, order="C")))
            if layer.bias is not None:
                layer.bias.copy_(torch.from_numpy(np.array(given["bias"])))


def _reversed(layer: nn.Module, kernel: np.ndarray) -> np.ndarray:
    """From (spatial, in, out). A transposed layer's kernel is reversed in PyTorch."""
    rank = kernel.ndim - 2
    if isinstance(layer, nn.Linear):
        return kernel.T
    if isinstance(layer, tuple(TRANSPOSED.values())):
        return kernel[(slice(None, None, -1),) * rank].transpose(rank, rank + 1, *range(rank))
    return kernel.transpose(rank + 1, rank, *range(rank))

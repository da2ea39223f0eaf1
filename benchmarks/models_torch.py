"""The models of models_flax.py in PyTorch, with their weights.

Layers are created in Flax's order, so that weights can be copied one by one.
Arrays have PyTorch's channels-first axes, in either memory format.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

_CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
_POOL = {2: F.max_pool2d, 3: F.max_pool3d}


class Double(nn.Module):
    def __init__(self, inputs: int, width: int, rank: int) -> None:
        super().__init__()
        self.first = _CONV[rank](inputs, width, 3, padding=1)
        self.second = _CONV[rank](width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))))


class UNet(nn.Module):
    def __init__(self, inputs: int, widths: Sequence[int], rank: int) -> None:
        super().__init__()
        self.rank = rank
        sizes = itertools.pairwise((inputs, *widths))
        self.down = nn.ModuleList(Double(a, b, rank) for a, b in sizes)
        pairs = list(itertools.pairwise(widths))[::-1]
        self.up = nn.ModuleList(_TRANSPOSED[rank](b, a, 2, 2) for a, b in pairs)
        self.join = nn.ModuleList(Double(2 * a, a, rank) for a, _ in pairs)
        self.last = _CONV[rank](widths[0], 1, 1)

    def layers(self) -> Iterator[nn.Module]:
        for block in self.down:
            yield from block.children()
        for up, block in zip(self.up, self.join, strict=True):
            yield up
            yield from block.children()
        yield self.last

    def forward(self, x: Tensor) -> Tensor:
        levels = []
        for block in self.down[:-1]:
            x = block(x)
            levels.append(x)
            x = _POOL[self.rank](x, 2)
        x = self.down[-1](x)
        for up, block in zip(self.up, self.join, strict=True):
            x = block(torch.cat([levels.pop(), up(x)], 1))
        return self.last(x)


class Residual(nn.Module):
    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        half = kernel // 2
        pairs = [
            (
                nn.Conv1d(width, width, kernel, padding=half * dilation, dilation=dilation),
                nn.Conv1d(width, width, kernel, padding=half),
            )
            for dilation in (1, 3, 5)
        ]
        self.pairs = nn.ModuleList(map(nn.ModuleList, pairs))

    def layers(self) -> Iterator[nn.Module]:
        for pair in self.pairs:
            yield from pair

    def forward(self, x: Tensor) -> Tensor:
        for dilated, plain in self.pairs:
            x = x + plain(F.leaky_relu(dilated(F.leaky_relu(x, 0.1)), 0.1))
        return x


class Vocoder(nn.Module):
    def __init__(
        self,
        inputs: int,
        width: int,
        steps: Sequence[tuple[int, int]],
        kernels: Sequence[int],
    ) -> None:
        super().__init__()
        self.first = nn.Conv1d(inputs, width, 7, padding=3)
        self.up, self.blocks = nn.ModuleList(), nn.ModuleList()
        for kernel, stride in steps:
            padding = (kernel - stride) // 2
            self.up.append(nn.ConvTranspose1d(width, width // 2, kernel, stride, padding))
            width //= 2
            self.blocks.append(nn.ModuleList(Residual(width, size) for size in kernels))
        self.last = nn.Conv1d(width, 1, 7, padding=3)

    def layers(self) -> Iterator[nn.Module]:
        yield self.first
        for up, blocks in zip(self.up, self.blocks, strict=True):
            yield up
            for block in blocks:
                yield from block.layers()
        yield self.last

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for up, blocks in zip(self.up, self.blocks, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            x = sum(block(x) for block in blocks) / len(blocks)
        return torch.tanh(self.last(F.leaky_relu(x, 0.1)))


class Generator(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.dense = nn.Linear(inputs, 16 * width)
        sizes = (width, width // 2, width // 4, width // 8, 3)
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(a, b, 4, 2, 1) for a, b in itertools.pairwise(sizes)
        )

    def layers(self) -> Iterator[nn.Module]:
        yield self.dense
        yield from self.up

    def forward(self, z: Tensor) -> Tensor:
        # Flax's order of an image's axes.
        x = F.relu(self.dense(z)).view(-1, 4, 4, self.width).permute(0, 3, 1, 2)
        for up in self.up[:-1]:
            x = F.relu(up(x))
        return torch.tanh(self.up[-1](x))


class Segmenter(nn.Module):
    def __init__(self, inputs: int, width: int, features: int) -> None:
        super().__init__()
        encoder = [nn.Conv2d(inputs, width, 7, 2, 3)]
        for number in (1, 2):
            wide = width << number
            encoder.append(nn.Conv2d(wide // 2, wide, 3, 2, 1))
            encoder.append(nn.Conv2d(wide, wide, 3, 1, 1))
        encoder.append(nn.Conv2d(4 * width, features, 1))
        self.encoder = nn.ModuleList(encoder)
        narrow = 4 * width
        self.parts = nn.ModuleList(
            [
                nn.Conv2d(features, narrow, 1),
                *(nn.Conv2d(features, narrow, 3, 1, rate, rate) for rate in (6, 12, 18)),
            ]
        )
        self.join = nn.Conv2d(4 * narrow, narrow, 1)
        self.last = nn.Conv2d(narrow, 21, 1)

    def layers(self) -> Iterator[nn.Module]:
        yield from (*self.encoder, *self.parts, self.join, self.last)

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[2:]
        for layer in self.encoder:
            x = F.relu(layer(x))
        x = torch.cat([F.relu(layer(x)) for layer in self.parts], 1)
        x = self.last(F.relu(self.join(x)))
        return F.interpolate(x, size, mode="bilinear", align_corners=False)


class Normalized(nn.Module):
    def __init__(self, inputs: int, width: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, width, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(width, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, narrow: int, stride: int, projects: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            [
                Normalized(inputs, narrow, 1, 1),
                Normalized(narrow, narrow, 3, stride),
                Normalized(narrow, 4 * narrow, 1, 1),
            ]
        )
        if projects:
            self.parts.append(Normalized(inputs, 4 * narrow, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        first, second, third, *projection = self.parts
        y = third(F.relu(second(F.relu(first(x)))))
        return F.relu(y + (projection[0](x) if projection else x))


class ResNet(nn.Module):
    def __init__(self, inputs: int, blocks: Sequence[int], width: int, classes: int) -> None:
        super().__init__()
        self.first = Normalized(inputs, width, 7, 2)
        self.blocks = nn.ModuleList()
        inputs = width
        for stage, count in enumerate(blocks):
            narrow = width << stage
            for block in range(count):
                stride = 2 if stage and not block else 1
                self.blocks.append(Bottleneck(inputs, narrow, stride, projects=not block))
                inputs = 4 * narrow
        self.last = nn.Linear(inputs, classes)

    def layers(self) -> Iterator[nn.Module]:
        for part in (self.first, *(part for block in self.blocks for part in block.parts)):
            yield from (part.conv, part.norm)
        yield self.last

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.first(x)), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return self.last(x.mean((2, 3)))


def make_model(task: Any) -> Any:
    """The model of a models_flax.Task."""
    kinds = {
        "unet": UNet,
        "vocoder": Vocoder,
        "generator": Generator,
        "segmenter": Segmenter,
        "resnet": ResNet,
    }
    return kinds[task.kind](task.x[-1], **task.sizes)


def load(model: Any, weights: Sequence[Any]) -> None:
    """Takes over the weights of Flax's layers, in the order in which its model calls them."""
    with torch.no_grad():
        for layer, given in zip(model.layers(), weights, strict=True):
            if isinstance(layer, nn.BatchNorm2d):
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
    if isinstance(layer, tuple(_TRANSPOSED.values())):
        return kernel[(slice(None, None, -1),) * rank].transpose(rank, rank + 1, *range(rank))
    return kernel.transpose(rank + 1, rank, *range(rank))

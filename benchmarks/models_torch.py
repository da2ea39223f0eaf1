"""The networks of models_flax.py in PyTorch. Arrays have its channels-first axes, in either memory format."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from models_torch_layers import TRANSPOSED, Network, Normalized, with_weights
from torch import Tensor, nn

_CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_POOL = {2: F.max_pool2d, 3: F.max_pool3d}


class Double(nn.Module):
    def __init__(self, inputs: int, width: int, rank: int) -> None:
        super().__init__()
        self.first = _CONV[rank](inputs, width, 3, padding=1)
        self.second = _CONV[rank](width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))))


class UNet(Network):
    def __init__(self, inputs: int, widths: Sequence[int], rank: int) -> None:
        super().__init__()
        self.rank = rank
        sizes = itertools.pairwise((inputs, *widths))
        self.down = nn.ModuleList(Double(a, b, rank) for a, b in sizes)
        pairs = list(itertools.pairwise(widths))[::-1]
        self.up = nn.ModuleList(TRANSPOSED[rank](b, a, 2, 2) for a, b in pairs)
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

    def forward(self, x: Tensor) -> Tensor:
        for dilated, plain in self.pairs:
            x = x + plain(F.leaky_relu(dilated(F.leaky_relu(x, 0.1)), 0.1))
        return x


class Vocoder(Network):
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
            yield from with_weights(blocks)
        yield self.last

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for up, blocks in zip(self.up, self.blocks, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            x = sum(block(x) for block in blocks) / len(blocks)
        return torch.tanh(self.last(F.leaky_relu(x, 0.1)))


class Generator(Network):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.dense = nn.Linear(inputs, 16 * width)
        sizes = (width, width // 2, width // 4, width // 8, 3)
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(a, b, 4, 2, 1) for a, b in itertools.pairwise(sizes)
        )

    def forward(self, z: Tensor) -> Tensor:
        # Flax's order of an image's axes.
        x = F.relu(self.dense(z)).view(-1, 4, 4, self.width).permute(0, 3, 1, 2)
        for up in self.up[:-1]:
            x = F.relu(up(x))
        return torch.tanh(self.up[-1](x))


class Segmenter(Network):
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

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[2:]
        for layer in self.encoder:
            x = F.relu(layer(x))
        x = torch.cat([F.relu(layer(x)) for layer in self.parts], 1)
        x = self.last(F.relu(self.join(x)))
        return F.interpolate(x, size, mode="bilinear", align_corners=False)


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


class ResNet(Network):
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

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.first(x)), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return self.last(x.mean((2, 3)))

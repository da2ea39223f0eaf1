"""The networks of models_flax_depthwise.py in PyTorch. Arrays have its channels-first axes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from models_torch_layers import LayerNorm, LayerScale, Network, Normalized
from torch import Tensor, nn

Inverted = tuple[int, int, int, int, int, str]  # the sizes of InvertedResidual

_FUNCTIONS = {
    "relu": F.relu,
    "silu": F.silu,
    "hard_swish": F.hardswish,
    "sigmoid": torch.sigmoid,
    "hard_sigmoid": F.hardsigmoid,
}


def _channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def _channels_first(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.pixel = nn.Sequential(
            LayerNorm(width, eps=1e-6),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            LayerScale(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + _channels_first(self.pixel(_channels_last(self.depthwise(x))))


class ImageNorm(nn.Module):
    """A layer normalization over the channels of each pixel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = LayerNorm(width, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return _channels_first(self.norm(_channels_last(x)))


class ConvNeXt(Network):
    def __init__(
        self, inputs: int, blocks: Sequence[int], widths: Sequence[int], classes: int
    ) -> None:
        super().__init__()
        first, last = widths[0], widths[-1]
        stem = [nn.Conv2d(inputs, first, 4, 4), ImageNorm(first)]
        stages = [nn.Sequential(*stem, *(ConvNeXtBlock(first) for _ in range(blocks[0])))]
        for count, before, width in zip(blocks[1:], widths[:-1], widths[1:], strict=True):
            down = [ImageNorm(before), nn.Conv2d(before, width, 2, 2)]
            stages.append(nn.Sequential(*down, *(ConvNeXtBlock(width) for _ in range(count))))
        self.stages = nn.Sequential(*stages)
        self.norm = LayerNorm(last, eps=1e-6)
        self.last = nn.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.stages(x).mean((2, 3))))


class SqueezeExcite(nn.Module):
    def __init__(self, width: int, squeezed: int, activation: str, gate: str) -> None:
        super().__init__()
        self.narrow = nn.Linear(width, squeezed)
        self.widen = nn.Linear(squeezed, width)
        self.activate, self.gate = _FUNCTIONS[activation], _FUNCTIONS[gate]

    def forward(self, x: Tensor) -> Tensor:
        factors = self.gate(self.widen(self.activate(self.narrow(x.mean((2, 3))))))
        return x * factors[:, :, None, None]


class InvertedResidual(nn.Module):
    def __init__(
        self,
        inputs: int,
        kernel: int,
        stride: int,
        expanded: int,
        width: int,
        squeezed: int,
        activation: str,
        excite: tuple[str, str],
    ) -> None:
        super().__init__()
        self.expand = Normalized(inputs, expanded, 1, 1) if expanded != inputs else None
        self.depthwise = Normalized(expanded, expanded, kernel, stride, expanded)
        self.excite = SqueezeExcite(expanded, squeezed, *excite) if squeezed else nn.Identity()
        self.narrow = Normalized(expanded, width, 1, 1)
        self.activate = _FUNCTIONS[activation]
        self.shortcut = stride == 1 and width == inputs

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.expand is None else self.activate(self.expand(x))
        y = self.narrow(self.excite(self.activate(self.depthwise(y))))
        return x + y if self.shortcut else y


class MobileNet(Network):
    def __init__(
        self,
        inputs: int,
        stem: int,
        blocks: Sequence[Inverted],
        last: int,
        hidden: int,
        classes: int,
        activation: str,
        excite: tuple[str, str],
    ) -> None:
        super().__init__()
        self.stem = Normalized(inputs, stem, 3, 2)
        self.blocks = nn.Sequential()
        width = stem
        for block in blocks:
            self.blocks.append(InvertedResidual(width, *block, excite))
            width = block[3]
        self.widen = Normalized(width, last, 1, 1)
        self.hidden = nn.Linear(last, hidden) if hidden else None
        self.last = nn.Linear(hidden or last, classes)
        self.activate = _FUNCTIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.activate(self.stem(x)))
        x = self.activate(self.widen(x)).mean((2, 3))
        if self.hidden is not None:
            x = self.activate(self.hidden(x))
        return self.last(x)


class LargeKernelBlock(nn.Module):
    def __init__(self, width: int, kernel: int, small: int) -> None:
        super().__init__()
        self.before = nn.BatchNorm2d(width, track_running_stats=False)
        self.first = Normalized(width, width, 1, 1)
        self.large = Normalized(width, width, kernel, 1, width)
        self.small = Normalized(width, width, small, 1, width)
        self.second = Normalized(width, width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(self.before(x)))
        return x + self.second(F.relu(self.large(y) + self.small(y)))


class ConvFFN(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before = nn.BatchNorm2d(width, track_running_stats=False)
        self.first = Normalized(width, 4 * width, 1, 1)
        self.second = Normalized(4 * width, width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.gelu(self.first(self.before(x))))


class RepLKStage(Network):
    def __init__(self, inputs: int, blocks: int, kernel: int, small: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential()
        for _ in range(blocks):
            self.blocks.append(LargeKernelBlock(inputs, kernel, small))
            self.blocks.append(ConvFFN(inputs))

    def forward(self, x: Tensor) -> Tensor:
        # As the stage before it returns it: autocast alone would leave every shortcut in float32.
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        return self.blocks(x)

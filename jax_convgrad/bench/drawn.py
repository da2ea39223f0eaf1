"""Random convolutions that reach into libraries' rare kernels: for the tests and for the speed fuzzer.

Much padding, long strides, few columns, odd numbers of channels and of groups: what layers seldom have.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from jax_convgrad._src.shapes import Pairs, Shape

# The largest room beside a window along each spatial axis, by the number of axes.
SMALL: dict[int, Shape] = {1: (400,), 2: (24, 90), 3: (8, 8, 50)}
LARGE: dict[int, Shape] = {1: (20000,), 2: (150, 150), 3: (24, 40, 50)}


@dataclasses.dataclass(frozen=True)
class DrawnConv:
    """A convolution in canonical order: batch, channels, spatial; output and input channels, kernel."""

    x: Shape
    w: Shape
    strides: Shape
    padding: Pairs
    dilation: Shape
    groups: int


def draw(
    rng: np.random.Generator, largest: dict[int, Shape] = SMALL, largest_batch: int = 3
) -> DrawnConv:
    """Sizes up to ``largest`` beside the window, of which half are up to 12."""
    rank = int(rng.choice([1, 2, 2, 2, 3]))
    channels, outputs, groups = _channels(rng)
    kernel, strides, dilation = _windows(rng, rank)
    windows = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    padding = _padding(rng, windows)
    most = largest[rank]
    if rank == 2 and rng.random() < 0.15:
        most = (max(most),) * 2
    spatial = []
    for window, pair, limit in zip(windows, padding, most, strict=True):
        room = limit if rng.random() < 0.5 else min(limit, 12)
        spatial.append(max(1, window - sum(pair)) + int(rng.integers(0, room + 1)))
    x = (int(rng.integers(1, largest_batch + 1)), channels * groups, *spatial)
    return DrawnConv(x, (outputs * groups, channels, *kernel), strides, padding, dilation, groups)


def _channels(rng: np.random.Generator) -> tuple[int, int, int]:
    """Input and output channels of a group, and groups."""
    kind = rng.random()
    if kind < 0.1:  # depthwise
        groups = int(rng.choice([rng.integers(2, 100), 8 * rng.integers(1, 17)]))
        return 1, int(rng.choice([1, 1, 1, int(rng.integers(1, 5))])), groups
    if kind < 0.15:  # many small groups
        channels = int(rng.choice([2, 3, 4, 6, 8, 16]))
        return (
            channels,
            int(rng.choice([channels, 2 * channels, 8, 5])),
            int(rng.choice([5, 7, 8, 16, 32])),
        )
    if kind < 0.35:
        return _count(rng, 64), _count(rng, 64), int(rng.integers(2, 7))
    return _count(rng, 256), _count(rng, 256), 1


def _count(rng: np.random.Generator, most: int) -> int:
    """A number of channels, often one of those that vectors or tiles are made of."""
    choices = (
        rng.integers(1, 9),
        8 * rng.integers(1, 9),
        16 * rng.integers(1, 11),
        rng.integers(9, 41),
        rng.integers(40, 131),
        rng.choice([1, 2, 3, 4, 16, 24, 32, 64, 96, 128, 192, 256]),
    )
    return min(int(rng.choice(choices)), most)


def _windows(rng: np.random.Generator, rank: int) -> tuple[Shape, Shape, Shape]:
    """Kernel, strides and dilation; half of the time the same along all axes."""
    any_kernel, any_stride, any_dilation = rng.integers(1, (13, 9, 8))
    far = rng.random() < 0.3
    kernels = [any_kernel] if far else [1, 1, 2, 3, 3, 3, 4, 5, 7, any_kernel]
    strides = [any_stride] if far else [1, 1, 1, 2, 2, 3, any_stride]
    dilations = [1, 2, 2, 3, 4] if far else [1, 1, 1, 2, 3, any_dilation]
    pick = [tuple(int(v) for v in rng.choice(v, rank)) for v in (kernels, strides, dilations)]
    if rng.random() < 0.5:
        pick = [(first,) * rank for first, *_ in pick]
    return pick[0], pick[1], pick[2]


def _padding(rng: np.random.Generator, windows: list[int]) -> Pairs:
    """None, that of SAME, any little, or any up to the window on either side."""
    kind = int(rng.integers(0, 5))
    pairs = []
    for window in windows:
        low, high = (int(n) for n in rng.integers(0, window, 2))
        few_low, few_high = (int(n) for n in rng.integers(0, 5, 2))
        choices = (
            (0, 0),
            (window // 2, window // 2),
            ((window - 1) // 2, window // 2),
            (few_low, few_high),
            (low, high),
        )
        pairs.append(choices[kind])
    return tuple(pairs)

"""Random geometries of convolutions, near the boundaries between rules."""

from __future__ import annotations

import random
from collections.abc import Iterator

from jax import lax

from jax_convgrad._src.conv.geometry import ConvConfig, ConvGeometry

CHANNELS = (1, 2, 3, 4, 5, 8, 9, 16, 17, 24, 32, 96, 97, 128, 129, 1152)
KERNELS = (1, 2, 3, 3, 4, 5, 7, 8, 14, 15, 16, 31)
STRIDES = (1, 1, 1, 2, 2, 3, 4, 8, 14, 15)


def channels_last(rank: int) -> lax.ConvDimensionNumbers:
    spatial = tuple(range(1, rank + 1))
    kernel = tuple(range(rank))
    return lax.ConvDimensionNumbers(
        (0, rank + 1, *spatial), (rank + 1, rank, *kernel), (0, rank + 1, *spatial)
    )


def drawn_geometries(seed: int, count: int) -> Iterator[ConvGeometry]:
    rng = random.Random(seed)
    while count:
        try:
            geometry = _draw(rng)
        except ValueError:  # a crop of more than there is
            continue
        if not geometry.is_empty:
            count -= 1
            yield geometry


def _draw(rng: random.Random) -> ConvGeometry:
    rank = rng.choice((1, 2, 2, 3))

    def per_axis(values: tuple[int, ...]) -> tuple[int, ...]:
        same = rng.choice(values)
        return tuple(same if rng.random() < 0.7 else rng.choice(values) for _ in range(rank))

    kernel, strides = per_axis(KERNELS), per_axis(STRIDES)
    dilation = per_axis((1, 2, 12)) if rng.random() < 0.2 else (1,) * rank
    low = per_axis((0, 0, 1, 2, -1))
    high = low if rng.random() < 0.7 else per_axis((0, 1, -1))
    if rng.random() < 0.3:
        strides, dilation, low, high = kernel, (1,) * rank, (0,) * rank, (0,) * rank
    form = rng.random()
    if form < 0.6:
        groups, in_channels, out_channels = 1, rng.choice(CHANNELS), rng.choice(CHANNELS)
    else:
        groups = rng.choice((2, 3, 4, 8, 9, 32))
        in_channels = groups * (1 if form < 0.8 else rng.choice((1, 2, 3, 8)))
        out_channels = groups * rng.choice((1, 1, 2, 8))
    spatial = tuple(
        k * rng.choice((1, 2, 3)) if rng.random() < 0.5 else (k - 1) * d + rng.choice((1, 2, 9))
        for k, d in zip(kernel, dilation, strict=True)
    )
    if rng.random() < 0.02:
        spatial = tuple(2 ** rng.choice((14, 21, 41)) for _ in spatial)
    config = ConvConfig(
        strides, tuple(zip(low, high, strict=True)), dilation, groups, channels_last(rank)
    )
    x_shape = (rng.choice((1, 8)), *spatial, in_channels)
    return ConvGeometry.make(
        "draw", config, x_shape, (*kernel, in_channels // groups, out_channels)
    )

"""Random convolutions over the whole parameter space."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jax import lax
from support.comparisons import EXACT_LIMIT
from support.conv_cases import Case


def draw_case(
    rng: np.random.Generator,
    dtype: str,
    *,
    negative: bool = True,
    lhs_dilated: bool = False,
    batch_groups: bool = False,
) -> Case:
    """A convolution whose sums fit ``dtype``; drawn again until they do."""
    while True:
        case = _draw_case(rng, negative, lhs_dilated, batch_groups)
        legal = all(
            n + sum(pair) >= 0 for n, pair in zip(case.dilated_x[2:], case.pairs, strict=True)
        )
        if legal and case.reduction <= EXACT_LIMIT[dtype] - 4 and math.prod(case.y) < 3000:
            return case


def _draw_case(
    rng: np.random.Generator, negative: bool, lhs_dilated: bool, batch_groups: bool
) -> Case:
    rank = int(rng.choice([1, 2, 3], p=[0.3, 0.45, 0.25]))
    ints = lambda low, high, size=rank: tuple(int(v) for v in rng.integers(low, high + 1, size))  # noqa: E731
    mostly_one = lambda high: tuple(int(v) for v in np.maximum(rng.integers(-1, high + 1, rank), 1))  # noqa: E731
    spatial = ints(1, {1: 14, 2: 9, 3: 6}[rank])
    kernel = ints(1, {1: 5, 2: 4, 3: 3}[rank])
    strides = ints(1, 3) if rng.random() < 0.6 else (1,) * rank
    dilation = mostly_one(3)
    groups = int(rng.choice([1, 2, 3, 5], p=[0.5, 0.2, 0.2, 0.1]))
    group_channels, group_outputs = ints(1, 5, 2)
    if groups > 1 and rng.random() < 0.4:
        group_channels = 1  # depthwise, perhaps with a multiplier
        group_outputs = int(rng.choice([1, 1, 2, 3]))
    batch, channels, outputs = (
        int(rng.integers(1, 4)),
        group_channels * groups,
        group_outputs * groups,
    )

    style = rng.random()
    if style < 0.25 and not lhs_dilated:
        padding: Any = str(rng.choice(["SAME", "SAME_LOWER", "VALID"]))
    else:
        largest = {0: 2, 1: 5}[int(rng.random() < 0.25)]
        lowest = -2 if negative and rng.random() < 0.35 else 0
        padding = tuple(zip(ints(lowest, largest), ints(lowest, largest), strict=True))
        if rng.random() < 0.15:
            padding = tuple(
                (low + d * (k - 1), high)
                for (low, high), d, k in zip(padding, dilation, kernel, strict=True)
            )

    if rng.random() < 0.06:
        axis = int(rng.integers(0, 3))
        if axis == 0:
            batch = 0
        elif axis == 1:
            spatial = tuple(0 if i == 0 else n for i, n in enumerate(spatial))
        elif rng.random() < 0.5:
            channels = group_channels = 0
        else:
            outputs = 0

    lhs_dilation: Any = ()
    if lhs_dilated:
        lhs_dilation = ints(1, 3)
        strides = strides if rng.random() < 0.2 else (1,) * rank
    fraction = 1
    if batch_groups and rng.random() < 0.2:
        # The groups become groups of the batch.
        fraction, groups = groups, 1
        batch, channels = batch * fraction, group_channels
    shapes = (batch, channels, *spatial), (outputs, group_channels, *kernel)
    return Case(
        "random",
        *shapes,
        strides,
        padding,
        dilation,
        groups,
        draw_layout(rng, rank),
        lhs_dilation,
        fraction,
    )


def draw_layout(rng: np.random.Generator, rank: int) -> Any:
    """Channels-first, channels-last as strings, or any three permutations."""
    style = rng.random()
    if style < 0.3:
        return None
    if style < 0.6:
        space = "DHW"[-rank:]
        return (f"N{space}C", f"{space}IO", f"N{space}C")
    return lax.ConvDimensionNumbers(
        *(tuple(int(i) for i in rng.permutation(rank + 2)) for _ in range(3))
    )

"""Random convolutions that the implicit GEMM CUDA kernels serve, as calls of the handlers.

4 to 64 channels, 16 bits or float32, the weights in either order. Windows are dilated, strided and padded,
and do not fill tiles. On a Hopper device those of 16 bits without strides are for its warpgroups, all others
for warps. Some walks are so long that slots of shared memory are used again, and some shorter than the
dilation. What a plan may be refused for is not drawn: weights and planes that are too large for a
block's shared memory. implicit_gemm/plan.h says what the kernels serve.

Handlers take no negative padding, which this package crops before it calls them. But the window of a gradient
with respect to x is padded by what is left of it: by less than nothing, where its padding is a whole window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from support.conv_cases import Case
from support.drawn_convs import Call

OPERATORS = ("conv_fprop", "conv_dgrad", "conv_wgrad")
ENGINES = "native_implicit_gemm_"  # what their names begin with
_DTYPES = ("float16", "bfloat16", "float32")
_MAX_PRODUCTS = 20_000_000
_MAX_WEIGHTS_BYTES = 100 * 1024  # of a block of fprop or dgrad, which holds all
_MAX_PLANES_BYTES = 100 * 1024  # that a step of it reads, and the next
# 16, 32 and 64 fill the lines of shared memory. Floats are copied by fours.
_CHANNELS = (8, 16, 16, 24, 32, 32, 40, 48, 56, 64, 64)
_CHANNELS_OF_FLOATS = (*_CHANNELS, 4, 12, 20, 36, 44, 60)
# Planes of a long walk. An H200's 132 multiprocessors have one block of warpgroups each, with a ring of up to
# 16 slots, or two of warps.
_LONG = (2600, 4200)


def draw(rng: np.random.Generator) -> Call:
    """An operator on small integers, channels last. Its exact result is the sum rounded once."""
    while True:
        operator = str(rng.choice(OPERATORS))
        dtype = str(rng.choice(_DTYPES))
        case = _FAMILIES[rng.integers(len(_FAMILIES))](rng, dtype == "float32")
        if case.x[0] * math.prod(case.w) * math.prod(case.y[2:]) > _MAX_PRODUCTS:
            continue
        if operator != "conv_wgrad" and not _fits(operator, case, dtype):
            continue
        return Call.of(rng, operator, case, dtype, dtype)


def workspace_limit(rng: np.random.Generator, call: Call) -> int:
    """Bytes for the partial sums of one part of a weight gradient, of three or of very many."""
    taps = math.prod(call.case.w[2:])
    # A product has 64 rows: one tap of 64 output channels, at worst one of fewer.
    part = taps * 64 * _line(call.case.w[1]) * 4
    return part * int(rng.choice((1, 3, 100)))


def weights_order(call: Call) -> str:
    """Of a call's weights: the attribute `weights` of its handler."""
    return "OXI" if call.case.layout[1].startswith("O") else "XIO"


def _any(rng: np.random.Generator, floats: bool) -> Case:
    axes = int(rng.choice((1, 2, 2, 3)))  # two axes have the most kinds of walks
    most_kernel, most_extra = ((), (40, 600), (7, 60), (3, 14))[axes]
    kernel, dilation, padding, spatial = [], [], [], []
    strides = [1] * axes
    if rng.random() < 0.4:
        strides = [int(rng.integers(1, 3 if rng.random() < 0.7 else 5)) for _ in range(axes)]
    for _ in range(axes):
        k = int(rng.integers(1, (most_kernel if rng.random() < 0.4 else 3) + 1))
        d = 1 if rng.random() < 0.7 else int(rng.integers(2, 4))
        window = (k - 1) * d + 1
        low, high = _padding(rng, window)
        kernel.append(k)
        dilation.append(d)
        padding.append((low, high))
        more = most_extra if rng.random() < 0.85 else 3  # results shorter than the dilation
        spatial.append(max(1, window - low - high) + int(rng.integers(0, more)))
    of_channels = _CHANNELS_OF_FLOATS if floats else _CHANNELS
    channels, outputs = (int(rng.choice(of_channels)) for _ in range(2))
    x = (int(rng.integers(1, 4)), channels, *spatial)
    return _case(rng, x, (outputs, channels, *kernel), strides, padding, dilation)


def _long_walk(rng: np.random.Generator, floats: bool) -> Case:
    """Through so many planes that also a block of a large device uses their slots again.

    Blocks share the planes, of which a walk has thousands, each with few positions: along the images of
    one axis, or along the outermost of three. Of two, blocks would have tiles of both.
    """
    axes = int(rng.choice((1, 3)))
    batch, spatial, kernel, padding, dilation, strides = 1, [], [], [], [], []
    for axis in range(axes):
        walked = axes == 3 and axis == 0
        k = int(rng.choice((1, 2, 3, 3)))
        d = 1 if rng.random() < 0.7 else 2
        window = (k - 1) * d + 1
        kernel.append(k)
        dilation.append(d)
        padding.append(_padding(rng, window))
        strides.append(1 if rng.random() < 0.8 else 2)
        size = int(rng.integers(*_LONG) if walked else rng.integers(1, 9 if axes < 3 else 4))
        spatial.append(max(1, window - sum(padding[-1])) + size * (strides[-1] if walked else 1))
    if axes == 1:
        batch = int(rng.integers(*_LONG))
    channels, outputs = (int(rng.choice((8, 8, 8, 16, 4 if floats else 8))) for _ in range(2))
    x = (batch, channels, *spatial)
    return _case(rng, x, (outputs, channels, *kernel), strides, padding, dilation)


def _short_walk(rng: np.random.Generator, floats: bool) -> Case:
    """Planes of a window lie further apart than the result has planes.

    Of those that a walk reads before its first result, none follows in steps of the result.
    """
    planes = int(rng.integers(1, 4))
    dilation = (planes + int(rng.integers(0, 3)), 1, 1)
    padding = [(d, d) for d in dilation]
    of_channels = (8, 16, 4) if floats else (8, 16)
    channels, outputs = (int(rng.choice(of_channels)) for _ in range(2))
    spatial = (planes, *(int(n) for n in rng.integers(4, 40, 2)))
    x = (int(rng.integers(1, 4)), channels, *spatial)
    return _case(rng, x, (outputs, channels, 3, 3, 3), (1, 1, 1), padding, dilation)


# How a problem is drawn, by how often.
_FAMILIES = (*(_any,) * 7, *(_long_walk,) * 3, _short_walk)


def _case(
    rng: np.random.Generator,
    x: tuple[int, ...],
    w: tuple[int, ...],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> Case:
    """Channels last, with the weights in either order."""
    letters = "DHW"[-len(strides) :]
    weights = f"O{letters}I" if rng.random() < 0.5 else f"{letters}IO"
    return Case(
        "implicit_gemm",
        x,
        w,
        strides=tuple(strides),
        padding=tuple(padding),
        dilation=tuple(dilation),
        layout=(f"N{letters}C", weights, f"N{letters}C"),
    )


def _padding(rng: np.random.Generator, window: int) -> tuple[int, int]:
    """As layers have it, or any, up to windows that lie in it as a whole."""
    if rng.random() < 0.4:
        return window // 2, (window - 1) // 2
    low, high = (int(rng.integers(0, window + 1)) for _ in range(2))
    return low, high


def _fits(operator: str, case: Case, dtype: str) -> bool:
    """Whether fprop or dgrad has room for its weights and, for the smallest tile, its planes."""
    outputs, channels, *kernel = case.w
    if operator == "conv_dgrad":
        outputs, channels = channels, outputs
    element = 4 if dtype == "float32" else 2
    weights = math.prod(kernel) * _line(channels) * _line(outputs) * element
    # A tile has 8x8 positions; where windows have no rows, it may have to be a row of 64.
    edge = 64 if math.prod(kernel[:-1]) == 1 else 8
    spans = [(k - 1) * d for k, d in zip(kernel, case.dilation, strict=True)]
    steps = case.strides if operator == "conv_fprop" else (1,) * len(kernel)
    rows = edge * steps[-2] + spans[-2] if len(kernel) > 1 and edge == 8 else 1
    planes = (kernel[0] if len(kernel) == 3 else 1) + 1
    read = planes * rows * (edge * steps[-1] + spans[-1]) * _line(channels) * element
    return weights <= _MAX_WEIGHTS_BYTES and read <= _MAX_PLANES_BYTES


def _line(channels: int) -> int:
    """Of a pixel in shared memory, padded."""
    return 16 if channels <= 16 else 32 if channels <= 32 else 64

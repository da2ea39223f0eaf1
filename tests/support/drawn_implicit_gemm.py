"""Random convolutions that the implicit GEMM CUDA kernels serve, as calls of the handlers.

4 to 64 channels, 16 bits or float32, the weights in either order. Windows are dilated, strided and padded,
and do not fill tiles. On a Hopper device those of 16 bits without strides are for its warpgroups, all others
for warps. What a plan may be refused for is not drawn: weights and planes that are too large for a
block's shared memory. implicit_gemm/plan.h says what the kernels serve.

Handlers take no negative padding, which this package crops before it calls them. But the window of a gradient
with respect to x is padded by what is left of it: by less than nothing, where its padding is a whole window.
"""

from __future__ import annotations

import math

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


def draw(rng: np.random.Generator) -> Call:
    """An operator on small integers, channels last. Its exact result is the sum rounded once."""
    while True:
        operator = str(rng.choice(OPERATORS))
        dtype = str(rng.choice(_DTYPES))
        case = _case(rng, _CHANNELS_OF_FLOATS if dtype == "float32" else _CHANNELS)
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


def _case(rng: np.random.Generator, of_channels: tuple[int, ...]) -> Case:
    axes = int(rng.integers(1, 4))
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
    letters = "DHW"[-axes:]
    weights = f"O{letters}I" if rng.random() < 0.5 else f"{letters}IO"
    channels, outputs = (int(rng.choice(of_channels)) for _ in range(2))
    return Case(
        "implicit_gemm",
        (int(rng.integers(1, 4)), channels, *spatial),
        (outputs, channels, *kernel),
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

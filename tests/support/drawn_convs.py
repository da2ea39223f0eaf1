"""Random convolutions that reach into libraries' rare kernels, as calls of the handlers.

Much padding, long strides, few columns, odd numbers of channels and of groups: where oneDNN has been seen to
be wrong (NOTEs in onednn/errata.cc), and what layers seldom have.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from support.conv_cases import Case, in_layout
from support.conv_oracle import conv_oracle
from support.layouts import Pairs, Shape

from jax_convgrad._src.runtime import registry

_MOST_PRODUCTS = 3_000_000
# Operands and result among x, w and y.
_ROLES = {"conv_fprop": (0, 1, 2), "conv_dgrad": (2, 1, 0), "conv_wgrad": (0, 2, 1)}
# Of one result to the largest of it, where a part of a sum may have been rounded before.
_ROUNDING = {"bfloat16": 2.0**-7, "float16": 2.0**-10}


@dataclasses.dataclass(frozen=True)
class Call:
    """An operator on small integers. Arrays are in the case's layout, what is expected is float64.

    A result is the sum rounded once, unless ``rounds_parts``: then parts of it may be rounded before.
    """

    operator: str
    case: Case
    result_dtype: str
    operands: tuple[np.ndarray, np.ndarray]
    expected: np.ndarray
    rounds_parts: bool = False

    @classmethod
    def draw(
        cls,
        rng: np.random.Generator,
        dtypes: list[tuple[str, str]],
        order: str = "",
        rounds_parts: bool = False,
    ) -> Call:
        """``dtypes``: pairs of what operands and result may be. ``order``: of the weights' axes."""
        case = draw(rng, order)
        operator = str(rng.choice(list(_ROLES)))
        dtype, result_dtype = dtypes[rng.integers(len(dtypes))]
        data = [rng.integers(-3, 4, shape).astype(np.float64) for shape in (case.x, case.w, case.y)]
        y, dx, dw = conv_oracle(case, *data)
        lhs, rhs, result = _ROLES[operator]
        arrays, results = in_layout(case, *data), in_layout(case, dx, dw, y)
        operands = arrays[lhs].astype(jnp.dtype(dtype)), arrays[rhs].astype(jnp.dtype(dtype))
        return cls(operator, case, result_dtype, operands, results[result], rounds_parts)

    def __str__(self) -> str:
        return f"{self.operator} {self.operands[0].dtype} to {self.result_dtype}, {self.case}"

    @property
    def target(self) -> str:
        return registry.CONV_TARGETS[self.operator]

    @property
    def result_shape(self) -> Shape:
        return self.expected.shape

    @property
    def attributes(self) -> dict[str, Any]:
        case = self.case
        vectors = {
            "strides": case.strides,
            "padding_low": [low for low, _ in case.pairs],
            "padding_high": [high for _, high in case.pairs],
            "dilation": case.dilation,
            **dict(zip(("x_spec", "w_spec", "y_spec"), case.numbers, strict=True)),
        }
        attributes: dict[str, Any] = {k: np.array(v, np.int64) for k, v in vectors.items()}
        return attributes | {"groups": np.int64(case.groups)}

    def compare(self, got: np.ndarray) -> str:
        """What is wrong with a result, empty if nothing."""
        values = got.astype(np.float64)
        if self.rounds_parts:
            largest = np.abs(self.expected).max(initial=0)
            right = np.abs(values - self.expected) <= _ROUNDING.get(self.result_dtype, 0) * largest
        else:
            right = values == self.expected.astype(got.dtype).astype(np.float64)
        if right.all():
            return ""
        return f"{(~right).sum()} of {right.size} wrong, {np.isnan(values).sum()} of them NaN"


def draw(rng: np.random.Generator, order: str = "") -> Case:
    """Channels last, the weights in ``order``, such as "OXI", or in any of three."""
    while True:
        case = _draw(rng, order or str(rng.choice(["OIX", "XIO", "OXI"])))
        if case.x[0] * math.prod(case.w) * math.prod(case.y[2:]) <= _MOST_PRODUCTS:
            return case


def _draw(rng: np.random.Generator, order: str) -> Case:
    rank = int(rng.choice([1, 2, 2, 2, 3]))
    channels, outputs, groups = _channels(rng)
    kernel, strides, dilation = _windows(rng, rank)
    windows = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    pad = _padding(rng, windows)
    most: tuple[int, ...] = {1: (400,), 2: (24, 90), 3: (8, 8, 50)}[rank]
    if rank == 2 and rng.random() < 0.15:
        most = (90, 90)
    spatial = []
    for window, pair, limit in zip(windows, pad, most, strict=True):
        room = limit if rng.random() < 0.5 else min(limit, 12)
        spatial.append(max(1, window - sum(pair)) + int(rng.integers(0, room + 1)))
    x = (int(rng.integers(1, 4)), channels * groups, *spatial)
    w = (outputs * groups, channels, *kernel)
    letters = "DHW"[-rank:]
    layout = (f"N{letters}C", order.replace("X", letters), f"N{letters}C")
    return Case("drawn", x, w, strides, pad, dilation, groups, layout)


def _channels(rng: np.random.Generator) -> tuple[int, int, int]:
    """Input and output channels of a group, and groups."""
    kind = rng.random()
    if kind < 0.1:  # depthwise
        groups = int(rng.choice([rng.integers(2, 100), 8 * rng.integers(1, 17)]))
        return 1, int(rng.choice([1, 1, 1, rng.integers(1, 5)])), groups
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
        few = tuple(int(n) for n in rng.integers(0, 5, 2))
        choices = (
            (0, 0),
            (window // 2, window // 2),
            ((window - 1) // 2, window // 2),
            few,
            (low, high),
        )
        pairs.append(choices[kind])
    return tuple(pairs)

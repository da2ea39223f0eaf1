"""The CPU handlers, called through jax.ffi past all of the package's Python.

Results are compared with the definition in float64 on small integers, where any difference is a wrong
index. A bad call must come back as an error that names the operator, the operand and the sizes.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import oracles
from support.comparisons import assert_exact, exact_ints
from support.conv_cases import draw_wide
from support.layouts import Shape, to_layout
from support.processors import PROCESSORS_WITH_LESS, passed_on

from jax_convgrad._src.runtime import registry

OPERATORS = ("conv_fprop", "conv_dgrad", "conv_wgrad")
# Which arrays an operator takes and which it returns.
ROLES = {
    "conv_fprop": ("x", "w", "y"),
    "conv_dgrad": ("dy", "w", "dx"),
    "conv_wgrad": ("x", "dy", "dw"),
}


pytestmark = pytest.mark.usefixtures("needs_cpu_handlers")


@dataclasses.dataclass(frozen=True)
class Case:
    """A convolution in canonical order: x (N, C, ...), w (O, C/groups, ...), and its layouts."""

    id: str
    x: Shape
    w: Shape
    strides: Shape
    padding: tuple[tuple[int, int], ...]
    dilation: Shape
    groups: int = 1
    x_spec: Shape | None = None
    w_spec: Shape | None = None
    y_spec: Shape | None = None

    @property
    def y(self) -> Shape:
        sizes = zip(self.x[2:], self.w[2:], self.strides, self.padding, self.dilation, strict=True)
        return (self.x[0], self.w[0], *(oracles.out_size(*size) for size in sizes))

    @property
    def attributes(self) -> dict[str, Any]:
        return dict(
            strides=_int64(self.strides),
            padding_low=_int64([low for low, _ in self.padding]),
            padding_high=_int64([high for _, high in self.padding]),
            dilation=_int64(self.dilation),
            groups=np.int64(self.groups),
            x_spec=_int64(self.spec("x")),
            w_spec=_int64(self.spec("w")),
            y_spec=_int64(self.spec("y")),
        )

    def spec(self, role: str) -> Shape:
        """Of "x", "w" or "y", or one of their gradients; channels first unless the case says else."""
        given = getattr(self, f"{role[-1]}_spec")
        return given if given is not None else tuple(range(len(self.x)))

    def shape(self, role: str) -> Shape:
        """Canonical."""
        return getattr(self, role[-1])


def case(id: str, x: Shape, w: Shape, stride=1, pad=0, dilation=1, groups=1, **specs) -> Case:
    spatial = len(x) - 2
    per_axis = lambda v: (v,) * spatial if isinstance(v, int) else tuple(v)  # noqa: E731
    pairs = tuple((p, p) if isinstance(p, int) else p for p in per_axis(pad))
    return Case(id, x, w, per_axis(stride), pairs, per_axis(dilation), groups, **specs)


def _int64(values: Any) -> np.ndarray:
    return np.asarray(values, np.int64)


def _channels_last(spec: Shape) -> Shape:
    return (spec[0], *spec[2:], spec[1])


NHWC = dict(x_spec=(0, 3, 1, 2), y_spec=(0, 3, 1, 2))
HWIO = dict(w_spec=(3, 2, 0, 1))

CASES = [
    case("1d", (2, 4, 9), (6, 4, 3), pad=1),
    case("1d-stride-dilation", (2, 8, 23), (8, 8, 3), stride=2, pad=((3, 1),), dilation=3),
    case("1d-causal-depthwise", (2, 8, 17), (8, 1, 4), pad=((3, 0),), groups=8),
    case("1d-nwc-wio", (3, 5, 11), (7, 5, 3), x_spec=(0, 2, 1), y_spec=(0, 2, 1), w_spec=(2, 1, 0)),
    case("1d-taps-that-miss-x", (3, 16, 1), (16, 16, 3), stride=2, pad=((2, 1),)),
    case("1d-long", (1, 16, 5000), (16, 16, 5), pad=8, dilation=4),
    case("2d", (2, 16, 8, 9), (16, 16, 3, 3), pad=1),
    case("2d-odd-channels", (3, 5, 7, 6), (9, 5, 3, 2), pad=((1, 0), (1, 1))),
    case("2d-one-channel", (1, 1, 5, 5), (1, 1, 3, 3)),
    case("2d-image-to-features", (2, 3, 12, 12), (32, 3, 5, 5), stride=2, pad=2, **NHWC, **HWIO),
    case("2d-1x1", (2, 12, 6, 5), (20, 12, 1, 1), **NHWC, **HWIO),
    case("2d-1x1-stride", (2, 12, 7, 6), (20, 12, 1, 1), stride=2),
    case("2d-stride-leaves-rows-unread", (2, 8, 10, 12), (8, 8, 3, 3), stride=(2, 4)),
    case("2d-stride-above-kernel", (2, 6, 13, 14), (4, 6, 2, 2), stride=(5, 4)),
    case("2d-patches", (2, 3, 16, 16), (8, 3, 8, 8), stride=8),
    case("2d-same-lower", (2, 6, 8, 7), (6, 6, 4, 4), stride=2, pad=((2, 1), (1, 0))),
    case("2d-dilation", (2, 16, 11, 12), (16, 16, 3, 3), pad=2, dilation=2),
    case("2d-dilation-and-stride", (2, 16, 12, 13), (8, 16, 3, 3), 2, (3, (2, 4)), (3, 2)),
    case("2d-padding-as-large-as-the-kernel", (2, 8, 6, 5), (8, 8, 3, 3), pad=((3, 3), (0, 4))),
    case("2d-1x1-padded", (2, 8, 4, 4), (8, 8, 1, 1), pad=1),
    case("2d-window-wider-than-x", (2, 8, 2, 3), (8, 8, 3, 3), pad=6, dilation=5),
    case("2d-taps-miss-x", (2, 4, 1, 5), (4, 4, 2, 3), stride=9, pad=((1, 6), (0, 0)), dilation=3),
    # What oneDNN computes wrong: the notes in cpp/cpu/onednn/errata.cc, and cpp/cpu/onednn/staging.h.
    case("1d-much-padding", (1, 48, 79), (48, 16, 3), 2, 17, 17, groups=3),
    case("2d-much-padding", (1, 48, 5, 79), (32, 24, 2, 7), (1, 2), (0, 15), (1, 5), groups=2),
    case("1d-padding-in-front-only", (1, 16, 12), (16, 16, 16), 8, ((3, 0),)),
    case("2d-padding-in-front-only", (3, 32, 34, 25), (64, 32, 8, 8), 5, ((2, 0), (4, 0)), 2),
    case("1d-stride-beyond-x", (2, 1, 6), (39, 1, 1), 8),
    case("2d-stride-beyond-x", (1, 1, 1, 3), (93, 1, 9, 5), (1, 8), ((6, 6), (2, 1))),
    case("2d-1x1-stride-of-few", (1, 2, 26, 35), (16, 2, 1, 1), (2, 1)),
    case("2d-1x1-stride-of-one", (2, 1, 30, 34), (8, 1, 1, 1), (1, 2)),
    case(
        "3d-window-as-deep-as-x",
        (2, 48, 7, 8, 21),
        (48, 16, 7, 3, 3),
        (2, 2, 1),
        (3, 1, 1),
        groups=3,
    ),
    case("2d-1x1-stride-of-four", (2, 4, 58, 82), (16, 4, 1, 1), (2, 1)),
    case("2d-1x1-stride-of-ten", (2, 10, 68, 74), (20, 10, 1, 1), (1, 2)),
    case("2d-1x1-stride-to-many", (2, 8, 68, 86), (256, 8, 1, 1), 2),
    case("1d-five-pixels", (1, 32, 5), (256, 32, 1)),
    case("2d-five-pixels", (1, 144, 5, 1), (96, 144, 1, 1)),
    case("2d-windows-apart", (2, 40, 23, 55), (8, 40, 3, 3), (7, 1), dilation=(1, 4)),
    case("2d-halved-48", (2, 48, 20, 8), (16, 48, 2, 2), 2, **NHWC, **HWIO),
    case("1d-halved-144", (1, 144, 16), (26, 144, 4), 2),
    case("2d-rows-strided-of-four", (2, 4, 9, 8), (4, 4, 3, 3), (3, 1), 1),
    case("2d-rows-strided", (1, 67, 9, 88), (13, 67, 3, 3), (3, 1), (1, 4), (1, 4)),
    case("3d-1x1-wide", (1, 56, 4, 3, 47), (4, 56, 1, 1, 1)),
    case("3d-1x1-narrow", (2, 48, 9, 5, 1), (64, 48, 1, 1, 1)),
    case("3d-halved", (1, 48, 9, 6, 36), (16, 48, 2, 2, 2), 2, ((0, 1), (0, 1), (0, 1))),
    case("3d-planes-unread", (1, 16, 6, 8, 21), (39, 16, 3, 3, 3), 2),
    case("2d-wide-dilation", (2, 24, 9, 40), (20, 24, 3, 3), pad=2, dilation=2),
    case("2d-wide-dilation-valid", (1, 17, 11, 43), (6, 17, 4, 2), dilation=(2, 1), **NHWC, **HWIO),
    case("2d-wide-dilation-of-one-row", (1, 40, 7, 50), (8, 40, 1, 3), dilation=(3, 2)),
    case("2d-wide-dilation-stride", (1, 24, 12, 61), (8, 24, 3, 3), (2, 1), 2, (3, 1)),
    case("2d-wide-dilation-stride-along-it", (1, 24, 9, 61), (8, 24, 3, 3), (1, 2), 2, (2, 1)),
    case("2d-wide-dilation-groups", (2, 16, 9, 33), (8, 8, 3, 3), 1, 3, (3, 1), groups=2),
    case("2d-groups", (2, 24, 7, 8), (16, 3, 3, 3), pad=1, groups=8),
    case("2d-groups-hwio", (2, 12, 7, 8), (20, 3, 3, 3), pad=1, groups=4, **NHWC, **HWIO),
    case("2d-groups-stride-dilation", (2, 8, 11, 9), (8, 2, 3, 3), 2, 2, 2, groups=4),
    case("2d-depthwise", (2, 32, 9, 8), (32, 1, 3, 3), pad=1, groups=32),
    case("2d-depthwise-odd", (2, 7, 9, 8), (7, 1, 5, 3), stride=2, pad=((2, 1), (0, 1)), groups=7),
    case("2d-depthwise-7x7", (1, 24, 12, 12), (24, 1, 7, 7), pad=3, groups=24, **NHWC, **HWIO),
    case("2d-depthwise-5x11", (2, 40, 9, 13), (40, 1, 5, 11), (1, 2), (2, (9, 3)), groups=40),
    case("1d-depthwise-31", (2, 20, 50), (20, 1, 31), pad=15, groups=20),
    case("2d-depthwise-taps-outside", (3, 3, 3, 2), (3, 1, 3, 4), pad=((1, 0), (2, 0)), groups=3),
    case("2d-depthwise-dilation", (1, 16, 14, 12), (16, 1, 3, 3), 2, 2, 2, groups=16),
    case("2d-depthwise-multiplier", (2, 6, 8, 8), (12, 1, 3, 3), pad=1, groups=6),
    case(
        "2d-channels-in-front", (3, 5, 8, 6), (4, 5, 3, 3), x_spec=(2, 0, 3, 1), y_spec=(3, 1, 0, 2)
    ),
    case("2d-weights-in-any-order", (2, 6, 8, 6), (8, 3, 3, 2), groups=2, w_spec=(2, 0, 3, 1)),
    case("3d", (2, 8, 5, 6, 7), (8, 8, 3, 3, 3), pad=1),
    case(
        "3d-stride-dilation", (1, 4, 7, 8, 9), (6, 4, 2, 3, 2), (2, 1, 3), (1, (0, 2), 1), (2, 1, 3)
    ),
    case("3d-depth-below-the-window", (2, 16, 2, 6, 4), (16, 16, 3, 2, 3), pad=(1, (1, 0), 1)),
    case("3d-depth-below-the-stride", (2, 8, 2, 5, 6), (9, 8, 4, 1, 3), (2, 1, 1), pad=(2, 0, 1)),
    case(
        "3d-wide-dilation", (1, 18, 3, 7, 35), (5, 18, 2, 3, 3), pad=(0, 1, 1), dilation=(1, 2, 1)
    ),
    case("3d-groups", (2, 6, 5, 5, 6), (9, 2, 3, 2, 3), (1, 2, 1), 1, groups=3),
    case("3d-depthwise", (2, 8, 5, 5, 6), (8, 1, 3, 3, 3), pad=1, groups=8),
    case("1d-depthwise-long", (1, 19, 700), (19, 1, 9), 1, ((3, 7),), groups=19),
    case("1d-depthwise-stride", (2, 33, 300), (33, 1, 7), 3, ((2, 5),), 2, groups=33),
    case("3d-depthwise-stride", (1, 17, 6, 9, 40), (17, 1, 3, 2, 5), (2, 1, 2), 1, groups=17),
    case(
        "3d-ndhwc",
        (2, 3, 6, 5, 4),
        (5, 3, 2, 2, 2),
        stride=2,
        x_spec=(0, 4, 1, 2, 3),
        w_spec=(4, 3, 0, 1, 2),
        y_spec=(0, 4, 1, 2, 3),
    ),
]

# Work enough for several threads, with a batch that they cannot share evenly: rows are cut.
SPLIT_CASES = [
    case("2d-one-image", (1, 16, 61, 40), (16, 16, 3, 3), pad=1),
    case("2d-three-images", (3, 16, 31, 30), (16, 16, 3, 3), pad=1, **NHWC, **HWIO),
    case("2d-stride", (1, 16, 92, 60), (24, 16, 4, 3), stride=(3, 2), pad=((2, 3), (0, 1))),
    case("2d-stride-above-kernel", (1, 16, 123, 60), (32, 16, 2, 2), stride=(5, 2), pad=1),
    case("2d-dilation", (1, 16, 67, 40), (16, 16, 3, 3), (2, 1), (5, 2), (5, 2)),
    case("2d-wide-kernel", (1, 8, 30, 30), (8, 8, 31, 31), pad=15),
    case("2d-depthwise", (1, 96, 80, 64), (96, 1, 5, 5), pad=2, groups=96),
    case("2d-depthwise-dilation", (1, 80, 60, 64), (80, 1, 3, 3), pad=6, dilation=6, groups=80),
    case("1d-depthwise", (1, 128, 3000), (128, 1, 15), pad=7, groups=128),
    case("2d-few-rows", (1, 64, 3, 70), (64, 64, 3, 3), pad=1),
    case("3d-one-image", (1, 8, 17, 16, 18), (16, 8, 3, 3, 3), (2, 1, 1), 1),
    case("1d-one-sequence", (1, 24, 4001), (24, 24, 3), stride=2, pad=((7, 0),), dilation=3),
    case("2d-padding-in-front", (1, 16, 61, 40), (16, 16, 3, 3), 1, ((40, 1), 1), **NHWC, **HWIO),
    case("2d-padding-behind", (1, 16, 50, 40), (24, 16, 3, 2), (2, 1), ((1, 30), (2, 3))),
    case("2d-pointwise-padding", (1, 64, 41, 40), (64, 64, 1, 1), pad=2),
    case("2d-stride-and-padding", (1, 16, 91, 60), (32, 16, 2, 2), (5, 2), ((13, 18), 5)),
    case("2d-depthwise-padding", (1, 96, 60, 64), (96, 1, 5, 5), 1, ((9, 7), 5), groups=96),
]

# Rows so long that they are cut, and copied where there are more axes.
LONG_CASES = [
    case("1d", (1, 3, 40_000), (5, 3, 3), pad=1),
    case("1d-stride-dilation", (2, 2, 33_001), (2, 2, 3), 2, ((5, 2),), 3),
    case("1d-one-channel", (1, 1, 20_000), (1, 1, 3)),
    case("2d-two-rows", (2, 3, 2, 9001), (5, 3, 3, 3), pad=1),
    case("2d-stride-dilation", (1, 5, 4, 18_000), (7, 5, 2, 3), (1, 2), (1, (4, 3)), (1, 3)),
    case("2d-stride-above-kernel", (1, 3, 5, 17_003), (2, 3, 2, 3), (2, 5), (0, (2, 1))),
    case("2d-patches", (1, 3, 8, 16_388), (6, 3, 4, 4), stride=4, **NHWC, **HWIO),
    case("2d-depthwise", (1, 4, 3, 8500), (4, 1, 3, 3), pad=1, groups=4),
    case("2d-groups", (1, 8, 2, 9000), (8, 4, 2, 3), pad=((1, 0), 1), groups=2),
    case("3d", (1, 2, 2, 3, 8400), (3, 2, 2, 2, 3), pad=1),
    case("1d-padding", (1, 3, 40_000), (5, 3, 3), 1, ((20_000, 5),)),
    case("1d-padding-stride", (2, 4, 20_001), (6, 2, 3), 2, ((7, 9_000),), 2, groups=2),
    # Between the taps of a window there is room for all of x.
    case("1d-gap", (1, 8, 5000), (8, 1, 2), 1, ((9_999, 9_999),), 10_000, groups=8),
    case("1d-gap-groups", (1, 16, 5000), (16, 4, 2), 1, ((9_999, 9_999),), 10_000, groups=4),
    case("2d-padding", (1, 5, 3, 9000), (7, 5, 3, 3), 1, (3, (3, 9_000))),
    case("2d-padding-stride", (1, 3, 5, 17_003), (2, 3, 2, 3), (2, 5), (4, (11, 7))),
    case("2d-padding-depthwise", (1, 4, 3, 8500), (4, 1, 3, 3), 1, (3, 40), groups=4),
    case("3d-padding", (1, 2, 2, 3, 8400), (3, 2, 2, 2, 3), 1, (2, (0, 2), (9_000, 3))),
]

# Windows, taps and padding that lie so far outside x that nothing may go through all of it, let alone
# hold it: only what is read counts.
FAR = 2**30
FAR_CASES = [
    case("1d", (2, 4, 3), (6, 4, 2), FAR, ((0, FAR - 1),)),
    case("1d-beyond-32-bits", (1, 1, 4), (1, 1, 2), 2**32, ((0, 2**33),)),
    case("1d-windows-overflow", (2, 3, 4), (5, 3, 2), 2**62, ((0, 2**62),)),
    case("1d-padding-below", (2, 3, 4), (5, 3, 3), 2**61, ((2**62 - 2, 2**61),)),
    case("1d-dilation", (2, 4, 5), (6, 4, 3), 1, ((2**40 + 1, 2**40),), 2**40),
    case("1d-stride-near-dilation", (2, 3, 7), (4, 3, 3), FAR + 2, ((2 * FAR + 1,) * 2,), FAR),
    case("1d-many-windows", (2, 4, 9), (6, 2, 3), 2**21, ((2**30, 2**28),), groups=2),
    case("2d", (1, 4, 1, 1), (4, 4, 2, 2), FAR, ((0, FAR - 1),) * 2, **NHWC, **HWIO),
    case("2d-two-to-the-14", (1, 4, 1, 1), (4, 4, 2, 2), 2**14, ((0, 2**14 - 1),) * 2),
    case("2d-two-to-the-16", (1, 4, 1, 1), (4, 4, 2, 2), 2**16, ((0, 2**16 - 1),) * 2),
    case("2d-two-to-the-20", (2, 4, 3, 2), (6, 4, 2, 3), 2**20, ((2**20 - 1, 2**20), (2**19, 9))),
    case("2d-groups", (2, 6, 3, 2), (4, 3, 2, 3), FAR, ((FAR - 1, FAR), (1, FAR)), groups=2),
    case("2d-dilation", (2, 6, 5, 4), (8, 6, 3, 3), 1, FAR, FAR, **NHWC, **HWIO),
    case("2d-depthwise", (2, 20, 3, 3), (20, 1, 2, 3), FAR, ((0, FAR), 1), groups=20),
    case(
        "2d-windows-overlap", (2, 16, 5, 6), (8, 8, 3, 2), (3, 2), ((900, 7), (901, 2)), (2, 1), 2
    ),
    case("3d", (1, 4, 1, 1, 1), (4, 4, 2, 2, 2), FAR, ((0, FAR - 1),) * 3),
    case("3d-groups", (2, 4, 2, 3, 2), (6, 2, 2, 2, 3), FAR, ((FAR - 1, FAR),) * 3, groups=2),
    case(
        "3d-weights-in-any-order",
        (2, 3, 4, 3, 5),
        (5, 3, 2, 3, 2),
        (FAR, 3, 2**20),
        ((FAR - 1, FAR), 1, (0, 2**20)),
        (1, 1, 3),
        w_spec=(3, 0, 4, 1, 2),
    ),
]

# Weights of 28 MB and more, which are taken some channels at a time: the last slice is smaller.
SLICED_CASES = [
    case("2d", (2, 1000, 4, 5), (800, 1000, 3, 3), pad=1),
    case("2d-stride-hwio", (2, 520, 6, 7), (1000, 520, 4, 4), 2, ((1, 2), 1), **NHWC, **HWIO),
    case("2d-few-outputs", (1, 2600, 5, 4), (320, 2600, 3, 3), pad=1, **NHWC, **HWIO),
    case("2d-groups", (2, 2100, 4, 3), (2100, 700, 3, 3), pad=1, groups=3),
    case("1d-long-kernel", (3, 500, 40), (520, 500, 31), pad=15),
]

# Sums of so many products that they are taken some channels at a time: the last run of channels is shorter,
# and images are cut whose copies would be too large.
SUMMED_CASES = [
    case("2d", (2, 500, 4, 5), (24, 500, 3, 3), pad=1),
    case("2d-as-many-outputs", (2, 220, 6, 5), (230, 220, 3, 3), 1, (1, (2, 0)), **NHWC, **HWIO),
    case("2d-stride", (2, 300, 9, 8), (520, 300, 5, 4), (2, 3), ((1, 2), 1), **NHWC, **HWIO),
    case("2d-dilation", (1, 400, 9, 9), (410, 400, 3, 3), 1, 2, 2),
    case("2d-groups", (2, 630, 5, 4), (690, 210, 3, 3), pad=1, groups=3),
    case("2d-groups-hwio", (1, 500, 5, 4), (480, 250, 3, 3), pad=1, groups=2, **NHWC, **HWIO),
    case("2d-pointwise", (1, 2000, 7, 5), (1900, 2000, 1, 1), 2),
    case("2d-many-images", (12, 230, 30, 28), (9, 230, 3, 3), pad=1),
    case("2d-large-image", (1, 300, 120, 90), (4, 300, 3, 3), (1, 2), ((2, 0), 1), **NHWC),
    case("2d-rest-of-image", (1, 300, 61, 90), (4, 300, 2, 3), (3, 1), **NHWC),
    case("2d-many-outputs", (1, 5, 111, 90), (300, 5, 3, 3), 1, ((2, 0), 1), **NHWC),
    case("2d-padding-as-wide-as-windows", (1, 280, 80, 90), (5, 280, 3, 3), 1, (3, 4)),
    case("1d", (2, 150, 300), (160, 150, 21), 2, ((9, 30),)),
    case("1d-long", (1, 130, 17_500), (6, 130, 15), pad=7),
    case("3d", (1, 100, 5, 6, 4), (90, 100, 3, 3, 3), pad=1),
]


def call(operator: str, c: Case, lhs: Any, rhs: Any, result: jax.ShapeDtypeStruct, **changes: Any):
    """The bare custom call. ``changes`` replace attributes; None leaves one out."""
    specs = tuple(c.spec(role) for role in ROLES[operator])
    layouts = [
        None if role.endswith("w") else _channels_last(spec)
        for role, spec in zip(ROLES[operator], specs, strict=True)
    ]
    ranks = (lhs.ndim, rhs.ndim, len(result.shape))
    layouts = [
        layout if layout is None or len(layout) == rank else None
        for layout, rank in zip(layouts, ranks, strict=True)
    ]
    ffi_call = jax.ffi.ffi_call(
        registry.CONV_TARGETS[operator],
        result,
        input_layouts=tuple(layouts[:2]),
        output_layouts=layouts[2],
    )
    attributes = {k: v for k, v in (c.attributes | changes).items() if v is not None}
    return ffi_call(lhs, rhs, **attributes)


def data(operator: str, c: Case, dtype: str, rng: np.random.Generator):
    """Operands in the case's layout, and the expected result in float64."""
    ones = [np.ones(c.shape(role)) for role in ROLES[operator][:2]]
    most = int(np.max(expected(operator, c, *ones), initial=0))
    lhs, rhs = (
        exact_ints(
            rng, c.shape(role), "float32" if dtype == "float32" else "bfloat16", min(most, 250)
        )
        for role in ROLES[operator][:2]
    )
    arrays = [
        jnp.asarray(to_layout(array, c.spec(role)), dtype)
        for array, role in zip((lhs, rhs), ROLES[operator][:2], strict=True)
    ]
    return arrays, to_layout(expected(operator, c, lhs, rhs), c.spec(ROLES[operator][2]))


def expected(operator: str, c: Case, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    params = dict(strides=c.strides, padding=c.padding, dilation=c.dilation, groups=c.groups)
    if operator == "conv_fprop":
        return oracles.conv_fprop(lhs, rhs, **params)
    oracle = oracles.conv_dgrad if operator == "conv_dgrad" else oracles.conv_wgrad
    return oracle(lhs, rhs, c.x if operator == "conv_dgrad" else c.w, **params)


def check(operator: str, c: Case, dtype: str, result_dtype: str, rng: np.random.Generator) -> None:
    if dtype not in registry.require("cpu").dtypes:
        pytest.skip(f"this processor's oneDNN has no {dtype}")
    (lhs, rhs), want = data(operator, c, dtype, rng)
    got = call(operator, c, lhs, rhs, jax.ShapeDtypeStruct(want.shape, result_dtype))
    # float32 sums of these integers are exact; a bfloat16 result is their nearest bfloat16.
    rounded = want.astype(jnp.dtype(result_dtype)).astype(np.float64)
    assert_exact(got, rounded, result_dtype)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("c", CASES, ids=lambda c: c.id)
def test_float32_is_exact(operator, c, rng):
    check(operator, c, "float32", "float32", rng)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("c", CASES, ids=lambda c: c.id)
def test_bfloat16_is_exact(operator, c, rng):
    check(operator, c, "bfloat16", "bfloat16", rng)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("c", LONG_CASES, ids=lambda c: c.id)
def test_long_rows_are_exact(operator, c, dtype, rng):
    check(operator, c, dtype, dtype, rng)


@pytest.mark.cpp
@pytest.mark.parametrize("isa", PROCESSORS_WITH_LESS)
def test_on_processors_with_less(isa):
    names = "float32_is_exact or bfloat16_is_exact or long_rows_are_exact"
    passed = passed_on(isa, __file__, names)
    assert passed >= len(OPERATORS) * (len(CASES) + len(LONG_CASES))


def test_where_onednn_has_no_primitive(subprocess_python):
    """The plain loops compute it. An AVX2 processor has no bfloat16, which jax_convgrad does not ask for."""
    program = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1])]!r}
import numpy as np, jax
import test_handlers as t
for operator in t.OPERATORS:
    c = t.case("2d", (2, 6, 9, 8), (4, 3, 3, 2), 2, 1, groups=2)
    (lhs, rhs), want = t.data(operator, c, "bfloat16", np.random.default_rng(0))
    t.registry.require("cpu")
    got = t.call(operator, c, lhs, rhs, jax.ShapeDtypeStruct(want.shape, "float32"))
    t.assert_exact(got, want, "float32")
"""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run(
        [*subprocess_python, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("c", CASES[::4], ids=lambda c: c.id)
def test_bfloat16_to_float32_is_exact(operator, c, rng):
    check(operator, c, "bfloat16", "float32", rng)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("c", SPLIT_CASES, ids=lambda c: c.id)
def test_work_shared_by_threads_is_exact(operator, c, rng):
    check(operator, c, "float32", "float32", rng)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("c", SLICED_CASES, ids=lambda c: c.id)
def test_large_weights_are_exact(operator, c, dtype, rng):
    check(operator, c, dtype, dtype, rng)


@pytest.mark.parametrize("operator", OPERATORS[:2])
@pytest.mark.parametrize("c", SUMMED_CASES, ids=lambda c: c.id)
def test_long_sums_are_exact(operator, c, rng):
    check(operator, c, "float32", "float32", rng)


@pytest.mark.parametrize("operator", OPERATORS[:2])
@pytest.mark.parametrize("c", SUMMED_CASES[::4], ids=lambda c: c.id)
def test_long_sums_of_bfloat16_are_exact(operator, c, rng):
    check(operator, c, "bfloat16", "float32", rng)


@pytest.mark.parametrize(
    ("dtype", "result_dtype"),
    [("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32")],
)
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("c", FAR_CASES, ids=lambda c: c.id)
def test_far_windows_are_exact(operator, c, dtype, result_dtype, rng):
    check(operator, c, dtype, result_dtype, rng)


@pytest.mark.parametrize("seed", range(3))
def test_random_wide_problems_are_exact(seed):
    rng = np.random.default_rng(seed)
    for _ in range(4):
        wide = draw_wide(rng)
        c = case("wide", wide.x, wide.w, wide.strides, wide.padding, wide.dilation, wide.groups)
        for operator in OPERATORS:
            for dtype in ("float32", "bfloat16"):
                if dtype in registry.require("cpu").dtypes:
                    check(operator, c, dtype, "float32", rng)


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_layout(operator, rng):
    for x_spec, w_spec, y_spec in zip(
        itertools.permutations(range(4)),
        itertools.permutations((2, 0, 3, 1)),
        itertools.permutations((1, 3, 2, 0)),
        strict=True,
    ):
        c = case(
            "layout", (2, 4, 5, 6), (6, 2, 3, 2), (2, 1), ((1, 0), (1, 1)), groups=2,
            x_spec=x_spec, w_spec=w_spec, y_spec=y_spec,
        )  # fmt: skip
        check(operator, c, "float32", "float32", rng)


@pytest.mark.parametrize("operator", OPERATORS)
def test_same_bits_at_every_call(operator, rng):
    c = case("random", (3, 24, 30, 30), (24, 24, 3, 3), pad=1)
    lhs, rhs = (
        jnp.asarray(rng.standard_normal(c.shape(role)), jnp.float32) for role in ROLES[operator][:2]
    )
    result = jax.ShapeDtypeStruct(c.shape(ROLES[operator][2]), jnp.float32)
    run = jax.jit(lambda a, b: call(operator, c, a, b, result))
    first = np.asarray(run(lhs, rhs))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:  # alone and side by side
        again = [pool.submit(run, lhs, rhs) for _ in range(100)]
        for future in again:
            assert np.array_equal(np.asarray(future.result()), first)


ZERO_CASES = [
    case("no-images", (0, 4, 6, 6), (8, 4, 3, 3), pad=1),
    case("no-input-channels", (2, 0, 6, 6), (8, 0, 3, 3), pad=1),
    case("no-output-channels", (2, 4, 6, 6), (0, 4, 3, 3), pad=1),
    case("no-rows", (2, 4, 0, 6), (8, 4, 3, 3), pad=2),
    case("no-windows", (2, 4, 2, 6), (8, 4, 3, 3)),
    case("no-taps", (2, 4, 6, 6), (8, 4, 0, 3), pad=1),
]


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("c", ZERO_CASES, ids=lambda c: c.id)
def test_sums_over_nothing_are_zero(operator, c):
    if c.id == "no-taps":  # an empty window fits one position more than there are elements
        c = dataclasses.replace(c, id=c.id, padding=((0, 0), (0, 0)))
        shapes = {"x": c.x, "w": c.w, "y": (2, 8, 7, 4)}
    else:
        shapes = {"x": c.x, "w": c.w, "y": c.y}
    lhs, rhs, result = (shapes[role[-1]] for role in ROLES[operator])
    ones = (jnp.ones(lhs, jnp.float32), jnp.ones(rhs, jnp.float32))
    got = call(operator, c, *ones, jax.ShapeDtypeStruct(result, jnp.float32))
    assert got.shape == result
    assert not np.asarray(got).any()


# Bad calls. The good one that they spoil: x (2, 6, 8, 9), w (4, 3, 3, 3), y (2, 4, 8, 4).

GOOD = case("good", (2, 6, 8, 9), (4, 3, 3, 3), stride=(1, 2), pad=((1, 1), (0, 0)), groups=2)
BIG = _int64([2**62, 0])


@dataclasses.dataclass(frozen=True)
class Bad:
    """What to spoil: attributes, shapes or dtypes by role; and what the error must say."""

    id: str
    message: str
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)
    shapes: dict[str, Shape] = dataclasses.field(default_factory=dict)
    dtypes: dict[str, str] = dataclasses.field(default_factory=dict)
    operator: str = "conv_fprop"


def bad(
    id: str, message: str, operator="conv_fprop", shapes=None, dtypes=None, **attributes
) -> Bad:
    return Bad(id, message, attributes, shapes or {}, dtypes or {}, operator)


BAD_CALLS = [
    bad("x-rank-2", "x has shape (2, 6), expected 3 to 5 axes", shapes={"x": (2, 6)}),
    bad("x-rank-6", "x has shape (2, 6, 8, 9, 1, 1), expected 3 to 5", shapes={"x": (2, 6, 8, 9, 1, 1)}),
    bad("w-rank", "w has shape (4, 3, 3), expected 4 axes", shapes={"w": (4, 3, 3)}),
    bad("y-rank", "y has shape (2, 4, 32), expected 4 axes", shapes={"y": (2, 4, 32)}),
    bad("strides-short", "strides is (1), expected 2 entries", strides=_int64([1])),
    bad("strides-long", "strides is (1, 2, 1), expected 2", strides=_int64([1, 2, 1])),
    bad("padding-low-length", "padding_low is (1, 0, 0), expected 2", padding_low=_int64([1, 0, 0])),
    bad("padding-high-length", "padding_high is (), expected 2", padding_high=_int64([])),
    bad("dilation-length", "dilation is (1), expected 2 entries", dilation=_int64([1])),
    bad("x-spec-length", "x_spec is (0, 1, 2), expected 4", x_spec=_int64([0, 1, 2])),
    bad("w-spec-length", "w_spec is (0, 1, 2, 3, 4), expected 4", w_spec=_int64([0, 1, 2, 3, 4])),
    bad("x-spec-repeats", "x_spec is (0, 1, 1, 3), expected a permutation", x_spec=_int64([0, 1, 1, 3])),
    bad("w-spec-range", "w_spec is (0, 1, 2, 4), expected a permutation", w_spec=_int64([0, 1, 2, 4])),
    bad("y-spec-negative", "y_spec is (0, 1, 2, -1), expected a perm", y_spec=_int64([0, 1, 2, -1])),
    bad("stride-zero", "strides is (0, 2), expected every entry >= 1", strides=_int64([0, 2])),
    bad("stride-negative", "strides is (1, -2), expected every entry >= 1", strides=_int64([1, -2])),
    bad("dilation-zero", "dilation is (1, 0), expected every entry >= 1", dilation=_int64([1, 0])),
    bad("dilation-negative", "dilation is (-3, 1), expected every", dilation=_int64([-3, 1])),
    bad("padding-low-negative", "padding_low is (-1, 0), expected", padding_low=_int64([-1, 0])),
    bad("padding-high-negative", "padding_high is (1, -9), expected", padding_high=_int64([1, -9])),
    bad("groups-zero", "groups is 0, expected at least 1", groups=np.int64(0)),
    bad("groups-negative", "groups is -2, expected at least 1", groups=np.int64(-2)),
    bad("groups-and-input", "6 channels cannot be divided into 4 groups", groups=np.int64(4)),
    bad("groups-and-output", "4 output channels cannot be divided into 3", groups=np.int64(3)),
    bad("input-channels", "expected input channels / groups 6, got 3", groups=np.int64(1)),
    bad("batch", "y has shape (3, 4, 8, 4): expected batch 2, got 3", shapes={"y": (3, 4, 8, 4)}),
    bad("output-channels", "expected output channels 4, got 8", shapes={"y": (2, 8, 8, 4)}),
    bad("y-too-large", "expected size 4 on spatial axis 1, got 5", shapes={"y": (2, 4, 8, 5)}),
    bad("y-too-small", "expected size 8 on spatial axis 0, got 7", shapes={"y": (2, 4, 7, 4)}),
    bad("y-of-no-window", "expected size 0 on spatial axis 0, got 8", dilation=_int64([6, 1])),
    bad("spec-swaps-axes", "expected size 9 on spatial axis 0, got 8", x_spec=_int64([0, 1, 3, 2])),
    bad("padding-overflow", "overflows on spatial axis 0", padding_low=BIG, padding_high=BIG),
    bad("padded-size-overflow", "overflows on spatial axis 1", padding_high=_int64([1, 2**63 - 1])),
    bad("dilation-overflow", "overflows on spatial axis 1", dilation=_int64([1, 2**62])),
    bad("integers", "x has dtype S32, expected F32 or BF16", dtypes=dict.fromkeys("xwy", "int32")),
    bad("float16", "x has dtype F16, expected F32 or BF16", dtypes=dict.fromkeys("xwy", "float16")),
    bad("float64", "x has dtype F64, expected F32 or BF16", dtypes=dict.fromkeys("xwy", "float64")),
    bad("mixed-operands", "w has dtype BF16, expected F32 like x", dtypes={"w": "bfloat16"}),
    bad("result-narrower", "y has dtype BF16, expected F32 like x", dtypes={"y": "bfloat16"}),
    bad("result-integer", "y has dtype S32, expected F32 like x", dtypes={"y": "int32"}),
    bad("dgrad-x-too-small", "expected size 7 on spatial axis 0, got 8", "conv_dgrad", {"x": (2, 6, 7, 9)}),
    bad("dgrad-x-too-large", "dy has shape (2, 4, 8, 4)", "conv_dgrad", {"x": (2, 6, 8, 99)}),
    bad("dgrad-batch", "dy has shape (3, 4, 8, 4): expected batch 2", "conv_dgrad", {"y": (3, 4, 8, 4)}),
    bad("dgrad-mixed", "w has dtype F32, expected BF16 like dy", "conv_dgrad", dtypes={"y": "bfloat16"}),
    bad("wgrad-kernel", "expected size 5 on spatial axis 0, got 8", "conv_wgrad", {"w": (4, 3, 6, 3)}),
    bad("wgrad-channels", "dw has shape (4, 2, 3, 3): expected input", "conv_wgrad", {"w": (4, 2, 3, 3)}),
    bad("wgrad-result", "dw has dtype S32, expected F32 like x", "conv_wgrad", dtypes={"w": "int32"}),
]  # fmt: skip


def spoiled(b: Bad):
    shapes = {role: b.shapes.get(role, GOOD.shape(role)) for role in "xwy"}
    dtypes = {role: b.dtypes.get(role, "float32") for role in "xwy"}
    lhs, rhs, result = (role[-1] for role in ROLES[b.operator])
    operands = (jnp.ones(shapes[role], dtypes[role]) for role in (lhs, rhs))
    struct = jax.ShapeDtypeStruct(shapes[result], dtypes[result])
    return call(b.operator, GOOD, *operands, struct, **b.attributes)


def test_the_good_call():
    for operator in OPERATORS:
        spoiled(Bad("good", "", operator=operator))


@pytest.mark.parametrize("b", BAD_CALLS, ids=lambda b: b.id)
def test_bad_call_is_an_error(b):
    with pytest.raises(Exception, match=re.escape(b.message)) as caught:
        jax.block_until_ready(spoiled(b))
    assert f"INVALID_ARGUMENT: {b.operator}: " in str(caught.value)


@pytest.mark.parametrize("name", sorted(GOOD.attributes))
def test_missing_attribute_is_an_error(name):
    with pytest.raises(Exception, match="expected 8 attributes but got 7") as caught:
        jax.block_until_ready(spoiled(Bad("missing", "", {name: None})))
    assert "INVALID_ARGUMENT" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("strides", np.asarray([1, 2], np.int32), "expected S64 but got S32"),
        ("padding_low", np.asarray([1.0, 0.0]), "expected S64 but got F64"),
        ("dilation", np.int64(1), "expected array but got scalar"),
        ("groups", _int64([2]), "expected scalar but got array"),
        ("groups", np.int32(2), "expected S64 but got S32"),
        ("w_spec", "OIHW", "expected array but got string"),
    ],
)
def test_attribute_of_the_wrong_type_is_an_error(name, value, message):
    with pytest.raises(Exception, match=message) as caught:
        # A fresh jit: eager calls are cached by attributes that compare equal, whatever their type.
        jax.block_until_ready(jax.jit(lambda: spoiled(Bad("type", "", {name: value})))())
    assert "INVALID_ARGUMENT" in str(caught.value)


def test_sums_over_nothing_are_zero_at_once():
    # An array of no elements says nothing about its other sizes: 2**45 taps are not gone through.
    n = 2**45
    c = case("no-taps", (1, 1, 4, 4), (1, 1, n, 0), pad=((n, 0), (0, 0)))
    got = call(
        "conv_fprop",
        c,
        jnp.ones(c.x, jnp.float32),
        jnp.ones(c.w, jnp.float32),
        jax.ShapeDtypeStruct((1, 1, 5, 5), jnp.float32),
    )
    assert not np.asarray(got).any()

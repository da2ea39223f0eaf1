"""Named convolutions. Shapes are in canonical order; each case knows its layout.

`layouts.to_layout` and `from_layout` go between the two, and the oracles know canonical order only.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from jax import lax
from support import oracles
from support.comparisons import exact_ints
from support.layouts import NDHWC, NHWC, NWC, Pairs, Shape, default_numbers, to_layout


@dataclasses.dataclass(frozen=True)
class Case:
    """A convolution in lax's terms: window strides, padding, both dilations, both group counts.

    ``padding`` is what is passed; ``pairs`` what it means, worked out here from the definition.
    ``layout`` is the dimension_numbers argument, None for NCHW, OIHW, NCHW.
    """

    id: str
    x: Shape
    w: Shape
    strides: Shape = ()
    padding: str | Pairs = "VALID"
    dilation: Shape = ()
    groups: int = 1
    layout: Any = None
    lhs_dilation: Shape = ()
    batch_groups: int = 1

    def __post_init__(self) -> None:
        for name in ("strides", "dilation", "lhs_dilation"):
            if not getattr(self, name):
                object.__setattr__(self, name, (1,) * (len(self.x) - 2))

    @property
    def is_plain(self) -> bool:
        """Whether the operators have all of its arguments."""
        return all(d == 1 for d in self.lhs_dilation) and self.batch_groups == 1

    @property
    def numbers(self) -> lax.ConvDimensionNumbers:
        if self.layout is None:
            return default_numbers(len(self.x))
        # Only the ranks matter here.
        return lax.conv_dimension_numbers(self.x, self.w, self.layout)

    @property
    def dilated_x(self) -> Shape:
        sizes = zip(self.x[2:], self.lhs_dilation, strict=True)
        return (*self.x[:2], *(max((n - 1) * d + 1, 0) if n else 0 for n, d in sizes))

    @property
    def pairs(self) -> Pairs:
        """SAME gives ceil(size / stride) outputs, the odd element of padding at the end."""
        if not isinstance(self.padding, str):
            return tuple((low, high) for low, high in self.padding)
        if self.padding == "VALID":
            return ((0, 0),) * (len(self.x) - 2)
        pairs = []
        for n, k, s, d in zip(self.x[2:], self.w[2:], self.strides, self.dilation, strict=True):
            total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
            less, more = total // 2, total - total // 2
            pairs.append((less, more) if self.padding == "SAME" else (more, less))
        return tuple(pairs)

    @property
    def geometry(self) -> dict[str, Any]:
        """The keywords for the oracles."""
        return {
            "strides": self.strides,
            "padding": self.pairs,
            "dilation": self.dilation,
            "groups": self.groups,
        }

    @property
    def y(self) -> Shape:
        sizes = map(
            oracles.out_size,
            self.dilated_x[2:],
            self.w[2:],
            self.strides,
            self.pairs,
            self.dilation,
        )
        return (self.x[0] // self.batch_groups, self.w[0], *sizes)

    @property
    def reduction(self) -> int:
        """The longest sum of products in the convolution and its two gradients."""
        kernel = math.prod(self.w[2:])
        outputs = self.w[0] // (self.groups * self.batch_groups)
        return max(self.w[1] * kernel, outputs * kernel, self.y[0] * math.prod(self.y[2:]), 1)

    @property
    def operator_keywords(self) -> dict[str, Any]:
        assert self.is_plain
        return {
            "strides": self.strides,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
            "dimension_numbers": self.layout,
        }

    @property
    def lax_keywords(self) -> dict[str, Any]:
        return {
            "window_strides": self.strides,
            "padding": self.padding,
            "lhs_dilation": None if set(self.lhs_dilation) <= {1} else self.lhs_dilation,
            "rhs_dilation": self.dilation,
            "dimension_numbers": self.layout,
            "feature_group_count": self.groups,
            "batch_group_count": self.batch_groups,
        }

    def logical(self, which: str) -> Shape:
        """Shape of "x", "w" or "y" in the layout."""
        spec = self.numbers["xwy".index(which)]
        shape = [0] * len(spec)
        for axis, size in zip(spec, getattr(self, which), strict=True):
            shape[axis] = size
        return tuple(shape)

    def data(self, rng: np.random.Generator, dtype: str, reduction: int | None = None) -> Any:
        """Exact x, w, dy (float64, canonical)."""
        size = self.reduction if reduction is None else reduction
        return tuple(exact_ints(rng, shape, dtype, size) for shape in (self.x, self.w, self.y))


def draw_wide(rng: np.random.Generator, layout: str = "NCX OIX NCX") -> Case:
    """Rows and channels of more than one vector, with a remainder for the kernels."""
    rank = int(rng.choice([1, 2, 2, 3]))
    any_of = lambda *values: tuple(int(v) for v in rng.choice(values, rank))  # noqa: E731
    groups = int(rng.choice([1, 1, 1, 2, 5]))
    channels, outputs = (int(n) for n in rng.integers(1, 40 // groups + 10, 2))
    if rng.random() < 0.4:  # which many kernels want
        channels, outputs = channels + -channels % 8, outputs + -outputs % 8
    kernel, dilation = any_of(1, 2, 3, 3, 5), any_of(1, 1, 2, 3)
    drawn = (rng.integers(0, 4, 2) for _ in range(rank))
    pad = tuple((int(low), int(high)) for low, high in drawn)
    smallest = [
        max((k - 1) * d + 1 - sum(pair), 1)
        for k, d, pair in zip(kernel, dilation, pad, strict=True)
    ]
    spatial = tuple(n + int(rng.integers(0, 5)) for n in smallest)
    spatial = (*spatial[:-1], smallest[-1] + int(rng.integers(20, 70)))
    x = (int(rng.integers(1, 4)), channels * groups, *spatial)
    w = (outputs * groups, channels, *kernel)
    numbers = tuple(spec.replace("X", "DHW"[-rank:]) for spec in layout.split())
    return Case("wide", x, w, any_of(1, 1, 1, 2, 3), pad, dilation, groups, numbers)


def in_layout(case: Case, x: Any, w: Any, dy: Any) -> tuple[Any, Any, Any]:
    x_spec, w_spec, y_spec = case.numbers
    return to_layout(x, x_spec), to_layout(w, w_spec), to_layout(dy, y_spec)


# Cases that the operators and conv_general_dilated have in common.
PLAIN_CASES = [
    Case("1x1", (2, 5, 4, 3), (7, 5, 1, 1)),
    Case("3x3-same", (2, 4, 5, 6), (5, 4, 3, 3), padding="SAME"),
    Case("3x3-same-channels-last", (2, 4, 5, 6), (5, 4, 3, 3), padding="SAME", layout=NHWC),
    Case("even-kernel-same", (2, 3, 5, 6), (4, 3, 4, 2), padding="SAME"),
    Case("even-kernel-same-lower", (2, 3, 5, 6), (4, 3, 4, 2), padding="SAME_LOWER"),
    Case("stride2-same", (2, 3, 8, 9), (4, 3, 3, 3), (2, 2), "SAME"),
    Case("stride2-same-lower", (2, 3, 8, 9), (4, 3, 3, 3), (2, 2), "SAME_LOWER", layout=NHWC),
    Case("stride2-leaves-a-row-unread", (2, 3, 8, 8), (4, 3, 3, 3), (2, 2)),
    Case("stride3-leaves-two-rows-unread", (2, 3, 9, 10), (4, 3, 1, 2), (3, 3), layout=NHWC),
    Case("padding-is-never-read", (1, 2, 6, 6), (3, 2, 3, 3), (4, 4), ((1, 2), (0, 3))),
    Case("uneven-strides", (2, 3, 9, 7), (2, 3, 3, 2), (3, 1), ((1, 1), (0, 1))),
    Case("dilation2", (2, 3, 9, 8), (4, 3, 3, 3), (), ((2, 2), (2, 2)), (2, 2)),
    Case("dilation2-same", (2, 3, 9, 8), (4, 3, 3, 3), (), "SAME", (2, 2), layout=NHWC),
    Case("dilation-and-stride", (2, 3, 11, 12), (4, 3, 3, 2), (2, 3), ((2, 1), (0, 2)), (3, 2)),
    Case("dilation-is-the-stride", (1, 3, 13, 12), (4, 3, 3, 3), (2, 3), ((2, 2), (3, 3)), (2, 3)),
    Case("groups2", (2, 4, 6, 5), (6, 2, 3, 3), (), "SAME", groups=2),
    Case("groups2-channels-last", (2, 4, 6, 5), (6, 2, 3, 3), (), "SAME", groups=2, layout=NHWC),
    Case(
        "groups3-stride-dilation", (2, 9, 9, 8), (6, 3, 2, 3), (2, 1), ((1, 0), (2, 1)), (1, 2), 3
    ),
    # One image and many large groups, as in per-example gradients.
    Case(
        "groups64-of-32", (1, 2048, 3, 2), (2048, 32, 2, 1), (2, 1), "SAME", groups=64, layout=NHWC
    ),
    Case("groups-one-output-each", (2, 6, 6, 5), (3, 2, 3, 3), (), "SAME", groups=3, layout=NHWC),
    Case("depthwise", (2, 5, 6, 7), (5, 1, 3, 3), (), "SAME", groups=5),
    Case("depthwise-channels-last", (2, 8, 6, 7), (8, 1, 3, 3), (), "SAME", groups=8, layout=NHWC),
    Case(
        "depthwise-multiplier3", (2, 4, 6, 5), (12, 1, 3, 3), (2, 1), "SAME", groups=4, layout=NHWC
    ),
    Case("depthwise-dilated-stride2", (1, 7, 12, 9), (7, 1, 3, 2), (2, 2), "SAME", (2, 3), 7),
    Case(
        "depthwise-taps-before-the-image",
        (3, 3, 3, 2),
        (3, 1, 3, 4),
        (),
        ((1, 0), (2, 0)),
        groups=3,
    ),
    Case(
        "depthwise-taps-after-the-image",
        (2, 16, 2, 3),
        (16, 1, 2, 5),
        (),
        ((0, 3), (0, 2)),
        groups=16,
    ),
    Case("odd-channels", (3, 13, 5, 4), (17, 13, 2, 1), (), "SAME", layout=NHWC),
    Case("one-channel", (2, 1, 6, 6), (1, 1, 3, 3), (), "SAME"),
    Case("asymmetric-padding", (2, 3, 6, 5), (4, 3, 3, 4), (1, 2), ((0, 3), (4, 1))),
    Case("negative-padding", (2, 3, 9, 8), (4, 3, 3, 3), (), ((-1, -2), (-2, -1)), layout=NHWC),
    Case("negative-and-positive-padding", (2, 3, 8, 9), (4, 3, 3, 3), (2, 2), ((-2, 3), (4, -3))),
    Case(
        "negative-padding-of-one-side",
        (1, 4, 7, 6),
        (4, 2, 2, 3),
        (2, 1),
        ((-1, 0), (0, -1)),
        groups=2,
    ),
    Case("padding-larger-than-the-kernel", (2, 3, 4, 3), (4, 3, 2, 3), (), ((4, 3), (5, 0))),
    Case(
        "padding-larger-than-the-image",
        (1, 3, 2, 1),
        (4, 3, 3, 3),
        (2, 1),
        ((5, 4), (3, 6)),
        layout=NHWC,
    ),
    Case("batch1", (1, 4, 7, 6), (5, 4, 3, 3), (2, 2), "SAME"),
    Case("kernel-equals-stride", (2, 3, 8, 9), (5, 3, 4, 3), (4, 3), layout=NHWC),
    Case("kernel-is-the-image", (3, 4, 5, 4), (6, 4, 5, 4)),
    Case("stride-larger-than-the-image", (2, 3, 4, 4), (5, 3, 2, 2), (7, 9)),
    Case("taps-that-read-only-padding", (2, 3, 1, 1), (4, 3, 3, 3), (), "SAME", layout=NHWC),
    Case("taps-before-the-image", (1, 1, 7, 1), (4, 1, 1, 2), (1, 3), ((0, -1), (1, 0))),
    Case("rows-only", (2, 3, 1, 9), (4, 3, 1, 5), (1, 2), ((0, 0), (2, 2)), layout=NHWC),
    Case("1d", (3, 4, 11), (5, 4, 3), (), "SAME"),
    Case("1d-channels-last-causal", (2, 4, 9), (6, 4, 3), (), ((4, 0),), (2,), layout=NWC),
    Case("1d-stride-groups", (2, 6, 13), (9, 2, 4), (3,), ((2, 1),), groups=3, layout=NWC),
    Case("1d-depthwise-long", (1, 3, 40), (3, 1, 9), (), "SAME", groups=3),
    Case("3d", (1, 3, 4, 5, 3), (4, 3, 2, 3, 2), (), "SAME"),
    Case(
        "3d-channels-last-stride2",
        (2, 3, 5, 6, 4),
        (4, 3, 3, 3, 2),
        (2, 2, 2),
        "SAME",
        layout=NDHWC,
    ),
    Case(
        "3d-groups-dilation",
        (1, 4, 5, 6, 7),
        (6, 2, 2, 2, 3),
        (1, 2, 1),
        ((1, 0), (0, 2), (-1, 1)),
        (2, 1, 2),
        2,
    ),
    Case("3d-depthwise", (1, 5, 4, 5, 4), (5, 1, 3, 3, 3), (), "SAME", groups=5, layout=NDHWC),
    Case(
        "layout-strings-mixed",
        (2, 4, 5, 6),
        (6, 2, 3, 2),
        (2, 1),
        "SAME",
        groups=2,
        layout=("NHWC", "OIHW", "NCHW"),
    ),
    Case(
        "layout-batch-inside",
        (3, 4, 5, 6),
        (5, 4, 3, 2),
        (),
        "SAME",
        (1, 2),
        layout=("HNCW", "OHWI", "CWNH"),
    ),
    Case("layout-strings-3d", (2, 3, 4, 3, 5), (4, 3, 2, 2, 2), layout=("CDNHW", "DOHWI", "NHWDC")),
    Case(
        "layout-tuples",
        (2, 4, 5, 6),
        (6, 2, 3, 2),
        (1, 2),
        ((1, 0), (0, 1)),
        groups=2,
        layout=lax.ConvDimensionNumbers((3, 0, 2, 1), (1, 3, 0, 2), (2, 1, 3, 0)),
    ),
    Case("batch0", (0, 3, 6, 5), (4, 3, 3, 3), (), "SAME"),
    Case("spatial0", (2, 3, 0, 5), (4, 3, 3, 3), (), "SAME", layout=NHWC),
    Case("spatial0-padded-to-something", (2, 3, 0, 5), (4, 3, 2, 3), (), ((2, 1), (1, 1))),
    Case("output0", (2, 3, 2, 5), (4, 3, 3, 3)),
    Case("input-channels0", (2, 0, 5, 5), (4, 0, 3, 3), (), "SAME"),
    Case("output-channels0", (2, 3, 5, 5), (0, 3, 3, 3), (), "SAME"),
    Case("cropped-away-padded-again", (2, 3, 2, 5), (4, 3, 2, 3), (2, 1), ((-3, 6), (1, -4))),
    Case("all-cropped-away", (2, 3, 4, 5), (2, 3, 1, 2), (), ((-2, -2), (0, 0))),
]

# Cases that only conv_general_dilated has.
DILATED_CASES = [
    Case("lhs-dilation", (1, 3, 4, 5), (4, 3, 3, 3), (), ((2, 2), (1, 3)), lhs_dilation=(2, 3)),
    Case(
        "lhs-dilation-groups",
        (2, 4, 4, 5),
        (6, 2, 3, 2),
        (),
        ((0, 2), (2, 0)),
        (2, 1),
        2,
        NHWC,
        (2, 2),
    ),
    Case(
        "lhs-dilation-crops-the-result",
        (1, 3, 5, 4),
        (4, 3, 3, 3),
        (),
        ((-1, 0), (2, -2)),
        lhs_dilation=(3, 2),
    ),
    Case(
        "lhs-dilation-one-axis",
        (2, 3, 4, 5),
        (4, 3, 3, 3),
        (),
        ((1, 1), (1, 1)),
        lhs_dilation=(1, 2),
    ),
    Case(
        "lhs-dilation-and-strides",
        (2, 3, 4, 5),
        (4, 3, 3, 3),
        (2, 3),
        ((2, 2), (1, 3)),
        lhs_dilation=(3, 2),
    ),
    Case(
        "lhs-dilation-and-strides-negative",
        (1, 4, 5, 6),
        (4, 2, 2, 3),
        (2, 1),
        ((-2, 1), (3, -1)),
        (1, 2),
        2,
        NHWC,
        (2, 2),
    ),
    Case(
        "lhs-dilation-kernel-inside-the-stride",
        (2, 3, 3, 4),
        (4, 3, 2, 1),
        (),
        ((1, 1), (0, 0)),
        lhs_dilation=(4, 3),
    ),
    Case(
        "lhs-dilation-large-padding",
        (1, 2, 3, 2),
        (3, 2, 2, 3),
        (),
        ((5, 3), (0, 6)),
        lhs_dilation=(2, 2),
    ),
    Case(
        "lhs-dilation-1d", (2, 3, 5), (4, 3, 4), (), ((3, 2),), (2,), layout=NWC, lhs_dilation=(3,)
    ),
    Case(
        "lhs-dilation-3d",
        (1, 2, 3, 2, 3),
        (3, 2, 2, 3, 2),
        (),
        ((1, 1), (2, 2), (1, 0)),
        lhs_dilation=(2, 1, 3),
    ),
    Case(
        "lhs-dilation-zero-output",
        (2, 3, 2, 5),
        (4, 3, 5, 3),
        (),
        ((0, 0), (0, 0)),
        lhs_dilation=(2, 2),
    ),
    Case(
        "lhs-dilation-spatial0",
        (2, 3, 0, 5),
        (4, 3, 2, 3),
        (),
        ((2, 2), (0, 0)),
        lhs_dilation=(2, 2),
    ),
    Case(
        "lhs-dilation-batch0", (0, 3, 3, 5), (4, 3, 2, 3), (), ((1, 0), (0, 1)), lhs_dilation=(2, 2)
    ),
    Case("batch-groups2", (4, 3, 5, 6), (6, 3, 3, 3), (), "SAME", batch_groups=2),
    Case(
        "batch-groups3-stride",
        (6, 2, 6, 5),
        (9, 2, 3, 2),
        (2, 1),
        ((1, 0), (0, 2)),
        (1, 2),
        1,
        NHWC,
        (),
        3,
    ),
    Case(
        "batch-groups-are-the-batch",
        (4, 3, 5, 6),
        (8, 3, 2, 3),
        (),
        "SAME",
        batch_groups=4,
        layout=("CHWN", "IHWO", "HWNC"),
    ),
    Case(
        "batch-groups-lhs-dilation",
        (4, 3, 3, 4),
        (6, 3, 3, 2),
        (),
        ((1, 1), (1, 1)),
        lhs_dilation=(2, 3),
        batch_groups=2,
    ),
    Case(
        "batch-groups-lhs-dilation-strides",
        (4, 3, 3, 4),
        (6, 3, 3, 2),
        (3, 2),
        ((1, 1), (1, 1)),
        lhs_dilation=(2, 3),
        batch_groups=2,
    ),
    Case("batch-groups-1d", (4, 3, 9), (4, 3, 3), (2,), "SAME", batch_groups=4, layout=NWC),
]

# While compiling lax's own input gradients of these, XLA:CPU aborts (conv/emit_xla.py says why), so they are
# compared with the oracles only.
ABORTING_CASES = [
    Case("two-taps-stride2-unpadded", (3, 3, 8, 3), (3, 3, 2, 4), (2, 2), ((1, 2), (0, 2))),
    Case(
        "two-taps-stride2-unpadded-groups",
        (2, 6, 7, 10),
        (6, 3, 3, 2),
        (3, 2),
        ((1, 0), (1, 1)),
        groups=2,
    ),
    Case(
        "two-taps-stride2-unpadded-3d",
        (2, 2, 10, 1, 3),
        (3, 2, 2, 3, 3),
        (2, 3, 1),
        ((1, 1), (2, 2), (1, 1)),
    ),
]

CONV_CASES = PLAIN_CASES + DILATED_CASES


def ids(case: Any) -> str:
    return case.id

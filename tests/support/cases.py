"""Named convolutions, data that is exact in every dtype, and the two comparisons.

Shapes are in canonical order here, whatever the layout: x (batch, channels, spatial), w (output
channels, input channels / groups, kernel), y like x. A case knows its layout; `to_layout` and
`from_layout` go between the two, and the oracles know canonical order only.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from support import oracles

from jax_convgrad._src.dispatch.decide import PLATFORMS
from jax_convgrad._src.dispatch.override import overridden_backend

Shape = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]

FLOATS = ("float32", "bfloat16", "float16", "float64")
# Every integer up to here has an exact representation.
EXACT_LIMIT = {"bfloat16": 2**8, "float16": 2**11, "float32": 2**24, "float64": 2**53}


# Layouts.


def to_layout(array: np.ndarray, spec: Sequence[int]) -> np.ndarray:
    """Canonical order to the order of ``spec``, one of lax.ConvDimensionNumbers' three tuples."""
    return np.moveaxis(array, range(array.ndim), spec)


def from_layout(array: Any, spec: Sequence[int]) -> np.ndarray:
    return np.transpose(np.asarray(array), spec)


def default_numbers(rank: int) -> lax.ConvDimensionNumbers:
    return lax.ConvDimensionNumbers(*(tuple(range(rank)),) * 3)


# Data and comparisons.


def exact_ints(rng: np.random.Generator, shape: Shape, dtype: str, reduction: int) -> np.ndarray:
    """Small integers, float64, of which sums of ``reduction`` products are exact in ``dtype``.

    The bound holds for the sum of absolute values, so for every partial sum in every order as well,
    even one kept in ``dtype`` itself; 4 is left over for a bias.
    """
    largest = min(math.isqrt((EXACT_LIMIT[dtype] - 4) // max(reduction, 1)), 9)
    assert largest >= 1, f"{reduction} products may not fit {dtype}: make the case smaller"
    return rng.integers(-largest, largest + 1, shape).astype(np.float64)


def may_transform() -> bool:
    """Whether XLA computes convolutions here with engines that are not exact on small integers.

    NOTE [Transforming engines]. On a GPU, XLA times all engines of cuDNN and takes the fastest, which
    for float32 and float16 may be one that works on transformed arrays (Winograd, Fourier) and so
    leaves 52.999996 where 53 is right. The handlers leave those engines out. Where XLA may have
    computed a result, it is rounded to the nearest integer before it is compared: a wrong index is an
    error of one at least. In float64 there are no such engines.
    """
    return jax.default_backend() == "gpu" and overridden_backend() not in PLATFORMS


def assert_equal(
    got: Any, expected: np.ndarray, dtype: Any, what: str = "result", nearest: bool = False
) -> None:
    """``got`` has ``dtype`` and equals ``expected``, values that ``dtype`` can represent.

    ``nearest``: the integers nearest to it do, for an ``expected`` of integers.
    """
    dtype = jnp.dtype(dtype)
    assert np.array_equal(expected.astype(dtype).astype(np.float64), expected), (
        f"{what}: the expected values are not representable in {dtype}: the case proves nothing"
    )
    assert got.dtype == dtype, f"{what} is {got.dtype}, not {dtype}"
    assert got.shape == expected.shape, f"{what} has shape {got.shape}, not {expected.shape}"
    values = np.asarray(got).astype(np.float64)
    wrong = ~((np.rint(values) if nearest else values) == expected)
    if wrong.any():
        first = tuple(int(axis[0]) for axis in np.nonzero(wrong))
        raise AssertionError(
            f"{what}: {wrong.sum()} of {wrong.size} elements differ, first at {first}: "
            f"{values[first]} instead of {expected[first]}; largest difference "
            f"{np.nanmax(np.abs(values - expected))}"
        )


def assert_exact(
    got: Any, expected: np.ndarray, dtype: Any, what: str = "result", by_xla: bool = False
) -> None:
    """`assert_equal` for a convolution of integers, whoever computed it.

    ``by_xla`` says that no handler takes the problem, even where all problems are forced on them.
    """
    assert np.array_equal(np.rint(expected), expected), f"{what}: not integers"
    assert_equal(
        got, expected, dtype, what, may_transform() or (by_xla and jax.default_backend() == "gpu")
    )


def relative_error(got: Any, expected: np.ndarray) -> float:
    """Norm-wise error against float64, or long double."""
    difference = np.asarray(got).astype(np.float64) - expected
    return float(np.linalg.norm(difference.ravel()) / max(np.linalg.norm(expected.ravel()), 1e-300))


def value_and_gradients(f: Callable[..., Any]) -> Callable[..., Any]:
    """(dy, *operands) -> (f(*operands), its gradients for all operands), one compiled program."""

    @jax.jit
    def run(dy: Any, *operands: Any) -> Any:
        y, pullback = jax.vjp(f, *operands)
        return y, *pullback(dy)

    return run


# Cases.


@dataclasses.dataclass(frozen=True)
class Case:
    """A convolution as lax has it: window strides, padding, both dilations, both group counts.

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
        """Whether the operators have every argument of it."""
        return all(d == 1 for d in self.lhs_dilation) and self.batch_groups == 1

    @property
    def numbers(self) -> lax.ConvDimensionNumbers:
        if self.layout is None:
            return default_numbers(len(self.x))
        # Only the ranks count here.
        return lax.conv_dimension_numbers(self.x, self.w, self.layout)

    @property
    def dilated_x(self) -> Shape:
        sizes = zip(self.x[2:], self.lhs_dilation, strict=True)
        return (*self.x[:2], *(max((n - 1) * d + 1, 0) if n else 0 for n, d in sizes))

    @property
    def pairs(self) -> Pairs:
        """SAME gives ceil(size / stride) outputs, the odd element of padding at the end."""
        if not isinstance(self.padding, str):
            return tuple(map(tuple, self.padding))
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
        """The oracles' keywords."""
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
    """Rows and channels of more than one vector, of which kernels leave a remainder."""
    rank = int(rng.choice([1, 2, 2, 3]))
    any_of = lambda *values: tuple(int(v) for v in rng.choice(values, rank))  # noqa: E731
    groups = int(rng.choice([1, 1, 1, 2, 5]))
    channels, outputs = (int(n) for n in rng.integers(1, 40 // groups + 10, 2))
    if rng.random() < 0.4:  # which many kernels want
        channels, outputs = channels + -channels % 8, outputs + -outputs % 8
    kernel, dilation = any_of(1, 2, 3, 3, 5), any_of(1, 1, 2, 3)
    pad = tuple(tuple(int(v) for v in rng.integers(0, 4, 2)) for _ in range(rank))
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


def conv_oracle(case: Case, x: np.ndarray, w: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, ...]:
    """(y, dx, dw) of ``case`` by definition, canonical order; zero sizes included.

    In the arrays' own dtype: float64, or long double.

    The zeros of lhs_dilation are really inserted, and every group of the batch is a convolution of
    its own with its share of the output channels.
    """
    steps = (slice(None), slice(None), *(slice(None, None, d) for d in case.lhs_dilation))
    spread = np.zeros(case.dilated_x, x.dtype)
    spread[steps] = x
    y, dspread, dw = (np.zeros(s, x.dtype) for s in (case.y, case.dilated_x, case.w))
    batch, outputs = case.y[0], case.w[0] // case.batch_groups
    for g in range(case.batch_groups):
        n, o = slice(g * batch, (g + 1) * batch), slice(g * outputs, (g + 1) * outputs)
        y[:, o] = oracles.conv_fprop(spread[n], w[o], **case.geometry)
        dspread[n] = oracles.conv_dgrad(dy[:, o], w[o], spread[n].shape, **case.geometry)
        dw[o] = oracles.conv_wgrad(spread[n], dy[:, o], w[o].shape, **case.geometry)
    return y, dspread[steps], dw


def in_layout(case: Case, x: Any, w: Any, dy: Any) -> tuple[Any, Any, Any]:
    x_spec, w_spec, y_spec = case.numbers
    return to_layout(x, x_spec), to_layout(w, w_spec), to_layout(dy, y_spec)


def cast(dtype: str, *arrays: Any) -> tuple[jax.Array, ...]:
    return tuple(jnp.asarray(array, dtype) for array in arrays)


def _channels_last(spatial: str) -> tuple[str, str, str]:
    return f"N{spatial}C", f"{spatial}IO", f"N{spatial}C"


NWC, NHWC, NDHWC = map(_channels_last, ("W", "HW", "DHW"))

# What the operators and conv_general_dilated have in common.
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
    # One image and many large groups, as gradients of single examples are.
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

# What only conv_general_dilated has.
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


@dataclasses.dataclass(frozen=True)
class TransposedCase:
    """A transposed convolution. ``w`` is (output channels, input channels / groups, kernel).

    ``pairs`` are those of the dilated input, written out by hand for every kind of padding
    argument; None where ``padding`` are those pairs already. ``layout`` None means NHWC, HWIO, NHWC.
    """

    id: str
    x: Shape
    w: Shape
    strides: Shape
    padding: str | Pairs
    pairs: Pairs | None = None
    dilation: Shape = ()
    groups: int = 1
    layout: Any = None
    transpose_kernel: bool = False
    use_consistent_padding: bool = False
    output_padding: int | Shape = 0
    output_shape: Shape | None = None

    @functools.cached_property
    def conv(self) -> Case:
        """The same map in lax's words: a convolution of an input dilated by the strides."""
        layout = self.layout or {1: NWC, 2: NHWC, 3: NDHWC}[len(self.x) - 2]
        pairs = self.padding if self.pairs is None else self.pairs
        return Case(
            self.id, self.x, self.w, (), pairs, self.dilation, self.groups, layout, self.strides
        )

    @property
    def keywords(self) -> dict[str, Any]:
        return {
            "strides": self.strides,
            "padding": self.padding,
            "rhs_dilation": self.dilation or None,
            "dimension_numbers": self.layout,
            "transpose_kernel": self.transpose_kernel,
            "use_consistent_padding": self.use_consistent_padding,
            "feature_group_count": self.groups,
            "output_padding": self.output_padding,
            "output_shape": self.output_shape,
        }

    @property
    def reverses_weights(self) -> bool:
        """Whether the convolution underneath, y -> x, has them reversed, and is what is computed."""
        grows = any(y > x for y, x in zip(self.conv.y[2:], self.x[2:], strict=True))
        return not self.transpose_kernel and (max(self.strides) > 1 or grows)

    @property
    def is_lax(self) -> bool:
        """Whether lax.conv_transpose has all of the arguments (it has no SAME_LOWER either)."""
        return (
            self.groups == 1
            and self.output_padding == 0
            and self.output_shape is None
            and self.padding != "SAME_LOWER"
        )

    @property
    def lax_keywords(self) -> dict[str, Any]:
        own = ("feature_group_count", "output_padding", "output_shape")
        return {name: value for name, value in self.keywords.items() if name not in own}

    def passed_weights(self, w: np.ndarray) -> np.ndarray:
        """The rhs that acts as ``w``: with transpose_kernel reversed, and O and I swapped."""
        if self.transpose_kernel:
            w = np.flip(np.swapaxes(w, 0, 1), tuple(range(2, w.ndim)))
        return to_layout(w, self.conv.numbers.rhs_spec)

    def canonical_weights(self, rhs: Any) -> np.ndarray:
        """The inverse of `passed_weights`."""
        w = from_layout(rhs, self.conv.numbers.rhs_spec)
        if self.transpose_kernel:
            w = np.swapaxes(np.flip(w, tuple(range(2, w.ndim))), 0, 1)
        return w


def _t(
    id: str, x: Shape, w: Shape, strides: Shape, padding: Any, pairs: Any = None, **rest: Any
) -> TransposedCase:
    return TransposedCase(id, x, w, strides, padding, pairs, **rest)


TRANSPOSED_CASES = [
    # lax: SAME pads the dilated input by k + s - 2 in all, the larger half first, at most k - 1.
    _t("same-k4s2", (2, 3, 4, 5), (4, 3, 4, 4), (2, 2), "SAME", ((2, 2), (2, 2))),
    _t("same-k3s2", (2, 3, 4, 5), (4, 3, 3, 3), (2, 2), "SAME", ((2, 1), (2, 1))),
    _t("same-k2s3", (2, 3, 3, 4), (4, 3, 2, 2), (3, 3), "SAME", ((1, 2), (1, 2))),
    _t("same-lower-k3s2", (2, 3, 4, 5), (4, 3, 3, 3), (2, 2), "SAME_LOWER", ((1, 2), (1, 2))),
    _t("same-stride1", (2, 3, 5, 4), (4, 3, 3, 3), (1, 1), "SAME", ((1, 1), (1, 1))),
    _t("valid-stride1", (2, 3, 5, 4), (4, 3, 3, 2), (1, 1), "VALID", ((2, 2), (1, 1))),
    _t(
        "pairs-stride1-smaller",
        (2, 4, 6, 7),
        (6, 2, 3, 2),
        (1, 1),
        ((1, 0), (-1, 1)),
        dilation=(2, 1),
        groups=2,
        layout=("NCHW", "IOHW", "NCHW"),
    ),
    _t(
        "same-dilated",
        (2, 3, 4, 5),
        (4, 3, 3, 2),
        (2, 2),
        "SAME",
        ((3, 2), (2, 1)),
        dilation=(2, 2),
    ),
    _t("valid-k4s2", (2, 3, 4, 5), (4, 3, 4, 4), (2, 2), "VALID", ((3, 3), (3, 3))),
    _t("valid-k2s2", (2, 3, 4, 5), (4, 3, 2, 2), (2, 2), "VALID", ((1, 1), (1, 1))),
    _t(
        "valid-kernel-smaller-than-stride",
        (1, 3, 3, 2),
        (4, 3, 2, 1),
        (4, 3),
        "VALID",
        ((1, 3), (0, 2)),
    ),
    _t(
        "valid-dilated",
        (1, 3, 3, 4),
        (4, 3, 3, 2),
        (2, 1),
        "VALID",
        ((4, 4), (3, 3)),
        dilation=(2, 3),
    ),
    _t("pairs", (2, 3, 4, 5), (4, 3, 3, 3), (2, 2), ((1, 2), (0, 3))),
    _t("pairs-crop", (2, 3, 5, 6), (4, 3, 2, 3), (2, 2), ((-1, 0), (1, -2))),
    _t("pairs-larger-than-the-kernel", (1, 3, 2, 3), (4, 3, 2, 2), (2, 3), ((4, 0), (2, 5))),
    _t("pairs-unread-inputs", (1, 3, 5, 6), (4, 3, 2, 2), (3, 2), ((-3, -2), (0, -4))),
    _t(
        "consistent-pairs",  # k - 1 - p of the convolution underneath
        (2, 3, 4, 5),
        (4, 3, 4, 3),
        (2, 2),
        ((1, 1), (0, 2)),
        ((2, 2), (2, 0)),
        use_consistent_padding=True,
    ),
    _t(
        "consistent-pairs-dilated",
        (1, 3, 4, 5),
        (4, 3, 3, 2),
        (3, 2),
        ((1, 0), (2, 1)),
        ((3, 4), (1, 2)),
        dilation=(2, 3),
        use_consistent_padding=True,
    ),
    _t(
        "consistent-same",
        (2, 3, 4, 5),
        (4, 3, 3, 3),
        (2, 2),
        "SAME",
        ((2, 1), (2, 1)),
        use_consistent_padding=True,
    ),
    _t(
        "transpose-kernel",
        (2, 3, 4, 5),
        (5, 3, 3, 4),
        (2, 2),
        "SAME",
        ((2, 1), (2, 2)),
        transpose_kernel=True,
    ),
    _t(
        "transpose-kernel-nchw",
        (2, 3, 4, 5),
        (5, 3, 3, 4),
        (2, 1),
        ((1, 1), (2, 0)),
        transpose_kernel=True,
        layout=("NCHW", "OIHW", "NCHW"),
    ),
    _t(
        "transpose-kernel-groups",
        (2, 4, 4, 5),
        (6, 2, 3, 2),
        (2, 2),
        ((2, 1), (1, 1)),
        groups=2,
        transpose_kernel=True,
    ),
    _t("groups2", (2, 4, 4, 5), (6, 2, 3, 3), (2, 2), "SAME", ((2, 1), (2, 1)), groups=2),
    _t(
        "groups3-nchw",
        (2, 6, 4, 3),
        (9, 2, 2, 3),
        (2, 3),
        "VALID",
        ((1, 1), (2, 2)),
        groups=3,
        layout=("NCHW", "IOHW", "NCHW"),
    ),
    _t("depthwise", (2, 5, 4, 3), (5, 1, 4, 4), (2, 2), "SAME", ((2, 2), (2, 2)), groups=5),
    _t(
        "depthwise-multiplier2",
        (1, 3, 4, 5),
        (6, 1, 3, 3),
        (2, 2),
        "SAME",
        ((2, 1), (2, 1)),
        groups=3,
    ),
    _t(
        "output-padding",
        (2, 3, 4, 5),
        (4, 3, 3, 3),
        (2, 2),
        ((1, 1), (1, 1)),
        ((1, 2), (1, 2)),
        output_padding=1,
    ),
    _t(
        "output-padding-per-axis",
        (2, 3, 4, 5),
        (4, 3, 3, 3),
        (2, 3),
        ((1, 1), (1, 1)),
        ((1, 1), (1, 3)),
        output_padding=(0, 2),
    ),
    _t(
        "output-padding-same",
        (1, 3, 4, 5),
        (4, 3, 3, 3),
        (2, 2),
        "SAME",
        ((2, 2), (2, 2)),
        output_padding=1,
    ),
    _t(
        "output-padding-at-least-the-stride",
        (1, 3, 4, 5),
        (4, 3, 3, 2),
        (1, 2),
        ((2, 2), (1, 1)),
        ((2, 5), (1, 4)),
        dilation=(4, 5),
        output_padding=(3, 3),
    ),
    _t(
        "output-padding-groups",
        (1, 4, 3, 4),
        (4, 2, 4, 4),
        (3, 3),
        "VALID",
        ((3, 5), (3, 5)),
        groups=2,
        output_padding=2,
    ),
    # 4 inputs, k 3, s 2: the full result has 9; SAME cuts evenly, the odd one at the high side.
    _t(
        "output-shape-same",
        (2, 3, 4, 4),
        (4, 3, 3, 3),
        (2, 2),
        "SAME",
        ((2, 1), (1, 1)),
        output_shape=(8, 7),
    ),
    _t(
        "output-shape-same-lower",
        (2, 3, 4, 4),
        (4, 3, 3, 3),
        (2, 2),
        "SAME_LOWER",
        ((1, 2), (1, 1)),
        output_shape=(8, 7),
    ),
    _t(
        "output-shape-same-beyond-full",
        (1, 3, 4, 4),
        (4, 3, 3, 3),
        (2, 2),
        "SAME",
        ((2, 3), (2, 2)),
        output_shape=(10, 9),
    ),
    _t(
        "output-shape-valid",
        (1, 3, 4, 4),
        (4, 3, 3, 3),
        (2, 2),
        "VALID",
        ((2, 2), (2, 3)),
        output_shape=(9, 10),
    ),
    _t(
        "output-shape-pairs",
        (1, 3, 4, 4),
        (4, 3, 3, 3),
        (2, 3),
        ((1, 1), (1, 1)),
        ((1, 2), (1, 3)),
        output_shape=(8, 12),
    ),
    _t("odd-channels", (2, 7, 3, 4), (11, 7, 3, 3), (2, 2), "SAME", ((2, 1), (2, 1))),
    _t("kernel-equals-stride", (1, 5, 3, 4), (3, 5, 4, 3), (4, 3), "SAME", ((3, 3), (2, 2))),
    _t("batch1-one-pixel", (1, 6, 1, 1), (4, 6, 4, 4), (1, 1), "VALID", ((3, 3), (3, 3))),
    _t("1d", (2, 3, 6), (4, 3, 5), (3,), "SAME", ((3, 3),)),
    _t(
        "1d-groups-output-padding",
        (2, 4, 5),
        (6, 2, 3),
        (2,),
        ((1, 1),),
        ((1, 2),),
        groups=2,
        output_padding=1,
    ),
    _t("3d", (1, 3, 2, 3, 2), (4, 3, 2, 3, 4), (2, 2, 2), "SAME", ((1, 1), (2, 1), (2, 2))),
    _t(
        "3d-ncdhw",
        (1, 3, 2, 3, 2),
        (4, 3, 2, 2, 2),
        (2, 1, 3),
        "VALID",
        ((1, 1), (1, 1), (1, 2)),
        layout=("NCDHW", "OIDHW", "NCDHW"),
    ),
    _t(
        "layout-tuples",
        (2, 3, 4, 5),
        (4, 3, 3, 2),
        (2, 1),
        ((1, 2), (0, 1)),
        layout=lax.ConvDimensionNumbers((3, 0, 2, 1), (1, 3, 0, 2), (2, 1, 3, 0)),
    ),
    _t("batch0", (0, 3, 4, 5), (4, 3, 3, 3), (2, 2), "SAME", ((2, 1), (2, 1))),
    _t("spatial0", (2, 3, 0, 5), (4, 3, 3, 3), (2, 2), ((3, 2), (2, 1))),
    _t("output0", (2, 3, 1, 5), (4, 3, 3, 3), (2, 2), ((1, 0), (1, 1))),
    _t("channels0", (2, 0, 4, 5), (4, 0, 3, 3), (2, 2), "SAME", ((2, 1), (2, 1))),
]


def ids(case: Any) -> str:
    return case.id

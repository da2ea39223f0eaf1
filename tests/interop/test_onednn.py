"""The oneDNN adapter: literals by hand, numpy by definition in every format, adjoints, errors."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from support import foreign_oracles, oracles
from support.comparisons import assert_exact, relative_error
from support.layouts import from_layout, to_layout

from jax_convgrad import onednn

Shape = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]

DATA_FORMATS = ["NXC", "NCX"]
WEIGHTS_FORMATS = ["XIO", "OIX", "XOI", "IOX"]


def spec(axes: str, roles: str, rank: int) -> Shape:
    """Where the canonical axes (``roles``, then space) lie in a format."""
    spelled = axes.replace("X", "XYZ"[:rank])
    return tuple(spelled.index(letter) for letter in roles + "XYZ"[:rank])


def one_axis(
    stride: int = 1,
    begin: int = 0,
    end: int = 0,
    dilation: int = 1,
    auto_pad: str = "none",
    **more: Any,
) -> dict[str, Any]:
    return {
        "strides": (stride,),
        "pads_begin": (begin,),
        "pads_end": (end,),
        "dilations": (dilation,),
        "auto_pad": auto_pad,
        **more,
    }


def row(*numbers: float) -> np.ndarray:
    """One batch, one channel: the same array in NXC and NCX up to its shape."""
    return np.array(numbers, np.float32).reshape(1, -1, 1)


def kernel(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32).reshape(-1, 1, 1)


# Literals, computed by hand. src 1 2 3 4 5, kernel 1 10 100: the digits show what was read.


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (one_axis(), [321, 432, 543]),
        (one_axis(begin=1, end=1), [210, 321, 432, 543, 54]),
        (one_axis(begin=0, end=2), [321, 432, 543, 54, 5]),
        (one_axis(stride=2, begin=1), [210, 432]),
        (one_axis(dilation=2), [531]),
        (one_axis(stride=2, auto_pad="same_upper"), [210, 432, 54]),
        (one_axis(begin=7, end=7, auto_pad="valid"), [321, 432, 543]),
    ],
    ids=str,
)
def test_convolution_literal(attributes, expected):
    got = onednn.convolution(row(1, 2, 3, 4, 5), kernel(1, 10, 100), **attributes)
    assert_exact(got, row(*expected).astype(np.float64), "float32")


@pytest.mark.parametrize(
    ("auto_pad", "expected"),
    # Size 4, stride 2, kernel 3: one element of padding, at the end or at the beginning.
    [("SAME_UPPER", [321, 43]), ("SAME_LOWER", [210, 432]), ("VALID", [321]), ("None", [321])],
)
@pytest.mark.parametrize("spelling", [str, str.lower, str.upper])
def test_auto_pad_literal_in_any_spelling(auto_pad, expected, spelling):
    got = onednn.convolution(
        row(1, 2, 3, 4), kernel(1, 10, 100), **one_axis(2, auto_pad=spelling(auto_pad))
    )
    assert_exact(got, row(*expected).astype(np.float64), "float32")


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (one_axis(), [1, 12, 123, 230, 300]),
        (one_axis(2), [1, 10, 102, 20, 203, 30, 300]),
        (one_axis(2, 1, 1), [10, 102, 20, 203, 30]),
        (one_axis(2, 1, 1, output_padding=(1,)), [10, 102, 20, 203, 30, 300]),
        (one_axis(2, 0, 0, output_padding=(1,)), [1, 10, 102, 20, 203, 30, 300, 0]),
        # The output padding is the whole stride, which the dilation allows.
        (one_axis(1, 0, 1, 2, output_padding=(1,)), [1, 2, 13, 20, 130, 200, 300]),
        (one_axis(2, auto_pad="same_upper"), [1, 10, 102, 20, 203, 30]),
        (one_axis(2, auto_pad="same_lower"), [10, 102, 20, 203, 30, 300]),
        (one_axis(2, auto_pad="same_upper", output_padding=(1,)), [1, 10, 102, 20, 203, 30, 300]),
    ],
    ids=str,
)
def test_conv_transpose_literal_and_exact_adjoint(attributes, expected):
    """src 1 2 3, kernel 1 10 100. The backward operations are given the same attributes."""
    src, weights = row(1, 2, 3), kernel(1, 10, 100)
    got = onednn.conv_transpose(src, weights, **attributes)
    assert_exact(got, row(*expected).astype(np.float64), "float32")
    attributes = {"output_padding": (0,), **attributes}
    diff_dst = np.arange(1, got.size + 1, dtype=np.float32).reshape(got.shape)
    diff_src = onednn.conv_transpose_backward_data(diff_dst, weights, **attributes)
    diff_weights = onednn.conv_transpose_backward_weights(
        src, diff_dst, weights.shape, **attributes
    )
    product = float(np.vdot(diff_dst, got))
    assert diff_src.shape == src.shape
    assert float(np.vdot(diff_src, src)) == product
    assert float(np.vdot(diff_weights, weights)) == product


def test_convolution_backward_data_literal():
    """diff_dst 1 2 3, kernel 1 10 100, and one row at the end that no window reads."""
    weights = kernel(1, 10, 100)
    got = onednn.convolution_backward_data(row(1, 2, 3), weights, (1, 8, 1), **one_axis(2))
    assert_exact(got, row(1, 10, 102, 20, 203, 30, 300, 0).astype(np.float64), "float32")
    same = one_axis(2, auto_pad="same_upper")
    got = onednn.convolution_backward_data(row(1, 2, 3), weights, (1, 6, 1), **same)
    assert_exact(got, row(1, 10, 102, 20, 203, 30).astype(np.float64), "float32")
    got = onednn.convolution_backward_data(row(1, 2, 3), weights, (1, 5, 1), **same)
    assert_exact(got, row(10, 102, 20, 203, 30).astype(np.float64), "float32")


def test_backward_weights_literal():
    """diff_dst 1 10 100 over src 1 2 3 4 5: tap k sees src from k on."""
    got = onednn.convolution_backward_weights(
        row(1, 2, 3, 4, 5), row(1, 10, 100), (3, 1, 1), **one_axis()
    )
    assert_exact(got, kernel(321, 432, 543).astype(np.float64), "float32")
    got = onednn.conv_transpose_backward_weights(
        row(1, 10, 100), row(1, 2, 3, 4, 5), (3, 1, 1), **one_axis()
    )
    assert_exact(got, kernel(321, 432, 543).astype(np.float64), "float32")


def test_groups_of_conv_transpose_literal():
    """Weights are (in, out / groups): each input channel, a group of its own, feeds two outputs."""
    src = np.array([1, 2], np.float32).reshape(1, 2, 1)
    weights = np.array([[1, 10], [100, 1000]], np.float32).reshape(2, 2, 1)
    got = onednn.conv_transpose(
        src, weights, **one_axis(groups=2), data_format="NCX", weights_format="IOX"
    )
    assert_exact(got, np.array([1.0, 10, 200, 2000]).reshape(1, 4, 1), "float32")


# Where the source's rule for SAME and the exact adjoint part ways.


def test_same_without_output_padding_follows_the_source():
    """diff_dst of 7 at stride 2: a plain SAME convolution over it, ceil(7 / 2) elements."""
    diff_dst, weights = row(1, 2, 3, 4, 5, 6, 7), kernel(1, 10, 100)
    same = one_axis(2, auto_pad="same_upper")
    by_source = onednn.conv_transpose_backward_data(diff_dst, weights, **same)
    # Pads (1, 1), those that a plain convolution has for size 7; conv_transpose has (0, 1).
    assert_exact(by_source, row(210, 432, 654, 76).astype(np.float64), "float32")
    adjoint = onednn.conv_transpose_backward_data(diff_dst, weights, output_padding=(1,), **same)
    assert_exact(adjoint, row(321, 543, 765).astype(np.float64), "float32")


@pytest.mark.parametrize("auto_pad", ["same_upper", "same_lower"])
@pytest.mark.parametrize(("size", "dst"), [(3, 6), (3, 7), (4, 7)])
def test_same_weight_gradient_belongs_to_the_data_gradient(auto_pad, size, dst, rng):
    """Without output_padding the sizes decide between conv_transpose's pads and the source's."""
    attributes = one_axis(2, auto_pad=auto_pad)
    src, diff_dst, weights = (
        rng.integers(-3, 4, shape).astype(np.float64)
        for shape in ((2, size, 3), (2, dst, 2), (3, 2, 3))
    )
    extra = {"output_padding": (dst - 2 * size,)} if dst > 2 * size else {}
    diff_src = onednn.conv_transpose_backward_data(diff_dst, weights, **attributes, **extra)
    diff_weights = onednn.conv_transpose_backward_weights(
        src, diff_dst, weights.shape, **attributes
    )
    assert np.vdot(diff_src, src) == np.vdot(diff_weights, weights)


@pytest.mark.parametrize("auto_pad", ["none", "same_upper", "same_lower", "valid"])
@pytest.mark.parametrize("size", [4, 5])
def test_backward_data_without_output_padding(auto_pad, size, rng):
    """Multiples of the stride under SAME, and any pads that are written out, need none of it."""
    attributes = one_axis(3, 2, 1, 2, auto_pad)
    src, weights = rng.standard_normal((2, size, 3)), rng.standard_normal((3, 2, 3))
    dst = onednn.conv_transpose(src, weights, **attributes)
    diff_src = onednn.conv_transpose_backward_data(dst, weights, **attributes)
    assert diff_src.shape == src.shape
    np.testing.assert_allclose(np.vdot(diff_src, src), np.vdot(dst, dst), rtol=1e-12)


# Every format, against numpy by definition.


class Problem:
    """One geometry in canonical order, its data, and the same in any format."""

    def __init__(self, rng: np.random.Generator, rank: int, transposed: bool) -> None:
        self.rank, self.transposed, self.groups = rank, transposed, 2
        self.strides, self.dilation = (2, 1, 3)[:rank], (1, 2, 1)[:rank]
        self.pads: Pairs = ((1, 0), (0, 2), (1, 1))[:rank]
        taps = (3, 2, 2)[:rank]
        self.extra = (1, 1, 2)[:rank]
        self.attributes = {
            "strides": self.strides,
            "pads_begin": tuple(low for low, _ in self.pads),
            "pads_end": tuple(high for _, high in self.pads),
            "dilations": self.dilation,
            "groups": self.groups,
        }
        self.keywords = {"strides": self.strides, "dilation": self.dilation, "groups": self.groups}
        begins = self.attributes["pads_begin"]
        src_shape = (2, 4, *(5, 4, 3)[:rank])
        # Canonical: plain (O, I / groups, kernel), transposed (I, O / groups, kernel).
        w_shape = (4, 3, *taps) if transposed else (6, 2, *taps)

        def ints(shape: Shape) -> np.ndarray:
            return rng.integers(-3, 4, shape).astype(np.float64)

        self.src, self.weights = ints(src_shape), ints(w_shape)
        if transposed:
            full = foreign_oracles.full_spatial(src_shape, w_shape, self.strides, self.dilation)
            out = tuple(
                n + more - sum(pair)
                for n, more, pair in zip(full, self.extra, self.pads, strict=True)
            )
            self.dst = foreign_oracles.transposed(
                self.src, self.weights, begins, out, **self.keywords
            )
            self.diff_dst = ints(self.dst.shape)
            self.diff_src, self.diff_weights = foreign_oracles.transposed_gradients(
                self.diff_dst, self.src, self.weights, begins, **self.keywords
            )
        else:
            keywords = {**self.keywords, "padding": self.pads}
            self.dst = oracles.conv_fprop(self.src, self.weights, **keywords)
            self.diff_dst = ints(self.dst.shape)
            self.diff_src = oracles.conv_dgrad(self.diff_dst, self.weights, src_shape, **keywords)
            self.diff_weights = oracles.conv_wgrad(self.src, self.diff_dst, w_shape, **keywords)
        self.bias = ints(self.dst.shape[1:2])

    def check(self, data_format: str, weights_format: str, dtype: str = "float32") -> None:
        data = spec(data_format, "NC", self.rank)
        weights = spec(weights_format, "IO" if self.transposed else "OI", self.rank)
        formats = {"data_format": data_format, "weights_format": weights_format}
        attributes = {**self.attributes, **formats}
        w_shape = to_layout(self.weights, weights).shape
        src_shape = to_layout(self.src, data).shape

        @jax.jit
        def run(src: Any, w: Any, bias: Any, diff_dst: Any) -> Any:
            if self.transposed:
                extra = {"output_padding": self.extra}
                return (
                    onednn.conv_transpose(src, w, bias, **attributes, **extra),
                    onednn.conv_transpose_backward_data(diff_dst, w, **attributes, **extra),
                    onednn.conv_transpose_backward_weights(
                        src, diff_dst, w_shape, **attributes, **extra
                    ),
                )
            return (
                onednn.convolution(src, w, bias, **attributes),
                onednn.convolution_backward_data(diff_dst, w, src_shape, **attributes),
                onednn.convolution_backward_weights(src, diff_dst, w_shape, **attributes),
            )

        arrays = (
            to_layout(self.src, data),
            to_layout(self.weights, weights),
            self.bias,
            to_layout(self.diff_dst, data),
        )
        got = run(*(jnp.asarray(array, dtype) for array in arrays))
        biased = self.dst + self.bias.reshape(-1, *(1,) * self.rank)
        for name, ours, expected, order in (
            ("dst", got[0], biased, data),
            ("diff_src", got[1], self.diff_src, data),
            ("diff_weights", got[2], self.diff_weights, weights),
        ):
            assert_exact(ours, np.asarray(to_layout(expected, order)), dtype, name)
            assert from_layout(ours, order).shape == expected.shape


@pytest.mark.parametrize(
    ("data_format", "weights_format"), list(itertools.product(DATA_FORMATS, WEIGHTS_FORMATS))
)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True], ids=["convolution", "conv_transpose"])
def test_every_format_by_definition(transposed, rank, data_format, weights_format, rng):
    Problem(rng, rank, transposed).check(data_format, weights_format)


@pytest.mark.parametrize("transposed", [False, True], ids=["convolution", "conv_transpose"])
def test_float64_by_definition(transposed, rng):
    Problem(rng, 2, transposed).check("NXC", "XOI", "float64")


# auto_pad: the pads that it means by the rules of oneDNN's source, against those pads written out.


def same_pads(total: int, auto_pad: str) -> tuple[int, int]:
    small, large = total // 2, (total + 1) // 2
    return (small, large) if auto_pad == "same_upper" else (large, small)


@pytest.mark.parametrize("auto_pad", ["same_upper", "same_lower", "valid"])
@pytest.mark.parametrize("size", [6, 7, 8])
@pytest.mark.parametrize(
    ("stride", "taps", "dilation"), [(1, 4, 1), (2, 3, 1), (3, 2, 2), (3, 1, 1)]
)
def test_auto_pad_of_convolution(auto_pad, size, stride, taps, dilation, rng):
    dilated = (taps - 1) * dilation + 1
    total = max(dilated - (size % stride or stride), 0)
    low, high = (0, 0) if auto_pad == "valid" else same_pads(total, auto_pad)
    explicit = one_axis(stride, low, high, dilation)
    automatic = one_axis(stride, 5, 5, dilation, auto_pad)
    src, weights = rng.standard_normal((2, size, 3)), rng.standard_normal((taps, 3, 2))
    diff_dst = rng.standard_normal(np.shape(onednn.convolution(src, weights, **explicit)))

    def run(attributes: dict[str, Any]) -> list[jax.Array]:
        return [
            onednn.convolution(src, weights, **attributes),
            onednn.convolution_backward_data(diff_dst, weights, src.shape, **attributes),
            onednn.convolution_backward_weights(src, diff_dst, weights.shape, **attributes),
        ]

    for got, expected in zip(run(automatic), run(explicit), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("auto_pad", ["same_upper", "same_lower", "valid"])
@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize(
    ("stride", "taps", "dilation", "extra"),
    [(1, 4, 1, None), (1, 4, 1, 0), (2, 3, 1, None), (2, 3, 1, 1)]
    + [(3, 2, 3, extra) for extra in (None, 0, 1, 2)]
    + [(2, 2, 4, extra) for extra in (None, 1, 2, 3)],
)
def test_auto_pad_of_conv_transpose(auto_pad, size, stride, taps, dilation, extra, rng):
    total = (taps - 1) * dilation + 1 - stride
    low, high = (0, 0) if auto_pad == "valid" else same_pads(total, auto_pad)
    more = {} if extra is None else {"output_padding": (extra,)}
    explicit = one_axis(stride, low, high, dilation, **more)
    automatic = one_axis(stride, 5, 5, dilation, auto_pad, **more)
    src, weights = rng.standard_normal((2, size, 3)), rng.standard_normal((taps, 2, 3))
    dst = onednn.conv_transpose(src, weights, **explicit)
    diff_dst = rng.standard_normal(dst.shape)

    def run(attributes: dict[str, Any]) -> list[jax.Array]:
        return [
            onednn.conv_transpose(src, weights, **attributes),
            onednn.conv_transpose_backward_data(diff_dst, weights, **attributes),
            onednn.conv_transpose_backward_weights(src, diff_dst, weights.shape, **attributes),
        ]

    for got, expected in zip(run(automatic), run(explicit), strict=True):
        np.testing.assert_array_equal(got, expected)


# Sizes of convolution_backward_data.


def test_backward_data_size_without_dst_shape(rng):
    diff_dst, weights = rng.standard_normal((2, 4, 3)), rng.standard_normal((3, 2, 3))
    backward = functools.partial(onednn.convolution_backward_data, diff_dst, weights)
    assert backward(**one_axis(3, 1, 1)).shape == (2, 10, 2)
    assert backward(**one_axis(3, 1, 1, output_padding=(2,))).shape == (2, 12, 2)
    assert backward(**one_axis(3, auto_pad="same_lower")).shape == (2, 12, 2)
    assert backward((2, 12, 2), **one_axis(3, 1, 1, output_padding=(2,))).shape == (2, 12, 2)
    assert backward(jnp.array([2, 12, 2]), **one_axis(3, 1, 1)).shape == (2, 12, 2)
    np.testing.assert_array_equal(
        backward(**one_axis(3, 1, 1, output_padding=(2,))),
        backward((2, 12, 2), **one_axis(3, 1, 1)),
    )


# Adjoints and transformations.


@pytest.mark.parametrize("transposed", [False, True], ids=["convolution", "conv_transpose"])
def test_backward_operations_are_the_vjp(transposed, rng):
    src, bias = rng.standard_normal((2, 5, 4, 4)), rng.standard_normal(6)
    attributes = {
        "strides": (2, 3),
        "pads_begin": (0, 1),
        "pads_end": (2, 1),
        "dilations": (3, 1),
        "groups": 2,
    }
    if transposed:
        weights = rng.standard_normal((3, 2, 3, 4))
        extra = {"output_padding": (2, 1)}
        forward = functools.partial(onednn.conv_transpose, **attributes, **extra)
    else:
        weights = rng.standard_normal((3, 2, 2, 6))
        src = rng.standard_normal((2, 7, 6, 4))
        forward = functools.partial(onednn.convolution, **attributes)
    dst, pullback = jax.vjp(forward, src, weights, bias)
    diff_dst = rng.standard_normal(dst.shape)
    diff_src, diff_weights, diff_bias = pullback(jnp.asarray(diff_dst))
    if transposed:
        got_src = onednn.conv_transpose_backward_data(diff_dst, weights, **attributes, **extra)
        got_weights = onednn.conv_transpose_backward_weights(
            src, diff_dst, weights.shape, **attributes, **extra
        )
    else:
        got_src = onednn.convolution_backward_data(diff_dst, weights, src.shape, **attributes)
        got_weights = onednn.convolution_backward_weights(
            src, diff_dst, weights.shape, **attributes
        )
    assert relative_error(got_src, np.asarray(diff_src)) < 1e-13
    assert relative_error(got_weights, np.asarray(diff_weights)) < 1e-13
    assert relative_error(diff_bias, diff_dst.sum((0, 1, 2))) < 1e-13
    product = np.vdot(diff_dst, forward(src, weights))
    for got, primal in ((got_src, src), (got_weights, weights)):
        scale = np.linalg.norm(diff_dst) * np.linalg.norm(dst)
        assert abs(np.vdot(got, primal) - product) < 1e-12 * scale


def test_second_order(rng):
    """The gradient operators are differentiated in both modes, the forward operators in reverse mode."""
    src, weights, bias = (rng.standard_normal(s) for s in ((1, 4, 2), (3, 3, 2), (3,)))
    attributes = one_axis(2, auto_pad="same_lower", output_padding=(1,))
    up = functools.partial(onednn.conv_transpose, **attributes)
    check_grads(up, (src, weights, bias), 2, ("rev",))
    diff_dst = rng.standard_normal((1, 9, 3))
    check_grads(
        functools.partial(onednn.conv_transpose_backward_data, **attributes), (diff_dst, weights), 2
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_results_have_the_arrays_dtype(dtype):
    src, weights, bias = jnp.ones((1, 4, 2), dtype), jnp.ones((3, 2, 2), dtype), jnp.ones(2, dtype)
    dst = onednn.conv_transpose(src, weights, bias, **one_axis())
    assert dst.dtype == jnp.dtype(dtype)
    assert_exact(dst, row(3, 5, 7, 7, 5, 3).astype(np.float64).repeat(2, 2), dtype)
    dst = onednn.convolution(src, weights, bias, **one_axis())
    assert_exact(dst, np.full((1, 2, 2), 7.0), dtype)


# Bad input: (call, arguments, attributes, error, what the text must contain).

SRC, WEIGHTS, DST = np.ones((2, 6, 4)), np.ones((3, 2, 6)), np.ones((2, 4, 6))
TSRC, TWEIGHTS, TDST = np.ones((2, 4, 4)), np.ones((3, 3, 4)), np.ones((2, 6, 6))
SS, WS = r"\(2, 6, 4\)", r"\(3, 2, 6\)"


def g2(**changes: Any) -> dict[str, Any]:
    return {**one_axis(groups=2), **changes}


CONV, CONV_D, CONV_W = (
    onednn.convolution,
    onednn.convolution_backward_data,
    onednn.convolution_backward_weights,
)
UP, UP_D, UP_W = (
    onednn.conv_transpose,
    onednn.conv_transpose_backward_data,
    onednn.conv_transpose_backward_weights,
)
ERRORS = {
    "rank": (CONV, (SRC[0], WEIGHTS), g2(), ValueError, r"same rank.*src has.*\(6, 4\)"),
    "channels": (CONV, (SRC, WEIGHTS), one_axis(), ValueError, rf"src must have 2.*{SS}.*{WS}"),
    "groups-divide": (
        CONV,
        (SRC, WEIGHTS),
        one_axis(groups=4),
        ValueError,
        "divisible by groups=4",
    ),
    "groups-zero": (
        CONV,
        (SRC, WEIGHTS),
        one_axis(groups=0),
        ValueError,
        "groups must be at least",
    ),
    "strides-zero": (
        CONV,
        (SRC, WEIGHTS),
        g2(strides=(0,)),
        ValueError,
        "strides must be at least",
    ),
    "strides-length": (
        CONV,
        (SRC, WEIGHTS),
        g2(strides=(1, 1)),
        ValueError,
        rf"strides.*{SS}.*{WS}",
    ),
    "dilations-zero": (CONV, (SRC, WEIGHTS), g2(dilations=(0,)), ValueError, "dilations must be"),
    "pads-negative": (CONV, (SRC, WEIGHTS), g2(pads_end=(-1,)), ValueError, "pads_end must be at"),
    "pads-length": (
        CONV,
        (SRC, WEIGHTS),
        g2(pads_begin=(1, 1)),
        ValueError,
        "pads_begin must have 1",
    ),
    "pads-float": (
        CONV,
        (SRC, WEIGHTS),
        g2(pads_begin=(1.5,)),
        TypeError,
        "pads_begin must be int",
    ),
    "pads-bool": (
        CONV,
        (SRC, WEIGHTS),
        g2(pads_begin=(True,)),
        TypeError,
        "pads_begin must be int",
    ),
    "pads-number": (CONV, (SRC, WEIGHTS), g2(pads_begin=1), TypeError, "pads_begin must be a seq"),
    "auto-pad": (CONV, (SRC, WEIGHTS), g2(auto_pad="same"), ValueError, "auto_pad must be one of"),
    "auto-pad-kind": (CONV, (SRC, WEIGHTS), g2(auto_pad=None), TypeError, "auto_pad must be a str"),
    "data-format": (
        CONV,
        (SRC, WEIGHTS),
        g2(data_format="NHWC"),
        ValueError,
        "NXC, NCX, got 'NHWC'",
    ),
    "weights-format": (CONV, (SRC, WEIGHTS), g2(weights_format="HWIO"), ValueError, "got 'HWIO'"),
    "weights-kind": (CONV, (SRC, WEIGHTS), g2(weights_format=1), TypeError, "weights_format must"),
    "other-format": (
        CONV,
        (SRC, WEIGHTS),
        g2(weights_format="XOI"),
        ValueError,
        rf"src must have 12 channels \(axis 2\), got 4.*{SS}.*{WS}",
    ),
    "mixed-dtypes": (
        CONV,
        (SRC, WEIGHTS.astype(np.float32)),
        g2(),
        TypeError,
        "src is float64, weights is float32",
    ),
    "integers": (CONV, (SRC.astype(int), WEIGHTS.astype(int)), g2(), TypeError, "src is int64"),
    "bias": (CONV, (SRC, WEIGHTS, np.ones(4)), g2(), ValueError, r"bias must have shape \(6,\)"),
    "d-shape": (
        CONV_D,
        (DST, WEIGHTS, (2, 7, 4)),
        g2(),
        ValueError,
        r"diff_dst.*\(2, 5, 6\), got \(2, 4, 6\).*\(2, 7, 4\)",
    ),
    "d-channels": (CONV_D, (DST, WEIGHTS, (2, 6, 3)), g2(), ValueError, "dst_shape must have 4"),
    "d-rank": (CONV_D, (DST, WEIGHTS, (2, 6)), g2(), ValueError, "dst_shape must have 3 entries"),
    "d-disagree": (
        CONV_D,
        (DST, WEIGHTS, (2, 9, 4)),
        g2(strides=(2,), output_padding=(1,)),
        ValueError,
        "dst_shape=.*output_padding=.*disagree",
    ),
    "d-output-padding": (
        CONV_D,
        (DST, WEIGHTS),
        g2(strides=(2,), output_padding=(2,)),
        ValueError,
        "output_padding must be smaller than",
    ),
    "d-same-output-padding": (
        CONV_D,
        (DST, WEIGHTS),
        g2(strides=(2,), output_padding=(1,), auto_pad="same_upper"),
        ValueError,
        "give dst_shape instead",
    ),
    "d-pads-large": (
        CONV_D,
        (DST, WEIGHTS),
        g2(pads_begin=(9,)),
        ValueError,
        "elements of diff_src",
    ),
    "w-shape": (
        CONV_W,
        (SRC, DST[:, :3], WEIGHTS.shape),
        g2(),
        ValueError,
        rf"diff_dst.*\(2, 4, 6\), got \(2, 3, 6\).*{SS}.*{WS}",
    ),
    "w-channels": (CONV_W, (SRC, DST, (3, 3, 6)), g2(), ValueError, "src must have 6 channels"),
    "w-rank": (CONV_W, (SRC, DST, (2, 6)), g2(), ValueError, "weights_shape must have 3 entries"),
    "up-channels": (UP, (SRC[..., :3], TWEIGHTS), g2(), ValueError, "src must have 4 channels"),
    "up-groups": (UP, (TSRC, TWEIGHTS), one_axis(groups=3), ValueError, "divisible by groups=3"),
    "up-output-padding": (
        UP,
        (TSRC, TWEIGHTS),
        g2(strides=(2,), output_padding=(2,)),
        ValueError,
        r"output_padding must be smaller than \(2,\), got \(2,\)",
    ),
    "up-output-padding-negative": (
        UP,
        (TSRC, TWEIGHTS),
        g2(output_padding=(-1,)),
        ValueError,
        "output_padding must be at least 0",
    ),
    "up-same-small-kernel": (
        UP,
        (TSRC, TWEIGHTS),
        g2(strides=(4,), auto_pad="same_upper"),
        ValueError,
        "needs a dilated kernel of at least the stride",
    ),
    "up-pads-large": (
        UP,
        (TSRC, TWEIGHTS),
        g2(pads_end=(7,)),
        ValueError,
        "cannot have -1 outputs",
    ),
    "up-d-size": (
        UP_D,
        (TDST, TWEIGHTS),
        g2(strides=(2,), output_padding=(0,)),
        ValueError,
        "no src gives 6 elements",
    ),
    "up-d-small": (UP_D, (TDST[:, :2], TWEIGHTS), g2(), ValueError, "no src gives 2 elements"),
    "up-d-channels": (UP_D, (TDST[..., :4], TWEIGHTS), g2(), ValueError, "diff_dst must have 6"),
    "up-w-size": (
        UP_W,
        (TSRC, TDST, TWEIGHTS.shape),
        g2(strides=(2,)),
        ValueError,
        "axis 0 cannot have 6 outputs.*9 to 10",
    ),
    "up-w-output-padding": (
        UP_W,
        (TSRC, np.ones((2, 9, 6)), TWEIGHTS.shape),
        g2(strides=(2,), output_padding=(1,)),
        ValueError,
        r"diff_dst.*\(2, 10, 6\), got \(2, 9, 6\)",
    ),
    "up-w-batch": (
        UP_W,
        (TSRC[:1], TDST, TWEIGHTS.shape),
        g2(),
        ValueError,
        r"diff_dst.*\(1, 6, 6\), got \(2, 6, 6\)",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_bad_input(name):
    function, arguments, attributes, error, text = ERRORS[name]
    with pytest.raises(error, match=text) as raised:
        function(*arguments, **attributes)
    assert str(raised.value).startswith(f"onednn.{function.__name__}: ")

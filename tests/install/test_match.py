"""Matches: every equation that lax makes of a convolution is an operator, and the right one.

All arrays hold small integers, float64, so that equal means equal.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.conv_cases import CONV_CASES, Case, ids
from support.equations import Equation, by_oracle, equations
from support.transposed_cases import TRANSPOSED_CASES, TransposedCase

from jax_convgrad._src.conv.arguments import make_config
from jax_convgrad._src.conv.geometry import ConvGeometry
from jax_convgrad._src.install.match import NoMatch, match

NHWC = ("NHWC", "HWIO", "NHWC")
NCHW = ("NCHW", "OIHW", "NCHW")


def layer_of(case: Case | TransposedCase) -> tuple[Callable[..., Any], tuple[int, ...], Any]:
    """lax's function of the case, and its operands' logical shapes."""
    if isinstance(case, Case):
        layer = lambda x, w: lax.conv_general_dilated(x, w, **case.lax_keywords)  # noqa: E731
        return layer, case.logical("x"), case.logical("w")
    w = case.passed_weights(np.zeros(case.conv.w)).shape
    layer = lambda x, w: lax.conv_transpose(x, w, **case.lax_keywords)  # noqa: E731
    return layer, case.conv.logical("x"), w


def programs(
    layer: Callable[..., Any], x: tuple[int, ...], w: tuple[int, ...]
) -> dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]]:
    """What users make of a layer, with the shapes of the arguments."""
    y = jax.eval_shape(layer, *(jax.ShapeDtypeStruct(s, np.float64) for s in (x, w))).shape

    def gradients(x: Any, w: Any, dy: Any) -> Any:
        return jax.vjp(layer, x, w)[1](dy)

    def second(x: Any, w: Any, dy: Any, dx: Any, dw: Any) -> Any:
        return jax.vjp(gradients, x, w, dy)[1]((dx, dw))

    many = lambda *shapes: [(3, *shape) for shape in shapes]  # noqa: E731
    return {
        "gradients": (gradients, [x, w, y]),
        "second": (second, [x, w, y, x, w]),
        "forward": (lambda *a: jax.jvp(layer, a[:2], a[2:]), [x, w, x, w]),
        "vmap-images": (jax.vmap(gradients, (0, None, 0)), [*many(x), w, *many(y)]),
        "vmap-weights": (jax.vmap(gradients, (None, 0, 0)), [x, *many(w, y)]),
        "vmap-both": (jax.vmap(gradients), many(x, w, y)),
        "vmap-last": (
            jax.vmap(gradients, (len(x), None, len(y))),
            [(*x, 3), w, (*y, 3)],
        ),
    }


def check(equation: Equation, rng: np.random.Generator, by_xla: bool) -> bool:
    """Whether the equation has a match; raises if it has a wrong one."""
    found = equation.match()
    if found is None:
        return False
    lhs, rhs = (rng.integers(-3, 4, s).astype(np.float64) for s in (equation.lhs, equation.rhs))
    got = found.apply(lhs, rhs, functools.partial(by_oracle, found))
    np.testing.assert_array_equal(got, equation.by_definition(lhs, rhs), err_msg=str(equation))
    if by_xla:
        keywords = {
            k: v for k, v in equation.params.items() if k not in ("window_strides", "padding")
        }
        own = lax.conv_general_dilated(
            lhs, rhs, equation.params["window_strides"], equation.params["padding"], **keywords
        )
        np.testing.assert_array_equal(got, own, err_msg=str(equation))
    return True


CASES = CONV_CASES + [case for case in TRANSPOSED_CASES if case.is_lax]


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_what_lax_derives_is_matched_right(case: Any, rng: np.random.Generator):
    """Against lax's own result for gradients, against the definition for all of it."""
    for name, (program, shapes) in programs(*layer_of(case)).items():
        for equation in equations(program, *shapes):
            check(equation, rng, by_xla=name == "gradients")


RANDOM = 400


def random_equation(rng: np.random.Generator) -> Equation | None:
    """Any parameters at all, of which lax refuses some: None then."""
    rank = int(rng.integers(1, 4))
    spec = lambda: tuple(map(int, rng.permutation(rank + 2)))  # noqa: E731
    numbers = lax.ConvDimensionNumbers(spec(), spec(), spec())
    features, batches = [(1, 1), (1, 1), (2, 1), (1, 2), (3, 1), (1, 3)][rng.integers(6)]
    some = rng.random((3, 1)) < 0.5
    factors = np.where(some & (rng.random((3, rank)) < 0.7), rng.integers(2, 4, (3, rank)), 1)
    strides, lhs_dilation, rhs_dilation = (tuple(map(int, row)) for row in factors)
    batch, inputs, outputs = (int(n) for n in rng.integers(1, 4, 3))
    lhs = (batch * batches, inputs * features, *map(int, rng.integers(1, 7, rank)))
    rhs = (outputs * features * batches, inputs, *map(int, rng.integers(1, 5, rank)))
    padding = tuple((int(a), int(b)) for a, b in rng.integers(-2, 5, (rank, 2)))
    place = lambda shape, spec: tuple(shape[spec.index(i)] for i in range(rank + 2))  # noqa: E731
    params = {
        "window_strides": strides,
        "padding": padding,
        "lhs_dilation": lhs_dilation,
        "rhs_dilation": rhs_dilation,
        "dimension_numbers": numbers,
        "feature_group_count": features,
        "batch_group_count": batches,
    }
    lhs, rhs = place(lhs, numbers.lhs_spec), place(rhs, numbers.rhs_spec)
    try:
        (equation,) = equations(lambda a, b: lax.conv_general_dilated(a, b, **params), lhs, rhs)
    except ValueError:  # padding that crops more than there is
        return None
    return equation


def test_random_equations_are_matched_right():
    matched = 0
    for seed in range(RANDOM):
        rng = np.random.default_rng(seed)
        equation = random_equation(rng)
        if equation is not None:
            matched += check(equation, rng, by_xla=False)
    assert matched >= RANDOM // 3


# What matches what. Each row: a layer of NHWC or NCHW arrays and the operators that its value and its
# gradients must be, with the geometry of the layer itself.

CONVOLUTIONS = [
    ("same", (8, 14, 14, 6), (3, 3, 6, 8), {}),
    ("1x1", (8, 14, 14, 6), (1, 1, 6, 8), {}),
    ("strided", (8, 14, 14, 6), (3, 3, 6, 8), {"window_strides": (2, 2)}),
    ("unread-rows", (8, 14, 14, 6), (3, 3, 6, 8), {"window_strides": (2, 2), "padding": "VALID"}),
    (
        "patches",  # the window is larger than the result
        (8, 32, 32, 3),
        (8, 8, 3, 16),
        {"window_strides": (8, 8), "padding": "VALID"},
    ),
    ("window-is-the-image", (8, 4, 4, 6), (4, 4, 6, 1), {"padding": "VALID"}),
    ("dilated-beyond-the-image", (8, 9, 9, 6), (3, 3, 6, 8), {"rhs_dilation": (6, 6)}),
    ("grouped", (8, 14, 14, 6), (3, 3, 3, 8), {"feature_group_count": 2}),
    ("depthwise", (8, 14, 14, 6), (3, 3, 1, 6), {"feature_group_count": 6}),
    (
        "depthwise-strided",
        (8, 14, 14, 6),
        (5, 5, 1, 12),
        {"feature_group_count": 6, "window_strides": (2, 2)},
    ),
    ("negative-padding", (8, 14, 14, 6), (3, 3, 6, 8), {"padding": ((-1, -2), (2, -1))}),
]


@pytest.mark.parametrize("numbers", [NHWC, NCHW], ids=lambda n: n[0])
@pytest.mark.parametrize(("id", "x", "w", "keywords"), CONVOLUTIONS, ids=lambda v: str(v)[:24])
def test_a_convolution_and_its_gradients(
    id: str, x: Any, w: Any, keywords: dict[str, Any], numbers: Any
):
    if numbers == NCHW:
        x, w = (x[0], x[3], *x[1:3]), (w[3], w[2], *w[:2])
    keywords = {"window_strides": (1, 1), "padding": "SAME", **keywords}
    layer = functools.partial(lax.conv_general_dilated, dimension_numbers=numbers, **keywords)
    program, shapes = programs(layer, x, w)["gradients"]
    forward, dx, dw = sorted_matches(program, shapes)
    config = make_config(
        "test",
        x,
        w,
        strides=keywords["window_strides"],
        padding=keywords["padding"],
        dilation=keywords.get("rhs_dilation"),
        groups=keywords.get("feature_group_count", 1),
        dimension_numbers=numbers,
    )
    for found in (forward, dx, dw):
        assert not found.swapped
        assert found.reversed_array == ("rhs" if found is dx else None)
        assert found.geometry.x_shape == x and found.geometry.w_shape == w
        assert_same_but_unread(found.geometry.config, config, x, w)


def test_a_transposed_convolution_and_its_gradients():
    """One convolution underneath, three ways; the weight gradient has its operands swapped."""
    x, w = (8, 7, 7, 6), (4, 4, 6, 3)
    program, shapes = programs(lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), x, w)[
        "gradients"
    ]
    dx, forward, dw = sorted_matches(program, shapes)
    assert (forward.operator, dx.operator, dw.operator) == (
        "conv_dgrad",
        "conv_fprop",
        "conv_wgrad",
    )
    config = forward.geometry.config
    assert config.strides == (2, 2) and config.padding == ((1, 1), (1, 1))
    assert config == dx.geometry.config == dw.geometry.config
    assert (dw.swapped, dw.reversed_array, forward.reversed_array) == (True, "out", "rhs")
    assert forward.geometry.x_shape == dw.geometry.x_shape == (8, 14, 14, 3)
    # The reversed weights that lax makes for dx are those that the convolution underneath has.
    assert dx.reversed_array is None


def sorted_matches(program: Any, shapes: Any) -> list[Any]:
    matches = [equation.match() for equation in equations(program, *shapes)]
    assert None not in matches
    assert sorted(m.operator for m in matches) == ["conv_dgrad", "conv_fprop", "conv_wgrad"]
    order = ("conv_fprop", "conv_dgrad", "conv_wgrad")
    return sorted(matches, key=lambda m: order.index(m.operator))


def assert_same_but_unread(got: Any, wanted: Any, x: Any, w: Any) -> None:
    """The same convolution, except for padding at the high side that no window reads, and the strides and
    dilations of axes with one element."""
    geometry = ConvGeometry.make("test", wanted, x, w)
    assert (got.groups, got.dimension_numbers) == (wanted.groups, wanted.dimension_numbers)
    assert [low for low, _ in got.padding] == [low for low, _ in wanted.padding]
    assert ConvGeometry.make("test", got, x, w).out_spatial == geometry.out_spatial
    for i in range(geometry.spatial_rank):
        assert got.strides[i] == wanted.strides[i] or geometry.out_spatial[i] == 1
        assert got.dilation[i] == wanted.dilation[i] or geometry.kernel[i] == 1


def test_every_derivative_of_a_network_with_its_batch_in_front_is_matched():
    """All that lax derives, to the second order and under vmap, except what would copy images: per-example
    weight gradients, whose groups are parts of the batch for lax, and second derivatives with groups."""
    unmatched = set()
    for numbers in (NHWC, NCHW):
        for _, x, w, keywords in CONVOLUTIONS:
            if numbers == NCHW:
                x, w = (x[0], x[3], *x[1:3]), (w[3], w[2], *w[:2])
            keywords = {"window_strides": (1, 1), "padding": "SAME", **keywords}
            layer = functools.partial(
                lax.conv_general_dilated, dimension_numbers=numbers, **keywords
            )
            for name, (program, shapes) in programs(layer, x, w).items():
                for equation in equations(program, *shapes):
                    if equation.match() is None:
                        unmatched.add((name, "feature_group_count" in keywords))
    per_example = {(name, False) for name in ("vmap-images", "vmap-last", "vmap-both")}
    assert unmatched == {*per_example, ("second", True)}


# What is left to XLA.


def test_equations_outside_the_family():
    numbers = lax.conv_dimension_numbers((2, 9, 9, 4), (3, 3, 4, 5), NHWC)
    plain: dict[str, Any] = {
        "window_strides": (1, 1),
        "padding": ((1, 1), (1, 1)),
        "lhs_dilation": (1, 1),
        "rhs_dilation": (1, 1),
        "dimension_numbers": numbers,
    }

    def why_not(x: Any = (2, 9, 9, 4), w: Any = (3, 3, 4, 5), **changes: Any) -> str | None:
        """Why the equation has no match."""
        params = {**plain, **changes}
        dtype = np.float64
        y = jax.eval_shape(
            lambda a, b: lax.conv_general_dilated(a, b, **params),
            jax.ShapeDtypeStruct(x, dtype),
            jax.ShapeDtypeStruct(w, dtype),
        )
        found = match(x, w, y.shape, **params)
        return found.reason if isinstance(found, NoMatch) else None

    assert why_not() is None
    everywhere = "strided or dilated in all three arrays, as no member of the family is"
    assert why_not(window_strides=(2, 2), lhs_dilation=(3, 3)) == everywhere
    # Each axis is another operator.
    assert why_not(window_strides=(2, 1), lhs_dilation=(1, 2)) == everywhere
    groups = why_not(x=(4, 9, 9, 4), w=(3, 3, 4, 6), batch_group_count=2)
    assert groups == "groups where the family has none: it would have to copy images"
    assert why_not(x=(0, 9, 9, 4)) == "an array without elements"
    assert why_not(x=(2, 9, 9, 0), w=(3, 3, 0, 5)) == "an array without elements"
    none: dict[str, Any] = {
        "window_strides": (),
        "padding": (),
        "lhs_dilation": (),
        "rhs_dilation": (),
        "dimension_numbers": lax.ConvDimensionNumbers((0, 1), (0, 1), (0, 1)),
    }
    assert why_not(x=(2, 4), w=(5, 4), **none) == "0 spatial axes, not 1 to 3"
    four = {name: (1,) * 4 for name in ("window_strides", "lhs_dilation", "rhs_dilation")}
    four_numbers = lax.ConvDimensionNumbers(*(tuple(range(6)),) * 3)
    x, w = (2, 4, 5, 5, 5, 5), (5, 4, 3, 3, 3, 3)
    why = why_not(x, w, **four, padding=((1, 1),) * 4, dimension_numbers=four_numbers)
    assert why == "4 spatial axes, not 1 to 3"


def test_a_symbolic_batch_is_matched_and_a_symbolic_image_is_not():
    n, h = jax.export.symbolic_shape("n, h")
    for shape, is_matched in (((n, 9, 9, 4), True), ((2, h, 9, 4), False)):
        layer = lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=NHWC)  # noqa: E731
        (equation,) = equations(layer, shape, (3, 3, 4, 5))
        assert (equation.match() is not None) == is_matched


def test_a_reversal_of_lax_and_ours_cancel():
    """The weights of an input gradient are read as they lie."""
    x, w = jnp.ones((2, 9, 9, 4)), jnp.ones((3, 3, 4, 5))
    dy = jnp.ones((2, 5, 5, 5))
    layer = lambda x: lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=NHWC)  # noqa: E731
    (_, equation) = equations(lambda x, dy: jax.vjp(layer, x)[1](dy), x.shape, dy.shape)
    found = equation.match()

    def operands(w: Any) -> Any:
        return found.operands(dy, lax.rev(w, (0, 1)))[1]

    assert "reverse(" not in jax.jit(operands).lower(w).compile().as_text()

"""Values and gradients: exact on small integers, close on random data, equal to lax, adjoint."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.test_util import check_grads
from support.comparisons import FLOATS, assert_exact, cast, value_and_gradients
from support.conv_cases import ABORTING_CASES, CONV_CASES, PLAIN_CASES, Case, ids, in_layout
from support.conv_oracle import conv_oracle
from support.layouts import NDHWC, NHWC, from_layout, to_layout
from support.rounding import check_errors, random_data
from support.transposed_cases import TRANSPOSED_CASES, TransposedCase

import jax_convgrad
from jax_convgrad import conv_dgrad, conv_fprop, conv_general_dilated, conv_transpose, conv_wgrad
from jax_convgrad._src.dispatch.override import override_backend

WIDER = [("bfloat16", "float32"), ("float16", "float32"), ("float32", "float64")]
WIDER_IDS = [f"{a}-to-{b}" for a, b in WIDER]


def operators(case: Case, **extra: Any) -> dict[str, Callable[..., jax.Array]]:
    """The three maps as functions of their two arrays."""
    keywords = {**case.operator_keywords, **extra}
    return {
        "fprop": lambda x, w: conv_fprop(x, w, **keywords),
        "dgrad": lambda dy, w: conv_dgrad(dy, w, case.logical("x"), **keywords),
        "wgrad": lambda x, dy: conv_wgrad(x, dy, case.logical("w"), **keywords),
    }


# Small integers make every product and partial sum representable: any difference is a wrong index.


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", PLAIN_CASES + ABORTING_CASES, ids=ids)
def test_operators_are_exact(case: Case, dtype: str, rng: np.random.Generator):
    check_operators(case, dtype, dtype, rng)


@pytest.mark.parametrize(("dtype", "wider"), WIDER, ids=WIDER_IDS)
@pytest.mark.parametrize("case", PLAIN_CASES[::6], ids=ids)
def test_operators_with_a_wider_result_are_exact(
    case: Case, dtype: str, wider: str, rng: np.random.Generator
):
    check_operators(case, dtype, wider, rng, preferred_element_type=wider)


def test_a_reversed_gradient_at_two_taps_with_stride_2(rng: np.random.Generator):
    """The zeros that emit_xla.py inserts by hand, behind a reversal: XLA used to take them into the
    convolution again, and to abort while compiling."""
    layout = ("NHWC", "HWIO", "NHWC")
    case = Case("reversed", (1, 4, 4, 7), (2, 4, 3, 2), (1, 2), ((0, 0), (2, 2)), layout=layout)
    x, w, dy = case.data(rng, "float32")
    _, dx, _ = conv_oracle(case, x, w, np.flip(dy, (2, 3)))
    _, w, dy = in_layout(case, x, w, dy)
    spatial = case.numbers.out_spec[2:]
    run = jax.jit(
        lambda dy, w: conv_dgrad(
            lax.rev(dy, spatial), w, case.logical("x"), **case.operator_keywords
        )
    )
    with override_backend("xla_rewritten"):
        got = run(*cast("float32", dy, w))
    assert_exact(got, to_layout(dx, case.numbers.lhs_spec), "float32")


@pytest.mark.parametrize("strides", [1, 2])
def test_a_layers_reversal_does_not_cancel_the_gradients(strides: int):
    """See NOTE [A reversal that XLA sees]: between the two a barrier stands, where the input is dilated."""
    layout = ("NHWC", "HWIO", "NHWC")

    def layer(x: Any, w: Any) -> Any:
        return conv_transpose(
            x, w, (strides, strides), "SAME", dimension_numbers=layout, transpose_kernel=False
        )

    x, w = (jax.ShapeDtypeStruct(s, "float32") for s in ((1, 5, 5, 3), (3, 3, 3, 4)))
    with override_backend("xla_rewritten"):
        text = jax.jit(layer).lower(x, w).as_text()
    kept = re.findall(r"stablehlo\.(reverse|optimization_barrier)", text)
    expected = ["reverse", "optimization_barrier", "reverse"] if strides > 1 else []
    assert kept == expected


def check_operators(
    case: Case, dtype: str, result: str, rng: np.random.Generator, **extra: Any
) -> None:
    data = case.data(rng, dtype)
    expected = dict(zip(("fprop", "dgrad", "wgrad"), conv_oracle(case, *data), strict=True))
    x, w, dy = cast(dtype, *in_layout(case, *data))
    specs = dict(
        zip(
            ("fprop", "wgrad", "dgrad"),
            (case.numbers[2], case.numbers[1], case.numbers[0]),
            strict=True,
        )
    )
    maps = operators(case, **extra)

    @jax.jit
    def run(x: Any, w: Any, dy: Any) -> Any:
        of = {"fprop": (x, w), "dgrad": (dy, w), "wgrad": (x, dy)}
        return {name: maps[name](*of[name]) for name in maps}

    for name, got in run(x, w, dy).items():
        wanted = to_layout(expected[name], specs[name])
        assert_exact(got, wanted, result, name, by_xla=result != dtype)
        assert not got.weak_type


def check_layer(
    layer: Callable[..., jax.Array],
    operands: tuple[Any, ...],
    dy: Any,
    expected: tuple[Any, ...],
    dtype: str,
    result: str,
) -> None:
    """Value and gradients of ``layer``; ``expected`` is (y, dx, dw[, dbias])."""
    (dy,) = cast(result, dy)
    by_xla = result != dtype
    y, *gradients = value_and_gradients(layer)(dy, *cast(dtype, *operands))
    assert_exact(y, expected[0], result, "y", by_xla)
    assert len(gradients) == len(expected) - 1
    for name, got, wanted in zip(("dx", "dw", "dbias"), gradients, expected[1:], strict=False):
        assert_exact(got, wanted, dtype, name, by_xla)


def conv_problem(case: Case, dtype: str, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """((x, w, bias), dy, (y, dx, dw, dbias)) in the case's layout."""
    x, w, dy = case.data(rng, dtype)
    bias = rng.integers(-3, 4, case.w[0]).astype(np.float64)
    y, dx, dw = conv_oracle(case, x, w, dy)
    y = y + bias.reshape(-1, *[1] * (y.ndim - 2))
    dbias = dy.sum((0, *range(2, dy.ndim)))
    x, w, dy = in_layout(case, x, w, dy)
    dx, dw, y = in_layout(case, dx, dw, y)
    return (x, w, bias), dy, (y, dx, dw, dbias)


def with_dtypes(cases: list[Any]) -> pytest.MarkDecorator:
    """Every case in float32 and bfloat16, some in float16, which XLA:CPU is slow to compile.

    Float64 is left to the comparison with lax below, which is exact too.
    """
    rows = [
        pytest.param(case, dtype, id=f"{case.id}-{dtype}")
        for i, case in enumerate(cases)
        for dtype in ("float32", "bfloat16", "float16")
        if dtype != "float16" or i % 3 == 0
    ]
    return pytest.mark.parametrize(("case", "dtype"), rows)


@with_dtypes(CONV_CASES + ABORTING_CASES)
def test_conv_general_dilated_is_exact(case: Case, dtype: str, rng: np.random.Generator):
    operands, dy, expected = conv_problem(case, dtype, rng)
    layer = lambda x, w, bias: conv_general_dilated(x, w, **case.lax_keywords, bias=bias)  # noqa: E731
    check_layer(layer, operands, dy, expected, dtype, dtype)


# Windows so far apart that a copy of x with its padding would have 2**60 pixels and more.
FAR = 2**30
FAR_CASES = [
    Case("2d", (1, 4, 1, 1), (3, 4, 2, 2), (FAR,) * 2, ((0, FAR - 1),) * 2, layout=NHWC),
    Case("2d-groups", (2, 4, 3, 2), (6, 2, 2, 3), (FAR,) * 2, ((FAR - 1, 0), (1, FAR)), groups=2),
    Case("3d", (1, 4, 1, 1, 1), (3, 4, 2, 2, 2), (FAR,) * 3, ((0, FAR - 1),) * 3, layout=NDHWC),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", FAR_CASES, ids=ids)
def test_windows_far_apart_are_exact(case: Case, dtype: str, rng: np.random.Generator):
    check_operators(case, dtype, dtype, rng)
    operands, dy, expected = conv_problem(case, dtype, rng)
    layer = lambda x, w, bias: conv_general_dilated(x, w, **case.lax_keywords, bias=bias)  # noqa: E731
    check_layer(layer, operands, dy, expected, dtype, dtype)


@pytest.mark.parametrize(("dtype", "wider"), WIDER, ids=WIDER_IDS)
@pytest.mark.parametrize("case", CONV_CASES[::9], ids=ids)
def test_conv_general_dilated_with_a_wider_result_is_exact(
    case: Case, dtype: str, wider: str, rng: np.random.Generator
):
    operands, dy, expected = conv_problem(case, dtype, rng)
    layer = lambda x, w, bias: conv_general_dilated(  # noqa: E731
        x, w, **case.lax_keywords, bias=bias, preferred_element_type=wider
    )
    check_layer(layer, operands, dy, expected, dtype, wider)


def transposed_problem(
    case: TransposedCase, dtype: str, rng: np.random.Generator
) -> tuple[Any, Any, Any]:
    conv = case.conv
    x, w, dy = conv.data(rng, dtype)
    bias = rng.integers(-3, 4, conv.w[0]).astype(np.float64)
    y, dx, dw = conv_oracle(conv, x, w, dy)
    y = y + bias.reshape(-1, *[1] * (y.ndim - 2))
    dbias = dy.sum((0, *range(2, dy.ndim)))
    x_spec, _, y_spec = conv.numbers
    operands = to_layout(x, x_spec), case.passed_weights(w), bias
    expected = to_layout(y, y_spec), to_layout(dx, x_spec), case.passed_weights(dw), dbias
    return operands, to_layout(dy, y_spec), expected


@with_dtypes(TRANSPOSED_CASES)
def test_conv_transpose_is_exact(case: TransposedCase, dtype: str, rng: np.random.Generator):
    operands, dy, expected = transposed_problem(case, dtype, rng)
    layer = lambda x, w, bias: conv_transpose(x, w, **case.keywords, bias=bias)  # noqa: E731
    program = str(jax.make_jaxpr(layer)(*cast(dtype, *operands)))
    if 0 not in case.x + case.w + case.conv.y:
        assert ("rev[" in program) == case.reverses_weights, program
    check_layer(layer, operands, dy, expected, dtype, dtype)


def test_conv_transpose_of_a_symbolic_size_that_may_grow_or_not():
    """2 h - 6 elements of h: the sizes do not compare, and need not."""
    (h,) = jax.export.symbolic_shape("h", constraints=["h >= 4"])
    x, w = (jax.ShapeDtypeStruct(s, "float32") for s in ((2, h, 3), (3, 3, 4)))
    y = jax.eval_shape(lambda x, w: conv_transpose(x, w, (2,), ((-2, -1),)), x, w)
    assert y.shape == (2, 2 * h - 6, 4)


@pytest.mark.parametrize(
    "case", [c for c in TRANSPOSED_CASES if 0 not in c.x + c.w + c.conv.y], ids=ids
)
def test_conv_transpose_of_mirrored_images_is_exact(
    case: TransposedCase, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
):
    # What layers do whose weights are tens of megabytes.
    monkeypatch.setattr("jax_convgrad._src.conv.api._mirrors_images", lambda *shapes: True)
    operands, dy, expected = transposed_problem(case, "float32", rng)
    layer = lambda x, w, bias: conv_transpose(x, w, **case.keywords, bias=bias)  # noqa: E731
    program = str(jax.make_jaxpr(layer)(*operands))
    assert program.count("rev[") == (2 if case.reverses_weights else 0), program
    check_layer(layer, operands, dy, expected, "float32", "float32")


@pytest.mark.parametrize(("dtype", "wider"), WIDER, ids=WIDER_IDS)
@pytest.mark.parametrize("case", TRANSPOSED_CASES[::7], ids=ids)
def test_conv_transpose_with_a_wider_result_is_exact(
    case: TransposedCase, dtype: str, wider: str, rng: np.random.Generator
):
    operands, dy, expected = transposed_problem(case, dtype, rng)
    layer = lambda x, w, bias: conv_transpose(  # noqa: E731
        x, w, **case.keywords, bias=bias, preferred_element_type=wider
    )
    check_layer(layer, operands, dy, expected, dtype, wider)


# The same values and gradients as lax's functions of the same names.


@pytest.mark.parametrize("case", CONV_CASES, ids=ids)
def test_conv_general_dilated_equals_lax(case: Case, rng: np.random.Generator):
    (x, w, _), dy, _ = conv_problem(case, "float64", rng)
    ours = functools.partial(conv_general_dilated, **case.lax_keywords)
    theirs = functools.partial(lax.conv_general_dilated, **case.lax_keywords)
    check_equal(ours, theirs, dy, x, w)


@pytest.mark.parametrize("case", [c for c in TRANSPOSED_CASES if c.is_lax], ids=ids)
def test_conv_transpose_equals_lax(case: TransposedCase, rng: np.random.Generator):
    (x, w, _), dy, _ = transposed_problem(case, "float64", rng)
    ours = functools.partial(conv_transpose, **case.lax_keywords)
    theirs = functools.partial(lax.conv_transpose, **case.lax_keywords)
    check_equal(ours, theirs, dy, x, w)


def check_equal(ours: Any, theirs: Any, dy: Any, *operands: Any) -> None:
    expected = value_and_gradients(theirs)(*cast("float64", dy, *operands))
    got = value_and_gradients(ours)(*cast("float64", dy, *operands))
    for name, a, b in zip(("y", "dx", "dw"), got, expected, strict=True):
        assert_exact(a, np.asarray(b), "float64", name)
        assert a.weak_type == b.weak_type


def test_positional_arguments_are_those_of_lax(rng: np.random.Generator):
    ints = lambda *shapes: cast("float64", *(rng.integers(-3, 4, shape) for shape in shapes))  # noqa: E731
    x, w = ints((4, 6, 5, 4), (6, 2, 3, 2))
    numbers = lax.conv_dimension_numbers(x.shape, w.shape, None)
    conv = ((1, 2), ((1, 1), (0, 1)), (1, 1), (2, 1), numbers, 3, 1, None, np.float64)
    np.testing.assert_array_equal(
        conv_general_dilated(x, w, *conv), lax.conv_general_dilated(x, w, *conv)
    )
    x, w = ints((2, 4, 5, 3), (3, 2, 4, 3))
    transposed = ((2, 2), ((1, 1), (0, 1)), (1, 2), None, True, None, np.float64, True)
    np.testing.assert_array_equal(
        conv_transpose(x, w, *transposed), lax.conv_transpose(x, w, *transposed)
    )


@pytest.mark.parametrize("precision", [None, "highest", lax.Precision.HIGHEST, ("high", "default")])
def test_precision_is_passed_on(precision: Any, rng: np.random.Generator):
    check_random(next(c for c in PLAIN_CASES if c.id == "3x3-same"), "float32", precision, rng)


def test_other_ranks_fall_to_lax(rng: np.random.Generator):
    """No spatial axis, and four of them."""
    x, w, bias = cast("float64", *(rng.integers(-3, 4, s) for s in ((3, 4), (5, 4), (5,))))
    layer = lambda x, w, b: conv_general_dilated(x, w, (), "VALID", bias=b)  # noqa: E731
    np.testing.assert_array_equal(layer(x, w, bias), x @ w.T + bias)
    shapes = (1, 2, 3, 3, 3, 3), (3, 2, 2, 2, 2, 2)
    x, w = cast("float64", *(rng.integers(-3, 4, s) for s in shapes))
    ones = (1,) * 4
    np.testing.assert_array_equal(
        conv_general_dilated(x, w, ones, "SAME"), lax.conv_general_dilated(x, w, ones, "SAME")
    )


# Random data: NOTE [Yardsticks] in support/rounding.py.

RANDOM_CASES = [c for c in PLAIN_CASES if 0 not in c.x + c.w + c.y]


def lax_reference(case: Case, precision: Any, x: Any, w: Any, dy: Any) -> tuple[Any, ...]:
    f = functools.partial(lax.conv_general_dilated, **case.lax_keywords, precision=precision)
    return value_and_gradients(f)(dy, x, w)


def check_random(case: Case, dtype: str, precision: Any, rng: np.random.Generator) -> None:
    data = random_data(case, dtype, rng)
    x, w, dy = cast(dtype, *in_layout(case, *data))
    layer = functools.partial(conv_general_dilated, **case.lax_keywords, precision=precision)
    x_spec, w_spec, y_spec = case.numbers
    ours, xla = (
        tuple(map(from_layout, results, (y_spec, x_spec, w_spec)))
        for results in (
            value_and_gradients(layer)(dy, x, w),
            lax_reference(case, precision, x, w, dy),
        )
    )
    check_errors(case, dtype, precision, data, ours, xla)


@pytest.mark.parametrize(
    ("case", "dtype", "precision"),
    [
        pytest.param(case, dtype, precision, id="-".join(filter(None, (case.id, dtype, precision))))
        for i, case in enumerate(RANDOM_CASES)
        for dtype, precision in (
            ("float32", None),
            ("float32", "highest"),
            ("bfloat16", None),
            ("float16", None),
            ("float64", None),
        )
        # XLA:CPU is slow to compile the others.
        if (dtype in ("float32", "bfloat16") and precision is None) or i % 4 == 0
    ],
)
def test_random_data(case: Case, dtype: str, precision: Any, rng: np.random.Generator):
    check_random(case, dtype, precision, rng)


RANDOM_TRANSPOSED = [c for c in TRANSPOSED_CASES if 0 not in c.conv.x + c.conv.w + c.conv.y]


@pytest.mark.parametrize(
    ("case", "dtype", "precision"),
    [
        pytest.param(case, dtype, precision, id="-".join(filter(None, (case.id, dtype, precision))))
        for i, case in enumerate(RANDOM_TRANSPOSED)
        for dtype, precision in (("float32", None), ("float32", "highest"), ("bfloat16", None))
        if precision is None or i % 4 == 0
    ],
)
def test_random_data_transposed(
    case: TransposedCase, dtype: str, precision: Any, rng: np.random.Generator
):
    conv = case.conv
    x_spec, w_spec, y_spec = conv.numbers
    data = random_data(conv, dtype, rng)
    x, w, dy = cast(dtype, *in_layout(conv, *data))
    y, dx, dw = lax_reference(conv, precision, x, w, dy)
    xla = from_layout(y, y_spec), from_layout(dx, x_spec), from_layout(dw, w_spec)
    (passed,) = cast(dtype, case.passed_weights(data[1]))
    layer = functools.partial(conv_transpose, **case.keywords, precision=precision)
    y, dx, dw = value_and_gradients(layer)(dy, x, passed)
    ours = from_layout(y, y_spec), from_layout(dx, x_spec), case.canonical_weights(dw)
    check_errors(conv, dtype, precision, data, ours, xla)


# Adjoints, without any other definition of what a convolution is.


@pytest.mark.parametrize("case", RANDOM_CASES, ids=ids)
def test_the_three_maps_are_adjoint(case: Case, rng: np.random.Generator):
    x, w, dy = (jnp.asarray(rng.normal(size=case.logical(name))) for name in "xwy")
    maps = operators(case)

    @jax.jit
    def inner_products(x: Any, w: Any, dy: Any) -> tuple[Any, Any, Any]:
        return (
            jnp.vdot(dy, maps["fprop"](x, w)),
            jnp.vdot(maps["dgrad"](dy, w), x),
            jnp.vdot(maps["wgrad"](x, dy), w),
        )

    value, by_dgrad, by_wgrad = inner_products(x, w, dy)
    scale = jnp.linalg.norm(x) * jnp.linalg.norm(w) * jnp.linalg.norm(dy)
    assert abs(value - by_dgrad) < 1e-13 * scale
    assert abs(value - by_wgrad) < 1e-13 * scale


CHECK_GRADS = [
    "stride2-leaves-a-row-unread",
    "depthwise-dilated-stride2",
    "negative-padding-of-one-side",
    "3d-groups-dilation",
    "layout-tuples",
]


@pytest.mark.parametrize("name", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("case", [c for c in PLAIN_CASES if c.id in CHECK_GRADS], ids=ids)
def test_check_grads_operators(case: Case, name: str, rng: np.random.Generator):
    operands = {"fprop": "xw", "dgrad": "yw", "wgrad": "xy"}[name]
    arrays = [jnp.asarray(rng.normal(size=case.logical(which))) for which in operands]
    check_grads(jax.jit(operators(case)[name]), arrays, order=2, modes=("fwd", "rev"))


LAYER_CHECKS = [
    "stride2-same",
    "groups2",
    "lhs-dilation-groups",
    "batch-groups3-stride",
    "lhs-dilation-and-strides",
]


@pytest.mark.parametrize("case", [c for c in CONV_CASES if c.id in LAYER_CHECKS], ids=ids)
def test_check_grads_conv_general_dilated(case: Case, rng: np.random.Generator):
    arrays = [jnp.asarray(rng.normal(size=case.logical(which))) for which in "xw"]
    bias = jnp.asarray(rng.normal(size=case.w[0]))
    layer = lambda x, w, b: conv_general_dilated(x, w, **case.lax_keywords, bias=b)  # noqa: E731
    check_grads(jax.jit(layer), (*arrays, bias), order=2, modes=("rev",))


TRANSPOSED_CHECKS = [
    "same-k3s2",
    "transpose-kernel-groups",
    "output-padding-at-least-the-stride",
    "3d",
]


@pytest.mark.parametrize(
    "case", [c for c in TRANSPOSED_CASES if c.id in TRANSPOSED_CHECKS], ids=ids
)
def test_check_grads_conv_transpose(case: TransposedCase, rng: np.random.Generator):
    (x, w, bias), _, _ = transposed_problem(case, "float64", rng)
    arrays = [jnp.asarray(rng.normal(size=a.shape)) for a in (x, w, bias)]
    layer = lambda x, w, b: conv_transpose(x, w, **case.keywords, bias=b)  # noqa: E731
    check_grads(jax.jit(layer), arrays, order=2, modes=("rev",))


@pytest.fixture
def deterministic() -> Iterator[None]:
    """Without it cuDNN may serve with engines that add in any order."""
    jax_convgrad.set_deterministic(True)
    yield
    jax_convgrad.set_deterministic(False)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_call_gives_the_same_bits(dtype: str, rng: np.random.Generator):
    case = next(c for c in PLAIN_CASES if c.id == "groups3-stride-dilation")
    x, w, dy = cast(dtype, *(rng.normal(size=case.logical(which)) for which in "xwy"))
    layer = functools.partial(conv_general_dilated, **case.lax_keywords)
    run = value_and_gradients(layer)
    first = [np.asarray(a).tobytes() for a in run(dy, x, w)]
    for _ in range(100):
        assert [np.asarray(a).tobytes() for a in run(dy, x, w)] == first


def test_padding_and_dilation_beyond_32_bits(rng: np.random.Generator):
    """The layer of which lax says that its padding is negative: each tap meets one element, in one window."""
    x, w = rng.integers(-4, 5, (1, 1, 4)).astype(np.float32), np.float32([[[2, 3, 5]]])
    far = 2**61

    def layer(x: Any, w: Any) -> jax.Array:
        return jax_convgrad.conv_general_dilated(
            x, w, (far,), [(2 * far, 2 * far)], rhs_dilation=(far,)
        )

    y, pullback = jax.vjp(layer, x, w)
    np.testing.assert_array_equal(y, x[:, :, :1] * w[:, :, ::-1])
    dx, dw = pullback(jnp.ones_like(y))
    np.testing.assert_array_equal(dx, [[[10, 0, 0, 0]]])
    np.testing.assert_array_equal(dw, np.full((1, 1, 3), x[0, 0, 0]))

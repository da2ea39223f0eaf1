"""Gradients as matrix products of a gathered dy: exact, close, differentiable, one gather for both."""

from __future__ import annotations

import itertools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from cases import (
    FLOATS,
    PLAIN_CASES,
    Case,
    assert_exact,
    conv_oracle,
    ids,
    relative_error,
    to_layout,
)
from jax import lax
from jax.test_util import check_grads

from jax_convgrad import (
    conv_dgrad,
    conv_fprop,
    conv_general_dilated,
    conv_transpose,
    conv_wgrad,
    im2col,
    registry,
    routes,
    shapes,
)

DENSE = [case for case in PLAIN_CASES if case.groups == 1]
NHWC = ("NHWC", "HWIO", "NHWC")


@pytest.fixture
def forced() -> Any:
    with routes.force("im2col"):
        yield


def operators(case: Case, **extra: Any) -> Any:
    keywords = {**case.operator_keywords, **extra}

    def run(x: Any, w: Any, dy: Any) -> Any:
        return (
            conv_dgrad(dy, w, case.logical("x"), **keywords),
            conv_wgrad(x, dy, case.logical("w"), **keywords),
        )

    return run


def check_exact(
    case: Case, dtype: str, rng: np.random.Generator, result: str | None = None
) -> None:
    data = case.data(rng, dtype)
    _, dx, dw = conv_oracle(case, *data)
    arrays = [jnp.asarray(to_layout(a, s), dtype) for a, s in zip(data, case.numbers, strict=True)]
    run = operators(case, preferred_element_type=result)
    got_dx, got_dw = jax.jit(run)(*arrays)
    assert_exact(got_dx, to_layout(dx, case.numbers[0]), result or dtype, "dx")
    assert_exact(got_dw, to_layout(dw, case.numbers[1]), result or dtype, "dw")


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", DENSE, ids=ids)
def test_operators_are_exact(case: Case, dtype: str, rng: np.random.Generator) -> None:
    """Strides, dilation, asymmetric and negative padding, unread rows: small integers, any difference
    is a wrong index."""
    check_exact(case, dtype, rng)


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("dtype, wider", [("bfloat16", "float32"), ("float32", "float64")])
@pytest.mark.parametrize("case", DENSE[::7], ids=ids)
def test_a_wider_result(case: Case, dtype: str, wider: str, rng: np.random.Generator) -> None:
    check_exact(case, dtype, rng, wider)


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_every_order_of_dimensions(rank: int, rng: np.random.Generator) -> None:
    """All orders in one dimension, a random share of the others; sizes differ along every axis."""
    orders = list(itertools.permutations(range(rank + 2)))
    x, w = (2, 3, *(5, 7, 4)[:rank]), (4, 3, *(2, 3, 1)[:rank])
    pads, dilation = ((2, 1), (0, 3), (1, 1))[:rank], (2, 1, 3)[:rank]
    chosen = list(itertools.product(orders, repeat=3))
    for index in rng.permutation(len(chosen))[:40]:
        numbers = lax.ConvDimensionNumbers(*chosen[index])
        case = Case("order", x, w, (1,) * rank, pads, dilation, layout=numbers)
        check_exact(case, "float32", rng)


def draw(rng: np.random.Generator) -> Case:
    while True:
        rank = int(rng.integers(1, 4))
        ints = lambda low, high, rank=rank: tuple(int(v) for v in rng.integers(low, high + 1, rank))  # noqa: E731
        x = (*(int(v) for v in rng.integers(1, 4, 2)), *ints(1, {1: 12, 2: 7, 3: 4}[rank]))
        w = (int(rng.integers(1, 5)), x[1], *ints(1, 3))
        numbers = lax.ConvDimensionNumbers(
            *(tuple(int(i) for i in rng.permutation(rank + 2)) for _ in range(3))
        )
        pads = tuple(zip(ints(-1, 4), ints(-1, 4), strict=True))
        case = Case("random", x, w, ints(1, 3), pads, ints(1, 3), layout=numbers)
        room = all(n + sum(pair) >= 0 for n, pair in zip(x[2:], pads, strict=True))
        if room and 0 not in case.y and case.reduction < 250:
            return case


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("seed", range(60))
def test_random_problems_are_exact(seed: int) -> None:
    rng = np.random.default_rng(seed)
    check_exact(draw(rng), str(rng.choice(FLOATS)), rng)


def big() -> Case:
    return Case("aspp", (2, 32, 15, 15), (8, 32, 3, 3), (1, 1), ((6, 6),) * 2, (6, 6), 1, NHWC)


@pytest.mark.parametrize("dtype", FLOATS)
def test_random_data_is_as_close_as_xla(dtype: str, rng: np.random.Generator) -> None:
    """The error against float64 is at most 3 times that of XLA's own result in the same dtype."""
    case = big()
    shapes_ = (case.logical("x"), case.logical("w"), case.logical("y"))
    data = [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes_]
    exact = [np.asarray(a).astype(np.float64) for a in data]
    x, w, dy = (np.transpose(a, s) for a, s in zip(exact, case.numbers, strict=True))
    truth = (
        to_layout(oracles.conv_dgrad(dy, w, x.shape, **case.geometry), case.numbers[0]),
        to_layout(oracles.conv_wgrad(x, dy, w.shape, **case.geometry), case.numbers[1]),
    )
    errors = {}
    for route in ("im2col", "xla"):
        with routes.force(route):
            got = jax.jit(lambda *a: operators(case)(*a))(*data)
        errors[route] = [relative_error(g, t) for g, t in zip(got, truth, strict=True)]
    for ours, xla in zip(errors["im2col"], errors["xla"], strict=True):
        assert ours <= 3 * xla + np.finfo(np.float64).eps, errors


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("in_axes", [(0, None), (None, 0), (0, 0)])
def test_vmap(in_axes: tuple[Any, Any], rng: np.random.Generator) -> None:
    """A shared operand leaves a problem without groups; with both mapped it has groups."""
    x = rng.integers(-3, 4, (3, 2, 6, 5, 3)).astype(np.float32)
    w = rng.integers(-3, 4, (3, 3, 2, 3, 4)).astype(np.float32)
    x, w = (a if axis == 0 else a[0] for a, axis in zip((x, w), in_axes, strict=True))
    keywords: dict[str, Any] = {
        "strides": 1, "padding": ((2, 1), (1, 1)), "dilation": (2, 1), "dimension_numbers": NHWC,
    }  # fmt: skip

    def gradients(x: Any, w: Any) -> Any:
        return jax.grad(lambda x, w: (conv_fprop(x, w, **keywords) ** 2).sum(), (0, 1))(x, w)

    def plain(x: Any, w: Any) -> Any:
        def f(x: Any, w: Any) -> Any:
            y = lax.conv_general_dilated(
                x, w, (1, 1), keywords["padding"], rhs_dilation=(2, 1), dimension_numbers=NHWC
            )
            return (y**2).sum()

        return jax.grad(f, (0, 1))(x, w)

    got = jax.jit(jax.vmap(gradients, in_axes))(x, w)
    for g, expected in zip(got, jax.vmap(plain, in_axes)(x, w), strict=True):
        np.testing.assert_array_equal(g, expected)


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_of_gradients(stride: int, rng: np.random.Generator) -> None:
    case = Case("t", (1, 2, 5, 4), (3, 2, 2, 2), (stride,) * 2, ((1, 2), (0, 1)), (3, 2), 1, NHWC)
    x, w = (jnp.asarray(rng.standard_normal(case.logical(name))) for name in "xw")

    def conv(x: Any, w: Any) -> Any:
        return conv_general_dilated(x, w, **case.lax_keywords)

    check_grads(jax.jit(conv), (x, w), order=2, modes=["rev"])

    def transposed(x: Any, w: Any) -> Any:
        return conv_transpose(x, w, (stride,) * 2, ((2, 1), (1, 2)), rhs_dilation=(3, 1))

    check_grads(jax.jit(transposed), (x, w), order=2, modes=["rev"])


def test_groups_and_forward_keep_their_own_routes() -> None:
    def geometry(groups: int) -> shapes.ConvGeometry:
        x, w = (1, 4, 9, 9), (4, 4 // groups, 3, 3)
        config = shapes.make_config(
            "t", x, w, strides=1, padding="SAME", dilation=2, groups=groups, dimension_numbers=None
        )
        return shapes.ConvGeometry.make("t", config, x, w)

    for platform, operator, groups in itertools.product(
        ("cpu", "cuda", None), ("conv_fprop", "conv_dgrad", "conv_wgrad"), (1, 2)
    ):
        arguments = (platform, operator, geometry(groups), "float32", "float32")
        with routes.force(None):
            usual = routes.choose(*arguments)
        with routes.force("im2col"):
            route = routes.choose(*arguments)
        if groups == 1 and operator != "conv_fprop":
            assert route.name == "im2col" and im2col.applies(operator, arguments[2])
        else:
            assert route == usual and not im2col.applies(operator, arguments[2])


def test_dilated_gradients_take_the_handlers_on_cuda() -> None:
    def names(
        in_channels: int = 2048, dtype: str = "float32", kernel: int = 3, **changes: Any
    ) -> list[str]:
        x, w = (4, in_channels, 33, 33), (256, in_channels, kernel, kernel)
        keywords = {"strides": 1, "padding": "SAME", "dilation": 12, "groups": 1, **changes}
        config = shapes.make_config("t", x, w, dimension_numbers=None, **keywords)
        geometry = shapes.ConvGeometry.make("t", config, x, w)
        operators = ("conv_fprop", "conv_dgrad", "conv_wgrad")
        with routes.force(None):
            found = [routes.choose("cuda", op, geometry, dtype, dtype) for op in operators]
        assert all(route.reason for route in found)
        return [route.name for route in found]

    left = ["xla", "cudnn", "cudnn"]
    assert names() == names(in_channels=1024) == names(kernel=4) == left
    assert names(dtype="bfloat16") == names(dtype="float64") == left
    assert names(strides=5) == ["cudnn"] * 3
    assert "im2col" not in names(dilation=1)


@pytest.mark.parametrize("layout", [NHWC, ("NCHW", "OIHW", "NCHW")])
def test_both_gradients_share_one_gather(
    layout: Any, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """What is lowered for CUDA has two gathers of the same operations; XLA merges them into one."""
    found = registry.Handlers(frozenset(registry.CONV_TARGETS.values()), frozenset({"float32"}))
    monkeypatch.setattr(registry, "handlers", lambda platform, warn=True: found)
    case = Case("t", (2, 2048, 9, 9), (256, 2048, 3, 3), (), ((4, 4),) * 2, (4, 4), 1, layout)

    def gradients(x: Any, w: Any, dy: Any) -> Any:
        layer = lambda x, w: conv_general_dilated(x, w, **case.lax_keywords)  # noqa: E731
        return jax.vjp(layer, x, w)[1](dy)

    arguments = [jax.ShapeDtypeStruct(case.logical(name), jnp.float32) for name in "xwy"]
    with routes.force("im2col"):
        text = jax.jit(gradients).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    assert "stablehlo.convolution" not in text and "jax_convgrad_conv" not in text
    assert text.count("stablehlo.dot_general") == 2
    gathers = text.split("stablehlo.concatenate")
    assert len(gathers) == 3
    pads = [re.findall(r"stablehlo\.pad .*?(low = .*)", part) for part in gathers[:2]]
    assert len(pads[0]) == 9
    assert [re.sub(r"%\w+", "%", line) for line in pads[0]] == [
        re.sub(r"%\w+", "%", line) for line in pads[1]
    ]

    if jax.default_backend() != "cpu":
        return  # what is merged is hidden in fusions there
    # The same program, compiled for this machine: the merge is XLA's own, before any backend's passes.
    small = Case("t", (2, 32, 9, 9), (4, 32, 3, 3), (), ((4, 4),) * 2, (4, 4), 1, layout)
    arrays = [jnp.asarray(rng.standard_normal(small.logical(name)), "float32") for name in "xwy"]

    def counts(*wanted: int) -> tuple[int, int]:
        def run(x: Any, w: Any, dy: Any) -> Any:
            return [operators(small)(x, w, dy)[i] for i in wanted]

        with routes.force("im2col"):
            program = jax.jit(run).lower(*arrays).compile().as_text()
        return program.count(" concatenate("), len(re.findall(r" dot\(|custom-call\(", program))

    (alone, one), (together, two) = counts(0), counts(0, 1)
    assert alone == together >= 1
    assert two == 2 * one >= 2


@pytest.mark.usefixtures("forced")
def test_products_accumulate_in_float32_and_take_the_precision() -> None:
    case = big()
    for dtype, wide in (
        ("bfloat16", "f32"),
        ("float16", "f32"),
        ("float32", "f32"),
        ("float64", "f64"),
    ):
        arguments = [jax.ShapeDtypeStruct(case.logical(name), dtype) for name in "xwy"]
        run = operators(case, precision=(lax.Precision.HIGHEST, lax.Precision.DEFAULT))
        text = jax.jit(run).lower(*arguments).as_text()
        products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
        assert len(products) == 2
        for line in products:
            assert "precision = [HIGHEST, DEFAULT]" in line
            assert re.search(rf"-> tensor<[\dx]*x{wide}>", line), line


@pytest.mark.usefixtures("forced")
def test_a_symbolic_batch() -> None:
    (n,) = jax.export.symbolic_shape("n")
    case = big()

    def gradients(dy: Any, w: Any) -> Any:
        shape = (dy.shape[0], *case.logical("x")[1:])
        return conv_dgrad(dy, w, shape, **case.operator_keywords)

    dy, w = (np.ones(case.logical(name), np.float32) for name in "yw")
    exported = jax.export.export(jax.jit(gradients))(
        jax.ShapeDtypeStruct((n, *dy.shape[1:]), jnp.float32),
        jax.ShapeDtypeStruct(w.shape, w.dtype),
    )
    np.testing.assert_array_equal(exported.call(dy, w), gradients(dy, w))

"""The CUDA handlers on a GPU, forced for every form, whatever the rules say.

`pytest --backend cudnn` does the same with all other tests. Skipped where JAX runs on no GPU;
JAX_CONVGRAD_REQUIRE_CUDA=1 makes that, and a missing module, a failure.
"""

from __future__ import annotations

import concurrent.futures
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.comparisons import FLOATS, assert_exact, cast, relative_error, value_and_gradients
from support.conv_cases import PLAIN_CASES, Case, ids, in_layout
from support.conv_oracle import conv_oracle
from support.layouts import from_layout, to_layout
from support.rounding import check_errors, random_data

import jax_convgrad
from jax_convgrad import plans
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.explain import roofline
from jax_convgrad._src.runtime import registry, settings

NHWC = ("NHWC", "HWIO", "NHWC")


@pytest.fixture(autouse=True)
def cudnn(needs_cuda_handlers: None) -> Iterator[None]:
    """Every problem on the handlers, settings as they come, and no plans from another test."""
    with override_backend("cudnn"):
        yield
    jax_convgrad.set_algorithm_search("default")
    jax_convgrad.set_workspace_limit(None)
    jax_convgrad.set_deterministic(False)


def assert_on_cudnn(f: Any, *arguments: Any) -> None:
    assert "jax_convgrad_conv" in f.lower(*arguments).as_text()


# Exactness.


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", PLAIN_CASES, ids=ids)
def test_convolutions_are_exact(case: Case, dtype: str, rng: np.random.Generator) -> None:
    check_exact(case, dtype, rng)


@pytest.mark.parametrize("dtype", ["bfloat16"])
@pytest.mark.parametrize(
    "case", [case for case in PLAIN_CASES if 0 not in (*case.x, *case.w, *case.y)], ids=ids
)
def test_the_backends_of_the_rules_are_exact(
    case: Case, dtype: str, rng: np.random.Generator
) -> None:
    with override_backend(None):
        check_exact(case, dtype, rng, anywhere=True)


def check_exact(case: Case, dtype: str, rng: np.random.Generator, anywhere: bool = False) -> None:
    x, w, dy = case.data(rng, dtype)
    y, dx, dw = conv_oracle(case, x, w, dy)
    x_spec, w_spec, y_spec = case.numbers
    run = value_and_gradients(functools.partial(jax_convgrad.conv_fprop, **case.operator_keywords))
    arrays = [
        jnp.asarray(to_layout(a, spec), dtype)
        for a, spec in ((dy, y_spec), (x, x_spec), (w, w_spec))
    ]
    if not anywhere and 0 not in (*case.x, *case.w, *case.y):
        assert_on_cudnn(run, *arrays)
    results = jax.block_until_ready(run(*arrays))  # handlers run after the call has returned
    for what, got, spec, expected in zip(
        ("y", "dx", "dw"), results, (y_spec, x_spec, w_spec), (y, dx, dw), strict=True
    ):
        assert got.dtype == dtype
        assert_exact(_canonical(got, spec), expected, dtype, what)


ENGINES_WITH_ERRATA = {"conv_wgrad": {"eng1", "eng18", "eng20", "eng70"}, "conv_dgrad": {"eng50"}}


@pytest.mark.parametrize(
    "operator, stride", [("conv_wgrad", 2), ("conv_wgrad", 1), ("conv_dgrad", 1)]
)
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_engine_is_right_where_padding_is_uneven(
    operator: str, stride: int, dtype: str, rng: np.random.Generator
) -> None:
    """NOTE [One padding per axis] in cudnn/errata.cc: every engine that a search may choose."""
    padding = ((0, 1), (2, 1))
    case = Case("uneven", (2, 16, 6, 5), (16, 16, 3, 3), (stride, stride), padding)
    x, w, dy = case.data(rng, dtype)
    _, dx, dw = conv_oracle(case, x, w, dy)
    if operator == "conv_wgrad":
        arrays, shape, expected = (x, dy), {"w_shape": w.shape}, dw
    else:
        arrays, shape, expected = (dy, w), {"x_shape": x.shape}, dx
    f = getattr(jax_convgrad, operator)
    run = jax.jit(functools.partial(f, **shape, strides=stride, padding=padding))
    operands = [jnp.asarray(array, dtype) for array in arrays]
    jax_convgrad.set_algorithm_search("exhaustive")
    plans.clear()
    jax.block_until_ready(run(*operands))
    (plan,) = plans.list()
    # One that is alone is not tried, but taken.
    engines = {plan["engine"], *(t["engine"] for t in plan["tried"] if not t["failure"])}
    if dtype != "float64":  # there x is padded beforehand, and all engines may run
        assert not {e.split("_")[0] for e in engines} & ENGINES_WITH_ERRATA[operator]
    for engine in sorted(engines):
        plans.clear()
        registry.cuda_module().load_choices([(plan["problem"], engine)])
        got = np.asarray(run(*operands)).astype(np.float64)
        assert [plan["engine"] for plan in plans.list()] == [engine]
        # Engines that transform, and those that round partial sums, are not exact.
        assert np.abs(got - expected).max() < 0.1 * np.abs(expected).max(), engine
    plans.clear()


def _canonical(got: Any, spec: tuple[int, ...]) -> Any:
    return jnp.asarray(from_layout(got, spec))


# The project's own kernels.

NATIVE_CASES = [
    Case("k3", (2, 24, 9, 13), (24, 1, 3, 3), (), "SAME", groups=24),
    Case("k3-stride2", (2, 12, 10, 9), (12, 1, 3, 3), (2, 2), "SAME", groups=12, layout=NHWC),
    Case("k4-stride2", (2, 40, 12, 18), (40, 1, 4, 4), (2, 2), ((1, 1), (1, 1)), groups=40),
    Case("k4", (2, 8, 9, 11), (8, 1, 4, 4), (), "SAME", groups=8, layout=NHWC),
    Case("k5", (1, 16, 9, 20), (16, 1, 5, 5), (), "SAME", groups=16),
    Case("k5-stride2", (1, 16, 9, 20), (16, 1, 5, 5), (2, 2), "SAME", groups=16),
    Case("k7", (2, 36, 14, 17), (36, 1, 7, 7), (), "SAME", groups=36, layout=NHWC),
    Case("k7-stride2", (2, 36, 14, 17), (36, 1, 7, 7), (2, 2), "SAME", groups=36, layout=NHWC),
    Case("k16-stride8-odd", (1, 21, 40, 33), (21, 1, 16, 16), (8, 8), "SAME", groups=21),
    Case("k11-odd", (1, 7, 14, 15), (7, 1, 11, 11), (), "SAME", groups=7),
    Case("stride-above-kernel", (2, 8, 13, 17), (8, 1, 2, 3), (4, 5), groups=8),
    Case("rows-unread", (2, 8, 14, 12), (8, 1, 3, 2), (4, 3), groups=8, layout=NHWC),
    Case("uneven", (2, 20, 9, 8), (20, 1, 3, 4), (2, 1), ((0, 3), (4, 1)), groups=20),
    Case("dilated", (2, 8, 14, 15), (8, 1, 3, 3), (), "SAME", (2, 3), 8),
    Case("dilated-strided", (2, 8, 14, 15), (8, 1, 4, 3), (2, 6), "SAME", (3, 4), 8),
    Case("1d", (2, 12, 70), (12, 1, 7), (), "SAME", groups=12),
    Case("1d-stride4", (2, 9, 70), (9, 1, 8), (4,), ((2, 2),), groups=9),
    Case("3d", (1, 16, 5, 6, 9), (16, 1, 3, 3, 3), (), "SAME", groups=16),
    Case("3d-stride2", (1, 8, 6, 8, 10), (8, 1, 4, 4, 4), (2, 2, 2), ((1, 1),) * 3, groups=8),
    Case("3d-odd", (2, 5, 4, 5, 4), (5, 1, 2, 3, 1), (1, 2, 1), ((0, 1), (2, 0), (0, 0)), groups=5),
]  # fmt: skip


def _native(case: Case, arrays: Any) -> Any:
    """y, dx and dw from the project's own kernels."""
    jax_convgrad.set_algorithm_search("heuristic")  # takes them first
    plans.clear()
    run = value_and_gradients(functools.partial(jax_convgrad.conv_fprop, **case.operator_keywords))
    results = jax.block_until_ready(run(*arrays))  # handlers run after the call has returned
    assert [plan["engine"] for plan in plans.list()] == ["native_depthwise"] * 3, plans.list()
    return results


def _in_layout(case: Case, x: Any, w: Any, dy: Any, dtype: Any) -> list[Any]:
    x_spec, w_spec, y_spec = case.numbers
    return [
        jnp.asarray(to_layout(a, spec), dtype)
        for a, spec in ((dy, y_spec), (x, x_spec), (w, w_spec))
    ]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", NATIVE_CASES, ids=ids)
def test_native_kernels_are_exact(case: Case, dtype: str, rng: np.random.Generator) -> None:
    """Sums of small integers are exact in float32, so that what is rounded is rounded once.

    In float64 the integers are so large that sums in float32 would not be.
    """
    most = 2**20 if dtype == "float64" else 3
    x, w, dy = (
        rng.integers(-most, most + 1, shape).astype(np.float64)
        for shape in (case.x, case.w, case.y)
    )
    results = _native(case, _in_layout(case, x, w, dy, dtype))
    x_spec, w_spec, y_spec = case.numbers
    for got, spec, expected in zip(
        results, (y_spec, x_spec, w_spec), conv_oracle(case, x, w, dy), strict=True
    ):
        assert_exact(_canonical(got, spec), np.asarray(jnp.asarray(expected, dtype), float), dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("case", NATIVE_CASES, ids=ids)
def test_native_kernels_round_no_more_than_xla(
    case: Case, dtype: str, rng: np.random.Generator
) -> None:
    x, w, dy = (rng.standard_normal(shape) for shape in (case.x, case.w, case.y))
    arrays = _in_layout(case, x, w, dy, dtype)
    f = functools.partial(jax_convgrad.conv_fprop, **case.operator_keywords, precision="highest")
    with override_backend("xla"):
        theirs = value_and_gradients(f)(*arrays)
        truth = value_and_gradients(f)(*(a.astype(jnp.float64) for a in arrays))
    for got, other, expected in zip(_native(case, arrays), theirs, truth, strict=True):
        expected = np.asarray(expected)
        floor = float(jnp.finfo(dtype).eps) / 8
        assert relative_error(got, expected) <= 3 * max(relative_error(other, expected), floor)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_native_kernels_give_the_same_bits(dtype: str, rng: np.random.Generator) -> None:
    case = Case("k3", (8, 48, 56, 56), (48, 1, 3, 3), (), "SAME", groups=48, layout=NHWC)
    x, w, dy = (rng.standard_normal(shape) for shape in (case.x, case.w, case.y))
    arrays = _in_layout(case, x, w, dy, dtype)
    first = [np.asarray(r).tobytes() for r in _native(case, arrays)]
    run = value_and_gradients(functools.partial(jax_convgrad.conv_fprop, **case.operator_keywords))
    for _ in range(100):
        assert [np.asarray(r).tobytes() for r in run(*arrays)] == first


def test_native_kernels_are_timed_beside_cudnn(rng: np.random.Generator) -> None:
    case = NATIVE_CASES[0]
    x, w, dy = (rng.standard_normal(shape) for shape in (case.x, case.w, case.y))
    for search in ("default", "exhaustive"):
        plans.clear()
        jax_convgrad.set_algorithm_search(search)
        f = functools.partial(jax_convgrad.conv_fprop, **case.operator_keywords)
        jax.block_until_ready(value_and_gradients(f)(*_in_layout(case, x, w, dy, "float32")))
        assert len(plans.list()) == 3
        for plan in plans.list():
            timed = {t["engine"]: t["microseconds"] for t in plan["tried"] if not t["failure"]}
            assert timed["native_depthwise"] > 0
            assert len(timed) > 1


def test_native_kernels_leave_multipliers_to_cudnn(rng: np.random.Generator) -> None:
    case = Case("multiplier", (2, 8, 9, 9), (16, 1, 3, 3), (), "SAME", groups=8)
    x, w, dy = (rng.standard_normal(shape) for shape in (case.x, case.w, case.y))
    plans.clear()
    jax_convgrad.set_algorithm_search("heuristic")
    f = functools.partial(jax_convgrad.conv_fprop, **case.operator_keywords)
    jax.block_until_ready(value_and_gradients(f)(*_in_layout(case, x, w, dy, "float32")))
    assert "native_depthwise" not in {plan["engine"] for plan in plans.list()}


# Weights in the order of Flax, which thin kernels read as it is and others after a reordering.

FLAX_CASES = [
    Case("image", (2, 4, 12, 10), (16, 4, 3, 3), (), "SAME", layout=NHWC),
    Case("few-outputs", (2, 24, 9, 11), (4, 24, 3, 3), (), "SAME", layout=NHWC),
    Case("windows", (2, 8, 12, 8), (24, 8, 2, 2), (2, 2), layout=NHWC),
    Case("one-output", (2, 16, 9, 11), (1, 16, 3, 3), (), "SAME", layout=NHWC),
]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("case", FLAX_CASES, ids=ids)
def test_every_engine_gets_the_weights_that_it_reads(
    case: Case, dtype: str, rng: np.random.Generator
) -> None:
    x, w, dy = case.data(rng, dtype)
    x_spec, w_spec, y_spec = case.numbers
    run = value_and_gradients(functools.partial(jax_convgrad.conv_fprop, **case.operator_keywords))
    arrays = _in_layout(case, x, w, dy, dtype)
    plans.clear()
    jax.block_until_ready(run(*arrays))
    found = {plan["problem"]: plan for plan in plans.list()}
    # With one output channel both orders are one.
    assert {", weights XIO" in problem for problem in found} == {case.w[0] > 1}, found
    assert len(found) == 3
    engines = {
        problem: [t["engine"] for t in plan["tried"] if not t["failure"]]
        for problem, plan in found.items()
    }
    names = {name for timed in engines.values() for name in timed}
    assert any(name.startswith("native_thin_") for name in names), engines
    assert any(name.startswith("eng") for name in names), engines
    for i in range(max(map(len, engines.values()))):
        plans.clear()
        chosen = {problem: timed[min(i, len(timed) - 1)] for problem, timed in engines.items()}
        registry.cuda_module().load_choices(list(chosen.items()))
        results = jax.block_until_ready(run(*arrays))
        assert {plan["problem"]: plan["engine"] for plan in plans.list()} == chosen
        for operator, got, spec, expected in zip(
            ("conv_fprop", "conv_dgrad", "conv_wgrad"),
            results,
            (y_spec, x_spec, w_spec),
            conv_oracle(case, x, w, dy),
            strict=True,
        ):
            (engine,) = (e for problem, e in chosen.items() if problem.startswith(operator))
            canonical = _canonical(got, spec)
            if engine.startswith("native_"):
                assert_exact(canonical, expected, dtype, engine)
            # Some of cuDNN's round partial sums.
            error = np.abs(np.asarray(canonical, np.float64) - expected).max()
            assert error < 0.02 * np.abs(expected).max(), engine
    plans.clear()


# Dilated gradients in TF32.

DILATED_CASES = [
    Case("aspp-like", (2, 264, 17, 18), (136, 264, 3, 3), (), ((6, 6), (6, 6)), (6, 6), layout=NHWC),
    Case("uneven", (3, 20, 9, 11), (12, 20, 3, 2), (), ((5, 0), (1, 4)), (2, 3), layout=NHWC),
    Case("few-positions", (1, 512, 5, 5), (256, 512, 3, 3), (), ((4, 4), (4, 4)), (4, 4), layout=NHWC),
    Case("taps-outside", (2, 8, 4, 5), (8, 8, 3, 3), (), ((9, 9), (2, 2)), (9, 2), layout=NHWC),
    Case("even-kernel", (2, 36, 12, 10), (40, 36, 4, 2), (), ((3, 2), (0, 3)), (2, 3), layout=NHWC),
    Case("cropped", (2, 16, 14, 13), (8, 16, 3, 3), (), ((-1, 2), (3, -1)), (3, 2), layout=NHWC),
    Case("1d", (2, 64, 300), (32, 64, 2), (), ((16, 16),), (32,)),
    Case("1d-long-kernel", (1, 128, 150), (4, 128, 7), (), ((12, 3),), (5,)),
    Case("3d", (1, 24, 6, 7, 8), (44, 24, 3, 2, 3), (), ((2, 2), (0, 2), (3, 3)), (2, 2, 3)),
]  # fmt: skip


def _dilated(case: Case, arrays: Any) -> Any:
    """y, dx and dw, the last two from the project's own kernels, which searches need not prefer."""
    run = value_and_gradients(functools.partial(jax_convgrad.conv_fprop, **case.operator_keywords))
    jax_convgrad.set_algorithm_search("heuristic")
    plans.clear()
    jax.block_until_ready(run(*arrays))
    gradients = {p["problem"] for p in plans.list() if not p["problem"].startswith("conv_fprop")}
    assert len(gradients) == 2
    plans.clear()
    registry.cuda_module().load_choices([(p, "native_dilated") for p in gradients])
    results = jax.block_until_ready(run(*arrays))  # handlers run after the call has returned
    engines = {p["problem"]: (p["engine"], p["note"]) for p in plans.list()}
    assert {engines[p] for p in gradients} == {("native_dilated", "")}, plans.list()
    return results


@pytest.fixture
def hopper() -> None:
    if "H100" not in (kind := jax.devices()[0].device_kind) and "H200" not in kind:
        pytest.skip(f"native_dilated runs on Hopper devices, not on {kind}")


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("case", DILATED_CASES, ids=ids)
def test_dilated_kernels_are_exact(case: Case, rng: np.random.Generator) -> None:
    """Small integers are TF32 numbers, and their sums are exact."""
    x, w, dy = (rng.integers(-3, 4, shape).astype(np.float64) for shape in (case.x, case.w, case.y))
    results = _dilated(case, _in_layout(case, x, w, dy, "float32"))
    x_spec, w_spec, y_spec = case.numbers
    for got, spec, expected in zip(
        results, (y_spec, x_spec, w_spec), conv_oracle(case, x, w, dy), strict=True
    ):
        assert_exact(_canonical(got, spec), expected, "float32")


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("case", DILATED_CASES, ids=ids)
def test_dilated_kernels_round_as_tf32_does(case: Case, rng: np.random.Generator) -> None:
    data = random_data(case, "float32", rng)
    x, w, dy = cast("float32", *in_layout(case, *data))
    ours = _dilated(case, (dy, x, w))
    f = functools.partial(jax_convgrad.conv_fprop, **case.operator_keywords)
    with override_backend("xla"):
        theirs = value_and_gradients(f)(dy, x, w)
    x_spec, w_spec, y_spec = case.numbers
    ours, theirs = (
        tuple(map(from_layout, results, (y_spec, x_spec, w_spec))) for results in (ours, theirs)
    )
    check_errors(case, "float32", None, data, ours, theirs)


@pytest.mark.usefixtures("hopper")
def test_dilated_kernels_give_the_same_bits(rng: np.random.Generator) -> None:
    case = DILATED_CASES[0]
    arrays = _in_layout(
        case, *(rng.standard_normal(shape) for shape in (case.x, case.w, case.y)), "float32"
    )
    first = [np.asarray(r).tobytes() for r in _dilated(case, arrays)]
    run = value_and_gradients(functools.partial(jax_convgrad.conv_fprop, **case.operator_keywords))
    for _ in range(20):
        assert [np.asarray(r).tobytes() for r in run(*arrays)] == first


@pytest.mark.usefixtures("hopper")
def test_infinities_and_nans_pass_the_dilated_kernels(rng: np.random.Generator) -> None:
    case = DILATED_CASES[1]
    x, w, dy = (rng.standard_normal(shape) for shape in (case.x, case.w, case.y))
    dy[0, 0], dy[1, 1] = np.nan, np.inf
    results = _dilated(case, _in_layout(case, x, w, dy, "float32"))
    dx, dw = map(np.asarray, results[1:])
    assert np.isnan(dx[0]).any() and not np.isfinite(dx[1]).all() and np.isfinite(dx[2]).all()
    assert not np.isfinite(dw[..., :2]).any() and np.isfinite(dw[..., 2:]).all()


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("search", ["default", "heuristic", "exhaustive"])
def test_large_dilated_gradients_take_the_projects_kernels(
    search: str, rng: np.random.Generator
) -> None:
    """First in order where they are likely to be the fastest, and timed where anything is."""
    case = Case(
        "aspp", (2, 1024, 33, 33), (256, 1024, 3, 3), (), ((12, 12),) * 2, (12, 12), layout=NHWC
    )
    x, w, dy = cast("float32", *in_layout(case, *random_data(case, "float32", rng)))
    jax_convgrad.set_algorithm_search(search)
    plans.clear()
    f = functools.partial(jax_convgrad.conv_fprop, **case.operator_keywords)
    jax.block_until_ready(value_and_gradients(f)(dy, x, w))
    for plan in plans.list():
        if plan["problem"].startswith("conv_fprop"):
            assert plan["engine"] != "native_dilated"
        elif search == "heuristic":
            assert plan["engine"] == "native_dilated", plan
        else:
            timed = {t["engine"]: t["microseconds"] for t in plan["tried"] if not t["failure"]}
            assert timed["native_dilated"] > 0


def test_dilated_kernels_leave_strict_float32_to_cudnn(rng: np.random.Generator) -> None:
    case = DILATED_CASES[0]
    x, w, dy = cast("float32", *in_layout(case, *random_data(case, "float32", rng)))
    f = functools.partial(jax_convgrad.conv_fprop, **case.operator_keywords, precision="highest")
    jax_convgrad.set_algorithm_search("exhaustive")
    plans.clear()
    jax.block_until_ready(value_and_gradients(f)(dy, x, w))
    engines = {t["engine"] for plan in plans.list() for t in plan["tried"]}
    assert engines and "native_dilated" not in engines


# Rounding.


def _operands(rng: np.random.Generator, dtype: Any) -> tuple[Any, Any, Any]:
    shapes = (4, 40, 36, 24), (3, 3, 24, 32), (4, 20, 18, 32)
    return tuple(jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes)


def _layer(precision: Any = None, layout: Any = NHWC) -> Any:
    return functools.partial(
        jax_convgrad.conv_fprop,
        strides=2, padding="SAME", dimension_numbers=layout, precision=precision,
    )  # fmt: skip


@pytest.mark.parametrize("precision", [None, "highest"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_errors_are_no_larger_than_those_of_xla(
    dtype: str, precision: Any, rng: np.random.Generator
) -> None:
    """On a layer large enough for the engines that large layers get."""
    case = Case("layer", (4, 24, 40, 36), (32, 24, 3, 3), (2, 2), "SAME", layout=NHWC)
    data = random_data(case, dtype, rng)
    x, w, dy = cast(dtype, *in_layout(case, *data))
    ours = value_and_gradients(_layer(precision))(dy, x, w)
    with override_backend("xla"):
        theirs = value_and_gradients(_layer(precision))(dy, x, w)
    x_spec, w_spec, y_spec = case.numbers
    ours, theirs = (
        tuple(map(from_layout, results, (y_spec, x_spec, w_spec))) for results in (ours, theirs)
    )
    check_errors(case, dtype, precision, data, ours, theirs)


# Choosing.


def test_heuristic_and_exhaustive_search(rng: np.random.Generator) -> None:
    x, w, dy = _operands(rng, jnp.bfloat16)
    results = {}
    for search in ("default", "heuristic", "exhaustive"):
        plans.clear()
        jax_convgrad.set_algorithm_search(search)
        results[search] = jax.block_until_ready(value_and_gradients(_layer())(dy, x, w))
        found = plans.list()
        assert len(found) == 3
        assert {plan["chosen_by"] for plan in found} == {search}, found
        assert {plan["problem"].split(":")[0] for plan in found} == {
            "conv_fprop", "conv_dgrad", "conv_wgrad",
        }  # fmt: skip
        for plan in found:
            assert plan["note"] == ""
            assert "cuDNN 9." in plan["problem"]
            engines = [
                (t["microseconds"], t["workspace_bytes"])
                for t in plan["tried"]
                if t["microseconds"]
            ]
            assert (len(engines) > 0) == (search != "heuristic")
            if search == "default":
                assert len(engines) <= 16  # of cuDNN's the best guesses, and all of this project's
            if search != "heuristic":
                chosen = (plan["microseconds"], plan["workspace_bytes"])
                assert chosen in engines
                assert _cost(*chosen) == pytest.approx(min(_cost(*e) for e in engines), rel=1e-9)
                assert {t["failure"] == "" for t in plan["tried"] if t["microseconds"]} == {True}
    for search in ("heuristic", "exhaustive"):
        for got, expected in zip(results[search], results["default"], strict=True):
            assert relative_error(got, np.asarray(expected, np.float64)) < 0.02


def _cost(microseconds: float, workspace_bytes: int) -> float:
    """What a search chooses by: the workspace counts as the bytes that it drives out of the cache."""
    memory = roofline.device_memory()
    assert memory is not None
    return microseconds + 1e6 * min(workspace_bytes, memory.cache) / memory.bandwidth


def test_the_default_search_times_the_engine_that_cudnn_names_last(
    rng: np.random.Generator,
) -> None:
    """The fastest for this weight gradient, last of 43 engines of cuDNN 9.19 on an H100."""
    x = jnp.asarray(rng.standard_normal((8, 64, 64, 512)), jnp.bfloat16)
    dy = jnp.asarray(rng.standard_normal((8, 32, 32, 1024)), jnp.bfloat16)
    engines = {}
    for search in ("exhaustive", "default"):
        jax_convgrad.set_algorithm_search(search)
        plans.clear()
        wgrad = functools.partial(
            jax_convgrad.conv_wgrad,
            w_shape=(1024, 2, 2, 512), strides=2, padding="VALID",
            dimension_numbers=("NHWC", "OHWI", "NHWC"),
        )  # fmt: skip
        jax.block_until_ready(jax.jit(wgrad)(x, dy))
        (plan,) = plans.list()
        names = [t["engine"] for t in plan["tried"] if not t["failure"]]
        engines[search] = [name for name in names if name.startswith("eng")]  # cuDNN's
    if "eng70" not in engines["exhaustive"][13:]:
        pytest.skip("this cuDNN offers no such engine, or among the first")
    assert "eng70" in engines["default"]
    assert len(engines["default"]) == 13


def test_a_timed_search_leaves_donated_inputs_alone(rng: np.random.Generator) -> None:
    jax_convgrad.set_algorithm_search("exhaustive")
    plans.clear()
    x = _operands(rng, jnp.float32)[0]
    same = functools.partial(jax_convgrad.conv_fprop, padding="SAME", dimension_numbers=NHWC)
    square = jnp.asarray(rng.standard_normal((3, 3, 24, 24)), jnp.float32)
    expected = np.asarray(jax.jit(same)(x, square))
    plans.clear()
    got = jax.jit(lambda x, w: same(x, w), donate_argnums=0)(jnp.array(x, copy=True), square)
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-2, atol=1e-2)


def test_saved_choices_spare_the_next_run_its_search(tmp_path: pathlib.Path) -> None:
    script = textwrap.dedent(
        """
        import json, sys
        import jax, jax.numpy as jnp
        import jax_convgrad
        from jax_convgrad import plans
        path, search = sys.argv[1:]
        loaded = plans.load(path) if search == "load" else 0
        jax_convgrad.set_algorithm_search("exhaustive")
        def f(x, w):
            return jax_convgrad.conv_transpose(x, w, (2, 2), "SAME")
        x, w = jnp.ones((4, 16, 16, 32), jnp.bfloat16), jnp.ones((4, 4, 32, 16), jnp.bfloat16)
        jax.block_until_ready(jax.jit(jax.grad(lambda w: f(x, w).sum().astype("float32")))(w))
        jax.block_until_ready(jax.jit(f)(x, w))
        if search != "load":
            plans.save(path)
        print(json.dumps([loaded, {p["problem"]: [p["engine"], p["chosen_by"]] for p in plans.list()}]))
        """
    )
    path = str(tmp_path / "plans.json")
    runs = [json.loads(_python(script, path, what).splitlines()[-1]) for what in ("search", "load")]
    (_, first), (loaded, second) = runs
    assert loaded == len(first) == len(second) >= 2
    assert {by for _, by in first.values()} == {"exhaustive"}
    assert {by for _, by in second.values()} == {"loaded"}
    assert {k: v[0] for k, v in first.items()} == {k: v[0] for k, v in second.items()}


def test_a_loaded_choice_that_does_not_work_is_replaced(rng: np.random.Generator) -> None:
    x, w, _ = _operands(rng, jnp.bfloat16)
    plans.clear()
    expected = jax.block_until_ready(jax.jit(_layer())(x, w))
    (plan,) = plans.list()
    plans.clear()
    registry.cuda_module().load_choices([(plan["problem"], "eng9999_k1=1")])
    got = jax.block_until_ready(jax.jit(_layer())(x, w))
    (again,) = plans.list()
    assert again["chosen_by"] == "default"
    assert "eng9999_k1=1" in again["note"]
    assert relative_error(got, np.asarray(expected, np.float64)) < 0.02
    plans.clear()


def test_a_compiled_program_keeps_its_engines(rng: np.random.Generator) -> None:
    """Whatever engine its problem has later, and wherever its arrays lie.

    Six calls are enough for XLA to capture them into a graph, which it updates when arrays have moved.
    CUDA does not update the size of a kernel's clusters: with another engine in its place a kernel
    stopped at an illegal instruction. Sums of so few small integers are exact in every engine.
    """
    shape = (1, 32, 32, 2048), (1, 16, 16, 2048)
    pairs = [[jnp.asarray(rng.integers(-1, 2, s), jnp.bfloat16) for s in shape] for _ in range(6)]
    wgrad = functools.partial(
        jax_convgrad.conv_wgrad,
        w_shape=(2048, 4, 4, 64), strides=2, padding=((1, 1),) * 2, groups=32,
        dimension_numbers=("NHWC", "OHWI", "NHWC"),
    )  # fmt: skip

    jax_convgrad.set_algorithm_search("exhaustive")
    plans.clear()
    one = jax.jit(wgrad)
    expected = [np.asarray(one(*pair)).tobytes() for pair in pairs]
    (plan,) = plans.list()
    engines = [tried["engine"] for tried in plan["tried"] if not tried["failure"]]
    assert len(engines) > 5

    def take(engine: str) -> Any:
        plans.clear()
        registry.cuda_module().load_choices([(plan["problem"], engine)])
        program = jax.jit(lambda pairs: [wgrad(x, dy) for x, dy in pairs]).lower(pairs).compile()
        for _ in range(3):  # a graph is captured after a program's first runs
            jax.block_until_ready(program(pairs))
        (found,) = plans.list()
        assert found["engine"] == engine
        return program

    programs = [take(engine) for engine in engines]
    for engine, program in zip(engines[1:] + engines[:1], programs, strict=True):
        take(engine)
        moved = jax.tree.map(lambda a: a + 0, pairs)
        out = [program(moved) for _ in range(2)][-1]
        assert [np.asarray(dw).tobytes() for dw in out] == expected
        assert len(plans.list()) == 1, "its plan is of an earlier generation"


def test_plans_that_left_the_cache_come_back_with_their_engines(rng: np.random.Generator) -> None:
    """Two programs of six calls, captured into graphs, and room for the plan of one."""
    jax_convgrad.set_deterministic(True)  # bits are compared
    jax_convgrad.set_algorithm_search("exhaustive")
    plans.clear()
    programs = []
    for size in (24, 32):
        xs = [jnp.asarray(rng.standard_normal((2, size, size, 32)), jnp.bfloat16) for _ in range(6)]
        w = jnp.asarray(rng.standard_normal((3, 3, 32, 64)), jnp.bfloat16)
        layer = _layer()
        run = jax.jit(lambda xs, w, layer=layer: [layer(x, w) for x in xs]).lower(xs, w).compile()
        programs.append((run, xs, w, []))
    module = registry.cuda_module()
    module.set_max_plans(1)
    try:
        for _ in range(5):
            for run, xs, w, seen in programs:
                moved = jax.tree.map(lambda a: a + 0, xs)
                out = np.stack([np.asarray(y) for y in run(moved, w)]).tobytes()
                (plan,) = plans.list()
                seen.append((plan["engine"], plan["chosen_by"], out))
    finally:
        module.set_max_plans(4096)
    for *_, seen in programs:
        assert len(set(seen)) == 1
    assert {plan["chosen_by"] for plan in plans.list()} == {"exhaustive"}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_deterministic_engines_give_the_same_bits(dtype: str, rng: np.random.Generator) -> None:
    jax_convgrad.set_deterministic(True)
    x, w, dy = _operands(rng, dtype)
    run = value_and_gradients(_layer())
    first = [np.asarray(r) for r in run(dy, x, w)]
    assert all("deterministic" in plan["problem"] for plan in plans.list()[:3])
    for _ in range(100):
        for got, expected in zip(run(dy, x, w), first, strict=True):
            assert np.asarray(got).tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_workspace_limit_is_kept_or_the_error_says_what_is_missing(
    dtype: str, rng: np.random.Generator
) -> None:
    x, w, dy = _operands(rng, dtype)
    for limit in (0, 4096, 2**30):
        plans.clear()
        jax_convgrad.set_workspace_limit(limit)
        try:
            jax.block_until_ready(value_and_gradients(_layer())(dy, x, w))
        except jax.errors.JaxRuntimeError as error:
            assert limit < 2**30, error
            assert "RESOURCE_EXHAUSTED" in str(error)
            assert "set_workspace_limit" in str(error) and "bytes" in str(error)
        assert all(plan["workspace_bytes"] <= limit for plan in plans.list())


# Inside programs.


def test_one_program_and_many_are_the_same_with_command_buffers(tmp_path: pathlib.Path) -> None:
    """The calls are inside XLA's command buffers (CUDA graphs) where those are on, with the same bits.

    XLA makes command buffers from its finished program, so they show in no HLO text, only in the
    sequence of thunks that it runs, which --xla_dump_to writes: before and, if anything was changed,
    after the passes over it.
    """
    script = textwrap.dedent(
        """
        import jax, jax.numpy as jnp, hashlib
        import jax_convgrad
        from jax_convgrad._src.dispatch.override import override_backend
        def loss(params, x):
            for w in params[:-1]:
                x = jax.nn.relu(jax_convgrad.conv_fprop(
                    x, w, strides=2, padding="SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
            return (jax_convgrad.conv_transpose(x, params[-1], (2, 2), "SAME") ** 2).mean()
        def training_step(params, x):
            return jax.grad(loss)(params, x)
        keys = jax.random.split(jax.random.key(0), 5)
        params = [0.2 * jax.random.normal(k, (3, 3, 8, 8)) for k in keys[:4]]
        x = jax.random.normal(keys[4], (2, 64, 64, 8))
        jax_convgrad.set_deterministic(True)
        with override_backend("cudnn"):
            step = jax.jit(training_step).lower(params, x).compile()
        results = [step(params, x) for _ in range(20)]
        digests = {
            hashlib.sha256(b"".join(bytes(jax.device_get(g).tobytes()) for g in r)).hexdigest()
            for r in results
        }
        print(step.as_text().count('custom_call_target="jax_convgrad_'), *digests)
        """
    )
    outputs = {}
    for name, flags in {
        "buffers": "--xla_gpu_graph_min_graph_size=1",
        "none": "--xla_gpu_enable_command_buffer=",
    }.items():
        folder = tmp_path / name
        output = _python(script, XLA_FLAGS=f"{flags} --xla_dump_to={folder}")
        count, *digests = output.splitlines()[-1].split()
        assert int(count) >= 8
        assert len(digests) == 1, "the same program gave different bits"
        thunks = _thunks(folder, "training_step")
        assert _custom_calls(thunks) == (
            (int(count), 0) if name == "buffers" else (0, int(count))
        ), thunks
        outputs[name] = digests[0]
    assert outputs["buffers"] == outputs["none"]


def _thunks(folder: pathlib.Path, module: str) -> str:
    """What a program runs, as XLA dumped it."""
    dumps = [*folder.glob(f"*{module}*thunk_sequence_after_thunk_passes*")]
    dumps = dumps or [*folder.glob(f"*{module}*thunk_sequence*.txt")]
    assert len(dumps) == 1, sorted(path.name for path in folder.iterdir())
    return dumps[0].read_text()


def _custom_calls(thunks: str) -> tuple[int, int]:
    """How many custom calls are inside command buffers, and outside.

    Each line is a thunk, "<indent><number>: k<Kind> ...", with those of a command buffer below it.
    """
    calls, buffer = [0, 0], -1  # the indent of the command buffer that a line may belong to
    for line in thunks.splitlines():
        if (thunk := re.match(r"(\s*)\d+: (k\w+)", line)) is None:
            continue
        indent, kind = len(thunk[1]), thunk[2]
        if indent <= buffer:
            buffer = -1
        if kind == "kCommandBuffer":
            buffer = indent
        calls[buffer < 0] += kind == "kCustomCall"
    return calls[0], calls[1]


def test_scan_vmap_and_second_derivatives(rng: np.random.Generator) -> None:
    x, w, _ = _operands(rng, jnp.float64)
    x = x[:2, :10, :8]
    layer = _layer()

    def loss(w: Any) -> Any:
        return lax.scan(lambda c, x: (c + (layer(x[None], w) ** 2).sum(), None), 0.0, x)[0]

    tangent = jnp.asarray(rng.standard_normal(w.shape))
    hvp = jax.jit(lambda w: jax.jvp(jax.grad(loss), (w,), (tangent,))[1])
    ours = hvp(w), jax.jit(jax.vmap(layer, (None, 0)))(x, jnp.stack([w, 2 * w]))
    with override_backend("xla"):
        jax.clear_caches()
        hvp = jax.jit(lambda w: jax.jvp(jax.grad(loss), (w,), (tangent,))[1])
        theirs = hvp(w), jax.jit(jax.vmap(layer, (None, 0)))(x, jnp.stack([w, 2 * w]))
    for got, expected in zip(ours, theirs, strict=True):
        assert relative_error(got, np.asarray(expected)) < 1e-12


def test_threads_get_what_one_thread_gets(rng: np.random.Generator) -> None:
    jax_convgrad.set_deterministic(True)
    x, w, dy = _operands(rng, jnp.bfloat16)
    runs = [(value_and_gradients(_layer()), (dy[:n], x[:n], w)) for n in (1, 2, 3, 4)]
    expected = [[np.asarray(r).tobytes() for r in run(*a)] for run, a in runs]
    plans.clear()  # the threads search anew, all at once

    def work(i: int) -> int:
        wrong = 0
        for k in range(50):
            run, arguments = runs[(i + k) % len(runs)]
            got = [np.asarray(r).tobytes() for r in run(*arguments)]
            wrong += got != expected[(i + k) % len(runs)]
        return wrong

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == 0


def test_memory_does_not_grow(rng: np.random.Generator) -> None:
    x, w, dy = _operands(rng, jnp.bfloat16)
    run = value_and_gradients(_layer())

    def steps(count: int) -> tuple[int, int]:
        for _ in range(count):
            jax.block_until_ready(run(dy, x, w))
        resident = pathlib.Path("/proc/self/statm").read_text().split()[1]
        return jax.devices()[0].memory_stats()["bytes_in_use"], 4096 * int(resident)

    device, host = steps(50)
    device_after, host_after = steps(300)
    assert device_after == device
    assert host_after - host < 8 * 2**20


# Handlers called past Python.


def _call(
    target: str, shape: tuple[int, ...], *operands: Any, size: int = 2**20, **changes: Any
) -> Any:
    attributes: dict[str, Any] = {
        name: np.asarray(value, np.int64)
        for name, value in {
            "strides": (1, 1), "padding_low": (0, 0), "padding_high": (0, 0), "dilation": (1, 1),
            "x_spec": (0, 3, 1, 2), "w_spec": (3, 2, 0, 1), "y_spec": (0, 3, 1, 2),
        }.items()
    }  # fmt: skip
    attributes |= {"groups": np.int64(1), "weights": "OXI", "allow_tf32": np.bool_(True)}
    attributes |= settings.current().attributes | changes
    results = [
        jax.ShapeDtypeStruct(shape, operands[0].dtype), jax.ShapeDtypeStruct((size,), jnp.uint8)
    ]  # fmt: skip
    registry.require("cuda")
    call = jax.ffi.ffi_call(f"jax_convgrad_{target}", results)
    return jax.block_until_ready(jax.jit(lambda *a: call(*a, **attributes))(*operands))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"strides": np.asarray((0, 1), np.int64)}, "strides"),
        ({"strides": np.asarray((1,), np.int64)}, "strides"),
        ({"padding_low": np.asarray((-1, 0), np.int64)}, "padding_low"),
        ({"dilation": np.asarray((1, 0), np.int64)}, "dilation"),
        ({"groups": np.int64(0)}, "groups"),
        ({"groups": np.int64(3)}, "groups"),
        ({"x_spec": np.asarray((0, 0, 1, 2), np.int64)}, "x_spec"),
        ({"w_spec": np.asarray((3, 2, 0), np.int64)}, "w_spec"),
        ({"padding_high": np.asarray((2**62, 2**62), np.int64)}, "y has shape|overflow"),
        ({"allow_tf32": np.int64(1)}, "allow_tf32|attribute|scalar"),
        ({"search": "fast"}, "default, heuristic or exhaustive"),
        ({"weights": "HWIO"}, "expected OXI or XIO"),
        ({"weights": np.int64(1)}, "weights|attribute|string"),
        ({"generation": np.bool_(True)}, "generation|attribute|scalar"),
    ],
)
def test_bad_attributes_are_errors(changes: dict[str, Any], text: str) -> None:
    x, w = jnp.ones((2, 5, 5, 4)), jnp.ones((3, 3, 4, 6))
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        _call("conv_fprop", (2, 3, 3, 6), x, w, **changes)


def test_bad_shapes_and_dtypes_are_errors() -> None:
    x, w = jnp.ones((2, 5, 5, 4)), jnp.ones((3, 3, 4, 6))
    for shape, operands, text in (
        ((2, 4, 3, 6), (x, w), "y has shape"),
        ((2, 3, 3, 5), (x, w), "output channels"),
        ((2, 3, 3, 6), (x, w.astype(jnp.bfloat16)), "dtype"),
        ((2, 3, 3, 6), (x.astype(jnp.int32), w.astype(jnp.int32)), "dtype"),
        ((2, 3, 3, 6), (x[..., :3], w), "input channels"),
        ((2, 3, 6), (x, w), "axes"),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError, match=f"conv_fprop: .*{text}"):
            _call("conv_fprop", shape, *operands)


def test_empty_arrays_give_zeros() -> None:
    dx, _ = _call("conv_dgrad", (2, 5, 5, 4), jnp.ones((2, 3, 3, 0)), jnp.ones((3, 3, 4, 0)))
    assert not np.asarray(dx).any()
    y, _ = _call("conv_fprop", (0, 3, 3, 6), jnp.ones((0, 5, 5, 4)), jnp.ones((3, 3, 4, 6)))
    assert y.shape == (0, 3, 3, 6)


def test_no_workspace_at_all() -> None:
    x, w = jnp.ones((2, 5, 5, 4), jnp.bfloat16), jnp.ones((6, 3, 3, 4), jnp.bfloat16)
    numbers = {"w_spec": np.asarray((0, 3, 1, 2), np.int64)}
    y, _ = _call("conv_fprop", (2, 3, 3, 6), x, w, size=0, **numbers)
    assert (np.asarray(y, np.float64) == 36).all()


def _python(script: str, *arguments: str, **environment: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | environment,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
    return run.stdout


def test_devices_are_those_of_jax() -> None:
    module = registry.cuda_module()
    assert module is not None and module.min_capability >= (8, 0)
    text = [f"{major}.{minor}" for major, minor in module.capabilities()]
    assert text == [device.compute_capability for device in jax.local_devices()]

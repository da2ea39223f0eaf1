"""Windows side by side: the matrix product is the same convolution, exactly, under every transformation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from support.comparisons import FLOATS, assert_exact, exact_ints, value_and_gradients
from support.conv_cases import Case, ids
from support.conv_oracle import conv_oracle
from support.layouts import NDHWC, NHWC, NWC, to_layout
from support.meshes import DEVICES, collectives, make_mesh, put

from jax_convgrad import conv_dgrad, conv_fprop, conv_general_dilated, conv_wgrad
from jax_convgrad._src.conv import arguments
from jax_convgrad._src.conv.geometry import ConvConfig, ConvGeometry
from jax_convgrad._src.dispatch.decide import Decision, decide
from jax_convgrad._src.dispatch.devices import Target
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.dispatch.problem import ConvOperator, ConvProblem

PRODUCTS = {"stablehlo.dot_general"}
OPERATORS: tuple[ConvOperator, ...] = ("conv_fprop", "conv_dgrad", "conv_wgrad")
SCRAMBLED = lax.ConvDimensionNumbers((2, 0, 3, 1), (1, 3, 0, 2), (3, 1, 0, 2))

CASES = [
    Case("1d", (2, 3, 12), (4, 3, 4), (4,)),
    Case("1d-one-channel", (3, 1, 10), (4, 1, 5), (5,), layout=NWC),
    Case("2d", (2, 3, 8, 6), (5, 3, 4, 2), (4, 2)),
    Case("2d-last", (2, 3, 8, 6), (5, 3, 4, 2), (4, 2), layout=NHWC),
    Case("2d-same", (2, 3, 6, 6), (4, 3, 2, 3), (2, 3), "SAME", layout=NHWC),
    Case("2d-one-axis", (2, 4, 6, 5), (3, 4, 2, 1), (2, 1), layout=NHWC),
    Case("2d-dilated-where-that-is-nothing", (2, 4, 6, 5), (3, 4, 2, 1), (2, 1), dilation=(1, 3)),
    Case("2d-whole-image", (3, 2, 4, 3), (6, 2, 4, 3), (4, 3)),
    Case("2d-orders", (2, 3, 6, 8), (4, 3, 3, 2), (3, 2), layout=SCRAMBLED),
    Case("3d", (2, 2, 4, 6, 2), (3, 2, 2, 3, 1), (2, 3, 1)),
    Case("3d-last", (2, 2, 2, 4, 6), (3, 2, 2, 2, 2), (2, 2, 2), layout=NDHWC),
]  # fmt: skip

OTHERS = [
    Case("rest", (2, 3, 9, 8), (4, 3, 2, 2), (2, 2)),
    Case("padded", (2, 3, 6, 8), (4, 3, 2, 2), (2, 2), ((1, 1), (0, 0))),
    Case("cropped", (2, 3, 10, 8), (4, 3, 2, 2), (2, 2), ((-1, -1), (0, 0))),
    Case("overlap", (2, 3, 9, 9), (4, 3, 3, 3), (2, 2)),
    Case("gaps", (2, 3, 9, 9), (4, 3, 2, 2), (3, 3)),
    Case("dilated", (2, 3, 6, 6), (4, 3, 2, 2), (2, 2), dilation=(2, 1)),
    Case("one-tap", (2, 3, 6, 6), (4, 3, 1, 1), (1, 1)),
    Case("groups", (2, 4, 6, 6), (4, 2, 2, 2), (2, 2), groups=2),
]


def geometry(case: Case) -> ConvGeometry:
    config = arguments.make_config(
        "test", case.logical("x"), case.logical("w"), strides=case.strides, padding=case.pairs,
        dilation=case.dilation, groups=case.groups, dimension_numbers=case.numbers,
    )  # fmt: skip
    return ConvGeometry.make("test", config, case.logical("x"), case.logical("w"))


def decided(operator: ConvOperator, case: Case, dtype: str = "float32") -> Decision:
    return decide(ConvProblem.make(operator, geometry(case), dtype), Target.of("cpu"))


@pytest.fixture
def forced() -> Iterator[None]:
    with override_backend("gemm"):
        yield


def kinds(lowered: str) -> set[str]:
    """Who computes in a lowered program: matrix products, convolutions, this package's handlers."""
    found = ("stablehlo.dot_general", "stablehlo.convolution", "@jax_convgrad_conv")
    return {kind for kind in found if kind in lowered}


@pytest.mark.parametrize("case", CASES + OTHERS, ids=ids)
def test_which_windows_lie_side_by_side(case: Case) -> None:
    assert geometry(case).has_nonoverlapping_windows == (case in CASES)


def test_windows_on_images_of_unknown_size_are_not_known_to() -> None:
    rows, batch = jax.export.symbolic_shape("2*r, n")
    numbers = lax.conv_dimension_numbers((1,) * 4, (1,) * 4, ("NHWC", "HWIO", "NHWC"))
    config = ConvConfig((2, 2), ((0, 0), (0, 0)), (1, 1), 1, numbers)
    for x, known in (((1, rows, 8, 3), False), ((batch, 8, 8, 3), True)):
        made = ConvGeometry.make("test", config, x, (2, 2, 3, 4))
        assert made.has_nonoverlapping_windows == known


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", CASES, ids=ids)
def test_operators_are_exact(case: Case, dtype: str, rng: np.random.Generator) -> None:
    data = case.data(rng, dtype)
    expected = conv_oracle(case, *data)
    x, w, dy = (
        jnp.asarray(to_layout(a, s), dtype) for a, s in zip(data, case.numbers, strict=True)
    )
    keywords = case.operator_keywords

    def run(x: Any, w: Any, dy: Any) -> Any:
        return (
            conv_fprop(x, w, **keywords),
            conv_dgrad(dy, w, case.logical("x"), **keywords),
            conv_wgrad(x, dy, case.logical("w"), **keywords),
        )

    assert kinds(jax.jit(run).lower(x, w, dy).as_text()) == PRODUCTS
    specs = (case.numbers[i] for i in (2, 0, 1))
    results = zip(("y", "dx", "dw"), jax.jit(run)(x, w, dy), expected, specs, strict=True)
    for name, got, wanted, spec in results:
        assert_exact(got, to_layout(wanted, spec), dtype, name)


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("case", OTHERS, ids=ids)
def test_other_problems_go_where_they_go_unforced(case: Case) -> None:
    for operator in OPERATORS:
        overridden = decided(operator, case)
        with override_backend(None):
            assert overridden == decided(operator, case)


@pytest.mark.usefixtures("needs_cpu_handlers")
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_cpus_measured_backends(dtype: str) -> None:
    def of(channels: int, window: int, out_channels: int = 512) -> list[str]:
        w = (out_channels, channels, window, window)
        case = Case("t", (2, channels, 32, 32), w, (window,) * 2)
        with override_backend(None):
            return [decided(operator, case, dtype).backend for operator in OPERATORS]

    if dtype == "float64":
        assert of(3, 16) == of(4, 4) == of(64, 2) == ["gemm"] * 3
    elif dtype == "float16":
        assert of(3, 16) == ["onednn", "gemm", "onednn"]
        assert of(4, 4) == ["onednn", "xla_rewritten", "onednn"]
        assert of(64, 8) == ["onednn"] * 3
    else:
        product, handler = ["onednn", "gemm", "onednn"], ["onednn"] * 3
        assert of(3, 16) == of(4, 8) == product
        assert of(8, 16) == handler
        # In float32 XLA:CPU, or this project's thin kernels, are faster for small windows.
        single = dtype == "float32"
        assert of(3, 4) == (["onednn", "xla_rewritten", "onednn"] if single else product)
        assert of(3, 8, out_channels=64) == (handler if single else product)


X, W = (8, 8, 12, 3), (4, 3, 3, 16)
NUMBERS = ("NHWC", "HWIO", "NHWC")


def layer(x: Any, w: Any, module: Any = None) -> Any:
    call = lax.conv_general_dilated if module is lax else conv_general_dilated
    return call(x, w, (4, 3), "VALID", dimension_numbers=NUMBERS)


def operands(rng: np.random.Generator, *examples: int) -> tuple[Any, Any, Any]:
    y = (*X[:1], 2, 4, 16)
    return tuple(
        exact_ints(rng, (*examples, *shape), "float32", 2**10).astype("float32")
        for shape in (X, W, y)
    )


def test_a_penalty_on_the_gradient(forced: None, rng: np.random.Generator) -> None:
    """Reverse over reverse, with no convolution and no call anywhere."""
    x, w, dy = operands(rng)

    def penalty(module: Any) -> Any:
        def of(x: Any, w: Any) -> Any:
            y, pullback = jax.vjp(lambda x: layer(x, w, module), x)
            (dx,) = pullback(dy * y)
            return (dx * dx).sum()

        return jax.jit(jax.grad(of, (0, 1)))

    assert kinds(penalty(None).lower(x, w).as_text()) == PRODUCTS
    with jax.enable_x64(True):
        wide = tuple(a.astype("float64") for a in (x, w))
        expected = penalty(lax)(*wide)
        got = penalty(None)(*wide)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_batched(axes: Any, forced: None, rng: np.random.Generator) -> None:
    x, w, dy = operands(rng, 3)
    given = [a if axis == 0 else a[0] for a, axis in zip((x, w), axes, strict=True)]
    run = jax.vmap(value_and_gradients(layer), (0, *axes))
    got = run(dy, *given)
    for i in range(3):
        one = [a[i] if axis == 0 else a for a, axis in zip(given, axes, strict=True)]
        reference = value_and_gradients(lambda x, w: layer(x, w, lax))(dy[i], *one)
        for a, b in zip(got, reference, strict=True):
            np.testing.assert_array_equal(a[i], b)


def test_a_symbolic_batch(forced: None, rng: np.random.Generator) -> None:
    x, w, dy = operands(rng)
    (n,) = jax.export.symbolic_shape("n")
    shapes_ = ((n, *dy.shape[1:]), (n, *X[1:]), W)
    structs = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes_]
    exported = jax.export.export(jax.jit(value_and_gradients(layer)))(*structs)
    assert kinds(exported.mlir_module()) == PRODUCTS
    got = exported.call(dy, x, w)
    for a, b in zip(got, value_and_gradients(lambda x, w: layer(x, w, lax))(dy, x, w), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.devices(2)
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_a_split_batch(axis_type: AxisType, forced: None, rng: np.random.Generator) -> None:
    """Images and their gradients stay where they are; the weights' gradient is one sum."""
    assert X[0] % DEVICES == 0
    x, w, dy = operands(rng)
    mesh = make_mesh(axis_type)
    arrays = put(dy, mesh, "data"), put(x, mesh, "data"), put(w, mesh)
    run = jax.jit(value_and_gradients(layer))
    with jax.set_mesh(mesh):
        text = run.lower(*arrays).compile().as_text()
        got = run(*arrays)
    assert collectives(text) == {"all-reduce": 1}, collectives(text)
    assert " convolution(" not in text and "jax_convgrad_conv" not in text
    expected = value_and_gradients(lambda x, w: layer(x, w, lax))(dy, x, w)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_precision_and_a_wider_result(forced: None, rng: np.random.Generator) -> None:
    x, w, _ = operands(rng)
    x, w = (jnp.asarray(a, "bfloat16") for a in (x, w))

    def run(x: Any, w: Any) -> Any:
        return conv_general_dilated(
            x, w, (4, 3), "VALID", dimension_numbers=NUMBERS,
            precision="highest", preferred_element_type="float32",
        )  # fmt: skip

    text = jax.jit(run).lower(x, w).as_text()
    assert "HIGHEST" in text and "dot_general" in text
    assert run(x, w).dtype == "float32"
    expected = layer(*(a.astype("float32") for a in (x, w)), lax)
    np.testing.assert_array_equal(run(x, w), expected)


ALGORITHMS = ("BF16_BF16_F32", "TF32_TF32_F32", "F16_F16_F32", "F32_F32_F32")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("precision", [*ALGORITHMS, "highest", ("highest", "default"), None])
def test_precisions_mean_what_they_mean_to_convolutions(
    precision: Any, dtype: str, forced: None, rng: np.random.Generator
) -> None:
    """Convolutions take an algorithm of matrix products for the default; a product would obey it."""
    arrays = operands(rng)

    def run(**keywords: Any) -> Any:
        # Not small integers: whatever rounds them shows.
        dy, x, w = (jnp.asarray(a / 7, dtype) for a in (arrays[2], *arrays[:2]))
        f = value_and_gradients(
            lambda x, w: conv_general_dilated(
                x, w, (4, 3), "VALID", dimension_numbers=NUMBERS, **keywords
            )
        )
        return jax.jit(f)(dy, x, w)

    with jax.enable_x64(dtype == "float64"):
        plain = run(precision="default")
        ways = [run(precision=precision)]
        if precision in ALGORITHMS:
            with jax.default_matmul_precision(precision):
                ways.append(run())
        for way in ways:
            for got, expected in zip(way, plain, strict=True):
                if precision in (*ALGORITHMS, None):
                    np.testing.assert_array_equal(got, expected)
                else:
                    tolerance = {"float64": 1e-12}.get(dtype, 1e-2)
                    wide = (np.asarray(a).astype("float64") for a in (got, expected))
                    np.testing.assert_allclose(*wide, tolerance, tolerance)


@pytest.mark.devices(8)
def test_split_rows_without_shardy(rng: np.random.Generator) -> None:
    """By the measured rules: the older partitioner cannot cut 32 split rows into 2 patches of 16."""
    mesh = make_mesh(AxisType.Auto)
    dtype = "float16" if jax.default_backend() == "cpu" else "bfloat16"
    x = rng.integers(-3, 4, (2, 32, 32, 3)).astype(dtype)
    w = rng.integers(-1, 2, (16, 16, 3, 8)).astype(dtype)

    def f(x: Any, w: Any) -> Any:
        return conv_general_dilated(x, w, (16, 16), "VALID", dimension_numbers=NUMBERS)

    dy = rng.integers(-1, 2, (2, 2, 2, 8)).astype(dtype)
    run = value_and_gradients(f)
    expected = run(dy, x, w)
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        got = jax.jit(run)(dy, put(x, mesh, None, "data"), put(w, mesh))
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)

"""JAX's settings, as a program may change them around a call: what is done is what JAX's own functions do.

The default precision of matrix products, 64-bit arithmetic in a part of a program, strict promotion of dtypes
and of ranks.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.layer_cases import LAYERS, OPERATORS, Layer, assert_same, equations, per_layer, squares

import jax_convgrad
from jax_convgrad import conv_fprop, conv_general_dilated, conv_transpose, onnx, resize
from jax_convgrad._src.conv import primitives
from jax_convgrad._src.conv.precision import allows_tf32
from jax_convgrad._src.dispatch.override import override_backend

CONVOLUTIONS = [name for name, layer in LAYERS.items() if layer.params]
per_convolution = pytest.mark.parametrize("name", CONVOLUTIONS)


# The default precision.


def precisions(f: Callable[..., Any], *arguments: Any) -> set[Any]:
    """Those of all convolutions in the traced program of ``f``, whoever's."""
    names = {*OPERATORS, "conv_general_dilated"} - {"resample"}
    found = [e for e in equations(f, *arguments) if e.primitive.name in names]
    assert found, "there is no convolution in it"
    ours = [e.params["problem"].precision for e in found if "problem" in e.params]
    return {*ours, *(e.params["precision"] for e in found if "problem" not in e.params)}


@per_convolution
def test_the_default_precision_is_that_of_the_call(name: str, rng: np.random.Generator):
    layer = LAYERS[name]
    x, params = layer.ints(rng)
    highest = (lax.Precision.HIGHEST,) * 2

    def inside(f: Callable[..., Any], x: Any, params: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return f(x, params)

    def default_inside(f: Callable[..., Any], x: Any, params: Any) -> Any:
        with jax.default_matmul_precision("default"):
            return f(x, params)

    for f in (layer.ours, layer.theirs):
        assert precisions(functools.partial(inside, f), x, params) == {highest}
        with jax.default_matmul_precision("highest"):
            y, pullback = jax.vjp(f, x, params)
            found = precisions(functools.partial(default_inside, f), x, params)
            assert found == {(lax.Precision.DEFAULT,) * 2}
        assert precisions(pullback, y) == {highest}
        y, pullback = jax.vjp(f, x, params)
        assert precisions(pullback, y) == {None}
        with jax.default_matmul_precision("highest"):
            assert precisions(pullback, y) == {highest}


@per_convolution
def test_mapping_a_traced_program_asks_for_the_default_precision(
    name: str, rng: np.random.Generator
):
    layer = LAYERS[name]
    x, params = layer.ints(rng)
    leaves, tree = jax.tree.flatten(params)
    stacked = [jnp.stack([array, array]) for array in (x, *leaves)]
    for f in (layer.ours, layer.theirs):
        flat = lambda x, *leaves, f=f: f(x, jax.tree.unflatten(tree, leaves))  # noqa: E731
        traced = jax.extend.core.jaxpr_as_fun(jax.make_jaxpr(flat)(x, *leaves))
        mapped = jax.vmap(traced)
        assert precisions(mapped, *stacked) == {None}
        with jax.default_matmul_precision("highest"):
            assert precisions(mapped, *stacked) == {(lax.Precision.HIGHEST,) * 2}


@per_convolution
def test_the_default_precision_is_not_asked_for_again(
    name: str, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
):
    """What has been traced is lowered as it is, whatever the default is by then."""
    layer = LAYERS[name]
    x, params = layer.ints(rng)
    x, params = jax.tree.map(lambda array: array.astype(np.float32), (x, params))
    asked: list[bool] = []
    decide = primitives.decide

    def spy(problem: Any, target: Any) -> Any:
        asked.append(allows_tf32(problem.precision))
        return decide(problem, target)

    monkeypatch.setattr(primitives, "decide", spy)
    gradients = jax.grad(squares(layer.ours), (0, 1))
    for traced_under, lowered_under in ((None, "highest"), ("highest", None)):
        with jax.default_matmul_precision(traced_under):
            traced = jax.jit(gradients).trace(params, x)
        with jax.default_matmul_precision(lowered_under):
            text = traced.lower(lowering_platforms=("tpu",)).as_text()
        assert ("HIGHEST" in text) == (traced_under == "highest")
        assert asked and set(asked) == {traced_under is None}
        asked.clear()
        jax.clear_caches()


def test_nor_by_what_install_puts_in_place_of_lax_s(
    uninstalled: None, without_x64: None, rng: np.random.Generator
):
    x, w = jnp.ones((1, 8, 8, 6)), jnp.ones((4, 4, 6, 3))

    def gradient(w: Any) -> Any:
        return jax.grad(lambda w: jnp.sum(lax.conv_transpose(x, w, (2, 2), "SAME") ** 2))(w)

    for platforms in ((), ("cpu", "cuda")):
        if platforms:
            jax_convgrad.install(platforms)
        for traced_under, lowered_under in ((None, "highest"), ("highest", None)):
            jax.clear_caches()
            with jax.default_matmul_precision(traced_under):
                traced = jax.jit(gradient).trace(w)
            with jax.default_matmul_precision(lowered_under), override_backend("xla_rewritten"):
                text = traced.lower(lowering_platforms=("cuda",)).as_text()
            assert ("HIGHEST" in text) == (traced_under == "highest")


@pytest.mark.parametrize("precision", ["bogus", 5, ("highest",), ("highest", None)])
def test_what_is_no_precision_is_refused_in_lax_s_words(precision: Any):
    x, w = jnp.ones((1, 2, 5, 5)), jnp.ones((3, 2, 2, 2))
    calls = (
        lambda: conv_general_dilated(x, w, (1, 1), "SAME", precision=precision),
        lambda: conv_transpose(x, jnp.ones((2, 2, 5, 3)), (2, 2), "SAME", precision=precision),
        lambda: conv_fprop(x, w, precision=precision),
        lambda: resize(x, (1, 2, 7, 7), "linear", precision=precision),
    )
    for call in calls:
        with pytest.raises(ValueError, match="Precision argument must be one of"):
            call()


def test_a_list_of_precisions(rng: np.random.Generator):
    x, w = jnp.ones((1, 2, 5, 5)), jnp.ones((3, 2, 2, 2))
    for precision in (["highest", "highest"], [lax.Precision.HIGHEST] * 2):
        f = functools.partial(conv_general_dilated, x, w, (1, 1), "SAME", precision=precision)
        assert precisions(f) == {(lax.Precision.HIGHEST,) * 2}


# 64 bits in a part of a program.


def double(function: Callable[..., Any], *arguments: Any) -> Any:
    """``function`` of its arguments in float64, where JAX has 32 bits otherwise."""
    with jax.enable_x64(True):
        return function(*jax.tree.map(lambda array: array.astype(jnp.float64), arguments))


@pytest.mark.parametrize("way", ["layer", "install"])
@pytest.mark.parametrize("jitted", [True, False])
@per_layer
def test_float64_in_a_part_of_a_program(
    name: str,
    jitted: bool,
    way: str,
    uninstalled: None,
    without_x64: None,
    rng: np.random.Generator,
):
    layer = LAYERS[name]
    x, params = layer.ints(rng)
    f = layer.ours if way == "layer" else layer.theirs
    run = functools.partial(double, jax.value_and_grad(squares(f), (0, 1) if params else 1))
    expected = double(jax.value_and_grad(squares(layer.theirs), (0, 1) if params else 1), params, x)
    if way == "install":
        jax_convgrad.install()
    got = (jax.jit(run) if jitted else run)(params, x)
    assert {leaf.dtype for leaf in jax.tree.leaves(got)} == {np.dtype(np.float64)}
    assert_same(got, expected)


@pytest.mark.parametrize("way", ["layer", "install"])
@per_layer
def test_float64_arrays_that_outlive_their_setting(
    name: str, way: str, uninstalled: None, without_x64: None, rng: np.random.Generator
):
    """They convolve, and a gradient that was begun under the setting ends without it."""
    layer = LAYERS[name]
    x, params = layer.ints(rng)
    f = layer.ours if way == "layer" else layer.theirs
    with jax.enable_x64(True):
        x, params = jax.tree.map(lambda array: array.astype(jnp.float64), (x, params))
        # XLA may have no float64 matrix product on a GPU where it may not tune them.
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            expected, theirs = jax.vjp(layer.theirs, *jax.device_get((x, params)))
            expected, wanted = jax.device_get((expected, theirs(expected)))
    if way == "install":
        jax_convgrad.install()
    with jax.enable_x64(True):
        y, pullback = jax.vjp(f, x, params)
    gradients = pullback(y)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradients)} == {np.dtype(np.float64)}
    assert_same(gradients, wanted)
    assert_same(f(x, params), expected)


def test_nothing_of_the_adapters_is_float32_either(without_x64: None, rng: np.random.Generator):
    """The gradient of a bias, and what an extrapolating resize leaves as it is."""
    with jax.enable_x64(True):
        x, w, dy = (
            jnp.asarray(rng.standard_normal(shape)) for shape in ((2, 3, 6), (4, 3, 3), (2, 4, 4))
        )
        expected = onnx.conv_grad(dy, x, w)
    crop = functools.partial(
        onnx.resize,
        roi=[-0.5, 1.5],
        sizes=[9],
        axes=[2],
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for run in (lambda f: f, jax.jit):
            for got, wide in zip(run(onnx.conv_grad)(dy, x, w), expected, strict=True):
                assert got.dtype == np.float64
                np.testing.assert_allclose(got, wide, rtol=1e-14)
            plain, filled = (run(functools.partial(crop, extrapolation_value=v))(x) for v in (0, 5))
            assert filled.dtype == np.float64
            inside = np.asarray(filled) != 5
            assert 0 < inside.sum() < inside.size
            np.testing.assert_array_equal(filled, np.where(inside, plain, 5))


@pytest.mark.parametrize("wide", [np.float64, "float64"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@per_convolution
def test_a_wider_result_than_jax_has(name: str, dtype: str, wide: Any, without_x64: None):
    """float64 is taken for float32, and JAX warns, as for its own functions; `float` is what JAX has."""
    call = {
        "convolution": functools.partial(
            conv_general_dilated, jnp.ones((1, 2, 5, 5), dtype), jnp.ones((3, 2, 2, 2), dtype)
        ),
        "conv_transpose": functools.partial(
            conv_transpose, jnp.ones((1, 5, 5, 2), dtype), jnp.ones((2, 2, 2, 3), dtype)
        ),
    }[name]
    with pytest.warns(UserWarning, match="float64.*will be truncated to dtype float32"):
        assert call((1, 1), "SAME", preferred_element_type=wide).dtype == np.float32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert call((1, 1), "SAME", preferred_element_type=float).dtype == np.float32


# Strict promotion.


def passes(layer: Layer, dtype: Any) -> Callable[..., Any]:
    """Value, gradients and second derivatives, all in ``dtype``."""

    def loss(params: Any, x: Any) -> Any:
        return jnp.sum(lax.square(layer.ours(x, params)))

    def run(params: Any, x: Any) -> Any:
        params, x = jax.tree.map(lambda array: array.astype(dtype), (params, x))
        arguments = (0, 1) if params else 1
        first = jax.value_and_grad(loss, arguments)
        return jax.jvp(first, (params, x), (params, x))

    return run


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@per_layer
def test_strict_promotion_of_dtypes_and_ranks(name: str, dtype: str, rng: np.random.Generator):
    """On this platform and on one without handlers. A bias is JAX's to spread, in this package's words."""
    x, params = LAYERS[name].ints(rng)
    run = passes(LAYERS[name], dtype)
    expected = jax.jit(run)(params, x)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        assert_same(jax.jit(run)(params, x), expected)
        jax.jit(run).trace(params, x).lower(lowering_platforms=("tpu",))
        jax.jit(run).trace(params, x).lower(lowering_platforms=("cuda",))


@pytest.mark.parametrize("method", ["linear", "nearest", "area"])
@pytest.mark.parametrize("form", [None, "xla"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int32"])
def test_resizes_under_strict_promotion(
    method: str, dtype: str, form: str | None, rng: np.random.Generator
):
    """Of more axes than one call takes, by handlers and without, and with scales known when it runs."""
    image = jnp.asarray(rng.integers(-4, 5, (2, 4, 5, 6, 3)), dtype)
    scale = jnp.asarray([2.0, 0.5], jnp.float32)

    def run(image: Any, scale: Any) -> Any:
        four = resize(image, (3, 6, 10, 4, 3), method)
        if method == "nearest":
            return four
        return four, jax_convgrad.scale_and_translate(
            image, (2, 4, 10, 3, 3), (2, 3), scale, scale, method
        )

    with override_backend(form):
        expected = jax.jit(run)(image, scale)
        with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
            got = jax.jit(run)(image, scale)
            jax.jit(run).trace(image, scale).lower(lowering_platforms=("tpu",))
            jax.jit(run).trace(image, scale).lower(lowering_platforms=("cuda",))
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_the_narrower_of_two_16_bit_dtypes_is_neither():
    """A cotangent in bfloat16 of float16 operands, and the other way round, meet them in float32."""
    for dtype, result, value in (
        ("bfloat16", "float16", 1e6),
        ("float16", "bfloat16", 1 + 2**-10),
    ):
        x, w = jnp.ones((1, 1, 4, 4), dtype), jnp.full((1, 1, 1, 1), value, dtype)
        layer = functools.partial(conv_general_dilated, window_strides=(1, 1), padding="VALID")
        f = lambda x: layer(x, w, preferred_element_type=result).astype("float32").sum()  # noqa: E731, B023
        assert (jax.grad(f)(x) == w[0, 0, 0, 0]).all()


@per_convolution
def test_wider_results_under_strict_promotion(name: str, rng: np.random.Generator):
    """Their gradients meet operands that are narrower."""
    x, (w, _) = LAYERS[name].ints(rng)
    x, w = x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)
    numbers = ("NHWC", "HWIO", "NHWC")

    def loss(x: Any, w: Any) -> Any:
        wide = {"preferred_element_type": jnp.float32}
        if name == "conv_transpose":
            return jnp.sum(lax.square(conv_transpose(x, w, (2, 2), "SAME", **wide)))
        y = conv_general_dilated(
            x, w, (1, 1), "SAME", None, None, numbers, feature_group_count=2, **wide
        )
        return jnp.sum(lax.square(y))

    expected = jax.grad(loss, (0, 1))(x, w)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        assert_same(jax.grad(loss, (0, 1))(x, w), expected)

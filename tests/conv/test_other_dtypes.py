"""Arrays of integers, booleans, complex numbers or 8-bit floats: the layers do what lax's functions do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_convgrad
from jax_convgrad import conv_general_dilated, conv_transpose

# XLA has no such convolutions on GPUs.
pytestmark = pytest.mark.on_cpu

DTYPES = ("bool", "int8", "uint8", "int32", "complex64", "float8_e4m3fn")
NHWC = ("NHWC", "HWIO", "NHWC")

CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "plain": {"window_strides": (1, 2), "padding": "SAME"},
    "groups": {"window_strides": (2, 1), "padding": ((1, -1), (0, 2)), "feature_group_count": 2},
    "dilated": {
        "window_strides": (2, 1),
        "padding": ((1, 2), (0, 2)),
        "lhs_dilation": (3, 2),
        "rhs_dilation": (1, 2),
        "feature_group_count": 2,
    },
}
TRANSPOSED: dict[str, dict[str, Any]] = {
    "plain": {"strides": (2, 3), "padding": "SAME"},
    "kernel": {"strides": (2, 1), "padding": "VALID", "transpose_kernel": True},
    "pairs": {
        "strides": (1, 2),
        "padding": ((1, 0), (2, 3)),
        "rhs_dilation": (2, 1),
        "use_consistent_padding": True,
    },
}


def draw(rng: np.random.Generator, dtype: str, *shape: int) -> jax.Array:
    """Numbers whose sums here fit 8 bits."""
    array = rng.integers(0, 2, shape)
    if dtype == "complex64":
        array = array - 1j * rng.integers(0, 2, shape)
    return jnp.asarray(array).astype(dtype)


def assert_same(got: Any, expected: Any) -> None:
    assert got.dtype == expected.dtype and got.shape == expected.shape
    np.testing.assert_array_equal(*(np.asarray(a.astype(np.complex64)) for a in (got, expected)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", list(CONVOLUTIONS))
def test_conv_general_dilated_matches_lax(name: str, dtype: str, rng: np.random.Generator):
    keywords = CONVOLUTIONS[name]
    groups = keywords.get("feature_group_count", 1)
    x, w = draw(rng, dtype, 2, 4, 5, 6), draw(rng, dtype, 4, 4 // groups, 3, 2)
    expected = lax.conv_general_dilated(x, w, **keywords)
    assert_same(conv_general_dilated(x, w, **keywords), expected)
    bias = draw(rng, dtype, 4)
    got = jax.jit(functools.partial(conv_general_dilated, **keywords))(x, w, bias=bias)
    assert_same(got, expected + bias.reshape(4, 1, 1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", list(TRANSPOSED))
def test_conv_transpose_matches_lax(name: str, dtype: str, rng: np.random.Generator):
    keywords = TRANSPOSED[name]
    x, w, bias = (draw(rng, dtype, *s) for s in ((2, 4, 3, 5), (3, 2, 5, 5), (5,)))
    expected = lax.conv_transpose(x, w, **keywords)
    assert_same(conv_transpose(x, w, **keywords), expected)
    assert_same(conv_transpose(x, w, **keywords, bias=bias), expected + bias)


def test_conv_transpose_has_its_other_arguments_with_integers(rng: np.random.Generator):
    """Which lax lacks: the same in float64 is exact."""
    x, w = draw(rng, "int32", 2, 4, 3, 6), draw(rng, "int32", 3, 3, 3, 4)
    extra: dict[str, Any] = {"feature_group_count": 2, "strides": (2, 3), "padding": "SAME"}
    for more in ({"output_padding": (0, 1)}, {"output_shape": (8, 10)}):
        got = conv_transpose(x, w, **extra, **more)
        with jax.enable_x64(True):
            expected = conv_transpose(x.astype(np.float64), w.astype(np.float64), **extra, **more)
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, expected)


def test_wider_results_of_integers(rng: np.random.Generator):
    x, w = draw(rng, "int8", 1, 5, 5, 64) * 11, draw(rng, "int8", 3, 3, 64, 4) * 11
    for layer, theirs in (
        (conv_general_dilated, lax.conv_general_dilated),
        (conv_transpose, lax.conv_transpose),
    ):
        rest = ((1, 1), "SAME")
        keywords = {"dimension_numbers": NHWC, "preferred_element_type": np.int32}
        got = layer(x, w, *rest, **keywords)
        assert got.max() > 127
        assert_same(got, theirs(x, w, *rest, **keywords))


@pytest.mark.parametrize("layer", ["conv_general_dilated", "conv_transpose"])
def test_gradients_of_complex_arrays_are_lax_s(layer: str, rng: np.random.Generator):
    x, w = draw(rng, "complex64", 2, 5, 6, 3), draw(rng, "complex64", 3, 2, 3, 4)

    def gradients(function: Callable[..., Any]) -> Any:
        run = functools.partial(function, dimension_numbers=NHWC)
        y, pullback = jax.vjp(lambda x, w: run(x, w, (2, 1), "SAME"), x, w)
        return pullback(y)

    for got, expected in zip(
        gradients(getattr(jax_convgrad, layer)), gradients(getattr(lax, layer)), strict=True
    ):
        assert_same(got, expected)


@pytest.mark.parametrize("layer", [conv_general_dilated, conv_transpose])
def test_dtypes_that_differ_are_refused(layer: Callable[..., Any]):
    x, w = jnp.ones((1, 4, 4, 2), np.int8), jnp.ones((3, 3, 2, 2), np.float32)
    rest = ((1, 1), "SAME", None, None, NHWC) if layer is conv_general_dilated else ((1, 1), "SAME")
    with pytest.raises(TypeError, match="must have the same dtype; lhs is int8, rhs is float32"):
        layer(x, w, *rest)
    same = w.astype(np.int8)
    with pytest.raises(TypeError, match="must have the same dtype; lhs is int8, bias is float32"):
        layer(x, same, *rest, bias=jnp.ones(2, np.float32))


@pytest.mark.parametrize("dtype", ["bool", "int32", "complex64"])
def test_operators_refuse_them(dtype: str):
    x, w = jnp.ones((1, 1, 5), dtype), jnp.ones((1, 1, 3), dtype)
    message = f"dtypes must be one of float16, bfloat16, float32, float64; .* is {dtype}"
    for run in (
        lambda: jax_convgrad.conv_fprop(x, w),
        lambda: jax_convgrad.conv_dgrad(w, w, x.shape),
        lambda: jax_convgrad.conv_wgrad(x, w, w.shape),
    ):
        with pytest.raises(TypeError, match=message):
            run()

"""The bias of the layers and its gradient, which is a sum over batch and space, in 16 bits.

What a bias may not be is in test_arguments.py, how its gradient is summed over devices in
tests/sharding, and the adapters' biases are in the adapters' own tests.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.rounding import half_ulp

from jax_convgrad import conv_general_dilated, conv_transpose
from jax_convgrad._src.conv.bias import add_bias

Layer = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]

CHANNELS = 5


def _conv(
    x: jax.Array, w: jax.Array, bias: jax.Array, layout: str, lhs_dilation: tuple[int, int]
) -> jax.Array:
    numbers = (layout, "HWIO", layout)
    return conv_general_dilated(
        x, w, (2, 2), [(1, 1)] * 2, lhs_dilation, dimension_numbers=numbers, bias=bias
    )


def _transpose(x: jax.Array, w: jax.Array, bias: jax.Array, layout: str) -> jax.Array:
    numbers = (layout, "HWIO", layout)
    return conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=numbers, bias=bias)


def _matmul(x: jax.Array, w: jax.Array, bias: jax.Array, layout: str) -> jax.Array:
    """Without spatial axes, which is lax's own operation."""
    x = x.reshape(-1, 3)
    return conv_general_dilated(x, w[0, 0], (), (), dimension_numbers=("NC", "IO", "NC"), bias=bias)


LAYERS = {
    "conv": functools.partial(_conv, lhs_dilation=(1, 1)),
    "dilated": functools.partial(_conv, lhs_dilation=(3, 3)),
    "transpose": _transpose,
    "no-space": _matmul,
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("name", list(LAYERS))
def test_the_gradient_is_rounded_once(
    name: str, layout: str, dtype: str, rng: np.random.Generator
) -> None:
    """Half a unit in the last place, and what thousands of sums in float32 may add to it."""
    layer: Layer = functools.partial(LAYERS[name], layout=layout)
    x = jnp.zeros((4, 40, 48, 3) if layout == "NHWC" else (4, 3, 40, 48), dtype)
    w, bias = jnp.zeros((4, 4, 3, CHANNELS), dtype), jnp.zeros(CHANNELS, dtype)
    y, pullback = jax.vjp(jax.jit(functools.partial(layer, x, w)), bias)
    # Of one sign, for partial sums that grow as far as they can.
    dy = jnp.asarray(rng.uniform(0.0, 1.0, y.shape), dtype)
    got = jax.jit(pullback)(dy)[0]
    assert got.dtype == dtype and got.shape == bias.shape

    wide = np.moveaxis(np.asarray(dy, np.float64), y.shape.index(CHANNELS), -1)
    wide = wide.reshape(-1, CHANNELS)
    expected = wide.sum(0)
    slack = len(wide) ** 0.5 * 2.0**-24 * expected
    assert (
        np.abs(np.asarray(got, np.float64) - expected) <= half_ulp(expected, dtype) + slack
    ).all()


@pytest.mark.parametrize("name", list(LAYERS))
def test_both_modes_agree(name: str, rng: np.random.Generator) -> None:
    layer: Layer = functools.partial(LAYERS[name], layout="NHWC")
    x, w = jnp.zeros((1, 5, 6, 3), "float32"), jnp.zeros((4, 4, 3, CHANNELS), "float32")
    bias, tangent = (jnp.asarray(rng.integers(-9, 10, CHANNELS), "float32") for _ in range(2))
    y, dy = jax.jvp(functools.partial(layer, x, w), (bias,), (tangent,))
    np.testing.assert_array_equal(y, np.broadcast_to(bias, y.shape))
    np.testing.assert_array_equal(dy, np.broadcast_to(tangent, y.shape))


def test_the_sum_has_no_conversions_when_compiled() -> None:
    """XLA adds in the arrays' dtype: float16, which every platform keeps as it is."""
    y, bias = (jax.ShapeDtypeStruct(shape, jnp.float16) for shape in ((2, 8, 8, 16), (16,)))
    spread = functools.partial(add_bias, axis=3)
    assert "f32" in jax.jit(spread).lower(y, bias).as_text()
    assert "f32[" not in jax.jit(spread).lower(y, bias).compile().as_text()

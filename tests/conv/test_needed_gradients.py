"""Only the gradients that are asked for are computed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.layer_cases import (
    assert_same,
    compiled_text,
    convolutions_in,
    ints,
    operators_in,
)

from jax_convgrad import conv_general_dilated, conv_transpose
from jax_convgrad._src.conv import primitives

pytestmark = pytest.mark.optimized


NHWC = ("NHWC", "HWIO", "NHWC")


def conv_layer(x: Any, w: Any, bias: Any = None) -> jax.Array:
    return conv_general_dilated(
        x, w, (2, 1), ((1, 1), (0, 2)), None, (1, 2), NHWC, feature_group_count=2, bias=bias
    )


def lax_conv_layer(x: Any, w: Any, bias: Any = 0) -> jax.Array:
    return bias + lax.conv_general_dilated(
        x, w, (2, 1), ((1, 1), (0, 2)), None, (1, 2), NHWC, feature_group_count=2
    )


def transpose_layer(x: Any, w: Any, bias: Any = None) -> jax.Array:
    return conv_transpose(x, w, (2, 2), "SAME", bias=bias)


def lax_transpose_layer(x: Any, w: Any, bias: Any = 0) -> jax.Array:
    return bias + lax.conv_transpose(x, w, (2, 2), "SAME")


# (ours, lax's, x, w, output channels)
LAYERS = {
    "conv": (conv_layer, lax_conv_layer, (2, 5, 6, 4), (3, 2, 2, 6), 6),
    "transpose": (transpose_layer, lax_transpose_layer, (2, 3, 2, 4), (3, 4, 4, 3), 3),
}

per_layer = pytest.mark.parametrize("name", list(LAYERS))


GRADIENTS = {
    "conv": {"x": "conv_dgrad", "w": "conv_wgrad"},
    "transpose": {"x": "conv_fprop", "w": "conv_wgrad"},
}
FORWARD = {"conv": "conv_fprop", "transpose": "conv_dgrad"}


@pytest.mark.parametrize("wrt", ["x", "w", "xw", "b", "wb"])
@per_layer
def test_an_undifferentiated_operand_leaves_no_call(
    name: str, wrt: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
):
    ours, _, x_shape, w_shape, channels = LAYERS[name]
    x, w, bias = ints(rng, x_shape, w_shape, (channels,))
    (ct,) = ints(rng, ours(x, w).shape)
    gradient = jax.grad(
        lambda x, w, b: jnp.vdot(ours(x, w, b), ct), tuple("xwb".index(o) for o in wrt)
    )
    wanted = Counter(GRADIENTS[name][operand] for operand in wrt if operand != "b")

    # Traced: the forward pass, which the compiler drops, and the gradients asked for.
    assert operators_in(gradient, x, w, bias) == wanted + Counter([FORWARD[name]])
    # Compiled: the loss is linear, so the gradients are all there is.
    assert convolutions_in(compiled_text(gradient, x, w, bias)) == wanted.total()
    # Eager: what is really run.
    run: Counter[str] = Counter()
    for primitive in (primitives.conv_fprop_p, primitives.conv_dgrad_p, primitives.conv_wgrad_p):

        def counted(
            *operands: Any, _p: Any = primitive, _impl: Any = primitive.impl, **params: Any
        ) -> Any:
            run[_p.name] += 1
            return _impl(*operands, **params)

        monkeypatch.setattr(primitive, "impl", counted)
    gradient(x, w, bias)
    assert run == wanted + Counter([FORWARD[name]])


@per_layer
def test_a_constant_loss_has_zero_gradients(name: str, rng: np.random.Generator):
    ours, _, x_shape, w_shape, _ = LAYERS[name]
    x, w = ints(rng, x_shape, w_shape)
    gradients = jax.grad(lambda x, w: 0.0 * jnp.sum(lax.stop_gradient(ours(x, w))), (0, 1))(x, w)
    assert_same(gradients, (jnp.zeros(x_shape), jnp.zeros(w_shape)))

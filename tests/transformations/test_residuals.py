"""What the layers keep between the passes, and what is computed again under jax.checkpoint.

What is computed again is counted in the traced program: XLA:CPU merges it with the forward pass, lax's
convolutions too. Values are exact on small integers, see support/layer_cases.py.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from support.layer_cases import (
    LAYERS,
    NHWC,
    assert_same,
    equations,
    ints,
    operators_in,
    per_layer,
)

from jax_convgrad import conv_general_dilated, conv_transpose, onednn, onnx, resize, torch
from jax_convgrad._src.conv import phases

# What is kept between the passes.


def kept(f: Callable[..., Any], *arguments: Any) -> list[Any]:
    """The arrays that the vector-Jacobian product of ``f`` holds."""
    return jax.tree.leaves(jax.vjp(f, *arguments)[1])


@pytest.mark.matrix("residuals are the operands")
@per_layer
def test_residuals_are_the_operands(name: str, rng: np.random.Generator):
    layer = LAYERS[name]
    x, params = layer.ints(rng)
    # Of a bias and of a resize nothing is needed.
    needed = [x, *params[:1]] if params else []
    residuals = kept(layer.ours, x, params)
    assert sorted(a.shape for a in residuals) == sorted(a.shape for a in needed)
    if name == "conv_transpose":  # its weights are kept reversed
        assert any(a is x for a in residuals)
    else:
        assert all(any(a is b for b in needed) for a in residuals)
    # An operand that is not differentiated is kept for the other, which it is not needed without.
    assert [a.shape for a in kept(lambda x: layer.ours(x, params), x)] == [
        a.shape for a in params[:1]
    ]
    if params:
        (image,) = kept(lambda w: layer.ours(x, (w, params[1])), params[0])
        assert image is x
        assert kept(lambda b: layer.ours(x, (params[0], b)), params[1]) == []


ADAPTERS: dict[str, Callable[..., Any]] = {
    "torch.conv2d": lambda x, w: torch.conv2d(x, w, padding=1),
    "torch.conv_transpose2d": lambda x, w: torch.conv_transpose2d(x, w, stride=2),
    "onnx.conv": onnx.conv,
    "onnx.conv_transpose": onnx.conv_transpose,
    "onednn.convolution": lambda x, w: onednn.convolution(
        x,
        w,
        strides=[1, 1],
        pads_begin=[0, 0],
        pads_end=[0, 0],
        dilations=[1, 1],
        data_format="NCX",
        weights_format="OIX",
    ),
}


@pytest.mark.parametrize("name", list(ADAPTERS))
def test_adapters_keep_the_operands_too(name: str, rng: np.random.Generator):
    """Outside of jit, where a conversion would be a copy that is kept."""
    x, w = ints(rng, (2, 4, 6, 7), (4, 4, 3, 3))
    residuals = kept(ADAPTERS[name], x, w)
    assert len(residuals) == 2
    assert all(any(a is b for b in (x, w)) for a in residuals)


def test_no_zeros_are_kept(rng: np.random.Generator):
    """Strided and dilated at once, a convolution is nine of the image itself, each with some taps."""
    x, w = ints(rng, (2, 5, 6, 3), (3, 3, 3, 4))

    def layer(module: Any, x: Any, w: Any) -> Any:
        return module(x, w, (2, 2), ((2, 1), (1, 2)), (3, 3), dimension_numbers=NHWC)

    ours = functools.partial(layer, conv_general_dilated)
    image, *taps = sorted((a for a in kept(ours, x, w)), key=lambda a: -a.size)
    assert image is x
    assert sum(a.size for a in taps) == w.size
    gradients = jax.grad(lambda *a: jnp.sum(ours(*a) ** 2), (0, 1))
    theirs = functools.partial(layer, lax.conv_general_dilated)
    assert_same(
        jax.jit(gradients)(x, w), jax.grad(lambda *a: jnp.sum(theirs(*a) ** 2), (0, 1))(x, w)
    )
    # No convolution is done again for that.
    assert operators_in(gradients, x, w) == Counter(
        {"conv_fprop": 9, "conv_dgrad": 9, "conv_wgrad": 9}
    )


def test_inserted_zeros_are_not_kept(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator):
    """Of too many such convolutions, one of an image with zeros in it is left."""
    monkeypatch.setattr(phases, "MAX_PHASES", 8)
    x, w = ints(rng, (2, 5, 6, 3), (3, 3, 3, 4))

    def ours(x: Any, w: Any) -> Any:
        return conv_general_dilated(x, w, (2, 2), ((2, 1), (1, 2)), (3, 3), dimension_numbers=NHWC)

    assert sorted(a.shape for a in kept(ours, x, w)) == sorted((x.shape, w.shape))
    gradients = jax.grad(lambda *a: jnp.sum(ours(*a) ** 2), (0, 1))
    assert operators_in(gradients, x, w) == Counter(["conv_fprop", "conv_dgrad", "conv_wgrad"])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_residuals_keep_their_width(dtype: str):
    """A result that is wider than the operands does not widen what is kept of them."""
    x, w = jnp.ones((2, 5, 6, 3), dtype), jnp.ones((3, 3, 3, 4), dtype)
    layers = {
        "convolution": lambda x, w: conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=NHWC, preferred_element_type=np.float32
        ),
        "conv_transpose": lambda x, w: conv_transpose(
            x, w, (2, 2), "SAME", preferred_element_type=np.float32
        ),
    }
    for layer in layers.values():
        assert {a.dtype for a in kept(layer, x, w)} == {np.dtype(dtype)}


# What is computed again.

P = jax.checkpoint_policies
POLICIES = {
    "none": None,
    "nothing": P.nothing_saveable,
    "everything": P.everything_saveable,
    "dots": P.dots_saveable,
    "dots without a batch": P.dots_with_no_batch_dims_saveable,
    "the first": P.save_only_these_names("first"),
    "any but the first": P.save_any_names_but_these("first"),
    "dots or the first": P.save_from_both_policies(
        P.dots_saveable, P.save_only_these_names("first")
    ),
    # One of a user's own, who knows what lax's convolutions are.
    "dense convolutions": lambda primitive, *_, **params: (
        primitive is lax.conv_general_dilated_p and params["feature_group_count"] == 1
    ),
    "the second elsewhere": P.save_and_offload_only_these_names(
        names_which_can_be_saved=["first"],
        names_which_can_be_offloaded=["second"],
        offload_src="device",
        offload_dst="pinned_host",
    ),
}
# Layers of two networks that are named, each followed by something whose derivative needs its result.
TWICE = {
    "convolution": lambda module, x, w: module.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=NHWC
    ),
    "conv_transpose": lambda module, x, w: module.conv_transpose(x, w, (2, 2), "SAME"),
}


def network(layer: Callable[..., Any]) -> Callable[..., Any]:
    def loss(w1: Any, w2: Any, x: Any) -> Any:
        x = checkpoint_name(layer(x, w1), "first") ** 2
        x = checkpoint_name(layer(x, w2), "second") ** 2
        return jnp.sum(x)

    return loss


def calls(f: Callable[..., Any], *arguments: Any) -> int:
    """Calls of the convolutions in a traced program, by this package or by lax."""
    names = ("conv_fprop", "conv_dgrad", "conv_wgrad", "conv_general_dilated")
    return sum(e.primitive.name in names for e in equations(f, *arguments))


@pytest.mark.matrix("checkpoint and its policies", "convolution", "conv_transpose")
@pytest.mark.parametrize("policy", list(POLICIES))
@pytest.mark.parametrize("name", list(TWICE))
def test_policies_save_what_they_save_of_lax(name: str, policy: str, rng: np.random.Generator):
    """The same results are computed again as in a network of lax's own layers."""
    import jax_convgrad

    x, w1, w2 = ints(rng, (1, 4, 3, 2), (2, 2, 2, 2), (2, 2, 2, 2))
    counts, gradients = [], []
    for module in (jax_convgrad, lax):
        loss = network(functools.partial(TWICE[name], module))
        gradient = jax.grad(jax.checkpoint(loss, policy=POLICIES[policy]), (0, 1))
        counts.append(calls(gradient, w1, w2, x))
        gradients.append(gradient)
    expected = jax.grad(network(functools.partial(TWICE[name], lax)), (0, 1))(w1, w2, x)
    # Two forward passes, dW twice and dX of the second; then what is computed again.
    again = {"none": 2, "nothing": 2, "dots without a batch": 2}
    again |= {"the first": 1, "any but the first": 1}
    assert counts == [5 + again.get(policy, 0)] * 2
    if policy != "the second elsewhere" or jax.default_backend() != "cpu":
        assert_same(jax.jit(gradients[0])(w1, w2, x), expected)


@pytest.mark.matrix("checkpoint and its policies", "resize")
@pytest.mark.parametrize("policy", list(POLICIES))
def test_policies_and_resizes(policy: str, rng: np.random.Generator):
    """Resizes are not dots: only named results are saved, or everything."""
    (x,) = ints(rng, (1, 4, 4, 2))

    def loss(resize: Callable[..., Any], x: Any) -> Any:
        x = checkpoint_name(resize(x, (1, 8, 4, 2), "linear"), "first") ** 2
        x = checkpoint_name(resize(x, (1, 8, 8, 2), "nearest"), "second") ** 2
        return jnp.sum(x)

    saved = jax.checkpoint(functools.partial(loss, resize), policy=POLICIES[policy])
    # Two forward passes, two gradients; then what is computed again.
    again = {"everything": 0, "the first": 1, "any but the first": 1, "dots or the first": 1}
    again |= {"the second elsewhere": 0}
    assert operators_in(jax.grad(saved), x) == Counter(resample=4 + again.get(policy, 2))
    if policy != "the second elsewhere" or jax.default_backend() != "cpu":
        expected = jax.grad(functools.partial(loss, jax.image.resize))(x)
        assert_same(jax.jit(jax.grad(saved))(x), expected)

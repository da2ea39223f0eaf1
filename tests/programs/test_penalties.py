"""Gradients through gradients of whole networks: the penalties that adversarial training uses.

A generator of transposed convolutions and resizes against a critic of strided convolutions, as
WGAN-GP (the gradient's norm is to be 1 between real and made images) and R1 (it is to be 0 at real
ones) have them. Values and the gradients of all parameters, against the same in plain lax.
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
from support.comparisons import relative_error
from support.layer_cases import NHWC, compiled_text, convolutions_in, equations, operators_in

import jax_convgrad

Parameters = dict[str, Any]


def lax_layers() -> tuple[Callable[..., Any], ...]:
    def convolve(x: Any, w: Any, bias: Any) -> Any:
        return bias + lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=NHWC)

    def transposed(x: Any, w: Any, bias: Any) -> Any:
        return bias + lax.conv_transpose(x, w, (2, 2), "SAME")

    return convolve, transposed, jax.image.resize


def our_layers() -> tuple[Callable[..., Any], ...]:
    def convolve(x: Any, w: Any, bias: Any) -> Any:
        return jax_convgrad.conv_general_dilated(
            x, w, (2, 2), "SAME", dimension_numbers=NHWC, bias=bias
        )

    def transposed(x: Any, w: Any, bias: Any) -> Any:
        return jax_convgrad.conv_transpose(x, w, (2, 2), "SAME", bias=bias)

    return convolve, transposed, jax_convgrad.resize


def generate(layers: Any, params: Parameters, latent: Any) -> Any:
    """Latent vectors to images of 16x16 with three channels."""
    _, transposed, resize = layers
    hidden = jnp.tanh(latent @ params["project"]).reshape(-1, 2, 2, 8)
    hidden = jax.nn.softplus(transposed(hidden, params["up1"], params["up1_bias"]))
    hidden = resize(hidden, (hidden.shape[0], 8, 8, hidden.shape[3]), "linear")
    return jnp.tanh(transposed(hidden, params["up2"], params["up2_bias"]))


def criticise(layers: Any, params: Parameters, images: Any) -> Any:
    """One number for each image."""
    convolve, _, _ = layers
    hidden = jax.nn.softplus(convolve(images, params["down1"], params["down1_bias"]))
    hidden = jax.nn.softplus(convolve(hidden, params["down2"], params["down2_bias"]))
    return jnp.tensordot(hidden, params["judge"], 3)


SHAPES = {
    "project": (5, 32),
    "up1": (4, 4, 8, 6),
    "up1_bias": (6,),
    "up2": (4, 4, 6, 3),
    "up2_bias": (3,),
    "down1": (4, 4, 3, 6),
    "down1_bias": (6,),
    "down2": (3, 3, 6, 8),
    "down2_bias": (8,),
    "judge": (4, 4, 8),
}


def image_gradients(layers: Any, params: Parameters, images: Any) -> Any:
    return jax.grad(lambda x: jnp.sum(criticise(layers, params, x)))(images)


def wgan_gp(layers: Any, params: Parameters, batch: dict[str, Any]) -> Any:
    """The critic's loss with its penalty, whose images depend on the generator's parameters too."""
    made = generate(layers, params, batch["latent"])
    mixed = batch["mix"] * batch["real"] + (1 - batch["mix"]) * made
    norms = jnp.sqrt(jnp.sum(image_gradients(layers, params, mixed) ** 2, (1, 2, 3)))
    scores = criticise(layers, params, made) - criticise(layers, params, batch["real"])
    return jnp.mean(scores) + 10 * jnp.mean((norms - 1) ** 2)


def r1(layers: Any, params: Parameters, batch: dict[str, Any]) -> Any:
    """The non-saturating loss of both networks with R1."""
    made = generate(layers, params, batch["latent"])
    gradients = image_gradients(layers, params, batch["real"])
    scores = jax.nn.softplus(criticise(layers, params, made))
    scores += jax.nn.softplus(-criticise(layers, params, batch["real"]))
    return jnp.mean(scores) + 5 * jnp.mean(jnp.sum(gradients**2, (1, 2, 3)))


LOSSES = {"WGAN-GP": wgan_gp, "R1": r1}
per_loss = pytest.mark.parametrize("name", list(LOSSES))


def problem(rng: np.random.Generator, dtype: str) -> tuple[Parameters, dict[str, Any]]:
    params = {
        name: jnp.asarray(rng.normal(size=shape) / np.sqrt(np.prod(shape[:-1])), dtype)
        for name, shape in SHAPES.items()
    }
    batch = {
        "latent": jnp.asarray(rng.normal(size=(3, 5)), dtype),
        "real": jnp.asarray(rng.uniform(-1, 1, (3, 16, 16, 3)), dtype),
        "mix": jnp.asarray(rng.uniform(size=(3, 1, 1, 1)), dtype),
    }
    return params, batch


def value_and_gradients(layers: Any, name: str) -> Callable[..., Any]:
    loss = functools.partial(LOSSES[name], layers)
    return jax.jit(jax.value_and_grad(loss))


@pytest.mark.matrix("gradient penalties, reverse over reverse")
@per_loss
def test_float64_is_that_of_lax(name: str, rng: np.random.Generator):
    params, batch = problem(rng, "float64")
    value, gradients = value_and_gradients(our_layers(), name)(params, batch)
    expected, theirs = value_and_gradients(lax_layers(), name)(params, batch)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    for parameter, gradient in gradients.items():
        assert np.any(theirs[parameter]), f"{parameter} has no gradient: the case proves nothing"
        assert relative_error(gradient, np.asarray(theirs[parameter])) < 1e-12, parameter


@per_loss
def test_float32_is_as_near_to_float64_as_lax_is(name: str, rng: np.random.Generator):
    """On the handlers: no more than three times the error of lax's own float32."""
    params, batch = problem(rng, "float32")
    wide = jax.tree.map(lambda a: a.astype(np.float64), (params, batch))
    with jax.default_matmul_precision("highest"):
        _, exact = value_and_gradients(lax_layers(), name)(*wide)
        _, ours = value_and_gradients(our_layers(), name)(params, batch)
        _, theirs = value_and_gradients(lax_layers(), name)(params, batch)
    # A sum of n rounded products errs by at least a few units of the last place, by whomever.
    unit = float(np.finfo(np.float32).eps)
    for parameter, truth in exact.items():
        error, other = (relative_error(g[parameter], np.asarray(truth)) for g in (ours, theirs))
        assert error <= 3 * max(other, unit), parameter


@per_loss
def test_the_networks_stay_in_the_family(name: str, rng: np.random.Generator):
    """Every pass of every order is one of the package's operators, and none is done in a loop."""
    params, batch = problem(rng, "float32")
    step = value_and_gradients(our_layers(), name)
    names = operators_in(step, params, batch)
    assert set(names) == {"conv_fprop", "conv_dgrad", "conv_wgrad", "resample"}
    traced = [e.primitive.name for e in equations(step, params, batch)]
    assert "conv_general_dilated" not in traced
    # As many as lax has convolutions.
    theirs = equations(value_and_gradients(lax_layers(), name), params, batch)
    convolutions = [e for e in theirs if e.primitive.name == "conv_general_dilated"]
    assert names.total() - names["resample"] == len(convolutions)
    text = compiled_text(step, params, batch)
    assert " while(" not in text
    # The compiler merges what is done twice to the same images.
    assert 0 < convolutions_in(text) <= len(convolutions)

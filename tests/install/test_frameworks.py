"""Layers of Flax, Equinox, Haiku and Keras: values and gradients with install() as without.

Each library is optional. Weights and images are small integers and the loss is a polynomial, so that
results must be equal, not close.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.framework_layers import CHANNELS, FLAX, OUTPUTS, RANKS, SIZES, per_axis
from support.layer_cases import assert_same
from support.programs import called, compiled

import jax_convgrad
from jax_convgrad._src.runtime import registry

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(
        jax.default_backend() != "cpu", reason="asks for the calls that the CPU's rules choose"
    ),
    pytest.mark.usefixtures("uninstalled", "without_x64"),
]


def image(rng: np.random.Generator, rank: int, channels_first: bool = False) -> jax.Array:
    spatial = SIZES[:rank]
    shape = (2, CHANNELS, *spatial) if channels_first else (2, *spatial, CHANNELS)
    return jnp.asarray(rng.integers(-2, 3, shape), np.float32)


def with_small_integers(tree: Any, rng: np.random.Generator) -> Any:
    draw = lambda a: jnp.asarray(rng.integers(-1, 2, a.shape), a.dtype)  # noqa: E731
    return jax.tree.map(draw, tree)


def check(apply: Callable[[Any, Any], Any], weights: Any, x: Any) -> None:
    """``apply(weights, x)`` and its gradients, jitted; and that this package computes them."""

    def f(weights: Any, x: Any) -> Any:
        y, pullback = jax.vjp(apply, weights, x)
        return y, pullback(jnp.sign(y))

    before = jax.jit(f)(weights, x)
    jax_convgrad.install()
    assert_same(jax.jit(f)(weights, x), before)
    assert_same(jax.vmap(f, (None, 0))(weights, x[None])[0], before[0][None])
    calls = called(compiled(f, weights, x))
    if registry.require("cpu").reason is None:
        assert calls.keys() <= {"conv_fprop", "conv_dgrad", "conv_wgrad"}
        assert calls["conv_wgrad"] == calls["conv_dgrad"] == calls["conv_fprop"] > 0
        rows = jax_convgrad.explain(f, weights, x).rows
        assert Counter(row.operator for row in rows if row.used) == calls
    jax_convgrad.uninstall()


per_rank = pytest.mark.parametrize("rank", RANKS)


@pytest.mark.parametrize("name", list(FLAX))
@per_rank
def test_flax_linen(rank: int, name: str, rng: np.random.Generator):
    linen = pytest.importorskip("flax.linen")
    layer = linen.Conv(OUTPUTS, (3,) * rank, **per_axis(FLAX[name], rank))
    x = image(rng, rank)
    weights = with_small_integers(layer.init(jax.random.key(0), x), rng)
    check(layer.apply, weights, x)


@pytest.mark.parametrize("padding", ["SAME", "VALID", "CIRCULAR"])
@pytest.mark.parametrize("transpose_kernel", [False, True])
@per_rank
def test_flax_linen_transposed(
    rank: int, padding: str, transpose_kernel: bool, rng: np.random.Generator
):
    linen = pytest.importorskip("flax.linen")
    layer = linen.ConvTranspose(
        OUTPUTS, (4,) * rank, (2,) * rank, padding, transpose_kernel=transpose_kernel
    )
    x = image(rng, rank)
    check(layer.apply, with_small_integers(layer.init(jax.random.key(0), x), rng), x)


@pytest.mark.parametrize("layer", ["Conv", "ConvTranspose", "depthwise"])
@per_rank
def test_flax_nnx(rank: int, layer: str, rng: np.random.Generator):
    nnx = pytest.importorskip("flax.nnx")
    keywords: dict[str, Any] = {"strides": (2,) * rank, "rngs": nnx.Rngs(0)}
    if layer == "depthwise":
        layer, keywords["feature_group_count"] = "Conv", CHANNELS
    model = getattr(nnx, layer)(CHANNELS, OUTPUTS, (3,) * rank, **keywords)
    structure, weights = nnx.split(model)
    check(
        lambda weights, x: nnx.merge(structure, weights)(x),
        with_small_integers(weights, rng),
        image(rng, rank),
    )


@pytest.mark.parametrize(
    ("layer", "keywords"),
    [
        ("Conv", {"stride": 2, "padding": 1}),
        ("Conv", {"padding": "SAME", "dilation": 2}),
        ("Conv", {"padding": "SAME", "groups": CHANNELS}),
        ("ConvTranspose", {"stride": 2, "padding": 1, "output_padding": 1}),
        ("ConvTranspose", {"stride": 3, "padding": "SAME"}),
        ("ConvTranspose", {"stride": 2, "groups": 3}),
    ],
    ids=str,
)
@per_rank
def test_equinox(rank: int, layer: str, keywords: dict[str, Any], rng: np.random.Generator):
    """One example at a time, so under vmap; channels first."""
    equinox = pytest.importorskip("equinox")
    make = getattr(equinox.nn, f"{layer}{rank}d")
    model = make(CHANNELS, OUTPUTS, 3, **keywords, key=jax.random.key(0))
    weights, rest = equinox.partition(model, equinox.is_array)
    check(
        lambda weights, x: jax.vmap(equinox.combine(weights, rest))(x),
        with_small_integers(weights, rng),
        image(rng, rank, channels_first=True),
    )


@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize("layer", ["Conv{}D", "Conv{}DTranspose"])
@per_rank
def test_haiku(rank: int, layer: str, channels_first: bool, rng: np.random.Generator):
    haiku = pytest.importorskip("haiku")
    letters = {1: "W", 2: "HW", 3: "DHW"}[rank]
    data_format = f"NC{letters}" if channels_first else f"N{letters}C"
    make = getattr(haiku, layer.format(rank))
    model = haiku.without_apply_rng(
        haiku.transform(lambda x: make(OUTPUTS, 3, stride=2, data_format=data_format)(x))
    )
    x = image(rng, rank, channels_first)
    check(model.apply, with_small_integers(model.init(jax.random.key(0), x), rng), x)


def test_haiku_depthwise(rng: np.random.Generator):
    haiku = pytest.importorskip("haiku")
    model = haiku.without_apply_rng(haiku.transform(lambda x: haiku.DepthwiseConv2D(2, 3)(x)))
    x = image(rng, 2)
    check(model.apply, with_small_integers(model.init(jax.random.key(0), x), rng), x)


@pytest.fixture
def keras() -> Any:
    os.environ.setdefault("KERAS_BACKEND", "jax")
    module = pytest.importorskip("keras")
    if module.backend.backend() != "jax":
        pytest.skip("Keras runs on another backend")
    return module


KERAS = {
    "Conv{}D": {"strides": 2, "padding": "same"},
    "Conv{}DTranspose": {"strides": 2, "padding": "same"},
    "Conv{}DTranspose-output": {"strides": 2, "padding": "valid", "output_padding": 1},
    "DepthwiseConv{}D": {"padding": "same", "depth_multiplier": 2},
    "SeparableConv{}D": {"padding": "same"},
}


def has_keras(rank: int, name: str) -> bool:
    return rank < 3 or not name.startswith(("Depthwise", "Separable"))


@pytest.mark.parametrize(
    "rank, name", [(rank, name) for rank in RANKS for name in KERAS if has_keras(rank, name)]
)
def test_keras(rank: int, name: str, keras: Any, rng: np.random.Generator):
    layer = name.partition("-")[0]
    first = () if layer == "DepthwiseConv{}D" else (OUTPUTS,)
    model = getattr(keras.layers, layer.format(rank))(*first, kernel_size=3, **KERAS[name])
    x = image(rng, rank)
    model.build(x.shape)
    weights = with_small_integers([v.value for v in model.trainable_variables], rng)
    check(lambda weights, x: model.stateless_call(weights, [], x)[0], weights, x)


# What `explain` is given is often a library's own kind of function.


def operators(function: Callable[..., Any], *arguments: Any) -> list[str]:
    jax_convgrad.install()
    return [row.operator for row in jax_convgrad.explain(function, *arguments).rows]


def test_explain_of_nnx_jit():
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.ConvTranspose(4, 8, (4, 4), strides=(2, 2), rngs=nnx.Rngs(0))

    def gradients(model: Any, x: jax.Array) -> Any:
        return nnx.grad(lambda model: jnp.mean(model(x) ** 2))(model)

    expected = ["conv_dgrad", "conv_wgrad"]
    for function in (gradients, nnx.jit(gradients)):
        assert operators(function, model, jnp.ones((2, 8, 8, 4))) == expected


def test_explain_of_equinox_transformations():
    equinox = pytest.importorskip("equinox")
    model = equinox.nn.ConvTranspose2d(4, 8, 4, stride=2, key=jax.random.key(0))

    def loss(model: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(jax.vmap(model)(x) ** 2)

    gradients = equinox.filter_grad(loss)
    expected = operators(jax.grad(loss), model, jnp.ones((2, 4, 8, 8)))
    assert expected == ["conv_dgrad", "conv_wgrad"]
    for function in (gradients, equinox.filter_jit(gradients)):
        assert operators(function, model, jnp.ones((2, 4, 8, 8))) == expected

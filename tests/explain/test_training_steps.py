"""explain() of one training step of each framework says what the compiled step does.

Each library is optional. A step is written as its users write it, and compiled as they compile it.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from support.programs import called

import jax_convgrad
from jax_convgrad._src.runtime import registry

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.optimized,
    pytest.mark.skipif(jax.default_backend() != "cpu", reason="the CPU's rules"),
    pytest.mark.usefixtures("uninstalled", "without_x64"),
]

LEARNING_RATE = 1e-2
# Two layers forward, the gradients of both layers' weights, and of what lies between them.
EXPECTED = {("conv_fprop", False): 1, ("conv_dgrad", False): 1}


@pytest.fixture(autouse=True)
def with_the_cpu_s_handlers(uninstalled: None):
    if registry.require("cpu").reason is not None:
        pytest.skip("asks for the calls that the handlers serve")
    jax_convgrad.install()


def check(step: Any, *arguments: Any) -> None:
    """The rows that this package computes are the calls of the compiled program, and no others."""
    program = step.lower(*arguments).compile()
    program = getattr(program, "compiled", program)  # Equinox wraps JAX's
    calls = called(program.as_text())
    rows = [row for row in jax_convgrad.explain(step, *arguments).rows if row.used]
    by_handler = Counter(row.operator for row in rows if row.ours and row.backend == "onednn")
    by_xla = len(rows) - by_handler.total()
    assert calls == by_handler + Counter(convolution=by_xla)
    forward = Counter((row.operator, row.backward) for row in rows if not row.backward)
    assert forward == EXPECTED
    assert by_handler["conv_wgrad"] == 2
    assert sum(row.backward for row in rows) == 3


def images(channels_first: bool = False) -> tuple[jax.Array, jax.Array]:
    if channels_first:
        return jnp.ones((2, 16, 8, 8)), jnp.zeros((2, 16, 16, 16))
    return jnp.ones((2, 8, 8, 16)), jnp.zeros((2, 16, 16, 16))


def descend(weights: Any, gradients: Any) -> Any:
    return jax.tree.map(lambda w, g: w - LEARNING_RATE * g, weights, gradients)


def functional_step(model: Any, x: jax.Array, target: jax.Array) -> tuple[Any, ...]:
    """The training step of a model with `init` and `apply`, and the step's arguments."""

    @jax.jit
    def step(weights: Any, x: jax.Array, target: jax.Array) -> Any:
        def loss(weights: Any) -> jax.Array:
            return jnp.mean((model.apply(weights, x) - target) ** 2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return descend(weights, gradients), value

    return step, model.init(jax.random.key(0), x), x, target


def test_linen():
    linen = pytest.importorskip("flax.linen")
    x, target = images()
    model = linen.Sequential(
        [linen.Conv(16, (3, 3)), linen.relu, linen.ConvTranspose(16, (4, 4), (2, 2))]
    )

    check(*functional_step(model, x, target))


def test_nnx_step_that_updates_its_objects_in_place():
    nnx = pytest.importorskip("flax.nnx")
    optax = pytest.importorskip("optax")
    x, target = images()
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(
        nnx.Conv(16, 16, (3, 3), rngs=rngs),
        nnx.relu,
        nnx.ConvTranspose(16, 16, (4, 4), strides=(2, 2), rngs=rngs),
    )
    optimizer = nnx.Optimizer(model, optax.sgd(LEARNING_RATE), wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any, x: jax.Array, target: jax.Array) -> jax.Array:
        loss, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(x) - target) ** 2))(
            model
        )
        optimizer.update(model, gradients)
        return loss

    before = jax.tree.leaves(model)
    check(step, model, optimizer, x, target)
    assert all(a is b for a, b in zip(before, jax.tree.leaves(model), strict=True))


def equinox_step(equinox: Any) -> tuple[Any, Any]:
    keys = jax.random.split(jax.random.key(0))
    model = equinox.nn.Sequential(
        [
            equinox.nn.Conv2d(16, 16, 3, padding=1, key=keys[0]),
            equinox.nn.Lambda(jax.nn.relu),
            equinox.nn.ConvTranspose2d(16, 16, 4, stride=2, padding=1, key=keys[1]),
        ]
    )

    @equinox.filter_jit
    def step(model: Any, x: jax.Array, target: jax.Array) -> Any:
        def loss(model: Any) -> jax.Array:
            return jnp.mean((jax.vmap(model)(x) - target) ** 2)

        value, gradients = equinox.filter_value_and_grad(loss)(model)
        updates = jax.tree.map(lambda g: -LEARNING_RATE * g, gradients)
        return equinox.apply_updates(model, updates), value

    return step, model


def test_equinox_filter_jit():
    step, model = equinox_step(pytest.importorskip("equinox"))
    check(step, model, *images(channels_first=True))


def test_an_equinox_module_is_a_function():
    _, model = equinox_step(pytest.importorskip("equinox"))
    rows = jax_convgrad.explain(model, jnp.ones((16, 8, 8))).rows
    assert [row.operator for row in rows] == ["conv_fprop", "conv_dgrad"]


def test_haiku():
    haiku = pytest.importorskip("haiku")
    x, target = images()

    def forward(x: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(haiku.Conv2D(16, 3)(x))
        return haiku.Conv2DTranspose(16, 4, stride=2)(hidden)

    model = haiku.without_apply_rng(haiku.transform(forward))

    check(*functional_step(model, x, target))


def test_keras():
    os.environ.setdefault("KERAS_BACKEND", "jax")
    keras = pytest.importorskip("keras")
    if keras.backend.backend() != "jax":
        pytest.skip("Keras runs on another backend")
    x, target = images()
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.Conv2DTranspose(16, 4, strides=2, padding="same"),
        ]
    )
    model.build(x.shape)

    @jax.jit
    def step(weights: Any, x: jax.Array, target: jax.Array) -> Any:
        def loss(weights: Any) -> jax.Array:
            return jnp.mean((model.stateless_call(weights, [], x)[0] - target) ** 2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return descend(weights, gradients), value

    check(step, [v.value for v in model.trainable_variables], x, target)

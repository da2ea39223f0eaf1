"""The layers in programs: control flow, memory given back, compiling ahead of time, finding NaNs, names.

Single functions inside control flow are in transformations/; here are training steps around gradients.
"""

from __future__ import annotations

import functools
import re
import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify
from support import jax_internals
from support.layer_cases import (
    LAYERS,
    assert_same,
    operators_in,
    per_layer,
    resample_is_called,
    squares,
)

from jax_convgrad._src.runtime import registry

pytestmark = pytest.mark.optimized

# Control flow.


def descend(layer: Callable[..., Any], params: Any, x: Any) -> Any:
    """One step that the next one can start from: all stays small and whole."""
    gradients = jax.grad(squares(layer), (0, 1))(params, x)
    return jax.tree.map(lambda a, g: a + jnp.sign(g), (params, x), gradients)


@pytest.mark.matrix("scan")
@per_layer
def test_scan_over_and_under_gradients(name: str, rng: np.random.Generator):
    layer = LAYERS[name]
    x, params = layer.ints(rng)
    xs = jnp.stack([x, -x, 2 * x])

    def total(layer: Any, params: Any, xs: Any) -> Any:
        step = lambda sum_, x: (sum_ + squares(layer)(params, x), None)  # noqa: E731
        return lax.scan(step, jnp.zeros((), x.dtype), xs)[0]

    got = jax.jit(jax.value_and_grad(functools.partial(total, layer.ours), (0, 1)))(params, xs)
    assert_same(got, jax.value_and_grad(functools.partial(total, layer.theirs), (0, 1))(params, xs))

    def train(layer: Any) -> Any:
        step = lambda state, _: (descend(layer, *state), None)  # noqa: E731
        return lax.scan(step, (params, x), length=3)[0]

    assert_same(jax.jit(lambda: train(layer.ours))(), train(layer.theirs))


@pytest.mark.matrix("while_loop, fori_loop")
@per_layer
def test_loops(name: str, rng: np.random.Generator):
    layer = LAYERS[name]
    x, params = layer.ints(rng)

    def train(layer: Any) -> Any:
        more = lambda state: state[0] < 3  # noqa: E731
        step = lambda state: (state[0] + 1, descend(layer, *state[1]))  # noqa: E731
        return lax.while_loop(more, step, (0, (params, x)))

    assert_same(jax.jit(lambda: train(layer.ours))(), train(layer.theirs))
    # Forward mode passes a loop whose length nobody knows.
    values = lambda layer, x, n: lax.fori_loop(  # noqa: E731
        0, n, lambda i, t: t + jnp.sum(layer(x * i, params)), jnp.zeros((), x.dtype)
    )
    got = jax.jit(lambda x, n: jax.jvp(lambda x: values(layer.ours, x, n), (x,), (x,)))(x, 3)
    assert_same(got, jax.jvp(lambda x: values(layer.theirs, x, 3), (x,), (x,)))


@pytest.mark.matrix("cond")
@per_layer
def test_cond(name: str, rng: np.random.Generator):
    layer = LAYERS[name]
    x, params = layer.ints(rng)

    def loss(layer: Any, params: Any, x: Any, flag: Any) -> Any:
        f = squares(layer)
        return lax.cond(flag, f, lambda params, x: 2 * f(params, -x), params, x)

    for flag in (True, False):
        ours, theirs = (
            jax.value_and_grad(functools.partial(loss, f), (0, 1))
            for f in (layer.ours, layer.theirs)
        )
        assert_same(jax.jit(ours)(params, x, flag), theirs(params, x, flag))


# Memory that is given back.


@pytest.mark.matrix("donated buffers")
@per_layer
def test_donated_buffers_are_used_again(name: str, rng: np.random.Generator):
    """A training step writes its new state where the old one was."""
    layer = LAYERS[name]
    x, params = layer.ints(rng)
    expected = descend(layer.theirs, params, x)
    step = jax.jit(functools.partial(descend, layer.ours), donate_argnums=(0, 1))
    state = jax.tree.map(lambda a: a + 0, (params, x))
    compiled = step.lower(*state).compile()
    given = jax.tree.leaves(state)
    places = [array.unsafe_buffer_pointer() for array in given]
    results = compiled(*state)
    assert_same(results, expected)
    assert all(array.is_deleted() for array in given)
    # Result i is written to the buffer of argument i, for all of them.
    alias = re.search(r"input_output_alias=\{(.*?)\}, entry", compiled.as_text())[1]
    pairs = re.findall(r"\{(\d*)\}: \((\d+), \{\}", alias)
    assert sorted((int(out or 0), int(arg)) for out, arg in pairs) == [
        (i, i) for i in range(len(given))
    ]
    assert [array.unsafe_buffer_pointer() for array in jax.tree.leaves(results)] == places


# Without running, and before.


@pytest.mark.matrix("eval_shape")
@per_layer
def test_eval_shape(name: str, rng: np.random.Generator):
    layer = LAYERS[name]
    x, params = layer.ints(rng)
    gradients = jax.value_and_grad(squares(layer.ours), (0, 1))
    for f, arguments in ((layer.ours, (x, params)), (gradients, (params, x))):
        abstract = jax.eval_shape(f, *jax.tree.map(jax.typeof, arguments))
        real = f(*arguments)
        assert jax.tree.map(lambda a: (a.shape, a.dtype, a.weak_type), abstract) == jax.tree.map(
            lambda a: (a.shape, a.dtype, a.weak_type), real
        )


@pytest.mark.matrix("lower().compile()")
@per_layer
def test_ahead_of_time(name: str, rng: np.random.Generator):
    """Lowered and compiled from shapes alone, then called without tracing."""
    layer = LAYERS[name]
    x, params = layer.ints(rng)
    traces: list[None] = []

    def loss(params: Any, x: Any) -> Any:
        traces.append(None)
        return squares(layer.ours)(params, x)

    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (params, x))
    compiled = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(*shapes).compile()
    expected = jax.value_and_grad(squares(layer.theirs), (0, 1))
    for scale in (1, -2):
        assert_same(compiled(params, scale * x), expected(params, scale * x))
    assert len(traces) == 1
    with pytest.raises(TypeError, match="compiled"):
        compiled(params, x[:1])


# Finding things.


def a_layer_of_mine(layer: Callable[..., Any], params: Any, x: Any) -> Any:
    return jnp.sum(layer(x, params) ** 2)


@pytest.mark.matrix("debug_nans")
@pytest.mark.parametrize("jitted", [False, True])
@per_layer
def test_debug_nans(name: str, jitted: bool, rng: np.random.Generator):
    """The error names the operator, and its traceback the line of the user's that called the layer."""
    layer = LAYERS[name]
    x, params = layer.ints(rng)
    x = x.at[0, 1, 1, 0].set(jnp.nan)
    f = functools.partial(a_layer_of_mine, layer.ours)
    for function in (f, jax.grad(f), jax.value_and_grad(f, (0, 1))):
        if function is not f and not params:
            function = jax.grad(f, 1)
        function = jax.jit(function) if jitted else function
        with (
            jax.debug_nans(True),
            pytest.raises(FloatingPointError, match=rf"nan.* in {layer.forward}\b") as caught,
        ):
            function(params, x)
        frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert "a_layer_of_mine" in frames


@per_layer
def test_checkify_finds_nans(name: str, rng: np.random.Generator):
    layer = LAYERS[name]
    x, params = layer.ints(rng)
    bad = x.at[0, 1, 1, 0].set(jnp.nan)
    for function in (layer.ours, jax.grad(lambda x, params: squares(layer.ours)(params, x))):
        checked = jax.jit(checkify.checkify(function, checkify.float_checks))
        assert checked(x, params)[0].get() is None
        message = checked(bad, params)[0].get()
        assert message is not None
        assert f"nan generated by primitive: {layer.forward}" in message


@pytest.mark.matrix("named_scope")
@per_layer
def test_names_reach_the_compiled_program(name: str, rng: np.random.Generator):
    """What a profile shows for each call: the scopes around it, the pass and the operator."""
    layer = LAYERS[name]
    x, params = layer.ints(rng)

    def loss(params: Any, x: Any) -> Any:
        with jax.named_scope("network"), jax.named_scope("block3"):
            return jnp.sum(layer.ours(x, params) ** 2)

    text = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(params, x).compile().as_text()
    names = re.findall(r'op_name="([^"]*)"', text)
    own = r"jvp\(network\)/block3/.*" + layer.forward
    assert any(re.search(own, n) and "transpose(" not in n for n in names)
    for operator in layer.gradients:
        back = r"transpose\(jvp\(network\)\)/block3/.*" + operator
        assert any(re.search(back, n) for n in names), operator
    # On the call itself where there is one.
    calls = [line for line in text.splitlines() if 'custom_call_target="jax_convgrad' in line]
    if resample_is_called() and name == "resize":
        assert len(calls) == 2
    for line in calls:
        target = re.search(r'custom_call_target="jax_convgrad_(\w+)"', line)[1]
        assert re.search(rf'op_name="[^"]*block3/[^"]*{target}', line), line


def test_targets_carry_the_package_s_name():
    """XLA's errors and profiles name calls by their targets."""
    assert len(registry.TARGETS) == len(set(registry.TARGETS)) == 5
    assert all(target.startswith("jax_convgrad_") for target in registry.TARGETS)


@per_layer
def test_a_jitted_layer_is_traced_once(name: str, rng: np.random.Generator):
    layer = LAYERS[name]
    traces: list[None] = []

    @jax.jit
    def f(params: Any, x: Any) -> Any:
        traces.append(None)
        return jax.grad(squares(layer.ours), (0, 1))(params, x)

    for _ in range(3):
        x, params = layer.ints(rng)
        f(params, x)
    assert len(traces) == 1 and jax_internals.cache_size(f) == 1
    assert operators_in(f, params, x).total() == 1 + layer.gradients.total()

"""vmap of the layers and of their gradients: the values of a Python loop, and never a loop.

One call per operator, whatever is mapped: per-example weight gradients are one grouped wgrad.
vmap of every function over every axis is in test_vmap.py.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.layer_cases import (
    GEOMETRY,
    LAYERS,
    W,
    X,
    Y,
    assert_same,
    check_compiled,
    equations,
    ints,
    per_layer,
    squares,
)

from jax_convgrad import conv_dgrad, conv_fprop, conv_general_dilated, conv_wgrad
from jax_convgrad._src.conv import primitives

pytestmark = pytest.mark.optimized


def loop(f: Callable[..., Any], axes: tuple[Any, ...], *arrays: Any) -> Any:
    """What vmap means: one call per example. ``axes`` as `jax.vmap` has them, with some for every leaf."""

    def leaves(axes: Any, tree: Any) -> list[tuple[Any, Any]]:
        if isinstance(tree, tuple):
            axes = axes if isinstance(axes, tuple) else (axes,) * len(tree)
            return [pair for a, t in zip(axes, tree, strict=True) for pair in leaves(a, t)]
        return [(axes, tree)]

    pairs = leaves(axes, arrays)
    size = next(array.shape[axis] for axis, array in pairs if axis is not None)
    treedef = jax.tree.structure(arrays)
    results = []
    for i in range(size):
        one = [array if axis is None else jnp.take(array, i, axis) for axis, array in pairs]
        results.append(f(*jax.tree.unflatten(treedef, one)))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)


def mapped(array: Any, axis: int | None) -> Any:
    """Three different examples stacked along ``axis``; the array itself for None."""
    return array if axis is None else jnp.stack([array, 2 * array, -array], axis)


def combinations(name: str) -> list[tuple[int | None, ...]]:
    """Axes of the image and the parameters: none, the first, and one further in; not all none."""
    choices = [(None, 0, 2), (None, 0, 3), (None, 0)][: 1 + len(LAYERS[name].params)]
    return [axes for axes in itertools.product(*choices) if any(a is not None for a in axes)]


@pytest.mark.matrix("vmap of gradients, every operand")
@pytest.mark.parametrize(
    ("name", "axes"), [(name, axes) for name in LAYERS for axes in combinations(name)]
)
def test_vmap_of_gradients(name: str, axes: tuple[int | None, ...], rng: np.random.Generator):
    layer = LAYERS[name]
    x, params = layer.ints(rng)
    x_axis, *params_axes = axes
    x = mapped(x, x_axis)
    params = tuple(map(mapped, params, params_axes))
    in_axes = (tuple(params_axes), x_axis)
    if not params:
        in_axes = (None, x_axis)
    gradients = jax.value_and_grad(squares(layer.ours), (0, 1))
    theirs = jax.value_and_grad(squares(layer.theirs), (0, 1))
    each = jax.vmap(gradients, in_axes)
    expected = loop(theirs, (tuple(params_axes), x_axis), params, x)
    assert_same(each(params, x), expected)
    if not {2, 3} & set(axes):  # compiling takes its time
        check_compiled(each, (params, x), layer.gradients + Counter([layer.forward]))


@pytest.mark.matrix("nested vmap")
@per_layer
def test_nested_vmap_of_gradients(name: str, rng: np.random.Generator):
    """Every set of parameters with every image, and each with its own."""
    layer = LAYERS[name]
    (x, params), wanted = layer.ints(rng), layer.gradients + Counter([layer.forward])
    images = jnp.stack([x, -x])
    many = tuple(mapped(p, 0) for p in params)
    inner = 0 if params else None
    gradients, theirs = (jax.grad(squares(f), (0, 1)) for f in (layer.ours, layer.theirs))

    pairs = jax.vmap(jax.vmap(gradients, (None, 0)), (inner, None), axis_size=3)
    one = functools.partial(loop, theirs, (None, 0))
    expected = [one(tuple(p[i] for p in many), images) for i in range(3)]
    assert_same(pairs(many, images), jax.tree.map(lambda *a: jnp.stack(a), *expected))
    check_compiled(pairs, (many, images), wanted)

    grid = jnp.stack([mapped(x, 0), mapped(3 * x, 0)], 1)
    own = jax.vmap(jax.vmap(gradients, (None, 0)), (inner, 0))
    assert_same(own(many, grid), loop(one, (inner, 0), many, grid))
    check_compiled(own, (many, grid), wanted)


@pytest.mark.matrix("per-example gradients")
@per_layer
def test_per_example_gradients(name: str, rng: np.random.Generator):
    """With each image a batch of its own, as clipping by example wants it: one grouped wgrad."""
    layer = LAYERS[name]
    x, params = layer.ints(rng, batch=5)
    loss = lambda layer, params, image: squares(layer)(params, image[None])  # noqa: E731
    gradients = jax.grad(functools.partial(loss, layer.ours), (0, 1))
    each = jax.vmap(gradients, (None, 0))
    theirs = jax.grad(functools.partial(loss, layer.theirs), (0, 1))
    assert_same(each(params, x), loop(theirs, (None, 0), params, x))
    check_compiled(each, (params, x), layer.gradients + Counter([layer.forward]))
    # Those of the parameters add up to the whole batch's.
    together = jax.grad(squares(layer.theirs))(params, x)
    assert_same(jax.tree.map(lambda g: g.sum(0), each(params, x)[0]), together)
    if layer.weight_gradient:
        (wgrad,) = [e for e in equations(each, params, x) if e.primitive is primitives.conv_wgrad_p]
        (alone,) = [
            e for e in equations(gradients, params, x[0]) if e.primitive is primitives.conv_wgrad_p
        ]

        def groups(equation: Any) -> int:
            return equation.params["problem"].geometry.config.groups

        assert groups(wgrad) == 5 * groups(alone)


# Each with what its derivatives are.
OPERATORS: dict[str, Any] = {
    "fprop": (functools.partial(conv_fprop, **GEOMETRY), X, W, ("conv_dgrad", "conv_wgrad")),
    "dgrad": (
        functools.partial(conv_dgrad, x_shape=X, **GEOMETRY),
        Y,
        W,
        ("conv_fprop", "conv_wgrad"),
    ),
    "wgrad": (
        functools.partial(conv_wgrad, w_shape=W, **GEOMETRY),
        X,
        Y,
        ("conv_dgrad", "conv_fprop"),
    ),
}


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (4, 2)])
@pytest.mark.parametrize("name", list(OPERATORS))
def test_per_example_gradients_of_operators(name: str, axes: Any, rng: np.random.Generator):
    f, *shapes, derivatives = OPERATORS[name]
    arrays = tuple(mapped(a, axis) for a, axis in zip(ints(rng, *shapes), axes, strict=True))
    gradients = jax.grad(lambda a, b: jnp.sum(f(a, b) ** 2), (0, 1))
    each = jax.vmap(gradients, axes)
    assert_same(each(*arrays), loop(gradients, axes, *arrays))
    check_compiled(each, arrays, Counter([f"conv_{name}", *derivatives]))


@pytest.mark.matrix("vmap of second derivatives")
@per_layer
def test_vmap_of_hessian_vector_products(name: str, rng: np.random.Generator):
    layer = LAYERS[name]
    x, params = layer.ints(rng)
    xs = mapped(x, 0)

    def product(layer: Any, x: Any) -> Any:
        gradient = jax.grad(lambda x: squares(layer)(params, x))
        return jax.jvp(gradient, (x,), (x + 1,))[1]

    got = jax.jit(jax.vmap(functools.partial(product, layer.ours)))(xs)
    assert_same(got, jnp.stack([product(layer.theirs, x) for x in xs]))
    assert (
        " while("
        not in jax.jit(jax.vmap(functools.partial(product, layer.ours)))
        .lower(xs)
        .compile()
        .as_text()
    )


@per_layer
def test_no_examples(name: str, rng: np.random.Generator):
    layer = LAYERS[name]
    x, params = layer.ints(rng)
    none = lambda a: jnp.zeros((0, *a.shape), a.dtype)  # noqa: E731
    params_axis = 0 if params else None
    for axes in ((params_axis, 0), (None, 0), (params_axis, None)):
        if axes == (None, None):
            continue
        arguments = [
            value if axis is None else jax.tree.map(none, value)
            for value, axis in zip((params, x), axes, strict=True)
        ]
        ours, theirs = (
            jax.eval_shape(jax.vmap(jax.grad(squares(f), (0, 1)), axes), *arguments)
            for f in (layer.ours, layer.theirs)
        )
        assert ours == theirs
        got = jax.jit(jax.vmap(jax.grad(squares(layer.ours), (0, 1)), axes))(*arguments)
        assert jax.tree.map(jnp.shape, got) == jax.tree.map(lambda a: a.shape, theirs)


def test_an_ensemble_moves_its_activations_once(rng: np.random.Generator):
    """Between two layers with weights of their own the examples stay beside the channels."""
    numbers = ("NHWC", "HWIO", "NHWC")
    x, w1, w2 = ints(rng, (3, 2, 5, 4, 2), (3, 2, 3, 2, 6), (3, 3, 2, 6, 4))

    def network(x: Any, w1: Any, w2: Any) -> Any:
        hidden = conv_general_dilated(x, w1, (1, 1), "SAME", dimension_numbers=numbers)
        return conv_general_dilated(hidden**2, w2, (1, 1), "SAME", dimension_numbers=numbers)

    ensemble = jax.vmap(network)
    assert_same(ensemble(x, w1, w2), loop(network, (0, 0, 0), x, w1, w2))
    moved = [e for e in equations(ensemble, x, w1, w2) if e.primitive.name == "transpose"]
    # The image and the result, and the weights of both.
    assert len(moved) == 4

"""Derivatives of every function of the contract, in every way that JAX has.

Derivatives against finite differences, in float64, are in conv/test_api.py and resize/test_api.py; what is
kept between the passes is in test_residuals.py.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import jet
from support.contract import FUNCTIONS, per_function
from support.layer_cases import assert_same, operators_in


@pytest.mark.matrix("jvp, jacfwd")
@per_function
def test_forward_mode(name: str, rng: np.random.Generator):
    function = FUNCTIONS[name]
    arrays, tangents = function.ints(rng), function.ints(rng)
    function.check(lambda f: jax.jvp(f, arrays, tangents))
    # Along one array at a time.
    for i in function.every:
        of_one = lambda f, i=i: lambda a: f(*arrays[:i], a, *arrays[i + 1 :])  # noqa: E731
        function.check(lambda f, i=i, g=of_one: jax.jvp(g(f), (arrays[i],), (tangents[i],))[1])
    if function.forward:
        along = functools.partial(jax.jvp, lambda a: function.ours(a, *arrays[1:]))
        assert operators_in(along, arrays[:1], tangents[:1]) == Counter({function.forward: 2})


@pytest.mark.matrix("jacrev")
@per_function
def test_jacobians(name: str, rng: np.random.Generator):
    """Both ways; the product with a tangent is the function of it."""
    function = FUNCTIONS[name]
    arrays, tangents = function.ints(rng, small=True), function.ints(rng, small=True)
    for i in function.every:
        expected = function.check(lambda f, i=i: jax.jacfwd(f, i)(*arrays))
        with function.active() as ours:
            assert_same(jax.jit(jax.jacrev(ours, i))(*arrays), expected)
        along = tuple(tangents[j] if j == i else jnp.zeros_like(a) for j, a in enumerate(arrays))
        product = jnp.tensordot(expected, tangents[i], tangents[i].ndim)
        assert_same(product, jax.jvp(function.theirs, arrays, along)[1])


@pytest.mark.matrix("linearize, linear_transpose")
@per_function
def test_linearize_and_transpose(name: str, rng: np.random.Generator):
    function = FUNCTIONS[name]
    arrays, tangents = function.ints(rng), function.ints(rng)

    def linearized(f: Callable[..., Any]) -> Any:
        value, linear = jax.linearize(f, *arrays)
        return value, linear(*tangents)

    value, _ = function.check(linearized)
    # Linear in the first array where there is no bias to add.
    rest = arrays[1:2]

    def transposed(f: Callable[..., Any]) -> Any:
        first = lambda a: f(a, *rest)  # noqa: E731
        back = lambda y: jax.linear_transpose(first, arrays[0])(y)[0]  # noqa: E731
        (again,) = jax.linear_transpose(back, value)(tangents[0])
        return back(value), again, first(tangents[0])

    with function.active() as ours:
        back, again, forward = transposed(ours)
    assert_same(jnp.vdot(back, tangents[0]), jnp.vdot(value, forward))
    assert_same(again, forward)


@pytest.mark.matrix("grad, vjp")
@per_function
def test_gradients(name: str, rng: np.random.Generator):
    function = FUNCTIONS[name]
    arrays = function.ints(rng)
    function.check(lambda f: jax.grad(function.squares(f), function.every)(*arrays))
    value, ct = function.theirs(*arrays), function.theirs(*function.ints(rng))
    function.check(lambda f: jax.vjp(f, *arrays)[1](ct))
    assert value.shape == ct.shape
    if function.forward:
        gradients = jax.grad(function.squares(function.ours), function.every)
        wanted = function.gradients + Counter([function.forward])
        assert operators_in(gradients, *arrays) == wanted


@pytest.mark.matrix("hessian")
@per_function
def test_hessian(name: str, rng: np.random.Generator):
    """For the smallest array: the others are in the Hessian-vector products."""
    function = FUNCTIONS[name]
    arrays = function.ints(rng, small=True)
    # A bias is not in its own Hessian with anything else.
    smallest = min(range(len(arrays[:2])), key=lambda i: math.prod(arrays[i].shape))
    function.check(lambda f: jax.hessian(function.squares(f), smallest)(*arrays))


@pytest.mark.matrix("Hessian-vector products")
@pytest.mark.parametrize("way", ["forward over reverse", "reverse over forward", "reverse twice"])
@per_function
def test_hessian_vector_products(name: str, way: str, rng: np.random.Generator):
    function = FUNCTIONS[name]
    arrays, along = function.ints(rng), function.ints(rng)

    def product(f: Callable[..., Any], way: str = way) -> Any:
        loss = lambda point: function.squares(f)(*point)  # noqa: E731
        if way == "forward over reverse":
            return jax.jvp(jax.grad(loss), (arrays,), (along,))[1]
        if way == "reverse over forward":
            return jax.grad(lambda point: jax.jvp(loss, (point,), (along,))[1])(arrays)
        inner = lambda a: sum(map(jnp.vdot, jax.grad(loss)(a), along))  # noqa: E731
        return jax.grad(inner)(arrays)

    expected = product(function.theirs, "forward over reverse")
    assert_same(function.check(product), expected)


@pytest.mark.matrix("derivatives of any order")
@per_function
def test_third_derivative(name: str, rng: np.random.Generator):
    function = FUNCTIONS[name]
    arrays, along = function.ints(rng, batch=1), function.ints(rng, batch=1)
    # In two arrays a square has degree four; in one the loss is a cube, so that there is a third derivative.
    power = 2 if len(arrays) > 1 else 3

    def third(f: Callable[..., Any]) -> Any:
        def at(t: Any) -> Any:
            moved = (a + t * d for a, d in zip(arrays, along, strict=True))
            return jnp.sum(f(*moved) ** power)

        return jax.grad(jax.jacfwd(jax.grad(at)))(jnp.ones((), arrays[0].dtype))

    function.check(third)


@per_function
def test_taylor_series(name: str, rng: np.random.Generator):
    """`jax.experimental.jet`, of all arrays at once."""
    function = FUNCTIONS[name]
    primals = function.ints(rng)
    terms = list(map(list, zip(*(function.ints(rng) for _ in range(3)), strict=True)))

    def series(f: Callable[..., Any]) -> Any:
        return jet.jet(lambda first, *rest: f(first * first, *rest), primals, terms)

    expected = series(function.theirs)
    with function.active() as ours:
        got = series(ours)
    # Factorials divide the terms.
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-3)
    jax.tree.map(close, got, expected)

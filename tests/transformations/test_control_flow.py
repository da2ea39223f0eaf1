"""Every function of the contract inside scans, loops, branches, checkpoints and custom rules.

Programs around the gradients of the layers are in programs/test_programs.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.contract import FUNCTIONS, per_function
from support.layer_cases import assert_same


@per_function
def test_scan(name: str, rng: np.random.Generator):
    """Its gradient, too, for what is carried along and for what is scanned over."""
    function = FUNCTIONS[name]
    first, *rest = function.ints(rng)

    def total(f: Callable[..., Any], many: Any, rest: Any) -> Any:
        step = lambda sum_, a: (sum_ + function.squares(f)(a, *rest), None)  # noqa: E731
        return lax.scan(step, jnp.zeros((), first.dtype), many)[0]

    many = jnp.stack([first, -first])
    function.check(lambda f: jax.grad(lambda *a: total(f, *a), (0, 1))(many, tuple(rest)))


@per_function
def test_cond(name: str, rng: np.random.Generator):
    function = FUNCTIONS[name]
    arrays = function.ints(rng)

    def chosen(f: Callable[..., Any], flag: bool) -> Any:
        loss = function.squares(f)
        return lambda *a: lax.cond(flag, loss, lambda *a: 2 * loss(*a), *a)

    for flag in (True, False):
        function.check(lambda f, flag=flag: jax.grad(chosen(f, flag), function.every)(*arrays))


@per_function
def test_loops(name: str, rng: np.random.Generator):
    """Forward mode passes those whose length is not known."""
    function = FUNCTIONS[name]
    first, *rest = function.ints(rng)

    def counted(f: Callable[..., Any], a: Any) -> Any:
        step = lambda i, sum_: sum_ + jnp.sum(f(a * i, *rest))  # noqa: E731
        return lax.fori_loop(0, 3, step, jnp.zeros((), a.dtype))

    def awaited(f: Callable[..., Any], a: Any) -> Any:
        more = lambda state: state[0] < 3  # noqa: E731
        step = lambda state: (state[0] + 1, state[1] + jnp.sum(f(a, *rest)))  # noqa: E731
        return lax.while_loop(more, step, (0, jnp.zeros((), a.dtype)))[1]

    for loop in (counted, awaited):
        function.check(lambda f, loop=loop: jax.jvp(lambda a: loop(f, a), (first,), (2 * first,)))


@per_function
def test_checkpoint(name: str, rng: np.random.Generator):
    function = FUNCTIONS[name]
    arrays = function.ints(rng)
    function.check(lambda f: jax.grad(jax.checkpoint(function.squares(f)), function.every)(*arrays))


@per_function
def test_inside_a_custom_rule(name: str, rng: np.random.Generator):
    function = FUNCTIONS[name]
    arrays = function.ints(rng)

    def gradients(f: Callable[..., Any]) -> Any:
        loss = function.squares(f)

        @jax.custom_vjp
        def custom(*a: Any) -> Any:
            return loss(*a)

        def backward(a: Any, ct: Any) -> Any:
            return tuple(ct * g for g in jax.grad(loss, function.every)(*a))

        custom.defvjp(lambda *a: (loss(*a), a), backward)
        return jax.grad(custom, function.every)(*arrays)

    function.check(gradients)


@pytest.mark.matrix("disable_jit")
@per_function
def test_without_jit(name: str, rng: np.random.Generator):
    function = FUNCTIONS[name]
    arrays = function.ints(rng)
    expected = jax.grad(function.squares(function.theirs), function.every)(*arrays)
    with function.active() as ours, jax.disable_jit():
        assert_same(jax.grad(function.squares(ours), function.every)(*arrays), expected)

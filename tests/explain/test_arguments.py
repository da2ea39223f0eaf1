"""What explain() is given: functions that write into their arguments, leaves that are not arrays, slips."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jax_convgrad import explain

pytestmark = pytest.mark.usefixtures("uninstalled", "without_x64")

X, W = jnp.ones((2, 8, 8, 16)), jnp.ones((4, 4, 16, 16))


def conv(x: Any, w: Any) -> jax.Array:
    return lax.conv_transpose(x, w, (2, 2), "SAME")


def test_what_is_written_into_an_argument_is_used():
    def step(state: dict[str, Any], x: Any) -> jax.Array:
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean(conv(x, w) ** 2))(state["w"])
        state["w"] = state["w"] - gradient
        return loss

    state = {"w": W}
    rows = explain(step, state, X).rows
    assert [row.backward for row in rows] == [False, True]
    assert all(row.used for row in rows)
    assert state["w"] is W


def test_what_is_written_nowhere_is_unused():
    def step(state: dict[str, Any], x: Any) -> jax.Array:
        loss, _ = jax.value_and_grad(lambda w: jnp.mean(conv(x, w) ** 2))(state["w"])
        return loss

    assert [row.used for row in explain(step, {"w": W}, X).rows] == [True, False]


def test_leaves_that_are_not_arrays_are_constants():
    def f(layer: dict[str, Any], x: Any) -> Any:
        if layer["on"]:
            x = layer["activation"](conv(x, layer["w"]))
        return x, layer

    for on, rows in ((True, 1), (False, 0)):
        layer = {"w": W, "activation": jax.nn.relu, "on": on, "name": "up"}
        assert len(explain(f, layer, X).rows) == rows


def test_a_call_instead_of_a_function():
    with pytest.raises(TypeError, match=r"do not call it: explain\(f, x\), not explain\(f\(x\)\)"):
        explain(conv(X, W))


def test_arguments_that_are_missing():
    with pytest.raises(TypeError, match=r"missing a required argument: 'w'.*explain\(conv, x\)"):
        explain(conv, X)

"""Code that all forms in JAX share: a pass as a function of (x, w, dy), jitted."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jax_convgrad._src.timing.runner import Runner, jax_runner
from jax_convgrad.bench.case_files import AnyCase
from jax_convgrad.bench.cases import Case
from jax_convgrad.bench.forms.form import RESULTS, Form
from jax_convgrad.bench.forms.inputs import Inputs
from jax_convgrad.bench.forms.weights import WeightsOrder, activation_axes

Layer = Callable[..., jax.Array]  # (x, w, bias or None) -> y
Pass = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, ...]]  # (x, w, dy) -> results


class JaxForm(Form):
    """A form that is a JAX function."""

    @abc.abstractmethod
    def function(self, case: AnyCase, pass_: str, layout: str, weights: WeightsOrder) -> Pass:
        """The pass as a JAX function of (x, w, dy), to be jitted."""

    def runners(
        self, case: AnyCase, pass_: str, layout: str, weights: str | None = None
    ) -> list[Runner]:
        """One runner: the jitted function."""
        order = WeightsOrder.make(case, layout, weights)
        function = self.function(case, pass_, layout, order)
        to_x, from_x = activation_axes(case.ndim, layout)

        def load(inputs: Inputs) -> tuple[jax.Array, ...]:
            arrays = (
                inputs.x.transpose(to_x),
                order.store(inputs.w),
                inputs.dy.transpose(to_x),
            )
            # A copy, because on a CPU device_put may share the bytes of a NumPy array, and every
            # set of inputs must have memory of its own.
            copies: tuple[jax.Array, ...] = jax.block_until_ready(
                tuple(jnp.array(a, copy=True) for a in arrays)
            )
            return copies

        def fetch(out: tuple[jax.Array, ...]) -> dict[str, np.ndarray]:
            found = {key: _widened(value) for key, value in zip(RESULTS[pass_], out, strict=True)}
            return {
                key: order.restore(value)
                if key in ("dw", "ddw")
                else value.transpose((0,) if key == "db" else from_x)
                for key, value in found.items()
            }

        return [jax_runner(function, load, fetch)]


def _widened(array: jax.Array) -> np.ndarray:
    """The array on the host, in one of NumPy's own dtypes, because NumPy is slow with others."""
    return np.asarray(array.astype(jnp.promote_types(array.dtype, jnp.float32)))


def layer_pass(layer: Layer, cout: int, pass_: str) -> Pass:
    """One pass of a layer through jax.vjp, whose unused primal result XLA drops."""
    if pass_ == "fprop":
        return lambda x, w, dy: (layer(x, w, None),)
    if pass_ == "dx":
        return lambda x, w, dy: jax.vjp(lambda x: layer(x, w, None), x)[1](dy)
    if pass_ == "dw":
        return lambda x, w, dy: jax.vjp(lambda w: layer(x, w, None), w)[1](dy)
    if pass_ == "ddxddw":
        return functools.partial(_double_backward, layer)

    def gradients(x: jax.Array, w: jax.Array, dy: jax.Array) -> tuple[jax.Array, ...]:
        bias = jnp.zeros((cout,), dy.dtype)
        results: tuple[jax.Array, ...] = jax.vjp(layer, x, w, bias)[1](dy)
        return results

    return gradients


def _double_backward(
    layer: Layer, x: jax.Array, w: jax.Array, dy: jax.Array
) -> tuple[jax.Array, ...]:
    """The second derivatives that a penalty on an input gradient needs of a layer, in one step.

    The gradients, with respect to x and w, of half the squared norm of the gradient with respect to x
    of the loss |layer(x, w) - dy|^2 / 2.
    """

    def input_gradient(x: jax.Array, w: jax.Array) -> jax.Array:
        y, pull_back = jax.vjp(lambda x: layer(x, w, None), x)
        slope: jax.Array = pull_back(y - dy)[0]
        return slope

    dx, pull_back = jax.vjp(input_gradient, x, w)
    results: tuple[jax.Array, ...] = pull_back(dx)
    return results


def dilated_padding(case: Case) -> list[tuple[int, int]]:
    """The padding as lax.conv_transpose counts it: on the input after zeros are inserted."""
    axes = zip(case.kernel, case.padding, case.output_padding, case.dilation, strict=True)
    return [(d * (k - 1) - p, d * (k - 1) - p + op) for k, p, op, d in axes]

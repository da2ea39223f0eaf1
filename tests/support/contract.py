"""The functions that every transformation of JAX must treat like their counterparts in JAX.

A function of the contract takes arrays and is linear in each of them, except for the bias. `theirs` is the
same function in plain JAX. The functions named "install" are lax's own: `ours` and `theirs` are one function,
and `ours` runs with `install()`.

Values are small integers, and everything computed from them is a polynomial, so that results are equal, not
close: see `layer_cases.assert_same`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support import lax_layers
from support.layer_cases import GEOMETRY, LAYERS, W, X, Y, assert_same, ints

import jax_convgrad
from jax_convgrad import (
    conv_dgrad,
    conv_fprop,
    conv_wgrad,
    resample,
    resample_transpose,
    resize,
    scale_and_translate,
)

Shape = tuple[int, ...]
Array = Any


@dataclasses.dataclass(frozen=True)
class Function:
    """One function of the contract.

    Attributes:
      shapes: of the arrays that it takes.
      small: shapes for derivatives that have an element for every pair of elements.
      batched: which arrays have examples along their first axis. The others are parameters.
      sums: whether the result is a sum over examples, and has no axis of them.
      forward: this package's primitive in a call of it; None where there need not be one.
      gradients: its primitives in the gradients for all arrays, without those of the forward pass.
      installed: whether `ours` is lax's own function, run with `install()`.
    """

    ours: Callable[..., Array]
    theirs: Callable[..., Array]
    shapes: tuple[Shape, ...]
    batched: tuple[int, ...] = (0,)
    sums: bool = False
    forward: str | None = None
    gradients: Counter[str] = dataclasses.field(default_factory=Counter)
    installed: bool = False
    small: tuple[Shape, ...] | None = None

    def ints(
        self,
        rng: np.random.Generator,
        *,
        batch: int | None = None,
        examples: dict[int, int] | None = None,
        small: bool = False,
    ) -> tuple[Array, ...]:
        """Arrays for it, with another batch size, or ``examples[i]`` of array i stacked in front."""
        shapes = list(self.small or self.shapes) if small else list(self.shapes)
        for i in self.batched if batch is not None else ():
            shapes[i] = (batch, *shapes[i][1:])
        for i, count in (examples or {}).items():
            shapes[i] = (count, *shapes[i])
        return tuple(ints(rng, *shapes))

    @contextlib.contextmanager
    def active(self) -> Iterator[Callable[..., Array]]:
        """`ours`, with install() on where that is what makes it ours."""
        if self.installed:
            jax_convgrad.install()
        try:
            yield self.ours
        finally:
            if self.installed:
                jax_convgrad.uninstall()

    def check(self, run: Callable[[Callable[..., Array]], Any]) -> Any:
        """Asserts that ``run`` gives the same for ours and for theirs, compiled and not. Returns the
        result."""
        expected = jax.jit(functools.partial(run, self.theirs))()
        with self.active() as ours:
            assert_same(run(ours), expected)
            assert_same(jax.jit(functools.partial(run, ours))(), expected)
        return expected

    def squares(self, f: Callable[..., Array]) -> Callable[..., Array]:
        """A loss whose derivatives depend on everything."""
        return lambda *arrays: jnp.sum(f(*arrays) ** 2)

    @property
    def every(self) -> tuple[int, ...]:
        return tuple(range(len(self.shapes)))


def _flat(layer: Callable[..., Array]) -> Callable[..., Array]:
    """The layer of arrays; without a bias if there is none."""
    return lambda x, *params: layer(x, (*params, None) if len(params) == 1 else params)


def _lax_fprop(x: Array, w: Array) -> Array:
    return lax.conv_general_dilated(
        x,
        w,
        GEOMETRY["strides"],
        GEOMETRY["padding"],
        rhs_dilation=GEOMETRY["dilation"],
        feature_group_count=GEOMETRY["groups"],
    )


def _of_batch(shape: Shape, array: Array) -> Shape:
    return (array.shape[0], *shape[1:])


def _lax_dgrad(dy: Array, w: Array) -> Array:
    x = jnp.zeros(_of_batch(X, dy), dy.dtype)
    return jax.linear_transpose(lambda x: _lax_fprop(x, w), x)(dy)[0]


def _lax_wgrad(x: Array, dy: Array) -> Array:
    return jax.linear_transpose(lambda w: _lax_fprop(x, w), jnp.zeros(W, x.dtype))(dy)[0]


SMALL, LARGE = (2, 4, 6, 3), (2, 8, 3, 3)
LINEAR: dict[str, Any] = {"method": "linear", "antialias": False}


def _image_resize(x: Array) -> Array:
    return jax.image.resize(x, _of_batch(LARGE, x), **LINEAR)


def _image_resize_transpose(dy: Array) -> Array:
    return jax.linear_transpose(_image_resize, jnp.zeros(_of_batch(SMALL, dy), dy.dtype))(dy)[0]


def _translated(f: Callable[..., Array]) -> Callable[..., Array]:
    scale, translation = np.array([2.0], np.float32), np.array([1.0], np.float32)
    return lambda x: f(x, (x.shape[0], 8, 6, 3), (1,), scale, translation, "linear")


def _operators() -> dict[str, Function]:
    return {
        "conv_fprop": Function(
            functools.partial(conv_fprop, **GEOMETRY),
            _lax_fprop,
            (X, W),
            forward="conv_fprop",
            gradients=Counter(["conv_dgrad", "conv_wgrad"]),
        ),
        "conv_dgrad": Function(
            lambda dy, w: conv_dgrad(dy, w, _of_batch(X, dy), **GEOMETRY),
            _lax_dgrad,
            (Y, W),
            forward="conv_dgrad",
            gradients=Counter(["conv_fprop", "conv_wgrad"]),
        ),
        "conv_wgrad": Function(
            functools.partial(conv_wgrad, w_shape=W, **GEOMETRY),
            _lax_wgrad,
            (X, Y),
            batched=(0, 1),
            sums=True,
            forward="conv_wgrad",
            gradients=Counter(["conv_dgrad", "conv_fprop"]),
        ),
    }


def _resizes() -> dict[str, Function]:
    resamples: dict[str, Any] = {
        "forward": "resample",
        "gradients": Counter(["resample"]),
    }
    return {
        "resize nearest": Function(
            lambda x: resize(x, _of_batch(LARGE, x), "nearest"),
            lambda x: jax.image.resize(x, _of_batch(LARGE, x), "nearest"),
            (SMALL,),
            **resamples,
        ),
        "resample": Function(
            lambda x: resample(x, _of_batch(LARGE, x), **LINEAR),
            _image_resize,
            (SMALL,),
            **resamples,
        ),
        "resample_transpose": Function(
            lambda dy: resample_transpose(dy, _of_batch(SMALL, dy), **LINEAR),
            _image_resize_transpose,
            (LARGE,),
            **resamples,
        ),
        "scale_and_translate": Function(
            _translated(scale_and_translate),
            _translated(jax.image.scale_and_translate),
            (SMALL,),
            **resamples,
        ),
    }


def _layers() -> dict[str, Function]:
    return {
        name: Function(
            _flat(layer.ours),
            _flat(layer.theirs),
            (layer.x, *layer.params),
            forward=layer.forward,
            gradients=layer.gradients,
        )
        for name, layer in LAYERS.items()
    }


def _installed() -> dict[str, Function]:
    # These have many channels, so that the rules choose calls for them; derivatives that have an element
    # for every pair of elements have few.
    few = {
        "strided": ((1, 3, 2, 2), (2, 2, 2, 3)),
        "transposed": ((1, 3, 2, 2), (2, 2, 2, 3)),
    }
    return {
        f"install {name}": Function(f, f, (x, w), installed=True, small=few.get(name))
        for name, (f, x, w) in lax_layers.LAYERS.items()
    } | {
        "install jax.image.resize": Function(
            # Looked up when it is called, because install() replaces it.
            _image_resize,
            _image_resize,
            (SMALL,),
            installed=True,
        )
    }


FUNCTIONS: dict[str, Function] = {
    **_layers(),
    **_operators(),
    **_resizes(),
    # With these shapes the CPU's rules choose calls.
    **(_installed() if jax.default_backend() == "cpu" else {}),
}

per_function = pytest.mark.parametrize("name", list(FUNCTIONS))

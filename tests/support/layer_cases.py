"""The three layers in one form, for tests of JAX's transformations, and how calls are counted.

A layer takes an image and a tuple of parameters: weights and a bias, or nothing for resize. For the operators
there is one geometry, of x, w and y in the shapes X, W and Y.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.comparisons import may_transform

from jax_convgrad import conv_fprop, conv_general_dilated, conv_transpose, resize
from jax_convgrad._src.runtime import registry

NHWC = ("NHWC", "HWIO", "NHWC")
OPERATORS = ("conv_fprop", "conv_dgrad", "conv_wgrad", "conv_backward", "resample")

# One small geometry with everything in it: groups, stride, dilation, uneven padding, an unread row.
GEOMETRY: dict[str, Any] = {
    "strides": (2, 1),
    "padding": ((1, 0), (2, -1)),
    "dilation": (1, 2),
    "groups": 2,
}
X, W = (2, 4, 6, 5), (4, 2, 2, 2)
Y = conv_fprop(np.zeros(X), np.zeros(W), **GEOMETRY).shape


def _conv(x: Any, params: Any) -> jax.Array:
    w, bias = params
    return conv_general_dilated(
        x, w, (2, 1), ((1, 1), (0, 2)), None, (1, 2), NHWC, feature_group_count=2, bias=bias
    )


def _lax_conv(x: Any, params: Any) -> jax.Array:
    w, bias = params
    return bias + lax.conv_general_dilated(
        x, w, (2, 1), ((1, 1), (0, 2)), None, (1, 2), NHWC, feature_group_count=2
    )


def _transpose(x: Any, params: Any) -> jax.Array:
    w, bias = params
    return conv_transpose(x, w, (2, 2), "SAME", bias=bias)


def _lax_transpose(x: Any, params: Any) -> jax.Array:
    w, bias = params
    return bias + lax.conv_transpose(x, w, (2, 2), "SAME")


def _resized(x: Any) -> tuple[int, ...]:
    return (x.shape[0], 8, 3, x.shape[3])


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer of this package, the same layer of JAX, and the operators that compute its passes."""

    ours: Callable[..., jax.Array]
    theirs: Callable[..., jax.Array]
    x: tuple[int, ...]
    params: tuple[tuple[int, ...], ...]
    forward: str
    input_gradient: str
    weight_gradient: str | None

    def ints(self, rng: np.random.Generator, batch: int | None = None) -> tuple[Any, Any]:
        """x, with another batch size if given, and the parameters, as small integers."""
        shape = self.x if batch is None else (batch, *self.x[1:])
        x, *params = ints(rng, shape, *self.params)
        return x, tuple(params)

    @property
    def gradients(self) -> Counter[str]:
        """The operators of a gradient for the image and all parameters."""
        return Counter(filter(None, (self.input_gradient, self.weight_gradient)))


LAYERS = {
    "convolution": Layer(
        _conv,
        _lax_conv,
        (2, 5, 6, 4),
        ((3, 2, 2, 6), (6,)),
        "conv_fprop",
        "conv_dgrad",
        "conv_wgrad",
    ),
    "conv_transpose": Layer(
        _transpose,
        _lax_transpose,
        (2, 3, 2, 4),
        ((3, 4, 4, 3), (3,)),
        "conv_dgrad",
        "conv_fprop",
        "conv_wgrad",
    ),
    "resize": Layer(
        lambda x, params: resize(x, _resized(x), "linear", False),
        lambda x, params: jax.image.resize(x, _resized(x), "linear", False),
        (2, 4, 6, 3),
        (),
        "resample",
        "resample",
        None,
    ),
}
per_layer = pytest.mark.parametrize("name", list(LAYERS))


def squares(layer: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """A loss of (parameters, image) whose derivatives depend on everything."""
    return lambda params, x: jnp.sum(layer(x, params) ** 2)


def ints(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[jax.Array]:
    dtype = np.float64 if may_transform() else np.float32
    return [jnp.asarray(rng.integers(-2, 3, shape), dtype) for shape in shapes]


def assert_same(got: Any, expected: Any) -> None:
    """Equal integers or quarters, small enough that float32 adds them without error in any order."""

    def check(a: Any, b: Any) -> None:
        assert np.max(np.abs(b), initial=0) < 2**22, (
            "too large to be exact: the case proves nothing"
        )
        np.testing.assert_array_equal(a, b)

    jax.tree.map(check, got, expected)


def equations(f: Callable[..., Any], *arguments: Any) -> list[Any]:
    """All equations of the traced program, including those of inner programs."""
    found: list[Any] = []

    def visit(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            found.append(equation)
            for value in equation.params.values():
                for inner in value if isinstance(value, (tuple, list)) else (value,):
                    inner = getattr(inner, "jaxpr", inner)
                    if hasattr(inner, "eqns"):
                        visit(inner)

    visit(jax.make_jaxpr(f)(*arguments).jaxpr)
    return found


def operators_in(f: Callable[..., Any], *arguments: Any) -> Counter[str]:
    """How often each of this package's primitives occurs in the traced program of ``f``."""
    names = (equation.primitive.name for equation in equations(f, *arguments))
    return Counter(name for name in names if name in OPERATORS)


def compiled_text(f: Callable[..., Any], *arguments: Any) -> str:
    return jax.jit(f).lower(*arguments).compile().as_text()


def convolutions_in(text: str) -> int:
    """The number of convolutions in a compiled program, whatever their backend."""
    targets = r'custom_call_target="(?:jax_convgrad_conv|__cudnn\$conv|__onednn\$conv)'
    return len(re.findall(targets, text)) + len(re.findall(r" convolution\(", text))


def resamples_in(text: str) -> int:
    """The number of calls of the resample handler in a compiled program."""
    return text.count(f'custom_call_target="{registry.RESAMPLE_TARGET}"')


def resample_is_called() -> bool:
    """Whether a handler computes a resample on this device."""
    platform = jax.default_backend().replace("gpu", "cuda")
    found = registry.find(platform)
    return found.serves(registry.RESAMPLE_TARGET, np.dtype(np.float32))


def check_compiled(f: Callable[..., Any], arguments: tuple[Any, ...], wanted: Counter[str]) -> None:
    """Asserts that the traced and the compiled program have these operators, each this often, and no loop."""
    assert operators_in(f, *arguments) == wanted
    names = {equation.primitive.name for equation in equations(f, *arguments)}
    assert not names & {"while", "scan"}
    text = compiled_text(f, *arguments)
    assert " while(" not in text
    assert convolutions_in(text) == wanted.total() - wanted["resample"]
    if resample_is_called():
        assert resamples_in(text) == wanted["resample"]

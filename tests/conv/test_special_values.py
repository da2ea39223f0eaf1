"""A NaN reaches only the elements that depend on it, and no other element, group or example."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_convgrad import conv_dgrad, conv_fprop, conv_general_dilated, conv_wgrad
from jax_convgrad._src.dispatch import preparation
from jax_convgrad._src.dispatch.devices import device_class

NUMBERS = {1: ("NHC", "HIO", "NHC"), 2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC")}


class Problem(NamedTuple):
    """Channels are those of one group."""

    image: tuple[int, ...]
    inputs: int
    outputs: int
    kernel: tuple[int, ...]
    groups: int = 1
    strides: int = 1
    padding: tuple[int, int] = (1, 1)

    @property
    def x(self) -> tuple[int, ...]:
        return (2, *self.image, self.groups * self.inputs)

    @property
    def w(self) -> tuple[int, ...]:
        return (*self.kernel, self.inputs, self.groups * self.outputs)

    @property
    def keywords(self) -> dict[str, Any]:
        return {
            "strides": self.strides,
            "padding": [self.padding] * len(self.image),
            "groups": self.groups,
            "dimension_numbers": NUMBERS[len(self.image)],
        }


PROBLEMS = [
    Problem((9, 8), 5, 9, (3, 3)),
    Problem((9, 8), 9, 32, (3, 3)),
    Problem((9, 8), 3, 1, (3, 3)),
    Problem((9, 8), 3, 16, (3, 3), groups=4),
    Problem((14,), 1, 9, (5,), groups=2, padding=(0, 0)),
    Problem((14,), 2, 1, (5,), groups=4),
    Problem((15,), 7, 4, (4,), groups=4, padding=(2, 1)),
    Problem((9, 8), 3, 10, (4, 2), groups=3, strides=2, padding=(2, 0)),
    Problem((9, 8), 8, 1, (3, 3), groups=8),
    Problem((6, 7, 5), 4, 3, (3, 2, 3), groups=2, strides=2),
    Problem((5, 6, 7), 8, 8, (3, 3, 3), groups=4),
    # Depthwise.
    Problem((9, 8), 1, 1, (3, 3), groups=7),
    Problem((20,), 1, 1, (4,), groups=9, strides=2, padding=(0, 1)),
    Problem((20,), 1, 1, (3,), groups=16, strides=2),
    Problem((10, 18), 1, 1, (5, 2), groups=17, strides=2, padding=(0, 1)),
    Problem((12,), 1, 1, (3,), groups=24, strides=3),
    Problem((9, 8), 1, 2, (3, 3), groups=6),
]


def reads_columns_behind(problem: Problem, x: np.ndarray) -> np.ndarray:
    """Which results x reaches if every window has three more columns at its end."""
    *rows, (low, high) = problem.keywords["padding"]
    w = np.ones((*problem.w[:-3], problem.w[-3] + 3, *problem.w[-2:]), np.float32)
    keywords = problem.keywords | {"padding": [*rows, (low, high + 3)]}
    return np.asarray(conv_fprop(x, w, **keywords)) > 0


@pytest.mark.parametrize("operator", ["conv_fprop", "conv_dgrad", "conv_wgrad"])
@pytest.mark.parametrize(
    "dtype, multiplies", [("float32", True), ("bfloat16", True), ("bfloat16", False)]
)
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_a_nan_reaches_what_is_made_of_it(
    problem: Problem,
    dtype: str,
    multiplies: bool,
    operator: str,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preparation, "multiplies_bfloat16", lambda: multiplies)
    fprop = functools.partial(conv_fprop, **problem.keywords)
    y = jax.eval_shape(fprop, *(jax.ShapeDtypeStruct(s, dtype) for s in (problem.x, problem.w)))
    run, first, second = {
        "conv_fprop": (fprop, problem.x, problem.w),
        "conv_dgrad": (
            functools.partial(conv_dgrad, x_shape=problem.x, **problem.keywords),
            y.shape,
            problem.w,
        ),
        "conv_wgrad": (
            functools.partial(conv_wgrad, w_shape=problem.w, **problem.keywords),
            problem.x,
            y.shape,
        ),
    }[operator]
    run = jax.jit(run)
    spatial = tuple(range(len(problem.image)))
    for _ in range(20):
        place = tuple(rng.integers(0, size) for size in first)
        a, b = rng.standard_normal(first), rng.standard_normal(second)
        a[place] = np.nan
        here = np.zeros(first, np.float32)
        here[place] = 1
        got = np.isnan(np.asarray(run(jnp.asarray(a, dtype), jnp.asarray(b, dtype)), np.float32))
        expected = np.asarray(run(here, np.ones(second, np.float32))) > 0
        if operator == "conv_wgrad" and dtype == "bfloat16":
            got, expected = got.any(spatial), expected.any(spatial)  # docs/numerics.md
        on_amx = jax.default_backend() == "cpu" and device_class("cpu") == "amx"
        if operator == "conv_fprop" and dtype == "bfloat16" and on_amx:
            assert not (expected & ~got).any()
            assert not (got & ~reads_columns_behind(problem, here)).any()  # docs/numerics.md
            continue
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    "dtype, multiplies", [("float32", True), ("bfloat16", True), ("bfloat16", False)]
)
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_an_infinite_cotangent_reaches_its_own_filter(
    problem: Problem,
    dtype: str,
    multiplies: bool,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which of the filter's weights depends on what is multiplied in padding: docs/numerics.md."""
    monkeypatch.setattr(preparation, "multiplies_bfloat16", lambda: multiplies)
    keywords = problem.keywords
    run = jax.jit(functools.partial(conv_wgrad, w_shape=problem.w, **keywords))
    x = jnp.asarray(rng.integers(-2, 3, problem.x), dtype)
    y = jax.eval_shape(
        functools.partial(conv_fprop, **keywords), x, jax.ShapeDtypeStruct(problem.w, dtype)
    )
    for _ in range(10):
        dy = rng.integers(-2, 3, y.shape).astype(np.float32)
        place = tuple(rng.integers(0, size) for size in y.shape)
        finite = np.asarray(run(x, jnp.asarray(dy, dtype)), np.float32)
        dy[place] = -np.inf
        got = np.asarray(run(x, jnp.asarray(dy, dtype)), np.float32)
        others = np.arange(problem.w[-1]) != place[-1]
        here = np.zeros(y.shape, np.float32)
        here[place] = 1
        reached = np.asarray(run(np.ones(problem.x, np.float32), here)) > 0
        assert not np.isfinite(got[reached]).any()
        np.testing.assert_array_equal(got[..., others], finite[..., others])


@pytest.mark.parametrize(
    "dtype, multiplies", [("float32", True), ("bfloat16", True), ("bfloat16", False)]
)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("channels", [(3, 16), (16, 1), (1, 1)], ids=str)
def test_examples_of_vmap_keep_to_themselves(
    channels: tuple[int, int],
    bad: float,
    dtype: str,
    multiplies: bool,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An image and weights of each: the examples are the groups of one convolution.

    By what is done to bfloat16 on CPUs that multiply it, and on others.
    """
    monkeypatch.setattr(preparation, "multiplies_bfloat16", lambda: multiplies)
    given, made = channels
    x, w = rng.standard_normal((4, 2, 9, 8, given)), rng.standard_normal((4, 3, 3, given, made))
    x[1, 0, 4, 4, 0] = bad

    def loss(x: Any, w: Any) -> Any:
        y = conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NUMBERS[2])
        return jnp.sum(y.astype(jnp.float32) ** 2)

    run = jax.jit(jax.vmap(jax.value_and_grad(loss, (0, 1))))
    for result in jax.tree.leaves(run(jnp.asarray(x, dtype), jnp.asarray(w, dtype))):
        finite = np.isfinite(np.asarray(result, np.float32)).reshape(4, -1)
        assert finite[[0, 2, 3]].all() and not finite[1].all()

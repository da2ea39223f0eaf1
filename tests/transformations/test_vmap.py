"""vmap of every function of the contract, over every axis of every array: a loop's values, and never a loop.

How gradients of the layers are mapped, and into how many calls, is in test_batching.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.contract import FUNCTIONS, Function, per_function
from support.layer_cases import assert_same, compiled_text, convolutions_in, operators_in

Axes = tuple[int | None, ...]
EXAMPLES = 3


def one_by_one(f: Callable[..., Any], axes: Axes, *arrays: Any) -> Any:
    """What vmap means: one call per example."""
    pick = lambda a, axis, i: a if axis is None else jnp.take(a, i, axis)  # noqa: E731
    each = (
        f(*(pick(a, axis, i) for a, axis in zip(arrays, axes, strict=True)))
        for i in range(EXAMPLES)
    )
    return jax.tree.map(lambda *results: jnp.stack(results), *each)


def mapped(function: Function, axes: Axes, rng: np.random.Generator) -> tuple[Any, ...]:
    """Arrays with different examples along ``axes``."""
    examples = [function.ints(rng) for _ in range(EXAMPLES)]
    return tuple(
        each[0] if axis is None else jnp.stack(each, axis)
        for each, axis in zip(zip(*examples, strict=True), axes, strict=True)
    )


def any_of(axes: Axes) -> bool:
    return any(axis is not None for axis in axes)


def all_axes(function: Function) -> list[Axes]:
    """Every axis of every array by itself, and of each pair of neighbors together."""
    ranks = [len(shape) + 1 for shape in function.shapes]
    nothing: list[int | None] = [None] * len(ranks)
    found: list[Axes] = []
    for i, rank in enumerate(ranks):
        found += [(*nothing[:i], axis, *nothing[i + 1 :]) for axis in range(rank)]
    found += [tuple(min(axis, rank - 1) for rank in ranks) for axis in range(max(ranks))]
    if len(ranks) > 1:
        found += [(axes[0], axes[1], *nothing[2:]) for axes in ((0, 3), (3, 1), (2, 0))]
    return list(dict.fromkeys(found))


@pytest.mark.matrix("vmap, every operand and axis")
@per_function
def test_every_axis_of_every_array(name: str, rng: np.random.Generator):
    function = FUNCTIONS[name]
    problems = [(axes, mapped(function, axes, rng)) for axes in all_axes(function)]
    expected = [one_by_one(function.theirs, axes, *arrays) for axes, arrays in problems]
    with function.active() as ours:
        for (axes, arrays), wanted in zip(problems, expected, strict=True):
            assert_same(jax.vmap(ours, axes)(*arrays), wanted)
        for out in range(wanted.ndim):
            assert_same(jnp.moveaxis(jax.vmap(ours, axes, out)(*arrays), out, 0), wanted)


@pytest.mark.parametrize(
    ("name", "axis"),
    [
        (name, axis)
        for name, f in FUNCTIONS.items()
        for axis in (range(5) if len(f.shapes) == 1 else (0, 2))
    ],
)
def test_gradients(name: str, axis: int, rng: np.random.Generator):
    """Over an axis of the first two arrays, of either or of both."""
    function = FUNCTIONS[name]
    first_two, rest = len(function.shapes[:2]), (None,) * len(function.shapes[2:])
    choices = itertools.product(*[(axis, None)] * first_two)
    problems = [
        ((*axes, *rest), mapped(function, (*axes, *rest), rng)) for axes in choices if any_of(axes)
    ]
    gradients = lambda f: jax.grad(function.squares(f), function.every)  # noqa: E731
    theirs = jax.jit(gradients(function.theirs))
    expected = [one_by_one(theirs, axes, *arrays) for axes, arrays in problems]
    # Within one context: to enter it, and to leave it, clears JAX's caches where it installs.
    with function.active() as ours:
        for (axes, arrays), wanted in zip(problems, expected, strict=True):
            assert_same(jax.jit(jax.vmap(gradients(ours), axes))(*arrays), wanted)


@per_function
def test_nested(name: str, rng: np.random.Generator):
    """Each with its own, and every pair."""
    function = FUNCTIONS[name]
    grid, *rest = function.ints(rng, examples={0: 2})
    one = [jnp.stack([a, -a, 2 * a]) for a in rest]
    inner = (None,) * len(rest)
    arrays = (jnp.stack([grid, -grid, 3 * grid], 1), *one)
    expected = jnp.stack(
        [one_by_one(function.theirs, (0,) * len(arrays), row, *one) for row in arrays[0]]
    )
    with function.active() as ours:
        got = jax.vmap(jax.vmap(ours), (0, *inner))(*arrays)
        assert_same(got, expected)
        if rest:
            pairs = jax.vmap(jax.vmap(ours, (None, *(0,) * len(rest))), (0, *inner))(grid, *one)
    if rest:
        expected = jnp.stack(
            [one_by_one(function.theirs, (None, *(0,) * len(rest)), a, *one) for a in grid]
        )
        assert_same(pairs, expected)


@pytest.mark.optimized
@per_function
def test_no_loop(name: str, rng: np.random.Generator):
    """One call, whatever is mapped."""
    function = FUNCTIONS[name]
    count = len(function.shapes)
    for axes in {(0,) * count, (0, *(None,) * (count - 1)), (*(None,) * (count - 1), 0)}:
        arrays = mapped(function, axes, rng)
        with function.active() as ours:
            each = jax.vmap(ours, axes)
            if function.forward:
                bias_alone = count == 3 and axes[:2] == (None, None)
                assert operators_in(each, *arrays)[function.forward] == 1
                assert bias_alone or operators_in(each, *arrays).total() == 1
            text = compiled_text(each, *arrays)
        assert " while(" not in text
        if count > 1:
            assert convolutions_in(text) == 1

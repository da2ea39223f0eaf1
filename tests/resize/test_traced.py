"""Scales and translations that are traced: mapped over, and beside others that are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_convgrad import scale_and_translate


def ints(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[jax.Array]:
    return [jnp.asarray(rng.integers(-4, 5, shape), np.float32) for shape in shapes]


def resamples_in(f: Callable[..., Any], *arguments: Any) -> int:
    return str(jax.make_jaxpr(f)(*arguments)).count("resample[")


def test_vmap_over_scale_and_translation(rng: np.random.Generator):
    (x,) = ints(rng, (5, 6))
    scales, shifts = jnp.asarray([[0.5, 2], [1, 1.5]]), jnp.asarray([[0.0, 1], [2, -1]])

    def call(f: Callable[..., Any]) -> Any:
        return jax.vmap(lambda s, t: f(x, (5, 7), (0, 1), s, t, "linear"))(scales, shifts)

    np.testing.assert_allclose(
        call(scale_and_translate), call(jax.image.scale_and_translate), rtol=0, atol=1e-5
    )


def test_scale_alone_traced_and_mixed_lists(rng: np.random.Generator):
    (x,) = ints(rng, (5, 6))

    def call(s: Any) -> Any:
        return scale_and_translate(x, (9, 7), (0, 1), [s, 1.5], [0.25, 0.0], "cubic")

    expected = jax.image.scale_and_translate(
        x, (9, 7), (0, 1), jnp.asarray([2.0, 1.5]), jnp.asarray([0.25, 0.0]), "cubic"
    )
    np.testing.assert_allclose(jax.jit(call)(2.0), expected, rtol=0, atol=1e-5)
    assert resamples_in(call, 2.0) == 1  # the other axis has a table


def test_traced_numbers_of_several_axes_round_once():
    """A resize is one sum over all axes, docs/numerics.md says. Here it is the mean of four numbers, 162.75,
    and bfloat16 has the integers up to 256."""
    x = jnp.asarray([[177, 189], [144, 141]], "bfloat16")

    def call(scale: Any) -> Any:
        return scale_and_translate(x, (1, 1), (0, 1), scale, [0.0, 0.0], "linear", False)

    half = np.asarray([0.5, 0.5])
    assert call(half)[0, 0] == 163
    assert jax.jit(call)(half)[0, 0] == 163

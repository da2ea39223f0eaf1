"""What is known of a result before there is one, and how often a function is traced and compiled."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import jax_internals
from support.contract import FUNCTIONS, per_function
from support.layer_cases import LAYERS, assert_same

from jax_convgrad import resize
from jax_convgrad._src.resize import bands

DTYPES = ("float16", "bfloat16", "float32", "float64")


def of_ones(name: str, dtype: str | None = None) -> list[jax.Array]:
    """Weakly typed without a dtype, as the constant in x * 0 + 1."""
    one = jnp.asarray(1.0, dtype)
    return [jnp.broadcast_to(one, shape) for shape in FUNCTIONS[name].shapes]


@per_function
def test_eval_shape(name: str, rng: np.random.Generator):
    function = FUNCTIONS[name]
    arrays = [array.astype(np.float32) for array in function.ints(rng)]
    with function.active() as ours:
        abstract, real = jax.eval_shape(ours, *arrays), ours(*arrays)
    assert (abstract.shape, abstract.dtype) == (real.shape, real.dtype)


@per_function
def test_weak_types_do_not_come_out(name: str):
    function, arrays = FUNCTIONS[name], of_ones(name)
    assert all(array.weak_type for array in arrays)
    with function.active() as ours:
        result = ours(*arrays)
        assert jax.eval_shape(ours, *arrays).weak_type == result.weak_type
    # What lax makes of weakly typed arrays is lax's.
    assert function.installed or (result.dtype == np.float64 and not result.weak_type)


@pytest.mark.parametrize("dtype", DTYPES)
@per_function
def test_dtypes_are_kept(name: str, dtype: str):
    function, arrays = FUNCTIONS[name], of_ones(name, dtype)
    shape = jax.eval_shape(function.theirs, *arrays).shape
    with function.active() as ours:
        for f in (ours, jax.jit(lambda *a: ours(*a))):
            y = f(*arrays)
            assert (y.shape, y.dtype, y.weak_type) == (shape, dtype, False)
        loss = lambda *a: jnp.sum(ours(*a)).astype(np.float32)  # noqa: E731
        gradients = jax.grad(loss, function.every)(*arrays)
    for gradient, array in zip(gradients, arrays, strict=True):
        assert (gradient.shape, gradient.dtype) == (array.shape, array.dtype)
        assert not gradient.weak_type


@per_function
def test_numpy_arrays_are_arrays(name: str, rng: np.random.Generator):
    function = FUNCTIONS[name]
    arrays = function.ints(rng)
    with function.active() as ours:
        assert_same(ours(*map(np.asarray, arrays)), ours(*arrays))


@per_function
def test_the_compiled_program_is_found_again(name: str, rng: np.random.Generator):
    function = FUNCTIONS[name]
    traces: list[None] = []
    with function.active() as ours:

        @jax.jit
        def f(*arrays: Any) -> Any:
            traces.append(None)
            return ours(*arrays)

        for _ in range(3):
            f(*function.ints(rng))
            bands.make_band.cache_clear()
        assert len(traces) == 1 and jax_internals.cache_size(f) == 1


def test_a_static_shape_is_found_again(rng: np.random.Generator):
    """Tables that are made anew are equal to those of the first trace."""
    f = jax.jit(lambda x, shape: resize(x, shape, "cubic"), static_argnums=1)
    for _ in range(3):
        x, _ = LAYERS["resize"].ints(rng)
        f(x, (2, 8, 3, 3))
        bands.make_band.cache_clear()
    assert jax_internals.cache_size(f) == 1

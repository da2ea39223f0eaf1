"""Data that is exact in every dtype, and the comparisons of results."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from support.layouts import Shape

from jax_convgrad._src.dispatch.decide import PLATFORMS
from jax_convgrad._src.dispatch.override import overridden_backend

FLOATS = ("float32", "bfloat16", "float16", "float64")

# Every integer up to here has an exact representation.
EXACT_LIMIT = {"bfloat16": 2**8, "float16": 2**11, "float32": 2**24, "float64": 2**53}


def exact_ints(rng: np.random.Generator, shape: Shape, dtype: str, reduction: int) -> np.ndarray:
    """Small integers, float64, of which sums of ``reduction`` products are exact in ``dtype``.

    The bound holds for the sum of absolute values, so for every partial sum in every order as well,
    even one kept in ``dtype`` itself; 4 is left over for a bias.
    """
    largest = min(math.isqrt((EXACT_LIMIT[dtype] - 4) // max(reduction, 1)), 9)
    assert largest >= 1, f"{reduction} products may not fit {dtype}: make the case smaller"
    return rng.integers(-largest, largest + 1, shape).astype(np.float64)


def may_transform() -> bool:
    """Whether XLA computes convolutions here with engines that are not exact on small integers.

    NOTE [Transforming engines]. On a GPU, XLA times all engines of cuDNN and takes the fastest, which
    for float32 and float16 may be one that works on transformed arrays (Winograd, Fourier) and so
    leaves 52.999996 where 53 is right. The handlers leave those engines out. Where XLA may have
    computed a result, it is rounded to the nearest integer before it is compared: a wrong index is an
    error of one at least. In float64 there are no such engines.
    """
    return jax.default_backend() == "gpu" and overridden_backend() not in PLATFORMS


def assert_equal(
    got: Any, expected: np.ndarray, dtype: Any, what: str = "result", nearest: bool = False
) -> None:
    """``got`` has ``dtype`` and equals ``expected``, values that ``dtype`` can represent.

    ``nearest``: the integers nearest to it do, for an ``expected`` of integers.
    """
    dtype = jnp.dtype(dtype)
    assert np.array_equal(expected.astype(dtype).astype(np.float64), expected), (
        f"{what}: the expected values are not representable in {dtype}: the case proves nothing"
    )
    assert got.dtype == dtype, f"{what} is {got.dtype}, not {dtype}"
    assert got.shape == expected.shape, f"{what} has shape {got.shape}, not {expected.shape}"
    values = np.asarray(got).astype(np.float64)
    wrong = ~((np.rint(values) if nearest else values) == expected)
    if wrong.any():
        first = tuple(int(axis[0]) for axis in np.nonzero(wrong))
        raise AssertionError(
            f"{what}: {wrong.sum()} of {wrong.size} elements differ, first at {first}: "
            f"{values[first]} instead of {expected[first]}; largest difference "
            f"{np.nanmax(np.abs(values - expected))}"
        )


def assert_exact(
    got: Any, expected: np.ndarray, dtype: Any, what: str = "result", by_xla: bool = False
) -> None:
    """`assert_equal` for a convolution of integers, whatever its backend.

    ``by_xla`` says that no handler takes the problem, even where all problems are forced on them.
    """
    assert np.array_equal(np.rint(expected), expected), f"{what}: not integers"
    assert_equal(
        got, expected, dtype, what, may_transform() or (by_xla and jax.default_backend() == "gpu")
    )


def relative_error(got: Any, expected: np.ndarray) -> float:
    """Norm-wise error against float64, or long double."""
    difference = np.asarray(got).astype(np.float64) - expected
    size = float(np.linalg.norm(expected.ravel()))
    return float(np.linalg.norm(difference.ravel())) / max(size, 1e-300)


def value_and_gradients(f: Callable[..., Any]) -> Callable[..., Any]:
    """(dy, *operands) -> (f(*operands), its gradients for all operands), one compiled program."""

    @jax.jit
    def run(dy: Any, *operands: Any) -> Any:
        y, pullback = jax.vjp(f, *operands)
        return y, *pullback(dy)

    return run


def cast(dtype: str, *arrays: Any) -> tuple[jax.Array, ...]:
    return tuple(jnp.asarray(array, dtype) for array in arrays)

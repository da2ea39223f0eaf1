"""One function of some operands, ready to be called again and again, on a CPU or a GPU."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_convgrad._src.timing.device_clock import DeviceClock, JaxClock


@dataclasses.dataclass(frozen=True)
class Gpu:
    """The parts of timing on a GPU that depend on the form's framework; device.py uses them.

    Attributes:
      clock: the device's clock.
      hold: keeps the device busy for some milliseconds, and returns the last result of that work, for a
        mark behind it.
    """

    clock: DeviceClock
    hold: Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Runner:
    """One pass of one case, ready to be called again and again."""

    load: Callable[[Any], Any]
    call: Callable[[Any], Any]
    wait: Callable[[Any], None]
    fetch: Callable[[Any], dict[str, np.ndarray]]
    variant: str = ""
    # On a GPU: loads the operands again, into memory of their own, without the host, which takes longer.
    copy: Callable[[Any], Any] | None = None
    # On a GPU: the pass over several sets of operands, one after the other, as one program.
    batch: Callable[[Sequence[Any]], Sequence[Any]] | None = None
    gpu: Gpu | None = None

    def load_sets(self, inputs: Any, count: int) -> list[Any]:
        """This many sets of the same operands."""
        first = self.load(inputs)
        copy = self.copy or (lambda arrays: self.load(inputs))
        return [first, *(copy(first) for _ in range(count - 1))]

    def enqueue(self, sets: Sequence[Any]) -> Sequence[Any]:
        """The results for each set, all alive at once, computed one after the other."""
        if self.batch is not None and len(sets) > 1:
            return self.batch(sets)
        return [self.call(arrays) for arrays in sets]


def jax_runner(
    function: Callable[..., Any],
    load: Callable[[Any], Any],
    fetch: Callable[[Any], dict[str, np.ndarray]],
) -> Runner:
    """The runner of a JAX function: jitted, and on a GPU several calls as one program."""
    call, batch = jax.jit(function), jax.jit(chained(function))
    return Runner(
        load,
        lambda arrays: call(*arrays),
        jax.block_until_ready,
        fetch,
        copy=lambda arrays: tuple(map(jnp.copy, arrays)),
        batch=lambda sets: batch(tuple(sets)),
        gpu=jax_gpu() if jax.default_backend() == "gpu" else None,
    )


def chained(function: Callable[..., Any]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function of several sets of operands that calls ``function`` on one after the other.

    Each call's operands pass a barrier together with the results of the call before, so that the
    compiler can neither reorder the calls nor merge parts of them.
    """

    def run(sets: Sequence[Any]) -> tuple[Any, ...]:
        results: list[Any] = []
        for arrays in sets:
            if results:
                results[-1], arrays = jax.lax.optimization_barrier((results[-1], arrays))
            results.append(function(*arrays))
        return tuple(results)

    return run


# Matrix products to hold a GPU with: about 3 ms on an H100, more on a smaller one.
HOLD_SIZE, HOLD_PRODUCTS = 8192, 2


@functools.cache
def jax_gpu() -> Gpu:
    return Gpu(JaxClock(), lambda: _jax_busy()(_jax_square()))


@functools.cache
def _jax_square() -> jax.Array:
    return jnp.zeros((HOLD_SIZE, HOLD_SIZE), jnp.bfloat16)


@functools.cache
def _jax_busy() -> Callable[[jax.Array], jax.Array]:
    def products(a: jax.Array) -> jax.Array:
        # The whole product is computed, whatever part of it is asked for.
        product: jax.Array = jax.lax.optimization_barrier(
            functools.reduce(jnp.matmul, [a] * (HOLD_PRODUCTS + 1))
        )
        return product[0, 0]

    return jax.jit(products)

"""An override of the backend holds in its own context: no thread and no task decides by another one's."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jax_convgrad import conv_fprop
from jax_convgrad._src.dispatch.override import overridden_backend, override_backend

LOWERINGS = 1000
NHWC = ("NHWC", "HWIO", "NHWC")
# What only the one backend, and only the other, leaves in a lowered program, on every platform.
LEAVES = {"gemm": "stablehlo.dot_general", "xla": "stablehlo.convolution"}

# jaxlib 0.10.0 crashes now and then (a segmentation fault in jax.jit's own constructor) when thousands of
# functions are made in two threads and JAX's caches are dropped in between. What is tested is whose override
# a lowering sees while both hold, so one lowering at a time is enough.
LOWERS = threading.Lock()


def decided() -> str:
    """The backend of a convolution that is lowered now. Its windows do not overlap, so both can do it."""
    x, w = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1, 4, 4, 3), (2, 2, 3, 3)))
    with LOWERS:
        # A function of its own, so that JAX remembers nothing of it.
        layer = jax.jit(lambda x, w: conv_fprop(x, w, strides=(2, 2), dimension_numbers=NHWC))
        text = layer.lower(x, w).as_text()
    (backend,) = (name for name, operation in LEAVES.items() if operation in text)
    return backend


def test_two_threads_whose_overrides_overlap():
    """The first begins, the second begins, the first ends, the second ends; both lower while both hold."""
    turn = threading.Barrier(2, timeout=300)

    def first() -> list[str]:
        seen = []
        for _ in range(LOWERINGS):
            with override_backend("gemm"):
                turn.wait()
                turn.wait()
                seen.append(decided())
            assert overridden_backend() is None
            turn.wait()
        return seen

    def second() -> list[str]:
        seen = []
        for _ in range(LOWERINGS):
            turn.wait()
            assert overridden_backend() is None
            with override_backend("xla"):
                turn.wait()
                seen.append(decided())
                turn.wait()
                assert overridden_backend() == "xla"
        return seen

    with ThreadPoolExecutor(2) as pool:
        by_first, by_second = (pool.submit(run) for run in (first, second))
        assert by_first.result() == ["gemm"] * LOWERINGS
        assert by_second.result() == ["xla"] * LOWERINGS
    assert overridden_backend() is None


def test_a_thread_without_an_override_sees_none():
    """One that starts inside an override, too."""
    with override_backend("gemm"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(overridden_backend).result() is None
        assert overridden_backend() == "gemm"


def test_tasks_of_one_thread():
    async def run(mine: str, ready: asyncio.Event, other: asyncio.Event) -> Any:
        with override_backend(mine):
            ready.set()
            await other.wait()
            return overridden_backend(), decided()

    async def both() -> list[Any]:
        a, b = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(run("gemm", a, b), run("xla", b, a))

    assert asyncio.run(both()) == [("gemm", "gemm"), ("xla", "xla")]


def test_nested():
    with override_backend("gemm"):
        with override_backend("xla"):
            assert decided() == "xla"
            with override_backend(None):
                assert overridden_backend() is None
        assert decided() == "gemm"


def test_it_ends_where_its_body_raises():
    before = overridden_backend()
    with pytest.raises(ZeroDivisionError), override_backend("gemm"):
        1 / 0  # noqa: B018
    assert overridden_backend() == before

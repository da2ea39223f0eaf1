"""JAX reuses no program of a disabled() block outside of it, nor vice versa."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_convgrad
from jax_convgrad._src.conv import primitives
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.install import jax_image
from jax_convgrad._src.resize import primitives as resizes

pytestmark = [pytest.mark.on_cpu, pytest.mark.usefixtures("marked")]

Layer = Callable[[Any], Any]
IMAGE = jnp.ones((1, 4, 4, 32), jnp.float32)
PIXELS = jnp.ones((1, 4, 4, 8), jnp.float32)


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What this package computes comes out doubled, so that a result says which program has run."""

    def double(compute: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: 2 * compute(*args)

    def by_backend(emit: Callable[..., Any]) -> Callable[..., Any]:
        return lambda decision, *args: (
            emit(decision, *args) * (1 if decision.backend == "xla" else 2)
        )

    jax_convgrad.uninstall()
    jax.clear_caches()
    for module in (primitives, resizes):
        monkeypatch.setattr(module, "emit", by_backend(module.emit))
    monkeypatch.setattr(jax_image, "compute_resize", double(jax_image.compute_resize))
    with override_backend(None):
        yield
    jax_convgrad.uninstall()
    jax.clear_caches()


def transpose(layer: Callable[..., Any]) -> tuple[Layer, Any]:
    return lambda w: layer(IMAGE, w, (2, 2), "SAME"), jnp.ones((4, 4, 32, 16), jnp.float32)


def resize(module: Any) -> tuple[Layer, Any]:
    # By its name, as programs call it.
    return lambda x: module.resize(x, (1, 8, 8, 8), "linear"), PIXELS


SUBJECTS: dict[str, Callable[[], tuple[Layer, Any]]] = {
    "lax": lambda: transpose(lax.conv_transpose),
    "layer": lambda: transpose(jax_convgrad.conv_transpose),
    "jax.image": lambda: resize(jax.image),
    "resize": lambda: resize(jax_convgrad),
}


def scanned(layer: Layer) -> Layer:
    def body(x: Any, _: Any) -> tuple[Any, Any]:
        return x, layer(x)

    return lambda x: lax.scan(body, x, None, length=2)[1]


def chosen(layer: Layer) -> Layer:
    def other(x: Any) -> Any:
        return 0 * layer(x)

    return lambda x: lax.cond(x.ravel()[0] > 0, layer, other, x)


def mapped(layer: Layer) -> Layer:
    spec = jax.sharding.PartitionSpec()
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices("cpu")[:1])
    return jax.shard_map(layer, mesh=mesh, in_specs=spec, out_specs=spec)


def gradient(layer: Layer) -> Layer:
    return jax.grad(lambda x: jnp.sum(layer(x)))


def jit_in_jit(layer: Layer) -> Layer:
    inner = jax.jit(layer)
    return jax.jit(lambda x: inner(x))


def compiled_ahead(layer: Layer) -> Layer:
    jitted = jax.jit(layer)
    return lambda x: jitted.lower(x).compile()(x)


def inside_a_new_one(layer: Layer) -> Layer:
    inner = jax.jit(layer)
    return lambda x: jax.jit(lambda x: inner(x))(x)


def batched(layer: Layer) -> Layer:
    many = jax.vmap(layer)
    return lambda x: many(x[None])


# Programs of a layer. What JAX caches by, a function or a part of it, is the same object at each call.
PROGRAMS: dict[str, Callable[[Layer], Layer]] = {
    "eager": lambda layer: layer,
    "jit": jax.jit,
    "jit in jit": jit_in_jit,
    "jit in a new jit": inside_a_new_one,
    "compiled ahead": compiled_ahead,
    "grad": gradient,
    "grad in jit": lambda layer: jax.jit(gradient(layer)),
    "grad of jit": lambda layer: gradient(jax.jit(layer)),
    "vmap": batched,
    "vmap in jit": lambda layer: jax.jit(batched(layer)),
    "vmap of jit": lambda layer: batched(jax.jit(layer)),
    "scan": scanned,
    "cond": chosen,
    "checkpoint": lambda layer: gradient(jax.checkpoint(layer)),
    "shard_map in jit": lambda layer: jax.jit(mapped(layer)),
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_each_calls_its_own_program(subject: str, program: str):
    if subject in ("lax", "jax.image"):
        jax_convgrad.install("cpu")
    layer, x = SUBJECTS[subject]()

    def new() -> Callable[[], str]:
        run = PROGRAMS[program](lambda x: layer(x))
        return lambda: by_whom(run(x))

    with jax_convgrad.disabled():
        plain = np.asarray(PROGRAMS[program](lambda x: layer(x))(x))
    assert plain.any()

    def by_whom(result: Any) -> str:
        factor = np.asarray(result).ravel()[0] / plain.ravel()[0]
        return {1: "XLA", 2: "us", 4: "us"}[round(float(factor), 3)]

    with ThreadPoolExecutor(1) as elsewhere:
        for begins_inside in (False, True):
            who = new()
            if not begins_inside:
                assert who() == who() == "us"
            with jax_convgrad.disabled():
                assert who() == who() == "XLA"
                assert elsewhere.submit(who).result() == "us"
                assert who() == "XLA"
            assert who() == "us"


@pytest.fixture
def run() -> Callable[[], str]:
    """Calls one jitted layer, and returns "us" or "XLA", whichever computed it."""
    layer, x = SUBJECTS["layer"]()
    f = jax.jit(lambda x: layer(x))
    with jax_convgrad.disabled():
        plain = np.asarray(f(x)).ravel()[0]
    return lambda: {1: "XLA", 2: "us"}[round(float(np.asarray(f(x)).ravel()[0] / plain), 3)]


def test_tasks_whose_blocks_overlap_leave_nothing_behind(run: Callable[[], str]):
    """Each ends a block that began inside the other's, in the same thread."""

    async def enter(ready: asyncio.Event, other: asyncio.Event) -> None:
        with jax_convgrad.disabled():
            ready.set()
            await other.wait()
            assert run() == "XLA"

    async def both() -> None:
        a, b = asyncio.Event(), asyncio.Event()
        await asyncio.gather(enter(a, b), enter(b, a))

    asyncio.run(both())
    assert run() == "us"
    with jax_convgrad.disabled():
        assert run() == "XLA"


def test_a_task_that_was_made_in_a_block_runs_after_it(run: Callable[[], str]):
    async def main() -> None:
        async def late() -> str:
            with jax_convgrad.disabled():
                assert run() == "XLA"
            return run()

        with jax_convgrad.disabled():
            task = asyncio.create_task(late())
        assert await task == "us"

    asyncio.run(main())
    assert run() == "us"


def test_a_thread_in_the_context_of_a_block_is_not_inside_it(run: Callable[[], str]):
    async def main() -> None:
        with jax_convgrad.disabled():
            assert await asyncio.to_thread(run) == "us"
            assert run() == "XLA"

    asyncio.run(main())
    assert run() == "us"


def test_a_task_that_runs_while_a_block_awaits_is_inside_it(run: Callable[[], str]):
    async def main() -> None:
        async def block(ready: asyncio.Event) -> None:
            with jax_convgrad.disabled():
                await ready.wait()

        async def other(ready: asyncio.Event) -> str:
            who = run()
            ready.set()
            return who

        ready = asyncio.Event()
        assert (await asyncio.gather(block(ready), other(ready)))[1] == "XLA"

    asyncio.run(main())
    assert run() == "us"
    with jax_convgrad.disabled():
        assert run() == "XLA"

"""Every function of the contract on many devices: values of one device, and how results are split.

What is exchanged between devices is in sharding/.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from support.contract import FUNCTIONS, Function, per_function
from support.layer_cases import assert_same, ints
from support.meshes import DEVICES, make_mesh, put

from jax_convgrad import resize

per_check = pytest.mark.parametrize("check_vma", [True, False])


def split_along_examples(function: Function) -> tuple[P, ...]:
    return tuple(P("data") if i in function.batched else P() for i in function.every)


def example_specs(function: Function) -> tuple[P, ...]:
    """The first array split into an example for each device, the others the same everywhere."""
    return (P("data"), *(P(),) * (len(function.shapes) - 1))


def mapped_over_examples(function: Function, f: Callable[..., Any]) -> Callable[..., Any]:
    return jax.vmap(f, (0, *(None,) * (len(function.shapes) - 1)))


@pytest.mark.matrix("shard_map", devices=2)
@per_check
@per_function
def test_shard_map(name: str, check_vma: bool, rng: np.random.Generator):
    """Data parallelism: a gradient of what all devices have is the sum over them, which JAX adds by itself
    if and only if it knows (check_vma) that the array is the same everywhere."""
    function = FUNCTIONS[name]
    arrays = function.ints(rng, examples={0: DEVICES})
    tangents = function.ints(rng, examples={0: DEVICES})
    each = mapped_over_examples(function, function.theirs)
    value, tangent = jax.jvp(each, arrays, tangents)
    expected = value, tangent, *jax.grad(function.squares(each), function.every)(*arrays)
    specs = example_specs(function)

    def local(f: Callable[..., Any], *both: Any) -> Any:
        arrays, tangents = both[: len(specs)], both[len(specs) :]
        one = lambda a, *rest: f(a[0], *rest)[None]  # noqa: E731
        value, tangent = jax.jvp(one, arrays, tangents)
        first, *rest = jax.grad(function.squares(one), function.every)(*arrays)
        rest = rest if check_vma else [lax.psum(g, "data") for g in rest]
        return value, tangent, first, *rest

    with function.active() as ours:
        run = jax.shard_map(
            functools.partial(local, ours),
            mesh=make_mesh(AxisType.Auto),
            in_specs=specs * 2,
            out_specs=(P("data"), P("data"), *specs),
            check_vma=check_vma,
        )
        assert_same(jax.jit(run)(*arrays, *tangents), expected)


@per_check
@per_function
def test_a_gradient_around_shard_map(name: str, check_vma: bool, rng: np.random.Generator):
    function = FUNCTIONS[name]
    arrays = function.ints(rng, examples={0: DEVICES})
    each = mapped_over_examples(function, function.theirs)
    expected = jax.grad(function.squares(each), function.every)(*arrays)
    with function.active() as ours:

        @functools.partial(
            jax.shard_map,
            mesh=make_mesh(AxisType.Auto),
            in_specs=example_specs(function),
            out_specs=P(),
            check_vma=check_vma,
        )
        def loss(a: Any, *rest: Any) -> Any:
            return lax.psum(function.squares(ours)(a[0], *rest), "data")

        assert_same(jax.jit(jax.grad(loss, function.every))(*arrays), expected)


@per_function
def test_vmap_inside_shard_map(name: str, rng: np.random.Generator):
    """Gradients of each example's own, two examples to a device."""
    function = FUNCTIONS[name]
    arrays = function.ints(rng, examples={0: 2 * DEVICES})
    axes = (0, *(None,) * (len(function.shapes) - 1))
    gradients = lambda f: jax.vmap(jax.grad(function.squares(f), function.every), axes)  # noqa: E731
    expected = gradients(function.theirs)(*arrays)
    with function.active() as ours:
        run = jax.shard_map(
            gradients(ours),
            mesh=make_mesh(AxisType.Auto),
            in_specs=example_specs(function),
            out_specs=P("data"),
            check_vma=False,
        )
        assert_same(jax.jit(run)(*arrays), expected)


@pytest.mark.matrix("pmap", devices=2)
@per_function
def test_pmap(name: str, rng: np.random.Generator):
    function = FUNCTIONS[name]
    arrays = function.ints(rng, examples={0: DEVICES})
    axes = (0, *(None,) * (len(function.shapes) - 1))
    gradients = lambda f: jax.grad(function.squares(f), function.every)  # noqa: E731
    first, *rest = jax.vmap(gradients(function.theirs), axes)(*arrays)
    summed = [jnp.broadcast_to(g.sum(0), g.shape) for g in rest]
    with function.active() as ours:

        def local(*arrays: Any) -> Any:
            first, *rest = gradients(ours)(*arrays)
            return first, rest, lax.psum(rest, "i")

        run = jax.pmap(local, "i", in_axes=axes, devices=jax.devices()[:DEVICES])
        assert_same(run(*arrays), (first, rest, summed))


@pytest.mark.matrix("jit of sharded arrays", devices=2)
@per_function
def test_sharded_jit(name: str, rng: np.random.Generator):
    function = FUNCTIONS[name]
    arrays = function.ints(rng, batch=2 * DEVICES)
    mesh = make_mesh(AxisType.Auto)
    specs = split_along_examples(function)
    both = lambda f: lambda *a: (f(*a), jax.grad(function.squares(f), function.every)(*a))  # noqa: E731
    expected = both(function.theirs)(*arrays)
    with function.active() as ours:
        split = [put(a, mesh, *spec) for a, spec in zip(arrays, specs, strict=True)]
        assert_same(jax.jit(both(ours))(*split), expected)


@pytest.mark.parametrize("axis", [0, 1, 3])
def test_sharded_jit_of_a_resize(axis: int, rng: np.random.Generator):
    """Split along the batch, along a resized axis, along the channels."""
    shape = [2, 4, 6, 3]
    shape[axis] = DEVICES * 2
    (x,) = ints(rng, tuple(shape))
    after = (shape[0], shape[1] * 2, 3, shape[3])
    gradient = lambda f: jax.grad(lambda x: jnp.sum(f(x, after, "linear", False) ** 2))  # noqa: E731
    split = put(x, make_mesh(AxisType.Auto), *(None,) * axis, "data")
    assert_same(jax.jit(gradient(resize))(split), gradient(jax.image.resize)(x))


@pytest.mark.matrix("sharding in types", devices=2)
@per_function
def test_explicit_mesh(name: str, rng: np.random.Generator):
    """With sharding in types, examples stay split in result and gradients, and parameters stay whole."""
    function = FUNCTIONS[name]
    arrays = function.ints(rng, batch=2 * DEVICES)
    both = lambda f: lambda *a: (f(*a), jax.grad(function.squares(f), function.every)(*a))  # noqa: E731
    expected = both(function.theirs)(*arrays)
    specs = split_along_examples(function)
    with function.active() as ours, jax.set_mesh(make_mesh(AxisType.Explicit)):
        split = [jax.device_put(a, spec) for a, spec in zip(arrays, specs, strict=True)]
        got = jax.jit(both(ours))(*split)
        value, gradients = got
        if not function.sums:
            assert jax.typeof(value).sharding.spec[0] == "data"
        for gradient, array in zip(gradients, split, strict=True):
            assert jax.typeof(gradient).sharding == jax.typeof(array).sharding
    assert_same(got, expected)


def test_a_resized_axis_in_an_explicit_mesh(rng: np.random.Generator):
    """It is whole in the result, and split in the gradient as it is in the image."""
    (x,) = ints(rng, (2, 2 * DEVICES, 6, 3))
    grow = lambda x: resize(x, (2, DEVICES, 6, 3), "linear")  # noqa: E731
    with jax.set_mesh(make_mesh(AxisType.Explicit)):
        by_rows = jax.device_put(x, P(None, "data"))
        assert jax.typeof(jax.jit(grow)(by_rows)).sharding.spec[1] is None
        back = jax.jit(jax.grad(lambda x: grow(x).sum()))(by_rows)
        assert jax.typeof(back).sharding.spec[1] == "data"


@per_check
@per_function
def test_what_all_devices_have(name: str, check_vma: bool, rng: np.random.Generator):
    """Arrays that are the same everywhere give results that are, and meet arrays that are split."""
    function = FUNCTIONS[name]
    arrays = function.ints(rng)
    (shifts,) = ints(rng, (DEVICES, *arrays[0].shape))
    moved = lambda f: lambda a, shift, *rest: f(a + shift, *rest)  # noqa: E731
    every = tuple(range(len(arrays) + 1))
    axes = (None, 0, *(None,) * (len(arrays) - 1))
    both = lambda f: jax.grad(function.squares(moved(f)), every)  # noqa: E731
    loss = lambda *a: jnp.sum(jax.vmap(moved(function.theirs), axes)(*a) ** 2)  # noqa: E731
    expected = jax.grad(loss, every)(arrays[0], shifts, *arrays[1:]), function.theirs(*arrays)
    specs = tuple(P() if axis is None else P("data") for axis in axes)
    with function.active() as ours:

        def local(a: Any, shift: Any, *rest: Any) -> Any:
            da, dshift, *drest = both(ours)(a, shift[0], *rest)
            whole = (da, *drest) if check_vma else lax.psum((da, *drest), "data")
            return (whole[0], dshift[None], *whole[1:]), ours(a, *rest)

        run = jax.shard_map(
            local,
            mesh=make_mesh(AxisType.Auto),
            in_specs=specs,
            out_specs=(specs, P()),
            check_vma=check_vma,
        )
        assert_same(jax.jit(run)(arrays[0], shifts, *arrays[1:]), expected)


@per_function
def test_explicit_mesh_of_one_device(name: str, rng: np.random.Generator):
    function = FUNCTIONS[name]
    arrays = function.ints(rng)
    gradients = lambda f: jax.grad(function.squares(f), function.every)  # noqa: E731
    expected = gradients(function.theirs)(*arrays)
    with function.active() as ours:
        with jax.set_mesh(make_mesh(AxisType.Explicit, {"data": 1})):
            specs = split_along_examples(function)
            split = [jax.device_put(a, spec) for a, spec in zip(arrays, specs, strict=True)]
            got = jax.jit(gradients(ours))(*split)
    assert_same(got, expected)

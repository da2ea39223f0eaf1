"""What JAX can do to a function it can do to all kinds of resizes: derivatives, batching, sharding.

What is the same for the three layers is in test_autodiff.py, test_batching.py, test_programs.py and
test_export.py.

float32 and small integers, resized by factors of two, so that all sums are exact in any order.
Derivatives against finite differences are in test_resize.py.
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
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from support import jax_internals
from support.meshes import DEVICES, make_mesh

from jax_convgrad import resample, resample_transpose, resize, scale_and_translate

X, Y = (2, 4, 6, 3), (2, 8, 3, 3)


def up_and_down(x: Any) -> jax.Array:
    return resize(x, (*x.shape[:-3], 8, 3, 3), "linear", False)


def theirs(x: Any) -> jax.Array:
    return jax.image.resize(x, (*x.shape[:-3], 8, 3, 3), "linear", False)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "resize": (up_and_down, X),
    "nearest": (lambda x: resize(x, Y, "nearest"), X),
    "resample": (functools.partial(resample, shape=Y, method="linear", antialias=False), X),
    "transpose": (
        functools.partial(resample_transpose, shape=X, method="linear", antialias=False),
        Y,
    ),
    "translate": (
        lambda x: scale_and_translate(x, (2, 8, 6, 3), (1,), [2.0], [1.0], "linear"),
        X,
    ),
}
per_function = pytest.mark.parametrize("name", list(FUNCTIONS))


def ints(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[jax.Array]:
    return [jnp.asarray(rng.integers(-4, 5, shape), np.float32) for shape in shapes]


def assert_same(got: Any, expected: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def resamples_in(f: Callable[..., Any], *arguments: Any) -> int:
    return str(jax.make_jaxpr(f)(*arguments)).count("resample[")


@per_function
def test_forward_mode_and_linearize(name: str, rng: np.random.Generator):
    f, shape = FUNCTIONS[name]
    x, dx = ints(rng, shape, shape)
    value, tangent = jax.jvp(f, (x,), (dx,))
    assert_same((value, tangent), (f(x), f(dx)))
    value, linear = jax.linearize(f, x)
    assert_same(linear(dx), f(dx))
    (back,) = jax.linear_transpose(f, x)(value)
    assert_same(jnp.vdot(back, dx), jnp.vdot(value, f(dx)))
    assert_same(jax.jacfwd(f)(x), jax.jacrev(f)(x))


@per_function
def test_second_order(name: str, rng: np.random.Generator):
    f, shape = FUNCTIONS[name]
    x, dx = ints(rng, shape, shape)
    loss = lambda x: jnp.sum(f(x) ** 2)  # noqa: E731
    gradient = jax.grad(loss)(x)
    assert_same(gradient, jax.vjp(f, x)[1](2 * f(x))[0])
    product = jax.jvp(jax.grad(loss), (x,), (dx,))[1]
    assert_same(product, jax.vjp(f, x)[1](2 * f(dx))[0])
    assert_same(jax.grad(lambda x: jnp.vdot(jax.grad(loss)(x), dx))(x), product)
    hessian = jax.hessian(loss)(x)
    assert_same(jnp.tensordot(hessian, dx, dx.ndim), product)


def test_a_transpose_of_a_transpose_is_the_function(rng: np.random.Generator):
    (x,) = ints(rng, X)
    twice = jax.linear_transpose(
        lambda dy: jax.linear_transpose(up_and_down, x)(dy)[0], jax.eval_shape(up_and_down, x)
    )
    assert_same(twice(x)[0], up_and_down(x))


@pytest.mark.matrix("vmap, every operand and axis", "resize")
@per_function
def test_vmap_in_every_position(name: str, rng: np.random.Generator):
    f, shape = FUNCTIONS[name]
    examples = ints(rng, *([shape] * 3))
    expected = jnp.stack([f(x) for x in examples])
    for axis in range(len(shape) + 1):
        stacked = jnp.stack(examples, axis)
        assert_same(jax.vmap(f, axis)(stacked), expected)
        assert_same(jnp.moveaxis(jax.vmap(f, axis, axis)(stacked), axis, 0), expected)
        gradient = jax.vmap(jax.grad(lambda x: jnp.sum(f(x) ** 2)), axis)(stacked)
        assert_same(
            gradient, jnp.stack([jax.grad(lambda x: jnp.sum(f(x) ** 2))(x) for x in examples])
        )
    assert resamples_in(jax.vmap(f, 2), jnp.stack(examples, 2)) == 1


@per_function
def test_nested_vmap(name: str, rng: np.random.Generator):
    f, shape = FUNCTIONS[name]
    (x,) = ints(rng, (2, 3, *shape))
    expected = jnp.stack([jnp.stack([f(x[i, j]) for j in range(3)]) for i in range(2)])
    assert_same(jax.vmap(jax.vmap(f))(x), expected)


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


@per_function
def test_without_jit(name: str, rng: np.random.Generator):
    f, shape = FUNCTIONS[name]
    (x,) = ints(rng, shape)
    expected = jax.grad(lambda x: jnp.sum(f(x) ** 2))(x)
    with jax.disable_jit():
        assert_same(jax.grad(lambda x: jnp.sum(f(x) ** 2))(x), expected)


@per_function
def test_eval_shape_weak_types_and_numpy(name: str, rng: np.random.Generator):
    f, shape = FUNCTIONS[name]
    (x,) = ints(rng, shape)
    abstract, real = jax.eval_shape(f, x), f(x)
    assert (abstract.shape, abstract.dtype) == (real.shape, real.dtype)
    assert_same(f(np.asarray(x)), real)
    weak = jnp.broadcast_to(jnp.asarray(2.0), shape)
    assert weak.weak_type and not f(weak).weak_type


def test_the_compiled_program_is_found_again(rng: np.random.Generator):
    """Tables made anew are equal to those of the first trace."""
    from jax_convgrad._src.resize import bands

    f = jax.jit(lambda x, shape: resize(x, shape, "cubic"), static_argnums=1)
    for _ in range(3):
        f(*ints(rng, X), Y)
        bands.make_band.cache_clear()
    assert jax_internals.cache_size(f) == 1


# Many devices.


@pytest.fixture
def mesh() -> jax.sharding.Mesh:
    return make_mesh(jax.sharding.AxisType.Auto)


def weighted_loss(f: Callable[..., Any], weight: Any, x: Any) -> Any:
    return jnp.sum((weight * f(x)) ** 2)


@pytest.mark.matrix("shard_map", "resize", devices=2)
@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map(check_vma: bool, mesh: Any, rng: np.random.Generator):
    """A replicated image meets split data; its gradient is the sum over the devices."""
    (xs, image), weight = ints(rng, (2 * DEVICES, 4, 6, 3), (2, 4, 6, 3)), jnp.float32(2)

    def local(image: Any, xs: Any) -> Any:
        loss = lambda image, xs: weighted_loss(up_and_down, weight, image + xs)  # noqa: E731
        dimage, dxs = jax.grad(loss, (0, 1))(image, xs)
        return (dimage if check_vma else lax.psum(dimage, "data")), dxs, up_and_down(image)

    run = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(P(), P("data")),
        out_specs=(P(), P("data"), P()),
        check_vma=check_vma,
    )
    dimage, dxs, value = jax.jit(run)(image, xs)
    each = xs.reshape(DEVICES, 2, 4, 6, 3)
    gradient = jax.vmap(lambda x: jax.grad(lambda a: weighted_loss(theirs, weight, a))(image + x))(
        each
    )
    assert_same(dxs.reshape(each.shape), gradient)
    assert_same(dimage, gradient.sum(0))
    assert_same(value, theirs(image))


@pytest.mark.matrix("jit of sharded arrays", "resize", devices=2)
@pytest.mark.parametrize("axis", [0, 1, 3])
def test_sharded_jit(axis: int, mesh: Any, rng: np.random.Generator):
    """Split along the batch, along a resized axis, along the channels."""
    shape = [2, 4, 6, 3]
    shape[axis] = DEVICES * 2
    (x,) = ints(rng, tuple(shape))
    after = (shape[0], shape[1] * 2, 3, shape[3])

    def gradient(f: Callable[..., Any]) -> Callable[..., Any]:
        return jax.grad(lambda x: jnp.sum(f(x, after, "linear", False) ** 2))

    spec = [None] * 4
    spec[axis] = "data"
    split = jax.device_put(x, NamedSharding(mesh, P(*spec)))
    assert_same(jax.jit(gradient(resize))(split), gradient(jax.image.resize)(x))


@pytest.mark.matrix("sharding in types", "resize", devices=2)
def test_explicit_mesh(rng: np.random.Generator):
    """With sharding in types, what is not resized stays split, and comes back split."""
    (x,) = ints(rng, (2 * DEVICES, 4, 6, 3))
    mesh = make_mesh(jax.sharding.AxisType.Explicit)
    loss = lambda f, x: jnp.sum(f(x) ** 2)  # noqa: E731
    with jax.set_mesh(mesh):
        split = jax.device_put(x, P("data"))
        assert jax.typeof(jax.jit(up_and_down)(split)).sharding.spec[0] == "data"
        gradient = jax.jit(jax.grad(functools.partial(loss, up_and_down)))(split)
        assert jax.typeof(gradient).sharding.spec[0] == "data"
        by_rows = jax.device_put(jnp.tile(x, (1, 4, 1, 1))[:2, :16], P(None, "data"))
        rows = jax.jit(lambda x: resize(x, (2, 8, 6, 3), "linear"))(by_rows)
        assert jax.typeof(rows).sharding.spec[1] is None
        back = jax.jit(jax.grad(lambda x: resize(x, (2, 8, 6, 3), "linear").sum()))(by_rows)
        assert jax.typeof(back).sharding.spec[1] == "data"
    assert_same(gradient, jax.grad(functools.partial(loss, theirs))(x))

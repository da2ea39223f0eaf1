"""What JAX can do to a function it can do to these: the operators by themselves, and many devices.

Derivatives of the layers are in test_autodiff.py, their batching in test_batching.py, programs around
them in test_programs.py and test_export.py.

Everything is float32, which the compiled handlers serve, holds small integers and goes through
polynomials only, so that all orders of all sums agree exactly; where XLA may compute with engines
that transform (see cases.py), it is float64. Derivatives against finite differences, in float64, are
in test_conv.py.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
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
from support.layer_cases import (
    GEOMETRY,
    W,
    X,
    Y,
    assert_same,
    compiled_text,
    convolutions_in,
    ints,
    operators_in,
)
from support.meshes import DEVICES, make_mesh

from jax_convgrad import conv_dgrad, conv_fprop, conv_general_dilated, conv_transpose, conv_wgrad
from jax_convgrad._src.conv import primitives

pytestmark = pytest.mark.optimised

OPERATORS: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    "fprop": (functools.partial(conv_fprop, **GEOMETRY), X, W),
    "dgrad": (functools.partial(conv_dgrad, x_shape=X, **GEOMETRY), Y, W),
    "wgrad": (functools.partial(conv_wgrad, w_shape=W, **GEOMETRY), X, Y),
}

NHWC = ("NHWC", "HWIO", "NHWC")


def conv_layer(x: Any, w: Any, bias: Any = None) -> jax.Array:
    return conv_general_dilated(
        x, w, (2, 1), ((1, 1), (0, 2)), None, (1, 2), NHWC, feature_group_count=2, bias=bias
    )


def lax_conv_layer(x: Any, w: Any, bias: Any = 0) -> jax.Array:
    return bias + lax.conv_general_dilated(
        x, w, (2, 1), ((1, 1), (0, 2)), None, (1, 2), NHWC, feature_group_count=2
    )


def transpose_layer(x: Any, w: Any, bias: Any = None) -> jax.Array:
    return conv_transpose(x, w, (2, 2), "SAME", bias=bias)


def lax_transpose_layer(x: Any, w: Any, bias: Any = 0) -> jax.Array:
    return bias + lax.conv_transpose(x, w, (2, 2), "SAME")


# (ours, lax's, x, w, output channels)
LAYERS = {
    "conv": (conv_layer, lax_conv_layer, (2, 5, 6, 4), (3, 2, 2, 6), 6),
    "transpose": (transpose_layer, lax_transpose_layer, (2, 3, 2, 4), (3, 4, 4, 3), 3),
}

per_operator = pytest.mark.parametrize("name", list(OPERATORS))
per_layer = pytest.mark.parametrize("name", list(LAYERS))


# Derivatives.


@per_operator
def test_forward_mode(name: str, rng: np.random.Generator):
    f, *shapes = OPERATORS[name]
    a, b, da, db = ints(rng, *shapes, *shapes)
    value, tangent = jax.jvp(f, (a, b), (da, db))
    assert_same(value, f(a, b))
    assert_same(tangent, f(da, b) + f(a, db))
    _, tangent = jax.jvp(lambda b: f(a, b), (b,), (db,))
    assert_same(tangent, f(a, db))
    jacobian = jax.jacfwd(f, argnums=1)(a, b)
    assert_same(jnp.tensordot(jacobian, db, db.ndim), f(a, db))
    assert_same(jacobian, jax.jacrev(f, argnums=1)(a, b))


@per_operator
def test_linearize_and_transpose(name: str, rng: np.random.Generator):
    f, *shapes = OPERATORS[name]
    a, b, da, db = ints(rng, *shapes, *shapes)
    value, linear = jax.linearize(f, a, b)
    assert_same(linear(da, db), f(da, b) + f(a, db))
    (back,) = jax.linear_transpose(lambda a: f(a, b), a)(value)
    assert_same(jnp.vdot(back, da), jnp.vdot(value, f(da, b)))


# Only what is asked for is computed.

GRADIENTS = {
    "conv": {"x": "conv_dgrad", "w": "conv_wgrad"},
    "transpose": {"x": "conv_fprop", "w": "conv_wgrad"},
}
FORWARD = {"conv": "conv_fprop", "transpose": "conv_dgrad"}


@pytest.mark.parametrize("wrt", ["x", "w", "xw", "b", "wb"])
@per_layer
def test_an_undifferentiated_operand_leaves_no_call(
    name: str, wrt: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
):
    ours, _, x_shape, w_shape, channels = LAYERS[name]
    x, w, bias = ints(rng, x_shape, w_shape, (channels,))
    (ct,) = ints(rng, ours(x, w).shape)
    gradient = jax.grad(
        lambda x, w, b: jnp.vdot(ours(x, w, b), ct), tuple("xwb".index(o) for o in wrt)
    )
    wanted = Counter(GRADIENTS[name][operand] for operand in wrt if operand != "b")

    # Traced: the forward pass, which the compiler drops, and the gradients asked for.
    assert operators_in(gradient, x, w, bias) == wanted + Counter([FORWARD[name]])
    # Compiled: the loss is linear, so the gradients are all there is.
    assert convolutions_in(compiled_text(gradient, x, w, bias)) == wanted.total()
    # Eager: what is really run.
    run: Counter[str] = Counter()
    for primitive in (primitives.conv_fprop_p, primitives.conv_dgrad_p, primitives.conv_wgrad_p):

        def counted(
            *operands: Any, _p: Any = primitive, _impl: Any = primitive.impl, **params: Any
        ) -> Any:
            run[_p.name] += 1
            return _impl(*operands, **params)

        monkeypatch.setattr(primitive, "impl", counted)
    gradient(x, w, bias)
    assert run == wanted + Counter([FORWARD[name]])


@per_layer
def test_a_constant_loss_has_zero_gradients(name: str, rng: np.random.Generator):
    ours, _, x_shape, w_shape, _ = LAYERS[name]
    x, w = ints(rng, x_shape, w_shape)
    gradients = jax.grad(lambda x, w: 0.0 * jnp.sum(lax.stop_gradient(ours(x, w))), (0, 1))(x, w)
    assert_same(gradients, (jnp.zeros(x_shape), jnp.zeros(w_shape)))


# Batching.


def stacked(f: Callable[..., Any], mapped: tuple[int | None, ...], size: int, *arrays: Any) -> Any:
    """What vmap means: one call per example."""
    pick = lambda a, axis, i: a if axis is None else jnp.take(a, i, axis)  # noqa: E731
    return jnp.stack(
        [f(*(pick(a, m, i) for a, m in zip(arrays, mapped, strict=True))) for i in range(size)]
    )


@per_operator
@pytest.mark.parametrize("batched", ["first", "second", "both"])
def test_vmap_in_every_position(name: str, batched: str, rng: np.random.Generator):
    f, *shapes = OPERATORS[name]
    rank = len(shapes[0])
    positions = {
        "first": [(i, None) for i in range(rank + 1)],
        "second": [(None, i) for i in range(rank + 1)],
        "both": [*((i, i) for i in range(rank + 1)), (0, rank), (rank, 1), (2, 0)],
    }[batched]
    examples = [ints(rng, *([shape] * 3)) for shape in shapes]
    expected = None
    for axes in positions:
        arrays = [
            per_example[0] if axis is None else jnp.stack(per_example, axis)
            for per_example, axis in zip(examples, axes, strict=True)
        ]
        if expected is None:
            expected = stacked(f, axes, 3, *arrays)
        assert_same(jax.vmap(f, axes)(*arrays), expected)
    for out in range(rank + 1):
        assert_same(jnp.moveaxis(jax.vmap(f, axes, out)(*arrays), out, 0), expected)


@per_operator
def test_nested_vmap(name: str, rng: np.random.Generator):
    f, *shapes = OPERATORS[name]
    a, b = ints(rng, (2, 3, *shapes[0]), (3, *shapes[1]))
    got = jax.vmap(jax.vmap(f), (0, None))(a, b)
    assert_same(got, jnp.stack([jnp.stack([f(a[i, j], b[j]) for j in range(3)]) for i in range(2)]))
    a, b = ints(rng, (2, *shapes[0]), (3, *shapes[1]))
    got = jax.vmap(jax.vmap(f, (None, 0)), (0, None))(a, b)  # every pair
    assert_same(got, jnp.stack([jnp.stack([f(a[i], b[j]) for j in range(3)]) for i in range(2)]))


@pytest.mark.matrix("vmap, every operand and axis", "convolution", "conv_transpose")
@per_layer
@pytest.mark.parametrize(
    "axes",
    [
        a
        for a in itertools.product((0, None, 2), (0, None, 3), (0, None))
        if any(i is not None for i in a)
    ],
)
def test_vmap_of_layers(name: str, axes: tuple[int | None, ...], rng: np.random.Generator):
    ours, theirs, *shapes, channels = LAYERS[name]
    arrays = [
        a if axis is None else jnp.moveaxis(jnp.stack([a, 2 * a, -a]), 0, axis)
        for a, axis in zip(ints(rng, *shapes, (channels,)), axes, strict=True)
    ]
    assert_same(jax.vmap(ours, axes)(*arrays), jax.vmap(theirs, axes)(*arrays))


@per_operator
def test_vmap_makes_no_loop(name: str, rng: np.random.Generator):
    f, *shapes = OPERATORS[name]
    a, b = ints(rng, *((3, *shape) for shape in shapes))
    for axes, arrays in {(0, 0): (a, b), (0, None): (a, b[0]), (None, 0): (a[0], b)}.items():
        text = compiled_text(jax.vmap(f, axes), *arrays)
        assert " while(" not in text
        assert convolutions_in(text) == 1


# Shapes, dtypes and caches.


@per_layer
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes_are_kept(name: str, dtype: str):
    ours, theirs, x_shape, w_shape, channels = LAYERS[name]
    # Weakly typed constants, as in x * 0 + 1.
    x, w, bias = (
        jnp.broadcast_to(jnp.asarray(1.0, dtype), s) for s in (x_shape, w_shape, (channels,))
    )
    for f in (ours, jax.jit(ours)):
        y = f(x, w, bias)
        assert y.dtype == dtype and not y.weak_type
        assert y.shape == theirs(x, w).shape
    gradients = jax.grad(lambda *a: jnp.sum(ours(*a)).astype(np.float32), (0, 1, 2))(x, w, bias)
    for gradient, operand in zip(gradients, (x, w, bias), strict=True):
        assert (gradient.shape, gradient.dtype) == (operand.shape, operand.dtype)
        assert not gradient.weak_type


@per_operator
def test_weak_types_do_not_come_out(name: str):
    f, *shapes = OPERATORS[name]
    a, b = (jnp.broadcast_to(jnp.asarray(2.0), shape) for shape in shapes)
    assert a.weak_type
    result = f(a, b)
    assert result.dtype == np.float64 and not result.weak_type
    assert not jax.eval_shape(f, a, b).weak_type


@per_operator
def test_eval_shape_is_what_comes_out(name: str, rng: np.random.Generator):
    f, *shapes = OPERATORS[name]
    arrays = [array.astype(np.float32) for array in ints(rng, *shapes)]
    abstract, real = jax.eval_shape(f, *arrays), f(*arrays)
    assert (abstract.shape, abstract.dtype) == (real.shape, real.dtype)


@per_operator
def test_the_compiled_program_is_found_again(name: str, rng: np.random.Generator):
    f, *shapes = OPERATORS[name]
    traces = []

    @jax.jit
    def g(a: Any, b: Any) -> Any:
        traces.append(None)
        return f(a, b)

    for _ in range(3):
        g(*ints(rng, *shapes))
    assert len(traces) == 1 and jax_internals.cache_size(g) == 1


@per_layer
def test_numpy_arrays_and_lists_are_arrays(name: str, rng: np.random.Generator):
    ours, _, x_shape, w_shape, _ = LAYERS[name]
    x, w = ints(rng, x_shape, w_shape)
    assert_same(ours(np.asarray(x), np.asarray(w)), ours(x, w))


# Many devices.


@pytest.fixture
def mesh() -> jax.sharding.Mesh:
    return make_mesh(jax.sharding.AxisType.Auto)


def sharded_problem(name: str, rng: np.random.Generator) -> Any:
    """ours, lax's, a batch that divides among the devices, and the replicated parameters."""
    ours, theirs, (_, *rest), w_shape, channels = LAYERS[name]
    x, w, bias = ints(rng, (2 * DEVICES, *rest), w_shape, (channels,))
    return ours, theirs, x, (w, bias)


def loss_of(layer: Any, params: Any, x: Any) -> Any:
    return jnp.sum(layer(x, *params) ** 2)


@pytest.mark.parametrize("check_vma", [True, False])
@per_layer
def test_shard_map_gradient_outside(
    name: str, check_vma: bool, mesh: Any, rng: np.random.Generator
):
    ours, theirs, x, params = sharded_problem(name, rng)

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=check_vma
    )
    def loss(params: Any, x: Any) -> Any:
        return lax.psum(loss_of(ours, params, x), "data")

    got = jax.jit(jax.value_and_grad(loss, (0, 1)))(params, x)
    assert_same(got, jax.value_and_grad(functools.partial(loss_of, theirs), (0, 1))(params, x))


@pytest.mark.matrix("shard_map", "convolution", "conv_transpose", devices=2)
@pytest.mark.parametrize("check_vma", [True, False])
@per_layer
def test_shard_map_gradient_inside(name: str, check_vma: bool, mesh: Any, rng: np.random.Generator):
    """Data parallelism: the weights' gradient is the sum over devices, which JAX adds by itself if
    and only if it knows (check_vma) that the weights are the same everywhere."""
    ours, theirs, x, params = sharded_problem(name, rng)

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P(), P("data")),
        out_specs=(P(), P("data")),
        check_vma=check_vma,
    )
    def gradients(params: Any, x: Any) -> Any:
        dparams, dx = jax.grad(functools.partial(loss_of, ours), (0, 1))(params, x)
        return (dparams if check_vma else lax.psum(dparams, "data")), dx

    got = jax.jit(gradients)(params, x)
    assert_same(got, jax.grad(functools.partial(loss_of, theirs), (0, 1))(params, x))


@pytest.mark.parametrize("check_vma", [True, False])
@per_operator
def test_shard_map_of_operators(name: str, check_vma: bool, mesh: Any, rng: np.random.Generator):
    """One operand split over the devices as examples, the other the same everywhere."""
    f, *shapes = OPERATORS[name]
    a, b, da, db = ints(rng, (DEVICES, *shapes[0]), shapes[1], (DEVICES, *shapes[0]), shapes[1])
    ct = ints(rng, (DEVICES, *f(a[0], b).shape))[0]

    def local(a: Any, b: Any, da: Any, db: Any, ct: Any) -> Any:
        value, tangent = jax.jvp(f, (a[0], b), (da[0], db))
        _, pullback = jax.vjp(f, a[0], b)
        back_a, back_b = pullback(ct[0])
        back_b = back_b if check_vma else lax.psum(back_b, "data")
        return value[None], tangent[None], back_a[None], back_b

    run = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(P("data"), P(), P("data"), P(), P("data")),
        out_specs=(P("data"), P("data"), P("data"), P()),
        check_vma=check_vma,
    )
    value, tangent, back_a, back_b = jax.jit(run)(a, b, da, db, ct)
    each = jax.vmap(f, (0, None))
    assert_same(value, each(a, b))
    assert_same(tangent, each(da, b) + each(a, db))
    expected_a, expected_b = jax.vjp(each, a, b)[1](ct)
    assert_same((back_a, back_b), (expected_a, expected_b))


@pytest.mark.matrix("jit of sharded arrays", "convolution", "conv_transpose", devices=2)
@per_layer
def test_sharded_jit(name: str, mesh: Any, rng: np.random.Generator):
    ours, theirs, x, params = sharded_problem(name, rng)
    split = jax.device_put(x, NamedSharding(mesh, P("data")))
    replicated = jax.device_put(params, NamedSharding(mesh, P()))
    got = jax.jit(jax.value_and_grad(functools.partial(loss_of, ours), (0, 1)))(replicated, split)
    assert_same(got, jax.value_and_grad(functools.partial(loss_of, theirs), (0, 1))(params, x))


@pytest.mark.matrix("sharding in types", "convolution", "conv_transpose", devices=2)
@per_layer
def test_explicit_mesh(name: str, rng: np.random.Generator):
    """With sharding in types the batch's carries over to the result and back; dw is replicated."""
    ours, theirs, x, params = sharded_problem(name, rng)
    with jax.set_mesh(make_mesh(jax.sharding.AxisType.Explicit)):
        split, replicated = jax.device_put(x, P("data")), jax.device_put(params, P())
        y = jax.jit(ours)(split, *replicated)
        assert jax.typeof(y).sharding.spec[0] == "data"
        dparams, dx = jax.jit(jax.grad(functools.partial(loss_of, ours), (0, 1)))(replicated, split)
        assert jax.typeof(dx).sharding.spec[0] == "data"
    assert_same((dparams, dx), jax.grad(functools.partial(loss_of, theirs), (0, 1))(params, x))

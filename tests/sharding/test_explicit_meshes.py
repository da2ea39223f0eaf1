"""Sharding in types: which results are split how, and which splits are ambiguous."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from support.meshes import DEVICES, collectives, make_mesh, put
from support.partitioned_layers import (
    LAYER_WAYS,
    _assert_placed_alike,
    layer_mesh,
    layer_problem,
    layer_specs,
    loss_of,
    per_layer,
)
from support.partitioned_operators import GRID, NUMBERS, assert_same, ints

from jax_convgrad import (
    conv_fprop,
    conv_general_dilated,
    conv_transpose,
    onnx,
    resize,
    torch,
)
from jax_convgrad._src import compat

pytestmark = [pytest.mark.optimized, pytest.mark.devices(4)]


@pytest.mark.matrix("sharding in types", devices=4)
@pytest.mark.parametrize("way", LAYER_WAYS)
@per_layer
def test_layers_in_explicit_meshes(name: str, way: str, backend: str, rng: np.random.Generator):
    """With sharding in types: the result's is known, and each gradient has that of its operand."""
    layer, x, params = layer_problem(name, rng)
    mesh = layer_mesh(way, AxisType.Explicit)
    sx, *sparams = layer_specs(name, way)
    gradient = jax.grad(functools.partial(loss_of, layer), (0, 1))
    with jax.set_mesh(mesh):
        split = tuple(jax.device_put(p, P(*s)) for p, s in zip(params, sparams, strict=True))
        images = jax.device_put(x, P(*sx))
        y = jax.jit(layer)(images, *split)
        outputs = sparams[1][0] if sparams[1] else None
        wanted = (*sx[:3], *(None,) * (3 - len(sx)), outputs)
        assert tuple(jax.typeof(y).sharding.spec) == wanted
        compiled = jax.jit(gradient).lower(split, images).compile()
        assert not collectives(compiled.as_text())["all-gather"]
        got = jax.jit(gradient)(split, images)
        jax.tree.map(lambda g, p: _assert_placed_alike(g, p), got, (split, images))
    assert_same(y, layer(x, *params))
    assert_same(got, gradient(params, x))


@pytest.mark.parametrize(
    "x_split, w_split",
    [
        (("data",), (None, None, "model")),
        ((None, None, None, "model"), ()),
        (("data",), ("model", None, None, "model_too")),
    ],
    ids=str,
)
@pytest.mark.parametrize("layer", [conv_general_dilated, conv_transpose])
def test_axes_of_one_device_in_types(
    layer: Any, x_split: Any, w_split: Any, rng: np.random.Generator
):
    """They are never ambiguous: programs for many devices run on few."""
    x, w = ints(rng, (8, 6, 6, 4), (3, 3, 4, 4))

    def f(w: Any, x: Any, layer: Any = layer) -> Any:
        return jnp.sum(layer(x, w, (1, 1), "SAME", dimension_numbers=NUMBERS[2]) ** 2)

    lax_layer = getattr(lax, layer.__name__)
    expected = jax.grad(functools.partial(f, layer=lax_layer), (0, 1))(w, x)
    mesh = make_mesh(AxisType.Explicit, {"data": DEVICES, "model": 1, "model_too": 1})
    with jax.set_mesh(mesh):
        split = jax.device_put(w, P(*w_split)), jax.device_put(x, P(*x_split))
        got = jax.jit(jax.grad(f, (0, 1)))(*split)
        jax.tree.map(_assert_placed_alike, got, split)
    assert_same(got, expected)


def test_an_extrapolating_resize_in_types(rng: np.random.Generator):
    (x,) = ints(rng, (8, 5, 4))

    def crop(x: Any) -> Any:
        return onnx.resize(
            x,
            roi=[-0.5, 1.5],
            sizes=[9],
            axes=[1],
            mode="linear",
            coordinate_transformation_mode="tf_crop_and_resize",
            extrapolation_value=5,
        )

    expected = crop(x)
    with jax.set_mesh(make_mesh(AxisType.Explicit)):
        got = jax.jit(crop)(jax.device_put(x, P("data")))
        assert tuple(jax.typeof(got).sharding.spec) == ("data", None, None)
    assert_same(got, expected)
    mesh = make_mesh(AxisType.Auto)
    inside = jax.shard_map(crop, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    assert_same(jax.jit(inside)(x), expected)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32"])
def test_a_nearest_resize_in_types(dtype: str, rng: np.random.Generator):
    """Numbers of any kind: the axis that is resized is gathered, the others stay split."""
    x = rng.integers(0, 100, (8, 8, 4)).astype(dtype)
    grow = functools.partial(resize, shape=(8, 20, 4), method="nearest")
    expected = grow(x)
    with jax.set_mesh(make_mesh(AxisType.Explicit, GRID)):
        for run in (grow, jax.jit(grow)):
            got = run(jax.device_put(x, P("data", "model")))
            assert tuple(jax.typeof(got).sharding.spec) == ("data", None, None)
            assert_same(got, expected)


@pytest.mark.parametrize("outputs", [None, "model"])
@pytest.mark.parametrize("function", [torch.conv2d, torch.conv_transpose2d])
def test_adapters_in_explicit_meshes(
    function: Any, outputs: str | None, backend: str, rng: np.random.Generator
):
    """Their bias is spread as the result is split: its gradient gathers no image."""
    channels, spec = (
        ((6, 4), (None, outputs)) if "trans" in function.__name__ else ((4, 6), (outputs,))
    )
    x, w, bias = ints(rng, (8, 6, 9, 8), (*channels, 3, 3), (4,))
    layer = functools.partial(function, stride=2, padding=1)
    gradient = jax.grad(functools.partial(loss_of, layer), (0, 1))
    with jax.set_mesh(make_mesh(AxisType.Explicit, GRID)):
        split = jax.device_put(w, P(*spec)), jax.device_put(bias, P(outputs))
        images = jax.device_put(x, P("data"))
        compiled = jax.jit(gradient).lower(split, images).compile()
        assert not collectives(compiled.as_text())["all-gather"]
        got = compiled(split, images)
        jax.tree.map(_assert_placed_alike, got, (split, images))
    assert_same(got, gradient((w, bias), x))


@pytest.mark.parametrize("outputs", [None, "model"])
def test_groups_of_a_batch_in_explicit_meshes(
    outputs: str | None, backend: str, rng: np.random.Generator
):
    """The devices that split the batch are more than its groups: each gets a part of every group."""
    x, w = ints(rng, (8, 10, 9, 6), (3, 3, 6, 4))

    def layer(x: Any, w: Any) -> Any:
        return conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), batch_group_count=2
        )

    both = lambda w, x: (layer(x, w), jax.grad(functools.partial(loss_of, layer), (0, 1))((w,), x))  # noqa: E731
    with jax.set_mesh(make_mesh(AxisType.Explicit, GRID)):
        split = jax.device_put(w, P(None, None, None, outputs)), jax.device_put(x, P("data"))
        y, ((dw,), dx) = jax.jit(both)(*split)
        assert tuple(jax.typeof(y).sharding.spec) == ("data", None, None, outputs)
        jax.tree.map(_assert_placed_alike, (dw, dx), split)
    assert_same((y, ((dw,), dx)), both(w, x))


@pytest.mark.parametrize(
    "x, w",
    [
        ((None, None, None, "data"), ()),
        ((None, None, None, "data"), (None, None, "data")),
        ((), (None, None, "data")),
        (("data",), (None, None, None, "data")),
    ],
    ids=["channels of x", "channels of both", "channels of w", "twice"],
)
def test_ambiguous_shardings_in_types(x: tuple[Any, ...], w: tuple[Any, ...]):
    """As jax.lax's own, which asks for an out_sharding then."""
    with jax.set_mesh(make_mesh(AxisType.Explicit)):
        images, weights = (
            jax.device_put(np.ones(shape, np.float32), P(*s))
            for shape, s in (((8, 4, 4, 8), x), ((3, 3, 8, 8), w))
        )
        more = {"dimension_numbers": NUMBERS[2]}
        error = compat.ShardingTypeError
        with pytest.raises(error, match="out_sharding"):
            lax.conv_general_dilated(images, weights, (1, 1), "SAME", **more)
        for f in (
            lambda: conv_general_dilated(images, weights, (1, 1), "SAME", **more),
            lambda: conv_transpose(images, weights, (1, 1), "SAME"),
            lambda: conv_fprop(images, weights, padding="SAME", **more),
        ):
            with pytest.raises(error, match=r"\(8, 4, 4, 8\).*\(3, 3, 8, 8\).* is ambiguous"):
                jax.jit(f)()


def test_second_derivatives_of_split_weights(rng: np.random.Generator):
    """Products that are summed over a mesh axis inside derivatives are not ambiguous."""
    layer, x, params = layer_problem("conv", rng)
    x = x[:, :8, :2]
    loss = lambda params, x: jnp.sum(layer(x, *params) ** 2)  # noqa: E731
    penalty = lambda params, x: jnp.sum(jax.grad(loss, 1)(params, x))  # noqa: E731
    expected = jax.jit(jax.grad(penalty, (0, 1)))(params, x)
    for axis_type in (AxisType.Auto, AxisType.Explicit):
        mesh = make_mesh(axis_type, GRID)
        with jax.set_mesh(mesh):
            split = (put(params[0], mesh, None, None, None, "model"), put(params[1], mesh, "model"))
            got = jax.jit(jax.grad(penalty, (0, 1)))(split, put(x, mesh, "data"))
            assert_same(got, expected)


@pytest.mark.parametrize(
    "x, w",
    [((8, 8, 8, 0), (3, 3, 0, 4)), ((8, 8, 8, 4), (3, 3, 4, 0)), ((8, 0, 8, 4), (3, 3, 4, 4))],
    ids=str,
)
def test_nothing_has_the_types_that_something_would_have(
    x: tuple[int, ...], w: tuple[int, ...], rng: np.random.Generator
):
    """A transposed convolution without elements varies, and is split, as lax's is."""
    images, weights = ints(rng, x, w)

    def type_of(layer: Any, *operands: Any) -> Any:
        return jax.typeof(layer(*operands, (2, 2), "SAME"))

    with jax.set_mesh(make_mesh(AxisType.Explicit)):
        split = jax.device_put(images, P("data")), weights
        assert type_of(conv_transpose, *split) == type_of(lax.conv_transpose, *split)
    mesh = make_mesh(AxisType.Auto)
    found = {}
    for layer in (conv_transpose, lax.conv_transpose):

        def inside(x: Any, w: Any, layer: Any = layer) -> Any:
            found[layer] = type_of(layer, x, w)
            return layer(x, w, (2, 2), "SAME")

        spec = P("data"), P()
        f = jax.shard_map(inside, mesh=mesh, in_specs=spec, out_specs=P("data"))
        jax.eval_shape(f, images, weights)  # jaxlib 0.10 compiles none that has no elements at all
    assert found[conv_transpose] == found[lax.conv_transpose]
    assert not np.any(conv_transpose(images, weights, (2, 2), "SAME"))

"""The operators and layers in programs that XLA divides among devices: values, and what is exchanged.

Small integers, so that sums are exact in any order; for each way to split the arrays the compiled
program is read: no image is gathered, and there are as many all-reduces as the mathematics asks for.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support import jax_internals
from support.cases import may_transform
from support.meshes import DEVICES, collectives, gathered, make_mesh, put

from jax_convgrad import (
    conv_dgrad,
    conv_fprop,
    conv_general_dilated,
    conv_transpose,
    conv_wgrad,
    onnx,
    resample,
    resample_transpose,
    resize,
    torch,
)
from jax_convgrad._src import compat
from jax_convgrad._src.dispatch.decide import PLATFORMS
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.runtime import registry
from jax_convgrad._src.sharding import custom_partitioning, solver

pytestmark = [pytest.mark.optimised, pytest.mark.devices(4)]

GRID = {"data": DEVICES // 2, "model": 2}
NUMBERS = {1: ("NHC", "HIO", "NHC"), 2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC")}


def ints(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    dtype = np.float64 if may_transform() else np.float32
    return [rng.integers(-2, 3, shape).astype(dtype) for shape in shapes]


def assert_same(got: Any, expected: Any) -> None:
    def check(a: Any, b: Any) -> None:
        assert np.max(np.abs(b), initial=0) < 2**22, "too large to be exact"
        np.testing.assert_array_equal(a, b)

    jax.tree.map(check, jax.device_get(got), jax.device_get(expected))


@pytest.fixture(params=["handlers", "swap"])
def route(request: pytest.FixtureRequest) -> Iterator[str]:
    """Once by the platform's handlers, once in pure JAX."""
    platform = compat.platform()
    name = {platform: route for route, platform in PLATFORMS.items()}.get(platform)
    if request.param == "handlers":
        if name is None or not registry.require(platform).targets:
            pytest.skip(f"no handlers for {platform}")
        with override_backend(name):
            yield request.param
    else:
        with override_backend("xla_rewritten"):
            yield request.param


# Each operator, split in each way.


@dataclasses.dataclass(frozen=True)
class Geometry:
    """A convolution in channels-last layout, all of its axes divisible by the devices."""

    x: tuple[int, ...]
    kernel: tuple[int, ...]
    out_channels: int
    params: dict[str, Any]

    @property
    def w(self) -> tuple[int, ...]:
        return (*self.kernel, self.x[-1] // self.params.get("groups", 1), self.out_channels)

    @property
    def all(self) -> dict[str, Any]:
        return {"dimension_numbers": NUMBERS[len(self.kernel)], "padding": "SAME", **self.params}

    @property
    def y(self) -> tuple[int, ...]:
        shapes = (jax.ShapeDtypeStruct(s, np.float32) for s in (self.x, self.w))
        return jax.eval_shape(functools.partial(conv_fprop, **self.all), *shapes).shape


GEOMETRIES = {
    "plain": Geometry((8, 32, 3, 16), (3, 3), 8, {}),
    "strided": Geometry((8, 32, 6, 8), (4, 4), 16, {"strides": 2}),
    "dilated": Geometry((8, 32, 4, 8), (3, 3), 8, {"dilation": 2}),
    "uneven": Geometry((8, 32, 3, 8), (2, 3), 8, {"padding": ((0, 1), (2, 0))}),
    "cropped": Geometry((8, 64, 8), (3,), 8, {"strides": 2, "padding": ((-1, 2),)}),
    "patches": Geometry((8, 32, 16, 8), (2, 2), 8, {"strides": 2}),
    "grouped": Geometry((8, 32, 3, 32), (3, 3), 16, {"groups": 8}),
    "depthwise": Geometry((8, 32, 3, 16), (5, 5), 16, {"groups": 16}),
    "1d": Geometry((8, 64, 8), (7,), 8, {"strides": 2}),
    "3d": Geometry((8, 16, 2, 2, 8), (3, 3, 3), 8, {}),
}

# For each way the mesh axes of: batch, first spatial axis, channels of x, channels of y, and the weights'
# two axes of channels.
WAYS: dict[str, dict[str, Any]] = {
    "batch": {"n": "data"},
    "batch of a grid": {"n": ("data", "model")},
    "input channels": {"x": "data", "i": "data"},
    "output channels": {"y": "data", "o": "data"},
    "groups": {"x": "data", "y": "data", "o": "data"},
    "batch and output channels": {"n": "data", "y": "model", "o": "model"},
    "batch and input channels": {"n": "data", "x": "model", "i": "model"},
    "rows": {"s": "data"},
    "batch and rows": {"n": "model", "s": "data"},
    "rows the other way round": {"s": ("model", "data")},
}
# All-reduces of fprop, dgrad and wgrad.
SUMS = {
    "batch": (0, 0, 1),
    "batch of a grid": (0, 0, 1),
    "input channels": (1, 0, 0),
    "output channels": (0, 1, 0),
    "groups": (0, 0, 0),
    "batch and output channels": (0, 1, 1),
    "batch and input channels": (1, 0, 1),
    "rows": (0, 0, 1),
    "batch and rows": (0, 0, 1),
    "rows the other way round": (0, 0, 1),
}
OPERATORS = ("fprop", "dgrad", "wgrad")


def is_grid(way: str) -> bool:
    return "model" in str(WAYS[way])


def is_possible(geometry: str, way: str) -> bool:
    """Whether the channels can be split so. Some geometries are there for their rows alone."""
    grouped = "groups" in GEOMETRIES[geometry].params
    if geometry not in ("plain", "strided", "grouped"):
        return way == "rows" or (grouped and way == "groups")
    if "rows" in way:
        return True
    return grouped if way == "groups" else not grouped or "channels" not in way


def spec(role: str, way: str, rank: int) -> tuple[Any, ...]:
    axes = WAYS[way]
    if role == "w":
        return (*(None,) * rank, axes.get("i"), axes.get("o"))
    return (axes.get("n"), axes.get("s"), *(None,) * (rank - 1), axes.get(role))


ROLES = {"fprop": "xwy", "dgrad": "ywx", "wgrad": "xyw"}


def operator(name: str, geometry: Geometry) -> Callable[..., Any]:
    if name == "fprop":
        return functools.partial(conv_fprop, **geometry.all)
    if name == "dgrad":
        return functools.partial(conv_dgrad, x_shape=geometry.x, **geometry.all)
    return functools.partial(conv_wgrad, w_shape=geometry.w, **geometry.all)


def exchanges(sums: int, rows: int = 0) -> Counter[str]:
    """So many all-reduces, so many exchanges of rows, and nothing else."""
    return Counter({"all-reduce": sums, "collective-permute": rows})


@pytest.mark.parametrize(
    "geometry, way", [(g, w) for g in GEOMETRIES for w in WAYS if is_possible(g, w)]
)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str, geometry: str, way: str, route: str, rng: np.random.Generator):
    case = GEOMETRIES[geometry]
    rank = len(case.kernel)
    first, second, result = ROLES[name]
    mesh = make_mesh(AxisType.Auto, GRID if is_grid(way) else None)
    f = operator(name, case)
    a, b = ints(rng, getattr(case, first), getattr(case, second))
    expected = jax.jit(f)(a, b)
    split = put(a, mesh, *spec(first, way, rank)), put(b, mesh, *spec(second, way, rank))
    run = jax.jit(f)
    compiled = run.lower(*split).compile()
    text = compiled.as_text()
    rows = collectives(text)["collective-permute"]
    assert rows <= (2 if "rows" in way and geometry != "patches" else 0)
    assert collectives(text) == exchanges(SUMS[way][OPERATORS.index(name)], rows)
    assert (f"jax_convgrad_conv_{name}" in text) == (route == "handlers")
    got = compiled(*split)
    assert_same(got, expected)
    wanted = NamedSharding(mesh, P(*spec(result, way, rank)))
    # What is summed over is on all devices.
    assert got.sharding.is_equivalent_to(wanted, got.ndim)


@pytest.mark.parametrize("geometry", ["plain", "grouped", "strided"])
@pytest.mark.parametrize("name", OPERATORS)
def test_floating_point(name: str, geometry: str, rng: np.random.Generator):
    """Sums over devices are of rounded partial sums: as good as those of one device."""
    case = GEOMETRIES[geometry]
    mesh = make_mesh(AxisType.Auto)
    f = operator(name, case)
    a, b = (rng.standard_normal(getattr(case, role)) for role in ROLES[name][:2])
    expected = jax.jit(f)(a, b)
    way = "batch" if name == "wgrad" else "rows"
    split = [put(z, mesh, *spec(r, way, 2)) for z, r in zip((a, b), ROLES[name], strict=False)]
    np.testing.assert_allclose(jax.jit(f)(*split), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("x_axes", "way"),
    [
        ("".join(axes), ("batch", "rows")[i % 2])
        for i, axes in enumerate(itertools.permutations("NHWC"))
    ],
)
def test_layouts(x_axes: str, way: str, rng: np.random.Generator):
    """Axes in any order: every factor may be the first that an array names."""
    w_axes, y_axes = ("".join(rng.permutation(list(axes))) for axes in ("HWIO", "NHWC"))
    orders = {
        role: [usual.index(axis) for axis in axes]
        for role, usual, axes in zip("xwy", NUMBERS[2], (x_axes, w_axes, y_axes), strict=True)
    }
    case = GEOMETRIES["plain"]
    shapes = {role: tuple(getattr(case, role)[i] for i in order) for role, order in orders.items()}
    splits = {role: [spec(role, way, 2)[i] for i in order] for role, order in orders.items()}
    params = {"dimension_numbers": (x_axes, w_axes, y_axes), "padding": "SAME"}
    mesh = make_mesh(AxisType.Auto)
    for name, sums, f in zip(
        OPERATORS,
        SUMS[way],
        (
            functools.partial(conv_fprop, **params),
            functools.partial(conv_dgrad, x_shape=shapes["x"], **params),
            functools.partial(conv_wgrad, w_shape=shapes["w"], **params),
        ),
        strict=True,
    ):
        roles = ROLES[name][:2]
        arrays = ints(rng, *(shapes[role] for role in roles))
        split = [put(a, mesh, *splits[role]) for a, role in zip(arrays, roles, strict=True)]
        compiled = jax.jit(f).lower(*split).compile()
        rows = collectives(compiled.as_text())["collective-permute"]
        assert rows <= (2 if way == "rows" else 0)
        assert collectives(compiled.as_text()) == exchanges(sums, rows)
        assert_same(compiled(*split), jax.jit(f)(*arrays))


def test_sixteen_bits(rng: np.random.Generator):
    """On the CPU partial sums are added in float32: nothing is lost by dividing."""
    if jax.default_backend() != "cpu":
        pytest.skip("other platforms add what is rounded to 16 bits")
    case = GEOMETRIES["plain"]
    mesh = make_mesh(AxisType.Auto)
    for dtype in (jnp.bfloat16, jnp.float16):
        for name, way in (("wgrad", "batch"), ("fprop", "input channels")):
            f = operator(name, case)
            a, b = (
                jnp.asarray(rng.standard_normal(getattr(case, role)), dtype)
                for role in ROLES[name][:2]
            )
            exact = np.asarray(jax.jit(f)(a.astype(np.float64), b.astype(np.float64)))
            split = [
                put(z, mesh, *spec(r, way, 2)) for z, r in zip((a, b), ROLES[name], strict=False)
            ]
            got = jax.jit(f)(*split)
            assert got.dtype == dtype
            # One rounding of the sum, and what float32 adds to it.
            error = np.abs(np.asarray(got, np.float64) - exact)
            assert np.all(error <= jnp.finfo(dtype).eps / 2 * np.abs(exact) + 1e-4)


# What cannot stay where it is.


def test_rows_without_a_common_ratio(route: str, rng: np.random.Generator):
    """30 rows from 32: the images are exchanged for examples, not gathered."""
    case = Geometry((8, 32, 3, 8), (3, 3), 8, {"padding": "VALID"})
    mesh = make_mesh(AxisType.Auto)
    x, w, y = ints(rng, case.x, case.w, case.y)
    squares = jax.jit(lambda x, w: jnp.sum(operator("fprop", case)(x, w) ** 2))
    split = put(x, mesh, None, "data"), put(w, mesh)
    found = collectives(squares.lower(*split).compile().as_text())
    assert found["all-to-all"] and not found["all-gather"]
    assert_same(squares(*split), squares(x, w))
    wgrad = jax.jit(operator("wgrad", case))
    images = put(x, mesh, None, "data"), put(y, mesh)
    found = collectives(wgrad.lower(*images).compile().as_text())
    assert found == Counter({"all-to-all": 1, "all-reduce": 1})
    assert_same(wgrad(*images), wgrad(x, y))


@pytest.mark.parametrize("kernel", [9, 19])
def test_halos_wider_than_a_part(kernel: int, rng: np.random.Generator):
    """Fewer devices take more rows of fewer examples each, or all rows."""
    case = Geometry((8, 16, 3, 8), (kernel, 1), 8, {})
    mesh = make_mesh(AxisType.Auto)
    x, w, y = ints(rng, case.x, case.w, case.y)
    for name, a, b in (("fprop", x, w), ("dgrad", y, w), ("wgrad", x, y)):
        f = jax.jit(operator(name, case))
        split = (
            put(a, mesh, None, "data"),
            put(b, mesh, *((None, "data") if name == "wgrad" else ())),
        )
        found = collectives(f.lower(*split).compile().as_text())
        assert found["all-reduce"] == (name == "wgrad") and not found["all-gather"]
        assert (found["collective-permute"] > 0) == (kernel == 9 and DEVICES == 8)
        assert_same(f(*split), f(a, b))


def test_one_example_is_gathered_where_nothing_else_serves(rng: np.random.Generator):
    case = Geometry((1, 32, 3, 3), (3, 3), 5, {"padding": "VALID"})
    mesh = make_mesh(AxisType.Auto)
    x, w = ints(rng, case.x, case.w)
    f = jax.jit(operator("fprop", case))
    split = put(x, mesh, None, "data"), put(w, mesh)
    assert collectives(f.lower(*split).compile().as_text())["all-gather"]
    assert_same(f(*split), f(x, w))


def test_images_split_along_different_channels(route: str, rng: np.random.Generator):
    """Neither is gathered for the weights' gradient: both are exchanged for examples."""
    case = GEOMETRIES["plain"]
    mesh = make_mesh(AxisType.Auto)
    x, y = ints(rng, case.x, case.y)
    f = jax.jit(operator("wgrad", case))
    split = put(x, mesh, None, None, None, "data"), put(y, mesh, None, None, None, "data")
    found = collectives(f.lower(*split).compile().as_text())
    assert found == Counter({"all-to-all": 2, "all-reduce": 1})
    assert_same(f(*split), f(x, y))


def test_weights_move_and_images_stay(rng: np.random.Generator):
    """Weights that are split over the devices which split the batch (FSDP) are what is gathered."""
    case = GEOMETRIES["plain"]
    mesh = make_mesh(AxisType.Auto)
    x, w = ints(rng, case.x, case.w)
    f = jax.jit(operator("fprop", case))
    split = put(x, mesh, "data"), put(w, mesh, None, None, "data")
    text = f.lower(*split).compile().as_text()
    assert collectives(text) == Counter({"all-gather": 1})
    assert gathered(text) == [math.prod(case.w)]
    assert_same(f(*split), f(x, w))


@pytest.mark.parametrize("channels", [2, 3])
@pytest.mark.parametrize("route", ["handlers"], indirect=True)
def test_rows_that_cannot_stay_are_exchanged_before_weights_are_looked_at(
    channels: int, route: str, rng: np.random.Generator
):
    """Weights split over the devices of the rows (FSDP along either channels) leave the images alone."""
    mesh = make_mesh(AxisType.Auto)
    x, w = ints(rng, (8, 32, 3, 16), (3, 3, 16, 8))
    ways = {"x": P(None, "data"), "w": P(*(None,) * channels, "data")}

    def loss(x: Any, w: Any) -> Any:
        y = conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=NUMBERS[2])
        return jnp.sum(y * (1 + jnp.arange(y.shape[-1])))

    f = jax.jit(
        jax.grad(loss, (0, 1)),
        out_shardings=tuple(NamedSharding(mesh, way) for way in ways.values()),
    )
    split = tuple(put(a, mesh, *way) for a, way in zip((x, w), ways.values(), strict=True))
    text = f.lower(*split).compile().as_text()
    assert set(gathered(text)) <= {math.prod(w.shape)}
    assert collectives(text)["all-reduce"] <= 1
    assert_same(f(*split), jax.grad(loss, (0, 1))(x, w))


def test_rows_that_the_batch_cannot_take_over_leave_the_weights_alone(rng: np.random.Generator):
    """They are gathered then, and splitting some of the batch instead would gather the weights as well."""
    mesh = make_mesh(AxisType.Auto)
    x, w = ints(rng, (DEVICES // 2, 4 * DEVICES, 3, 16), (3, 3, 16, 8))
    f = jax.jit(functools.partial(conv_fprop, dimension_numbers=NUMBERS[2]))
    split = put(x, mesh, None, "data"), put(w, mesh, None, None, None, "data")
    text = f.lower(*split).compile().as_text()
    assert math.prod(w.shape) not in gathered(text)
    assert_same(f(*split), f(x, w))


def test_weights_larger_than_their_images_are_gathered_where_images_are_held(
    rng: np.random.Generator,
):
    """Without the constraint Shardy has the weights' split spread to the images."""
    mesh = make_mesh(AxisType.Auto)
    x, *ws = ints(rng, (8, 3, 3, 16), *[(3, 3, 16, 16)] * 3)
    assert math.prod(ws[0].shape) > math.prod(x.shape)

    def loss(ws: Any, x: Any, held: bool) -> Any:
        for w in ws:
            x = conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NUMBERS[2])
            x = jnp.sign(x)
            x = lax.with_sharding_constraint(x, NamedSharding(mesh, P("data"))) if held else x
        return jnp.sum(x)

    way = NamedSharding(mesh, P(None, None, None, "data"))
    f = jax.jit(loss, static_argnums=2)
    split = [jax.device_put(w, way) for w in ws], put(x, mesh, "data")
    text = f.lower(*split, True).compile().as_text()
    found = collectives(text)
    assert set(gathered(text)) == {math.prod(ws[0].shape)}
    assert found["all-gather"] == 3 and found["all-to-all"] == 0
    assert_same(f(*split, True), loss(ws, x, False))


# Resizes.


def resized(x: Any) -> jax.Array:
    return resample(x, (8, 64, 8, 8), method="linear", antialias=False)


def resized_back(y: Any) -> jax.Array:
    return resample_transpose(y, (8, 32, 8, 8), method="linear", antialias=False)


@pytest.mark.parametrize("axis", [0, 2, 3])
def test_axes_that_are_not_resized(axis: int, route: str, rng: np.random.Generator):
    mesh = make_mesh(AxisType.Auto)
    for f, shape in ((resized, (8, 32, 8, 8)), (resized_back, (8, 64, 8, 8))):
        (x,) = ints(rng, shape)
        split = put(x, mesh, *(None,) * axis, "data")
        run = jax.jit(functools.partial(f))  # not what is compiled for another route
        text = run.lower(split).compile().as_text()
        assert not collectives(text)
        assert ("jax_convgrad_resample" in text) == (route == "handlers")
        assert_same(run(split), run(x))
        assert run(split).sharding.is_equivalent_to(split.sharding, 4)


def test_an_axis_that_is_resized(route: str, rng: np.random.Generator):
    """The devices exchange rows for examples, and back, so that the result is split as it was."""
    mesh = make_mesh(AxisType.Auto)
    for f, shape in ((resized, (8, 32, 8, 8)), (resized_back, (8, 64, 8, 8))):
        (x,) = ints(rng, shape)
        split = put(x, mesh, None, "data")
        run = jax.jit(functools.partial(f))
        text = run.lower(split).compile().as_text()
        assert collectives(text) == Counter({"all-to-all": 2})
        assert_same(run(split), run(x))
        assert run(split).sharding.is_equivalent_to(split.sharding, 4)


def test_rows_are_resized_where_their_result_is_to_lie(rng: np.random.Generator):
    """The image goes there at once, not by way of the batch."""
    mesh = make_mesh(AxisType.Auto)
    (x,) = ints(rng, (8, 32, 8, 8))
    f = jax.jit(resized, out_shardings=NamedSharding(mesh, P(None, None, None, "data")))
    split = put(x, mesh, None, "data")
    assert collectives(f.lower(split).compile().as_text()) == Counter({"all-to-all": 1})
    assert_same(f(split), resized(x))


def test_a_resize_of_one_example_gathers_the_axis(rng: np.random.Generator):
    mesh = make_mesh(AxisType.Auto)
    (x,) = ints(rng, (1, 16, 3, 5))
    f = jax.jit(lambda x: resize(x, (1, 32, 3, 5), "linear"))
    assert_same(f(put(x, mesh, None, "data")), f(x))


# Layers and their gradients.


def conv_layer(x: Any, w: Any, bias: Any) -> jax.Array:
    return conv_general_dilated(x, w, (2, 1), "SAME", dimension_numbers=NUMBERS[2], bias=bias)


def grouped_layer(x: Any, w: Any, bias: Any) -> jax.Array:
    return conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=NUMBERS[2], feature_group_count=8, bias=bias
    )


def transpose_layer(x: Any, w: Any, bias: Any) -> jax.Array:
    return conv_transpose(x, w, (2, 1), "SAME", bias=bias)


def resize_layer(x: Any, w: Any, bias: Any) -> jax.Array:
    """The weights are a factor for each channel."""
    y = resize(x * w, (*x.shape[:1], 4, *x.shape[2:]), "linear", antialias=False)
    return y + bias


# The layer, x, w and its number of output channels.
LAYERS: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...], int]] = {
    "conv": (conv_layer, (8, 32, 3, 8), (4, 3, 8, 16), 16),
    "grouped": (grouped_layer, (8, 32, 3, 16), (3, 3, 2, 8), 8),
    "transpose": (transpose_layer, (8, 16, 3, 8), (4, 3, 8, 16), 16),
    "resize": (resize_layer, (8, 2, 32, 8), (8,), 8),
}
per_layer = pytest.mark.parametrize("name", list(LAYERS))

# x, w and bias, by the mesh axes that split them, and the gradients' all-reduces over devices: those of
# bias are sums that XLA makes.
LAYER_WAYS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]] = {
    "batch": (("data",), (), ()),
    "batch of a grid": ((("data", "model"),), (), ()),
    "rows": ((None, "data"), (), ()),
    "batch and rows": (("model", "data"), (), ()),
    "output channels": ((), (None, None, None, "data"), ("data",)),
    "batch and output channels": (("data",), (None, None, None, "model"), ("model",)),
}


def loss_of(layer: Any, params: Any, x: Any) -> Any:
    return jnp.sum(layer(x, *params) ** 2)


def layer_problem(name: str, rng: np.random.Generator) -> Any:
    layer, *shapes, channels = LAYERS[name]
    x, w, bias = ints(rng, *shapes, (channels,))
    return layer, x, (w, bias)


def layer_specs(name: str, way: str) -> Any:
    x, w, bias = LAYER_WAYS[way]
    if name == "resize":  # along the axis that stays as it is
        x = x if "rows" not in way else (*x[:1], None, *x[1:])
        w = bias
    if name in ("resize", "grouped") and bias:  # its channels belong to those of the result
        x = (*x, *(None,) * (3 - len(x)), *bias)
    return x, w, bias


def layer_mesh(way: str, axis_type: AxisType) -> jax.sharding.Mesh:
    return make_mesh(axis_type, GRID if "model" in str(LAYER_WAYS[way]) else None)


@pytest.mark.matrix("jit of sharded arrays, divided", devices=4)
@pytest.mark.parametrize("way", LAYER_WAYS)
@per_layer
def test_layers(name: str, way: str, route: str, rng: np.random.Generator):
    """Each weight array's gradient is summed once over the devices that split the batch or the rows."""
    layer, x, (w, bias) = layer_problem(name, rng)
    mesh = layer_mesh(way, AxisType.Auto)
    sx, sw, sbias = layer_specs(name, way)
    split = put(w, mesh, *sw), put(x, mesh, *sx), put(bias, mesh, *sbias)
    f = jax.jit(jax.grad(lambda w, x, bias: loss_of(layer, (w, bias), x), (0, 1)))
    compiled = f.lower(*split).compile()
    found = collectives(compiled.as_text())
    over_devices = not way.startswith("output")
    # The input gradient of dense layers sums over output channels.
    inputs = way.endswith("output channels") and name in ("conv", "transpose")
    # The factors of the resize are XLA's own product and sum: over one mesh axis at a time.
    more = {1} if (name, way) == ("resize", "batch and rows") else set()
    assert found["all-reduce"] - (over_devices + inputs) in {0} | more
    assert set(found) <= {"all-reduce", "collective-permute"}
    assert "rows" in way or not found["collective-permute"]
    assert_same(compiled(*split), f(w, x, bias))


@per_layer
def test_the_gradient_of_a_bias(name: str, route: str, rng: np.random.Generator):
    """A sum that XLA makes: over one mesh axis at a time, and perhaps in one with the weights'."""
    layer, x, params = layer_problem(name, rng)
    mesh = make_mesh(AxisType.Auto, GRID)
    split = tuple(put(p, mesh) for p in params), put(x, mesh, ("data", "model"))
    f = jax.jit(jax.grad(functools.partial(loss_of, layer), (0, 1)))
    compiled = f.lower(*split).compile()
    found = collectives(compiled.as_text())
    assert 1 <= found["all-reduce"] <= 1 + len(mesh.shape) and set(found) == {"all-reduce"}
    assert_same(compiled(*split), f(params, x))


@pytest.mark.matrix("sharding in types", devices=4)
@pytest.mark.parametrize("way", LAYER_WAYS)
@per_layer
def test_layers_in_explicit_meshes(name: str, way: str, route: str, rng: np.random.Generator):
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
    function: Any, outputs: str | None, route: str, rng: np.random.Generator
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
    outputs: str | None, route: str, rng: np.random.Generator
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


def _assert_placed_alike(got: jax.Array, operand: jax.Array) -> None:
    assert jax.typeof(got).sharding == jax.typeof(operand).sharding
    assert got.sharding.is_equivalent_to(operand.sharding, got.ndim)


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
            with pytest.raises(error, match=r"ambiguous .*\(8, 4, 4, 8\).*\(3, 3, 8, 8\)"):
                jax.jit(f)()


def test_operators_in_explicit_meshes(rng: np.random.Generator):
    """All three keep what their results have too; a weight gradient's sum is no ambiguity."""
    case = GEOMETRIES["plain"]
    x, w, y = ints(rng, case.x, case.w, case.y)
    fprop, dgrad, wgrad = (operator(name, case) for name in OPERATORS)
    with jax.set_mesh(make_mesh(AxisType.Explicit, GRID)):
        put = lambda a, *s: jax.device_put(a, P(*s))  # noqa: E731
        sx, sw = ("data",), (None, None, None, "model")
        sy = ("data", None, None, "model")
        got_y = jax.jit(fprop)(put(x, *sx), put(w, *sw))
        assert jax.typeof(got_y).sharding.spec == P(*sy)
        got_w = jax.jit(wgrad)(put(x, *sx), put(y, *sy))
        assert jax.typeof(got_w).sharding.spec == P(*sw)
        got_x = jax.jit(dgrad)(put(y, "data"), put(w, None, None, "model"))
        assert jax.typeof(got_x).sharding.spec == P("data", None, None, "model")
        with pytest.raises(compat.ShardingTypeError, match="conv_dgrad: it is ambiguous"):
            jax.jit(dgrad)(put(y, *sy), put(w, *sw))
        # 30 rows do not divide.
        valid = functools.partial(conv_fprop, padding="VALID", dimension_numbers=NUMBERS[2])
        with pytest.raises(compat.ShardingTypeError, match="conv_fprop: it is ambiguous"):
            jax.jit(valid)(put(x, None, "data"), put(w))
    assert_same((got_x, got_w, got_y), (dgrad(y, w), wgrad(x, y), fprop(x, w)))


def test_second_derivatives_of_split_weights(rng: np.random.Generator):
    """Products that are summed over a mesh axis inside derivatives are no ambiguity."""
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


# Whole programs.


def network(params: Any, x: Any) -> Any:
    """Two up-convolutions, a resize and a convolution."""
    first, second, last = params
    x = jnp.maximum(conv_transpose(x, first, (2, 2), "SAME"), 0)
    x = jnp.maximum(conv_transpose(x, second, (2, 2), "SAME"), 0)
    x = resize(x, (*x.shape[:2], 2 * x.shape[2], x.shape[3]), "nearest")
    return conv_general_dilated(x, last, (1, 1), "SAME", dimension_numbers=NUMBERS[2])


def network_problem(rng: np.random.Generator) -> Any:
    x, *params = ints(rng, (8, 8, 2, 3), (4, 4, 3, 4), (2, 2, 4, 5), (3, 3, 5, 1))
    return tuple(params), x


def network_loss(params: Any, x: Any) -> Any:
    return jnp.sum(network(params, x))


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_a_training_step(axis_type: AxisType, route: str, rng: np.random.Generator):
    """Data parallelism: one all-reduce for each weight array or fewer, and nothing else."""
    params, x = network_problem(rng)
    mesh = make_mesh(axis_type)
    step = jax.jit(jax.grad(network_loss))
    expected = step(params, x)
    with jax.set_mesh(mesh):
        split = jax.tree.map(lambda p: put(p, mesh), params), put(x, mesh, "data")
        compiled = step.lower(*split).compile()
        found = collectives(compiled.as_text())
        assert 1 <= found["all-reduce"] <= len(params) and set(found) == {"all-reduce"}
        assert_same(step(*split), expected)


def test_a_training_step_split_by_rows(route: str, rng: np.random.Generator):
    """Neighbours exchange rows; no image is gathered."""
    params, x = network_problem(rng)
    mesh = make_mesh(AxisType.Auto)
    step = jax.jit(jax.grad(network_loss, (0, 1)))
    split = jax.tree.map(lambda p: put(p, mesh), params), put(x, mesh, None, "data")
    found = collectives(step.lower(*split).compile().as_text())
    assert 1 <= found["all-reduce"] <= len(params)
    assert set(found) <= {"all-reduce", "collective-permute"}
    assert_same(step(*split), step(params, x))


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("grid", [False, True], ids=["line", "grid"])
def test_shard_map(grid: bool, check_vma: bool, route: str, rng: np.random.Generator):
    """Gradients of weights that all devices have, by hand and by JAX, are those of one device."""
    params, x = network_problem(rng)
    names = ("data", "model") if grid else ("data",)
    mesh = make_mesh(AxisType.Auto, GRID if grid else None)

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P(), P(names)),
        out_specs=(P(), P(names)),
        check_vma=check_vma,
    )
    def inside(params: Any, x: Any) -> Any:
        dparams, dx = jax.grad(network_loss, (0, 1))(params, x)
        return (dparams if check_vma else lax.psum(dparams, names)), dx

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P(), P(names)), out_specs=P(), check_vma=check_vma
    )
    def summed(params: Any, x: Any) -> Any:
        return lax.psum(network_loss(params, x), names)

    expected = jax.grad(network_loss, (0, 1))(params, x)
    assert_same(jax.jit(inside)(params, x), expected)
    assert_same(jax.jit(jax.grad(summed, (0, 1)))(params, x), expected)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_shard_map_over_one_axis_of_two(
    axis_type: AxisType, check_vma: bool, route: str, rng: np.random.Generator
):
    """XLA divides the other axis; it cannot ask for the parts of a call there, so there is none."""
    params, x = network_problem(rng)
    mesh = make_mesh(axis_type, GRID)

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P(), P("data")),
        out_specs=(P(), P("data")),
        axis_names={"data"},
        check_vma=check_vma,
    )
    def inside(params: Any, x: Any) -> Any:
        return jax.grad(network_loss, (0, 1))(params, x)

    run = jax.jit(inside)
    with jax.set_mesh(mesh):
        axes = ("data", "model") if axis_type == AxisType.Auto else (("data", "model"),)
        split = jax.tree.map(lambda p: put(p, mesh), params), put(x, mesh, *axes)
        assert "jax_convgrad_conv" not in run.lower(*split).as_text()
        dparams, dx = run(*split)
    if not check_vma:  # each device's own, and JAX says nothing of which it shows
        dparams = None
    expected, dx_expected = jax.grad(network_loss, (0, 1))(params, x)
    assert_same((dparams, dx), (None if dparams is None else expected, dx_expected))


def test_axes_of_one_device_divide_nothing(rng: np.random.Generator):
    """Inside `shard_map` over all other axes the handlers are called."""
    x, w = ints(rng, (8, 6, 6, 4), (3, 3, 4, 4))
    mesh = make_mesh(AxisType.Auto, {"data": DEVICES, "model": 1})
    f = functools.partial(conv_fprop, padding="SAME", dimension_numbers=NUMBERS[2])
    inside = jax.shard_map(
        f, mesh=mesh, in_specs=(P("data"), P()), out_specs=P("data"), axis_names={"data"}
    )
    with override_backend("cudnn" if jax.default_backend() == "gpu" else "onednn"):
        run = jax.jit(inside)
        split = put(x, mesh, "data"), put(w, mesh, None, None, None, "model")
        assert "jax_convgrad_conv_fprop" in run.lower(*split).as_text()
        assert_same(run(*split), f(x, w))


def test_loops(route: str, rng: np.random.Generator):
    """A scan over layers, whose weights' gradients are summed in it."""
    x, w = ints(rng, (8, 8, 4, 4), (3, 1, 1, 4, 4))

    def f(w: Any, x: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            y = conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NUMBERS[2])
            return jnp.sign(y), None

        y, _ = lax.scan(lambda x, w: (x + layer(x, w)[0] * w[0, 0, 0, 0], None), x, w)
        return jnp.sum(y**2)

    mesh = make_mesh(AxisType.Auto)
    step = jax.jit(jax.value_and_grad(f, (0, 1)))
    split = put(w, mesh), put(x, mesh, "data")
    assert not collectives(step.lower(*split).compile().as_text())["all-gather"]
    assert_same(step(*split), step(w, x))


def test_vmap(rng: np.random.Generator):
    """Mapped over the axis that the devices divide: examples are folded into the batch and out again."""
    f = functools.partial(conv_fprop, padding="SAME", dimension_numbers=NUMBERS[2])
    x, w = ints(rng, (8, 2, 8, 4, 4), (3, 3, 4, 4))
    mesh = make_mesh(AxisType.Auto)
    mapped = jax.jit(jax.vmap(f, (0, None)))
    split = put(x, mesh, "data"), put(w, mesh)
    assert not collectives(mapped.lower(*split).compile().as_text())
    assert_same(mapped(*split), mapped(x, w))
    each = jax.jit(jax.vmap(jax.grad(lambda w, x: jnp.sum(f(x, w) ** 2)), (None, 0)))
    assert not collectives(each.lower(put(w, mesh), put(x, mesh, "data")).compile().as_text())
    assert_same(each(put(w, mesh), put(x, mesh, "data")), each(w, x))


@pytest.mark.parametrize(
    "x, w",
    [
        ((0, 4, 4, 8), (3, 3, 8, 8)),
        ((8, 4, 4, 0), (3, 3, 0, 8)),
        ((8, 4, 4, 8), (3, 3, 8, 0)),
        ((8, 4, 4, 8), (3, 3, 8, 8)),
        ((8, 1, 1, 1), (1, 1, 1, 1)),
    ],
    ids=str,
)
def test_empty_and_single(x: tuple[int, ...], w: tuple[int, ...], rng: np.random.Generator):
    mesh = make_mesh(AxisType.Auto)
    images, weights = ints(rng, x, w)

    def f(w: Any, x: Any) -> Any:
        y = conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NUMBERS[2])
        return jnp.sum(resize(y, (*y.shape[:1], 8, 8, y.shape[3]), "nearest") ** 2)

    step = jax.jit(jax.value_and_grad(f, (0, 1)))
    assert_same(step(put(weights, mesh), put(images, mesh, "data")), step(weights, images))


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


# Meshes.


def test_two_meshes_in_one_program(rng: np.random.Generator):
    """JAX lets arrays lie on different meshes of the same devices, in the same order."""
    case = GEOMETRIES["plain"]
    x, w = ints(rng, case.x, case.w)
    f = jax.jit(operator("fprop", case))
    line, grid = make_mesh(AxisType.Auto), make_mesh(AxisType.Auto, GRID)
    split = put(x, line, "data"), put(w, grid, None, None, None, "model")
    assert_same(f(*split), f(x, w))


def test_lowering_for_devices_that_are_not_here():
    case = GEOMETRIES["plain"]
    mesh = AbstractMesh((64,), ("data",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct((64, *case.x[1:]), np.float32, sharding=NamedSharding(mesh, P("data")))
    f = jax.jit(lambda x: operator("fprop", case)(x, np.ones(case.w, np.float32)))
    text = f.trace(x).lower(lowering_platforms=("cpu",)).as_text()
    assert "CustomSPMDPartitioning" in text


@pytest.mark.skipif(DEVICES < 8, reason="needs six devices")
@pytest.mark.parametrize("shape", [{"a": 3, "b": 2}, {"a": 2, "b": 3}, {"a": 6}], ids=str)
def test_meshes_of_other_sizes(shape: dict[str, int], rng: np.random.Generator):
    mesh = make_mesh(AxisType.Auto, shape)
    x, w = ints(rng, (6, 12, 3, 4), (3, 3, 4, 6))
    f = functools.partial(conv_fprop, padding="SAME", dimension_numbers=NUMBERS[2])
    names = list(shape)
    ways = [(names[0], *names[1:]), (tuple(names),), (None, tuple(names[::-1]))]
    for way in ways:
        run = jax.jit(f)
        split = put(x, mesh, *way), put(w, mesh)
        assert not collectives(run.lower(*split).compile().as_text())["all-gather"]
        assert_same(run(*split), run(x, w))


def test_shardings_are_read(rng: np.random.Generator):
    """The meshes of prime axes into which XLA's shardings are taken apart say the same as JAX's own."""
    for shape in ({"a": 8}, {"a": 4, "b": 2}, {"a": 2, "b": 2, "c": 2}, {"a": 3, "b": 2}):
        mesh = AbstractMesh(
            tuple(shape.values()), tuple(shape), axis_types=(AxisType.Auto,) * len(shape)
        )
        for _ in range(20):
            names = [*rng.permutation(list(shape))][: rng.integers(1, len(shape) + 1)]
            given: list[tuple[str, ...]] = [(), (), ()]
            for name in names:
                axis = rng.integers(3)
                given[axis] = (*given[axis], str(name))
            sharding = jax_internals.xla_sharding(NamedSharding(mesh, P(*given)), 3)
            found, (split,) = custom_partitioning._read_shardings([(3, sharding)], mesh.size)
            again = jax_internals.xla_sharding(NamedSharding(found, P(*split)), 3)
            assert math.prod(found.axis_sizes) == mesh.size
            assert _tiles(again) == _tiles(sharding)


def test_meshes_of_prime_axes():
    assert list(custom_partitioning._factorizations(1)) == [()]
    assert list(custom_partitioning._factorizations(4096)) == [(2,) * 12]
    assert list(custom_partitioning._factorizations(12)) == [(2, 2, 3), (2, 3, 2), (3, 2, 2)]


def _tiles(sharding: Any) -> Any:
    """Which tile of the array each device has."""
    if sharding.is_replicated():
        return None
    tiles = sharding.tile_assignment_dimensions()[:3]
    devices = np.asarray(sharding.tile_assignment_devices()).reshape(*tiles, -1)
    return tiles, np.sort(devices, -1).tolist()


# Compiling.


def test_what_was_said_when_a_call_was_lowered_holds(rng: np.random.Generator):
    """XLA asks for the parts later, in another thread."""
    case = GEOMETRIES["plain"]
    mesh = make_mesh(AxisType.Auto)
    split = put(np.ones(case.x, np.float32), mesh, "data"), put(np.ones(case.w, np.float32), mesh)
    f = operator("fprop", case)
    with override_backend("xla_rewritten"), jax.default_matmul_precision("highest"):
        lowered = jax.jit(f).lower(*split)
    text = lowered.compile().as_text()
    assert "jax_convgrad_conv" not in text and "highest" in text
    with override_backend(None):
        text = jax.jit(lambda x, w: f(x, w)).lower(*split).compile().as_text()
    assert "highest" not in text


def test_float64_in_one_thread_only(without_x64: None, rng: np.random.Generator):
    case = GEOMETRIES["plain"]
    mesh = make_mesh(AxisType.Auto)
    with jax.enable_x64(True):
        x, y = (rng.integers(-2, 3, shape).astype(np.float64) for shape in (case.x, case.y))
        f = jax.jit(operator("wgrad", case))
        got = f(put(x, mesh, "data"), put(y, mesh, "data"))
        assert got.dtype == np.float64
        assert_same(got, f(x, y))


def test_calls_of_one_shape_are_not_confused(rng: np.random.Generator):
    """The same arrays, the same ways to split them, another convolution."""
    mesh = make_mesh(AxisType.Auto)
    x, w = ints(rng, (8, 16, 4, 4), (3, 3, 4, 4))
    more: dict[str, Any] = {"dimension_numbers": NUMBERS[2]}
    f = jax.jit(
        lambda x, w: (
            conv_fprop(x, w, padding="SAME", **more),
            conv_fprop(x, w, padding="SAME", dilation=2, **more),
            resize(x, (8, 16, 8, 4), "linear"),
            resize(x, (8, 16, 8, 4), "nearest"),
        )
    )
    assert_same(f(put(x, mesh, "data"), put(w, mesh)), f(x, w))


_CACHED = """
import sys
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from jax import monitoring
from jax_convgrad import conv_fprop

events = []
monitoring.register_event_listener(lambda event, **_: events.append(event))
mesh = jax.make_mesh((len(jax.devices()),), ("data",), axis_types=(AxisType.Auto,))
x = jax.device_put(np.ones((8, 16, 4, 4), np.float32), NamedSharding(mesh, P("data")))
w = jax.device_put(np.ones((3, 3, 4, 4), np.float32), NamedSharding(mesh, P()))
events.clear()
for dilation in (1, 2):
    f = lambda x, w: conv_fprop(
        x, w, padding="SAME", dilation=dilation, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    print(int(np.asarray(jax.jit(f)(x, w)).sum()))
print(sum(event.endswith("cache_hits") for event in events))
"""


@pytest.mark.parametrize("without_pointer", [False, True])
def test_the_persistent_cache_hits(
    without_pointer: bool, tmp_path: Any, subprocess_python: list[str], needs_cpu_handlers: None
):
    """In another process; with JAX's option that leaves a call's key out of the cache's, too."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        "JAX_REMOVE_CUSTOM_PARTITIONING_PTR_FROM_CACHE_KEY": str(int(without_pointer)),
    }

    def run() -> list[int]:
        command = [*subprocess_python, "-c", _CACHED]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return [int(line) for line in done.stdout.split()]

    first, second = run(), run()
    assert first[:2] == second[:2] and first[0] != first[1]
    assert first[2] == 0 and second[2] == 2


def test_without_shardy(rng: np.random.Generator):
    """The partitioner before it divides operations alone."""
    params, x = network_problem(rng)
    mesh = make_mesh(AxisType.Auto)
    expected = jax.jit(jax.grad(network_loss))(params, x)
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        step = jax.jit(jax.grad(network_loss))
        split = jax.tree.map(lambda p: put(p, mesh), params), put(x, mesh, "data")
        lowered = step.lower(*split)
        assert "jax_convgrad_conv" not in lowered.as_text()
        assert not collectives(lowered.compile().as_text())["all-gather"]
        assert_same(step(*split), expected)
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)


def test_export_of_a_sharded_program(rng: np.random.Generator):
    """It holds operations, which XLA divides wherever it runs."""
    case = GEOMETRIES["plain"]
    mesh = make_mesh(AxisType.Auto)
    x, w = ints(rng, case.x, case.w)
    f = jax.jit(operator("fprop", case))
    split = put(x, mesh, "data"), put(w, mesh)
    exported = jax.export.export(f)(*split)
    assert "custom_call @jax_convgrad" not in exported.mlir_module()
    assert "CustomSPMDPartitioning" not in exported.mlir_module()
    assert_same(jax.jit(exported.call)(*split), f(x, w))


# Anything.


@pytest.mark.parametrize("seed", range(24))
def test_random(seed: int):
    """Any convolution, arrays split in any way, a result asked for in any way."""
    rng = np.random.default_rng(seed)
    shapes = [{"data": DEVICES}, GRID]
    mesh = make_mesh(AxisType.Auto, shapes[rng.integers(2)])
    rank = int(rng.integers(1, 3))
    groups, inputs, outputs = (int(rng.choice([1, 2, 4, 8])) for _ in range(3))
    kernel = tuple(int(v) for v in rng.integers(1, 6, rank))
    strides = tuple(int(v) for v in rng.integers(1, 4, rank))
    dilation = tuple(int(v) for v in rng.integers(1, 3, rank))
    sizes = tuple(int(v) for v in rng.choice([16, 24, 32, 48], rank))
    padding = []
    for k, d, s in zip(kernel, dilation, strides, strict=True):
        low = int(rng.integers(-1, 4))
        ratio = (k - 1) * d + 1 - s - low + int(rng.integers(0, s))
        padding.append((low, ratio if rng.random() < 0.7 else int(rng.integers(0, 4))))
    case = Geometry(
        (int(rng.choice([1, 2, 8])), *sizes, groups * inputs),
        kernel,
        groups * outputs,
        {"strides": strides, "padding": padding, "dilation": dilation, "groups": groups},
    )

    def any_spec(shape: tuple[int, ...]) -> tuple[Any, ...]:
        split: list[tuple[str, ...]] = [()] * len(shape)
        for name in rng.permutation(list(mesh.shape)):
            axis = int(rng.integers(len(shape)))
            parts = math.prod(mesh.shape[n] for n in split[axis]) * mesh.shape[name]
            if shape[axis] % parts == 0:
                split[axis] = (*split[axis], str(name))
        return tuple(split)

    with override_backend([None, "swap"][rng.integers(2)]):
        for name in OPERATORS:
            a, b = ints(rng, *(getattr(case, role) for role in ROLES[name][:2]))
            f = operator(name, case)
            expected = jax.jit(f)(a, b)
            out = NamedSharding(mesh, P(*any_spec(expected.shape)))
            run = jax.jit(f, out_shardings=out if rng.random() < 0.5 else None)
            ways = any_spec(a.shape), any_spec(b.shape)
            assert_same(run(put(a, mesh, *ways[0]), put(b, mesh, *ways[1])), expected)


def test_assign_takes_each_mesh_axis_once(rng: np.random.Generator):
    case = GEOMETRIES["grouped"]
    shapes = [jax.ShapeDtypeStruct(s, np.float32) for s in (case.x, case.w)]
    (config,) = (
        equation.params["config"]
        for equation in jax.make_jaxpr(operator("fprop", case))(*shapes).eqns
    )
    division = solver.conv_fprop(None, "cpu", *shapes, config=config)
    sizes = {"d0": 2, "d1": 2, "d2": 2}
    for _ in range(100):
        splits = []
        for array in division.arrays:
            split: list[tuple[str, ...]] = [()] * len(array)
            for name in rng.permutation(list(sizes)):
                axis = rng.integers(len(array))
                split[axis] = (*split[axis], str(name))
            splits.append(tuple(split))
        chosen = solver.assign(division, sizes, splits)
        used = [name for names in chosen.values() for name in names]
        assert len(used) == len(set(used))
        assert all(
            division.fits(f, math.prod(sizes[n] for n in names)) for f, names in chosen.items()
        )
        assert "i" not in chosen or math.prod(sizes[n] for n in chosen.get("g", ())) == 8

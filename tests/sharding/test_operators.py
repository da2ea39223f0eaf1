"""The operators in programs that XLA divides among devices: values, and what is exchanged.

For each way to split the arrays the compiled program is read: no image is gathered, and there are as many
all-reduces as the mathematics asks for.
"""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.meshes import collectives, make_mesh, put
from support.partitioned_operators import (
    GEOMETRIES,
    GRID,
    NUMBERS,
    OPERATORS,
    ROLES,
    SUMS,
    WAYS,
    assert_same,
    exchanges,
    ints,
    is_grid,
    is_possible,
    operator,
    spec,
)

from jax_convgrad import (
    conv_dgrad,
    conv_fprop,
    conv_wgrad,
)
from jax_convgrad._src import compat

pytestmark = [pytest.mark.optimized, pytest.mark.devices(4)]


@pytest.mark.parametrize(
    "geometry, way", [(g, w) for g in GEOMETRIES for w in WAYS if is_possible(g, w)]
)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str, geometry: str, way: str, backend: str, rng: np.random.Generator):
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
    assert (f"jax_convgrad_conv_{name}" in text) == (backend == "handlers")
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


def test_operators_in_explicit_meshes(rng: np.random.Generator):
    """All three keep the shardings that their results share; a weight gradient's sum is not ambiguous."""
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
        with pytest.raises(compat.ShardingTypeError, match="conv_dgrad: the sharding"):
            jax.jit(dgrad)(put(y, *sy), put(w, *sw))
        # 30 rows do not divide.
        valid = functools.partial(conv_fprop, padding="VALID", dimension_numbers=NUMBERS[2])
        with pytest.raises(compat.ShardingTypeError, match="conv_fprop: the sharding"):
            jax.jit(valid)(put(x, None, "data"), put(w))
    assert_same((got_x, got_w, got_y), (dgrad(y, w), wgrad(x, y), fprop(x, w)))


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

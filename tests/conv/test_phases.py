"""Strided convolutions of dilated inputs: exact, and without the zeros."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.comparisons import assert_exact, cast, value_and_gradients
from support.conv_cases import Case, ids, in_layout
from support.conv_oracle import conv_oracle
from support.layer_cases import equations, ints
from support.layouts import NDHWC, NHWC, NWC, to_layout

from jax_convgrad import conv_general_dilated
from jax_convgrad._src.conv import phases

# A case, and what is computed: the number of convolutions, an input gradient (None), or nothing (0).
CASES = [
    (Case("1d-equal", (2, 3, 9), (4, 3, 5), (3,), ((2, 4),), (), 1, None, (3,)), 1),
    (Case("1d-one-tap-in-two", (2, 3, 9), (4, 3, 5), (4,), ((1, 3),), (3,), 1, NWC, (2,)), 1),
    (Case("1d-multiple", (2, 3, 9), (4, 3, 5), (2,), ((-3, 4),), (), 1, NWC, (6,)), None),
    (Case("1d-coprime", (2, 3, 9), (4, 3, 5), (2,), ((5, 2),), (), 1, NWC, (3,)), 3),
    (Case("1d-common-with-kernel", (2, 3, 9), (4, 3, 5), (3,), ((2, 2),), (2,), 1, NWC, (4,)), 2),
    (Case("1d-one-tap", (2, 3, 9), (4, 3, 1), (4,), ((1, 2),), (), 1, NWC, (6,)), 0),
    (Case("1d-only-zeros", (2, 3, 5), (4, 3, 2), (2,), ((1, 2),), (2,), 1, NWC, (4,)), 0),
    (Case("1d-some-zeros", (2, 3, 5), (4, 3, 2), (2,), ((1, 2),), (), 1, NWC, (5,)), 2),
    (Case("2d", (2, 3, 4, 5), (4, 3, 3, 4), (2, 3), ((2, 1), (-1, 3)), (), 1, NHWC, (3, 2)), 6),
    (Case("2d-axes", (2, 3, 6, 5), (4, 3, 3, 4), (2, 1), ((1, 2), (3, 0)), (), 1, NHWC, (1, 3)), 3),
    (Case("2d-groups", (2, 4, 6, 5), (6, 2, 3, 4), (4, 2), ((1, 2),) * 2, (), 2, NHWC, (6, 3)), 3),
    (Case("3d", (1, 2, 3, 2, 4), (3, 2, 2, 3, 2), (2,) * 3, ((1, 2),) * 3, (), 1, NDHWC, (3, 2, 1)), 2),
    (Case("cropped", (2, 3, 7, 5), (4, 3, 3, 2), (2, 2), ((-4, -1),) * 2, (), 1, NHWC, (3, 3)), 6),
    (Case("no-output", (2, 3, 2, 5), (4, 3, 7, 3), (2, 2), ((0, 0),) * 2, (), 1, NHWC, (3, 3)), 0),
    (Case("no-batch", (0, 3, 4, 5), (4, 3, 3, 3), (2, 2), ((1, 1),) * 2, (), 1, NHWC, (3, 3)), 0),
    (Case("batch-groups", (4, 3, 7), (6, 3, 4), (3,), ((2, 2),), (), 1, NWC, (2,), 2), 2),
]  # fmt: skip
per_case = pytest.mark.parametrize(("case", "computed"), CASES, ids=[ids(c) for c, _ in CASES])


@per_case
def test_the_convolutions_are_those_of_the_input_itself(case: Case, computed: int | None):
    layer = functools.partial(conv_general_dilated, **case.lax_keywords)
    x, w = (jax.ShapeDtypeStruct(case.logical(name), "float32") for name in "xw")
    program = list(equations(layer, x, w))
    assert not any(equation.primitive.name == "pad" for equation in program), program
    # Windows that meet nothing but zeros have an empty kernel: nothing is computed of it.
    asked = (e.params["problem"] for e in program if "problem" in e.params)
    found = [problem.operator for problem in asked if not problem.geometry.is_empty]
    assert found == (["conv_dgrad"] if computed is None else ["conv_fprop"] * computed), program


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@per_case
def test_values_and_gradients_are_exact(
    case: Case, computed: int | None, dtype: str, rng: np.random.Generator
):
    check(case, dtype, rng)


def test_many_phases_are_not_unrolled(rng: np.random.Generator):
    """The zeros are inserted then, after what stride and dilation share is taken out."""
    case = Case("", (1, 2, 5, 6), (2, 2, 14, 12), (4, 6), ((3, 2),) * 2, (), 1, NHWC, (14, 20))
    layer = functools.partial(conv_general_dilated, **case.lax_keywords)
    x, w = (jax.ShapeDtypeStruct(case.logical(name), "float32") for name in "xw")
    program = str(jax.make_jaxpr(layer)(x, w))
    assert 7 * 6 > phases.MAX_PHASES and program.count("conv_fprop[") == 1
    assert "(0, 0, 6), (0, 0, 9)" in program, program
    check(case, "float32", rng)


def test_phases_that_are_only_zeros_do_not_count(rng: np.random.Generator):
    """A window of 3 taps meets elements in 3 of 7 phases at most; the others are one array of zeros."""
    case = Case("", (1, 2, 5, 4), (2, 2, 3, 2), (2, 3), ((2, 1), (1, 3)), (), 1, NHWC, (7, 10))
    layer = functools.partial(conv_general_dilated, **case.lax_keywords)
    x, w = (jax.ShapeDtypeStruct(case.logical(name), "float32") for name in "xw")
    problems = [e.params["problem"] for e in equations(layer, x, w) if "problem" in e.params]
    assert 7 * 10 > phases.MAX_PHASES
    assert sum(not problem.geometry.is_empty for problem in problems) == 3 * 2
    assert sum(problem.geometry.is_empty for problem in problems) == 1
    check(case, "float32", rng)


def check(case: Case, dtype: str, rng: np.random.Generator) -> None:
    data = case.data(rng, dtype)
    expected = conv_oracle(case, *data)
    x, w, dy = cast(dtype, *in_layout(case, *data))
    layer = functools.partial(conv_general_dilated, **case.lax_keywords)
    x_spec, w_spec, y_spec = case.numbers
    for name, got, wanted, spec in zip(
        ("y", "dx", "dw"),
        value_and_gradients(layer)(dy, x, w),
        expected,
        (y_spec, x_spec, w_spec),
        strict=True,
    ):
        assert_exact(got, to_layout(wanted, spec), dtype, name)


@pytest.mark.parametrize("power", [32, 40])
def test_a_dilation_that_the_stride_takes_back_costs_no_memory(power: int):
    """The zeros between eight elements would fill 120 GB, or 30 TB."""
    far = (2**power,)

    @jax.jit
    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        return conv_general_dilated(x, w, far, [(0, 0)], lhs_dilation=far)

    x, w = jnp.arange(8.0).reshape(1, 1, 8), jnp.full((1, 1, 1), 3.0)
    np.testing.assert_array_equal(layer(x, w), 3 * x)
    dx, dw = jax.grad(lambda x, w: jnp.sum(layer(x, w) ** 2), (0, 1))(x, w)
    np.testing.assert_array_equal(dx, 18 * x)
    assert dw == 6 * np.sum(np.arange(8) ** 2)


@pytest.mark.devices(2)
def test_an_explicit_mesh_keeps_the_batch_where_it_is(rng: np.random.Generator):
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    layer = functools.partial(
        conv_general_dilated, window_strides=(2, 2), padding=((1, 2),) * 2, lhs_dilation=(3, 3)
    )
    x, w = (rng.integers(-3, 4, s).astype(np.float32) for s in ((4, 3, 5, 6), (4, 3, 3, 3)))
    expected = jax.jit(lambda x, w: lax.conv_general_dilated(x, w, (2, 2), ((1, 2),) * 2, (3, 3)))(
        x, w
    )
    with jax.set_mesh(mesh):
        split = jax.NamedSharding(mesh, jax.P("d"))
        y = jax.jit(layer)(
            jax.device_put(x, split), jax.device_put(w, jax.NamedSharding(mesh, jax.P()))
        )
    assert jax.typeof(y).sharding.spec[0] == "d"
    np.testing.assert_array_equal(y, expected)


@pytest.mark.devices(2)
@pytest.mark.parametrize(
    "windows", [((2,), (5,)), ((4,), (6,)), ((2,), (3,)), ((3,), (3,))], ids=str
)
def test_an_explicit_mesh_keeps_the_output_channels_where_they_are(
    windows: tuple[tuple[int], tuple[int]], rng: np.random.Generator
):
    """Those of phases that are only zeros too, of which the first has some and the second nothing else."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    strides, dilation = windows
    x, w = ints(rng, (2, 2, 5), (4, 2, 1 if strides == (4,) else 2))
    arguments = strides, ((1, 2),), dilation
    expected = jax.jit(lambda x, w: lax.conv_general_dilated(x, w, *arguments))(x, w)
    with jax.set_mesh(mesh):
        y = jax.jit(lambda x, w: conv_general_dilated(x, w, *arguments))(
            jax.device_put(x, jax.NamedSharding(mesh, jax.P())),
            jax.device_put(w, jax.NamedSharding(mesh, jax.P("d"))),
        )
    assert jax.typeof(y).sharding.spec[1] == "d"
    np.testing.assert_array_equal(y, expected)


def test_phases_without_windows_are_not_computed():
    x, w = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((1, 1, 9), (1, 1, 40)))
    layer = functools.partial(
        conv_general_dilated, window_strides=(100,), padding=((0, 0),), lhs_dilation=(31,)
    )
    assert jax.eval_shape(layer, x, w).shape == (1, 1, 3)
    assert [e.primitive.name for e in equations(layer, x, w)].count("conv_fprop") == 3

"""The CPU handler of resample, called through jax.ffi past all of the package's Python.

Compared with the definition in float64. A bad call must come back as an error that names the operand
and the sizes.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import resample_cases as cases
from support.resample_cases import DTYPES, PROBLEMS, Problem

RANDOM_PROBLEMS = 120


pytestmark = pytest.mark.usefixtures("needs_cpu_handlers")


@pytest.mark.parametrize("integers", [True, False], ids=["integers", "random"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_resample_is_the_definition(
    problem: Problem, dtype: str, integers: bool, rng: np.random.Generator
) -> None:
    cases.check(rng, problem, dtype, integers)


@pytest.mark.parametrize("seed", range(RANDOM_PROBLEMS))
def test_random_problems(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = cases.random_problem(rng)
    cases.check(rng, problem, DTYPES[seed % 4], integers=seed % 8 < 4)


NEAREST = (
    Problem((50, 3, 2), (1,), (1,), (1,)),
    Problem((7, 40), (1,), (90,), (1,)),
    Problem((7, 90, 5), (1,), (31,), (1,)),
    Problem((3, 9, 70), (1,), (20,), (1,)),
    Problem((2, 6, 7, 20), (1, 2), (12, 17), (1, 1)),
    Problem((2, 20, 16, 17), (2, 3), (32, 51), (1, 1)),
    Problem((2, 3, 64, 40), (2, 3), (9, 80), (1, 1)),
    Problem((2, 33, 16, 3), (1, 2), (66, 5), (1, 1)),
    Problem((2, 3, 6, 7, 8), (2, 3, 4), (12, 14, 16), (1, 1, 1)),
    Problem((2, 8, 6, 9, 18), (1, 2, 3), (3, 9, 20), (1, 1, 1)),
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("problem", NEAREST, ids=str)
def test_nearest_copies(problem: Problem, dtype: str, rng: np.random.Generator) -> None:
    """One tap of weight 1 each: every bit comes through, also of what is not a number."""
    x = rng.standard_normal(problem.x)
    x[rng.uniform(size=problem.x) < 0.1] = np.inf
    x[rng.uniform(size=problem.x) < 0.1] = np.nan
    x = np.asarray(jnp.asarray(x, dtype))
    expected, tables = x, []
    for axis, m in zip(problem.axes, problem.out, strict=True):
        places = np.arange(m) * problem.x[axis] // m
        tables.append((places.astype(np.int32), np.ones((m, 1))))
        expected = np.take(expected, places, axis)
    got = cases.run(problem, cases.Data(x, tuple(tables)), dtype)
    np.testing.assert_array_equal(got.view(np.uint8), np.ascontiguousarray(expected).view(np.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_of_zero_at_the_ends_read_nothing(dtype: str) -> None:
    """Rows are padded with zeros to the longest; what is not finite must not come in through them."""
    x = np.ones((3, 40))
    x[:, 10:] = np.nan
    start = np.array([8, 9, 0], np.int32)
    weights = np.array([[1, 1, 0, 0], [0.5, 0, 0, 0], [0, 0, 0, 0]])
    data = cases.Data(np.asarray(jnp.asarray(x, dtype)), ((start, weights),))
    got = cases.run(Problem((3, 40), (1,), (3,), (4,)), data, dtype)
    np.testing.assert_array_equal(got.astype(np.float64), np.tile([2, 0.5, 0], (3, 1)))


def test_float16_is_rounded_once(rng: np.random.Generator) -> None:
    """The gradient of an 8x linear upsampling, within half a unit in the last place of float16."""
    problem = Problem((2, 3, 64, 64), (2, 3), (8, 8), (16, 16))
    weights = np.minimum(np.arange(1, 17), np.arange(16, 0, -1)) / 8 - 1 / 16
    start = np.clip(8 * np.arange(8) - 4, 0, 48).astype(np.int32)
    table = (start, np.tile(weights, (8, 1)))
    x = rng.uniform(0.5, 1, problem.x).astype(np.float16)
    data = cases.Data(x, (table, table))
    got, expected = cases.run(problem, data, "float16"), cases.reference(problem, data)
    half_unit = 0.5 * np.spacing(expected.astype(np.float16)).astype(np.float64)
    assert (np.abs(got.astype(np.float64) - expected) <= half_unit * 1.001).all()


@pytest.mark.parametrize(
    "problem",
    [
        Problem((0, 5), (1,), (3,), (2,)),
        Problem((3, 5, 0), (1,), (3,), (2,)),
        Problem((3, 5), (1,), (0,), (2,)),
        Problem((3, 0), (1,), (0,), (0,)),
        Problem((3, 0), (1,), (4,), (0,)),
        Problem((3, 6, 5), (1, 2), (4, 2), (3, 0)),
    ],
    ids=str,
)
def test_nothing_to_sum_gives_zeros(problem: Problem, rng: np.random.Generator) -> None:
    tables = tuple(
        (np.zeros(m, np.int32), np.ones((m, taps)))
        for m, taps in zip(problem.out, problem.taps, strict=True)
    )
    data = cases.Data(rng.standard_normal(problem.x).astype(np.float32), tables)
    got = cases.run(problem, data, "float32")
    np.testing.assert_array_equal(got, np.zeros(problem.y, np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "problem",
    [
        Problem((4, 16, 128, 128), (2, 3), (64, 64), (4, 4)),
        Problem((4, 64, 64, 32), (1, 2), (160, 150), (3, 3)),
    ],
    ids=str,
)
def test_a_hundred_runs_give_the_same_bits(
    problem: Problem, dtype: str, rng: np.random.Generator
) -> None:
    data = cases.make_data(rng, problem, dtype, integers=False)
    call = jax.ffi.ffi_call(cases.TARGET, jax.ShapeDtypeStruct(problem.y, dtype))
    y = jax.jit(lambda *operands: call(*operands, axes=np.asarray(problem.axes, np.int64)))
    operands = [jnp.asarray(array) for array in cases.arguments(data, dtype)]
    first = np.asarray(y(*operands)).tobytes()
    assert all(np.asarray(y(*operands)).tobytes() == first for _ in range(99))


def test_a_row_does_not_depend_on_its_neighbors(rng: np.random.Generator) -> None:
    """Tiles and threads are others for one image than for many; the bits are not."""
    problem = Problem((24, 40, 41, 5), (1, 2), (17, 90), (6, 3))
    data = cases.make_data(rng, problem, "float32", integers=False)
    whole = cases.run(problem, data, "float32")
    alone = Problem((1, *problem.x[1:]), problem.axes, problem.out, problem.taps)
    for image in range(0, 24, 5):
        one = cases.Data(data.x[image : image + 1], data.tables)
        np.testing.assert_array_equal(cases.run(alone, one, "float32")[0], whole[image])


# Bad calls: what is wrong, the call, and what its error must say.


def call(
    x: Any = (2, 6, 3),
    x_dtype: str = "float32",
    tables: Any = (((4,), "int32"), ((4, 2), "float32")),
    y: Any = (2, 4, 3),
    y_dtype: str = "float32",
    axes: Any = (1,),
    **attributes: Any,
) -> None:
    target = jax.ffi.ffi_call(cases.TARGET, jax.ShapeDtypeStruct(y, y_dtype))
    operands = [jnp.zeros(x, x_dtype), *(jnp.zeros(shape, dtype) for shape, dtype in tables)]
    if axes is not None:
        attributes["axes"] = np.asarray(axes, np.int64)
    jax.block_until_ready(jax.jit(lambda *args: target(*args, **attributes))(*operands))


I, F = "int32", "float32"  # noqa: E741
BAD_CALLS = {
    "integers": (dict(x_dtype="int32"), r"x has dtype"),
    "complex": (dict(x_dtype="complex64"), r"x has dtype"),
    "another-result": (dict(y_dtype="float16"), r"y has dtype"),
    "no-axes": (dict(axes=()), r"axes is \(\), expected 1 to 3"),
    "four-axes": (
        dict(x=(2, 2, 2, 2), y=(2, 2, 2, 2), axes=(0, 1, 2, 3)),
        r"expected 1 to 3 entries",
    ),
    "axis-outside": (dict(axes=(3,)), r"axes is \(3\), expected ascending positions"),
    "negative-axis": (dict(axes=(-1,)), r"axes is \(-1\), expected ascending positions"),
    "same-axis-twice": (dict(axes=(1, 1)), r"axes is \(1, 1\), expected ascending"),
    "descending-axes": (dict(axes=(2, 1)), r"axes is \(2, 1\), expected ascending"),
    "axes-missing": (dict(axes=None), r"expected 1 attributes but got 0"),
    "axes-a-scalar": (dict(axes=None, axis=1), r"axes"),
    "scalar-x": (dict(x=(), y=(), axes=(0,)), r"ascending positions in x, which has shape \(\)"),
    "rank": (dict(y=(2, 4)), r"y has shape \(2, 4\), expected that of x, \(2, 6, 3\)"),
    "other-size": (dict(y=(2, 4, 5)), r"y has shape \(2, 4, 5\)"),
    "no-tables": (dict(tables=()), r"got 0 tables"),
    "one-table": (dict(tables=(((4,), I),)), r"got 1 tables"),
    "too-many-tables": (dict(tables=(((4,), I), ((4, 2), F), ((4,), I))), r"got 3 tables"),
    "tables-of-one-axis": (dict(axes=(1, 2), y=(2, 4, 3)), r"got 2 tables"),
    "swapped": (dict(tables=(((4, 2), F), ((4,), I))), r"start of axis 1 has dtype"),
    "int64-start": (dict(tables=(((4,), "int64"), ((4, 2), F))), r"start of axis 1 has dtype"),
    "start-length": (dict(tables=(((5,), I), ((4, 2), F))), r"start of axis 1 has shape \(5\)"),
    "start-rank": (dict(tables=(((4, 1), I), ((4, 2), F))), r"start of axis 1 has shape \(4, 1\)"),
    "weights-length": (dict(tables=(((4,), I), ((5, 2), F))), r"weights of axis 1 have shape"),
    "weights-rank": (dict(tables=(((4,), I), ((4,), F))), r"weights of axis 1 have shape \(4\)"),
    "weights-transposed": (dict(tables=(((4,), I), ((2, 4), F))), r"have shape \(2, 4\)"),
    "narrow-weights": (
        dict(tables=(((4,), I), ((4, 2), "float16"))),
        r"weights of axis 1 have dtype",
    ),
    "wide-weights": (dict(tables=(((4,), I), ((4, 2), "float64"))), r"have dtype"),
    "double-x": (dict(x_dtype="float64", y_dtype="float64"), r"weights of axis 1 have dtype"),
    "too-many-taps": (dict(tables=(((4,), I), ((4, 7), F))), r"more taps than the 6 elements"),
    "empty-x": (dict(x=(2, 0, 3)), r"more taps than the 0 elements"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_bad_call_is_an_error(name: str) -> None:
    arguments, message = BAD_CALLS[name]
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=message):
        call(**arguments)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("start", [[0, 1, -1, 2], [5, 0, 0, 0], [0, 0, 0, 2**31 - 1]], ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_start_outside_is_an_error(start: list[int], dtype: str, axis: int) -> None:
    shape = [6, 6, 6]
    y = list(shape)
    y[axis] = 4
    target = jax.ffi.ffi_call(cases.TARGET, jax.ShapeDtypeStruct(y, dtype))
    operands = [np.ones(shape, dtype), np.asarray(start, np.int32), np.ones((4, 2), dtype)]
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"resample: start of the .* of the axes is"
    ):
        jax.block_until_ready(
            jax.jit(lambda *args: target(*args, axes=np.asarray([axis], np.int64)))(*operands)
        )

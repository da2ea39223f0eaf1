"""Resample problems for the handlers' tests on every platform: cases, a generator, and the right answers.

A problem is an array and, for some of its axes, a band: ``start`` and ``weights`` with
``y[.., i, ..] = sum_t weights[i, t] * x[.., start[i] + t, ..]``.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

TARGET = "jax_convgrad_resample"
DTYPES = ("float16", "bfloat16", "float32", "float64")
# Half a unit in the last place of a number near 1.
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
SMALLEST_HALF = 2.0**-25  # half of float16's smallest number


@dataclasses.dataclass(frozen=True)
class Problem:
    """Sizes of a resample: ``out`` and ``taps`` of each axis."""

    x: tuple[int, ...]
    axes: tuple[int, ...]
    out: tuple[int, ...]
    taps: tuple[int, ...]

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.x))
        return f"{sizes}-axes{list(self.axes)}-to{list(self.out)}-taps{list(self.taps)}"

    @property
    def y(self) -> tuple[int, ...]:
        shape = list(self.x)
        for axis, size in zip(self.axes, self.out, strict=True):
            shape[axis] = size
        return tuple(shape)


@dataclasses.dataclass(frozen=True)
class Data:
    """Arrays of one problem: x in its dtype, tables as (start, weights) with float64 weights."""

    x: np.ndarray
    tables: tuple[tuple[np.ndarray, np.ndarray], ...]


# Every form that the kernels distinguish: channels first and last, few and many channels, one to three
# axes, next to each other or not, few and many taps, more and fewer outputs than inputs.
PROBLEMS = (
    Problem((5,), (0,), (11,), (2,)),
    Problem((1,), (0,), (7,), (1,)),
    Problem((400,), (0,), (3,), (200,)),
    Problem((6, 40), (1,), (80,), (2,)),
    Problem((37, 64), (1,), (16,), (16,)),
    Problem((3, 50, 3), (1,), (20,), (7,)),
    Problem((3, 40, 64), (1,), (90,), (4,)),
    Problem((2, 90, 33), (1,), (30,), (6,)),
    Problem((2, 8, 8, 16), (1, 2), (16, 16), (2, 2)),
    Problem((2, 16, 16, 16), (1, 2), (8, 8), (4, 4)),
    Problem((2, 16, 18, 21), (1, 2), (7, 9), (5, 4)),
    Problem((1, 9, 10, 3), (1, 2), (27, 20), (4, 3)),
    Problem((2, 12, 11, 100), (1, 2), (5, 22), (6, 2)),
    Problem((2, 5, 16, 16), (2, 3), (32, 32), (2, 2)),
    Problem((2, 5, 33, 34), (2, 3), (16, 17), (4, 4)),
    Problem((2, 3, 65, 65), (2, 3), (9, 9), (16, 16)),
    Problem((2, 3, 17, 200), (2, 3), (30, 3), (3, 120)),
    Problem((40, 200), (0, 1), (4, 2), (30, 200)),
    Problem((7, 3, 6, 5), (0, 2), (3, 13), (4, 2)),
    Problem((6, 2, 5, 3), (0, 3), (12, 6), (3, 2)),
    Problem((2, 3, 8, 9, 10), (2, 3, 4), (4, 5, 5), (4, 4, 4)),
    Problem((1, 5, 6, 7, 8), (1, 2, 3), (10, 12, 14), (2, 2, 2)),
    Problem((4, 2, 6, 3, 5, 2), (0, 2, 4), (2, 9, 10), (3, 2, 2)),
    Problem((2, 12, 14, 16, 3), (1, 2, 3), (5, 6, 40), (6, 5, 3)),
    Problem((1, 1, 70, 70, 1), (2, 3), (9, 140), (33, 1)),
    Problem((1, 3, 4, 6401), (1, 2), (6, 2), (2, 3)),
    Problem((3, 65, 65), (1, 2), (513, 513), (2, 2)),
    Problem((2, 9, 193), (1,), (41,), (2,)),
    Problem((2, 40, 57), (1, 2), (163, 1025), (2, 1)),
    Problem((1, 3, 33, 66), (2, 3), (200, 259), (2, 2)),
    Problem((2, 20, 203), (1, 2), (100, 1015), (2, 2)),
)


def random_problem(rng: np.random.Generator) -> Problem:
    """Any ranks, positions and sizes, up to about a hundred thousand elements."""
    sizes = (1, 2, 3, 4, 5, 7, 8, 12, 16, 21, 24, 33, 48, 64, 100, 130)
    while True:
        count = int(rng.integers(1, 4))
        x = [int(rng.choice(sizes)) for _ in range(count + int(rng.integers(0, 4)))]
        axes = tuple(sorted(int(a) for a in rng.choice(len(x), count, replace=False)))
        out, taps = [], []
        for axis in axes:
            n = x[axis]
            factor = rng.choice((2, 0.5, 4, 0.25, 8, 0.125, 1, 2.5, 0.4, rng.uniform(0.05, 3)))
            m = max(1, int(n * factor))
            reach = max(1, n // m)
            out.append(m)
            taps.append(min(n, int(rng.choice((1, 2, 3, 4, 6, reach, 2 * reach, 4 * reach, n)))))
        problem = Problem(tuple(x), axes, tuple(out), tuple(taps))
        if max(np.prod(problem.x), np.prod(problem.y)) <= 100_000:
            return problem


def make_data(rng: np.random.Generator, problem: Problem, dtype: str, integers: bool) -> Data:
    """Random data. With ``integers`` every product and sum is exact in float32, the result in all."""
    x = rng.integers(-2, 3, problem.x) if integers else rng.uniform(-1, 1, problem.x)
    tables = []
    for axis, m, taps in zip(problem.axes, problem.out, problem.taps, strict=True):
        n = problem.x[axis]
        kind = rng.integers(0, 6)
        if kind == 0:  # in any order
            start = rng.integers(0, n - taps + 1, m)
        else:  # evenly spaced, as a resize has them, or twice as far apart, or the last first
            places = np.arange(m) * (n / m) * (2 if kind == 1 else 1) - taps / 2
            start = np.clip(places.astype(int), 0, n - taps)
            start = start[::-1] if kind == 2 else start
        weights = rng.integers(-1, 2, (m, taps)) if integers else rng.uniform(-1, 1, (m, taps))
        weights = weights * (rng.uniform(size=(m, taps)) < min(1.0, 4 / taps if integers else 0.9))
        weights[rng.uniform(size=m) < 0.1] = 0
        weights = weights.astype(np.float32).astype(np.float64)
        tables.append((start.astype(np.int32), weights))
    return Data(x.astype(jnp.dtype(dtype)), tuple(tables))


def reference(problem: Problem, data: Data, absolute: bool = False) -> np.ndarray:
    """The answer in float64; with ``absolute`` the sum of absolute values, which bounds rounding."""
    y = data.x.astype(np.float64)
    y = np.abs(y) if absolute else y
    for axis, (start, weights) in zip(problem.axes, data.tables, strict=True):
        matrix = np.zeros((len(start), y.shape[axis]))
        rows = np.arange(len(start))[:, None]
        np.add.at(matrix, (rows, start[:, None] + np.arange(weights.shape[1])), weights)
        matrix = np.abs(matrix) if absolute else matrix
        y = np.moveaxis(np.tensordot(matrix, y, (1, axis)), 0, axis)
    return y


def arguments(data: Data, dtype: str) -> list[np.ndarray]:
    """The operands of the handler."""
    wide = np.float64 if dtype == "float64" else np.float32
    tables = [table for start, weights in data.tables for table in (start, weights.astype(wide))]
    return [data.x, *tables]


def run(problem: Problem, data: Data, dtype: str) -> np.ndarray:
    """The handler's result, on JAX's default device."""
    call = jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct(problem.y, dtype))
    y = jax.jit(lambda *operands: call(*operands, axes=np.asarray(problem.axes, np.int64)))
    return np.asarray(y(*map(jnp.asarray, arguments(data, dtype))))


def check(rng: np.random.Generator, problem: Problem, dtype: str, integers: bool) -> None:
    data = make_data(rng, problem, dtype, integers)
    compare(problem, data, integers, run(problem, data, dtype))


def compare(problem: Problem, data: Data, integers: bool, got: np.ndarray) -> None:
    """Bit for bit on integers; otherwise within one rounding to dtype and the roundings of the sums."""
    dtype = str(data.x.dtype)
    assert got.dtype == data.x.dtype and got.shape == problem.y
    expected = reference(problem, data)
    if integers and np.abs(expected).max(initial=0) <= 256:
        np.testing.assert_array_equal(got.astype(np.float64), expected, err_msg=str(problem))
        return
    terms = sum(problem.taps) + 4
    bound = np.abs(expected) * ROUNDING[dtype] + terms * reference(problem, data, True) * min(
        ROUNDING[dtype], ROUNDING["float32"]
    )
    if dtype == "float16":
        bound = np.maximum(bound, SMALLEST_HALF)
    error = np.abs(got.astype(np.float64) - expected)
    assert (error <= 1.01 * bound).all(), (
        f"{problem} {dtype}: error {error.max()}, {(error / np.maximum(bound, 1e-300)).max()} bounds"
    )

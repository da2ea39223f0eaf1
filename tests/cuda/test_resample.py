"""The CUDA handler of resample on a GPU, called through jax.ffi past all of the package's Python.

Skipped where JAX runs on no GPU; JAX_CONVGRAD_REQUIRE_CUDA=1 makes that, and a missing module, a
failure.
"""

from __future__ import annotations

import fcntl
import functools
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import resample_cases as cases
from support.resample_cases import DTYPES, PROBLEMS, Problem

RANDOM_PROBLEMS = 300


pytestmark = pytest.mark.usefixtures("needs_cuda_handlers")


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


@pytest.mark.parametrize("channels_last", [True, False])
def test_bands_too_long_for_a_strip(channels_last: bool, rng: np.random.Generator) -> None:
    shape, axes = ((1, 3, 6000, 20), (1, 2)) if channels_last else ((1, 2, 3, 9000), (2, 3))
    cases.check(rng, Problem(shape, axes, (2, 2), (3, shape[axes[1]])), "float32", integers=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out", [20, 90])
def test_weights_of_zero_read_nothing(dtype: str, out: int) -> None:
    """Of one row of NaNs, only the outputs that give it a weight see anything."""
    x = np.ones((2, 40, 36))
    x[:, 17] = np.nan
    start = np.clip(np.arange(out) * 40 // out - 1, 0, 37).astype(np.int32)
    weights = np.ones((out, 3))
    weights[start[:, None] + np.arange(3) == 17] = 0
    identity = (np.arange(36, dtype=np.int32), np.ones((36, 1)))
    data = cases.Data(np.asarray(jnp.asarray(x, dtype)), ((start, weights), identity))
    got = cases.run(Problem(x.shape, (1, 2), (out, 36), (3, 1)), data, dtype)
    expected = np.broadcast_to(weights.sum(1)[:, None], (2, out, 36))
    np.testing.assert_array_equal(got.astype(np.float64), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_of_zero_read_nothing_for_odd_lines(dtype: str) -> None:
    """The same along both axes, where many lines of y are written as one."""
    x = np.ones((2, 20, 33))
    x[:, 7], x[:, :, 11] = np.nan, np.inf
    tables = []
    for size, out, special in ((20, 91, 7), (33, 201, 11)):
        start = np.clip(np.arange(out) * size // out, 0, size - 2).astype(np.int32)
        weights = np.ones((out, 2))
        weights[start[:, None] + np.arange(2) == special] = 0
        tables.append((start, weights))
    problem = Problem(x.shape, (1, 2), (91, 201), (2, 2))
    got = cases.run(problem, cases.Data(np.asarray(jnp.asarray(x, dtype)), tuple(tables)), dtype)
    rows, columns = (weights.sum(1) for _, weights in tables)
    expected = np.broadcast_to(rows[:, None] * columns, (2, 91, 201))
    np.testing.assert_array_equal(got.astype(np.float64), expected)


@pytest.mark.parametrize("out", [7, 300])
def test_starts_outside_read_nothing_outside(out: int, rng: np.random.Generator) -> None:
    """The tables lie on the device, where nobody checks them: they act as if clamped."""
    x = rng.standard_normal((3, 64, 50, 6)).astype(np.float32)
    wild = rng.integers(-(2**31), 2**31, out).astype(np.int32)
    weights = rng.standard_normal((out, 5)).astype(np.float32).astype(np.float64)
    problem = Problem(x.shape, (1, 2), (out, out), (5, 5))
    got = cases.run(problem, cases.Data(x, ((wild, weights), (wild[::-1], weights))), "float32")
    clamped = (np.clip(wild, 0, 59), weights), (np.clip(wild[::-1], 0, 45), weights)
    expected = cases.run(problem, cases.Data(x, clamped), "float32")
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "problem",
    [
        Problem((4, 16, 128, 128), (2, 3), (64, 64), (4, 4)),
        Problem((4, 64, 64, 32), (1, 2), (160, 150), (3, 3)),
        Problem((2, 24, 24, 24, 16), (1, 2, 3), (12, 12, 12), (4, 4, 4)),
        Problem((4, 33, 33), (1, 2), (257, 257), (2, 2)),
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


# Of one instance of the kernels, with 53,344, 50,912 and 52,800 bytes of shared memory.
SAME_KERNEL = [
    Problem((8, 1024, 1024), (1, 2), (512, 512), (13, 13)),
    Problem((8, 768, 768), (1, 2), (512, 512), (10, 10)),
    Problem((8, 1280, 1280), (1, 2), (64, 64), (121, 121)),
]


def _same_kernel(rng: np.random.Generator) -> tuple[list[Any], list[list[jax.Array]]]:
    """A function for each, with its operands."""
    functions, operands = [], []
    for problem in SAME_KERNEL:
        call = jax.ffi.ffi_call(cases.TARGET, jax.ShapeDtypeStruct(problem.y, "float32"))
        functions.append(functools.partial(call, axes=np.asarray(problem.axes, np.int64)))
        data = cases.make_data(rng, problem, "float32", integers=False)
        operands.append([jnp.asarray(array) for array in cases.arguments(data, "float32")])
    return functions, operands


def test_threads_that_launch_one_kernel(rng: np.random.Generator) -> None:
    """A kernel has one limit of shared memory, whoever launches it with how much."""
    functions, operands = _same_kernel(rng)
    compiled = [jax.jit(f).lower(*a).compile() for f, a in zip(functions, operands, strict=True)]
    expected = [np.asarray(f(*a)) for f, a in zip(compiled, operands, strict=True)]
    wrong: list[Any] = []

    def work(begin: int) -> None:
        try:
            for i in range(begin, begin + 200):
                y = jax.block_until_ready(compiled[i % 3](*operands[i % 3]))
                if i % 10 == 0 and np.asarray(y).tobytes() != expected[i % 3].tobytes():
                    wrong.append(i)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(begin,)) for begin in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_program_that_launches_one_kernel_with_more_memory_first(
    rng: np.random.Generator,
) -> None:
    """A command buffer is put together after all of its launches have been captured."""
    functions, operands = _same_kernel(rng)

    @jax.jit
    def together(*operands: Any) -> list[jax.Array]:
        return [
            f(factor * x, *tables)
            for factor in (1, 2, 4)
            for f, (x, *tables) in zip(functions, operands, strict=True)
        ]

    expected = [np.asarray(jax.jit(f)(*a)) for f, a in zip(functions, operands, strict=True)]
    for _ in range(3):
        got = together(*operands)
        for i, wanted in enumerate(expected * 3):
            np.testing.assert_array_equal(got[i], wanted * 2 ** (i // 3))


@pytest.mark.slow
@pytest.mark.large
@pytest.mark.parametrize("direction, channels", [("grow", 1), ("shrink", 8), ("grow", 3)])
def test_more_than_two_to_the_31_elements(direction: str, channels: int) -> None:
    """Each in a process of its own, one at a time: the device has not the memory for several."""
    program = pathlib.Path(__file__).parents[1] / "support" / "large_resample.py"
    with open(pathlib.Path(tempfile.gettempdir()) / "jax_convgrad_large_resample", "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        done = subprocess.run(
            [sys.executable, program, direction, str(channels)],
            env=os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_bad_call_is_an_error() -> None:
    call = jax.ffi.ffi_call(cases.TARGET, jax.ShapeDtypeStruct((2, 4), np.float32))
    x, start, weights = jnp.zeros((2, 6)), jnp.zeros(4, jnp.int32), jnp.zeros((4, 7), jnp.float32)
    x = x.astype(jnp.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"resample: .* more taps than the 6 elem"):
        jax.block_until_ready(
            jax.jit(lambda *a: call(*a, axes=np.asarray([1], np.int64)))(x, start, weights)
        )

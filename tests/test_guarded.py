"""The CPU handlers on random problems, with NaNs or a forbidden page around every array.

JAX_CONVGRAD_GUARDED_CASES sets how many problems run, JAX_CONVGRAD_RANDOM_FIRST the first seed. Built with
JAX_CONVGRAD_GUARDED_SCRATCH=ON, which sanitizers imply, scratch memory has NaNs in it and around it too.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np
import pytest
import resample_cases
from drawn_convs import Call
from ffi_host import HandlerError, Host
from guarded_memory import HostArray
from processors import PROCESSORS_WITH_LESS, passed_on

from jax_convgrad import registry

pytestmark = pytest.mark.usefixtures("needs_cpu_handlers")

CASES = int(os.environ.get("JAX_CONVGRAD_GUARDED_CASES", "400"))
# Three of the first hundred fail on processors with AVX-512 where wrong_kernels.cc passes over nothing.
FIRST = int(os.environ.get("JAX_CONVGRAD_RANDOM_FIRST", "101200"))
SEEDS = range(FIRST, FIRST + CASES)
DTYPES = (("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32"))
HOSTS = [Host(threads) for threads in (1, 2, 4)]


@functools.cache
def shipped() -> dict[str, Any]:
    """The handlers that the package ships."""
    return registry._import_cpu().handlers()


def misdeed(
    rng: np.random.Generator,
    target: str,
    operands: list[HostArray],
    result: HostArray,
    attributes: dict[str, Any],
) -> str:
    """Calls a handler. Its error, or what it did to memory that is not its own; empty if nothing."""
    before = [operand.values.tobytes() for operand in operands]
    host = HOSTS[rng.integers(len(HOSTS))]
    buffers = [[array.buffer for array in arrays] for arrays in (operands, [result])]
    try:
        host.call(shipped()[target], *buffers, attributes)
    except HandlerError as error:
        return str(error)
    if not all(array.is_untouched_outside() for array in (*operands, result)):
        return "a write outside of its arrays"
    if before != [operand.values.tobytes() for operand in operands]:
        return "a write to an operand"
    return ""


def conv_failure(seed: int) -> str:
    """What is wrong with a random operator, empty if nothing."""
    rng = np.random.default_rng(seed)
    call = Call.draw(rng, [pair for pair in DTYPES if pair[0] in registry.handlers("cpu").dtypes])
    page = bool(rng.random() < 0.5)
    operands = [HostArray(a.shape, call.dtype, page).fill(a) for a in call.operands]
    result = HostArray(call.expected.shape, call.result_dtype, page)
    what = misdeed(rng, call.target, operands, result, call.attributes)
    what = what or call.compare(result.values)
    return what and f"{call}: {what}"


def resample_failure(seed: int) -> str:
    """What is wrong with a random resample, empty if nothing."""
    rng = np.random.default_rng(seed)
    problem = resample_cases.random_problem(rng)
    dtype = str(rng.choice(resample_cases.DTYPES))
    integers, page = bool(rng.random() < 0.5), bool(rng.random() < 0.5)
    data = resample_cases.make_data(rng, problem, dtype, integers)
    operands = [
        HostArray(a.shape, str(a.dtype), page).fill(a)
        for a in resample_cases.arguments(data, dtype)
    ]
    result = HostArray(problem.y, dtype, page)
    attributes = {"axes": np.array(problem.axes, np.int64)}
    what = misdeed(rng, registry.RESAMPLE_TARGET, operands, result, attributes)
    try:
        resample_cases.compare(problem, data, integers, result.values)
    except AssertionError as error:
        what = what or str(error)
    return what and f"resample {dtype}, {problem}: {what}"


# A test for each, so that one which ends the process is named.
@pytest.mark.parametrize("seed", SEEDS)
def test_convolutions(seed: int) -> None:
    assert not (failure := conv_failure(seed)), failure


@pytest.mark.parametrize("seed", SEEDS[::4])
def test_resamples(seed: int) -> None:
    assert not (failure := resample_failure(seed)), failure


@pytest.mark.parametrize("isa", PROCESSORS_WITH_LESS)
def test_on_processors_with_less(isa: str) -> None:
    assert passed_on(isa, __file__, "test_convolutions") == len(SEEDS)

"""The CUDA handlers on random problems, with NaNs around every array and in the workspace.

XLA's arrays lie side by side in one allocation, where nobody sees a kernel that reads or writes a little too
far. JAX_CONVGRAD_GUARDED_CASES sets how many problems run, JAX_CONVGRAD_RANDOM_FIRST the first seed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import resample_cases
from drawn_convs import Call
from ffi_host import HandlerError, Host
from guarded_memory import DeviceArray

from jax_convgrad import registry
from jax_convgrad.bench import cuda_driver

CASES = int(os.environ.get("JAX_CONVGRAD_GUARDED_CASES", "400"))
FIRST = int(os.environ.get("JAX_CONVGRAD_RANDOM_FIRST", "0"))
SEEDS = range(FIRST, FIRST + CASES)
DTYPES = [(dtype, dtype) for dtype in ("float16", "bfloat16", "float32", "float64")]
WORKSPACE = 32 * 2**20


@pytest.fixture(autouse=True)
def _device(needs_cuda_handlers: None) -> Iterator[None]:
    jnp.zeros(()).block_until_ready()  # JAX comes first: the handlers use its cuDNN
    with cuda_driver.current(0):
        yield


def misdeed(
    stream: int,
    target: str,
    operands: list[DeviceArray],
    results: list[DeviceArray],
    attributes: dict[str, Any],
) -> str:
    """Calls a handler. Its error, or what it did to memory that is not its own; empty if nothing."""
    before = [operand.values.tobytes() for operand in operands]
    host = Host(stream=stream)
    buffers = [[array.buffer for array in arrays] for arrays in (operands, results)]
    module = registry.cuda_module()
    assert module is not None
    handlers = module.handlers()[target]
    try:
        for stage in ("initialize", "execute"):
            if stage in handlers:
                host.call(handlers[stage], *buffers, attributes, stage)
    except HandlerError as error:
        return str(error)
    if not all(array.is_untouched_outside() for array in (*operands, *results)):
        return "a write outside of its arrays"
    if before != [operand.values.tobytes() for operand in operands]:
        return "a write to an operand"
    return ""


def conv_failure(seed: int, stream: int) -> str:
    """What is wrong with a random operator, empty if nothing."""
    rng = np.random.default_rng(seed)
    call = Call.draw(rng, DTYPES, order="OXI")
    attributes = {
        "allow_tf32": np.bool_(rng.random() < 0.5),
        "deterministic": np.bool_(rng.random() < 0.2),
        "search": "default",
        "generation": np.int64(registry.cuda_module().generation()),
    }
    operands = [DeviceArray(a.shape, call.dtype, stream).fill(a) for a in call.operands]
    result = DeviceArray(call.expected.shape, call.result_dtype, stream)
    workspace = DeviceArray((WORKSPACE,), "uint8", stream)
    what = misdeed(stream, call.target, operands, [result, workspace], call.attributes | attributes)
    what = what or call.compare(result.values, rounds_parts=True)
    return what and f"{call}, {attributes}: {what}"


def resample_failure(seed: int, stream: int) -> str:
    """What is wrong with a random resample, empty if nothing."""
    rng = np.random.default_rng(seed)
    problem = resample_cases.random_problem(rng)
    dtype = str(rng.choice(resample_cases.DTYPES))
    integers = bool(rng.random() < 0.5)
    data = resample_cases.make_data(rng, problem, dtype, integers)
    operands = [
        DeviceArray(a.shape, str(a.dtype), stream).fill(a)
        for a in resample_cases.arguments(data, dtype)
    ]
    result = DeviceArray(problem.y, dtype, stream)
    attributes = {"axes": np.array(problem.axes, np.int64)}
    what = misdeed(stream, registry.RESAMPLE_TARGET, operands, [result], attributes)
    try:
        resample_cases.compare(problem, data, integers, result.values)
    except AssertionError as error:
        what = what or str(error)
    return what and f"resample {dtype}, {problem}: {what}"


@pytest.fixture(scope="module")
def stream(needs_cuda_handlers: None) -> Iterator[int]:
    with cuda_driver.current(0):
        stream = cuda_driver.create_stream()
    yield stream
    with cuda_driver.current(0):
        cuda_driver.destroy_stream(stream)


@pytest.mark.parametrize("seed", SEEDS)
def test_convolutions(seed: int, stream: int) -> None:
    assert not (failure := conv_failure(seed, stream)), failure


@pytest.mark.parametrize("seed", SEEDS)
def test_resamples(seed: int, stream: int) -> None:
    assert not (failure := resample_failure(seed, stream)), failure

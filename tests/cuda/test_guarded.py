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
from support import drawn_convs, drawn_resamples
from support.ffi_host import Buffer, Host
from support.guarded_memory import DeviceArray, misdeed

from jax_convgrad._src.runtime import registry
from jax_convgrad._src.timing import cuda_driver

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


def failure(
    call: drawn_convs.Call | drawn_resamples.Call,
    stream: int,
    workspace: int = 0,
    **attributes: Any,
) -> str:
    """What is wrong with a handler's call, its workspace NaNs beforehand; empty if nothing."""
    operands = [DeviceArray(a.shape, str(a.dtype), stream).fill(a) for a in call.operands]
    results = [DeviceArray(call.result_shape, call.result_dtype, stream)]
    if workspace > 0:
        results.append(DeviceArray((workspace,), "uint8", stream))
    module, host = registry.cuda_module(), Host(stream=stream)
    assert module is not None
    handlers = module.handlers()[call.target]

    def run(*buffers: list[Buffer]) -> None:
        for stage in ("initialize", "execute"):
            if stage in handlers:
                host.call(handlers[stage], *buffers, call.attributes | attributes, stage)

    what = misdeed(run, operands, results) or call.compare(results[0].values)
    return what and f"{call}, {attributes}: {what}"


@pytest.fixture(scope="module")
def stream(needs_cuda_handlers: None) -> Iterator[int]:
    with cuda_driver.current(0):
        stream = cuda_driver.create_stream()
    yield stream
    with cuda_driver.current(0):
        cuda_driver.destroy_stream(stream)


@pytest.mark.parametrize("seed", SEEDS)
def test_convolutions(seed: int, stream: int) -> None:
    rng = np.random.default_rng(seed)
    call = drawn_convs.Call.draw(rng, DTYPES, order="OXI", rounds_parts=True)
    attributes = {
        "allow_tf32": np.bool_(rng.random() < 0.5),
        "deterministic": np.bool_(rng.random() < 0.2),
        "search": "default",
        "generation": np.int64(registry.cuda_module().generation()),
    }
    assert not (what := failure(call, stream, WORKSPACE, **attributes)), what


@pytest.mark.parametrize("seed", SEEDS)
def test_resamples(seed: int, stream: int) -> None:
    call = drawn_resamples.Call.draw(np.random.default_rng(seed))
    assert not (what := failure(call, stream)), what

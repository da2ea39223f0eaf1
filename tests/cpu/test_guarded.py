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
from support import drawn_backward, drawn_convs, drawn_resamples
from support.ffi_host import Host
from support.guarded_memory import HostArray, misdeed
from support.processors import PROCESSORS_WITH_LESS, passed_on

from jax_convgrad._src.runtime import registry

pytestmark = [pytest.mark.cpp, pytest.mark.usefixtures("needs_cpu_handlers")]

CASES = int(os.environ.get("JAX_CONVGRAD_GUARDED_CASES", "250"))
# Three of the first hundred fail on processors with AVX-512 where onednn/errata.cc passes over nothing.
FIRST = int(os.environ.get("JAX_CONVGRAD_RANDOM_FIRST", "101200"))
SEEDS = range(FIRST, FIRST + CASES)
DTYPES = (("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32"))
HOSTS = [Host(threads) for threads in (1, 2, 4)]


@functools.cache
def shipped() -> dict[str, Any]:
    """The handlers that the package ships."""
    return registry._import_cpu().handlers()


def failure(call: drawn_convs.Call | drawn_resamples.Call, rng: np.random.Generator) -> str:
    """What is wrong with a handler's call, empty if nothing."""
    page = bool(rng.random() < 0.5)
    operands = [HostArray(a.shape, str(a.dtype), page).fill(a) for a in call.operands]
    result = HostArray(call.result_shape, call.result_dtype, page)
    host = HOSTS[rng.integers(len(HOSTS))]
    run = functools.partial(host.call, shipped()[call.target], attributes=call.attributes)
    what = misdeed(run, operands, [result]) or call.compare(result.values)
    return what and f"{call}: {what}"


# A test for each, so that one which ends the process is named.
@pytest.mark.parametrize("seed", SEEDS)
def test_convolutions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtypes = [pair for pair in DTYPES if pair[0] in registry.require("cpu").dtypes]
    assert not (what := failure(drawn_convs.Call.draw(rng, dtypes), rng)), what


@pytest.mark.parametrize("seed", SEEDS[::2])
def test_depthwise(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype = str(
        rng.choice([d for d in ("float32", "bfloat16") if d in registry.require("cpu").dtypes])
    )
    operator = str(rng.choice(["conv_fprop", "conv_dgrad", "conv_wgrad"]))
    case = drawn_convs.draw_depthwise(rng)
    assert not (what := failure(drawn_convs.Call.of(rng, operator, case, dtype, dtype), rng)), what


@pytest.mark.parametrize("seed", SEEDS[::4])
def test_backward_passes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtypes = [d for d in ("float32", "bfloat16") if d in registry.require("cpu").dtypes]
    call, page = drawn_backward.Call.draw(rng, str(rng.choice(dtypes))), bool(rng.random() < 0.5)
    operands = [HostArray(a.shape, str(a.dtype), page).fill(a) for a in call.operands]
    results = [HostArray(a.shape, operands[0].buffer.dtype, page) for a in call.expected]
    run = functools.partial(
        HOSTS[seed % len(HOSTS)].call,
        shipped()[registry.BACKWARD_TARGET],
        attributes=call.attributes,
    )
    what = misdeed(run, operands, results) or call.compare([result.values for result in results])
    assert not what, f"{call}: {what}"


@pytest.mark.parametrize("seed", SEEDS[::4])
def test_resamples(seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert not (what := failure(drawn_resamples.Call.draw(rng), rng)), what


@pytest.mark.parametrize("isa", PROCESSORS_WITH_LESS)
def test_on_processors_with_less(isa: str) -> None:
    assert passed_on(isa, __file__, "test_convolutions") == len(SEEDS)

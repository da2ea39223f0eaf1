"""The CUDA handlers on random problems, with NaNs around every array and in the workspace.

XLA's arrays lie side by side in one allocation, where nobody sees a kernel that reads or writes a little too
far. JAX_CONVGRAD_GUARDED_CASES, JAX_CONVGRAD_THIN_CASES and JAX_CONVGRAD_GEMM_CASES set how many problems
run, JAX_CONVGRAD_RANDOM_FIRST the first seed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import drawn_convs, drawn_implicit_gemm, drawn_resamples, drawn_thin
from support.ffi_host import Buffer, Host
from support.guarded_memory import DeviceArray, misdeed

from jax_convgrad._src.runtime import registry
from jax_convgrad._src.runtime.settings import Settings
from jax_convgrad._src.timing import cuda_driver

CASES = int(os.environ.get("JAX_CONVGRAD_GUARDED_CASES", "400"))
FIRST = int(os.environ.get("JAX_CONVGRAD_RANDOM_FIRST", "0"))
SEEDS = range(FIRST, FIRST + CASES)
THIN_SEEDS = range(FIRST, FIRST + int(os.environ.get("JAX_CONVGRAD_THIN_CASES", "60")))
GEMM_SEEDS = range(FIRST, FIRST + int(os.environ.get("JAX_CONVGRAD_GEMM_CASES", "60")))
DTYPES = [(dtype, dtype) for dtype in ("float16", "bfloat16", "float32", "float64")]
WORKSPACE = 32 * 2**20
# What the names of engines begin with that read the weights in either order.
READ_BOTH_ORDERS = ("native_thin_", drawn_implicit_gemm.ENGINES)


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


def planned(
    call: drawn_convs.Call, stream: int, workspace: int, search: str, **attributes: Any
) -> tuple[str, dict[str, Any]]:
    """What is wrong with a convolution's call, and the plan that it has chosen."""
    module = registry.cuda_module()
    settings = Settings(search=search, generation=module.generation())
    what = failure(call, stream, workspace, **attributes, **settings.attributes)
    return what, module.plans()[0]


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
    allow_tf32 = np.bool_(rng.random() < 0.5)
    settings = Settings(
        deterministic=bool(rng.random() < 0.2),
        generation=registry.cuda_module().generation(),
    )
    attributes = {"weights": "OXI", "allow_tf32": allow_tf32, **settings.attributes}
    what = failure(call, stream, WORKSPACE, **attributes)
    assert not what, what


@pytest.mark.parametrize("seed", SEEDS[: len(SEEDS) // 4])
def test_engines_on_reordered_weights(seed: int, stream: int) -> None:
    """Engines that read one order of the weights, on those that lie in the other.

    Of cuDNN's and, for depthwise and dilated problems, of this project's: one after the other.
    """
    rng = np.random.default_rng(seed)
    call = drawn_convs.Call.draw(rng, DTYPES, order="XIO", rounds_parts=True)
    module = registry.cuda_module()
    attributes = {"weights": "XIO", "allow_tf32": np.bool_(rng.random() < 0.5)}
    module.clear_plans()
    what, first = planned(call, stream, WORKSPACE, "heuristic", **attributes)
    assert not what, what
    shapes = call.case.w
    one_order = shapes[0] == 1 or np.prod(shapes[1:]) == 1
    assert ("weights XIO" in first["problem"]) == (not one_order), first
    # Up to four that a search times and finds to work, of those that do not read both orders.
    module.clear_plans()
    what, plan = planned(call, stream, WORKSPACE, "default", **attributes)
    assert not what, what
    timed = [t["engine"] for t in plan["tried"] if not t["failure"]]
    for engine in [name for name in timed if not name.startswith(READ_BOTH_ORDERS)][:4]:
        module.clear_plans()
        module.load_choices([(first["problem"], engine)])
        what, plan = planned(call, stream, WORKSPACE, "heuristic", **attributes)
        assert not what, f"{engine}: {what}"
        assert plan["engine"] == engine, f"{call}: {plan}"
    module.clear_plans()


@pytest.mark.parametrize("seed", THIN_SEEDS)
def test_thin_kernels(seed: int, stream: int) -> None:
    """Every thin engine for a problem: exact, and inside its arrays."""
    rng = np.random.default_rng(seed)
    call = drawn_thin.draw(rng)
    module = registry.cuda_module()
    limit = drawn_thin.workspace_limit(rng, call) + module.workspace_alignment
    attributes = {"weights": drawn_thin.weights_order(call), "allow_tf32": np.bool_(True)}
    module.clear_plans()
    what, first = planned(call, stream, limit, "heuristic", **attributes)
    assert not what, what
    served = 0
    for engine in drawn_thin.ENGINES[call.operator]:
        module.clear_plans()
        module.load_choices([(first["problem"], engine)])
        what, plan = planned(call, stream, limit, "heuristic", **attributes)
        assert not what, f"{engine}: {what}"
        # Engines that do not serve it are passed over; those that do must work.
        assert plan["engine"] == engine or "is not a candidate" in plan["note"], f"{call}: {plan}"
        if plan["engine"] == engine:
            assert not plan["tried"], f"{call}: {plan}"
            served += 1
    assert served, f"{call}: {first}"  # each problem is made for a family
    module.clear_plans()


@pytest.mark.parametrize("seed", GEMM_SEEDS)
def test_implicit_gemm_kernels(seed: int, stream: int) -> None:
    """Every implicit GEMM engine for a problem: exact, and inside its arrays.

    Their names say which tile they have. So a search, which times all of them, tells which there are.
    """
    capability = jax.local_devices()[0].compute_capability
    if capability != "9.0":
        pytest.skip(f"problems are drawn for compute capability 9.0, not for {capability}")
    rng = np.random.default_rng(seed)
    call = drawn_implicit_gemm.draw(rng)
    module = registry.cuda_module()
    limit = drawn_implicit_gemm.workspace_limit(rng, call) + module.workspace_alignment
    attributes = {"weights": drawn_implicit_gemm.weights_order(call), "allow_tf32": np.bool_(True)}
    module.clear_plans()
    what, first = planned(call, stream, limit, "default", **attributes)
    assert not what, what
    own = [t for t in first["tried"] if t["engine"].startswith(drawn_implicit_gemm.ENGINES)]
    assert own, f"{call}: {first}"  # each problem is made for them
    for tried in own:
        engine = tried["engine"]
        assert not tried["failure"], f"{call}: {first}"
        module.clear_plans()
        module.load_choices([(first["problem"], engine)])
        what, plan = planned(call, stream, limit, "heuristic", **attributes)
        assert not what, f"{engine}: {what}"
        assert plan["engine"] == engine and not plan["tried"], f"{call}: {plan}"
    module.clear_plans()


@pytest.mark.parametrize("seed", SEEDS)
def test_resamples(seed: int, stream: int) -> None:
    call = drawn_resamples.Call.draw(np.random.default_rng(seed))
    assert not (what := failure(call, stream)), what

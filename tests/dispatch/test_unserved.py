"""Why no handler serves: the reason is the true one, and what a command can fix ends with the command."""

from __future__ import annotations

import json
import os
import subprocess

import jax
import jax.numpy as jnp
import pytest

from jax_convgrad import conv_backward, conv_fprop, resize
from jax_convgrad._src.dispatch import unserved
from jax_convgrad._src.dispatch.decide import Decision, decide
from jax_convgrad._src.dispatch.devices import Target
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.runtime import registry
from jax_convgrad._src.runtime.registry import BACKWARD_TARGET, RESAMPLE_TARGET, PlatformHandlers
from jax_convgrad._src.tuning.program import problems_of

FPROP = registry.CONV_TARGETS["conv_fprop"]
MISSING = PlatformHandlers(reason="ImportError: the module was not built", broken=True)
NONE = PlatformHandlers(reason="no oneDNN for darwin on arm64")
# A processor without AVX-512.
FLOAT32 = PlatformHandlers(frozenset(registry.TARGETS), frozenset({"float32"}))
OLD = PlatformHandlers(frozenset(registry.CONV_TARGETS.values()), frozenset({"float32"}))
BUILD = {
    "cpu": 'pip install --force-reinstall --no-deps "."',
    "cuda": "JAX_CONVGRAD_CUDA=1 pip install",
}
ONLY = "the CPU handlers compute convolutions in float32 and bfloat16 only"


@pytest.mark.parametrize(
    ("platform", "handlers", "target", "dtype", "reason"),
    [
        ("cpu", MISSING, FPROP, "float32", "the CPU handlers are missing"),
        ("cpu", MISSING, FPROP, "bfloat16", "the CPU handlers are missing"),
        ("cpu", MISSING, RESAMPLE_TARGET, "float64", "the CPU handlers are missing"),
        ("cuda", MISSING, FPROP, "float16", "the CUDA handlers are missing"),
        ("cpu", NONE, FPROP, "float32", "no oneDNN for darwin on arm64"),
        ("cpu", FLOAT32, FPROP, "bfloat16", "bfloat16 on a CPU needs AVX-512"),
        ("cpu", FLOAT32, BACKWARD_TARGET, "bfloat16", "bfloat16 on a CPU needs AVX-512"),
        (
            "cpu",
            FLOAT32,
            FPROP,
            "float16",
            ONLY,
        ),
        # Nothing that could be installed would change it.
        (
            "cpu",
            MISSING,
            FPROP,
            "float64",
            ONLY,
        ),
        ("cpu", OLD, RESAMPLE_TARGET, "float32", "the CPU handlers were built without "),
        ("cuda", FLOAT32, FPROP, "float16", "the CUDA handlers do not take float16"),
    ],
)
def test_the_reason(
    platform: str, handlers: PlatformHandlers, target: str, dtype: str, reason: str
):
    found = unserved.why(platform, handlers, target, dtype)
    assert found.reason.startswith(reason) and len(found.reason) < 80
    if not reason.endswith("are missing"):
        assert found.missing is None
        return
    cause = f"{reason}: ImportError: the module was not built. To fix this, run: {BUILD[platform]}"
    assert found.missing is not None and found.missing.startswith(cause)


def decisions(platform: str, dtype: str, name: str | None) -> dict[str, Decision]:
    """Of one problem of each kind, where handlers are wanted."""
    x, w = jnp.ones((2, 16, 15, 15), dtype), jnp.ones((16, 16, 4, 4), dtype)
    depthwise = jnp.ones((16, 1, 3, 3), dtype)
    (conv,) = problems_of(platform, lambda x, w: conv_fprop(x, w, strides=2), x, w)
    image = jnp.ones((1, 8, 8, 2), dtype)
    (image,) = problems_of(platform, lambda x: resize(x, (1, 16, 16, 2), "linear"), image)
    program = jax.make_jaxpr(lambda x, w, dy: conv_backward(x, w, dy, groups=16))
    (whole,) = program(x, depthwise, x[..., :13, :13]).jaxpr.eqns
    problems = {"conv": conv, "image": image, "backward": whole.params["problem"]}
    with override_backend(name):
        return {kind: decide(problem, Target.of(platform)) for kind, problem in problems.items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_decisions_without_the_module(platform: str, dtype: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registry, "require", lambda platform: MISSING)
    monkeypatch.setattr(registry, "check_required", lambda platform: None)
    found = decisions(platform, dtype, {"cpu": "onednn", "cuda": "cudnn"}[platform])
    pure = {"cpu": "xla_rewritten", "cuda": "xla"}[platform]
    assert {kind: decision.backend for kind, decision in found.items()} == {
        "conv": pure,
        "image": "xla",
        "backward": "parts",
    }
    why = f"the {platform.upper()} handlers are missing, so "
    if platform == "cuda":  # it has no call for the whole pass
        assert found.pop("backward").missing is None
    for kind, decision in found.items():
        then = "each part is decided alone" if kind == "backward" else "it runs in pure JAX"
        assert decision.reason == why + then
        assert decision.missing is not None and BUILD[platform] in decision.missing


@pytest.mark.parametrize(
    ("dtype", "why", "conv"),
    [
        ("float64", ONLY, "xla_rewritten"),
        # Their operands become float32.
        ("bfloat16", "bfloat16 on a CPU needs AVX-512", "onednn"),
        ("float16", ONLY, "onednn"),
    ],
)
def test_decisions_of_a_dtype_that_is_not_served(
    dtype: str, why: str, conv: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(registry, "require", lambda platform: FLOAT32)
    found = decisions("cpu", dtype, "onednn")
    assert found["conv"].backend == conv
    if conv == "xla_rewritten":
        assert found["conv"].reason == f"{why}, so it runs in pure JAX"
    assert found["backward"].backend == "parts"
    assert found["backward"].reason == f"{why}, so each part is decided alone"
    assert found["image"].backend == "native"
    assert not any(decision.missing for decision in found.values())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits_without_the_module(dtype: str, monkeypatch: pytest.MonkeyPatch):
    """What would serve them is that which would serve float32."""
    monkeypatch.setattr(registry, "require", lambda platform: MISSING)
    monkeypatch.setattr(registry, "check_required", lambda platform: None)
    conv = decisions("cpu", dtype, "onednn")["conv"]
    assert conv.backend == "xla_rewritten" and conv.missing is not None
    assert conv.reason == "the CPU handlers are missing, so it runs in pure JAX"


@pytest.mark.parametrize("platform", ["tpu", None])
def test_a_platform_without_handlers(platform: str | None):
    (conv,) = problems_of("cpu", conv_fprop, jnp.ones((1, 3, 6, 6)), jnp.ones((4, 3, 3, 3)))
    decision = decide(conv, Target(platform))
    assert (decision.backend, decision.reason) == ("xla", "no kernel for this platform")
    found = Target(None).unserved(FPROP, "float32")
    assert found is not None and "no platform in particular" in found.reason


WITHOUT_AVX512 = """
import json
import jax.numpy as jnp
from jax import lax
from jax_convgrad import explain
from jax_convgrad.__main__ import main

found = []
for dtype in ("bfloat16", "float16", "float32"):
    x, w = jnp.ones((2, 32, 16, 16), dtype), jnp.ones((32, 32, 3, 3), dtype)
    table = explain(lambda x, w: lax.conv(x, w, (1, 1), "SAME"), x, w)
    found.append((table.rows[0].reason, "To fix this" in str(table)))
print(json.dumps(found))
main(["info"])
main(["info", "--json"])
"""


@pytest.mark.on_cpu
@pytest.mark.usefixtures("needs_cpu_handlers")
def test_bfloat16_without_avx512(subprocess_python: list[str]):
    """It is computed in float32. `explain` says so, and `info` says why."""
    result = subprocess.run(
        [*subprocess_python, "-c", WITHOUT_AVX512],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    first, *rest = result.stdout.splitlines()
    bfloat16, float16, float32 = json.loads(first)
    converted = "oneDNN is faster than XLA:CPU, which converts to float32"
    assert bfloat16[0].startswith(converted) and not bfloat16[1]
    # A rule that was measured on another class of processors than this machine's says so behind its reason.
    widened = "XLA:CPU is slow in float16, and oneDNN computes it in float32"
    assert float16[0].startswith(widened) and not float16[1]
    served = "oneDNN's and this project's kernels are faster than XLA:CPU's"
    assert float32[0].startswith(served) and not float32[1]
    note = "needs AVX-512 (ONEDNN_MAX_CPU_ISA=AVX2 may hide it); it is computed in float32"
    assert any(line.split() == ["bfloat16", "on", "this", "CPU", *note.split()] for line in rest)
    report = json.loads("\n".join(rest[rest.index("{") :]))
    assert report["missing, and how to get it"]["bfloat16 on this CPU"] == note

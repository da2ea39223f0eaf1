"""The backend of a problem: decided once for each operator that is lowered.

    decide(problem, target) -> Decision -> emit

The rules are data (`rules_cpu`, `rules_cuda`, `rules_backward`, `rules_resample`, and `rules_preparation` for
what is done to a handler's operands). This file has the decisions that no
measurement changes: problems with nothing to compute, problems that a handler cannot compute, and platforms
without a handler. What the user measured (`tuning.store`) comes before the rules, and after an override.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import numpy as np

from jax_convgrad._src.conv.geometry import ConvGeometry
from jax_convgrad._src.conv.subsample import Subsample, subsample
from jax_convgrad._src.dispatch.devices import Target, multiplies_bfloat16
from jax_convgrad._src.dispatch.features import (
    backward_features,
    conv_features,
    resample_features,
)
from jax_convgrad._src.dispatch.override import overridden_backend
from jax_convgrad._src.dispatch.preparation import (
    NO_HANDLER,
    Preparation,
    call_dtype,
    decide_preparation,
)
from jax_convgrad._src.dispatch.problem import ConvBackwardProblem, ConvProblem, ResampleProblem
from jax_convgrad._src.dispatch.tables import choose
from jax_convgrad._src.runtime import registry, settings
from jax_convgrad._src.tuning import store

_log = logging.getLogger("jax_convgrad")

# The backend of the compiled convolution handlers on each platform.
HANDLER_BACKENDS = {"cpu": "onednn", "cuda": "cudnn"}
PLATFORMS = {backend: platform for platform, backend in HANDLER_BACKENDS.items()}
GEMM, NATIVE, XLA, XLA_REWRITTEN, ZEROS = "gemm", "native", "xla", "xla_rewritten", "zeros"
PARTS = "parts"

WITHOUT_CUSTOM_CALLS = (
    "XLA divides the program inside shard_map over other axes (or without Shardy): it would gather a call's "
    "operands"
)
WITHOUT_KERNELS = "no kernel for this platform"


@dataclasses.dataclass(frozen=True)
class Decision:
    """The backend of a problem, and why. `emit` needs nothing else.

    Attributes:
      problem: the problem as it was bound.
      platform: the platform that it is lowered for.
      backend: "cudnn" or "onednn" (a handler), "native" (the platform's own kernel for a resize, or
        for all of a backward pass), "parts" (a backward pass in its parts, each with a decision of its
        own), "gemm" (a matrix product), "xla" (the plain operation), "xla_rewritten" (the same result in a
        form that XLA is fast at) or "zeros" (nothing is multiplied with anything).
      reason: why, in one sentence.
      evidence: the measurements behind it, as FILE#CASE#PASS under benchmarks/.
      measured_on: the class of devices that they were made on; None where the reason is not speed.
      device_class: the class of this machine's devices.
      subsample: the smaller convolution, if strides and dilation share a factor.
      computed: the geometry of a convolution that is computed: the problem's, or what ``subsample`` left.
      preparation: what is done to a handler's operands before its call, and why.
      settings: the settings by which a handler on CUDA chooses its engine.
      missing: where a handler was wanted and the platform's handlers are missing: the full cause, and the
        command that helps.
    """

    problem: ConvProblem | ConvBackwardProblem | ResampleProblem
    platform: str | None
    backend: str
    reason: str
    evidence: tuple[str, ...] = ()
    measured_on: str | None = None
    device_class: str | None = None
    subsample: Subsample | None = None
    computed: ConvGeometry | None = None
    preparation: Preparation = NO_HANDLER
    settings: settings.Settings | None = None
    missing: str | None = None

    def replace(self, **changes: Any) -> Decision:
        return dataclasses.replace(self, **changes)


def decide(
    problem: ConvProblem | ConvBackwardProblem | ResampleProblem, target: Target
) -> Decision:
    """The backend of ``problem`` on ``target``. Nothing else in the package decides it.

    It follows from the arguments, from overrides, from the tuning file, and on CUDA from the settings of the
    engine search. It warns once of handlers that are missing.
    """
    registry.check_required(target.platform)
    if isinstance(problem, ResampleProblem):
        decision = _decide_resample(problem, target)
    elif isinstance(problem, ConvBackwardProblem):
        decision = _decide_backward(problem, target)
    else:
        decision = _decide_conv(problem, target)
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("%s: %s (%s)", _describe(decision), decision.backend, decision.reason)
    return decision


def _describe(decision: Decision) -> str:
    problem, where = decision.problem, decision.platform
    if isinstance(problem, ResampleProblem):
        return f"resample {problem.dtype} to {problem.result_shape} on {where}"
    geometry = problem.geometry
    shapes = f"x {geometry.x_shape}, w {geometry.w_shape}, y {geometry.y_shape}"
    return f"{problem.operator} {problem.dtype}, {shapes}, on {where}"


def for_part(decision: Decision, part: ConvProblem) -> Decision:
    """The decision of a divided problem, applied to one device's shard: its backend, where that can serve.

    What follows from the shard's own sizes is worked out anew: whether it is empty, what subsampling leaves
    of it, whether its windows still do not overlap, and how the operands of a handler's call are prepared.
    """
    if part.geometry.is_empty:
        return decision.replace(
            problem=part, backend=ZEROS, subsample=None, computed=None, preparation=NO_HANDLER
        )
    smaller = subsample(part.geometry.config, part.geometry.x_shape)
    backend = decision.backend
    computed = computed_geometry(part.geometry, smaller)
    if backend == ZEROS or (backend == GEMM and not computed.has_nonoverlapping_windows):
        backend = fallback(decision.platform)
    preparation = decision.preparation
    if backend not in PLATFORMS:
        preparation = NO_HANDLER
    elif not preparation.is_overridden:
        preparation = decide_preparation(
            part, computed, PLATFORMS[backend], decision.device_class, decision.settings
        )
    return decision.replace(
        problem=part,
        backend=backend,
        subsample=smaller,
        computed=computed,
        preparation=preparation,
    )


def computed_geometry(geometry: ConvGeometry, smaller: Subsample | None) -> ConvGeometry:
    """The geometry that is computed: ``geometry`` itself, or what `subsample` left of it."""
    if smaller is None:
        return geometry
    spatial = geometry.config.dimension_numbers.lhs_spec[2:]
    in_spatial = tuple(smaller.x_shape[axis] for axis in spatial)
    return dataclasses.replace(geometry, config=smaller.config, in_spatial=in_spatial)


def fallback(platform: str | None) -> str:
    """The backend where a handler is wanted but does not serve."""
    # XLA:CPU is slow at groups of the batch. Elsewhere its own grouped weight gradient is at its best.
    return XLA_REWRITTEN if platform == "cpu" else XLA


def _decide_conv(problem: ConvProblem, target: Target) -> Decision:
    def made(backend: str, reason: str, **rest: Any) -> Decision:
        return Decision(
            problem, target.platform, backend, reason, device_class=target.device_class, **rest
        )

    geometry = problem.geometry
    if geometry.is_empty:
        return made(ZEROS, "nothing to compute: zeros")
    smaller = subsample(geometry.config, geometry.x_shape)
    computed = computed_geometry(geometry, smaller)
    chosen = (
        _overridden(problem, computed, target)
        or _tuned(problem, target)
        or _by_rule(problem, computed, target)
    )
    backend, reason, evidence, measured_on = chosen
    if not target.custom_calls and backend in (*PLATFORMS, GEMM):
        # XLA's older partitioner cannot express the sharding of an axis that becomes two, either.
        return made(
            fallback(target.platform), WITHOUT_CUSTOM_CALLS, subsample=smaller, computed=computed
        )
    if backend in PLATFORMS:
        dtype = call_dtype(target.platform, problem.dtype)
        lack = target.unserved(registry.CONV_TARGETS[problem.operator], dtype)
        if lack is not None:
            return made(
                fallback(target.platform),
                f"{lack.reason}, so it runs in pure JAX",
                subsample=smaller,
                computed=computed,
                missing=lack.missing,
            )
    set_up = settings.snapshot() if backend == "cudnn" else None
    preparation = NO_HANDLER
    if backend in PLATFORMS:
        preparation = decide_preparation(
            problem, computed, PLATFORMS[backend], target.device_class, set_up
        )
    return made(
        backend,
        reason,
        evidence=evidence,
        measured_on=measured_on,
        subsample=smaller,
        computed=computed,
        preparation=preparation,
        settings=set_up,
    )


# Backend, reason, evidence, and the class of devices that the evidence was measured on.
_Chosen = tuple[str, str, tuple[str, ...], str | None]


def _overridden(problem: ConvProblem, computed: ConvGeometry, target: Target) -> _Chosen | None:
    name = overridden_backend()
    if name in PLATFORMS:
        serves = PLATFORMS[name] == target.platform and problem.result_dtype == problem.dtype
        return (name, "overridden", (), None) if serves else None
    if name == GEMM:
        return (name, "overridden", (), None) if computed.has_nonoverlapping_windows else None
    return (name, "overridden", (), None) if name in (XLA, XLA_REWRITTEN) else None


def _tuned(problem: ConvProblem | ResampleProblem, target: Target) -> _Chosen | None:
    found = store.lookup(problem, target.platform)
    if found is None:
        return None
    row, path = found
    return row.backend, f"{row.reason} (tuning file {path})", (), None


def _by_rule(problem: ConvProblem, computed: ConvGeometry, target: Target) -> _Chosen:
    if target.platform is None or target.platform not in HANDLER_BACKENDS:
        return fallback(target.platform), WITHOUT_KERNELS, (), None
    features = conv_features(
        problem.operator,
        computed,
        problem.dtype,
        problem.result_dtype,
        problem.precision,
        target.thin_kernels(),
    )
    rule, measured_on = choose(target.platform, target.device_class, features)
    return rule.choice, rule.reason, rule.evidence, measured_on if rule.evidence else None


def _decide_backward(problem: ConvBackwardProblem, target: Target) -> Decision:
    """One call, or the parts: these where the kernel cannot compute the problem, for whatever reason."""

    def made(backend: str, reason: str, **rest: Any) -> Decision:
        return Decision(
            problem, target.platform, backend, reason, device_class=target.device_class, **rest
        )

    geometry = problem.geometry
    if target.platform != "cpu":
        return made(PARTS, WITHOUT_KERNELS)
    if not target.custom_calls:
        return made(PARTS, WITHOUT_CUSTOM_CALLS)
    if target.partitioned:
        return made(PARTS, "XLA divides the program among devices: each part has a sharding rule")
    if not has_backward_kernel(problem):
        return made(PARTS, "no kernel computes all of it at once")
    if (lack := target.unserved(registry.BACKWARD_TARGET, problem.dtype)) is not None:
        return made(PARTS, f"{lack.reason}, so each part is decided alone", missing=lack.missing)
    name = overridden_backend()
    if name is not None:
        return made(NATIVE if name == NATIVE else PARTS, "overridden")
    features = backward_features(problem.wanted, geometry, problem.dtype, multiplies_bfloat16())
    rule, measured_on = choose("cpu", target.device_class, features)
    return made(
        rule.choice,
        rule.reason,
        evidence=rule.evidence,
        measured_on=measured_on if rule.evidence else None,
    )


def has_backward_kernel(problem: ConvBackwardProblem) -> bool:
    """Whether the CPU's kernel computes it: depthwise, one filter a channel, known sizes."""
    geometry, config = problem.geometry, problem.geometry.config
    sizes = (*geometry.x_shape, *geometry.w_shape)
    if not all(isinstance(size, int | np.integer) for size in sizes) or geometry.is_empty:
        return False
    is_depthwise = 1 < config.groups == geometry.in_channels == geometry.out_channels
    return (
        is_depthwise
        and problem.result_dtype == problem.dtype
        and subsample(config, geometry.x_shape) is None
    )


def _decide_resample(problem: ResampleProblem, target: Target) -> Decision:
    def made(backend: str, reason: str, **rest: Any) -> Decision:
        return Decision(
            problem, target.platform, backend, reason, device_class=target.device_class, **rest
        )

    if problem.is_empty:
        return made(ZEROS, "nothing to compute: zeros")
    if not target.custom_calls:
        return made(XLA, WITHOUT_CUSTOM_CALLS)
    name = overridden_backend()
    if name in (XLA, XLA_REWRITTEN):
        return made(XLA, "overridden")
    if target.platform is None or target.platform not in HANDLER_BACKENDS:
        return made(XLA, WITHOUT_KERNELS)
    if name in PLATFORMS and PLATFORMS[name] != target.platform:
        return made(XLA, "overridden for another platform")
    if name in (NATIVE, *PLATFORMS):
        chosen: _Chosen = (NATIVE, "overridden", (), None)
    else:
        chosen = _tuned(problem, target) or _resample_by_rule(problem, target.platform, target)
    backend, reason, evidence, measured_on = chosen
    if backend == NATIVE:
        lack = target.unserved(registry.RESAMPLE_TARGET, problem.dtype)
        if lack is not None:
            return made(XLA, f"{lack.reason}, so it runs in pure JAX", missing=lack.missing)
    return made(backend, reason, evidence=evidence, measured_on=measured_on)


def _resample_by_rule(problem: ResampleProblem, platform: str, target: Target) -> _Chosen:
    copies = all(band.is_selection for band in problem.bands)
    grows = all(band.out_size >= band.size for band in problem.bands)
    features = resample_features(problem.dtype, copies, grows)
    rule, measured_on = choose(platform, target.device_class, features)
    return rule.choice, rule.reason, rule.evidence, measured_on if rule.evidence else None

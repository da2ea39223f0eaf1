"""Who computes a problem: decided once for each operator that is lowered.

    decide(problem, target) -> Decision -> emit

The rules are data (`rules_cpu`, `rules_cuda`, `rules_resample`). What stands here is what no measurement
changes: what nobody needs to compute, what a handler cannot be asked, and what is done where there is none.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from jax_convgrad._src.conv.geometry import ConvGeometry
from jax_convgrad._src.conv.subsample import Subsample, subsample
from jax_convgrad._src.dispatch.devices import Target
from jax_convgrad._src.dispatch.features import conv_features, resample_features
from jax_convgrad._src.dispatch.override import overridden_backend
from jax_convgrad._src.dispatch.problem import ConvProblem, ResampleProblem
from jax_convgrad._src.dispatch.tables import choose
from jax_convgrad._src.runtime import registry, settings

# The backend of the compiled convolution handlers on each platform.
HANDLER_BACKENDS = {"cpu": "onednn", "cuda": "cudnn"}
PLATFORMS = {backend: platform for platform, backend in HANDLER_BACKENDS.items()}
GEMM, NATIVE, XLA, XLA_REWRITTEN, ZEROS = "gemm", "native", "xla", "xla_rewritten", "zeros"

WITHOUT_CUSTOM_CALLS = (
    "XLA divides the program inside shard_map over other axes (or without Shardy): it would gather a call's "
    "operands"
)


@dataclasses.dataclass(frozen=True)
class Decision:
    """Who computes a problem, and why. What `emit` needs, and all that it needs.

    Attributes:
      problem: as it was asked.
      platform: what it is lowered for.
      backend: "cudnn" or "onednn" (a handler), "native" (the platform's resize kernel), "gemm" (a matrix
        product), "xla" (the plain operation), "xla_rewritten" (the same result in a form that XLA is fast
        at) or "zeros" (nothing is multiplied with anything).
      reason: why, in one sentence.
      evidence: the measurements behind it, as FILE#CASE#PASS under benchmarks/.
      measured_on: the class of devices that they were made on; None where the reason is none of speed.
      device_class: the class of the devices at hand.
      subsample: what is left of a convolution whose strides and dilation share a factor.
      settings: by which a handler on CUDA chooses its engine.
    """

    problem: ConvProblem | ResampleProblem
    platform: str | None
    backend: str
    reason: str
    evidence: tuple[str, ...] = ()
    measured_on: str | None = None
    device_class: str | None = None
    subsample: Subsample | None = None
    settings: settings.Settings | None = None

    @property
    def is_measured_here(self) -> bool:
        """Whether the measurements behind it, if any, were made on devices of the class at hand."""
        return self.measured_on is None or self.measured_on == self.device_class

    def replace(self, **changes: Any) -> Decision:
        return dataclasses.replace(self, **changes)


def decide(problem: ConvProblem | ResampleProblem, target: Target) -> Decision:
    """Who computes ``problem`` on ``target``. The only place that says so."""
    if isinstance(problem, ResampleProblem):
        return _decide_resample(problem, target)
    return _decide_conv(problem, target)


def for_part(decision: Decision, part: ConvProblem) -> Decision:
    """The decision of a divided problem, for the part of one device. Nobody is asked again.

    What follows from the part's own sizes is worked out anew: whether it is empty, what strides and dilation
    leave of it, and whether its windows still do not overlap.
    """
    if part.geometry.is_empty:
        return decision.replace(problem=part, backend=ZEROS, subsample=None)
    smaller = subsample(part.geometry.config, part.geometry.x_shape)
    backend = decision.backend
    computed = computed_geometry(part.geometry, smaller)
    if backend == ZEROS or (backend == GEMM and not computed.has_nonoverlapping_windows):
        backend = fallback(decision.platform)[0]
    return decision.replace(problem=part, backend=backend, subsample=smaller)


def computed_geometry(geometry: ConvGeometry, smaller: Subsample | None) -> ConvGeometry:
    """What is computed: ``geometry``, or what `subsample` left of it."""
    if smaller is None:
        return geometry
    spatial = geometry.config.dimension_numbers.lhs_spec[2:]
    in_spatial = tuple(smaller.x_shape[axis] for axis in spatial)
    return dataclasses.replace(geometry, config=smaller.config, in_spatial=in_spatial)


def fallback(platform: str | None) -> tuple[str, str]:
    """The backend, and why, where a handler is wanted and there is none."""
    if platform == "cpu":
        return XLA_REWRITTEN, "no handler; XLA:CPU is slow at groups of the batch"
    return XLA, "no handler; XLA's own grouped weight gradient is at its best here"


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
    chosen = _overridden(problem, computed, target) or _by_rule(problem, computed, target)
    backend, reason, evidence, measured_on = chosen
    if not target.custom_calls and backend in (*PLATFORMS, GEMM):
        # XLA's older partitioner cannot say how an axis is split that becomes two, either.
        return made(fallback(target.platform)[0], WITHOUT_CUSTOM_CALLS, subsample=smaller)
    if backend in PLATFORMS and not target.serves(
        registry.CONV_TARGETS[problem.operator], problem.dtype
    ):
        return made(*fallback(target.platform), subsample=smaller)
    return made(
        backend,
        reason,
        evidence=evidence,
        measured_on=measured_on,
        subsample=smaller,
        settings=settings.snapshot() if backend == "cudnn" else None,
    )


# Backend, reason, evidence, and the class of devices that it was measured on.
_Chosen = tuple[str, str, tuple[str, ...], str | None]


def _overridden(problem: ConvProblem, computed: ConvGeometry, target: Target) -> _Chosen | None:
    name = overridden_backend()
    if name in PLATFORMS:
        serves = PLATFORMS[name] == target.platform and problem.result_dtype == problem.dtype
        return (name, "overridden", (), None) if serves else None
    if name == GEMM:
        return (name, "overridden", (), None) if computed.has_nonoverlapping_windows else None
    return (name, "overridden", (), None) if name in (XLA, XLA_REWRITTEN) else None


def _by_rule(problem: ConvProblem, computed: ConvGeometry, target: Target) -> _Chosen:
    if target.platform is None or target.platform not in HANDLER_BACKENDS:
        return (*fallback(target.platform), (), None)
    features = conv_features(
        problem.operator,
        computed,
        problem.dtype,
        problem.result_dtype,
        problem.precision,
        target.thin_kernels(),
    )
    rule, measured_on = choose(target.platform, target.device_class, features)
    return rule.backend, rule.reason, rule.evidence, measured_on if rule.evidence else None


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
        return made(XLA, "no kernel for this platform")
    if name in PLATFORMS and PLATFORMS[name] != target.platform:
        return made(XLA, "overridden for another platform")
    if name in (NATIVE, *PLATFORMS):
        chosen: _Chosen = (NATIVE, "overridden", (), None)
    else:
        chosen = _resample_by_rule(problem, target.platform, target)
    backend, reason, evidence, measured_on = chosen
    if backend == NATIVE and not target.serves(registry.RESAMPLE_TARGET, problem.dtype):
        return made(XLA, "no handler")
    return made(backend, reason, evidence=evidence, measured_on=measured_on)


def _resample_by_rule(problem: ResampleProblem, platform: str, target: Target) -> _Chosen:
    copies = all(band.is_selection for band in problem.bands)
    grows = all(band.out_size >= band.size for band in problem.bands)
    features = resample_features(problem.dtype, copies, grows)
    rule, measured_on = choose(platform, target.device_class, features)
    return rule.backend, rule.reason, rule.evidence, measured_on if rule.evidence else None

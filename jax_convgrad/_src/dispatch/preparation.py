"""What is done to the operands of a handler's call, and why. `decide` asks it once a backend is chosen."""

from __future__ import annotations

import dataclasses
from typing import Any

from jax_convgrad._src.conv.geometry import ConvGeometry
from jax_convgrad._src.conv.workspace import copy_size
from jax_convgrad._src.dispatch.devices import has_bfloat16, multiplies_bfloat16
from jax_convgrad._src.dispatch.features import preparation_features
from jax_convgrad._src.dispatch.override import overridden_preparation
from jax_convgrad._src.dispatch.problem import ConvProblem
from jax_convgrad._src.dispatch.tables import choose
from jax_convgrad._src.runtime.settings import Settings


@dataclasses.dataclass(frozen=True)
class Preparation:
    """What is done to a handler's operands before its call.

    Attributes:
      name: one of `rules.PREPARATIONS`.
      reason: why, in one sentence.
      evidence: the measurements behind it, as FILE#CASE#PASS under benchmarks/.
      measured_on: the class of devices that they were made on; None where the reason is not speed.
      is_overridden: whether `override_preparation` asked for it.
    """

    name: str
    reason: str
    evidence: tuple[str, ...] = ()
    measured_on: str | None = None
    is_overridden: bool = False


NO_HANDLER = Preparation("none", "no handler is called")


def call_dtype(platform: str | None, dtype: Any) -> str:
    """What a handler of ``platform`` computes a convolution of ``dtype`` in, after its preparation.

    oneDNN has no float16, and no bfloat16 without AVX-512. All their numbers are float32 numbers, and a
    result is rounded once.
    """
    name = str(dtype)
    if platform != "cpu" or name not in ("float16", "bfloat16"):
        return name
    return "bfloat16" if name == "bfloat16" and has_bfloat16() else "float32"


def decide_preparation(
    problem: ConvProblem,
    computed: ConvGeometry,
    platform: str,
    device_class: str | None,
    settings: Settings | None,
) -> Preparation:
    """The preparation of a call of ``platform``'s handler.

    ``computed`` has the sizes of the call: those of ``problem``, or what subsampling left of them.
    """
    if overridden := overridden_preparation():
        return Preparation(overridden, "overridden", is_overridden=True)
    features = preparation_features(
        problem.operator,
        computed,
        problem.dtype,
        problem.result_dtype,
        problem.precision,
        # Not asked on CUDA: it loads the CPU's module.
        platform == "cuda" or has_bfloat16(),
        platform == "cuda" or multiplies_bfloat16(),
    )
    rule, measured_on = choose(platform, device_class, features)
    if rule.choice == "xio_weights" and settings is not None:
        # Engines that read another order need room for a copy. Without them none might be left: thin kernels
        # for weight gradients need a workspace, too.
        limit = settings.workspace_limit
        if limit is not None and limit < copy_size(computed.shape_of("w"), problem.dtype):
            return Preparation("none", "the workspace has no room for a copy of the weights")
    return Preparation(
        rule.choice, rule.reason, rule.evidence, measured_on if rule.evidence else None
    )

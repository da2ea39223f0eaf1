"""The sharding rule of a resize, and each device's share of a divided one.

Each axis is a factor of its own. An axis that is resized is not split: its mesh axes move to another axis,
or every device gets all of it.
"""

from __future__ import annotations

import dataclasses
import hashlib

from jax import Array

from jax_convgrad._src.dispatch.decide import ZEROS, Decision
from jax_convgrad._src.dispatch.problem import ResampleProblem
from jax_convgrad._src.resize.lowering import emit
from jax_convgrad._src.runtime import registry
from jax_convgrad._src.sharding.solver import PartitionedCall, ShardingRule


def rule(problem: ResampleProblem) -> ShardingRule:
    """The factors by which a resize can be divided."""
    factors = tuple((f"a{axis}",) for axis in range(len(problem.shape)))
    sizes: dict[str, tuple[int, ...]] = {
        f"a{axis}": (size,) for axis, size in enumerate(problem.shape)
    }
    resized = {
        f"a{axis}": band.out_size for axis, band in zip(problem.axes, problem.bands, strict=True)
    }
    for factor, size in resized.items():
        sizes[factor] = (*sizes[factor], size)
    return ShardingRule(
        arrays=(factors, factors),
        sizes=sizes,
        summed=(),
        fits=lambda factor, count: factor not in resized and sizes[factor][0] % count == 0,
        order=((0, 1),),
        fallback_factors=tuple(factor for (factor,) in factors),
        images=(0,),
    )


def partitioned_call(problem: ResampleProblem, decision: Decision) -> PartitionedCall:
    """The resize in a program that XLA partitions: each device computes its shard by ``decision``."""

    def shard(x: Array) -> Array:
        part = dataclasses.replace(problem, shape=x.shape)
        backend = ZEROS if part.is_empty else decision.backend
        return emit(decision.replace(problem=part, backend=backend), x)

    def fingerprint() -> str:
        found = registry.require(str(decision.platform))
        versions = registry.version(), found.versions, sorted(found.targets)
        tables = [band.digest.hex() for band in problem.bands]
        decisive = (
            *(problem.shape, str(problem.dtype), tables, problem.axes),
            *(decision.platform, decision.backend, versions),
        )
        return hashlib.sha256(repr(decisive).encode()).hexdigest()

    return PartitionedCall(rule(problem), lambda assignment: shard, fingerprint)

"""From a decision to the operations that compute it: the only consumer of a convolution's `Decision`."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from jax_convgrad._src.conv import emit_ffi, emit_gemm, emit_xla
from jax_convgrad._src.dispatch.decide import (
    GEMM,
    HANDLER_BACKENDS,
    XLA_REWRITTEN,
    ZEROS,
    Decision,
)
from jax_convgrad._src.dispatch.problem import ConvProblem


def emit(decision: Decision, first: Array, second: Array) -> Array:
    """The operator's result, by the backend that was decided on."""
    problem, smaller = decision.problem, decision.subsample
    assert isinstance(problem, ConvProblem)
    if decision.backend == ZEROS:
        return jnp.zeros(problem.result_shape, problem.result_dtype)
    if smaller is not None:
        if problem.operand_roles[0] == "x":
            first = smaller.take(first)
        problem = problem.replace(geometry=decision.computed)
    result = _computed(decision, problem, first, second)
    if smaller is not None and problem.result_role == "x":
        return smaller.spread(result)
    return result


def _computed(decision: Decision, problem: ConvProblem, first: Array, second: Array) -> Array:
    if decision.backend in HANDLER_BACKENDS.values():
        return emit_ffi.emit(problem, decision.preparation.name, decision.settings, first, second)
    if decision.backend == GEMM:
        return emit_gemm.emit(problem, first, second)
    rewritten = decision.backend == XLA_REWRITTEN
    return emit_xla.emit(problem, first, second, rewritten=rewritten)

"""From a decision to the operations that compute it: the only consumer of a resize's `Decision`."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from jax_convgrad._src.dispatch.decide import NATIVE, ZEROS, Decision
from jax_convgrad._src.dispatch.problem import ResampleProblem
from jax_convgrad._src.resize import emit_ffi, emit_xla


def emit(decision: Decision, x: Array) -> Array:
    """The resized array, by the backend that was decided on."""
    problem = decision.problem
    assert isinstance(problem, ResampleProblem)
    if decision.backend == ZEROS:
        return jnp.zeros(problem.result_shape, problem.dtype)
    if decision.backend == NATIVE:
        return emit_ffi.emit(problem, x)
    return emit_xla.resample(decision.platform, x, bands=problem.bands, axes=problem.axes)

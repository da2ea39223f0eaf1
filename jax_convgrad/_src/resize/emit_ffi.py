"""The call of a platform's compiled resize handler. All arrays are row-major."""

from __future__ import annotations

import jax
import numpy as np
from jax import Array

from jax_convgrad._src.dispatch.problem import ResampleProblem
from jax_convgrad._src.dtypes import sum_dtype
from jax_convgrad._src.runtime.registry import RESAMPLE_TARGET


def emit(problem: ResampleProblem, x: Array) -> Array:
    """The handler's call on the platform that is being lowered for; the bands' tables are its constants."""
    wide = sum_dtype(problem.dtype)
    tables = [table for band in problem.bands for table in (band.start, band.weights.astype(wide))]
    result = jax.ShapeDtypeStruct(problem.result_shape, problem.dtype)
    call = jax.ffi.ffi_call(RESAMPLE_TARGET, result)
    return call(x, *tables, axes=np.asarray(problem.axes, np.int64))

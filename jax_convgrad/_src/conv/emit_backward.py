"""The one call of a backward pass: the CPU handler `jax_convgrad_conv_backward`.

The handler takes x, w and dy, and has one result for each gradient that is wanted, in the order dx, dw, db.
The attribute ``wanted`` says which: 1 for dx, 2 for dw and 4 for db, added up. Layouts are those of the
other handlers (`emit_ffi`).
"""

from __future__ import annotations

import jax
import numpy as np
from jax import Array

from jax_convgrad._src.conv import emit_ffi
from jax_convgrad._src.conv.arrays import pad_spatial
from jax_convgrad._src.conv.layouts import channels_last
from jax_convgrad._src.dispatch.problem import GRADIENTS, ConvBackwardProblem
from jax_convgrad._src.runtime.registry import BACKWARD_TARGET


def emit(problem: ConvBackwardProblem, x: Array, w: Array, dy: Array) -> list[Array]:
    """The wanted gradients by one call."""
    crop, config = emit_ffi.split_negative(problem.geometry.config)
    x_spec, _, y_spec = config.dimension_numbers
    x = pad_spatial(x, crop, x_spec)
    layouts = {"x": channels_last(x_spec), "w": None, "b": None}
    shapes = {"x": x.shape, "w": problem.shape_of("w"), "b": problem.shape_of("b")}
    call = jax.ffi.ffi_call(
        BACKWARD_TARGET,
        [jax.ShapeDtypeStruct(shapes[g], problem.result_dtype) for g in problem.wanted],
        input_layouts=[layouts["x"], None, channels_last(y_spec)],
        output_layouts=[layouts[g] for g in problem.wanted],
    )
    wanted = sum(1 << GRADIENTS.index(gradient) for gradient in problem.wanted)
    results = call(x, w, dy, wanted=np.int64(wanted), **emit_ffi.attributes_of(config))
    uncrop = tuple((-low, -high) for low, high in crop)
    return [
        pad_spatial(result, uncrop, x_spec) if gradient == "x" else result
        for gradient, result in zip(problem.wanted, results, strict=True)
    ]

"""The operator behind each pass of a case, as the package's own layer binds it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from jax_convgrad._src.conv.subsample import subsample
from jax_convgrad._src.dispatch.decide import computed_geometry
from jax_convgrad._src.dispatch.features import (
    ConvFeatures,
    IsThin,
    ResampleFeatures,
    conv_features,
    resample_features,
)
from jax_convgrad._src.dispatch.problem import ConvProblem, ResampleProblem
from jax_convgrad.bench.case_files import AnyCase
from jax_convgrad.bench.cases import DTYPES
from jax_convgrad.bench.forms.ours import OursForm
from jax_convgrad.bench.forms.weights import WeightsOrder

_OPERATORS = {
    "conv": {"fprop": "conv_fprop", "dx": "conv_dgrad", "dw": "conv_wgrad"},
    "convt": {"fprop": "conv_dgrad", "dx": "conv_fprop", "dw": "conv_wgrad"},
    "resize": {"fprop": "resample", "dx": "resample"},
}


def problem_of(
    case: AnyCase, pass_: str, precision: str | None = None
) -> ConvProblem | ResampleProblem:
    """The problem of one operator: "fprop", "dx" or "dw" of a layer. Nothing is computed.

    ``precision`` is `jax.default_matmul_precision` around the layer.
    """
    with (
        jax.enable_x64(case.dtype == "f64"),
        jax.default_matmul_precision(precision) if precision else contextlib.nullcontext(),
    ):
        function = OursForm().function(case, pass_, "NHWC", WeightsOrder.make(case, "NHWC"))
        dtype = jnp.dtype(DTYPES[case.dtype])
        shapes = (case.x_shape, case.w_shape, case.y_shape)
        arrays = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
        program = jax.make_jaxpr(function)(*arrays)
    operator = _OPERATORS[case.kind][pass_]
    # A gradient's program begins with the forward pass, which XLA drops.
    found = [e for e in _equations(program.jaxpr) if e.primitive.name == operator]
    problem: ConvProblem | ResampleProblem = found[-1].params["problem"]
    return problem


def features_of(
    problem: ConvProblem | ResampleProblem, is_thin: IsThin | None = None
) -> ConvFeatures | ResampleFeatures:
    """The features of a problem that the rules see, as `decide` computes them."""
    if isinstance(problem, ResampleProblem):
        copies = all(band.is_selection for band in problem.bands)
        grows = all(band.out_size >= band.size for band in problem.bands)
        return resample_features(problem.dtype, copies, grows)
    geometry = problem.geometry
    computed = computed_geometry(geometry, subsample(geometry.config, geometry.x_shape))
    return conv_features(
        problem.operator,
        computed,
        problem.dtype,
        problem.result_dtype,
        problem.precision,
        is_thin,
    )


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _equations(inner)


__all__ = ["ConvFeatures", "features_of", "problem_of"]

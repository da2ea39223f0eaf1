"""Which operator a convolution of lax is, and whether this package computes it."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_convgrad._src.conv import primitives
from jax_convgrad._src.conv.emit_xla import has_rewritten_form
from jax_convgrad._src.dispatch.decide import (
    WITHOUT_CUSTOM_CALLS,
    XLA,
    XLA_REWRITTEN,
    Decision,
    decide,
)
from jax_convgrad._src.dispatch.devices import Target
from jax_convgrad._src.dispatch.problem import ConvProblem
from jax_convgrad._src.dtypes import FLOAT_DTYPES
from jax_convgrad._src.install.match import Match, NoMatch, match


@dataclasses.dataclass(frozen=True)
class EquationDecision:
    """Whether this package computes a convolution of lax, and why.

    Attributes:
      replaced: whether it is computed here; if not, JAX's own rule is called.
      reason: why.
      match: which operator it is; None where it is none.
      decision: who computes that operator; None as ``match``.
    """

    replaced: bool
    reason: str
    match: Match | None = None
    decision: Decision | None = None

    def compute(self, lhs: Array, rhs: Array) -> Array:
        """The equation's result by this package."""
        assert self.match is not None and self.decision is not None
        problem = self.decision.problem
        assert isinstance(problem, ConvProblem)
        bind = functools.partial(primitives.bind, problem, decision=self.decision)
        return self.match.apply(lhs, rhs, bind)


def decide_equation(
    platform: str,
    lhs: Any,
    rhs: Any,
    out: Any,
    params: dict[str, Any],
    custom_calls: bool = True,
) -> EquationDecision:
    """What `install` makes of an equation with these abstract values and parameters.

    ``custom_calls``: whether a call may be in the program, see `Target`.
    """
    if not _has_our_dtypes(lhs.dtype, rhs.dtype, out.dtype):
        if jnp.issubdtype(out.dtype, jnp.complexfloating):
            parts = f"JAX takes {out.dtype} apart into real convolutions, each decided by itself"
            return EquationDecision(False, parts)
        types = f"{lhs.dtype} and {rhs.dtype} to {out.dtype}"
        served = f"operands of one dtype out of {', '.join(FLOAT_DTYPES)}"
        return EquationDecision(False, f"{types} stays with JAX: this package takes {served}")
    found = match(
        lhs.shape,
        rhs.shape,
        out.shape,
        window_strides=params["window_strides"],
        padding=params["padding"],
        lhs_dilation=params["lhs_dilation"],
        rhs_dilation=params["rhs_dilation"],
        dimension_numbers=params["dimension_numbers"],
        feature_group_count=params["feature_group_count"],
        batch_group_count=params["batch_group_count"],
    )
    if isinstance(found, NoMatch):
        return EquationDecision(False, found.reason)
    # The equation's precision is resolved: JAX's default is not asked for again.
    problem = ConvProblem(
        found.operator,
        found.geometry,
        np.dtype(lhs.dtype),
        np.dtype(out.dtype),
        params["precision"],
    )
    decision = decide(problem, Target.of(platform, custom_calls))
    if not custom_calls:
        return EquationDecision(False, WITHOUT_CUSTOM_CALLS, found, decision)
    return EquationDecision(not _is_lax_form(found, decision), decision.reason, found, decision)


def _is_lax_form(found: Match, decision: Decision) -> bool:
    """Whether lax has the equation already in the form in which the decision's backend would compute it.

    Not where it has the operator's operands the other way round: it dilates its lhs then, or has a window as
    large as an image, where the backends' own forms do not.
    """
    if decision.subsample is not None or found.swapped:
        return False
    if decision.backend == XLA_REWRITTEN:
        return not has_rewritten_form(found.operator, found.geometry)
    return decision.backend == XLA


def _has_our_dtypes(lhs: Any, rhs: Any, out: Any) -> bool:
    if lhs != rhs or str(lhs) not in FLOAT_DTYPES or str(out) not in FLOAT_DTYPES:
        return False
    as_wide: bool = out == lhs or jnp.dtype(out).itemsize > jnp.dtype(lhs).itemsize
    return as_wide

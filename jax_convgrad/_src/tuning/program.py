"""The problems in a function's program: what `tune module:function` measures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from jax import lax

from jax_convgrad._src import compat
from jax_convgrad._src.conv.primitives import PRIMITIVES
from jax_convgrad._src.dispatch.problem import ConvBackwardProblem, ConvProblem
from jax_convgrad._src.explain import walk
from jax_convgrad._src.install import jax_image, switch
from jax_convgrad._src.install.equation import decide_equation
from jax_convgrad._src.resize.primitives import resample_p
from jax_convgrad._src.tuning.store import Problem

_OURS = {*PRIMITIVES.values(), resample_p}


def problems_of(platform: str, fn: Callable[..., Any], *args: Any) -> list[Problem]:
    """The distinct convolutions and resizes of a function, `jax.lax`'s and `jax.image`'s included.

    The function is traced, not run. Empty problems, and those that no result depends on, are left out.
    """
    with contextlib.ExitStack() as stack:
        if platform not in switch.installed():
            stack.enter_context(compat.separate_traces())
            stack.enter_context(jax_image.redirected())
        jaxpr, shardings = compat.trace(fn, *args)
    found = (
        _problem(platform, entry.equation)
        for entry in walk.find(jaxpr, _is_wanted, shardings)
        if entry.used
    )
    return list(dict.fromkeys(problem for problem in found if problem is not None))


def _is_wanted(equation: Any, partitioned: bool) -> bool:
    return equation.primitive in _OURS or equation.primitive is lax.conv_general_dilated_p


def _problem(platform: str, equation: Any) -> Problem | None:
    if equation.primitive in _OURS:
        problem: Problem = equation.params["problem"]
    else:
        params = {**equation.params, "out_sharding": None}
        lhs, rhs = (variable.aval for variable in equation.invars)
        out = equation.outvars[0].aval
        decision = decide_equation(platform, lhs, rhs, out, params).decision
        if decision is None:
            return None
        assert not isinstance(decision.problem, ConvBackwardProblem)  # no lax equation is one
        problem = decision.problem
    return None if _is_empty(problem) else problem


def _is_empty(problem: Problem) -> bool:
    """Whether there is nothing to compute."""
    if isinstance(problem, ConvProblem):
        return problem.geometry.is_empty
    return problem.is_empty

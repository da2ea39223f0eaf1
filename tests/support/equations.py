"""Convolution equations: collects them from traced programs, and computes their result by definition."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from support import oracles
from support.layouts import from_layout, to_layout

from jax_convgrad._src.install.match import Match, NoMatch, match
from jax_convgrad._src.shapes import Shape

_PARAMETERS = (
    "window_strides",
    "padding",
    "lhs_dilation",
    "rhs_dilation",
    "dimension_numbers",
    "feature_group_count",
    "batch_group_count",
)


@dataclasses.dataclass(frozen=True)
class Equation:
    """One `lax.conv_general_dilated` of a traced program: its shapes and parameters."""

    lhs: Shape
    rhs: Shape
    out: Shape
    params: dict[str, Any]

    def match(self) -> Match | None:
        found = match(self.lhs, self.rhs, self.out, **self.params)
        return None if isinstance(found, NoMatch) else found

    def by_definition(self, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        """The result in float64, with zeros actually inserted and every group of the batch computed by
        itself."""
        numbers, batch_groups = self.params["dimension_numbers"], self.params["batch_group_count"]
        x, w = from_layout(lhs, numbers.lhs_spec), from_layout(rhs, numbers.rhs_spec)
        dilation = self.params["lhs_dilation"]
        sizes = zip(x.shape[2:], dilation, strict=True)
        spread = np.zeros((*x.shape[:2], *((n - 1) * d + 1 for n, d in sizes)))
        spread[(slice(None), slice(None), *(slice(None, None, d) for d in dilation))] = x
        parts = zip(np.split(spread, batch_groups), np.split(w, batch_groups), strict=True)
        y = [
            oracles.conv_fprop(
                image,
                weights,
                strides=self.params["window_strides"],
                padding=self.params["padding"],
                dilation=self.params["rhs_dilation"],
                groups=self.params["feature_group_count"],
            )
            for image, weights in parts
        ]
        return to_layout(np.concatenate(y, 1), numbers.out_spec)


def equations(f: Callable[..., Any], *shapes: Shape) -> list[Equation]:
    """The convolutions in the program of ``f``, at all levels, in order."""
    arguments = [jax.ShapeDtypeStruct(shape, np.float64) for shape in shapes]
    return list(_walk(jax.make_jaxpr(f)(*arguments).jaxpr))


def _walk(jaxpr: Any) -> Iterator[Equation]:
    for equation in jaxpr.eqns:
        if equation.primitive.name == "conv_general_dilated":
            lhs, rhs = (v.aval.shape for v in equation.invars)
            params = {name: equation.params[name] for name in _PARAMETERS}
            yield Equation(lhs, rhs, equation.outvars[0].aval.shape, params)
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from _walk(inner)


def by_oracle(found: Match, first: Any, second: Any) -> np.ndarray:
    """The operator of a match by definition, for `Match.apply` to run."""
    config, operator = found.geometry.config, found.operator
    specs = dict(zip("xwy", config.dimension_numbers, strict=True))
    *roles, result_role = {"conv_fprop": "xwy", "conv_dgrad": "ywx", "conv_wgrad": "xyw"}[operator]
    for array, role in zip((first, second), roles, strict=True):
        assert array.shape == found.geometry.shape_of(role)
    operands = [from_layout(a, specs[r]) for a, r in zip((first, second), roles, strict=True)]
    if operator != "conv_fprop":
        shape = found.geometry.shape_of(result_role)
        operands.append(tuple(shape[axis] for axis in specs[result_role]))
    result = getattr(oracles, operator)(
        *operands,
        strides=config.strides,
        padding=config.padding,
        dilation=config.dilation,
        groups=config.groups,
    )
    return to_layout(result, specs[result_role])

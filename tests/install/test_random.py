"""Seeded random `lax.conv_general_dilated` problems with install(), exact on small integers.

One seed is one problem: geometry, layout, both dilations, both group counts, dtype and data follow from
it. Value, JVP, both VJPs and the VJPs of those are compared with the definition, which is what lax computes
without install(). A failure names its seeds. JAX_CONVGRAD_INSTALL_CASES sets how many run,
JAX_CONVGRAD_INSTALL_FIRST the first seed.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.comparisons import assert_exact
from support.conv_cases import Case, in_layout
from support.conv_oracle import conv_oracle
from support.equations import Equation, equations
from support.layouts import to_layout
from support.random_cases import draw_case

import jax_convgrad
from jax_convgrad._src.install.lowering_rules import decide_equation

CASES = int(os.environ.get("JAX_CONVGRAD_INSTALL_CASES", "100"))
FIRST = int(os.environ.get("JAX_CONVGRAD_INSTALL_FIRST", "0"))
CHUNK = 25
NAMES = ("y", "tangent", "dx", "dw", "ddx", "ddw", "ddy")


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    jax_convgrad.install()
    yield
    jax_convgrad.uninstall()


def program(case: Case) -> Any:
    layer = lambda x, w: lax.conv_general_dilated(x, w, **case.lax_keywords)  # noqa: E731

    def gradients(x: Any, w: Any, dy: Any) -> Any:
        return jax.vjp(layer, x, w)[1](dy)

    def run(x: Any, w: Any, dy: Any, tx: Any, tw: Any) -> Any:
        y, tangent = jax.jvp(layer, (x, w), (tx, tw))
        first, pullback = jax.vjp(gradients, x, w, dy)
        return y, tangent, *first, *pullback((tx, tw))

    return run


def expected(case: Case, x: Any, w: Any, dy: Any, tx: Any, tw: Any) -> list[np.ndarray]:
    y, dx, dw = conv_oracle(case, x, w, dy)
    y_tx, _, ddw = conv_oracle(case, tx, w, dy)
    y_tw, ddx, _ = conv_oracle(case, x, tw, dy)
    x_spec, w_spec, y_spec = case.numbers
    return [
        to_layout(y, y_spec),
        to_layout(y_tx + y_tw, y_spec),
        to_layout(dx, x_spec),
        to_layout(dw, w_spec),
        to_layout(ddx, x_spec),
        to_layout(ddw, w_spec),
        to_layout(y_tx + y_tw, y_spec),
    ]


def may_be_wrong(equation: Equation, dtype: str) -> bool:
    """Whether XLA:CPU computes an equation itself and may abort or be wrong, as it is without install():
    see the two notes in conv/emit_xla.py, [What XLA takes for a group] and [No negative low padding]."""
    avals = (jax.ShapeDtypeStruct(s, dtype) for s in (equation.lhs, equation.rhs, equation.out))
    if decide_equation("cpu", *avals, {**equation.params, "precision": None}).replaced:
        return False
    spatial = equation.params["dimension_numbers"].rhs_spec[2:]
    axes = zip(
        (equation.rhs[axis] for axis in spatial),
        equation.params["lhs_dilation"],
        equation.params["padding"],
        strict=True,
    )
    return any(
        low < 0 < high or (taps == dilation == 2 and (low, high) == (0, 0))
        for taps, dilation, (low, high) in axes
    )


def draw(seed: int) -> tuple[Case, str, np.random.Generator] | None:
    """None where XLA computes one of the equations itself and may be wrong."""
    rng = np.random.default_rng(seed)
    dtype = "float64" if rng.random() < 0.2 else "float32"
    case = draw_case(rng, "float32", lhs_dilated=bool(rng.random() < 0.4), batch_groups=True)
    shapes = [case.logical(which) for which in "xwyxw"]
    found = equations(program(case), *shapes)
    return None if any(may_be_wrong(e, dtype) for e in found) else (case, dtype, rng)


def check(seed: int) -> bool:
    drawn = draw(seed)
    if drawn is None:
        return False
    case, dtype, rng = drawn
    data = case.data(rng, "float32", 2 * case.reduction)
    tangents = case.data(rng, "float32", 2 * case.reduction)[:2]
    wanted = expected(case, *data, *tangents)
    logical = (*in_layout(case, *data), *in_layout(case, *tangents, data[2])[:2])
    got = jax.jit(program(case))(*(jnp.asarray(a, dtype) for a in logical))
    for name, a, b in zip(NAMES, got, wanted, strict=True):
        assert_exact(a, b, dtype, name)
    return True


@pytest.mark.parametrize("first", range(FIRST, FIRST + CASES, CHUNK))
def test_random_problems(first: int):
    failed, checked = [], 0
    for seed in range(first, min(first + CHUNK, FIRST + CASES)):
        try:
            checked += check(seed)
        except Exception as error:
            drawn = draw(seed)
            case = dataclasses.asdict(drawn[0]) if drawn else None
            failed.append(f"seed {seed}: {type(error).__name__}: {error}\n  {case}")
    assert not failed, "\n".join(failed)
    assert checked, "every problem was left out: the test proves nothing"

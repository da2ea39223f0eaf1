"""Seeded random `lax.conv_general_dilated` problems with install(): first and second derivatives, both modes.

One seed is one problem: geometry, layout, both dilations, both group counts, dtype and data follow from
it. Value, JVP, both VJPs and the VJPs of those are compared with the definition, which is what lax computes
without install(). In float32 and float64 the data are small integers and results are exact. In 16 bits so few
integers have exact sums that problems would be tiny: there the data are random, and no result may be further
from that of float64 than rounding takes it.

A failure names its seeds. JAX_CONVGRAD_INSTALL_CASES sets how many run, and half as many of 16 bits;
JAX_CONVGRAD_INSTALL_FIRST is the first seed of both.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support import shrinking
from support.comparisons import assert_exact
from support.conv_cases import Case, in_layout
from support.conv_oracle import conv_oracle
from support.equations import Equation, equations
from support.layouts import to_layout
from support.random_cases import draw_case
from support.rounding import half_ulp, rounded_sum_bound

import jax_convgrad
from jax_convgrad._src.install.equation import decide_equation

pytestmark = pytest.mark.usefixtures("installed")

CASES = int(os.environ.get("JAX_CONVGRAD_INSTALL_CASES", "100"))
FIRST = int(os.environ.get("JAX_CONVGRAD_INSTALL_FIRST", "0"))
CHUNK = 25
NAMES = ("y", "tangent", "dx", "dw", "ddx", "ddw", "ddy")


def program(case: Case) -> Any:
    layer = lambda x, w: lax.conv_general_dilated(x, w, **case.lax_keywords)  # noqa: E731

    def gradients(x: Any, w: Any, dy: Any) -> Any:
        return jax.vjp(layer, x, w)[1](dy)

    def run(x: Any, w: Any, dy: Any, tx: Any, tw: Any) -> Any:
        y, tangent = jax.jvp(layer, (x, w), (tx, tw))
        first, pullback = jax.vjp(gradients, x, w, dy)
        return y, tangent, *first, *pullback((tx, tw))

    return run


def parts(case: Case, x: Any, w: Any, dy: Any, tx: Any, tw: Any) -> list[list[np.ndarray]]:
    """What each of NAMES is the sum of, by definition: one convolution each."""
    y, dx, dw = conv_oracle(case, x, w, dy)
    y_tx, _, ddw = conv_oracle(case, tx, w, dy)
    y_tw, ddx, _ = conv_oracle(case, x, tw, dy)
    of_x, of_w, of_y = (
        lambda *arrays, s=s: [to_layout(a, s) for a in arrays] for s in case.numbers
    )
    return [of_y(y), of_y(y_tx, y_tw), of_x(dx), of_w(dw), of_x(ddx), of_w(ddw), of_y(y_tx, y_tw)]


def may_be_wrong(equation: Equation, dtype: str) -> bool:
    """Whether XLA:CPU computes an equation itself and may abort or be wrong, as it is without install():
    see the two notes in conv/emit_xla.py, [What XLA takes for a group] and [No negative low padding]."""
    avals = (jax.ShapeDtypeStruct(s, dtype) for s in (equation.lhs, equation.rhs, equation.out))
    if decide_equation("cpu", *avals, {**equation.params, "precision": None}).replaced:
        return False
    return xla_may_be_wrong(equation)


def xla_may_be_wrong(equation: Equation) -> bool:
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


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A problem, and the generator of its data."""

    case: Case
    dtype: str
    rng: np.random.Generator
    equations: list[Equation] = dataclasses.field(repr=False)

    @property
    def may_be_wrong(self) -> bool:
        """XLA computes one of the equations itself and may be wrong."""
        return any(may_be_wrong(e, self.dtype) for e in self.equations)

    @property
    def lax_may_be_wrong(self) -> bool:
        return any(map(xla_may_be_wrong, self.equations))


def draw_of(rng: np.random.Generator, dtype: str) -> Drawn:
    case = draw_case(rng, "float32", lhs_dilated=bool(rng.random() < 0.4), batch_groups=True)
    shapes = [case.logical(which) for which in "xwyxw"]
    return Drawn(case, dtype, rng, equations(program(case), *shapes))


def draw(rng: np.random.Generator) -> Drawn:
    return draw_of(rng, "float64" if rng.random() < 0.2 else "float32")


def draw_16_bits(rng: np.random.Generator) -> Drawn:
    return draw_of(rng, str(rng.choice(["bfloat16", "float16"])))


def check(drawn: Drawn) -> None:
    case, dtype = drawn.case, drawn.dtype
    data = case.data(drawn.rng, "float32", 2 * case.reduction)
    tangents = case.data(drawn.rng, "float32", 2 * case.reduction)[:2]
    wanted = map(sum, parts(case, *data, *tangents))
    got = run(case, dtype, *data, *tangents)
    for name, a, b in zip(NAMES, got, wanted, strict=True):
        assert_exact(a, b, dtype, name)


def run(case: Case, dtype: str, x: Any, w: Any, dy: Any, tx: Any, tw: Any) -> Any:
    arrays = (*in_layout(case, x, w, dy), *in_layout(case, tx, tw, dy)[:2])
    return jax.jit(program(case))(*(jnp.asarray(a, dtype) for a in arrays))


def check_16_bits(drawn: Drawn) -> None:
    """Every convolution may round its sum once, after float32 sums, and the sum of two of them once more.

    That is what lax does with 16 bits on a CPU as well. Where an engine of a library does not, on a GPU,
    lax's own error decides as it does for all random data: NOTE [Yardsticks] in support/rounding.py.
    """
    case, dtype = drawn.case, drawn.dtype
    shapes = (case.x, case.w, case.y, case.x, case.w)
    data = [drawn.rng.normal(size=s).astype(jnp.dtype(dtype)).astype(np.float64) for s in shapes]
    exact, magnitudes = parts(case, *data), parts(case, *map(np.abs, data))
    truth = [np.sum(p, 0) for p in exact]
    bounds = [allowed(case, dtype, *pair) for pair in zip(exact, magnitudes, strict=True)]
    got = run(case, dtype, *data)
    assert all(array.dtype == dtype for array in got)
    errors = in_bounds(got, truth, bounds)
    if max(errors) <= 1:
        return
    if drawn.lax_may_be_wrong:
        limits = [1.0] * len(NAMES)
    else:
        with jax_convgrad.disabled():
            limits = [max(1.0, 3 * e) for e in in_bounds(run(case, dtype, *data), truth, bounds)]
    for name, error, limit in zip(NAMES, errors, limits, strict=True):
        assert error <= limit, (
            f"{name}: {error:.3g} times what rounding allows, lax's limit {limit:.3g}"
        )


def allowed(
    case: Case, dtype: str, exact: list[np.ndarray], magnitudes: list[np.ndarray]
) -> np.ndarray:
    pairs = zip(exact, magnitudes, strict=True)
    bound = sum(rounded_sum_bound(e, m, case.reduction, dtype) for e, m in pairs)
    if len(exact) > 1:
        bound = bound + half_ulp(np.abs(sum(exact)) + bound, dtype)
    return np.asarray(bound)


def in_bounds(got: Any, truth: list[np.ndarray], bounds: list[np.ndarray]) -> list[float]:
    """The largest error of each result, in bounds; NaN counts as infinite."""
    errors = []
    for array, true, bound in zip(got, truth, bounds, strict=True):
        assert array.shape == true.shape
        error = np.abs(np.asarray(array).astype(np.float64) - true) / bound
        errors.append(float(np.nan_to_num(error, nan=np.inf).max(initial=0)))
    return errors


LEFT_OUT = "left out"


def run_seed(seed: int) -> str | None:
    """None if the problem of ``seed`` passes, LEFT_OUT where lax may be wrong, else what is wrong."""
    return _run_seed(seed, draw, check)


def run_seed_of_16_bits(seed: int) -> str | None:
    return _run_seed(seed, draw_16_bits, check_16_bits)


def _run_seed(
    seed: int, draw: Callable[[np.random.Generator], Drawn], check: Callable[[Drawn], None]
) -> str | None:
    drawn = None
    try:
        drawn = draw(np.random.default_rng(seed))
        if drawn.may_be_wrong:
            return LEFT_OUT
        check(drawn)
    except Exception as error:
        what = (drawn.dtype, dataclasses.asdict(drawn.case)) if drawn else None
        again = f"JAX_CONVGRAD_INSTALL_CASES=1 JAX_CONVGRAD_INSTALL_FIRST={seed} pytest {__file__}"
        return f"{again}   # {what}: {type(error).__name__}: {error}"
    return None


def check_seeds(seeds: range, run: Callable[[int], str | None]) -> None:
    outcomes = [run(seed) for seed in seeds]
    failures = [outcome for outcome in outcomes if outcome not in (None, LEFT_OUT)]
    assert not failures, "\n".join(map(str, failures))
    assert None in outcomes, "every problem was left out: the test proves nothing"


@pytest.mark.parametrize("first", range(FIRST, FIRST + CASES, CHUNK))
def test_random_problems(first: int):
    check_seeds(range(first, min(first + CHUNK, FIRST + CASES)), run_seed)


@pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="its bounds have been checked on CPUs alone"
)
@pytest.mark.parametrize("first", range(FIRST, FIRST + -(-CASES // 2), CHUNK))
def test_random_problems_of_16_bits(first: int):
    last = FIRST + -(-CASES // 2)
    check_seeds(range(first, min(first + CHUNK, last)), run_seed_of_16_bits)


def test_shrinks_installed_convolutions():
    draws = [draw, draw_16_bits] if jax.default_backend() == "cpu" else [draw]

    def draw_any(rng: np.random.Generator) -> Drawn:
        return draws[rng.integers(len(draws))](rng)

    def verify(drawn: Drawn) -> None:
        if not drawn.may_be_wrong:
            (check if drawn.dtype in ("float32", "float64") else check_16_bits)(drawn)

    shrinking.check(draw_any, verify)

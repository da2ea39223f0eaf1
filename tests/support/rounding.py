"""How large the errors on random data may be.

NOTE [Yardsticks]. Results on random data are measured against the error of XLA's own result in the same
dtype. That error is no measure of what the arithmetic allows where XLA

* adds in float32 what may be computed in TF32: by default both may round float32 operands to TF32 on a
  GPU, but in a tiny problem one of the two may have picked an engine that does not;
* is right by luck, or is the reference itself: the same kernel of cuDNN has no error against itself.

So the yardstick is the larger of XLA's error and that of the arithmetic, which is known:

* TF32: products are exact and sums are float32, so that what brings the operands to 11 bits decides.
  Some engines round them to the nearest, others leave the tensor cores to cut them, which shifts
  every product towards zero and comes to about 7e-4 where rounding comes to 3e-4. It is no
  estimate: these very operands are rounded, and cut, and the larger error of the float64
  convolutions of them is the yardstick. Half as much again is for one operand cut and one rounded.
* Sums: no algorithm can promise to stay below `rounding_floor`. Adding n products one after another
  rounds n partial sums by at most a unit roundoff u each. The k-th of them has a root mean square of
  sqrt(k / n) of the result's, so none exceeds it, and n independent errors of that size come to
  sqrt(n) u. One more u, of the result's own dtype, is for storing it.

NOTE [The bound of every element]. Where no engine of a library may have chosen another arithmetic, no
element of a result may be off by more than `rounded_sum_bound`, whatever the order of its terms: each
term takes part in at most n roundings (of its products and of the partial sums that it is in), each of
which changes it by a unit roundoff u of the accumulator at most, so that the sum is off by n u times the
sum of the terms' absolute values. The result's own rounding to the nearest adds half a unit in the last
place.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from support.comparisons import relative_error
from support.conv_cases import Case
from support.conv_oracle import conv_oracle

_TF32_BITS = 11  # of the significand, ten of them stored
_NAMES = ("y", "dx", "dw")


def random_data(case: Case, dtype: str, rng: np.random.Generator) -> list[np.ndarray]:
    """x, w, dy, canonical: rounded to ``dtype``, so that only the computation's error is measured.

    In float64, and for float64 in long double, which is to be the truth for it.
    """
    wide = np.longdouble if dtype == "float64" else np.float64
    shapes = (case.x, case.w, case.y)
    return [rng.normal(size=shape).astype(jnp.dtype(dtype)).astype(wide) for shape in shapes]


def half_ulp(expected: np.ndarray, dtype: Any) -> np.ndarray:
    """Half a unit in the last place of ``dtype`` at ``expected``."""
    info = jnp.finfo(dtype)
    exponent = np.floor(np.log2(np.maximum(np.abs(expected), float(info.tiny))))
    return 0.5 * float(info.eps) * 2.0**exponent


def rounded_sum_bound(
    expected: np.ndarray, magnitude: np.ndarray, roundings: int, dtype: Any
) -> np.ndarray:
    """How far elements of ``dtype`` may be from ``expected``: see NOTE [The bound of every element].

    ``magnitude`` is the sum of the terms' absolute values, ``roundings`` the most that a term takes part in.
    Sums are taken in float32, or in float64 for float64.
    """
    roundoff = float(jnp.finfo("float64" if dtype == "float64" else "float32").eps) / 2
    # (1 + u)^n - 1 itself: a little more than n u.
    of_sum = math.expm1(roundings * math.log1p(roundoff)) * magnitude
    return of_sum + half_ulp(np.abs(expected) + of_sum, dtype)


def check_errors(
    case: Case,
    dtype: str,
    precision: Any,
    data: list[np.ndarray],
    ours: tuple[Any, ...],
    xla: tuple[Any, ...],
) -> None:
    """``ours`` and ``xla`` are y, dx, dw in canonical order, of the rounded ``data``."""
    truth = conv_oracle(case, *data)
    models = _arithmetic_errors(case, dtype, precision, data, truth)
    floor = rounding_floor(case.reduction, dtype)
    for name, got, other, exact, model in zip(_NAMES, ours, xla, truth, models, strict=True):
        error = relative_error(got, exact)
        # For a few convolutions XLA:CPU of jaxlib 0.10 gives NaN.
        of_xla = float(np.nan_to_num(relative_error(other, exact)))
        assert error <= max(3 * of_xla, 1.5 * model, floor), (
            f"{name}: error {error:.3g}, XLA's {of_xla:.3g}, the arithmetic's {model:.3g}, "
            f"floor {floor:.3g}"
        )


def may_use_tf32(dtype: Any, precision: Any = None) -> bool:
    """Whether operands may be rounded to TF32 here: float32 on a GPU, unless HIGHEST forbids it."""
    parts = precision if isinstance(precision, tuple) else (precision,)
    strict = any(
        part is not None and lax.Precision(part) == lax.Precision.HIGHEST for part in parts
    )
    return jnp.dtype(dtype) == jnp.float32 and jax.default_backend() == "gpu" and not strict


def to_tf32(array: np.ndarray, to_integer: np.ufunc = np.rint) -> np.ndarray:
    """float64 values brought to TF32: by default to the nearest, ties to even; `np.trunc` cuts."""
    fraction, exponent = np.frexp(np.asarray(array, np.float64))
    return np.ldexp(to_integer(np.ldexp(fraction, _TF32_BITS)), exponent - _TF32_BITS)


def _arithmetic_errors(
    case: Case, dtype: str, precision: Any, data: list[np.ndarray], truth: tuple[np.ndarray, ...]
) -> tuple[float, ...]:
    if not may_use_tf32(dtype, precision):
        return (0.0,) * len(truth)
    errors = []
    for to_integer in (np.rint, np.trunc):
        operands = (to_tf32(array, to_integer) for array in data)
        errors.append(map(relative_error, conv_oracle(case, *operands), truth))
    return tuple(map(max, *errors))


def rounding_floor(terms: int, dtype: str) -> float:
    """What a sum of ``terms`` products or values in ``dtype`` may err by: see NOTE [Yardsticks]."""
    accumulator = "float64" if dtype == "float64" else "float32"
    roundoff, of_sums = (float(jnp.finfo(d).eps) / 2 for d in (dtype, accumulator))
    return roundoff + math.sqrt(terms) * of_sums

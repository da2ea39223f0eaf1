"""What a convolution's ``precision`` means: what it means in `jax.lax`.

None is XLA's default. JAX's own, `jax.default_matmul_precision`, has taken its place where there was one
when the operator was called.
"""

from __future__ import annotations

from typing import Any

from jax import lax


def allows_tf32(precision: Any) -> bool:
    """Whether float32 operands may be rounded to TF32: unless HIGHEST is asked for, as in XLA."""
    parts = precision if isinstance(precision, tuple | list) else (precision,)
    return not any(map(_is_highest, parts))


def stated(precision: Any) -> Any:
    """``precision`` for an operation of lax's that is to leave JAX's default alone."""
    return lax.Precision.DEFAULT if precision is None else precision


def _is_highest(part: Any) -> bool:
    """False too for an algorithm of matrix products, which lax's convolutions take for DEFAULT."""
    if part is None:
        return False
    try:
        return lax.Precision(part) == lax.Precision.HIGHEST
    except ValueError:
        return False

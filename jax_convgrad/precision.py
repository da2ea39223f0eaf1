"""What a convolution's ``precision`` means: what it means in `jax.lax`."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax


def allows_tf32(precision: Any) -> bool:
    """Whether float32 operands may be rounded to TF32: unless HIGHEST is asked for, as in XLA."""
    if precision is None:
        precision = jax.config.jax_default_matmul_precision
    parts = precision if isinstance(precision, tuple | list) else (precision,)
    return not any(map(_is_highest, parts))


def _is_highest(part: Any) -> bool:
    """False too for an algorithm of matrix products, which lax's convolutions take for DEFAULT."""
    if part is None:
        return False
    try:
        return lax.Precision(part) == lax.Precision.HIGHEST
    except ValueError:
        return False

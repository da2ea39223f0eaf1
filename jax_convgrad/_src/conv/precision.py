"""What a convolution's ``precision`` means: what it means in `jax.lax`.

None means XLA's default; `jax.default_matmul_precision` was applied when the operator was called.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax


def allows_tf32(precision: Any) -> bool:
    """Whether float32 operands may be rounded to TF32: yes unless HIGHEST is asked for, as in XLA."""
    parts = precision if isinstance(precision, tuple | list) else (precision,)
    return not any(map(_is_highest, parts))


def is_strict(dtype: Any, precision: Any) -> bool:
    """Whether operands are float32 that must not be rounded."""
    return np.dtype(dtype) == np.float32 and not allows_tf32(precision)


def resolve_precision(precision: Any) -> Any:
    """``precision`` for a lax operation that must not apply JAX's default again."""
    return lax.Precision.DEFAULT if precision is None else precision


def gemm_precision(precision: Any) -> Any:
    """The same for a matrix product that takes a convolution's place."""
    if isinstance(precision, tuple | list):
        return tuple(map(_known, precision))
    return _known(precision)


def _is_highest(part: Any) -> bool:
    return _known(part) == lax.Precision.HIGHEST


def _known(part: Any) -> lax.Precision:
    """DEFAULT for an algorithm too, as in lax's convolutions; a matrix product would obey the algorithm."""
    if part is None:
        return lax.Precision.DEFAULT
    try:
        return lax.Precision(part)
    except ValueError:
        return lax.Precision.DEFAULT

"""The bias of a layer: one element per output channel, and its gradient.

The gradient is summed in float32 at least: in bfloat16 a running sum of ones stops at 256.
"""

from __future__ import annotations

from jax import Array, lax
from jax.typing import DTypeLike

from jax_convgrad._src import compat
from jax_convgrad._src.dtypes import is_ours, sum_dtype


def add_bias(y: Array, bias: Array, axis: int) -> Array:
    """``y`` plus one element of ``bias`` for each position along ``axis``, in y's dtype.

    The broadcast is in the dtype of sums, so that its transpose, the gradient's sum, is computed in that
    dtype. The addition stays in y's dtype: XLA drops a conversion and its inverse, and fuses the addition
    into a convolution as it would without them.
    """
    wide = sum_dtype(y.dtype) if is_ours(y.dtype) else y.dtype
    spread = compat.broadcast_along(compat.cast(bias, wide), y, axis)
    return y + compat.cast(spread, y.dtype)


def bias_gradient(dy: Array, axis: int, dtype: DTypeLike | None = None) -> Array:
    """The sum over all axes but ``axis``, in ``dtype``; dy's own by default."""
    axes = tuple(other for other in range(dy.ndim) if other != axis)
    total = lax.reduce_sum(compat.cast(dy, sum_dtype(dy.dtype)), axes)
    return compat.cast(total, dy.dtype if dtype is None else dtype)

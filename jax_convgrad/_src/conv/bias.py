"""The bias of a layer: one element per output channel, and its gradient.

The gradient is summed in float32 at least: in bfloat16 a running sum of ones stops at 256.
"""

from __future__ import annotations

from jax import Array, lax

from jax_convgrad._src import compat
from jax_convgrad._src.dtypes import sum_dtype


def add_bias(y: Array, bias: Array, axis: int) -> Array:
    """``y`` plus one element of ``bias`` for each position along ``axis``, in y's dtype.

    The spreading is wide because its transpose, the gradient's sum, is as wide. The sum here is not: XLA
    takes the two conversions for none, and adds behind a convolution as it would without them.
    """
    spread = compat.broadcast_along(compat.cast(bias, sum_dtype(y.dtype)), y, axis)
    return y + compat.cast(spread, y.dtype)


def bias_gradient(dy: Array, axis: int) -> Array:
    """The sum over all axes but ``axis``, in dy's dtype."""
    axes = tuple(other for other in range(dy.ndim) if other != axis)
    return compat.cast(lax.reduce_sum(compat.cast(dy, sum_dtype(dy.dtype)), axes), dy.dtype)

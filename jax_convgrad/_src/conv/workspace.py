"""How much memory a convolution's call on CUDA brings along for its engine."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp

from jax_convgrad._src import compat
from jax_convgrad._src.conv.geometry import ConvConfig, Role
from jax_convgrad._src.conv.layouts import WeightsOrder
from jax_convgrad._src.shapes import Shape

ALIGNMENT = 256
_MEBIBYTE = 2**20
_MIN_BYTES = 32 * _MEBIBYTE


def copy_size(shape: Shape, dtype: Any) -> int:
    """Bytes of the workspace that a handler takes for an array of known sizes in another order."""
    size: int = math.prod(shape) * jnp.dtype(dtype).itemsize
    return size + -size % ALIGNMENT


def workspace_size(
    config: ConvConfig,
    arrays: dict[Role, tuple[Shape, Any]],
    fast: bool,
    limit: int | None,
    order: WeightsOrder = "OXI",
) -> Any:
    """Bytes of the workspace that a call on CUDA brings along, as a second result.

    A captured program may not allocate, and lowering may not ask the device what an engine needs, so
    the size comes from a rule, and engines that need more are passed over. XLA lends the memory only
    for the length of the call. `set_workspace_limit` lowers it.

    The rule is what cuDNN 9.19 asked for on an H100, in 86 operators of published layers:
    * Dense problems whose channels are multiples of 8, in 16 bits or with TF32 (``fast`` says that
      the precision does not keep cuDNN from its matrix units): the best engine needed
      next to nothing in 45 of 60, up to 8 MiB in 14, and 16 MiB in one (the partial sums of dcgan4's
      weight gradient, bfloat16: 70 us with 16 MiB, 78 with 4, 83 with none).
    * The others take copies of the arrays in another order (float64: 52 of 57 MiB, 907 us against
      23998 without), with the channels of dense 16-bit arrays filled up to a multiple of 8 (fcn8_up, 21
      channels: forward 276 us with 86 MiB, 188334 without; its gradients found every fast engine to
      need the copies of all three arrays, 98 MiB, and ran at 1778 us with 87).

    For weights in XIO there is room for one more copy of them.
    """
    numbers = config.dimension_numbers
    channels = {
        "x": numbers.lhs_spec[1:2],
        "w": numbers.rhs_spec[:2],
        "y": numbers.out_spec[1:2],
    }
    size: Any = _MEBIBYTE
    limit_if_fast: Any = _MIN_BYTES
    for role, (shape, dtype) in arrays.items():
        itemsize = jnp.dtype(dtype).itemsize
        for axis in channels[role]:
            if shape[axis] % 8 != 0:
                fast = False
                if config.groups == 1 and itemsize == 2:
                    shape = (*shape[:axis], shape[axis] + -shape[axis] % 8, *shape[axis + 1 :])
        if itemsize == 8:
            fast = False
        if role == "w":  # a weight gradient's partial sums are kept in the accumulator's type
            limit_if_fast += 2 * math.prod(shape) * max(itemsize, 4)
            size += 2 * math.prod(shape) * max(itemsize, 4)
        else:
            size += math.prod(shape) * itemsize
    if order == "XIO":
        copy = copy_size(*arrays["w"])
        limit_if_fast += copy
        size += copy
    # Sizes may be symbolic: an exported program knows them when it runs.
    if fast and config.groups == 1:
        size = compat.min_dim(size, limit_if_fast)
    if limit is not None:
        size = compat.min_dim(size, limit)
    return size + ALIGNMENT

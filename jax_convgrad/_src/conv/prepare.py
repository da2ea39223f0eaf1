"""What is done to the operands of a handler's call beforehand; `dispatch.rules_preparation` says when."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jax_convgrad._src.conv.arrays import pad_spatial
from jax_convgrad._src.conv.geometry import ConvConfig
from jax_convgrad._src.dispatch.problem import ConvProblem
from jax_convgrad._src.shapes import Pairs


class Call(NamedTuple):
    """A handler's call. Its padding is not negative.

    Attributes:
      config: of the convolution x -> y, as the operands have it.
      result_dtype: of what the handler writes.
      first: the operator's first operand, channels and all.
      second: its second operand.
    """

    config: ConvConfig
    result_dtype: Any
    first: Array
    second: Array


def prepare(preparation: str, problem: ConvProblem, call: Call) -> Call:
    """The call after a preparation: "none" and "xio_weights" leave the operands as they are."""
    if preparation == "float32":
        return _in_float32(call)
    if preparation == "zero_channel":
        return _with_zero_channel(problem, call)
    if preparation == "even_padding":
        return _with_even_padding(call)
    return call


def _in_float32(call: Call) -> Call:
    """Both operands and the result in float32."""
    first, second = (array.astype(jnp.float32) for array in (call.first, call.second))
    return Call(call.config, np.dtype(np.float32), first, second)


def _with_zero_channel(problem: ConvProblem, call: Call) -> Call:
    """One channel of zeros behind those that are summed over, in each group."""
    numbers, groups = call.config.dimension_numbers, call.config.groups
    if problem.operator == "conv_fprop":
        first = _append_channel(call.first, numbers.lhs_spec[1], groups)
        return call._replace(
            first=first, second=_append_channel(call.second, numbers.rhs_spec[1], 1)
        )
    assert problem.operator == "conv_dgrad", "a weight gradient sums over no channels"
    first = _append_channel(call.first, numbers.out_spec[1], groups)
    return call._replace(
        first=first, second=_append_channel(call.second, numbers.rhs_spec[0], groups)
    )


def _with_even_padding(call: Call) -> Call:
    """x padded by what one side of an axis has more than the other, and without it in the config."""
    excess, config = _split_uneven(call.config)
    x = pad_spatial(call.first, excess, config.dimension_numbers.lhs_spec)
    return call._replace(config=config, first=x)


def _append_channel(array: Array, axis: int, groups: int) -> Array:
    """Appends one channel of zeros to each group."""
    before, after = array.shape[:axis], array.shape[axis + 1 :]
    array = array.reshape(*before, groups, array.shape[axis] // groups, *after)
    amounts = [(0, 0, 0)] * array.ndim
    amounts[axis + 1] = (0, 1, 0)
    array = lax.pad(array, np.zeros((), array.dtype), amounts)
    return array.reshape(*before, groups * array.shape[axis + 1], *after)


def _split_uneven(config: ConvConfig) -> tuple[Pairs, ConvConfig]:
    """(The excess of each side over the other, the config without it.)"""
    even = tuple((min(pair), min(pair)) for pair in config.padding)
    excess = tuple(
        (low - e, high - e) for (low, high), (e, _) in zip(config.padding, even, strict=True)
    )
    return excess, config.replace(padding=even)

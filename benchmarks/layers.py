"""The layer of a benchmark case and its two gradients, with jax_convgrad or plain lax, channels last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jax_convgrad
from jax_convgrad.bench.cases import DTYPES, Case, dimension_numbers


def arrays_of(case: Case, seed: int) -> tuple[np.ndarray, ...]:
    """x, w, dy in the case's dtype, channels last."""
    rng = np.random.default_rng(seed)
    shapes = (case.x_shape, case.w_shape, case.y_shape)
    return tuple(rng.standard_normal(s).astype(jax.numpy.dtype(DTYPES[case.dtype])) for s in shapes)


def passes(case: Case, module: Any = jax_convgrad) -> Callable[..., tuple[Any, Any, Any]]:
    """(x, w, dy) -> (y, dx, dw), computed by `module`, which is jax_convgrad or jax.lax."""
    numbers = dimension_numbers(case.ndim, "NHWC")

    def layer(x: Any, w: Any) -> Any:
        if case.transposed and module is jax_convgrad:
            return jax_convgrad.conv_transpose(
                x,
                w,
                case.stride,
                _dilated_padding(case),
                rhs_dilation=case.dilation,
                dimension_numbers=numbers,
                feature_group_count=case.groups,
            )
        plain = [(p, p) for p in case.padding]
        return module.conv_general_dilated(
            x,
            w,
            (1,) * case.ndim if case.transposed else case.stride,
            _dilated_padding(case) if case.transposed else plain,
            lhs_dilation=case.stride if case.transposed else None,
            rhs_dilation=case.dilation,
            dimension_numbers=numbers,
            feature_group_count=case.groups,
        )

    def run(x: Any, w: Any, dy: Any) -> tuple[Any, Any, Any]:
        y, pullback = jax.vjp(layer, x, w)
        return y, *pullback(dy)

    return run


def _dilated_padding(case: Case) -> list[tuple[int, int]]:
    """The padding of the input with zeros inserted for the strides."""
    axes = zip(case.kernel, case.padding, case.output_padding, case.dilation, strict=True)
    return [(d * (k - 1) - p, d * (k - 1) - p + op) for k, p, op, d in axes]

"""The floating-point dtypes that the package computes in, and what their sums are taken in."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_convgrad._src import hints

FLOAT_DTYPES = ("float16", "bfloat16", "float32", "float64")


def check_float_dtypes(function: str, **dtypes: Any) -> np.dtype:
    """The one dtype that all arrays share; TypeError if they differ or if it is not supported."""
    for dtype in dtypes.values():
        if not is_ours(dtype):
            raise TypeError(
                f"{function}: dtypes must be one of {', '.join(FLOAT_DTYPES)}; {_listed(dtypes)}"
            )
    return check_same_dtype(function, **dtypes)


def check_same_dtype(function: str, **dtypes: Any) -> np.dtype:
    """The one dtype that all arrays share, whichever it is; TypeError if they differ."""
    first, *others = map(np.dtype, dtypes.values())
    if any(other != first for other in others):
        hint = hints.cast(dtypes) if all(map(is_ours, dtypes.values())) else ""
        raise TypeError(f"{function}: arrays must have the same dtype; {_listed(dtypes)}{hint}")
    return first


def is_ours(dtype: Any) -> bool:
    """Whether the package itself computes in ``dtype``. Other arrays are passed to JAX's own functions."""
    return np.dtype(dtype).name in FLOAT_DTYPES


def _listed(dtypes: dict[str, Any]) -> str:
    return ", ".join(f"{name} is {np.dtype(dtype)}" for name, dtype in dtypes.items())


def sum_dtype(dtype: Any) -> np.dtype:
    """What sums of a floating dtype are taken in: float64 for float64, float32 for all others."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def wider_dtype(first: np.dtype, second: np.dtype) -> np.dtype:
    """The narrowest floating dtype that holds both: float32 for float16 and bfloat16."""
    if first == second or first.itemsize > second.itemsize:
        return first
    return second if second.itemsize > first.itemsize else sum_dtype(first)


def result_dtype(function: str, operands: np.dtype, preferred_element_type: Any) -> np.dtype:
    """``preferred_element_type`` as a dtype, the operands' own when None; never a narrower one."""
    if preferred_element_type is None:
        return operands
    preferred: np.dtype = np.dtype(preferred_element_type)
    if preferred != operands and preferred != jax.dtypes.canonicalize_dtype(preferred):
        # 64 bits that are not enabled: JAX takes 32, and warns unless it was Python's float.
        wanted = preferred_element_type
        preferred = jax.eval_shape(lambda: jnp.zeros((), None if wanted is float else wanted)).dtype
    if preferred.name not in FLOAT_DTYPES:
        raise TypeError(
            f"{function}: preferred_element_type must be one of {', '.join(FLOAT_DTYPES)}, got {preferred}"
        )
    if preferred.itemsize < operands.itemsize:
        raise TypeError(
            f"{function}: preferred_element_type={preferred} is narrower than the arrays' {operands}"
        )
    return preferred

"""Arrays and primitives: what is documented of neither."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax._src import checkify, core
from jax._src.lax.lax import canonicalize_precision
from jax.experimental import jet
from jax.extend.core import Literal
from jax.interpreters import partial_eval, xla
from jax.typing import ArrayLike


def as_array(value: ArrayLike) -> Array:
    """``value`` as an array; an array as it is.

    `jnp.asarray` of one that is being differentiated outside of jit runs a conversion, which copies it.
    """
    return value if isinstance(value, Array) else jnp.asarray(value)


def at_least_zero(size: Any) -> Any:
    """``size``, or 0 where it is less; of a symbolic size, what it is when the program is called."""
    return core.max_dim(size, 0)


def cast(array: Array, dtype: Any) -> Array:
    """``array.astype(dtype)``, and nothing where that is its dtype.

    `jax.Array.astype` makes float32 of a float64 array that has outlived its `jax.enable_x64`.
    """
    return array if array.dtype == dtype else array.astype(dtype)


def canonical_precision(precision: Any) -> Any:
    """``precision`` as lax's operations keep it: what JAX's default is now, and hashable.

    Raises:
      ValueError: it is no precision of lax's; the text is lax's.
    """
    found = canonicalize_precision(precision)
    return tuple(found) if isinstance(found, list) else found


def apply_primitive(primitive: Any, *operands: Any, **params: Any) -> Any:
    """Runs one primitive outside any trace, compiled and cached by its parameters."""
    return xla.apply_primitive(primitive, *operands, **params)


def checkpoint_like(primitive: Any, model: Any, model_params: Any) -> None:
    """Policies of `jax.checkpoint` decide about ``primitive`` as they do about ``model``.

    "dots_saveable" and its kin save the results of JAX's own products, which they know one by one. A
    policy that saves ``primitive`` by itself is asked first; ``model_params`` makes the model's
    parameters of the primitive's. One that would move its result to another memory saves it where it is.
    """

    def rule(policy: Any, unknown: Any, available: Any, equation: Any) -> Any:
        needed = [
            atom
            for atom, there in zip(equation.invars, available, strict=True)
            if not there and not isinstance(atom, Literal)
        ]
        if any(unknown):
            return None, equation, [True], [True], needed
        avals = [atom.aval for atom in equation.invars]
        params = equation.params
        for asked, asked_params in ((primitive, params), (model, model_params(params))):
            decision = policy(asked, *avals, **asked_params)
            if decision is not False and type(decision).__name__ != "RecomputeType":
                return equation, None, [False], [False], []
        return equation, equation, [False], [True], needed

    partial_eval.partial_eval_jaxpr_custom_rules[primitive] = rule


def differentiate_like(primitive: Any, model: Any) -> None:
    """`jax.experimental.jet` takes ``primitive`` for as linear as ``model``; `checkify` looks for NaNs in it.

    ``model`` is `lax.conv_general_dilated_p` for a bilinear primitive, `lax.neg_p` for a linear one.
    """
    jet.jet_rules[primitive] = functools.partial(jet.jet_rules[model].func, primitive)
    checkify.error_checks[primitive] = functools.partial(checkify.nan_error_check, primitive)


def platform() -> str:
    """The platform that JAX lowers for by default: "cpu", "cuda", "rocm", "tpu"."""
    backend = jax.default_backend()
    if backend != "gpu":
        return backend
    version = str(getattr(jax.devices()[0].client, "platform_version", ""))
    return "rocm" if "rocm" in version.lower() else "cuda"

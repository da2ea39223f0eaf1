"""Arrays and primitives: what is documented of neither."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import Literal
from jax.interpreters import partial_eval, xla
from jax.typing import ArrayLike


def as_array(value: ArrayLike) -> Array:
    """``value`` as an array; an array as it is.

    `jnp.asarray` of one that is being differentiated outside of jit runs a conversion, which copies it.
    """
    return value if isinstance(value, Array) else jnp.asarray(value)


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


def platform() -> str:
    """The platform that JAX lowers for by default: "cpu", "cuda", "rocm", "tpu"."""
    backend = jax.default_backend()
    if backend != "gpu":
        return backend
    version = str(getattr(jax.devices()[0].client, "platform_version", ""))
    return "rocm" if "rocm" in version.lower() else "cuda"

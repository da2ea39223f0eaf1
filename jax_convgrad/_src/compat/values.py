"""Arrays and primitives: what is documented of neither."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import Literal
from jax.typing import ArrayLike

from jax_convgrad._src.compat.features import CHECKIFY, CHECKPOINT_POLICIES, JET, SYMBOLIC_SIZES


def as_array(value: ArrayLike) -> Array:
    """``value`` as an array; an array as it is.

    `jnp.asarray` of one that is being differentiated outside of jit runs a conversion, which copies it.
    """
    return value if isinstance(value, Array) else jnp.asarray(value)


def at_least_zero(size: Any) -> Any:
    """``size``, or 0 where it is less; of a symbolic size, what it is when the program is called."""
    if isinstance(size, int | np.integer):
        return max(size, 0)
    names = SYMBOLIC_SIZES.resolve()
    return size if names is None else names.max_dim(size, 0)


def min_dim(size: Any, limit: Any) -> Any:
    """The smaller of two sizes, each a number or symbolic; of the latter, what it is in a call.

    Where JAX cannot say that of symbolic sizes it is ``size``.
    """
    if all(isinstance(n, int | np.integer) for n in (size, limit)):
        return min(size, limit)
    names = SYMBOLIC_SIZES.resolve()
    return size if names is None else names.min_dim(size, limit)


def cast(array: Array, dtype: Any) -> Array:
    """``array.astype(dtype)``, and nothing where that is its dtype.

    `jax.Array.astype` makes float32 of a float64 array that has outlived its `jax.enable_x64`.
    """
    return array if array.dtype == dtype else array.astype(dtype)


def tracing_state() -> tuple[Any, bool]:
    """What this thread traces by: the default precision, and whether there is 64-bit arithmetic."""
    config: Any = jax.config
    return config.jax_default_matmul_precision, config.jax_enable_x64


def canonical_precision(precision: Any) -> Any:
    """``precision`` as lax's operations keep it: what JAX's default is now, and hashable.

    Raises:
      ValueError: it is no precision of lax's; the text is lax's.
    """
    if isinstance(precision, list):
        precision = tuple(precision)
    default, _ = tracing_state()
    if precision is None and default is None:
        return None
    try:
        return _lax_precision(precision, default)
    except TypeError:  # it cannot be hashed
        return _lax_precision.__wrapped__(precision, default)


@functools.lru_cache(maxsize=256)
def _lax_precision(precision: Any, _: Any) -> Any:
    """What a convolution of lax's keeps of it, with the default that it was asked with."""
    one = jax.ShapeDtypeStruct((1, 1), np.float32)
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        jaxpr = jax.make_jaxpr(lambda x: lax.conv(x, x, (), "VALID", precision=precision))(one)
    (found,) = (e.params["precision"] for e in jaxpr.eqns if "precision" in e.params)
    return tuple(found) if isinstance(found, list) else found


def apply_primitive(primitive: Any, *operands: Any, **params: Any) -> Any:
    """Runs one primitive outside any trace, compiled and cached by its parameters."""
    if _apply_primitive is not None:
        return _apply_primitive(primitive, *operands, **params)
    # Without jit it would come back here.
    with (
        jax.disable_jit(False)
        if getattr(jax.config, "jax_disable_jit", True)
        else contextlib.nullcontext()
    ):
        return _jitted_primitive(primitive, tuple(sorted(params.items())))(*operands)


_apply_primitive: Any = None
with contextlib.suppress(ImportError):
    from jax.interpreters.xla import apply_primitive as _apply_primitive


@functools.lru_cache(maxsize=4096)
def _jitted_primitive(primitive: Any, params: tuple[tuple[str, Any], ...]) -> Any:
    def run(*operands: Any) -> Any:
        return primitive.bind(*operands, **dict(params))

    run.__name__ = primitive.name
    return jax.jit(run)


def checkpoint_like(primitive: Any, model: Any, model_params: Any) -> None:
    """Policies of `jax.checkpoint` decide about ``primitive`` as they do about ``model``.

    "dots_saveable" and its kin save the results of JAX's own products, which they know one by one. A
    policy that saves ``primitive`` by itself is asked first; ``model_params`` makes the model's
    parameters of the primitive's. One that would move its result to another memory saves it where it is.
    """
    names = CHECKPOINT_POLICIES.resolve()
    if names is None:
        return
    # What a policy answers that moves results to another memory, and not this one.
    move = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=[],
        offload_src="device",
        offload_dst="pinned_host",
    )
    refusals = False, move(primitive)

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
            if not any(decision is refusal for refusal in refusals):
                return equation, None, [False], [False], []
        return equation, equation, [False], [True], needed

    names.rules[primitive] = rule


def differentiate_like(primitive: Any, model: Any) -> None:
    """`jax.experimental.jet` takes ``primitive`` for as linear as ``model``; `checkify` looks for NaNs in it.

    ``model`` is `lax.conv_general_dilated_p` for a bilinear primitive, `lax.neg_p` for a linear one.
    """
    names = JET.resolve()
    if names is not None:
        rule = names.rules.get(model)
        general = JET.read(rule, "func")
        if general is not None:
            names.rules[primitive] = functools.partial(general, primitive)
    names = CHECKIFY.resolve()
    if names is not None:
        names.error_checks[primitive] = functools.partial(names.nan_error_check, primitive)


def platform() -> str:
    """The platform that JAX lowers for by default: "cpu", "cuda", "rocm", "tpu"."""
    backend = jax.default_backend()
    if backend != "gpu":
        return backend
    version = str(getattr(jax.devices()[0].client, "platform_version", ""))
    return "rocm" if "rocm" in version.lower() else "cuda"

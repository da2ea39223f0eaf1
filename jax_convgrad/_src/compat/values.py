"""Arrays and primitives: behavior that JAX does not document."""

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

from jax_convgrad._src.compat.features import (
    CHECKIFY,
    CHECKPOINT_POLICIES,
    JET,
    SYMBOLIC_SIZES,
    UNUSED_RESULTS,
)


def as_array(value: ArrayLike) -> Array:
    """``value`` as an array; an array is returned as it is.

    `jnp.asarray` converts, and so copies, an array that is being differentiated outside of jit.
    """
    return value if isinstance(value, Array) else jnp.asarray(value)


def at_least_zero(size: Any) -> Any:
    """The larger of ``size`` and 0; for a symbolic size, decided when the program is called."""
    if isinstance(size, int | np.integer):
        return max(size, 0)
    names = SYMBOLIC_SIZES.resolve()
    return size if names is None else names.max_dim(size, 0)


def min_dim(size: Any, limit: Any) -> Any:
    """The smaller of two sizes, each a number or symbolic; symbolic sizes are compared in the call.

    Where JAX cannot compare symbolic sizes the result is ``size``.
    """
    if all(isinstance(n, int | np.integer) for n in (size, limit)):
        return min(size, limit)
    names = SYMBOLIC_SIZES.resolve()
    return size if names is None else names.min_dim(size, limit)


def cast(array: Array, dtype: Any) -> Array:
    """``array.astype(dtype)``, or the array itself if it has that dtype.

    `jax.Array.astype` converts a float64 array that has outlived its `jax.enable_x64` to float32.
    """
    return array if array.dtype == dtype else array.astype(dtype)


def tracing_state() -> tuple[Any, bool]:
    """This thread's tracing context: the default precision, and whether 64-bit types are enabled."""
    config: Any = jax.config
    return config.jax_default_matmul_precision, config.jax_enable_x64


def canonical_precision(precision: Any) -> Any:
    """``precision`` in the hashable form that lax's operations keep, with JAX's current default applied.

    Raises:
      ValueError: lax knows no such precision; the message is lax's own.
    """
    if isinstance(precision, list):
        precision = tuple(precision)
    default, _ = tracing_state()
    if precision is None and default is None:
        return None
    try:
        return _lax_precision(precision, default)
    except TypeError:  # not hashable
        return _lax_precision.__wrapped__(precision, default)


@functools.lru_cache(maxsize=256)
def _lax_precision(precision: Any, _: Any) -> Any:
    """The form that a lax convolution keeps, with the default that was current when it was called."""
    one = jax.ShapeDtypeStruct((1, 1), np.float32)
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        jaxpr = jax.make_jaxpr(lambda x: lax.conv(x, x, (), "VALID", precision=precision))(one)
    (found,) = (e.params["precision"] for e in jaxpr.eqns if "precision" in e.params)
    return tuple(found) if isinstance(found, list) else found


def apply_primitive(primitive: Any, *operands: Any, **params: Any) -> Any:
    """Runs one primitive outside any trace, compiled and cached by its parameters."""
    if _apply_primitive is not None:
        return _apply_primitive(primitive, *operands, **params)
    # Without jit it would come back to this function.
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

    "dots_saveable" and its kin save the results of JAX's own products, which they list one by one. If a
    policy saves ``primitive`` by itself, that answer comes first; otherwise ``model_params`` turns the
    primitive's parameters into the model's. If the policy would move the result to another memory, the
    result is saved where it is.
    """
    names = CHECKPOINT_POLICIES.resolve()
    if names is None:
        return
    # The answer of a policy that moves results to another memory; this function does not pass it on.
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


def drop_unused_results(primitive: Any, narrow: Any) -> None:
    """Has JAX ask ``narrow`` where some results of an equation of ``primitive`` are used and others are not.

    ``narrow`` takes the parameters and, for each result, whether it is used; some are. It returns another
    primitive, its parameters, and the positions of the operands that it takes. Its results are those used.
    """
    names = UNUSED_RESULTS.resolve()
    if names is None:
        return

    # Between the two, JAX 0.12 has which inputs are live, which only references depend on.
    def rule(used: list[bool], *given: Any) -> tuple[list[bool], Any]:
        equation = given[-1]
        if not any(used):
            return [False] * len(equation.invars), None
        if all(used):
            return [True] * len(equation.invars), equation
        found, params, positions = narrow(equation.params, used)
        narrowed = equation.replace(
            primitive=found,
            params=params,
            invars=[equation.invars[i] for i in positions],
            outvars=[v for v, is_used in zip(equation.outvars, used, strict=True) if is_used],
        )
        return [i in positions for i in range(len(equation.invars))], narrowed

    names.rules[primitive] = rule


def without_unused_results(equation: Any, used: list[bool]) -> Any:
    """The equation that JAX makes of one of which some results are used: itself, if it has no rule."""
    names = UNUSED_RESULTS.resolve()
    rule = None if names is None else names.rules.get(equation.primitive)
    return equation if rule is None else rule(used, equation)[1]


def differentiate_like(primitive: Any, model: Any) -> None:
    """Makes `jet` treat ``primitive`` as ``model``, and `checkify` check it for NaNs.

    ``model`` is `lax.conv_general_dilated_p` for a bilinear primitive, `lax.neg_p` for a linear one.
    """
    names = JET.resolve()
    if names is not None:
        rule = names.rules.get(model)
        general = JET.read(rule, "func")
        if general is not None:
            names.rules[primitive] = functools.partial(general, primitive)
    _check_for_nans(primitive)


def differentiate_through(primitive: Any, parts: Any) -> None:
    """Makes `jet` differentiate ``primitive`` as its parts, and `checkify` check it for NaNs.

    ``parts`` takes the primitive's only parameter, ``problem``, and its operands.
    """
    names = JET.resolve()
    if names is not None:

        def rule(primals: Any, series: Any, *, problem: Any) -> Any:
            return names.jet(functools.partial(parts, problem), primals, series)

        names.rules[primitive] = rule
    _check_for_nans(primitive)


def _check_for_nans(primitive: Any) -> None:
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

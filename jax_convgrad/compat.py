"""The only place that touches JAX names which are not documented, or which moved between versions.

Supported: jax 0.10 and newer. Each function says what it stands on, so that a JAX upgrade which
breaks one of them is repaired here and nowhere else.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import Literal
from jax.interpreters import mlir, partial_eval, xla
from jax.sharding import NamedSharding, PartitionSpec
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


def varying_axes(aval: Any) -> frozenset[Any]:
    """Mesh axes over which an abstract value varies inside `jax.shard_map`.

    Empty outside shard_map and under check_vma=False. Read from the abstract value's `mat`.
    """
    return frozenset(getattr(getattr(aval, "mat", None), "varying", ()))


def match_varying(*arrays: Array) -> tuple[Array, ...]:
    """Brings arrays to the union of their varying axes.

    A primitive whose operands differ in them would be transposed without the sum over devices that
    belongs to the replicated operand: a silently wrong gradient under data parallelism.
    """
    axes = [varying_axes(jax.typeof(array)) for array in arrays]
    missing = [frozenset().union(*axes) - own for own in axes]
    return tuple(
        lax.pcast(array, tuple(sorted(names, key=str)), to="varying") if names else array
        for array, names in zip(arrays, missing, strict=True)
    )


def partitions(aval: Any) -> tuple[Any, ...] | None:
    """Per axis, the mesh axes it is split over in an Explicit mesh; None where there is no mesh."""
    sharding = getattr(aval, "sharding", None)
    if not isinstance(sharding, NamedSharding) or sharding.mesh.empty:
        return None
    spec = tuple(sharding.spec)
    return spec + (None,) * (len(aval.shape) - len(spec))


def with_partitions(aval: Any, entries: tuple[Any, ...]) -> NamedSharding:
    """The sharding of ``aval``'s mesh with other per-axis entries."""
    return NamedSharding(aval.sharding.mesh, PartitionSpec(*entries))


def reshard_like(array: Array, aval: Any) -> Array:
    """``array`` split over an Explicit mesh the way ``aval`` is, as a cotangent must be."""
    wanted = partitions(aval)
    if wanted is None or wanted == partitions(jax.typeof(array)):
        return array
    return jax.reshard(array, with_partitions(aval, wanted))


class _Lowering(threading.local):
    """What a thread is lowering at the moment."""

    implementation = False
    partitioned = False


_lowering = _Lowering()


def lower_fun(implementation: Any) -> Any:
    """A lowering rule that traces ``implementation``, a function of one array per operand.

    In an Explicit mesh the operands' shardings are taken off for that trace: abstract evaluation has
    settled them already, and plain lax operations would ask for an `out_sharding` of their own.
    """
    rule = mlir.lower_fun(implementation, multiple_results=False)

    def lower(ctx: Any, *operands: Any, **params: Any) -> Any:
        if any(entry is not None for aval in ctx.avals_in for entry in partitions(aval) or ()):
            ctx = ctx.replace(avals_in=[aval.update(sharding=None) for aval in ctx.avals_in])
        before = _lowering.implementation, _lowering.partitioned
        _lowering.implementation, _lowering.partitioned = True, is_partitioned(ctx)
        try:
            return rule(ctx, *operands, **params)
        finally:
            _lowering.implementation, _lowering.partitioned = before

    return lower


def in_implementation() -> bool:
    """Whether what is being lowered was emitted by one of this package's own lowering rules."""
    return _lowering.implementation


def in_partitioned_program() -> bool:
    """Inside one of this package's own lowering rules: whether `is_partitioned` holds for it."""
    return _lowering.partitioned


@contextlib.contextmanager
def jax_rules() -> Iterator[None]:
    """What this thread lowers inside keeps JAX's own rules, as if this package had emitted it."""
    before, _lowering.implementation = _lowering.implementation, True
    try:
        yield
    finally:
        _lowering.implementation = before


def is_partitioned(ctx: Any) -> bool:
    """Whether XLA divides the program that a rule lowers into among several devices.

    It does so for `jit` over more than one device, and not inside `shard_map`, where every axis of the
    mesh is the user's own. Read from the lowering context's `axis_context`.
    """
    axes = ctx.module_context.axis_context
    mesh = getattr(axes, "mesh", None)
    if mesh is not None:
        return mesh.size > 1 and set(axes.manual_axes) != set(mesh.axis_names)
    return getattr(axes, "num_devices", 1) > 1


def is_export(ctx: Any) -> bool:
    """Whether a rule lowers for `jax.export`, which other machines may read."""
    return bool(ctx.module_context.lowering_parameters.for_export)


def platform() -> str:
    """The platform that JAX lowers for by default: "cpu", "cuda", "rocm", "tpu"."""
    backend = jax.default_backend()
    if backend != "gpu":
        return backend
    version = str(getattr(jax.devices()[0].client, "platform_version", ""))
    return "rocm" if "rocm" in version.lower() else "cuda"


def lowering_rule(primitive: Any, platform: str) -> Any:
    """The rule registered for ``primitive`` on ``platform``, or for all platforms."""
    entry = mlir._platform_specific_lowerings[platform].get(primitive) or mlir._lowerings[primitive]
    return entry.rule


# Traced programs, as `explain` reads them.


@contextlib.contextmanager
def separate_traces() -> Iterator[None]:
    """What is traced inside is traced anew, and what is traced outside afterwards as well.

    Metadata for XLA belongs to the key by which JAX remembers traced functions.
    """
    with set_xla_metadata(jax_convgrad="explain"):
        yield


def trace(function: Any, *arguments: Any) -> tuple[Any, list[Any]]:
    """The jaxpr of a function, which may be jitted already, and the shardings that its `jit` names.

    The latter are read from the parameters of `jax.stages.Traced`.
    """
    jitted = function if isinstance(function, jax.stages.Wrapped) else jax.jit(function)
    traced = jitted.trace(*arguments)
    params = getattr(traced, "_params", {})
    return traced.jaxpr.jaxpr, [s for name in _SHARDINGS for s in params.get(name, ())]


_SHARDINGS = ("in_shardings", "out_shardings")


def equation_shardings(equation: Any) -> list[Any]:
    """The shardings that an equation names: a `jit` inside, or a constraint."""
    named = [s for name in _SHARDINGS for s in equation.params.get(name, ())]
    return [*named, equation.params.get("sharding")]


def manual_axes(equation: Any) -> tuple[Any, frozenset[Any]] | None:
    """Mesh and newly manual axes of a `shard_map` equation, None for others."""
    if equation.primitive.name != "shard_map":
        return None
    mesh = equation.params["mesh"]
    return mesh, frozenset(equation.params.get("newly_manual_axes", mesh.axis_names))


def frames(equation: Any) -> list[tuple[str, int, str]]:
    """(file, line, function) of the Python calls that made an equation, innermost first."""
    traceback = equation.source_info.traceback
    return [(f.file_name, f.line_num, f.function_name) for f in getattr(traceback, "frames", ())]


def name_stack(equation: Any) -> list[tuple[str, str]]:
    """("scope" or "transform", name) pairs around an equation in its own jaxpr, outermost first."""
    return [(type(e).__name__.lower(), e.name) for e in equation.source_info.name_stack.stack]


def defined_in(jaxpr: Any) -> str:
    """The file of the function that a jaxpr was traced from; "" where it is not known."""
    info = getattr(jaxpr, "debug_info", None)
    return getattr(info, "func_filename", None) or ""

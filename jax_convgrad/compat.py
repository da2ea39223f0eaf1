"""The only place that touches JAX names which are not documented, or which moved between versions.

Supported: jax 0.10 and newer. Each function says what it stands on, so that a JAX upgrade which
breaks one of them is repaired here and nowhere else.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import types
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax._src import core, custom_partitioning
from jax._src.custom_partitioning_sharding_rule import sdy_sharding_rule_to_mlir
from jax._src.interpreters import mlir as private_mlir
from jax.experimental.custom_partitioning import ArrayMapping, CompoundFactor, SdyShardingRule
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import Literal, Primitive
from jax.interpreters import mlir, partial_eval, xla
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
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


ShardingTypeError = core.ShardingTypeError  # what JAX raises where a sharding in types is ambiguous


def partitions(aval: Any) -> tuple[Any, ...] | None:
    """Per axis, the mesh axes it is split over in an Explicit mesh; None where there is no mesh."""
    sharding = getattr(aval, "sharding", None)
    if not isinstance(sharding, NamedSharding) or sharding.mesh.empty:
        return None
    spec = tuple(sharding.spec)
    return spec + (None,) * (len(aval.shape) - len(spec))


def is_placed(aval: Any) -> bool:
    """Whether `partitions` says that some axis is split."""
    return any(entry is not None for entry in partitions(aval) or ())


def split_of(aval: Any) -> tuple[tuple[Any, ...], ...]:
    """`partitions` with a tuple of mesh axes per axis, all empty where there is no mesh."""
    entries = partitions(aval) or (None,) * len(aval.shape)
    return tuple(
        () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        for entry in entries
    )


def mesh_sizes(aval: Any) -> dict[Any, int]:
    """The axes of the mesh that `partitions` speaks of."""
    return dict(aval.sharding.mesh.shape)


def with_partitions(aval: Any, entries: tuple[Any, ...]) -> NamedSharding:
    """The sharding of ``aval``'s mesh with other per-axis entries."""
    return NamedSharding(aval.sharding.mesh, PartitionSpec(*entries))


def with_split(aval: Any, split: tuple[tuple[Any, ...], ...]) -> NamedSharding:
    """The sharding of ``aval``'s mesh with the split of `split_of`."""
    entries = (None if not names else names[0] if len(names) == 1 else names for names in split)
    return with_partitions(aval, tuple(entries))


def reshard_like(array: Array, aval: Any) -> Array:
    """``array`` split over an Explicit mesh the way ``aval`` is, as a cotangent must be."""
    wanted = partitions(aval)
    if wanted is None or wanted == partitions(jax.typeof(array)):
        return array
    return jax.reshard(array, with_partitions(aval, wanted))


def broadcast_along(values: Array, array: Array, axis: int) -> Array:
    """One value for each position along ``axis`` of ``array``, in its shape.

    In an Explicit mesh split as ``array`` is: a sum would otherwise gather the whole cotangent to reduce it.
    """
    aval = jax.typeof(array)
    if not is_placed(aval):
        return lax.broadcast_in_dim(values, array.shape, (axis,))
    entries = partitions(aval) or ()
    own = with_partitions(aval, (entries[axis],))
    if partitions(jax.typeof(values)) != tuple(own.spec):
        values = jax.reshard(values, own)
    return lax.broadcast_in_dim(values, array.shape, (axis,), out_sharding=aval.sharding)


class _Lowering(threading.local):
    """What a thread is lowering at the moment."""

    implementation = False
    operations_only = False


_lowering = _Lowering()


def lower_fun(implementation: Any, divide: Any = None) -> Any:
    """A lowering rule that traces ``implementation``, a function of one array per operand.

    In an Explicit mesh the operands' shardings are taken off for that trace: abstract evaluation has
    settled them already, and plain lax operations would ask for an `out_sharding` of their own.

    Where XLA `asks_for_parts`, what is traced is instead the part of one device, by the `Division` that
    ``divide`` makes of the operands' abstract values and the parameters.
    """
    rule = mlir.lower_fun(implementation, multiple_results=False)

    def lower(ctx: Any, *operands: Any, **params: Any) -> Any:
        if divide is not None and asks_for_parts(ctx):
            return _divided_call(ctx, operands, divide(*ctx.avals_in, **params))
        if any(map(is_placed, ctx.avals_in)):
            ctx = ctx.replace(avals_in=[aval.update(sharding=None) for aval in ctx.avals_in])
        before = _lowering.implementation, _lowering.operations_only
        _lowering.implementation, _lowering.operations_only = True, divides_operations_only(ctx)
        try:
            return rule(ctx, *operands, **params)
        finally:
            _lowering.implementation, _lowering.operations_only = before

    return lower


def in_implementation() -> bool:
    """Whether what is being lowered was emitted by one of this package's own lowering rules."""
    return _lowering.implementation


def operations_only() -> bool:
    """Inside one of this package's own lowering rules: whether `divides_operations_only` holds for it."""
    return _lowering.operations_only


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


def has_shardy() -> bool:
    """Whether XLA divides programs by Shardy, as it does unless it is told otherwise."""
    return bool(jax.config.jax_use_shardy_partitioner)


def asks_for_parts(ctx: Any) -> bool:
    """Whether XLA, which divides the program, is to ask this package for one device's part of a call.

    Not where some axes of the mesh are the user's own (`shard_map` over the others only): XLA ends the
    process there. Nor with the partitioner before Shardy, nor in an exported program, where nobody would
    answer. There XLA divides plain operations.
    """
    axes = ctx.module_context.axis_context
    if not is_partitioned(ctx) or is_export(ctx) or not has_shardy():
        return False
    return not getattr(axes, "manual_axes", ())


def divides_operations_only(ctx: Any) -> bool:
    """Whether XLA divides the program but would gather a call's operands, see `asks_for_parts`."""
    return is_partitioned(ctx) and not asks_for_parts(ctx)


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


# Calls that XLA divides among devices. JAX's `custom_partitioning` has an entry for each in a table of
# callbacks, whose key is the call's `backend_config`, and there is one partitioner for all. The entries
# here differ from its own in two ways. The key is the problem, not a pointer, so that the persistent
# compilation cache knows the program again, and two problems never share one. The mesh is read from the
# shardings that XLA shows, not from the program, so that the devices need not be known when it is lowered:
# JAX refuses primitives that want to know them in a program of two meshes or of abstract ones.


class _Entry:
    """What JAX's partitioner asks of an entry."""

    propagate_user_sharding = None
    infer_sharding_from_operands = None
    static_args = ()
    mesh = None

    def __init__(self, ctx: Any, division: Any) -> None:
        self.module_context = types.SimpleNamespace(
            platforms=ctx.module_context.platforms, backend=ctx.module_context.backend
        )
        self._division = division
        self._devices = _device_count(ctx)
        self._state = _tracing_state()
        self.in_tree = jax.tree.structure((0,) * len(ctx.avals_in))
        self.out_tree = jax.tree.structure(0)

    def unflatten_arg_shape(self, shape: Any, sharding: Any) -> tuple[jax.ShapeDtypeStruct, Any]:
        return jax.ShapeDtypeStruct(shape.dimensions(), shape.numpy_dtype()), sharding

    def unflatten_arg_shapes(self, shapes: Any, shardings: Any) -> list[Any]:
        return list(map(self.unflatten_arg_shape, shapes, shardings))

    def partition(self, _: Any, operands: Any, result: Any) -> tuple[Any, Any, Any, Any]:
        """(mesh, one device's function, the result's sharding, the operands')."""
        pairs = [(len(array.shape), sharding) for array, sharding in (*operands, result)]
        mesh, splits = _read_shardings(pairs, self._devices)
        function, wanted = self._division.divide(mesh.shape, splits)
        *shardings, last = [NamedSharding(mesh, PartitionSpec(*split)) for split in wanted]
        run = functools.partial(
            _part_p.bind,
            function=function,
            shape=last.shard_shape(result[0].shape),
            dtype=result[0].dtype,
            state=self._state,
        )
        return mesh, lambda *parts: run(*parts), last, tuple(shardings)


# One device's function. It is traced when it is lowered, because only there it is known that nothing is
# left of what surrounds the compilation: XLA asks for parts in a thread of its own, or in the caller's with
# its mesh.
_part_p = Primitive("jax_convgrad_part")
_part_p.def_abstract_eval(
    lambda *parts, function, shape, dtype, state: parts[0].update(
        shape=shape, dtype=dtype, sharding=None, weak_type=False
    )
)


def _lower_part(ctx: Any, *parts: Any, function: Any, state: Any, **_: Any) -> Any:
    precision, x64 = state
    before, _lowering.implementation = _lowering.implementation, True
    try:
        with (
            jax.sharding.use_abstract_mesh(AbstractMesh((), ())),
            jax.default_matmul_precision(precision),
            jax.enable_x64(x64),
        ):
            avals = [aval.update(sharding=None) for aval in ctx.avals_in]
            rule = mlir.lower_fun(function, multiple_results=False)
            return rule(ctx.replace(avals_in=avals), *parts)
    finally:
        _lowering.implementation = before


mlir.register_lowering(_part_p, _lower_part)


def _tracing_state() -> tuple[Any, bool]:
    """What this thread traces by: the default precision, and whether there is 64-bit arithmetic."""
    return jax.config.jax_default_matmul_precision, jax.config.jax_enable_x64


def _device_count(ctx: Any) -> int:
    axes = ctx.module_context.axis_context
    mesh = getattr(axes, "mesh", None)
    return axes.num_devices if mesh is None else mesh.size


def _read_shardings(
    arrays: list[tuple[int, Any]], devices: int
) -> tuple[AbstractMesh, list[tuple[tuple[str, ...], ...]]]:
    """A mesh of axes of prime sizes, and for each of the arrays the axes that its own are split over.

    Arrays are (rank, sharding) pairs as XLA has them. Every mesh is one of smaller axes; where their order
    matters, because they differ, the one that all arrays agree with is taken. With none every array counts
    as whole.
    """
    for sizes in _factorizations(devices):
        splits = [_read_sharding(rank, sharding, sizes) for rank, sharding in arrays]
        if None not in splits:
            break
    else:
        splits = [((),) * rank for rank, _ in arrays]
    names = tuple(f"d{axis}" for axis in range(len(sizes)))
    return AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes)), splits


def _read_sharding(
    rank: int, sharding: Any, sizes: tuple[int, ...]
) -> tuple[tuple[str, ...], ...] | None:
    """The mesh axes of each of the array's own, major to minor; None if ``sizes`` are not its mesh."""
    if sharding is None or not sharding.is_tiled():
        return ((),) * rank
    tiles = sharding.tile_assignment_dimensions()
    places = np.empty((len(tiles), math.prod(sizes)), np.int64)
    # The position among the tiles of each device; the last of them may be copies.
    places[:, sharding.tile_assignment_devices()] = np.indices(tiles).reshape(len(tiles), -1)
    digits = np.indices(sizes).reshape(len(sizes), -1)
    split = []
    for place, tile in zip(places[:rank], tiles, strict=False):
        strides = [place[math.prod(sizes[axis + 1 :])] for axis in range(len(sizes))]
        axes = sorted((a for a in range(len(sizes)) if strides[a] > 0), key=lambda a: -strides[a])
        if math.prod(sizes[a] for a in axes) != tile:
            return None
        if not (sum(digits[a] * strides[a] for a in axes) == place).all():
            return None
        split.append(tuple(f"d{a}" for a in axes))
    return tuple(split)


def _factorizations(number: int) -> Iterator[tuple[int, ...]]:
    """The prime factors of a number, in each order that differs: one for a power of two."""
    primes = [
        p for p in range(2, number + 1) if number % p == 0 and all(p % d for d in range(2, p))
    ]
    if not primes:
        yield ()
    for prime in primes:
        for rest in _factorizations(number // prime):
            yield (prime, *rest)


def _divided_call(ctx: Any, operands: Any, division: Any) -> Any:
    module = ctx.module_context
    key = f"jax_convgrad {division.fingerprint()} {_device_count(ctx)} {module.platforms}"
    key += f" {_tracing_state()}"
    entries = custom_partitioning._sharding_callbacks
    entry = entries.get(key.encode()) or _Entry(ctx, division)
    entries[key.encode()] = entry
    # The table holds it weakly; it must outlive the compilation.
    module.add_keepalive(entry)
    types_in = [private_mlir.aval_to_ir_type(module, aval) for aval in ctx.avals_in]
    types_out = [private_mlir.aval_to_ir_type(module, aval) for aval in ctx.avals_out]
    rule = sdy_sharding_rule_to_mlir(_sharding_rule(division), types_in, types_out)
    # With jax_remove_custom_partitioning_ptr_from_cache_key the cache does not see `backend_config`.
    again = mlir.ir.DictAttr.get({"jax_convgrad": mlir.ir.StringAttr.get(key)})
    return private_mlir.custom_call(
        custom_partitioning._CUSTOM_PARTITIONING_CALL_NAME,
        result_types=types_out,
        operands=operands,
        backend_config=key,
        api_version=2,
        extra_attributes={"sdy.sharding_rule": rule, "mhlo.frontend_attributes": again},
    ).results


def _sharding_rule(division: Any) -> SdyShardingRule:
    """How shardings spread over the call: along factors that arrays share."""
    axes = {factors for array in division.arrays for factors in array}
    alone = {factors[0] for factors in axes if len(factors) == 1}
    inside = {factor for factors in axes for factor in factors} - alone
    *operands, result = (
        ArrayMapping(*(f[0] if len(f) == 1 else CompoundFactor(*f) for f in array))
        for array in division.arrays
    )
    return SdyShardingRule(
        tuple(operands),
        (result,),
        reduction_factors=tuple(f for f in division.summed if f in alone | inside),
        **{factor: division.sizes[factor][0] for factor in sorted(inside)},
    )


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

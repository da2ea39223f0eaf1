"""Calls that XLA divides among devices.

JAX's `custom_partitioning` has an entry for each in a table of callbacks, whose key is the call's
`backend_config`, and there is one partitioner for all. The entries here differ from its own in two
ways. The key is the problem, not a pointer, so that the persistent compilation cache knows the
program again, and two problems never share one. The mesh is read from the shardings that XLA shows,
not from the program, so that the devices need not be known when it is lowered: JAX refuses
primitives that want to know them in a program of two meshes or of abstract ones.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax._src import core, custom_partitioning
from jax._src.custom_partitioning_sharding_rule import sdy_sharding_rule_to_mlir
from jax._src.interpreters import mlir as private_mlir
from jax.experimental.custom_partitioning import ArrayMapping, CompoundFactor, SdyShardingRule
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from jax_convgrad._src.compat.meshes import unplaced
from jax_convgrad._src.compat.state import jax_rules


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
    lambda *parts, function, shape, dtype, state: core.ShapedArray(shape, dtype)
)


def _lower_part(ctx: Any, *parts: Any, function: Any, state: Any, **_: Any) -> Any:
    precision, x64 = state
    with (
        jax_rules(),
        jax.sharding.use_abstract_mesh(AbstractMesh((), ())),
        jax.default_matmul_precision(precision),
        jax.enable_x64(x64),
    ):
        rule = mlir.lower_fun(function, multiple_results=False)
        return rule(ctx.replace(avals_in=[*map(unplaced, ctx.avals_in)]), *parts)


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


def divided_call(ctx: Any, operands: Any, division: Any) -> Any:
    module = ctx.module_context
    key = f"jax_convgrad {division.fingerprint()} {_device_count(ctx)} {module.platforms}"
    key += f" {_tracing_state()}"
    entries = custom_partitioning._sharding_callbacks
    entry = entries.get(key.encode()) or _Entry(ctx, division)
    entries[key.encode()] = entry
    # The table holds it weakly; it must outlive the compilation.
    module.add_keepalive(entry)
    types_in = [operand.type for operand in operands]
    types_out = [
        mlir.ir.RankedTensorType.get(aval.shape, mlir.dtype_to_ir_type(aval.dtype))
        for aval in ctx.avals_out
    ]
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
    # In the order in which the arrays name them, by which Shardy numbers them and wants these sorted.
    named = dict.fromkeys(f for array in division.arrays for factors in array for f in factors)
    return SdyShardingRule(
        tuple(operands),
        (result,),
        reduction_factors=tuple(factor for factor in named if factor in division.summed),
        **{factor: division.sizes[factor][0] for factor in sorted(inside)},
    )

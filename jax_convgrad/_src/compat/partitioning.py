"""JAX's table of the calls that XLA partitions with the help of a callback.

For each such call, JAX's `custom_partitioning` has an entry in a table of callbacks, whose key is the
call's `backend_config`. This file defines an entry, puts it into the table, and writes the call.
sharding/custom_partitioning.py has the answers that the entries give.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jax_convgrad._src.compat.features import CUSTOM_PARTITIONING

# From the operands and the result, each a shape with a dtype and XLA's sharding, to the mesh, one device's
# function of its shards, the result's sharding and the operands'.
Partition = Callable[
    [Sequence[tuple[jax.ShapeDtypeStruct, Any]], tuple[jax.ShapeDtypeStruct, Any]],
    tuple[Any, Callable[..., Any], Any, tuple[Any, ...]],
]


def is_available(ctx: Any) -> bool:
    """Whether JAX has all names that a partitioned call needs."""
    needed = ("platforms", "backend", "add_keepalive")
    return CUSTOM_PARTITIONING.resolve() is not None and all(
        CUSTOM_PARTITIONING.read(ctx, f"module_context.{name}", _MISSING) is not _MISSING
        for name in needed
    )


_MISSING = object()


class _Entry:
    """An entry, with the methods that JAX's partitioner calls."""

    propagate_user_sharding = None
    infer_sharding_from_operands = None
    static_args = ()
    mesh = None

    def __init__(self, ctx: Any, partition: Partition) -> None:
        self.module_context = types.SimpleNamespace(
            platforms=ctx.module_context.platforms, backend=ctx.module_context.backend
        )
        self._partition = partition
        self.in_tree = jax.tree.structure((0,) * len(ctx.avals_in))
        self.out_tree = jax.tree.structure(0)

    def unflatten_arg_shape(self, shape: Any, sharding: Any) -> tuple[jax.ShapeDtypeStruct, Any]:
        return jax.ShapeDtypeStruct(shape.dimensions(), shape.numpy_dtype()), sharding

    def unflatten_arg_shapes(self, shapes: Any, shardings: Any) -> list[Any]:
        return list(map(self.unflatten_arg_shape, shapes, shardings))

    def partition(self, _: Any, operands: Any, result: Any) -> tuple[Any, Any, Any, Any]:
        return self._partition(operands, result)


def partitioned_call(
    ctx: Any, operands: Sequence[Any], key: str, sharding_rule: Any, partition: Partition
) -> Any:
    """A call with one result that XLA partitions as ``partition`` says.

    Args:
      ctx: the lowering context.
      operands: the values it lowers for.
      key: equal for calls that are partitioned alike, and for no others.
      sharding_rule: a `jax.experimental.custom_partitioning.SdyShardingRule`.
      partition: called when the program is compiled.
    """
    names = CUSTOM_PARTITIONING.resolve()
    key = f"{key} {ctx.module_context.platforms}"
    entry = names.callbacks.get(key.encode()) or _Entry(ctx, partition)
    names.callbacks[key.encode()] = entry
    # The table holds the entry weakly, and the entry must outlive the compilation.
    ctx.module_context.add_keepalive(entry)
    types_in = [operand.type for operand in operands]
    types_out = [
        names.ir.RankedTensorType.get(aval.shape, names.dtype_to_ir_type(aval.dtype))
        for aval in ctx.avals_out
    ]
    rule = names.rule_to_mlir(sharding_rule, types_in, types_out)
    # With jax_remove_custom_partitioning_ptr_from_cache_key the cache key ignores `backend_config`.
    again = names.ir.DictAttr.get({"jax_convgrad": names.ir.StringAttr.get(key)})
    return names.custom_call(
        names.call_name,
        result_types=types_out,
        operands=operands,
        backend_config=key,
        api_version=2,
        extra_attributes={"sdy.sharding_rule": rule, "mhlo.frontend_attributes": again},
    ).results


def tiles(sharding: Any) -> tuple[tuple[int, ...], Any] | None:
    """XLA's sharding as a number of tiles per axis and the devices in the order of their tiles.

    There may be one number more, of copies of each tile. None where each device has the whole array.
    """
    if sharding is None or not sharding.is_tiled():
        return None
    return tuple(sharding.tile_assignment_dimensions()), sharding.tile_assignment_devices()

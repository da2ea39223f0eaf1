"""Shardings that are part of types: `shard_map`, and Explicit meshes."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jax_convgrad._src.compat.features import SHARDING_ERRORS, VARYING_AXES


class _ShardingTypeError(TypeError):
    """JAX's error for an ambiguous sharding in types."""

    def __init__(self, *arguments: Any) -> None:
        SHARDING_ERRORS.resolve()  # warns
        super().__init__(*arguments)


_ShardingTypeError.__name__ = _ShardingTypeError.__qualname__ = "ShardingTypeError"
_found = SHARDING_ERRORS.look_up()
ShardingTypeError: type[Exception] = (
    _ShardingTypeError if _found is None else _found.ShardingTypeError
)


def varying_axes(aval: Any) -> frozenset[Any]:
    """Mesh axes over which an abstract value varies inside `jax.shard_map`.

    Empty outside shard_map, under check_vma=False and where JAX does not say.
    """
    return _read_varying(aval) or frozenset()


def _read_varying(aval: Any) -> frozenset[Any] | None:
    """None where it cannot be read but would matter: inside shard_map."""
    found = getattr(getattr(aval, "manual_axis_type", None), "varying", None)
    if found is not None:
        return frozenset(found)
    if AxisType.Manual in jax.sharding.get_abstract_mesh().axis_types:
        VARYING_AXES.warn(f"{type(aval).__name__}.manual_axis_type.varying")
        return None
    return frozenset()


def match_varying(*arrays: Array) -> tuple[Array, ...]:
    """Brings arrays to the union of their varying axes.

    A primitive whose operands differ in these axes would be transposed without the sum over devices that
    the replicated operand needs: a silently wrong gradient under data parallelism.
    """
    axes = []
    for array in arrays:
        found = _read_varying(jax.typeof(array))
        if found is None:
            return _match_by_lax(arrays)
        axes.append(found)
    missing = [frozenset().union(*axes) - own for own in axes]
    return tuple(
        lax.pcast(array, tuple(sorted(names, key=str)), to="varying") if names else array
        for array, names in zip(arrays, missing, strict=True)
    )


def _match_by_lax(arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """The same by a lax operation that has all arrays among its operands. XLA removes it."""
    depends = jnp.zeros((), bool)
    for array in arrays:
        depends = depends | jnp.any(array != array)
    return tuple(lax.select(depends, array, array) for array in arrays)


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


def unplaced(aval: Any) -> Any:
    """The shape and dtype of an abstract value: without a sharding, and so without varying axes."""
    return jax.core.ShapedArray(aval.shape, aval.dtype, weak_type=aval.weak_type)


def split_of(aval: Any) -> tuple[tuple[Any, ...], ...]:
    """`partitions` with a tuple of mesh axes per axis, all empty where there is no mesh."""
    entries = partitions(aval) or (None,) * len(aval.shape)
    return tuple(
        () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        for entry in entries
    )


def mesh_sizes(aval: Any) -> dict[Any, int]:
    """The mesh axes that `partitions` names."""
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
    placed: Array = jax.reshard(array, with_partitions(aval, wanted))
    return placed


def whole_along(array: Array, axis: int) -> Array:
    """``array`` with ``axis`` on every device, in an Explicit mesh that splits it."""
    aval = jax.typeof(array)
    entries = partitions(aval)
    if entries is None or entries[axis] is None:
        return array
    wanted = (*entries[:axis], None, *entries[axis + 1 :])
    placed: Array = jax.reshard(array, with_partitions(aval, wanted))
    return placed


def zeros_like_batch(
    array: Array, axis: int, shape: tuple[int, ...], out_axis: int, dtype: Any
) -> Array:
    """Zeros that vary as ``array`` does, their ``out_axis`` split as its ``axis`` is in an Explicit mesh."""
    zero = match_varying(lax.full((), 0, dtype), array)[0]
    aval = jax.typeof(array)
    if not is_placed(aval):
        return lax.broadcast_in_dim(zero, shape, ())
    split = [()] * len(shape)
    split[out_axis] = split_of(aval)[axis]
    return lax.broadcast_in_dim(zero, shape, (), out_sharding=with_split(aval, tuple(split)))


def broadcast_along(values: Array, array: Array, axis: int) -> Array:
    """One value for each position along ``axis`` of ``array``, in its shape.

    In an Explicit mesh the result is split as ``array`` is: a sum would otherwise gather the whole
    cotangent to reduce it.
    """
    aval = jax.typeof(array)
    if not is_placed(aval):
        return lax.broadcast_in_dim(values, array.shape, (axis,))
    entries = partitions(aval) or ()
    own = with_partitions(aval, (entries[axis],))
    if partitions(jax.typeof(values)) != tuple(own.spec):
        values = jax.reshard(values, own)
    return lax.broadcast_in_dim(values, array.shape, (axis,), out_sharding=aval.sharding)


def split_off(array: Array, axis: int, outer: int) -> Array:
    """``array`` with ``axis`` split in two: ``outer`` groups, and the elements of a group.

    In an Explicit mesh the axis may be split over more devices than there are groups. Each device then has
    a part of every group, which JAX does not choose by itself.
    """
    shape = (*array.shape[:axis], outer, array.shape[axis] // outer, *array.shape[axis + 1 :])
    aval = jax.typeof(array)
    before = split_of(aval)
    names = before[axis]
    if not names or outer % math.prod(mesh_sizes(aval)[name] for name in names) == 0:
        return lax.reshape(array, shape)
    after = (*before[:axis], (), names, *before[axis + 1 :])
    return lax.reshape(array, shape, out_sharding=with_split(aval, after))

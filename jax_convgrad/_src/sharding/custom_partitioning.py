"""Calls that XLA partitions by asking this package for each device's share.

A call is lowered with a sharding rule, by which XLA propagates shardings through the program. When XLA
compiles the program it passes the shardings of the call's arrays, and receives one device's function of its
shards. Two things differ from `jax.experimental.custom_partitioning`. The key of a call is its problem
instead of a pointer, so the persistent compilation cache recognizes the program, and two problems never
share a key. The mesh is read from the shardings that XLA passes instead of from the program, so the devices
need not be known when the program is lowered: JAX refuses primitives that need them in a program of two
meshes or of abstract ones.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from jax_convgrad._src import compat
from jax_convgrad._src.sharding.solver import ArraySharding, PartitionedCall, ShardingRule


def lower_fun(
    whole: Callable[..., Any], make_call: Callable[[], PartitionedCall] | None
) -> Callable[..., Any]:
    """`compat.lower_fun` of ``whole``, except where XLA asks for one device's shard of a call.

    ``make_call`` makes that call. It is None where there is no handler for XLA to divide.
    """
    lower_whole = compat.lower_fun(whole)

    def lower(ctx: Any, *operands: Any) -> Any:
        if make_call is None or not compat.uses_custom_partitioning(ctx):
            return lower_whole(ctx, *operands)
        with compat.keeping_64_bits(ctx):
            return partitioned_call(ctx, operands, make_call())

    return lower


def partitioned_call(ctx: Any, operands: Sequence[Any], call: PartitionedCall) -> Any:
    """The call that XLA partitions by its sharding rule."""
    devices, state = compat.device_count(ctx), compat.tracing_state()
    return compat.partitioned_call(
        ctx,
        operands,
        f"jax_convgrad {call.fingerprint()} {devices} {state}",
        _shardy_rule(call.rule),
        functools.partial(_partition, call, devices, state),
    )


def _partition(
    call: PartitionedCall, devices: int, state: tuple[Any, bool], operands: Any, result: Any
) -> tuple[Any, Any, Any, Any]:
    """(mesh, one device's function, the result's sharding, the operands')."""
    pairs = [(len(array.shape), sharding) for array, sharding in (*operands, result)]
    mesh, splits = _read_shardings(pairs, devices)
    function, wanted = call.divide(mesh.shape, splits)
    *shardings, last = [NamedSharding(mesh, PartitionSpec(*split)) for split in wanted]
    run = functools.partial(
        _shard_p.bind,
        function=function,
        shape=last.shard_shape(result[0].shape),
        dtype=result[0].dtype,
        state=state,
    )
    return mesh, lambda *shards: run(*shards), last, tuple(shardings)


# One device's function. It is traced when it is lowered, because only then is nothing left of the context
# around the compilation: XLA asks for shards in a thread of its own, or in the caller's thread with the
# caller's mesh.
_shard_p = Primitive("jax_convgrad_shard")
_shard_p.def_abstract_eval(
    lambda *shards, function, shape, dtype, state: jax.core.ShapedArray(shape, dtype)
)


def _lower_shard(ctx: Any, *shards: Any, function: Any, state: Any, **_: Any) -> Any:
    precision, x64 = state
    with (
        compat.jax_rules(),
        jax.sharding.use_abstract_mesh(AbstractMesh((), ())),
        jax.default_matmul_precision(precision),
        jax.enable_x64(x64),
    ):
        return compat.lower_fun(function)(ctx, *shards)


compat.register_lowering(_shard_p, _lower_shard)


def _read_shardings(
    arrays: list[tuple[int, Any]], devices: int
) -> tuple[AbstractMesh, list[ArraySharding]]:
    """A mesh of axes of prime sizes, and for each array the mesh axes that its own axes are split over.

    Arrays are (rank, sharding) pairs as XLA has them. Every mesh is a product of such smaller axes. Where
    their order matters, because their sizes differ, the result uses the order that all arrays agree with.
    Without one, every array counts as replicated.
    """
    for sizes in _factorizations(devices):
        found = [_read_sharding(rank, sharding, sizes) for rank, sharding in arrays]
        splits = [split for split in found if split is not None]
        if len(splits) == len(arrays):
            break
    else:
        splits = [((),) * rank for rank, _ in arrays]
    names = tuple(f"d{axis}" for axis in range(len(sizes)))
    return AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes)), splits


def _read_sharding(rank: int, sharding: Any, sizes: tuple[int, ...]) -> ArraySharding | None:
    """The mesh axes of each of the array's axes, major to minor; None if ``sizes`` is not its mesh."""
    tiled = compat.tiles(sharding)
    if tiled is None:
        return ((),) * rank
    tiles, devices = tiled
    positions = np.empty((len(tiles), math.prod(sizes)), np.int64)
    # The position of each device among the tiles; the last axis may number copies of a tile.
    positions[:, devices] = np.indices(tiles).reshape(len(tiles), -1)
    digits = np.indices(sizes).reshape(len(sizes), -1)
    split = []
    for position, tile in zip(positions[:rank], tiles, strict=False):
        strides = [position[math.prod(sizes[axis + 1 :])] for axis in range(len(sizes))]
        axes = sorted((a for a in range(len(sizes)) if strides[a] > 0), key=lambda a: -strides[a])
        if math.prod(sizes[a] for a in axes) != tile:
            return None
        if not (sum(digits[a] * strides[a] for a in axes) == position).all():
            return None
        split.append(tuple(f"d{a}" for a in axes))
    return tuple(split)


def _factorizations(number: int) -> Iterator[tuple[int, ...]]:
    """The prime factors of a number in each distinct order: one order for a power of two."""
    primes = [
        p for p in range(2, number + 1) if number % p == 0 and all(p % d for d in range(2, p))
    ]
    if not primes:
        yield ()
    for prime in primes:
        for rest in _factorizations(number // prime):
            yield (prime, *rest)


def _shardy_rule(rule: ShardingRule) -> Any:
    """How shardings propagate through the call: along the factors that arrays share."""
    from jax.experimental.custom_partitioning import ArrayMapping, CompoundFactor, SdyShardingRule

    axes = {factors for array in rule.arrays for factors in array}
    alone = {factors[0] for factors in axes if len(factors) == 1}
    inside = {factor for factors in axes for factor in factors} - alone
    *operands, result = (
        ArrayMapping(*(f[0] if len(f) == 1 else CompoundFactor(*f) for f in array))
        for array in rule.arrays
    )
    # Shardy numbers the factors in the order in which the arrays name them, and wants these sorted.
    named = dict.fromkeys(f for array in rule.arrays for factors in array for f in factors)
    sizes: dict[str, Any] = {factor: rule.sizes[factor][0] for factor in sorted(inside)}
    return SdyShardingRule(
        tuple(operands),
        (result,),
        reduction_factors=tuple(factor for factor in named if factor in rule.summed),
        **sizes,
    )

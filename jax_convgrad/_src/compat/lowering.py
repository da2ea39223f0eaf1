"""Lowering rules, and what a program is lowered for."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from jax_convgrad._src.compat import partitioning
from jax_convgrad._src.compat.features import LOWERING_CONTEXT, LOWERING_RULES
from jax_convgrad._src.compat.meshes import is_placed, unplaced
from jax_convgrad._src.compat.state import lowering_implementation


def lower_fun(implementation: Any, multiple_results: bool = False) -> Any:
    """A lowering rule that traces ``implementation``, a function of one array per operand.

    It returns one array, or with ``multiple_results`` a sequence of arrays.

    In an Explicit mesh the operands' shardings are removed for that trace: abstract evaluation has settled
    them already, and plain lax operations would ask for an `out_sharding` of their own.

    64-bit arrays keep their dtype, even if `jax.enable_x64` was on when the function was traced and is off
    when it is lowered.
    """
    rule = mlir.lower_fun(implementation, multiple_results=multiple_results)

    def lower(ctx: Any, *operands: Any, **params: Any) -> Any:
        with keeping_64_bits(ctx):
            if any(map(is_placed, ctx.avals_in)):
                ctx = dataclasses.replace(ctx, avals_in=[*map(unplaced, ctx.avals_in)])
            with lowering_implementation(is_partitioned_without_custom_calls(ctx)):
                return rule(ctx, *operands, **params)

    return lower


@contextlib.contextmanager
def keeping_64_bits(ctx: Any) -> Iterator[None]:
    """Keeps 64-bit arrays 64 bits wide while a rule lowers one, even if `jax.enable_x64` is off then."""
    wide = any(aval.dtype == np.float64 for aval in (*ctx.avals_in, *ctx.avals_out))
    with jax.enable_x64(True) if wide else contextlib.nullcontext():
        yield


def register_lowering(primitive: Any, rule: Any, platform: str | None = None) -> None:
    """Lowers ``primitive`` by ``rule``, on one platform or on all that have no rule of their own."""
    mlir.register_lowering(primitive, rule, platform=platform)


def lowering_rule(primitive: Any, platform: str) -> Any:
    """The rule registered for ``primitive`` on ``platform``, or for all platforms; None if unreadable."""
    names = LOWERING_RULES.resolve()
    if names is None:
        return None
    entry = names.for_one[platform].get(primitive) or names.for_all[primitive]
    return LOWERING_RULES.read(entry, "rule")


@dataclasses.dataclass(frozen=True)
class _Devices:
    """The devices that a program is lowered for, as a lowering context knows them.

    Attributes:
      count: how many there are.
      auto: over how many of them XLA partitions the program: all except those of the user's mesh axes.
      has_manual: whether some mesh axes are the user's own, by `shard_map`.
    """

    count: int
    auto: int
    has_manual: bool


def _devices(ctx: Any) -> _Devices | None:
    """None where JAX does not say."""
    axes = LOWERING_CONTEXT.read(ctx, "module_context.axis_context")
    if axes is None:
        return None
    mesh = getattr(axes, "mesh", None)
    if mesh is None:
        count = getattr(axes, "num_devices", 1)
        return _Devices(count, count, False)
    manual = LOWERING_CONTEXT.read(axes, "manual_axes")
    if manual is None:
        return None
    auto = 1
    for name, size in mesh.shape.items():
        auto *= 1 if name in manual else size
    return _Devices(mesh.size, auto, bool(manual))


def device_count(ctx: Any) -> int:
    """The devices of the program that a rule lowers into, where XLA partitions it."""
    devices = _devices(ctx)
    return jax.device_count() if devices is None else devices.count


def is_partitioned(ctx: Any) -> bool:
    """Whether XLA partitions the program that a rule lowers into among several devices.

    It does so for `jit` over more than one device. It does not inside `shard_map`, where every axis of the
    mesh is the user's own or has one device. Where JAX does not say, we assume it for several devices.
    """
    devices = _devices(ctx)
    return jax.device_count() > 1 if devices is None else devices.auto > 1


def has_shardy() -> bool:
    """Whether XLA partitions programs with Shardy, which is the default."""
    return bool(getattr(jax.config, "jax_use_shardy_partitioner", True))


def uses_custom_partitioning(ctx: Any) -> bool:
    """Whether XLA, which partitions the program, can ask this package for one device's shard of a call.

    It cannot where some axes of the mesh are the user's own (`shard_map` over the others only): XLA ends
    the process there. Nor can it with the partitioner before Shardy, nor in an exported program, where
    nobody would answer. In these cases, and where JAX says too little, XLA partitions plain operations.
    """
    devices = _devices(ctx)
    if devices is None or devices.auto == 1 or devices.has_manual or not has_shardy():
        return False
    return _for_export(ctx) is False and partitioning.is_available(ctx)


def is_partitioned_without_custom_calls(ctx: Any) -> bool:
    """Whether XLA would gather a call's operands: it partitions the program, but operations only."""
    return is_partitioned(ctx) and not uses_custom_partitioning(ctx)


def is_export(ctx: Any) -> bool:
    """Whether a rule lowers for `jax.export`, which other machines may read."""
    return bool(_for_export(ctx))


def _for_export(ctx: Any) -> bool | None:
    """None where JAX does not say."""
    found = LOWERING_CONTEXT.read(ctx, "module_context.lowering_parameters.for_export")
    return None if found is None else bool(found)

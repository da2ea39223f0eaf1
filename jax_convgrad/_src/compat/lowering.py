"""Lowering rules, and what a program is lowered for."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from jax_convgrad._src.compat.meshes import is_placed, unplaced
from jax_convgrad._src.compat.partitioning import divided_call
from jax_convgrad._src.compat.state import lowering_implementation


def lower_fun(implementation: Any, divide: Any = None) -> Any:
    """A lowering rule that traces ``implementation``, a function of one array per operand.

    In an Explicit mesh the operands' shardings are taken off for that trace: abstract evaluation has
    settled them already, and plain lax operations would ask for an `out_sharding` of their own.

    Arrays of 64 bits keep them, even where `jax.enable_x64` was on for the function that is lowered and is
    not any more.

    Where XLA `asks_for_parts`, what is traced is instead the part of one device, by the `Division` that
    ``divide`` makes of the operands' abstract values and the parameters.
    """
    rule = mlir.lower_fun(implementation, multiple_results=False)

    def lower(ctx: Any, *operands: Any, **params: Any) -> Any:
        if divide is not None and asks_for_parts(ctx):
            return divided_call(ctx, operands, divide(*ctx.avals_in, **params))
        if any(map(is_placed, ctx.avals_in)):
            ctx = ctx.replace(avals_in=[*map(unplaced, ctx.avals_in)])
        with lowering_implementation(divides_operations_only(ctx)):
            return rule(ctx, *operands, **params)

    def lower_wide(ctx: Any, *operands: Any, **params: Any) -> Any:
        wide = any(aval.dtype == np.float64 for aval in (*ctx.avals_in, *ctx.avals_out))
        with jax.enable_x64(True) if wide else contextlib.nullcontext():
            return lower(ctx, *operands, **params)

    return lower_wide


def lowering_rule(primitive: Any, platform: str) -> Any:
    """The rule registered for ``primitive`` on ``platform``, or for all platforms."""
    entry = mlir._platform_specific_lowerings[platform].get(primitive) or mlir._lowerings[primitive]
    return entry.rule


def is_partitioned(ctx: Any) -> bool:
    """Whether XLA divides the program that a rule lowers into among several devices.

    It does so for `jit` over more than one device, and not inside `shard_map`, where every axis of the
    mesh is the user's own, or has one device. Read from the lowering context's `axis_context`.
    """
    axes = ctx.module_context.axis_context
    mesh = getattr(axes, "mesh", None)
    if mesh is not None:
        return any(size > 1 and name not in axes.manual_axes for name, size in mesh.shape.items())
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

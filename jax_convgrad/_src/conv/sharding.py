"""The sharding rules of the convolution family, and each device's share of a divided operator.

The factors are the batch n, groups g, input channels per group i, output channels per group o, each spatial
axis s0, s1, ... and each axis of the kernel k0, k1, ...

    fprop(x: n gi s, w: go i k) -> y: n go s, summed over i
    dgrad(y: n go s, w: go i k) -> x: n gi s, summed over o
    wgrad(x: n gi s, y: n go s) -> w: go i k, summed over n and s

NOTE [Spatial axes]. A spatial axis is split where the image has stride times as many rows as the result and
both divide evenly, so that every device needs the same few rows of its neighbors, and no more rows than
they have (`halo`). fprop and wgrad run on x with those rows and without padding, dgrad on dy with the rows
that reach into its shard of x. Other spatial axes are never split (see NOTE [Whose sharding counts] in
solver.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jax import Array, lax

from jax_convgrad._src.conv.geometry import ConvConfig, ConvGeometry, Role
from jax_convgrad._src.conv.lowering import emit
from jax_convgrad._src.dispatch.decide import Decision, for_part
from jax_convgrad._src.dispatch.problem import ROLES, ConvProblem
from jax_convgrad._src.runtime import registry
from jax_convgrad._src.shapes import Shape
from jax_convgrad._src.sharding import halo
from jax_convgrad._src.sharding.solver import Assignment, Factors, PartitionedCall, ShardingRule

# The operands whose shardings come first, in turns.
_ORDER: dict[str, tuple[tuple[Role, ...], ...]] = {
    "conv_fprop": (("x",), ("y", "w")),
    "conv_dgrad": (("y",), ("x", "w")),
    "conv_wgrad": (("x", "y"), ("w",)),
}


def rule(problem: ConvProblem) -> ShardingRule:
    """The factors by which an operator can be divided."""
    geometry, roles = problem.geometry, ROLES[problem.operator]
    sizes = _sizes(geometry)
    halos = _halos(problem)
    extended = geometry.out_spatial if problem.operator == "conv_dgrad" else geometry.in_spatial

    def fits(factor: str, count: int) -> bool:
        if factor not in sizes or any(size % count for size in sizes[factor]):
            return False
        if factor not in _spatial(geometry):
            return factor[0] != "k"
        axis = int(factor[1:])
        low, high, _ = halos[axis]
        aligned = geometry.in_spatial[axis] == (
            geometry.config.strides[axis] * geometry.out_spatial[axis]
        )
        return aligned and halo.fits(extended[axis] // count, low, high)

    return ShardingRule(
        arrays=tuple(_factors(role, geometry) for role in roles),
        sizes=sizes,
        summed=_summed(problem),
        fits=fits,
        order=tuple(tuple(map(roles.index, turn)) for turn in _ORDER[problem.operator]),
        fallback_factors=("n", "g"),
        images=tuple(i for i, role in enumerate(roles[:2]) if role != "w"),
    )


def partitioned_call(problem: ConvProblem, decision: Decision) -> PartitionedCall:
    """The operator in a program that XLA partitions: each device computes its shard by ``decision``."""

    def fingerprint() -> str:
        found = registry.require(str(decision.platform))
        versions = registry.version(), found.versions, sorted(found.targets), sorted(found.dtypes)
        return hashlib.sha256(repr((decision, versions)).encode()).hexdigest()

    return PartitionedCall(
        rule(problem), lambda assignment: _shard(problem, decision, assignment), fingerprint
    )


def _shard(
    problem: ConvProblem, decision: Decision, assignment: Assignment
) -> Callable[..., Array]:
    """One device's function of the operands' shards."""
    geometry, halos = problem.geometry, _halos(problem)
    summed_over = assignment.names(*_summed(problem))
    dtype = problem.result_dtype
    if summed_over and decision.platform == "cpu" and dtype.itemsize == 2:
        dtype = np.dtype(np.float32)  # which XLA:CPU adds 16-bit numbers of several devices in
    config = _shard_config(geometry, halos, assignment)

    def run(first: Array, second: Array) -> Array:
        role = problem.operand_roles[0]
        first = _with_halo(first, role, geometry, halos, assignment)
        # In dgrad and wgrad the result's shape does not follow from the operands'.
        x_shape = first.shape if role == "x" else _shard_shape("x", geometry, assignment)
        w_shape = _shard_shape("w", geometry, assignment)
        part = problem.replace(
            geometry=ConvGeometry.make(problem.operator, config, x_shape, w_shape),
            result_dtype=dtype,
        )
        result = emit(for_part(decision, part), first, second)
        return lax.psum(result, summed_over).astype(problem.result_dtype) if summed_over else result

    return run


def _summed(problem: ConvProblem) -> tuple[str, ...]:
    """The factors that the result does not have."""
    if problem.operator == "conv_wgrad":
        return ("n", *_spatial(problem.geometry))
    return ("i",) if problem.operator == "conv_fprop" else ("o",)


def _spatial(geometry: ConvGeometry) -> tuple[str, ...]:
    return tuple(f"s{axis}" for axis in range(geometry.spatial_rank))


def _sizes(geometry: ConvGeometry) -> dict[str, tuple[int, ...]]:
    groups = geometry.config.groups
    sizes: dict[str, tuple[int, ...]] = {
        "n": (geometry.batch,),
        "g": (groups,),
        "i": (geometry.in_channels // groups,),
        "o": (geometry.out_channels // groups,),
    }
    for axis, (x, y, k) in enumerate(
        zip(geometry.in_spatial, geometry.out_spatial, geometry.kernel, strict=True)
    ):
        sizes |= {f"s{axis}": (x, y), f"k{axis}": (k,)}
    return sizes


def _factors(role: Role, geometry: ConvGeometry) -> Factors:
    """The factors of x, w or y, in the order of its axes."""
    numbers, sizes = geometry.config.dimension_numbers, _sizes(geometry)

    def both(group: str, channel: str) -> tuple[str, ...]:
        """A channel axis, without the one of its two factors that has size 1."""
        return tuple(f for f in (group, channel) if sizes[f] != (1,)) or (channel,)

    spatial = tuple((factor,) for factor in _spatial(geometry))
    if role == "w":
        spec = numbers.rhs_spec
        named = (both("g", "o"), ("i",), *((f"k{axis}",) for axis in range(len(spatial))))
    elif role == "x":
        spec, named = numbers.lhs_spec, (("n",), both("g", "i"), *spatial)
    else:
        spec, named = numbers.out_spec, (("n",), both("g", "o"), *spatial)
    placed = dict(zip(spec, named, strict=True))
    return tuple(placed[axis] for axis in range(len(spec)))


def _shard_shape(role: Role, geometry: ConvGeometry, assignment: Assignment) -> Shape:
    """The shape of one device's shard of x or w."""
    whole = geometry.x_shape if role == "x" else geometry.w_shape
    factors = _factors(role, geometry)
    return tuple(size // assignment.count(*f) for size, f in zip(whole, factors, strict=True))


class _Halo(NamedTuple):
    """For one split spatial axis: the rows by which a device's shard is extended, and the padding then."""

    low: int
    high: int
    padding: tuple[int, int]


def _halos(problem: ConvProblem) -> tuple[_Halo, ...]:
    """The rows by which the first operand's shard is extended along each spatial axis."""
    if problem.operator == "conv_dgrad":
        return _halos_of_y(problem.geometry)
    return _halos_of_x(problem.geometry)


def _halos_of_x(geometry: ConvGeometry) -> tuple[_Halo, ...]:
    """Window j of a shard starts ``low`` rows before row j * stride of it."""
    config = geometry.config
    return tuple(
        _Halo(low, kernel - stride - low, (0, 0))
        for (low, _), kernel, stride in zip(
            config.padding, geometry.dilated_kernel, config.strides, strict=True
        )
    )


def _halos_of_y(geometry: ConvGeometry) -> tuple[_Halo, ...]:
    """The windows that read any row of a shard of x: those of its own rows of y and some around them."""
    config = geometry.config
    halos = []
    for (low, _), kernel, stride in zip(
        config.padding, geometry.dilated_kernel, config.strides, strict=True
    ):
        before, behind = (kernel - 1 - low) // stride, -(-low // stride)
        padding = (low + before * stride, (behind - 1) * stride + kernel - low)
        halos.append(_Halo(before, behind, padding))
    return tuple(halos)


def _shard_config(
    geometry: ConvGeometry, halos: tuple[_Halo, ...], assignment: Assignment
) -> ConvConfig:
    config = geometry.config
    padding = tuple(
        extension.padding if assignment.names(factor) else pair
        for factor, extension, pair in zip(_spatial(geometry), halos, config.padding, strict=True)
    )
    return config.replace(padding=padding, groups=config.groups // assignment.count("g"))


def _with_halo(
    image: Array,
    role: Role,
    geometry: ConvGeometry,
    halos: tuple[_Halo, ...],
    assignment: Assignment,
) -> Array:
    """One device's shard of x or y with its neighbors' rows along the axes that are split."""
    numbers = geometry.config.dimension_numbers
    spec = numbers.lhs_spec if role == "x" else numbers.out_spec
    for factor, axis, (low, high, _) in zip(_spatial(geometry), spec[2:], halos, strict=True):
        if assignment.names(factor):
            image = halo.extend(image, axis, low, high, *assignment.device_order(factor))
    return image

"""The only place that touches JAX names which are not documented, or which moved between versions.

Supported: jax 0.10 and newer. Each function says what it stands on, so that a JAX upgrade which
breaks one of them is repaired here and nowhere else.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import Array, lax
from jax.interpreters import xla
from jax.sharding import NamedSharding, PartitionSpec


def apply_primitive(primitive: Any, *operands: Any, **params: Any) -> Any:
    """Runs one primitive outside any trace, compiled and cached by its parameters."""
    return xla.apply_primitive(primitive, *operands, **params)


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

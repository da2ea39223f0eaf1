"""Undocumented names of JAX that tests need. Other tests import them from here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.interpreters import mlir

# A statement that fails if a backend has started.
NO_BACKEND_HAS_STARTED = (
    "from jax._src import xla_bridge; assert not xla_bridge.backends_are_initialized()"
)


def cache_size(jitted: Any) -> int:
    """How many programs a function under `jax.jit` has compiled and kept."""
    return jitted._cache_size()


def xla_sharding(sharding: Any, rank: int) -> Any:
    """XLA's form of a sharding."""
    return sharding._to_xla_hlo_sharding(rank)


def refine(text: str) -> str:
    """The program with the shapes that its arguments give it, as XLA makes it before it compiles."""
    from jax._src.lib import _jax

    refined = _jax.mlir.refine_polymorphic_shapes(text.encode(), enable_shardy=True)
    return parse(refined)


def parse(code: str | bytes) -> str:
    """A module's text."""
    with mlir.make_ir_context() as context:
        return str(mlir.ir.Module.parse(code, context=context))


def ask_for_shard(
    key: str, shapes: Sequence[tuple[int, ...]], shardings: Sequence[Any]
) -> tuple[str, list[Any], Any]:
    """The program that XLA gets when it compiles a partitioned call in float32 with a replicated result.

    Args:
      key: the call's `backend_config`.
      shapes: those of the operands and of the result.
      shardings: those of the operands, in XLA's form.

    Returns:
      The program of one device, the operands' shardings and the result's.
    """
    from jax._src import custom_partitioning
    from jax._src.lib import xla_client

    *operands, result = [xla_client.Shape.array_shape(np.dtype(np.float32), s) for s in shapes]
    code, taken, given = custom_partitioning._custom_partitioning_partition(
        operands, list(shardings), result, xla_client.HloSharding.replicate(), key.encode()
    )
    return parse(code), taken, given

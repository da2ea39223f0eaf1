"""The only place that touches JAX names which are not documented, or which moved between versions.

Supported: jax 0.10 and newer. Each function says what it stands on, so that a JAX upgrade which
breaks one of them is repaired here and nowhere else.
"""

from jax_convgrad._src.compat.lowering import (
    asks_for_parts,
    divides_operations_only,
    has_shardy,
    is_export,
    is_partitioned,
    lower_fun,
    lowering_rule,
)
from jax_convgrad._src.compat.meshes import (
    ShardingTypeError,
    broadcast_along,
    is_placed,
    match_varying,
    mesh_sizes,
    partitions,
    reshard_like,
    split_of,
    split_off,
    varying_axes,
    whole_along,
    with_partitions,
    with_split,
    zeros_like_batch,
)
from jax_convgrad._src.compat.programs import (
    defined_in,
    equation_shardings,
    frames,
    manual_axes,
    name_stack,
    separate_traces,
    trace,
)
from jax_convgrad._src.compat.state import in_implementation, jax_rules, operations_only
from jax_convgrad._src.compat.values import (
    apply_primitive,
    as_array,
    at_least_zero,
    canonical_precision,
    cast,
    checkpoint_like,
    differentiate_like,
    platform,
)

__all__ = [
    "ShardingTypeError",
    "apply_primitive",
    "as_array",
    "asks_for_parts",
    "at_least_zero",
    "broadcast_along",
    "canonical_precision",
    "cast",
    "checkpoint_like",
    "defined_in",
    "differentiate_like",
    "divides_operations_only",
    "equation_shardings",
    "frames",
    "has_shardy",
    "in_implementation",
    "is_export",
    "is_partitioned",
    "is_placed",
    "jax_rules",
    "lower_fun",
    "lowering_rule",
    "manual_axes",
    "match_varying",
    "mesh_sizes",
    "name_stack",
    "operations_only",
    "partitions",
    "platform",
    "reshard_like",
    "separate_traces",
    "split_of",
    "split_off",
    "trace",
    "varying_axes",
    "whole_along",
    "with_partitions",
    "with_split",
    "zeros_like_batch",
]

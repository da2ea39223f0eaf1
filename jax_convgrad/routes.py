"""Who does which problem: a pure function, with the measurement behind every row.

Routes: "onednn" (the CPU handlers), "xla" (the plain lax op, where XLA is at its best and can fuse)
and "swap" (pure JAX in its role-swapped form, which is also where a problem goes that no handler of
its platform serves).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from jax_convgrad.shapes import ConvGeometry

HANDLER_ROUTES = frozenset({"onednn"})


class Route(NamedTuple):
    """A route's name and why it was chosen."""

    name: str
    reason: str


def choose(
    platform: str | None, operator: str, geometry: ConvGeometry, dtype: Any, result_dtype: Any
) -> Route:
    """The route of one operator ("conv_fprop", "conv_dgrad", "conv_wgrad") on one platform.

    ``platform`` is JAX's name for it, None where a program is lowered for no platform in particular.
    """
    if geometry.is_empty:
        return Route("xla", "nothing to compute: zeros")
    if platform == "cpu":
        return _cpu(operator, geometry, str(dtype), str(result_dtype))
    return fallback(platform)


def fallback(platform: str | None) -> Route:
    """Where a problem goes when its platform's handlers are not there."""
    if platform == "cpu":
        return Route(
            "swap",
            "no handler; XLA:CPU runs batch_group_count 20 to 400 times slower than feature groups",
        )
    return Route("xla", "no handler; XLA's own grouped weight gradient is at its best here")


def _cpu(operator: str, geometry: ConvGeometry, dtype: str, result_dtype: str) -> Route:
    """Rows measured by benchmarks/survey_cpu.py, its output in benchmarks/cpu/."""
    if dtype not in ("float32", "bfloat16") or result_dtype not in (dtype, "float32"):
        return Route("swap", f"oneDNN's CPU convolutions have no {dtype} to {result_dtype}")
    groups = geometry.config.groups
    plane = groups == 1 and geometry.spatial_rank <= 2
    # oneDNN computes result channels in blocks of 16, so a handful of them costs as much as 16.
    if dtype == "float32" and plane and operator == "conv_fprop" and geometry.out_channels <= 4:
        return Route("swap", "few output channels: 1 channel k7 9.4 ms by oneDNN, 3.8 by XLA:CPU")
    if dtype == "float32" and plane and operator == "conv_dgrad" and geometry.in_channels <= 4:
        # XLA inserts the zeros of a strided gradient: at 16x16 it multiplies 256 times too much.
        if math.prod(geometry.config.strides) < 64:
            return Route("swap", "few input channels: stem k7 s2 7.7 ms by oneDNN, 3.6 by XLA:CPU")
    if dtype == "float32" and plane and operator == "conv_wgrad" and geometry.kernel[-1] >= 15:
        if geometry.config.strides[-1] == 1:
            return Route("swap", "wide kernels: 1-D k31 54 ms by oneDNN, 18 by XLA:CPU")
    if dtype == "bfloat16" and operator == "conv_wgrad" and 1 < groups == geometry.in_channels:
        if geometry.out_channels > groups:
            return Route("swap", "depthwise with a multiplier: 32 ms by oneDNN, 14 by XLA:CPU")
    return Route("onednn", "1.05 to 500 times faster than XLA:CPU")

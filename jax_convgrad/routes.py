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
    config = geometry.config
    if dtype == "bfloat16":
        if operator == "conv_wgrad" and 1 < config.groups == geometry.in_channels:
            if geometry.out_channels > config.groups:
                return Route("swap", "depthwise with a multiplier: 32 ms by oneDNN, 14 by XLA:CPU")
        return Route("onednn", "1.1 to 500 times faster than XLA:CPU")
    if config.groups == 1 and geometry.spatial_rank <= 2:
        reason = _cpu_plane_slow(operator, geometry)
        if reason is not None:
            return Route("swap", reason)
    return Route("onednn", "1.05 to 500 times faster than XLA:CPU")


def _cpu_plane_slow(operator: str, geometry: ConvGeometry) -> str | None:
    """Why oneDNN is slower than XLA:CPU for a dense float32 problem in one or two dimensions, if so.

    It computes result channels in blocks of 16, so a handful of them costs as much as 16; and it has no
    kernels of its own, only matrix products, for some weight gradients.
    """
    config = geometry.config
    if operator == "conv_fprop" and geometry.out_channels <= 8:
        return "few output channels: 64 to 1, k7 9.2 ms by oneDNN, 3.6 by XLA:CPU"
    # XLA inserts the zeros of a strided gradient: at 16x16 it multiplies 256 times too much.
    if operator == "conv_dgrad" and geometry.in_channels <= 8 and math.prod(config.strides) < 64:
        return "few input channels: 3 to 64, k7 s2 7.7 ms by oneDNN, 3.5 by XLA:CPU"
    if operator == "conv_wgrad" and geometry.kernel[-1] >= 15 > config.strides[-1]:
        return "wide overlapping windows: 32 to 32, k15 59 ms by oneDNN, 17 by XLA:CPU"
    if operator == "conv_wgrad" and max(config.strides) > 1 and max(config.dilation) > 1:
        return "stride and dilation: 64 to 64, k3 s2 d2 3.2 ms by oneDNN, 2.7 by XLA:CPU"
    return None

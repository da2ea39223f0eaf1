"""Who does which problem: a pure function, with the measurement behind every row.

Routes: "onednn" and "cudnn" (the handlers on CPU and CUDA), "xla" (the plain lax op, where XLA is at
its best and can fuse) and "swap" (pure JAX in its role-swapped form, which is also where a problem goes
that no handler of its platform serves).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from jax_convgrad.shapes import ConvGeometry

HANDLER_ROUTES = frozenset({"onednn", "cudnn"})

_forced: str | None = None


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
    if _forced is not None and (_forced not in HANDLER_ROUTES or result_dtype == dtype):
        return Route(_forced, "forced")
    if platform == "cpu":
        return _cpu(operator, geometry, str(dtype), str(result_dtype))
    if platform == "cuda":
        return _cuda(operator, geometry, str(dtype), str(result_dtype))
    return fallback(platform)


@contextlib.contextmanager
def force(name: str) -> Iterator[None]:
    """One route for every problem lowered inside, for tests and for measuring the rows below.

    A handlers' route leaves out problems whose result is wider than the operands.
    """
    global _forced
    previous, _forced = _forced, name
    try:
        yield
    finally:
        _forced = previous


def fallback(platform: str | None) -> Route:
    """Where a problem goes when its platform's handlers are not there."""
    if platform == "cpu":
        return Route(
            "swap",
            "no handler; XLA:CPU runs batch_group_count 20 to 400 times slower than feature groups",
        )
    return Route("xla", "no handler; XLA's own grouped weight gradient is at its best here")


def _cpu(operator: str, geometry: ConvGeometry, dtype: str, result_dtype: str) -> Route:
    if dtype not in ("float32", "bfloat16") or result_dtype not in (dtype, "float32"):
        return Route("swap", f"oneDNN's CPU convolutions have no {dtype} to {result_dtype}")
    return Route("onednn", "measured faster than XLA:CPU (benchmarks/cpu)")


def _cuda(operator: str, geometry: ConvGeometry, dtype: str, result_dtype: str) -> Route:
    config = geometry.config
    if result_dtype != dtype:
        return Route("xla", f"cuDNN from {dtype} to {result_dtype} is not measured")
    if config.groups > 1:
        return Route("cudnn", "XLA inserts zeros or falls off cuDNN for grouped gradients")
    if geometry.spatial_rank == 3:
        return Route("cudnn", "XLA transposes 3-D arrays to channels-first around every call")
    if any(s > 1 for s in config.strides):
        return Route("cudnn", "XLA misses cuDNN for gradients of transposed convolutions")
    if any(d > 1 for d in config.dilation):
        return Route("cudnn", "XLA computes dilated weight gradients with a window as large as dy")
    if any(low < 0 or high < 0 for low, high in config.padding):
        return Route("cudnn", "XLA computes cropped weight gradients with a window as large as dy")
    return Route("xla", "dense with stride 1: XLA calls cuDNN for all three, and fuses around it")

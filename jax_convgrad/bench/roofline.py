"""The least time that a device can take for a pass: the bytes to move, at the memory's own speed.

A shorter time is not a speed but a fault of the clock, and must not be quoted.
"""

from __future__ import annotations

import math

import jax.numpy as jnp

from jax_convgrad._src.explain.roofline import Memory, device_memory, reach, read_memory
from jax_convgrad.bench import resize_float64
from jax_convgrad.bench.case_files import AnyCase
from jax_convgrad.bench.cases import DTYPES, Case
from jax_convgrad.bench.resize_cases import ResizeCase


def least_bytes(case: AnyCase, pass_: str) -> int:
    """Bytes that any program for the pass must read or write.

    Elements of operands that reach no result (rows that no window reads, taps that only meet padding)
    need not be read; results are written whole.
    """
    if isinstance(case, ResizeCase):
        return _resize_bytes(case, pass_)
    near, far, taps = (math.prod(counts) for counts in zip(*_used(case), strict=True))
    read = {
        "x": case.n * case.cin * near,
        "w": case.cin // case.groups * case.cout * taps,
        "dy": case.n * case.cout * far,
    }
    x, w, dy = (math.prod(shape) for shape in (case.x_shape, case.w_shape, case.y_shape))
    elements: int = {
        "fprop": read["x"] + read["w"] + dy,
        "dx": read["dy"] + read["w"] + x,
        "dw": read["x"] + read["dy"] + w,
        # The gradient of the bias sums all of dy.
        "dxdwdb": read["x"] + read["w"] + dy + x + w + case.cout,
        "ddxddw": read["x"] + read["w"] + read["dy"] + x + w,
    }[pass_]
    return elements * jnp.dtype(DTYPES[case.dtype]).itemsize


def _resize_bytes(case: ResizeCase, pass_: str) -> int:
    """Every input that contributes to an output, or the other way round, and the whole result."""
    axes = zip(case.spatial, case.out_spatial, strict=True)
    tables = [
        resize_float64.matrix(n, m, case.method, case.align_corners, case.antialias)
        for n, m in axes
    ]
    over = 0 if pass_ == "fprop" else 1
    read = math.prod(int((table != 0).any(over).sum()) for table in tables)
    written = math.prod(case.out_spatial if pass_ == "fprop" else case.spatial)
    return case.n * case.channels * (read + written) * jnp.dtype(DTYPES[case.dtype]).itemsize


def _used(case: Case) -> list[tuple[int, int, int]]:
    """For each spatial axis: how many indices of x, of y and of the kernel contribute to anything."""
    counts = []
    for axis in range(case.ndim):
        # A transposed convolution is the convolution from its output to its input, run backwards.
        sizes = case.spatial[axis], case.out_spatial[axis]
        dense, strided = sizes[::-1] if case.transposed else sizes
        found = reach(
            dense,
            strided,
            case.kernel[axis],
            case.stride[axis],
            case.padding[axis],
            case.dilation[axis],
        )
        near, far = (found.y, found.x) if case.transposed else (found.x, found.y)
        counts.append((near, far, found.taps))
    return counts


def least_seconds(case: AnyCase, pass_: str, calls: int, memory: Memory | None) -> float:
    """The least time per call where each of ``calls`` calls in turn has its own operands and results.

    Of everything that such a round of calls touches, the cache can keep at most its own size until the next
    round: the rest goes through the memory. 0 where the memory's speed is unknown.
    """
    if memory is None:
        return 0.0
    return max(0.0, least_bytes(case, pass_) - memory.cache / calls) / memory.bandwidth


__all__ = ["Memory", "device_memory", "least_bytes", "least_seconds", "read_memory"]

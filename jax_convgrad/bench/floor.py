"""The least time that a device can take for a pass: what must be moved, at the memory's own speed.

A time below it is no speed but a fault of the clock, and is not to be quoted.
"""

from __future__ import annotations

import ctypes
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_convgrad.bench.cases import DTYPES, Case


class Memory(NamedTuple):
    """A device's memory: bytes per second at its nominal clock, and the bytes of its last cache."""

    bandwidth: float
    cache: int


def least_bytes(case: Case, pass_: str) -> int:
    """Bytes that any program for the pass must read or write.

    Elements of operands that reach no result (rows that no window reads, taps that only meet padding)
    need not be read; results are written whole.
    """
    near, far, taps = (math.prod(counts) for counts in zip(*_used(case), strict=True))
    read = {
        "x": case.n * case.cin * near,
        "w": case.cin // case.groups * case.cout * taps,
        "dy": case.n * case.cout * far,
    }
    x, w, dy = (math.prod(shape) for shape in (case.x_shape, case.w_shape, case.y_shape))
    elements = {
        "fprop": read["x"] + read["w"] + dy,
        "dx": read["dy"] + read["w"] + x,
        "dw": read["x"] + read["dy"] + w,
        # The gradient of the bias sums all of dy.
        "dxdwdb": read["x"] + read["w"] + dy + x + w + case.cout,
    }[pass_]
    return elements * jnp.dtype(DTYPES[case.dtype]).itemsize


def _used(case: Case) -> list[tuple[int, int, int]]:
    """For each spatial axis: how many indices of x, of y and of the kernel reach anything.

    With i an index of the strided side and o one of the dense side, tap t connects o = i * s - p + t * d.
    """
    counts = []
    for axis in range(case.ndim):
        sizes = case.spatial[axis], case.out_spatial[axis]
        strided, dense = sizes if case.transposed else sizes[::-1]
        i, t = np.indices((strided, case.kernel[axis]))
        o = i * case.stride[axis] - case.padding[axis] + t * case.dilation[axis]
        inside = (0 <= o) & (o < dense)
        few, many = int(inside.any(1).sum()), len(np.unique(o[inside]))
        near, far = (few, many) if case.transposed else (many, few)
        counts.append((near, far, int(inside.any(0).sum())))
    return counts


def least_seconds(case: Case, pass_: str, calls: int, memory: Memory | None) -> float:
    """The least time per call where ``calls`` calls in turn have operands and results of their own.

    Of all that such a round of calls touches, the cache can keep no more than its size until the next
    round: the rest goes through the memory. 0 where the memory's speed is not known.
    """
    if memory is None:
        return 0.0
    return max(0.0, least_bytes(case, pass_) - memory.cache / calls) / memory.bandwidth


@functools.cache
def device_memory() -> Memory | None:
    """The memory of the GPU that JAX runs on, as the CUDA driver describes it; None for others."""
    if jax.default_backend() != "gpu":
        return None
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return read_memory(driver, getattr(jax.devices()[0], "local_hardware_id", 0) or 0)


# From cuda.h: CUdevice_attribute. Kilohertz, bits and bytes.
_MEMORY_CLOCK_RATE, _GLOBAL_MEMORY_BUS_WIDTH, _L2_CACHE_SIZE = 36, 37, 38


def read_memory(driver: Any, ordinal: int) -> Memory | None:
    """Asks the driver, a library with cuda.h's functions; None if it does not answer."""
    device = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), ordinal):
        return None
    values = []
    for attribute in (_MEMORY_CLOCK_RATE, _GLOBAL_MEMORY_BUS_WIDTH, _L2_CACHE_SIZE):
        value = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
            return None
        values.append(value.value)
    kilohertz, bits, cache = values
    # Two transfers in a cycle: double data rate.
    bandwidth = 2 * 1e3 * kilohertz * bits / 8
    return Memory(bandwidth, cache) if bandwidth > 0 else None

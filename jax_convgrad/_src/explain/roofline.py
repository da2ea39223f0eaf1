"""What no program for a problem can go below: bytes to move, products to take, a device's memory speed.

Nothing here runs anything. Elements of operands that reach no result (rows that no window reads, taps
that only meet padding) need not be read, nor multiplied; results are written whole.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jax_convgrad._src.conv.geometry import ConvGeometry, Role
from jax_convgrad._src.dispatch.problem import ConvBackwardProblem
from jax_convgrad._src.resize.bands import Band
from jax_convgrad._src.shapes import Shape


class Memory(NamedTuple):
    """A device's memory: bytes per second at its nominal clock, and the bytes of its last cache."""

    bandwidth: float
    cache: int


class Roofline(NamedTuple):
    """The least work that a problem requires.

    Attributes:
      bytes: read and written, each element once.
      operations: multiplications and additions, by the definition; a transform may need fewer.
    """

    bytes: int
    operations: int

    def seconds(self, memory: Memory | None) -> float | None:
        """The time that the memory needs for the bytes, None where its speed is not known.

        Arrays that lie in the cache already can be faster.
        """
        return None if memory is None else self.bytes / memory.bandwidth


class Reach(NamedTuple):
    """Of one spatial axis of a convolution x -> y how much meets anything.

    Attributes:
      x, y, taps: how many elements.
      products: how many pairs of an element of y and a tap.
    """

    x: int
    y: int
    taps: int
    products: int


@functools.lru_cache(maxsize=1024)
def reach(x: int, y: int, taps: int, stride: int, low: int, dilation: int) -> Reach:
    """Tap t of window i reads element i * stride + t * dilation - low."""
    offsets = np.arange(taps) * dilation - low
    first, last = windows_inside(x, y, stride, offsets)
    counts = np.maximum(last - first + 1, 0)
    met, ends = np.zeros(x, bool), np.zeros(y + 1, int)
    for offset, begin, end, count in zip(offsets, first, last, counts, strict=True):
        if count:
            met[begin * stride + offset : end * stride + offset + 1 : stride] = True
            ends[begin] += 1
            ends[end + 1] -= 1
    windows = int((np.cumsum(ends)[:y] > 0).sum())
    return Reach(int(met.sum()), windows, int((counts > 0).sum()), int(counts.sum()))


def windows_inside(
    size: int, windows: int, stride: int, offsets: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each offset the first and the last i with 0 <= i * stride + offset < size; none if last < first."""
    first = np.maximum(-(offsets // stride), 0)
    return first, np.minimum((size - 1 - offsets) // stride, windows - 1)


def conv_roofline(
    operator: str, geometry: ConvGeometry, itemsize: int, result_itemsize: int
) -> Roofline:
    """The roofline of "conv_fprop", "conv_dgrad" or "conv_wgrad"."""
    read, products = _conv_work(geometry)
    results: dict[str, Role] = {"conv_fprop": "y", "conv_dgrad": "x", "conv_wgrad": "w"}
    result = results[operator]
    operands = sum(count for name, count in read.items() if name != result)
    written = math.prod(geometry.shape_of(result))
    return Roofline(operands * itemsize + written * result_itemsize, 2 * products)


def backward_roofline(problem: ConvBackwardProblem) -> Roofline:
    """The roofline of the wanted gradients together, each operand read once."""
    read, products = _conv_work(problem.geometry)
    needed = {"y"} | {role for role, other in (("w", "x"), ("x", "w")) if other in problem.wanted}
    written = sum(math.prod(problem.shape_of(gradient)) for gradient in problem.wanted)
    operations = 2 * products * len({"x", "w"} & set(problem.wanted))
    if "b" in problem.wanted:
        operations += math.prod(problem.geometry.y_shape)
    return Roofline(
        sum(read[role] for role in needed) * problem.dtype.itemsize
        + written * problem.result_dtype.itemsize,
        operations,
    )


def _conv_work(geometry: ConvGeometry) -> tuple[dict[str, int], int]:
    """Of a convolution x -> y how many elements of x, w and y meet anything, and the pairs to multiply."""
    config = geometry.config
    axes = [
        reach(n, m, k, stride, low, dilation)
        for n, m, k, stride, (low, _), dilation in zip(
            geometry.in_spatial,
            geometry.out_spatial,
            geometry.kernel,
            config.strides,
            config.padding,
            config.dilation,
            strict=True,
        )
    ]
    near, far, taps, products = (math.prod(counts) for counts in zip(*axes, strict=True))
    channels = geometry.in_channels // config.groups * geometry.out_channels
    read = {
        "x": geometry.batch * geometry.in_channels * near,
        "w": channels * taps,
        "y": geometry.batch * geometry.out_channels * far,
    }
    if geometry.is_empty:  # the result is zeros, if anything
        read = dict.fromkeys(read, 0)
    return read, geometry.batch * channels * products


def resample_roofline(
    shape: Shape, bands: Sequence[Band], axes: Sequence[int], itemsize: int
) -> Roofline:
    """The roofline of a resample of an array of ``shape``, its axes taken in the order of least work."""
    read, written = list(shape), list(shape)
    for band, axis in zip(bands, axes, strict=True):
        read[axis] = int((band.transpose.weights != 0).any(1).sum())
        written[axis] = band.out_size
    work = min(
        _products(shape, order)
        for order in itertools.permutations(list(zip(bands, axes, strict=True)))
    )
    return Roofline((math.prod(read) + math.prod(written)) * itemsize, 2 * work)


def _products(shape: Shape, order: Sequence[tuple[Band, int]]) -> int:
    """Products of the bands applied one after the other."""
    sizes, total = list(shape), 0
    for band, axis in order:
        total += math.prod(sizes[:axis] + sizes[axis + 1 :]) * int(np.count_nonzero(band.weights))
        sizes[axis] = band.out_size
    return total


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

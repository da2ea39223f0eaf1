"""The little of CUDA's driver interface that the stress programs need, through ctypes.

All functions work in the primary context of a device, which is the one that JAX uses.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np


class CudaError(RuntimeError):
    """A call of the driver that failed."""


@functools.cache
def _driver() -> ctypes.CDLL:
    library = ctypes.CDLL("libcuda.so.1")
    status = library.cuInit(0)
    if status != 0:
        raise CudaError(f"cuInit: error {status}")
    return library


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_driver(), name)(*arguments)
    if status != 0:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        raise CudaError(f"{name}: {(text.value or b'unknown').decode()} ({status})")


@functools.cache
def _context(device: int) -> ctypes.c_void_p:
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    _call("cuDeviceGet", ctypes.byref(handle), device)
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
    return context


def use(device: int = 0) -> None:
    """Makes the device current in the calling thread; every thread must do so once."""
    _call("cuCtxSetCurrent", _context(device))


def memory() -> tuple[int, int]:
    """Bytes of device memory that are free, and in all, whoever uses them."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def allocate(size: int) -> int:
    """The address of ``size`` bytes of device memory."""
    pointer = ctypes.c_uint64()
    _call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
    return pointer.value


def free(pointer: int) -> None:
    _call("cuMemFree_v2", ctypes.c_uint64(pointer))


def create_stream() -> int:
    """A stream that does not wait for the default stream."""
    stream = ctypes.c_void_p()
    _call("cuStreamCreate", ctypes.byref(stream), 1)
    assert stream.value is not None
    return stream.value


def synchronize(stream: int) -> None:
    _call("cuStreamSynchronize", ctypes.c_void_p(stream))


def copy_to_device(pointer: int, array: np.ndarray) -> None:
    array = np.ascontiguousarray(array)
    size = ctypes.c_size_t(array.nbytes)
    _call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), _address(array), size)


def fill(pointer: int, byte: int, size: int, stream: int) -> None:
    """Sets every byte, in the order of the stream."""
    _call(
        "cuMemsetD8Async",
        ctypes.c_uint64(pointer),
        ctypes.c_ubyte(byte),
        ctypes.c_size_t(size),
        ctypes.c_void_p(stream),
    )


def copy_to_host(array: np.ndarray, pointer: int, stream: int) -> None:
    """Fills ``array`` when the stream has come so far, and waits for that."""
    _call(
        "cuMemcpyDtoHAsync_v2",
        _address(array),
        ctypes.c_uint64(pointer),
        ctypes.c_size_t(array.nbytes),
        ctypes.c_void_p(stream),
    )
    synchronize(stream)


def _address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)

"""The few functions of CUDA's driver that the benchmark and the stress programs need, through ctypes.

All functions work in the primary context of a device, which is the one that JAX and PyTorch use. Handles of
streams and events are their pointers as numbers.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

# From cuda.h: CU_STREAM_NON_BLOCKING, CU_EVENT_BLOCKING_SYNC and CUDA_ERROR_NOT_READY.
_STREAM_NON_BLOCKING, _EVENT_BLOCKING_SYNC, _NOT_READY = 1, 1, 600


class CudaError(RuntimeError):
    """A call of the driver failed, or there is no driver."""


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError(f"CUDA's driver cannot be loaded: {error}") from error
    status = library.cuInit(0)
    if status != 0:
        raise CudaError(f"cuInit: error {status}")
    return library


def _call(name: str, *arguments: Any, expected: tuple[int, ...] = (0,)) -> int:
    """The status, which is one of those expected."""
    status: int = getattr(_driver(), name)(*arguments)
    if status not in expected:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        raise CudaError(f"{name}: {(text.value or b'unknown').decode()} ({status})")
    return status


@functools.cache
def _context(device: int) -> ctypes.c_void_p:
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    _call("cuDeviceGet", ctypes.byref(handle), device)
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
    return context


def use(device: int = 0) -> None:
    """Makes the device current in the calling thread; every thread must do so once."""
    _call("cuCtxSetCurrent", _context(device))


@contextlib.contextmanager
def current(device: int) -> Iterator[None]:
    """Makes the device current in the calling thread inside, and restores the previous one afterwards."""
    _call("cuCtxPushCurrent_v2", _context(device))
    try:
        yield
    finally:
        _call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def memory() -> tuple[int, int]:
    """Bytes of device memory that are free, and the total, over all processes."""
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
    _call("cuStreamCreate", ctypes.byref(stream), _STREAM_NON_BLOCKING)
    assert stream.value is not None
    return stream.value


def destroy_stream(stream: int) -> None:
    _call("cuStreamDestroy_v2", ctypes.c_void_p(stream))


def synchronize(stream: int) -> None:
    _call("cuStreamSynchronize", ctypes.c_void_p(stream))


def create_event() -> int:
    """An event that takes the device's time. A thread that waits for it sleeps."""
    event = ctypes.c_void_p()
    _call("cuEventCreate", ctypes.byref(event), _EVENT_BLOCKING_SYNC)
    assert event.value is not None
    return event.value


def record_event(event: int, stream: int) -> None:
    """Enqueues the event: it takes the time when the stream reaches it. 0 is the default stream."""
    _call("cuEventRecord", ctypes.c_void_p(event), ctypes.c_void_p(stream))


def has_passed(event: int) -> bool:
    """Whether the stream has reached the event."""
    return _call("cuEventQuery", ctypes.c_void_p(event), expected=(0, _NOT_READY)) == 0


def wait_for_event(event: int) -> None:
    _call("cuEventSynchronize", ctypes.c_void_p(event))


def seconds_between(begin: int, end: int) -> float:
    """From one event that has passed to another, by the device's clock, which counts half microseconds."""
    milliseconds = ctypes.c_float()
    _call(
        "cuEventElapsedTime",
        ctypes.byref(milliseconds),
        ctypes.c_void_p(begin),
        ctypes.c_void_p(end),
    )
    return 1e-3 * milliseconds.value


def destroy_event(event: int) -> None:
    _call("cuEventDestroy_v2", ctypes.c_void_p(event))


def copy_to_device(pointer: int, array: np.ndarray) -> None:
    """The copy is complete when this returns, whichever stream comes next."""
    array = np.ascontiguousarray(array)
    size = ctypes.c_size_t(array.nbytes)
    _call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), _address(array), size)
    # From pageable memory, the call may return when the data has only reached a buffer.
    synchronize(0)


def fill(pointer: int, byte: int, size: int, stream: int) -> None:
    """Sets every byte, in stream order."""
    _call(
        "cuMemsetD8Async",
        ctypes.c_uint64(pointer),
        ctypes.c_ubyte(byte),
        ctypes.c_size_t(size),
        ctypes.c_void_p(stream),
    )


def copy_to_host(array: np.ndarray, pointer: int, stream: int) -> None:
    """Fills ``array`` when the stream reaches this copy, and waits for it."""
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

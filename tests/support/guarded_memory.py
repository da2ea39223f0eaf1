"""Arrays with NaNs around them, or with a page behind them that must not be touched.

What a handler reads in front of an array or behind it turns its result into NaN, and what it writes there is
seen afterwards.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from support.ffi_host import Buffer, HandlerError

from jax_convgrad._src.timing import cuda_driver

_PAGE = mmap.PAGESIZE
_ALIGNMENT = 64  # of XLA's arrays on the CPU
_NAN = 0xFF  # four of these bytes, or two or eight, are a NaN in every floating type
_NO_ACCESS = 0  # PROT_NONE


class HostArray:
    """An array of a shape and a dtype, NaN until it is `fill`ed.

    ``page`` puts its end next to a page that may be neither read nor written, as near as XLA's alignment
    lets it. Otherwise it has a page of NaNs behind it, as it always has in front of it.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str, page: bool = False) -> None:
        self._shape, self._dtype = shape, dtype
        self._bytes = math.prod(shape) * jnp.dtype(dtype).itemsize
        aligned = -(-self._bytes // _ALIGNMENT) * _ALIGNMENT
        pages = max(-(-aligned // _PAGE), 1) * _PAGE
        self._map = mmap.mmap(-1, _PAGE + pages + _PAGE)
        self._begin = _PAGE + (pages - aligned if page else 0)
        usable = _PAGE + pages + (0 if page else _PAGE)
        self._memory = np.frombuffer(self._map, np.uint8, usable)
        self._memory[:] = _NAN
        if page:
            _protect(self._memory.ctypes.data + usable, _PAGE)

    @property
    def buffer(self) -> Buffer:
        return Buffer(self._memory.ctypes.data + self._begin, self._shape, self._dtype)

    @property
    def values(self) -> np.ndarray:
        inside = self._memory[self._begin : self._begin + self._bytes]
        return inside.view(jnp.dtype(self._dtype)).reshape(self._shape)

    def fill(self, values: np.ndarray) -> HostArray:
        self.values[...] = values.astype(jnp.dtype(self._dtype))
        return self

    def is_untouched_outside(self) -> bool:
        front, back = self._memory[: self._begin], self._memory[self._begin + self._bytes :]
        return bool((front == _NAN).all() and (back == _NAN).all())


class DeviceArray:
    """The same in the memory of the current device, for handlers on a stream; no page there.

    What concerns the memory is in the order of that stream.
    """

    _MARGIN = 256 * 1024
    _memory = 0  # where allocating it fails

    def __init__(self, shape: tuple[int, ...], dtype: str, stream: int) -> None:
        self._shape, self._dtype, self._stream = shape, dtype, stream
        self._bytes = math.prod(shape) * jnp.dtype(dtype).itemsize
        self._size = self._MARGIN + self._bytes + self._MARGIN
        self._memory = cuda_driver.allocate(self._size)
        cuda_driver.fill(self._memory, _NAN, self._size, stream)

    def __del__(self) -> None:
        if self._memory:
            cuda_driver.free(self._memory)

    @property
    def buffer(self) -> Buffer:
        return Buffer(self._memory + self._MARGIN, self._shape, self._dtype)

    @property
    def values(self) -> np.ndarray:
        """A copy."""
        inside = self._copy(self._MARGIN, self._bytes)
        return inside.view(jnp.dtype(self._dtype)).reshape(self._shape)

    def fill(self, values: np.ndarray) -> DeviceArray:
        cuda_driver.synchronize(self._stream)
        cuda_driver.copy_to_device(self.buffer.address, values.astype(jnp.dtype(self._dtype)))
        return self

    def is_untouched_outside(self) -> bool:
        front = self._copy(0, self._MARGIN)
        back = self._copy(self._MARGIN + self._bytes, self._MARGIN)
        return bool((front == _NAN).all() and (back == _NAN).all())

    def _copy(self, begin: int, size: int) -> np.ndarray:
        memory = np.empty(size, np.uint8)
        if size > 0:
            cuda_driver.copy_to_host(memory, self._memory + begin, self._stream)
        return memory


def misdeed(
    call: Callable[[list[Buffer], list[Buffer]], None],
    operands: Sequence[HostArray | DeviceArray],
    results: Sequence[HostArray | DeviceArray],
) -> str:
    """Makes a call. Returns its error, or its damage to memory that is not its own; empty if none."""
    before = [operand.values.tobytes() for operand in operands]
    try:
        call([array.buffer for array in operands], [array.buffer for array in results])
    except HandlerError as error:
        return str(error)
    if not all(array.is_untouched_outside() for array in (*operands, *results)):
        return "a write outside of its arrays"
    if before != [operand.values.tobytes() for operand in operands]:
        return "a write to an operand"
    return ""


def _protect(address: int, size: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), _NO_ACCESS) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")

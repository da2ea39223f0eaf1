"""Calls the compiled convolution handlers past JAX, on any stream: see ffi_caller.cc."""

from __future__ import annotations

import ctypes
import functools
import pathlib
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

INITIALIZE, EXECUTE = 2, 3  # XLA_FFI_ExecutionStage
_CODES = {3: "INVALID_ARGUMENT", 8: "RESOURCE_EXHAUSTED", 9: "FAILED_PRECONDITION"}
_CODES |= {2: "UNKNOWN", 12: "UNIMPLEMENTED", 13: "INTERNAL"}
_DTYPES = {"bool": 1, "int64": 5, "uint8": 6, "float16": 10, "float32": 11, "float64": 12}
_DTYPES |= {"bfloat16": 16}


class _Buffer(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    ]


class _Attribute(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("is_array", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("size", ctypes.c_int64),
        ("data", ctypes.c_void_p),
    ]


class HandlerError(RuntimeError):
    """What a handler returned."""


@functools.cache
def _library() -> Any:
    """Compiled against the installed jaxlib's headers, as the handlers are."""
    source = pathlib.Path(__file__).with_name("ffi_caller.cc")
    target = pathlib.Path(tempfile.mkdtemp(prefix="jax_convgrad_")) / "ffi_caller.so"
    command = ["g++", "-std=c++17", "-O2", "-shared", "-fPIC", "-isystem", jax.ffi.include_dir()]
    subprocess.run([*command, "-o", str(target), str(source)], check=True)
    library = ctypes.CDLL(str(target))
    target.unlink()
    target.parent.rmdir()
    return library


def _address(capsule: Any) -> int:
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))


class Call:
    """One call of one handler on fixed buffers, to be run again and again by one thread at a time."""

    def __init__(
        self,
        stages: Any,
        operands: Sequence[tuple[int, tuple[int, ...], str]],
        results: Sequence[tuple[int, tuple[int, ...], str]],
        attributes: dict[str, np.ndarray | np.generic],
        stream: int | None = None,
        device: int = 0,
    ) -> None:
        """``stages`` is what the module's `handlers` has; buffers are (address, shape, dtype)."""
        stages = stages if isinstance(stages, dict) else {"execute": stages}
        self._stages = {
            {"initialize": INITIALIZE, "execute": EXECUTE}[name]: _address(capsule)
            for name, capsule in stages.items()
        }
        buffers = [*operands, *results]
        self._sizes = len(operands), len(buffers), len(attributes)
        self._keep: list[Any] = []  # what the structures point to
        self._buffers = (_Buffer * len(buffers))(*(self._buffer(*b) for b in buffers))
        self._attributes = (_Attribute * len(attributes))(
            *(self._attribute(name, attributes[name]) for name in sorted(attributes))
        )
        self._where = ctypes.c_void_p(stream), ctypes.c_int32(device)
        self._text = ctypes.create_string_buffer(4096)
        _library()

    def run(self, stage: int = EXECUTE) -> None:
        """Runs a stage; one that the handler does not have is nothing.

        Raises:
          HandlerError: with the code's name and the text.
        """
        if stage not in self._stages:
            return
        operands, buffers, attributes = map(ctypes.c_int64, self._sizes)
        code = _library().CallHandler(
            ctypes.c_void_p(self._stages[stage]),
            ctypes.c_int32(stage),
            *self._where,
            operands,
            buffers,
            self._buffers,
            attributes,
            self._attributes,
            self._text,
            ctypes.c_size_t(len(self._text)),
        )
        if code != 0:
            text = self._text.value.decode(errors="replace")
            raise HandlerError(f"{_CODES.get(code, code)}: {text}")

    def _buffer(self, address: int, shape: tuple[int, ...], dtype: str) -> _Buffer:
        dims = (ctypes.c_int64 * len(shape))(*shape)
        self._keep.append(dims)
        return _Buffer(address, _DTYPES[dtype], len(shape), dims)

    def _attribute(self, name: str, value: np.ndarray | np.generic) -> _Attribute:
        array = np.array(value)  # a copy of one's own
        text = name.encode()
        self._keep += [array, text]
        is_array, dtype = np.ndim(value) > 0, _DTYPES[str(array.dtype)]
        return _Attribute(text, is_array, dtype, array.size, array.ctypes.data)

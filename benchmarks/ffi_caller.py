"""Calls the compiled convolution handlers without JAX, on any stream: see ffi_caller.cc."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import pathlib
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import jax
import numpy as np

from jax_convgrad._src.dispatch.override import override_preparation

INITIALIZE, EXECUTE = 2, 3  # XLA_FFI_ExecutionStage
_CODES = {3: "INVALID_ARGUMENT", 8: "RESOURCE_EXHAUSTED", 9: "FAILED_PRECONDITION"}
_CODES |= {2: "UNKNOWN", 12: "UNIMPLEMENTED", 13: "INTERNAL"}
_DTYPES = {"bool": 1, "int64": 5, "uint8": 6, "float16": 10, "float32": 11, "float64": 12}
_DTYPES |= {"bfloat16": 16}
_ATTRIBUTE_KINDS = {"array": 1, "scalar": 3, "string": 4}


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
        ("kind", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("size", ctypes.c_int64),
        ("data", ctypes.c_void_p),
    ]


class HandlerError(RuntimeError):
    """The error that a handler returned."""


@functools.cache
def _library() -> Any:
    """The library, compiled against the installed jaxlib's headers like the handlers."""
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


@dataclasses.dataclass(frozen=True)
class Array:
    """An operand or a result: its logical shape, and its axes from major to minor in memory."""

    shape: tuple[int, ...]
    dtype: str
    order: tuple[int, ...]

    def to_memory(self, array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(array.transpose(self.order))

    def from_memory(self, array: np.ndarray) -> np.ndarray:
        return array.transpose(np.argsort(self.order))


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A call as the package lowers it."""

    target: str
    operands: tuple[Array, ...]
    results: tuple[Array, ...]
    attributes: dict[str, Any]


def recorded(f: Callable[..., Any], *arrays: Any, platform: str) -> Recorded:
    """The one handler call in ``f(*arrays)`` on a platform, with nothing compiled or run."""
    found: dict[str, Recorded] = {}
    original = jax.ffi.ffi_call

    def ffi_call(
        target: str, results: Any, *, input_layouts: Any, output_layouts: Any, **more: Any
    ):
        inner = original(
            target, results, input_layouts=input_layouts, output_layouts=output_layouts, **more
        )

        def call(*operands: Any, **attributes: Any) -> Any:
            described = [
                Array(a.shape, str(a.dtype), tuple(range(len(a.shape)) if order is None else order))
                for a, order in zip(
                    (*operands, *results), (*input_layouts, *output_layouts), strict=True
                )
            ]
            count = len(operands)
            found[target] = Recorded(
                target, tuple(described[:count]), tuple(described[count:]), dict(attributes)
            )
            return inner(*operands, **attributes)

        return call

    # On the CPU the handler gets what the function gets.
    as_it_is = override_preparation("none") if platform == "cpu" else contextlib.nullcontext()
    with mock.patch.object(jax.ffi, "ffi_call", ffi_call), as_it_is:
        jax.jit(f).trace(*arrays).lower(lowering_platforms=(platform,))
    (only,) = found.values()
    return only


class Call:
    """One call of one handler on fixed buffers, which one thread at a time may run repeatedly."""

    def __init__(
        self,
        stages: Any,
        call: Recorded,
        addresses: Sequence[int],
        stream: int | None = None,
        device: int = 0,
    ) -> None:
        """``stages`` is what the module's `handlers` has; ``addresses`` of operands, then results."""
        stages = stages if isinstance(stages, dict) else {"execute": stages}
        self._stages = {
            {"initialize": INITIALIZE, "execute": EXECUTE}[name]: _address(capsule)
            for name, capsule in stages.items()
        }
        arrays = (*call.operands, *call.results)
        attributes = call.attributes
        self._sizes = len(call.operands), len(arrays), len(attributes)
        self._keep: list[Any] = []  # keeps alive what the structures point to
        self._buffers = (_Buffer * len(arrays))(*map(self._buffer, addresses, arrays))
        self._attributes = (_Attribute * len(attributes))(
            *(self._attribute(name, attributes[name]) for name in sorted(attributes))
        )
        self._where = ctypes.c_void_p(stream), ctypes.c_int32(device)
        self._text = ctypes.create_string_buffer(4096)
        _library()

    def run(self, stage: int = EXECUTE) -> None:
        """Runs a stage. Does nothing if the handler does not have it.

        Raises:
          HandlerError: with the code's name and the text.
        """
        if stage in self._stages:
            self._check(_library().CallHandler(*self._arguments(stage)))

    def seconds(self, runs: int, stage: int = EXECUTE) -> float:
        """Seconds of host time for each of ``runs`` calls in a row.

        Raises:
          HandlerError: as `run` does.
        """
        seconds = ctypes.c_double()
        arguments = (*self._arguments(stage), ctypes.c_int64(runs), ctypes.byref(seconds))
        self._check(_library().TimeHandler(*arguments))
        return seconds.value / runs

    def empty_seconds(self, runs: int) -> float:
        """The same for a handler that returns at once."""
        seconds = ctypes.c_double()
        empty = ctypes.cast(_library().EmptyHandler, ctypes.c_void_p)
        arguments = empty, *self._arguments(EXECUTE)[1:], ctypes.c_int64(runs)
        self._check(_library().TimeHandler(*arguments, ctypes.byref(seconds)))
        return seconds.value / runs

    def _arguments(self, stage: int) -> tuple[Any, ...]:
        operands, buffers, attributes = map(ctypes.c_int64, self._sizes)
        handler = ctypes.c_void_p(self._stages[stage]), ctypes.c_int32(stage)
        arrays = operands, buffers, self._buffers, attributes, self._attributes
        text = self._text, ctypes.c_size_t(len(self._text))
        return (*handler, *self._where, *arrays, *text)

    def _check(self, code: int) -> None:
        if code != 0:
            text = self._text.value.decode(errors="replace")
            raise HandlerError(f"{_CODES.get(code, code)}: {text}")

    def _buffer(self, address: int, array: Array) -> _Buffer:
        dims = (ctypes.c_int64 * len(array.shape))(*array.shape)
        self._keep.append(dims)
        return _Buffer(address, _DTYPES[array.dtype], len(array.shape), dims)

    def _attribute(self, name: str, value: np.ndarray | np.generic | str) -> _Attribute:
        if isinstance(value, str):
            kind, array = "string", np.frombuffer(value.encode(), np.uint8)
        else:
            kind = "array" if np.ndim(value) > 0 else "scalar"
            array = np.array(value)  # a copy of one's own
        text = name.encode()
        self._keep += [array, text]
        dtype = _DTYPES[str(array.dtype)]
        return _Attribute(text, _ATTRIBUTE_KINDS[kind], dtype, array.size, array.ctypes.data)

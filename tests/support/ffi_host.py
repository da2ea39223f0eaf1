"""XLA's side of a call to a handler, in Python: the part of the FFI's C API that the handlers use.

XLA chooses where arrays lie, and other arrays lie around them. Here the test does, so that it can say what
lies there. The structures are those of ``xla/ffi/api/c_api.h`` in the jaxlib that the modules are built
with (pyproject.toml), which newer ones go on to understand.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import itertools
from collections.abc import Iterable, Mapping
from ctypes import c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from typing import Any, NamedTuple

import numpy as np

_MAX_SECONDS = 300  # of work that a handler continues after it has returned
_STAGES = {"initialize": 2, "execute": 3}  # XLA_FFI_ExecutionStage
_BUFFER = 1  # XLA_FFI_ArgType and XLA_FFI_RetType
_ARRAY, _SCALAR = 1, 3  # XLA_FFI_AttrType
_STRING = 4
# XLA_FFI_DataType.
_DTYPES = {
    "bool": 1,
    "int32": 4,
    "int64": 5,
    "uint8": 6,
    "float16": 10,
    "float32": 11,
    "float64": 12,
    "bfloat16": 16,
}


class Buffer(NamedTuple):
    """An operand or a result: its address, for a CUDA handler on the device."""

    address: int
    shape: tuple[int, ...]
    dtype: str


class HandlerError(Exception):
    """What a handler returned, or set its future to."""


def _struct(*fields: tuple[str, Any]) -> type[ctypes.Structure]:
    """The common beginning of all structures of the C API."""
    head = [("struct_size", c_size_t), ("extension_start", c_void_p)]
    return type("Struct", (ctypes.Structure,), {"_fields_": [*head, *fields]})


_Version = _struct(("major", c_int), ("minor", c_int))
_Buffer = _struct(("dtype", c_int), ("data", c_void_p), ("rank", c_int64), ("dims", c_void_p))
_Buffers = _struct(("size", c_int64), ("types", c_void_p), ("items", c_void_p))
_Attributes = _struct(
    ("size", c_int64), ("types", c_void_p), ("names", c_void_p), ("items", c_void_p)
)
_Frame = _struct(
    ("api", c_void_p),
    ("context", c_void_p),
    ("stage", c_int),
    ("operands", _Buffers),
    ("results", _Buffers),
    ("attributes", _Attributes),
    ("future", c_void_p),
)
_FRAME_BYTES = _Frame.future.offset  # the result is not counted

_ErrorCreate = _struct(("message", c_char_p), ("code", c_int))
_ErrorGetMessage = _struct(("error", c_void_p), ("message", c_char_p))
_StreamGet = _struct(("context", c_void_p), ("stream", c_void_p))
_Schedule = _struct(("context", c_void_p), ("task", c_void_p), ("data", c_void_p))
_NumThreads = _struct(("context", c_void_p), ("threads", ctypes.POINTER(c_int64)))
_FutureCreate = _struct(("future", c_void_p))
_FutureSetError = _struct(("future", c_void_p), ("error", c_void_p))
_Ordinal = _struct(("context", c_void_p), ("ordinal", c_int32))

# In the order of XLA_FFI_Api. Functions that no handler of this project calls have no arguments here.
_FUNCTIONS: dict[str, type[ctypes.Structure] | None] = {
    "error_create": _ErrorCreate,
    "error_get_message": _ErrorGetMessage,
    "error_destroy": _struct(("error", c_void_p)),
    "handler_register": None,
    "stream_get": _StreamGet,
    "type_register": None,
    "execution_context_get": None,
    "state_set": None,
    "state_get": None,
    "device_memory_allocate": None,
    "device_memory_free": None,
    "thread_pool_schedule": _Schedule,
    "thread_pool_num_threads": _NumThreads,
    "future_create": _FutureCreate,
    "future_set_available": _FutureCreate,
    "future_set_error": _FutureSetError,
    "run_id_get": None,
    "device_ordinal_get": _Ordinal,
}
_Function = ctypes.CFUNCTYPE(c_void_p, c_void_p)
_Api = _struct(
    ("version", _Version), ("internal", c_void_p), *((name, _Function) for name in _FUNCTIONS)
)


class _Span(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("size", c_size_t)]


class _Scalar(ctypes.Structure):
    _fields_ = [("dtype", c_int), ("value", c_void_p)]


class _Array(ctypes.Structure):
    _fields_ = [("dtype", c_int), ("size", c_size_t), ("data", c_void_p)]


def _address(capsule: Any) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = c_void_p, [ctypes.py_object, c_char_p]
    return get(capsule, None)


class Host:
    """Calls handlers, with ``threads`` threads for their work, or on a stream of a device."""

    def __init__(self, threads: int = 1, stream: int = 0, device: int = 0) -> None:
        self._threads, self._stream, self._device = threads, stream, device
        self._workers = concurrent.futures.ThreadPoolExecutor(threads)
        self._handles = itertools.count(1)
        self._messages: dict[int, bytes] = {}
        self._futures: dict[int, concurrent.futures.Future[int | None]] = {}
        self._api = _Api(ctypes.sizeof(_Api))
        self._api.version = _Version(ctypes.sizeof(_Version), None, 0, 3)
        for name, arguments in _FUNCTIONS.items():
            if arguments is not None:
                setattr(self._api, name, self._function(getattr(self, f"_{name}"), arguments))

    def call(
        self,
        handler: Any,
        operands: Iterable[Buffer],
        results: Iterable[Buffer],
        attributes: Mapping[str, Any],
        stage: str = "execute",
    ) -> None:
        """Runs a stage of a handler, which is one of a module's capsules, until its work is done.

        On a device: until that is launched. Raises HandlerError.
        """
        alive: list[Any] = []  # the data that the frame points to
        frame = _Frame(_FRAME_BYTES)
        frame.api = ctypes.addressof(self._api)
        frame.stage = _STAGES[stage]
        frame.operands = _buffers(operands, alive)
        frame.results = _buffers(results, alive)
        frame.attributes = _attributes(attributes, alive)
        error = _Function(_address(handler))(ctypes.addressof(frame))
        if frame.future:
            error = error or self._futures[frame.future].result(_MAX_SECONDS)
            del self._futures[frame.future]
        if error:
            raise HandlerError(self._messages.pop(error).decode())

    @staticmethod
    def _function(method: Any, arguments: type[ctypes.Structure]) -> Any:
        return _Function(lambda address: method(arguments.from_address(address)))

    def _error_create(self, arguments: Any) -> int:
        handle = next(self._handles)
        self._messages[handle] = arguments.message
        return handle

    def _error_get_message(self, arguments: Any) -> None:
        arguments.message = self._messages[arguments.error]

    def _error_destroy(self, arguments: Any) -> None:
        del self._messages[arguments.error]

    def _stream_get(self, arguments: Any) -> None:
        arguments.stream = self._stream

    def _device_ordinal_get(self, arguments: Any) -> None:
        arguments.ordinal = self._device

    def _thread_pool_num_threads(self, arguments: Any) -> None:
        arguments.threads[0] = self._threads

    def _thread_pool_schedule(self, arguments: Any) -> None:
        self._workers.submit(_Function(arguments.task), arguments.data)

    def _future_create(self, arguments: Any) -> None:
        arguments.future = next(self._handles)
        self._futures[arguments.future] = concurrent.futures.Future()

    def _future_set_available(self, arguments: Any) -> None:
        self._futures[arguments.future].set_result(None)

    def _future_set_error(self, arguments: Any) -> None:
        self._futures[arguments.future].set_result(arguments.error)


def _pointers(items: list[Any], alive: list[Any]) -> int:
    array = (c_void_p * len(items))(*map(ctypes.addressof, items))
    alive += [*items, array]
    return ctypes.addressof(array)


def _kinds(kinds: list[int], alive: list[Any]) -> int:
    array = (c_int * len(kinds))(*kinds)
    alive.append(array)
    return ctypes.addressof(array)


def _buffers(buffers: Iterable[Buffer], alive: list[Any]) -> Any:
    items = []
    for address, shape, dtype in buffers:
        dims = (c_int64 * len(shape))(*shape)
        alive.append(dims)
        size = ctypes.sizeof(_Buffer)
        items.append(
            _Buffer(size, None, _DTYPES[dtype], address, len(shape), ctypes.addressof(dims))
        )
    kinds = _kinds([_BUFFER] * len(items), alive)
    return _Buffers(ctypes.sizeof(_Buffers), None, len(items), kinds, _pointers(items, alive))


def _attributes(values: Mapping[str, Any], alive: list[Any]) -> Any:
    """Numpy scalars and vectors, and strings; XLA sorts them by their names."""
    kinds, names, items = [], [], []
    for name, value in sorted(values.items()):
        text = name.encode()
        alive.append(text)
        names.append(_Span(ctypes.cast(c_char_p(text), c_void_p), len(text)))
        if isinstance(value, str):
            data = value.encode()
            alive.append(data)
            kinds.append(_STRING)
            items.append(_Span(ctypes.cast(c_char_p(data), c_void_p), len(data)))
            continue
        array = np.array(value)
        alive.append(array)
        dtype = _DTYPES[str(array.dtype)]
        if array.ndim == 0:
            kinds.append(_SCALAR)
            items.append(_Scalar(dtype, array.ctypes.data))
        else:
            kinds.append(_ARRAY)
            items.append(_Array(dtype, array.size, array.ctypes.data))
    return _Attributes(
        ctypes.sizeof(_Attributes),
        None,
        len(items),
        _kinds(kinds, alive),
        _pointers(names, alive),
        _pointers(items, alive),
    )

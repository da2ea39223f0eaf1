"""A GPU's own clock: marks on the device's timeline, and the time between two of them.

A mark is an event of CUDA's driver. The host enqueues it like any other work; the device takes the time
when it reaches the mark, however late the host learns of it.

PyTorch exposes the stream that it computes on, so its marks are in that stream. JAX does not. Its marks are
in a stream of this module's own, which waits on the device, by the DLPack protocol, until an array is
computed, while the host goes on. Such a wait adds some microseconds, but it adds them to both marks.
"""

from __future__ import annotations

import abc
from typing import Any, Protocol

import jax

from jax_convgrad._src.timing import cuda_driver


class ClockError(RuntimeError):
    """This JAX cannot put marks on the device's timeline."""


class DeviceClock(Protocol):
    """Puts marks on a device's timeline. None of the methods but `seconds_between` waits for the device."""

    def mark(self, after: Any) -> Any:
        """A mark behind the work that computes ``after``."""

    def has_passed(self, mark: Any) -> bool:
        """Whether the device has reached the mark."""

    def seconds_between(self, begin: Any, end: Any) -> float:
        """Waits until the device has reached the end. Both marks are used up."""


class _EventClock(abc.ABC):
    """Marks that are events of CUDA's driver."""

    def __init__(self, device: int) -> None:
        self._device = device

    @abc.abstractmethod
    def _stream_behind(self, after: Any) -> int:
        """A stream whose next work begins when ``after`` has been computed."""

    def mark(self, after: Any) -> int:
        stream = self._stream_behind(after)
        with cuda_driver.current(self._device):
            event = cuda_driver.create_event()
            cuda_driver.record_event(event, stream)
        return event

    def has_passed(self, mark: int) -> bool:
        with cuda_driver.current(self._device):
            return cuda_driver.has_passed(mark)

    def seconds_between(self, begin: int, end: int) -> float:
        with cuda_driver.current(self._device):
            cuda_driver.wait_for_event(end)
            seconds = cuda_driver.seconds_between(begin, end)
            cuda_driver.destroy_event(begin)
            cuda_driver.destroy_event(end)
        return seconds


class JaxClock(_EventClock):
    """Marks behind JAX arrays, on the device that JAX computes on."""

    def __init__(self) -> None:
        super().__init__(getattr(jax.devices()[0], "local_hardware_id", 0) or 0)
        with cuda_driver.current(self._device):
            self._stream = cuda_driver.create_stream()

    def _stream_behind(self, after: Any) -> int:
        for array in jax.tree.leaves(after):
            try:
                # The capsule is dropped: nobody reads the array here, only the wait matters.
                array.__dlpack__(stream=self._stream)
            except jax.errors.JaxRuntimeError as error:
                if "UNIMPLEMENTED" not in str(error):
                    raise  # the computation of the array has failed
                raise ClockError(
                    f"in this JAX a CUDA stream cannot wait for an array, so the device's time "
                    f"cannot be measured: {error}"
                ) from error
        return self._stream


class TorchClock(_EventClock):
    """Marks in PyTorch's current stream, behind everything that was enqueued so far."""

    def __init__(self) -> None:
        import torch

        super().__init__(torch.cuda.current_device())

    def _stream_behind(self, after: Any) -> int:
        import torch

        stream: int = torch.cuda.current_stream(self._device).cuda_stream
        return stream

"""What a measurement depends on: the device, the library behind the handlers, and this package."""

from __future__ import annotations

import ctypes
import functools
import pathlib

import jax

from jax_convgrad._src.runtime import registry
from jax_convgrad._src.timing.processors import cpu_threads

# "platform", "device", "library" and "package".
MadeOn = dict[str, str]


def made_on(platform: str) -> MadeOn | None:
    """What a measurement on this machine depends on; None where it has no device of the platform."""
    device = _cpu() if platform == "cpu" else _gpu(platform)
    if device is None:
        return None
    return {
        "platform": platform,
        "device": device,
        "library": _library(platform),
        "package": registry.version(),
    }


@functools.cache
def _cpu() -> str:
    """The processor's model, and the number of XLA's threads: both decide which backend is fastest."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else 'CPU'}, {cpu_threads()} threads"


@functools.cache
def _gpu(platform: str) -> str | None:
    try:
        return str(jax.devices(platform)[0].device_kind)
    except RuntimeError:  # a program for another machine is lowered here
        return None


@functools.cache
def _library(platform: str) -> str:
    if platform == "cuda":
        return f"cudnn {_cudnn()}"
    versions = dict(registry.find(platform).versions)
    return ", ".join(f"{name} {versions[name]}" for name in sorted(versions)) or "none"


def _cudnn() -> str:
    """cuDNN's version, of the copy that JAX loads.

    The CUDA module does not know it before the first call of a handler, and rows are read before that.
    """
    path = registry.cudnn_library()
    try:
        number = int(ctypes.CDLL(str(path) if path else "libcudnn.so.9").cudnnGetVersion())
    except OSError:
        return "none"
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"

"""The machine, as far as it decides what runs: processor, GPUs, driver, libraries, JAX's devices."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from typing import Any

import jax

from jax_convgrad._src.dispatch.devices import device_class
from jax_convgrad._src.timing.processors import cpu_model

_LIBRARIES = (
    "nvidia-cuda-runtime",
    "nvidia-cuda-runtime-cu12",
    "nvidia-cudnn-cu13",
    "nvidia-cudnn-cu12",
)


def describe() -> dict[str, Any]:
    """Names with texts or lists of texts; None for what the machine does not have."""
    return {
        "system": f"{platform.platform()}, {platform.machine()}",
        "CPU": cpu_model(),
        "instruction set": device_class("cpu"),
        **_nvidia(),
        **{name: text for name in _LIBRARIES if (text := _version(name)) is not None},
        "JAX's devices": _devices(),
    }


def _nvidia() -> dict[str, Any]:
    """The report of nvidia-smi, which comes with the driver."""
    command = ["nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {"GPUs": None, "NVIDIA driver": None}
    rows = [[part.strip() for part in row.split(",")] for row in done.stdout.splitlines() if row]
    rows = [row for row in rows if len(row) == 3]
    return {
        "GPUs": [f"{name} (compute capability {capability})" for name, capability, _ in rows],
        "NVIDIA driver": sorted({driver for *_, driver in rows}),
    }


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices() -> list[str]:
    try:
        return [f"{device} ({device.device_kind})" for device in jax.devices()]
    except RuntimeError as error:
        return [f"none: {str(error).splitlines()[0]}"]

"""The processors and the cache that a time depends on."""

from __future__ import annotations

import contextlib
import os
import pathlib
import platform

import jax


def cpu_model() -> str:
    """The processor's name, where the system reports it."""
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cpu_threads() -> int:
    """The number of XLA's CPU threads: one per processor this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def last_level_cache() -> int:
    """Bytes of the device's last-level cache, as far as it is known."""
    if jax.default_backend() != "cpu":
        return 64 * 2**20  # More than the L2 of any present GPU (H100: 50 MB).
    sizes = [32 * 2**20]
    for path in pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        with contextlib.suppress(OSError, ValueError):
            text = path.read_text().strip()
            unit = {"K": 2**10, "M": 2**20}.get(text[-1:], 1)
            sizes.append(int(text.rstrip("KM")) * unit)
    return max(sizes)

"""What the stress programs share: a layer of every family, and the memory that a process has."""

from __future__ import annotations

import pathlib
from typing import Any

from jax_convgrad.bench.cases import Case, parse_conv


def _case(
    name: str, kind: str, dtype: str, n: int, cin: int, sp: list[int], cout: int, **more: Any
) -> Case:
    entry = {"name": name, "kind": kind, "dt": dtype, "n": n, "cin": cin, "sp": sp, "cout": cout}
    return parse_conv(entry | more)


# One layer of every family that has its own engines.
CASES = [
    _case("dense", "conv", "f32", 4, 32, [28, 28], 48, k=3, p=1),
    _case("strided", "conv", "bf16", 4, 32, [28, 28], 64, k=3, s=2, p=1),
    _case("dilated", "conv", "f16", 2, 32, [24, 24], 32, k=3, p=2, d=2),
    _case("grouped", "conv", "bf16", 4, 64, [28, 28], 64, k=3, p=1, g=4),
    _case("depthwise", "conv", "f32", 4, 32, [28, 28], 32, k=3, p=1, g=32),
    _case("double", "conv", "f64", 2, 16, [14, 14], 16, k=3, p=1),
    _case("long", "conv", "f32", 2, 32, [2000], 32, k=2, p=8, d=16),
    _case("volume", "conv", "bf16", 1, 16, [12, 12, 12], 16, k=3, p=1),
    _case("up", "convt", "f32", 4, 64, [14, 14], 32, k=4, s=2, p=1),
    _case("up16", "convt", "f16", 4, 64, [14, 14], 32, k=2, s=2),
    _case("up-odd", "convt", "bf16", 2, 21, [12, 12], 21, k=3, s=2, p=1, op=1),
    _case("up3d", "convt", "bf16", 1, 32, [8, 8, 8], 16, k=2, s=2),
]


def resident_bytes() -> int:
    """Of this process, now."""
    status = pathlib.Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024

"""Many devices: eight virtual ones on a CPU (see tests/conftest.py), the real ones on GPUs, even if only
one."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

import jax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

DEVICES = math.gcd(8, jax.device_count())


def need_devices(count: int) -> None:
    """Skips where there are fewer GPUs. A CPU has eight devices, so there it is a failure."""
    if jax.device_count() < count:
        assert jax.default_backend() != "cpu", (
            "tests/conftest.py asks for eight virtual CPU devices"
        )
        pytest.skip(f"needs {count} devices")


def need_mesh(count: int) -> None:
    """The same for meshes over DEVICES devices. The mark `devices` of a test or a file asks for it."""
    if count > DEVICES:
        assert jax.default_backend() != "cpu", (
            "tests/conftest.py asks for eight virtual CPU devices"
        )
        pytest.skip(f"needs a mesh of {count} devices, there are {DEVICES}")


def make_mesh(
    axis_type: jax.sharding.AxisType, shape: dict[str, int] | None = None
) -> jax.sharding.Mesh:
    """A mesh of named sizes, or of one axis, "data", over DEVICES devices."""
    if jax.default_backend() == "cpu":
        assert DEVICES == 8, "tests/conftest.py asks for eight virtual CPU devices"
    shape = {"data": DEVICES} if shape is None else shape
    devices = jax.devices()[: math.prod(shape.values())]
    sizes, names = tuple(shape.values()), tuple(shape)
    return jax.make_mesh(sizes, names, axis_types=(axis_type,) * len(shape), devices=devices)


def put(array: Any, mesh: jax.sharding.Mesh, *spec: Any) -> jax.Array:
    """The array, split over the mesh as the specification says."""
    return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))


_COLLECTIVE = re.compile(
    r"= \(?\w+\[([\d,]*)\].*? "
    r"(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)


def collectives(text: str) -> Counter[str]:
    """How often each kind of exchange between devices occurs in a compiled program."""
    return Counter(name for _, name in _COLLECTIVE.findall(text))


def gathered(text: str) -> list[int]:
    """The numbers of elements that a compiled program gathers."""
    return [
        math.prod(int(size) for size in sizes.split(",") if size)
        for sizes, name in _COLLECTIVE.findall(text)
        if name == "all-gather"
    ]

"""Many devices: eight virtual ones on a CPU (see conftest.py), as many GPUs as there are, one even."""

from __future__ import annotations

import math

import jax

DEVICES = math.gcd(8, jax.device_count())


def make_mesh(axis_type: jax.sharding.AxisType) -> jax.sharding.Mesh:
    """One axis, "data", over DEVICES devices."""
    if jax.default_backend() == "cpu":
        assert DEVICES == 8, "conftest.py asks for eight virtual CPU devices"
    devices = jax.devices()[:DEVICES]
    return jax.make_mesh((DEVICES,), ("data",), axis_types=(axis_type,), devices=devices)

"""Operators, and the ways in which their arrays are split over devices.

Small integers, so that sums are exact in any order.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from support.comparisons import may_transform
from support.meshes import DEVICES

from jax_convgrad import (
    conv_dgrad,
    conv_fprop,
    conv_wgrad,
)

GRID = {"data": DEVICES // 2, "model": 2}

NUMBERS = {1: ("NHC", "HIO", "NHC"), 2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC")}


def ints(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    dtype = np.float64 if may_transform() else np.float32
    return [rng.integers(-2, 3, shape).astype(dtype) for shape in shapes]


def assert_same(got: Any, expected: Any) -> None:
    def check(a: Any, b: Any) -> None:
        assert np.max(np.abs(b), initial=0) < 2**22, "too large to be exact"
        np.testing.assert_array_equal(a, b)

    jax.tree.map(check, jax.device_get(got), jax.device_get(expected))


@dataclasses.dataclass(frozen=True)
class Geometry:
    """A convolution in channels-last layout; the number of devices divides all of its axes."""

    x: tuple[int, ...]
    kernel: tuple[int, ...]
    out_channels: int
    params: dict[str, Any]

    @property
    def w(self) -> tuple[int, ...]:
        return (*self.kernel, self.x[-1] // self.params.get("groups", 1), self.out_channels)

    @property
    def all(self) -> dict[str, Any]:
        return {"dimension_numbers": NUMBERS[len(self.kernel)], "padding": "SAME", **self.params}

    @property
    def y(self) -> tuple[int, ...]:
        shapes = (jax.ShapeDtypeStruct(s, np.float32) for s in (self.x, self.w))
        return jax.eval_shape(functools.partial(conv_fprop, **self.all), *shapes).shape


GEOMETRIES = {
    "plain": Geometry((8, 32, 3, 16), (3, 3), 8, {}),
    "strided": Geometry((8, 32, 6, 8), (4, 4), 16, {"strides": 2}),
    "dilated": Geometry((8, 32, 4, 8), (3, 3), 8, {"dilation": 2}),
    "uneven": Geometry((8, 32, 3, 8), (2, 3), 8, {"padding": ((0, 1), (2, 0))}),
    "cropped": Geometry((8, 64, 8), (3,), 8, {"strides": 2, "padding": ((-1, 2),)}),
    "patches": Geometry((8, 32, 16, 8), (2, 2), 8, {"strides": 2}),
    "grouped": Geometry((8, 32, 3, 32), (3, 3), 16, {"groups": 8}),
    "depthwise": Geometry((8, 32, 3, 16), (5, 5), 16, {"groups": 16}),
    "1d": Geometry((8, 64, 8), (7,), 8, {"strides": 2}),
    "3d": Geometry((8, 16, 2, 2, 8), (3, 3, 3), 8, {}),
}

# For each way the mesh axes of: batch, first spatial axis, channels of x, channels of y, and the weights'
# two axes of channels.
WAYS: dict[str, dict[str, Any]] = {
    "batch": {"n": "data"},
    "batch of a grid": {"n": ("data", "model")},
    "input channels": {"x": "data", "i": "data"},
    "output channels": {"y": "data", "o": "data"},
    "groups": {"x": "data", "y": "data", "o": "data"},
    "batch and output channels": {"n": "data", "y": "model", "o": "model"},
    "batch and input channels": {"n": "data", "x": "model", "i": "model"},
    "rows": {"s": "data"},
    "batch and rows": {"n": "model", "s": "data"},
    "rows the other way round": {"s": ("model", "data")},
}

# All-reduces of fprop, dgrad and wgrad.
SUMS = {
    "batch": (0, 0, 1),
    "batch of a grid": (0, 0, 1),
    "input channels": (1, 0, 0),
    "output channels": (0, 1, 0),
    "groups": (0, 0, 0),
    "batch and output channels": (0, 1, 1),
    "batch and input channels": (1, 0, 1),
    "rows": (0, 0, 1),
    "batch and rows": (0, 0, 1),
    "rows the other way round": (0, 0, 1),
}

OPERATORS = ("fprop", "dgrad", "wgrad")


def is_grid(way: str) -> bool:
    return "model" in str(WAYS[way])


def is_possible(geometry: str, way: str) -> bool:
    """Whether the channels can be split like this. Some geometries are there only for their rows."""
    grouped = "groups" in GEOMETRIES[geometry].params
    if geometry not in ("plain", "strided", "grouped"):
        return way == "rows" or (grouped and way == "groups")
    if "rows" in way:
        return True
    return grouped if way == "groups" else not grouped or "channels" not in way


def spec(role: str, way: str, rank: int) -> tuple[Any, ...]:
    axes = WAYS[way]
    if role == "w":
        return (*(None,) * rank, axes.get("i"), axes.get("o"))
    return (axes.get("n"), axes.get("s"), *(None,) * (rank - 1), axes.get(role))


ROLES = {"fprop": "xwy", "dgrad": "ywx", "wgrad": "xyw"}


def operator(name: str, geometry: Geometry) -> Callable[..., Any]:
    if name == "fprop":
        return functools.partial(conv_fprop, **geometry.all)
    if name == "dgrad":
        return functools.partial(conv_dgrad, x_shape=geometry.x, **geometry.all)
    return functools.partial(conv_wgrad, w_shape=geometry.w, **geometry.all)


def exchanges(sums: int, rows: int = 0) -> Counter[str]:
    """Asserts exactly this many all-reduces and exchanges of rows, and nothing else."""
    return Counter({"all-reduce": sums, "collective-permute": rows})

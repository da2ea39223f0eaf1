"""Benchmark cases that are resizes, with the members of `cases.Case` that the rest of the benchmark reads."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from jax_convgrad.bench.cases import DTYPES, SPATIAL, CaseError

METHODS = ("nearest", "linear", "cubic", "lanczos3")
_KEYS = ("name", "kind", "n", "c", "sp", "out", "method", "ac", "aa", "dt")


@dataclasses.dataclass(frozen=True)
class ResizeCase:
    """A resize of the spatial axes. cubic is PyTorch's bicubic, which all forms can compute."""

    name: str
    n: int
    channels: int
    spatial: tuple[int, ...]
    out_spatial: tuple[int, ...]
    method: str
    align_corners: bool
    antialias: bool
    dtype: str
    sets: tuple[str, ...] = ()

    kind = "resize"
    passes = ("fprop", "dx")
    transposed = False

    @property
    def ndim(self) -> int:
        """Number of spatial axes."""
        return len(self.spatial)

    @property
    def x_shape(self) -> tuple[int, ...]:
        """Shape of the input, channels last."""
        return (self.n, *self.spatial, self.channels)

    @property
    def w_shape(self) -> tuple[int, ...]:
        """A resize has no weights: a single element takes their place."""
        return (1,) * (self.ndim + 2)

    @property
    def y_shape(self) -> tuple[int, ...]:
        """Shape of the output, channels last."""
        return (self.n, *self.out_spatial, self.channels)

    @property
    def macs(self) -> int:
        """Multiply-adds of the float64 reference, which multiplies dense matrices axis by axis."""
        sizes, total = [self.n * self.channels, *self.spatial], 0
        for axis, (before, after) in enumerate(zip(self.spatial, self.out_spatial, strict=True), 1):
            sizes[axis] = after
            product = before
            for size in sizes:
                product *= size
            total += product
        return total

    @property
    def id(self) -> str:
        """The text that --only is matched against, and the name of the case in charts."""
        return f"resize {self.name} {self.dtype}"

    @property
    def label(self) -> str:
        """The case in one line, as tables show it."""
        sizes = "x".join(map(str, (self.n, *self.spatial)))
        after = "x".join(map(str, self.out_spatial))
        options = self.align_corners * " align_corners" + self.antialias * " antialias"
        return f"{self.id} ({sizes}, {self.channels} to {after}, {self.method}{options})"

    def with_batch(self, n: int) -> ResizeCase:
        """The same layer with another batch size."""
        return dataclasses.replace(self, n=n)

    def to_json(self) -> dict[str, Any]:
        """The case in the form of a case file."""
        return {
            "name": self.name,
            "kind": self.kind,
            "n": self.n,
            "c": self.channels,
            "sp": list(self.spatial),
            "out": list(self.out_spatial),
            "method": self.method,
            "ac": self.align_corners,
            "aa": self.antialias,
            "dt": self.dtype,
        }


def parse_resize(entry: dict[str, Any]) -> ResizeCase:
    """Checks one entry of a case file whose kind is resize."""
    name = entry.get("name", "?")

    def fail(text: str) -> CaseError:
        return CaseError(f"case {name!r}: {text} in {json.dumps(entry)}")

    if missing := [key for key in _KEYS if key not in entry]:
        raise fail(f"missing {', '.join(missing)}")
    if unknown := sorted(set(entry) - {*_KEYS, "sets"}):
        raise fail(f"unknown {', '.join(unknown)}")
    if not isinstance(name, str):
        raise fail("name must be a string")
    if entry["dt"] not in DTYPES:
        raise fail(f"dt must be one of {', '.join(DTYPES)}, got {entry['dt']!r}")
    if entry["method"] not in METHODS:
        raise fail(f"method must be one of {', '.join(METHODS)}, got {entry['method']!r}")
    for key in ("ac", "aa"):
        if not isinstance(entry[key], bool):
            raise fail(f"{key} must be true or false, got {entry[key]!r}")
    if entry["ac"] and (entry["aa"] or entry["method"] == "nearest"):
        raise fail("ac works only with linear and cubic, without aa")

    def integer(key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise fail(f"{key} must be a whole number of at least 1, got {value!r}")
        return value

    sizes = []
    for key in ("sp", "out"):
        if not isinstance(entry[key], list) or len(entry[key]) not in SPATIAL:
            raise fail(f"{key} must list 1, 2 or 3 spatial sizes, got {entry[key]!r}")
        sizes.append(tuple(integer(key, size) for size in entry[key]))
    spatial, out = sizes
    if len(spatial) != len(out):
        raise fail("sp and out must have the same length")
    if entry["ac"] and 1 in (*spatial, *out):
        raise fail("ac needs sizes of at least 2")
    return ResizeCase(
        name=name,
        n=integer("n", entry["n"]),
        channels=integer("c", entry["c"]),
        spatial=spatial,
        out_spatial=out,
        method=entry["method"],
        align_corners=entry["ac"],
        antialias=entry["aa"],
        dtype=entry["dt"],
        sets=tuple(entry.get("sets", ())),
    )

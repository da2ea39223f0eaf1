"""Benchmark cases: one convolution or transposed convolution each."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "f64": "float64"}
LAYOUTS = ("NHWC", "NCHW")
WEIGHTS = ("HWIO", "OHWI", "OIHW")
SPATIAL = {1: "W", 2: "HW", 3: "DHW"}

_REQUIRED = ("name", "n", "cin", "sp", "cout", "k", "dt")
_OPTIONAL = {"s": 1, "p": 0, "op": 0, "d": 1, "g": 1}


class CaseError(ValueError):
    """A case file with an invalid case."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One convolution (`conv`) or transposed convolution (`convt`) layer.

    `spatial` and `cin` belong to the layer's input, `cout` to its output, for both kinds. Padding is the
    same on both sides; for `convt` it is the padding of the convolution whose adjoint the layer is.
    """

    name: str
    kind: str
    n: int
    cin: int
    cout: int
    spatial: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    output_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    dtype: str
    sets: tuple[str, ...] = ()

    passes = ("fprop", "dx", "dw", "dxdwdb", "ddxddw")

    @property
    def ndim(self) -> int:
        """Number of spatial axes."""
        return len(self.spatial)

    @property
    def transposed(self) -> bool:
        """Whether the layer is a transposed convolution."""
        return self.kind == "convt"

    @property
    def out_spatial(self) -> tuple[int, ...]:
        """Spatial sizes of the layer's output."""
        axes = zip(
            self.spatial,
            self.kernel,
            self.stride,
            self.padding,
            self.output_padding,
            self.dilation,
            strict=True,
        )
        if self.transposed:
            return tuple((i - 1) * s - 2 * p + d * (k - 1) + 1 + op for i, k, s, p, op, d in axes)
        return tuple((i + 2 * p - d * (k - 1) - 1) // s + 1 for i, k, s, p, _, d in axes)

    @property
    def x_shape(self) -> tuple[int, ...]:
        """Shape of the input, channels last."""
        return (self.n, *self.spatial, self.cin)

    @property
    def w_shape(self) -> tuple[int, ...]:
        """Shape of the weights: spatial axes, input channels of one group, output channels."""
        return (*self.kernel, self.cin // self.groups, self.cout)

    @property
    def y_shape(self) -> tuple[int, ...]:
        """Shape of the output, channels last."""
        return (self.n, *self.out_spatial, self.cout)

    @property
    def macs(self) -> int:
        """Multiply-adds of one pass, counting the windows at the edges as whole."""
        windows = self.spatial if self.transposed else self.out_spatial
        per_window = math.prod(self.kernel) * self.cin * self.cout // self.groups
        return self.n * math.prod(windows) * per_window

    @property
    def id(self) -> str:
        """The text that --only is matched against, and the name of the case in charts."""
        return f"{self.kind} {self.name} {self.dtype}"

    @property
    def label(self) -> str:
        """The case in one line, as tables show it."""
        sizes = "x".join(map(str, (self.n, *self.spatial)))
        text = f"{sizes}, {self.cin} to {self.cout}, k{_short(self.kernel)} s{_short(self.stride)}"
        for letter, value, usual in (
            ("p", self.padding, 0),
            ("op", self.output_padding, 0),
            ("d", self.dilation, 1),
        ):
            if any(v != usual for v in value):
                text += f" {letter}{_short(value)}"
        if self.groups > 1:
            text += f" g{self.groups}"
        return f"{self.id} ({text})"

    def with_batch(self, n: int) -> Case:
        """The same layer with another batch size."""
        return dataclasses.replace(self, n=n)

    def to_json(self) -> dict[str, Any]:
        """The case in the form of a case file."""
        return {
            "name": self.name,
            "kind": self.kind,
            "n": self.n,
            "cin": self.cin,
            "sp": list(self.spatial),
            "cout": self.cout,
            "k": list(self.kernel),
            "s": list(self.stride),
            "p": list(self.padding),
            "op": list(self.output_padding),
            "d": list(self.dilation),
            "g": self.groups,
            "dt": self.dtype,
        }


def _short(values: Sequence[int]) -> str:
    return str(values[0]) if len(set(values)) == 1 else "x".join(map(str, values))


def default_weights(layout: str) -> str:
    """The usual order of the weights beside activations in `layout`: what Flax stores for NHWC."""
    return "HWIO" if layout == "NHWC" else "OIHW"


def dimension_numbers(ndim: int, layout: str, weights: str | None = None) -> tuple[str, str, str]:
    """The axes of x, w and y in `layout` ("NHWC" or "NCHW", for any number of spatial axes).

    The weights are in the usual order of the layout, or in the order ``weights``: HWIO, OHWI or OIHW, or
    letters for exactly this number of axes.
    """
    spatial = SPATIAL[ndim]
    order = default_weights(layout) if weights is None else weights
    kernel = order.replace("HW", spatial) if order in WEIGHTS else order
    activations = f"N{spatial}C" if layout == "NHWC" else f"NC{spatial}"
    return activations, kernel, activations


def parse_conv(entry: dict[str, Any]) -> Case:
    """Checks one entry of a case file that is not a resize.

    Sizes may be one number, or one for each spatial axis.
    """
    name = entry.get("name", "?")

    def fail(text: str) -> CaseError:
        return CaseError(f"case {name!r}: {text} in {json.dumps(entry)}")

    kind = entry.get("kind")
    if kind not in ("conv", "convt"):
        raise fail(f"kind must be conv, convt or resize, got {kind!r}")
    known = {*_REQUIRED, *_OPTIONAL, "kind", "sets"}
    if missing := [key for key in _REQUIRED if key not in entry]:
        raise fail(f"missing {', '.join(missing)}")
    if unknown := sorted(set(entry) - known):
        raise fail(f"unknown {', '.join(unknown)}")
    if not isinstance(name, str):
        raise fail("name must be a string")
    if entry["dt"] not in DTYPES:
        raise fail(f"dt must be one of {', '.join(DTYPES)}, got {entry['dt']!r}")

    def integer(key: str, value: Any, least: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise fail(f"{key} must be a whole number of at least {least}, got {value!r}")
        return value

    spatial = entry["sp"]
    if not isinstance(spatial, list) or len(spatial) not in SPATIAL:
        raise fail(f"sp must list 1, 2 or 3 spatial sizes, got {spatial!r}")

    def per_axis(key: str, least: int) -> tuple[int, ...]:
        value = entry.get(key, _OPTIONAL.get(key))
        values = value if isinstance(value, list) else [value] * len(spatial)
        if len(values) != len(spatial):
            raise fail(
                f"{key} must have one entry per spatial axis ({len(spatial)}), got {value!r}"
            )
        return tuple(integer(key, v, least) for v in values)

    case = Case(
        name=name,
        kind=kind,
        n=integer("n", entry["n"], 1),
        cin=integer("cin", entry["cin"], 1),
        cout=integer("cout", entry["cout"], 1),
        spatial=per_axis("sp", 1),
        kernel=per_axis("k", 1),
        stride=per_axis("s", 1),
        # A convolution's negative padding crops.
        padding=per_axis("p", 0 if kind == "convt" else -min(spatial, default=0)),
        output_padding=per_axis("op", 0),
        dilation=per_axis("d", 1),
        groups=integer("g", entry.get("g", 1), 1),
        dtype=entry["dt"],
        sets=tuple(entry.get("sets", ())),
    )
    if case.cin % case.groups or case.cout % case.groups:
        raise fail(f"g = {case.groups} does not divide cin = {case.cin} and cout = {case.cout}")
    if any(size < 1 for size in case.out_spatial):
        raise fail(f"the output would be empty: spatial sizes {list(case.out_spatial)}")
    if not case.transposed and any(case.output_padding):
        raise fail("op (output padding) belongs to convt, not to conv")
    limits = zip(case.output_padding, case.stride, case.dilation, strict=True)
    if any(op and op >= max(s, d) for op, s, d in limits):
        raise fail("op must be below the larger of stride and dilation")
    return case

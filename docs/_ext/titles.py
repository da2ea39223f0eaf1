"""A benchmark's layer in words that need no explanation, for tables and plots."""

from __future__ import annotations

from typing import Any

from jax_convgrad.bench.cases import DTYPES


def layer_title(case: Any) -> str:
    """Such as "transposed 4x4, stride 2: 8x32x32, 128 to 64 channels, float32".

    The sizes are batch x spatial axes of the layer's input.
    """
    sizes = _by(case.n, *case.spatial)
    dtype = DTYPES[case.dtype]
    if case.kind == "resize":
        options = ", align_corners" * case.align_corners + ", antialias" * case.antialias
        return (
            f"{case.method}{options}: {sizes} to {_by(*case.out_spatial)}, "
            f"{case.channels} channels, {dtype}"
        )
    words = ["transposed"] if case.transposed else []
    if case.groups > 1:
        words.append("depthwise" if case.groups == case.cin else f"{case.groups} groups,")
    if len(case.kernel) == 1:
        words.append("1-D kernel")
    words.append(_by(*case.kernel))
    extras = (
        f", {word} {_short(values)}"
        for word, values in (("stride", case.stride), ("dilation", case.dilation))
        if any(value != 1 for value in values)
    )
    channels = f"{case.cin} to {case.cout} channels"
    return f"{' '.join(words)}{''.join(extras)}: {sizes}, {channels}, {dtype}"


def _by(*sizes: int) -> str:
    return "x".join(map(str, sizes))


def _short(values: tuple[int, ...]) -> str:
    return str(values[0]) if len(set(values)) == 1 else _by(*values)

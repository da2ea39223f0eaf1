"""The contenders for a resize: this package, jax.image, PyTorch. `forms` uses them for a `ResizeCase`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jax_convgrad.bench.resize_cases import ResizeCase

Pass = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, ...]]  # (x, w, dy) -> results

# PyTorch's modes by number of spatial axes.
_TORCH_MODES = {
    "linear": {1: "linear", 2: "bilinear", 3: "trilinear"},
    "cubic": {2: "bicubic"},
    "lanczos3": {2: "lanczos"},
}


def ours(case: ResizeCase, pass_: str, layout: str) -> Pass:
    """`jax_convgrad.resize` and its jax.vjp."""
    import jax_convgrad

    mode = "align_corners" if case.align_corners else "half_pixel"

    def layer(x: jax.Array) -> jax.Array:
        return jax_convgrad.resize(
            x, _shape(case, x, layout), _method(case), case.antialias, coordinate_mode=mode
        )

    return _pass(layer, pass_)


def jax_image(case: ResizeCase, pass_: str, layout: str) -> Pass:
    """`jax.image` and its jax.vjp; align_corners as its documentation emulates it."""

    def layer(x: jax.Array) -> jax.Array:
        shape = _shape(case, x, layout)
        if not case.align_corners:
            y: jax.Array = jax.image.resize(x, shape, _method(case), case.antialias)
            return y
        sizes = zip(case.spatial, case.out_spatial, strict=True)
        scale = np.asarray([(m - 1) / (n - 1) for n, m in sizes], np.float32)
        y = jax.image.scale_and_translate(
            x,
            shape,
            _axes(case, layout),
            scale,
            np.float32(0.5) * (1 - scale),
            _method(case),
            case.antialias,
        )
        return y

    return _pass(layer, pass_)


def torch_missing(case: ResizeCase) -> str | None:
    """Why PyTorch cannot compute the case, or None."""
    if case.method == "nearest":
        return None
    if case.ndim not in _TORCH_MODES[case.method]:
        return f"PyTorch has no {case.method} in {case.ndim} dimensions"
    if case.antialias and case.ndim != 2:
        return "PyTorch antialiases two-dimensional images only"
    if case.method == "lanczos3" and not (case.antialias and jax.default_backend() == "cpu"):
        return "PyTorch has lanczos on the CPU only, with antialias"
    return None


def torch_call(case: ResizeCase, pass_: str) -> Callable[[Any, Any], Any]:
    """(x, dy) -> the result of the pass, tensors N x C x space."""
    import torch

    operators = torch.ops.aten
    before, after = (case.n, case.channels, *case.spatial), list(case.out_spatial)
    scales = (None,) * case.ndim
    if case.method == "nearest":
        # PyTorch's own "nearest" takes the same elements where it enlarges by whole numbers.
        whole = all(m % n == 0 for n, m in zip(case.spatial, after, strict=True))
        mode = "nearest" if whole else "nearest-exact"
        name = "upsample_nearest" if whole else "_upsample_nearest_exact"
        options: dict[str, Any] = {}
        extra: tuple[Any, ...] = scales
    else:
        mode = _TORCH_MODES[case.method][case.ndim]
        name = f"_upsample_{mode}" if case.antialias else f"upsample_{mode}"
        options = {"antialias": case.antialias}
        if case.method != "lanczos3":
            options["align_corners"] = case.align_corners
        extra = (case.align_corners, *scales)
    suffix = "_aa_backward" if case.antialias else "_backward"
    backward = getattr(operators, f"{name}{case.ndim}d{suffix}").default

    def call(x: Any, dy: Any) -> Any:
        with torch.no_grad():
            if pass_ == "fprop":
                return torch.nn.functional.interpolate(x, after, mode=mode, **options)
            return backward(dy, after, before, *extra)

    return call


def _pass(layer: Callable[[jax.Array], jax.Array], pass_: str) -> Pass:
    if pass_ == "fprop":
        return lambda x, w, dy: (layer(x),)
    return lambda x, w, dy: jax.vjp(layer, x)[1](dy)


def _axes(case: ResizeCase, layout: str) -> tuple[int, ...]:
    first = 1 if layout == "NHWC" else 2
    return tuple(range(first, first + case.ndim))


def _shape(case: ResizeCase, x: jax.Array, layout: str) -> tuple[int, ...]:
    shape = list(x.shape)
    for axis, size in zip(_axes(case, layout), case.out_spatial, strict=True):
        shape[axis] = size
    return tuple(shape)


def _method(case: ResizeCase) -> str:
    return "cubic-pytorch" if case.method == "cubic" else case.method

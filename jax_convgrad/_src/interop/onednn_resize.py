"""oneDNN Graph's Interpolate operations; `jax_convgrad.onednn` has them under their names.

Where oneDNN's documentation and its source disagree these functions follow the source: exactly one of
``sizes`` and ``scales`` is given. Scales make sizes, by truncation, and coordinates follow from the sizes.
The nearest element is that at the rounded coordinate; halves are rounded up. align_corners is in the
schema, but no backend of oneDNN runs it; here it means the same as in ONNX's Resize.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jax_convgrad._src import compat
from jax_convgrad._src.dtypes import check_float_dtypes
from jax_convgrad._src.interop import common
from jax_convgrad._src.interop.gradients import Contract, call
from jax_convgrad._src.resize.api import apply
from jax_convgrad._src.resize.arguments import Options, Steps
from jax_convgrad._src.shapes import Shape

_MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "trilinear": "linear"}
_COORDINATES = ("half_pixel", "align_corners")
_DATA_FORMATS = ("NXC", "NCX")


def interpolate(
    src: ArrayLike,
    sizes: Sequence[int] | None = None,
    *,
    mode: str,
    coordinate_transformation_mode: str = "half_pixel",
    scales: Sequence[float] | None = None,
    data_format: str = "NXC",
) -> Array:
    """Interpolation of the spatial axes. Definition: oneDNN Graph operation Interpolate.

    Args:
      src: batch, channels and at least one spatial axis in ``data_format``; float16, bfloat16, float32
        or float64.
      sizes: output sizes of the spatial axes, or None.
      mode: "nearest", or "linear", "bilinear" or "trilinear", which all mean linear along each axis.
      coordinate_transformation_mode: "half_pixel" or "align_corners".
      scales: output over input size of each spatial axis, or None.
      data_format: "NXC" or "NCX".

    Returns:
      dst, in src's dtype.

    Raises:
      TypeError: src is not floating point, attributes of the wrong kind.
      ValueError: attributes or sizes that do not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_convgrad import onednn
      >>> onednn.interpolate(jnp.ones((1, 2, 3, 4)), (4, 6), mode="bilinear").shape
      (1, 4, 6, 4)
    """
    function = "onednn.interpolate"
    src = compat.as_array(src)
    check_float_dtypes(function, src=src.dtype)
    _, steps = _problem(
        function, src.shape, sizes, mode, coordinate_transformation_mode, scales, data_format
    )
    contract = Contract(function, "onednn.interpolate_backward", "jax_convgrad.resize")
    return call(
        contract,
        lambda src: apply(src, steps),
        lambda diff_dst, *_: (_gradient(steps, diff_dst),),
        ((),),
        (src,),
    )


def interpolate_backward(
    src: ArrayLike,
    diff_dst: ArrayLike,
    sizes: Sequence[int] | None = None,
    *,
    mode: str,
    coordinate_transformation_mode: str = "half_pixel",
    scales: Sequence[float] | None = None,
    data_format: str = "NXC",
) -> Array:
    """Gradient of `interpolate`. Definition: oneDNN Graph operation InterpolateBackward.

    Args:
      src: `interpolate`'s input in ``data_format``, of which only shape and dtype are read.
      diff_dst: gradient of `interpolate`'s result, of src's dtype.
      sizes, mode, coordinate_transformation_mode, scales, data_format: those of the forward operation.

    Returns:
      diff_src, with the shape and dtype of src.

    Raises:
      TypeError, ValueError: as `interpolate`, and if diff_dst is not of `interpolate`'s output shape.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_convgrad import onednn
      >>> src, diff_dst = jnp.ones((1, 2, 1)), jnp.arange(3.0).reshape(1, 3, 1)
      >>> onednn.interpolate_backward(src, diff_dst, (3,), mode="nearest").ravel()
      Array([0., 3.], dtype=float32)
    """
    function = "onednn.interpolate_backward"
    src, diff_dst = compat.as_array(src), compat.as_array(diff_dst)
    check_float_dtypes(function, src=src.dtype, diff_dst=diff_dst.dtype)
    shape, steps = _problem(
        function, src.shape, sizes, mode, coordinate_transformation_mode, scales, data_format
    )
    if diff_dst.shape != shape:
        raise ValueError(
            f"{function}: diff_dst must have the shape of the forward result, {shape}, got "
            f"{diff_dst.shape} (src has shape {src.shape})"
        )
    return _gradient(steps, diff_dst)


def _gradient(steps: Steps, diff_dst: Array) -> Array:
    return apply(diff_dst, [(axis, band.transpose) for axis, band in steps])


def _problem(
    function: str,
    src_shape: Shape,
    sizes: Any,
    mode: str,
    coordinates: str,
    scales: Any,
    data_format: str,
) -> tuple[Shape, Steps]:
    """The result's shape, and one band per axis that changes."""
    for name, value, known in (
        ("mode", mode, tuple(_MODES)),
        ("coordinate_transformation_mode", coordinates, _COORDINATES),
        ("data_format", data_format, _DATA_FORMATS),
    ):
        if value not in known:
            raise ValueError(f"{function}: {name} must be one of {', '.join(known)}, got {value!r}")
    rank = common.check_ranks(function, src=src_shape)
    first = 1 if data_format == "NXC" else 2
    spatial = src_shape[first : first + rank]
    if (sizes is None) == (scales is None):
        given = "neither" if sizes is None else "both"
        raise ValueError(f"{function}: exactly one of sizes and scales must be given, got {given}")
    name, values = ("sizes", sizes) if scales is None else ("scales", scales)
    if isinstance(values, str) or not hasattr(values, "__len__"):
        raise TypeError(f"{function}: {name} must be a sequence of numbers, got {values!r}")
    if len(values) != rank:
        raise ValueError(
            f"{function}: {name} must have one entry per spatial axis ({rank}), got {tuple(values)} (src "
            f"has shape {src_shape})"
        )
    if scales is None:
        wanted = [_size(function, size, sizes) for size in sizes]
    else:
        wanted = [
            _scaled(function, n, scale, scales) for n, scale in zip(spatial, scales, strict=True)
        ]
    shape = (*src_shape[:first], *wanted, *src_shape[first + rank :])
    # Halves are rounded up, in exact arithmetic.
    options = Options.make(
        function, _MODES[mode], False, coordinates, "round_prefer_ceil", None, None
    )
    return shape, options.steps(function, src_shape, shape, None, None)


def _size(function: str, size: Any, sizes: Any) -> int:
    if isinstance(size, bool):
        raise TypeError(f"{function}: sizes must be integers, got {sizes!r}")
    try:
        number = operator.index(size)
    except TypeError:
        raise TypeError(f"{function}: sizes must be integers, got {sizes!r}") from None
    if number < 1:
        raise ValueError(f"{function}: sizes must be at least 1, got {tuple(sizes)}")
    return number


def _scaled(function: str, n: int, scale: Any, scales: Any) -> int:
    try:
        with np.errstate(over="ignore"):  # the check for infinity follows
            factor = np.float32(scale)  # the attribute's type
    except (TypeError, ValueError):
        raise TypeError(f"{function}: scales must be numbers, got {scales!r}") from None
    if not (math.isfinite(factor) and factor > 0):
        raise ValueError(f"{function}: scales must be positive and finite, got {tuple(scales)}")
    size = int(np.float32(n) * factor)
    if size < 1:
        raise ValueError(f"{function}: scales={tuple(scales)} leave nothing of {n} elements")
    return size

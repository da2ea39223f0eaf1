"""PyTorch's interpolate; `jax_convgrad.torch` has it under its name.

The scale that enters the coordinates is input size / output size, or 1 / ``scale_factor`` where that is
given and not recomputed, or (input size - 1) / (output size - 1) with ``align_corners``, whatever
``scale_factor`` is.

Where PyTorch leaves a case open or does it in more than one way (2.13, on the CPU):

- The element that "nearest" and "nearest-exact" take is that at the exact coordinate. PyTorch computes
  coordinates in float32 or float64, from one kernel to the next, and takes the element beside it at some
  ratios of sizes (2 to 82, for one).
- A ``scale_factor`` that leaves an axis its size, 1.1 of 5 elements say, and is not recomputed: that axis
  stays as it is in the linear modes and with ``antialias``, and the scale counts in the others. PyTorch
  does so forwards; its gradients, and "nearest" of small images, differ in part. Here the gradient is the
  forward pass' transpose.
- A ``scale_factor`` that happens to double an axis, 2.1 of 8 elements say, counts in "nearest" too; some
  of PyTorch's kernels then double every element.
- An antialiased result one element wide is that column of a wider one; PyTorch mixes its rows up.
- The weights of "lanczos" are 1 at distances below a thousandth of an element.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jax_convgrad._src import compat
from jax_convgrad._src.dtypes import check_float_dtypes
from jax_convgrad._src.resize.api import apply
from jax_convgrad._src.resize.arguments import Options
from jax_convgrad._src.shapes import Shape

# Mode -> (the package's method, numbers of spatial axes).
_MODES = {
    "nearest": ("nearest", (1, 2, 3)),
    "nearest-exact": ("nearest", (1, 2, 3)),
    "linear": ("linear", (1,)),
    "bilinear": ("linear", (2,)),
    "bicubic": ("cubic-pytorch", (2,)),
    "trilinear": ("linear", (3,)),
    "area": ("area-pytorch", (1, 2, 3)),
    "lanczos": ("lanczos3", (2,)),
}
_UNALIGNED = ("nearest", "nearest-exact", "area")
_ANTIALIASED = ("bilinear", "bicubic", "lanczos")

# A step between outputs of almost nothing: all outputs lie half an element before the first input.
_NO_STEP = 2.0**1000


def interpolate(
    input: ArrayLike,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Array:
    """Resizes the spatial axes. Definition: torch.nn.functional.interpolate.

    Args:
      input: batch x channels x one to three spatial axes; float16, bfloat16, float32 or float64, and any
        dtype for "nearest" and "nearest-exact".
      size: the spatial sizes of the result, one int for all or one per axis; or
      scale_factor: output over input size, one number for all or one per axis. The size is the product,
        rounded down. Exactly one of the two is given.
      mode: "nearest", "nearest-exact", "linear" (one spatial axis), "bilinear", "bicubic", "lanczos" (two),
        "trilinear" (three) or "area", the mean of all elements that an output's interval touches (adaptive
        average pooling).
      align_corners: put the first and the last outputs on the first and the last inputs (True), or have
        the images' edges coincide (False, None); not for "nearest", "nearest-exact" and "area". With
        ``antialias`` only the scale changes.
      recompute_scale_factor: coordinates follow from the sizes (True; always so for "area") and not from
        ``scale_factor`` (False, None).
      antialias: stretch the filter when downsampling; "bilinear", "bicubic" and "lanczos", which needs it.

    Returns:
      The resized image, in input's dtype; 16-bit sums are taken in float32, coordinates in float64.

    Raises:
      TypeError: a dtype that the mode does not take, arguments of the wrong kind.
      ValueError: a mode that does not go with the number of axes or the other arguments; sizes that do not
        fit.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax_convgrad import torch
      >>> x = jnp.arange(4.0).reshape(1, 1, 2, 2)
      >>> torch.interpolate(x, scale_factor=(1, 2), mode="bilinear")[0, 0]
      Array([[0.  , 0.25, 0.75, 1.  ],
             [2.  , 2.25, 2.75, 3.  ]], dtype=float32)
      >>> jax.grad(lambda x: torch.interpolate(x, size=3).sum())(x)[0, 0]
      Array([[4., 2.],
             [2., 1.]], dtype=float32)
    """
    function = "torch.interpolate"
    x = compat.as_array(input)
    rank = x.ndim - 2
    antialias = bool(antialias)
    method = _method(function, mode, rank, align_corners, antialias, x.shape)
    if method != "nearest":
        check_float_dtypes(function, input=x.dtype)
    if (size is None) == (scale_factor is None):
        given = "neither" if size is None else "both"
        raise ValueError(
            f"{function}: exactly one of size and scale_factor must be given, got {given}"
        )
    spatial = x.shape[2:]
    factors: list[float | Fraction | None] = [None] * rank
    if size is not None:
        if recompute_scale_factor:
            raise ValueError(
                f"{function}: recompute_scale_factor=True goes with scale_factor, not with size={size}"
            )
        sizes = _sizes(function, size, rank, x.shape)
    else:
        scales = _scales(function, scale_factor, rank, x.shape)
        sizes = _scaled(function, spatial, scales, x.shape)
        if mode != "area" and not align_corners and not recompute_scale_factor:
            stays = mode in ("linear", "bilinear", "trilinear") or antialias
            factors = [
                None if stays and n == m else scale
                for n, m, scale in zip(spatial, sizes, scales, strict=True)
            ]
    if mode != "area" and 0 in sizes:
        argument = f"size={size}" if size is not None else f"scale_factor={scale_factor}"
        raise ValueError(
            f"{function}: {argument} would leave an axis no elements, {sizes} (input has shape {x.shape})"
        )
    if align_corners and antialias:
        factors = [_aligned(n, m) for n, m in zip(spatial, sizes, strict=True)]
    coordinates, nearest_mode = "half_pixel", "round_prefer_ceil"
    if mode == "nearest":
        coordinates, nearest_mode = "asymmetric", "floor"
    elif align_corners and not antialias:
        coordinates = "align_corners"
    # PyTorch repeats the edge, except where it antialiases: there it leaves out what is outside.
    options = Options.make(function, method, antialias, coordinates, nearest_mode, None, antialias)
    steps = options.steps(function, x.shape, (*x.shape[:2], *sizes), [None, None, *factors], None)
    return apply(x, steps, nearest=method == "nearest")


def _method(
    function: str, mode: Any, rank: int, align_corners: Any, antialias: bool, shape: Shape
) -> str:
    """The package's name of the method, after checking which arguments go together."""
    if not isinstance(mode, str) or mode not in _MODES:
        raise ValueError(f"{function}: mode must be one of {', '.join(_MODES)}, got {mode!r}")
    if align_corners is not None and not isinstance(align_corners, (bool, np.bool_)):
        raise TypeError(
            f"{function}: align_corners must be None, True or False, got {align_corners!r}"
        )
    method, ranks = _MODES[mode]
    if align_corners is not None and mode in _UNALIGNED:
        raise ValueError(
            f"{function}: align_corners={align_corners} belongs to the linear modes and bicubic, not to "
            f"mode={mode!r}"
        )
    if rank not in ranks:
        wanted = " or ".join(f"{n + 2}" for n in ranks)
        raise ValueError(
            f"{function}: mode={mode!r} needs input with {wanted} axes, got {rank + 2} (input has shape "
            f"{shape})"
        )
    if antialias and mode not in _ANTIALIASED:
        raise ValueError(
            f"{function}: antialias=True belongs to {', '.join(_ANTIALIASED)}, not to mode={mode!r}"
        )
    if mode == "lanczos" and (align_corners or not antialias):
        raise ValueError(
            f"{function}: mode='lanczos' needs antialias=True and no align_corners, got "
            f"antialias={antialias}, align_corners={align_corners}"
        )
    return method


def _sizes(function: str, size: Any, rank: int, shape: Shape) -> tuple[int, ...]:
    entries = _entries(function, "size", size, rank, shape)
    if any(isinstance(entry, (bool, np.bool_)) for entry in entries):
        raise TypeError(f"{function}: size must be integers, got {size!r}")
    try:
        sizes = tuple(operator.index(entry) for entry in entries)
    except TypeError:
        raise TypeError(f"{function}: size must be integers, got {size!r}") from None
    if any(entry < 0 or entry >= 2**31 for entry in sizes):
        raise ValueError(f"{function}: size must be at least 1 and below 2^31, got {size}")
    return sizes


def _scales(function: str, scale_factor: Any, rank: int, shape: Shape) -> list[float]:
    scales = []
    for entry in _entries(function, "scale_factor", scale_factor, rank, shape):
        if isinstance(entry, jax.core.Tracer):
            raise TypeError(f"{function}: scale_factor must be known while tracing, got {entry}")
        if isinstance(entry, (np.ndarray, Array)) and entry.shape == ():
            entry = entry.item()
        if isinstance(entry, (bool, np.bool_)) or not isinstance(entry, numbers.Real):
            raise TypeError(f"{function}: scale_factor must be numbers, got {scale_factor!r}")
        factor = float(entry)
        if not (math.isfinite(factor) and factor > 0):
            raise ValueError(
                f"{function}: scale_factor must be positive and finite, got {scale_factor}"
            )
        scales.append(factor)
    return scales


def _scaled(function: str, spatial: Shape, scales: list[float], shape: Shape) -> tuple[int, ...]:
    # The product is a float64, rounded before its fraction is dropped: 100 * 0.29 gives 28.
    products = [n * scale for n, scale in zip(spatial, scales, strict=True)]
    if any(product >= 2**31 for product in products):
        raise ValueError(
            f"{function}: scale_factor={scales} makes an axis of 2^31 elements or more (input has shape "
            f"{shape})"
        )
    return tuple(map(int, products))


def _entries(function: str, name: str, value: Any, rank: int, shape: Shape) -> list[Any]:
    """``value`` for every spatial axis."""
    if not isinstance(value, (list, tuple)):
        return [value] * rank
    if len(value) != rank:
        raise ValueError(
            f"{function}: {name} must have one entry per spatial axis ({rank}), got {tuple(value)} (input "
            f"has shape {shape})"
        )
    return list(value)


def _aligned(n: int, m: int) -> float | Fraction:
    """Output size over input size of antialiased align_corners, whose outputs stay at half pixels."""
    return Fraction(m - 1, n - 1) if n > 1 and m > 1 else _NO_STEP

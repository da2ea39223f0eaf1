"""ONNX's Resize and its gradient; `jax_convgrad.onnx` has them under their names.

Every attribute of Resize-19 means the same in the gradient as in the forward operator. ``scales`` are
rounded to float32, which is their type in ONNX; sizes follow from them in float32 too, as ONNX's shape
inference computes them, and coordinates in float64.

Where ONNX leaves a case open:

- ``pytorch_half_pixel`` with a single output reads coordinate 0, as the operator's text says (the reference
  implementation reads -0.5).
- With a ``keep_aspect_ratio_policy`` the coordinates follow from the one scale that all axes share, not
  from the rounded sizes.
- Sizes and scales that leave an axis without outputs are refused, and so is a policy together with scales.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jax_convgrad._src import compat
from jax_convgrad._src.dtypes import check_float_dtypes
from jax_convgrad._src.interop.gradients import Contract, call
from jax_convgrad._src.resize.api import apply
from jax_convgrad._src.resize.arguments import Options, Steps
from jax_convgrad._src.shapes import Shape

_MODES = ("nearest", "linear", "cubic")
_POLICIES = ("stretch", "not_larger", "not_smaller")
_NEAREST_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def resize(
    X: ArrayLike,
    roi: ArrayLike | Sequence[float] | None = None,
    scales: ArrayLike | Sequence[float] | None = None,
    sizes: ArrayLike | Sequence[int] | None = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Array:
    """Resize. Definition: ONNX operator Resize, version 19.

    Args:
      X: an array of any rank; float16, bfloat16, float32 or float64.
      roi: starts, then ends, of the region of each axis; read by tf_crop_and_resize only.
      scales: one positive number per axis, or ``sizes``: exactly one of the two is given. An empty
        sequence counts as not given.
      sizes: one output size per axis.
      antialias: 1 stretches the filter of "linear" and "cubic" when downsampling.
      axes: the axes that roi, scales and sizes are for; all by default.
      coordinate_transformation_mode: "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel",
        "align_corners", "asymmetric" or "tf_crop_and_resize".
      cubic_coeff_a: the cubic filter's coefficient.
      exclude_outside: 1 leaves out what the filter reads outside X and divides the other weights by
        their sum; 0 repeats the edge.
      extrapolation_value: what tf_crop_and_resize puts where it reads outside X.
      keep_aspect_ratio_policy: "stretch", or with ``sizes`` "not_larger" or "not_smaller": one scale
        for all axes, of which the sizes are the upper or the lower bounds.
      mode: "nearest", "linear" or "cubic".
      nearest_mode: "round_prefer_floor", "round_prefer_ceil", "floor" or "ceil".

    Returns:
      Y, in X's dtype.

    Raises:
      TypeError: X is not floating point, attributes of the wrong kind.
      ValueError: attributes or sizes that do not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_convgrad import onnx
      >>> X = jnp.array([[[[1.0, 2.0], [3.0, 4.0]]]])
      >>> onnx.resize(X, scales=[1.0, 1.0, 1.0, 2.0], mode="linear")[0, 0]
      Array([[1.  , 1.25, 1.75, 2.  ],
             [3.  , 3.25, 3.75, 4.  ]], dtype=float32)
    """
    function = "onnx.resize"
    X = compat.as_array(X)
    check_float_dtypes(function, X=X.dtype)
    problem = _problem(
        function,
        X.shape,
        roi,
        scales,
        sizes,
        antialias,
        axes,
        coordinate_transformation_mode,
        cubic_coeff_a,
        exclude_outside,
        extrapolation_value,
        keep_aspect_ratio_policy,
        mode,
        nearest_mode,
    )

    def forward(X: Array) -> Array:
        return apply(X, problem.steps, extrapolation_value=float(extrapolation_value))

    contract = Contract(function, "onnx.resize_grad", "jax_convgrad.resize")
    return call(contract, forward, lambda dY, *_: (problem.gradient(dY),), ((),), (X,))


def resize_grad(
    dY: ArrayLike,
    X: ArrayLike,
    roi: ArrayLike | Sequence[float] | None = None,
    scales: ArrayLike | Sequence[float] | None = None,
    sizes: ArrayLike | Sequence[int] | None = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Array:
    """Gradient of `resize`. Definition: the adjoint of ONNX operator Resize, version 19.

    Args:
      dY: gradient of the result, of `resize`'s output shape and X's dtype.
      X: `resize`'s input, of which only shape and dtype are read.
      roi, scales, sizes, axes: those of the forward operator. With neither scales nor sizes the sizes are
        dY's, in every mode, as in ONNX Runtime's ResizeGrad; ``keep_aspect_ratio_policy`` needs sizes.
      antialias, coordinate_transformation_mode, cubic_coeff_a, exclude_outside, mode, nearest_mode:
        likewise.
      extrapolation_value, keep_aspect_ratio_policy: likewise.

    Returns:
      dX, with the shape and dtype of X.

    Raises:
      TypeError, ValueError: as `resize`, and if dY is not of `resize`'s output shape.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_convgrad import onnx
      >>> X, dY = jnp.ones((1, 1, 2, 2)), jnp.ones((1, 1, 4, 6))
      >>> onnx.resize_grad(dY, X, sizes=[4, 6], axes=[2, 3], mode="cubic")[0, 0]
      Array([[6., 6.],
             [6., 6.]], dtype=float32)
    """
    function = "onnx.resize_grad"
    dY, X = compat.as_array(dY), compat.as_array(X)
    check_float_dtypes(function, dY=dY.dtype, X=X.dtype)
    problem = _problem(
        function,
        X.shape,
        roi,
        scales,
        sizes,
        antialias,
        axes,
        coordinate_transformation_mode,
        cubic_coeff_a,
        exclude_outside,
        extrapolation_value,
        keep_aspect_ratio_policy,
        mode,
        nearest_mode,
        dY.shape,
    )
    if dY.shape != problem.shape:
        raise ValueError(
            f"{function}: dY must have the shape of the forward result, {problem.shape}, got {dY.shape} "
            f"(X has shape {X.shape})"
        )
    return problem.gradient(dY)


class _Problem(NamedTuple):
    shape: Shape
    steps: Steps

    def gradient(self, dY: Array) -> Array:
        return apply(dY, [(axis, band.transpose) for axis, band in self.steps])


def _problem(
    function: str,
    x_shape: Shape,
    roi: Any,
    scales: Any,
    sizes: Any,
    antialias: int,
    axes: Sequence[int] | None,
    coordinate_transformation_mode: str,
    cubic_coeff_a: float,
    exclude_outside: int,
    extrapolation_value: float,
    keep_aspect_ratio_policy: str,
    mode: str,
    nearest_mode: str,
    dy_shape: Shape | None = None,
) -> _Problem:
    """The checked attributes as a shape and one band per axis that changes.

    ``dy_shape`` has the sizes where neither scales nor sizes are given.
    """
    for name, value, known in (
        ("mode", mode, _MODES),
        ("nearest_mode", nearest_mode, _NEAREST_MODES),
        ("keep_aspect_ratio_policy", keep_aspect_ratio_policy, _POLICIES),
    ):
        if value not in known:
            raise ValueError(f"{function}: {name} must be one of {', '.join(known)}, got {value!r}")
    for name, flag in (("antialias", antialias), ("exclude_outside", exclude_outside)):
        if flag not in (0, 1):
            raise ValueError(f"{function}: {name} must be 0 or 1, got {flag!r}")
    if mode == "nearest" and antialias:
        raise ValueError(f"{function}: antialias=1 belongs to mode 'linear' and 'cubic'")
    _finite(function, "extrapolation_value", extrapolation_value)
    options = Options.make(
        function,
        mode,
        antialias,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        bool(exclude_outside),
        coordinate_name="coordinate_transformation_mode",
    )
    rank = len(x_shape)
    chosen = _axes(function, axes, x_shape)
    scales = _vector(function, "scales", scales, len(chosen), x_shape)
    sizes = _vector(function, "sizes", sizes, len(chosen), x_shape)
    if scales is None and sizes is None and dy_shape is not None:
        if keep_aspect_ratio_policy != "stretch":
            raise ValueError(
                f"{function}: keep_aspect_ratio_policy={keep_aspect_ratio_policy!r} needs sizes: those of dY "
                f"are rounded"
            )
        if len(dy_shape) != rank:
            raise ValueError(
                f"{function}: dY must have the rank of X, but dY has shape {dy_shape} and X {x_shape}"
            )
        sizes = [dy_shape[axis] for axis in chosen]
    if (scales is None) == (sizes is None):
        given = "neither" if scales is None else "both"
        raise ValueError(f"{function}: exactly one of scales and sizes must be given, got {given}")
    shape: list[Any] = list(x_shape)
    factors: list[float | Fraction | None] = [None] * rank
    if scales is not None:
        if keep_aspect_ratio_policy != "stretch":
            raise ValueError(
                f"{function}: keep_aspect_ratio_policy={keep_aspect_ratio_policy!r} goes with sizes, not "
                f"with scales={scales}"
            )
        for axis, scale in zip(chosen, scales, strict=True):
            with np.errstate(over="ignore"):  # the check for infinity follows
                factor = np.float32(_finite(function, "scales", scale))
            if not (0 < factor and math.isfinite(factor)):
                raise ValueError(f"{function}: scales must be positive and finite, got {scales}")
            if _stays(function, x_shape, axis, factor == 1):
                continue
            shape[axis] = int(np.floor(np.float32(x_shape[axis]) * factor))
            factors[axis] = float(factor)
    else:
        wanted = {
            axis: _size(function, size, x_shape[axis], sizes)
            for axis, size in zip(chosen, sizes, strict=True)
        }
        for axis, size in wanted.items():
            if not _stays(function, x_shape, axis, size == x_shape[axis]):
                shape[axis] = size
        if keep_aspect_ratio_policy != "stretch" and chosen:
            ratios = [
                Fraction(1) if size == x_shape[axis] else Fraction(size, max(x_shape[axis], 1))
                for axis, size in wanted.items()
            ]
            ratio = min(ratios) if keep_aspect_ratio_policy == "not_larger" else max(ratios)
            for axis in chosen:
                if _stays(function, x_shape, axis, ratio == 1):
                    continue
                shape[axis] = math.floor(ratio * x_shape[axis] + Fraction(1, 2))
                factors[axis] = ratio
    sized = [axis for axis in chosen if isinstance(x_shape[axis], int)]
    if any(shape[axis] < 1 <= x_shape[axis] for axis in sized):
        raise ValueError(
            f"{function}: an axis of X, of shape {x_shape}, would have no elements left: {tuple(shape)}"
        )
    regions = None
    if coordinate_transformation_mode == "tf_crop_and_resize":
        roi = _vector(function, "roi", roi, 2 * len(chosen), x_shape)
        if roi is None:
            raise ValueError(
                f"{function}: coordinate_transformation_mode='tf_crop_and_resize' needs roi"
            )
        regions = [(0.0, 1.0)] * rank
        for i, axis in enumerate(chosen):
            regions[axis] = (
                _finite(function, "roi", roi[i]),
                _finite(function, "roi", roi[i + len(chosen)]),
            )
    steps = options.steps(function, x_shape, tuple(shape), factors, regions)
    return _Problem(tuple(shape), steps)


def _axes(function: str, axes: Any, x_shape: Shape) -> tuple[int, ...]:
    rank = len(x_shape)
    if axes is None:
        return tuple(range(rank))
    try:
        chosen = tuple(operator.index(axis) for axis in axes)
    except TypeError:
        raise TypeError(f"{function}: axes must be a sequence of integers, got {axes!r}") from None
    if any(not -rank <= axis < rank for axis in chosen):
        raise ValueError(f"{function}: axes={chosen} are not axes of X of shape {x_shape}")
    chosen = tuple(axis % rank for axis in chosen)
    if len(set(chosen)) != len(chosen):
        raise ValueError(
            f"{function}: axes={tuple(axes)} names an axis twice (X has shape {x_shape})"
        )
    return chosen


def _vector(function: str, name: str, value: Any, length: int, x_shape: Shape) -> list[Any] | None:
    """The entries of a one-dimensional input; None where it is missing or empty."""
    if value is None:
        return None
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{function}: {name} must be known while tracing, got {value}")
    if isinstance(value, str) or not hasattr(value, "__len__") or np.ndim(value) != 1:
        raise TypeError(f"{function}: {name} must be a vector, got {value!r}")
    entries = list(np.asarray(value) if isinstance(value, Array) else value)
    if not entries:
        return None
    if len(entries) != length:
        raise ValueError(
            f"{function}: {name} must have {length} entries, got {len(entries)} (X has shape {x_shape})"
        )
    return entries


def _stays(function: str, x_shape: Shape, axis: int, unchanged: bool) -> bool:
    """Whether the axis has a symbolic size, which must not change.

    Raises:
      ValueError: it is symbolic and would change.
    """
    if isinstance(x_shape[axis], int):
        return False
    if not unchanged:
        raise ValueError(
            f"{function}: axis {axis} is resized, so its size must be known, got {x_shape[axis]} (X has "
            f"shape {x_shape})"
        )
    return True


def _size(function: str, size: Any, old: Any, sizes: list[Any]) -> Any:
    if jax.export.is_symbolic_dim(size):
        if size == old:
            return size
        raise ValueError(
            f"{function}: sizes must be known, or equal to those of X, got {sizes} (X has {old} there)"
        )
    try:
        number = operator.index(size)
    except TypeError:
        raise TypeError(f"{function}: sizes must be integers, got {sizes}") from None
    if isinstance(size, bool):
        raise TypeError(f"{function}: sizes must be integers, got {sizes}")
    if number < 1 and number != old:
        raise ValueError(f"{function}: sizes must be at least 1, got {sizes}")
    return number


def _finite(function: str, name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{function}: {name} must hold numbers, got {value!r}") from None
    if not math.isfinite(number):
        raise ValueError(f"{function}: {name} must be finite, got {value!r}")
    return number

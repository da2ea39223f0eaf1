"""Layers and operators that resize: `jax.image`'s functions, and the linear maps behind them.

Each axis of a resize is a banded matrix (`bands`), all of them together one primitive
(`resample_primitive`), whose gradient is the same primitive with transposed tables. The primitive is
linear and closed under transposition, so the layers need no `jax.custom_vjp` and keep forward mode.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import operator
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from jax_convgrad._src import compat
from jax_convgrad._src.dtypes import FLOAT_DTYPES, check_float_dtypes, sum_dtype
from jax_convgrad._src.resize import bands, filters
from jax_convgrad._src.resize import primitives as resize_primitives
from jax_convgrad._src.resize.bands import Band, Rule
from jax_convgrad._src.shapes import Shape

_ALIASES = {
    "bilinear": "linear",
    "trilinear": "linear",
    "triangle": "linear",
    "bicubic": "cubic",
    "tricubic": "cubic",
    "bicubic-pytorch": "cubic-pytorch",
}
_METHODS = (*bands.METHODS, "cubic-pytorch")

Steps = list[tuple[int, Band]]


# Layers.


def resize(
    image: ArrayLike,
    shape: Sequence[int],
    method: Any,
    antialias: bool = True,
    precision: Any = lax.Precision.HIGHEST,
    *,
    coordinate_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_ceil",
    cubic_coeff_a: float | None = None,
    exclude_outside: bool | None = None,
    scale: Sequence[float | None] | None = None,
    roi: Sequence[Sequence[float]] | None = None,
    extrapolation_value: float = 0.0,
) -> Array:
    """`jax.image.resize` with fast, deterministic gradients, in every common coordinate convention.

    Arguments, order and defaults are jax.image's, and so is the result, to rounding: sums are taken
    in float32 (float64 for float64) with weights that were computed in float64, and rounded once. Only
    axes whose size changes are touched. Linear in ``image``; differentiable to any order in both modes.

    Args:
      image: an array of any rank; floating point, or any dtype for "nearest". Others are promoted to
        floating point as in jax.image.
      shape: the size of every axis of the result.
      method: "nearest", "linear", "cubic", "cubic-pytorch", "lanczos3", "lanczos5", "area", jax.image's
        other names for them or a `jax.image.ResizeMethod`; or "area-pytorch", the mean of all elements
        that an output's interval touches.
      antialias: stretch the filter when downsampling. "nearest" and the areas have no use for it.
      precision: taken for compatibility; no product is rounded to less than float32.
      coordinate_mode: "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
        "asymmetric" or "tf_crop_and_resize", as ONNX defines them. The areas know half_pixel only.
      nearest_mode: "round_prefer_floor", "round_prefer_ceil", "floor" or "ceil" of the coordinate. jax.image
        rounds up at halves, in float32; here that is exact.
      cubic_coeff_a: the cubic filter's coefficient. None is -0.5, or -0.75 for "cubic-pytorch" without
        antialiasing.
      exclude_outside: what the filter reads outside the image is left out and the other weights divided
        by their sum (True), or the edge is repeated (False). None is False for "cubic-pytorch" without
        antialiasing and True otherwise.
      scale: per axis, the output size over the input size where it is not the sizes' own ratio, or None.
      roi: per axis, (start, end) of the region that tf_crop_and_resize takes, 0 and 1 being the centres
        of the first and the last element.
      extrapolation_value: what tf_crop_and_resize puts where it reads outside the image.

    Returns:
      The resized image.

    Raises:
      TypeError: arguments of the wrong kind.
      ValueError: unknown names, sizes or other arguments that do not fit.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax_convgrad import resize
      >>> x = jnp.arange(4.0).reshape(1, 2, 2, 1)
      >>> resize(x, (1, 3, 3, 1), "linear", coordinate_mode="align_corners")[0, :, :, 0]
      Array([[0. , 0.5, 1. ],
             [1. , 1.5, 2. ],
             [2. , 2.5, 3. ]], dtype=float32)
      >>> jax.grad(lambda x: resize(x, (1, 4, 4, 1), "nearest").sum())(x)[0, :, :, 0]
      Array([[4., 4.],
             [4., 4.]], dtype=float32)
    """
    name = "resize"
    image = compat.as_array(image)
    compat.canonical_precision(precision)
    options = Options.make(
        name,
        method,
        antialias,
        coordinate_mode,
        nearest_mode,
        cubic_coeff_a,
        exclude_outside,
    )
    shape = _full_shape(name, shape, "image", image.shape)
    value = _number(name, "extrapolation_value", extrapolation_value)
    steps = options.steps(name, image.shape, shape, scale, roi)
    return apply(image, steps, nearest=options.method == "nearest", extrapolation_value=value)


def scale_and_translate(
    image: ArrayLike,
    shape: Sequence[int],
    spatial_dims: Sequence[int],
    scale: ArrayLike | Sequence[float],
    translation: ArrayLike | Sequence[float],
    method: Any,
    antialias: bool = True,
    precision: Any = lax.Precision.HIGHEST,
    *,
    cubic_coeff_a: float | None = None,
) -> Array:
    """`jax.image.scale_and_translate` with fast, deterministic gradients.

    Arguments, order, defaults and result are jax.image's. Where ``scale`` and ``translation`` are
    numbers it runs as `resize` does. Where they are traced the weights are a dense matrix made in the
    program, and the gradient flows to them too.

    Args:
      image: an array of any rank, floating point or promoted to it.
      shape: the size of every axis of the result; that of axes not in ``spatial_dims`` stays.
      spatial_dims: the axes to transform.
      scale: one number per entry of ``spatial_dims``, not zero.
      translation: one number per entry of ``spatial_dims``, in elements of the result.
      method: as for `resize`; not "nearest" nor "area-pytorch".
      antialias, precision, cubic_coeff_a: as for `resize`.

    Returns:
      The image sampled at (i + 0.5 - translation) / scale - 0.5; zeros where that is outside by more
      than half an element.

    Raises:
      TypeError: arguments of the wrong kind.
      ValueError: unknown names, sizes or other arguments that do not fit.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax_convgrad import scale_and_translate
      >>> x = jnp.array([1.0, 2.0, 4.0])
      >>> scale_and_translate(x, (4,), (0,), [1.0], [0.5], "linear")
      Array([1. , 1.5, 3. , 4. ], dtype=float32)
      >>> jax.grad(lambda t: scale_and_translate(x, (4,), (0,), jnp.ones(1), t, "linear").sum())(
      ...     jnp.array([0.5]))
      Array([-3.], dtype=float32)
    """
    name = "scale_and_translate"
    image = compat.as_array(image)
    compat.canonical_precision(precision)
    options = Options.make(name, method, antialias, "half_pixel", "ceil", cubic_coeff_a, None)
    if options.method in ("nearest", "area-pytorch"):
        raise ValueError(f"{name}: method={options.method!r} takes no scale and translation")
    shape = _full_shape(name, shape, "image", image.shape)
    axes = _axes(name, "spatial_dims", spatial_dims, image.shape)
    for axis, (size, wanted) in enumerate(zip(image.shape, shape, strict=True)):
        if axis not in axes and size != wanted:
            raise ValueError(
                f"{name}: axis {axis} is not in spatial_dims={axes}, so its size must stay {size}, got "
                f"shape={shape} for an image of shape {image.shape}"
            )
    scales = _entries(name, "scale", scale, len(axes))
    translations = _entries(name, "translation", translation, len(axes))
    steps: Steps = []
    traced = []
    for axis, s, t in zip(axes, scales, translations, strict=True):
        n, m = _sizes(name, image.shape, shape, axis)
        if isinstance(s, jax.core.Tracer) or isinstance(t, jax.core.Tracer):
            traced.append((axis, n, m, s, t))
            continue
        s, t = _number(name, "scale", s), _number(name, "translation", t)
        if s == 0:
            raise ValueError(f"{name}: scale must not be zero, got {scales}")
        if m == 0:
            steps.append((axis, _empty(n)))
            continue
        rule = dataclasses.replace(
            options.rule,
            scale=s,
            translation=t,
            beyond="zero" if options.rule.exclude_outside else "reach",
        )
        _append(steps, axis, bands.make_band(n, m, rule))
    image = apply(image, steps)
    for axis, n, m, s, t in traced:
        image = _apply_traced(image, axis, n, m, s, t, options.rule)
    return image


# Operators.


def resample(
    x: ArrayLike,
    shape: Sequence[int],
    *,
    method: Any = "linear",
    antialias: bool = True,
    coordinate_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_ceil",
    cubic_coeff_a: float | None = None,
    exclude_outside: bool | None = None,
    scale: Sequence[float | None] | None = None,
    roi: Sequence[Sequence[float]] | None = None,
) -> Array:
    """The linear map of `resize`: the same without extrapolation_value.

    Definition: y = (A_1 x ... x A_r) x, one banded matrix per axis; see `resize` for the matrices.

    Args:
      x: float16, bfloat16, float32 or float64, any rank.
      shape: the size of every axis of y.
      method, antialias, coordinate_mode, nearest_mode, cubic_coeff_a, exclude_outside, scale, roi: as
        for `resize`.

    Returns:
      y, in x's dtype. tf_crop_and_resize gives zeros where it reads outside x.

    Raises:
      TypeError: x is not of these dtypes; arguments of the wrong kind.
      ValueError: unknown names, sizes or other arguments that do not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_convgrad import resample
      >>> resample(jnp.array([0.0, 4.0]), (4,), method="linear")
      Array([0., 1., 3., 4.], dtype=float32)
    """
    name = "resample"
    x = compat.as_array(x)
    check_float_dtypes(name, x=x.dtype)
    options = Options.make(
        name, method, antialias, coordinate_mode, nearest_mode, cubic_coeff_a, exclude_outside
    )
    shape = _full_shape(name, shape, "x", x.shape)
    return apply(x, options.steps(name, x.shape, shape, scale, roi))


def resample_transpose(
    dy: ArrayLike,
    shape: Sequence[int],
    *,
    method: Any = "linear",
    antialias: bool = True,
    coordinate_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_ceil",
    cubic_coeff_a: float | None = None,
    exclude_outside: bool | None = None,
    scale: Sequence[float | None] | None = None,
    roi: Sequence[Sequence[float]] | None = None,
) -> Array:
    """The adjoint of `resample`: the gradient of a resize from ``shape`` to ``dy``'s shape.

    Definition: <dy, resample(x, dy.shape)> = <resample_transpose(dy, x.shape), x> for all x and dy.

    Args:
      dy: gradient of the resized array; float16, bfloat16, float32 or float64.
      shape: the shape of x.
      method, antialias, coordinate_mode, nearest_mode, cubic_coeff_a, exclude_outside, scale, roi: those
        of the resize x -> y.

    Returns:
      dx with shape ``shape``, in dy's dtype.

    Raises:
      TypeError: dy is not of these dtypes; arguments of the wrong kind.
      ValueError: unknown names, sizes or other arguments that do not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_convgrad import resample_transpose
      >>> resample_transpose(jnp.ones(4), (2,), method="linear")
      Array([2., 2.], dtype=float32)
    """
    name = "resample_transpose"
    dy = compat.as_array(dy)
    check_float_dtypes(name, dy=dy.dtype)
    options = Options.make(
        name, method, antialias, coordinate_mode, nearest_mode, cubic_coeff_a, exclude_outside
    )
    shape = _full_shape(name, shape, "dy", dy.shape)
    steps = options.steps(name, shape, dy.shape, scale, roi)
    return apply(dy, [(axis, band.transpose) for axis, band in steps])


# What they share.


@dataclasses.dataclass(frozen=True)
class Options:
    """The checked arguments that are the same for all axes."""

    method: str
    rule: Rule

    @classmethod
    def make(
        cls,
        function: str,
        method: Any,
        antialias: Any,
        coordinate_mode: str,
        nearest_mode: str,
        cubic_coeff_a: float | None,
        exclude_outside: bool | None,
        coordinate_name: str = "coordinate_mode",
    ) -> Options:
        method = method_name(function, method)
        antialias = bool(antialias)
        modes = bands.COORDINATE_MODES
        if coordinate_mode not in modes:
            raise ValueError(
                f"{function}: {coordinate_name} must be one of {', '.join(modes)}, got "
                f"{coordinate_mode!r}"
            )
        if nearest_mode not in bands.NEAREST_MODES:
            raise ValueError(
                f"{function}: nearest_mode must be one of {', '.join(bands.NEAREST_MODES)}, got "
                f"{nearest_mode!r}"
            )
        if method.startswith("area") and coordinate_mode != "half_pixel":
            raise ValueError(
                f"{function}: method={method!r} knows coordinate_mode='half_pixel' only, got "
                f"{coordinate_mode!r}"
            )
        if exclude_outside is not None and exclude_outside not in (0, 1):
            raise ValueError(f"{function}: exclude_outside must be a bool, got {exclude_outside!r}")
        # Antialiased, PyTorch's cubic is everybody's.
        clamped = method == "cubic-pytorch" and not antialias
        coefficient = -0.75 if clamped else -0.5
        if cubic_coeff_a is not None:
            coefficient = _number(function, "cubic_coeff_a", cubic_coeff_a)
        rule = Rule(
            "cubic" if method == "cubic-pytorch" else method,
            antialias,
            coordinate_mode,
            nearest_mode,
            coefficient,
            not clamped if exclude_outside is None else bool(exclude_outside),
        )
        return cls(method, rule)

    def steps(
        self,
        function: str,
        x_shape: Shape,
        y_shape: Shape,
        scale: Sequence[float | Fraction | None] | None,
        roi: Sequence[Sequence[float]] | None,
    ) -> Steps:
        """The bands from ``x_shape`` to ``y_shape``, of the axes that are not left as they are."""
        rank = len(x_shape)
        scales = _per_axis(function, "scale", scale, rank, None)
        regions = _per_axis(function, "roi", roi, rank, (0.0, 1.0))
        crops = self.rule.coordinate_mode == "tf_crop_and_resize"
        if roi is not None and not crops:
            raise ValueError(
                f"{function}: roi belongs to coordinate_mode='tf_crop_and_resize', got "
                f"{self.rule.coordinate_mode!r}"
            )
        if roi is None and crops:
            raise ValueError(
                f"{function}: coordinate_mode='tf_crop_and_resize' needs roi, one (start, end) pair per "
                f"axis of {x_shape}"
            )
        steps: Steps = []
        for axis in range(rank):
            region = _pair(function, regions[axis])
            factor = scales[axis]
            if factor is not None and not isinstance(factor, Fraction):
                factor = _number(function, "scale", factor)
            if factor is not None and factor <= 0:
                raise ValueError(f"{function}: scale must be positive, got {tuple(scales)}")
            if factor is not None and self.method.startswith("area"):
                raise ValueError(f"{function}: method={self.method!r} takes no scale, got {scales}")
            if x_shape[axis] == y_shape[axis] and factor is None and region == (0.0, 1.0):
                continue
            n, m = _sizes(function, x_shape, y_shape, axis)
            if m == 0:
                steps.append((axis, _empty(n)))
                continue
            rule = dataclasses.replace(self.rule, scale=factor, roi=region)
            _append(steps, axis, bands.make_band(n, m, rule))
        return steps


def apply(
    x: Array, steps: Steps, *, nearest: bool = False, extrapolation_value: float = 0.0
) -> Array:
    """``x`` with the bands applied along their axes, in x's dtype or the one it is promoted to."""
    dtype = x.dtype
    if not steps and (nearest or jnp.issubdtype(dtype, jnp.inexact)):
        return x
    if jnp.issubdtype(dtype, jnp.complexfloating):
        parts = (apply(part, steps, nearest=nearest) for part in (x.real, x.imag))
        x = lax.complex(*parts)
    elif str(dtype) in FLOAT_DTYPES:
        x = _apply_float(x, steps)
    elif jnp.issubdtype(dtype, jnp.floating):  # 8 bits and fewer
        x = _apply_float(x.astype(jnp.float32), steps).astype(dtype)
    elif nearest:
        for axis, band in steps:
            x = jnp.take(compat.whole_along(x, axis), band.start, axis, mode="clip")
    else:
        x = _apply_float(x.astype(_inexact(dtype)), steps)
    return _extrapolate(x, steps, extrapolation_value)


def _apply_float(x: Array, steps: Steps) -> Array:
    if not steps:
        return x
    dtype = x.dtype
    if len(steps) > resize_primitives.MAX_AXES:
        # Several calls, one rounding; what shrinks goes first.
        x = compat.cast(x, sum_dtype(dtype))
        steps = sorted(steps, key=lambda step: step[1].out_size > step[1].size)
    for begin in range(0, len(steps), resize_primitives.MAX_AXES):
        chunk = sorted(steps[begin : begin + resize_primitives.MAX_AXES], key=lambda step: step[0])
        axes, tables = zip(*chunk, strict=True)
        x = resize_primitives.resample(x, tables, axes)
    return compat.cast(x, dtype)


def _extrapolate(x: Array, steps: Steps, value: float) -> Array:
    outside = [(axis, band.outside) for axis, band in steps if band.outside is not None]
    if not outside or (value == 0 and jnp.issubdtype(x.dtype, jnp.inexact)):
        return x
    with np.errstate(over="ignore"):  # infinite then
        fill = np.asarray(value).astype(x.dtype)
    for axis, rows in outside:
        # Not jnp.where, which makes float32 of a float64 array that has outlived its `jax.enable_x64`.
        mask = compat.broadcast_along(jnp.asarray(rows), x, axis)
        x = lax.select(*compat.match_varying(mask, lax.full_like(x, fill), x))
    return x


def _apply_traced(
    image: Array, axis: int, n: int, m: int, scale: Any, translation: Any, rule: Rule
) -> Array:
    floating = jnp.result_type(scale, translation)
    if not jnp.issubdtype(floating, jnp.inexact):
        floating = _inexact(floating)
    weights = filters.weight_matrix(
        n,
        m,
        jnp.asarray(scale, floating),
        jnp.asarray(translation, floating),
        method=rule.method,
        cubic_coeff_a=rule.cubic_coeff_a,
        antialias=rule.antialias,
        reach=None if rule.exclude_outside else filters.RADIUS[rule.method],
    )
    if not jnp.issubdtype(image.dtype, jnp.inexact):
        image = image.astype(_inexact(image.dtype))
    is_complex = jnp.issubdtype(image.dtype, jnp.complexfloating)
    wide = image.dtype if is_complex else sum_dtype(image.dtype)
    operand, result = list(range(image.ndim)), list(range(image.ndim))
    result[axis] = image.ndim
    product = jnp.einsum(
        image.astype(wide),
        operand,
        weights.astype(wide),
        [axis, image.ndim],
        result,
        precision=lax.Precision.HIGHEST,
    )
    return product.astype(image.dtype)


def _inexact(dtype: Any) -> Any:
    """The floating-point dtype that JAX's functions promote an integer one to."""
    return jax.eval_shape(jnp.sqrt, jax.ShapeDtypeStruct((), dtype)).dtype


def _append(steps: Steps, axis: int, band: Band) -> None:
    if not band.is_identity:
        steps.append((axis, band))


def _empty(n: int) -> Band:
    """From n elements to none."""
    return Band(np.zeros(0, np.int32), np.zeros((0, min(n, 1))), n)


# Arguments.


def method_name(function: str, method: Any) -> str:
    """The one name of a method, from any of its names or a `jax.image.ResizeMethod`."""
    if isinstance(method, jax.image.ResizeMethod):
        method = method.name.lower().replace("_", "-")
    if not isinstance(method, str):
        raise TypeError(
            f"{function}: method must be a string or a jax.image.ResizeMethod, got {method!r}"
        )
    name = _ALIASES.get(method, method)
    if name not in _METHODS:
        known = ", ".join((*_METHODS, *_ALIASES))
        raise ValueError(f"{function}: method must be one of {known}, got {method!r}")
    return name


def _full_shape(function: str, shape: Any, name: str, other: Shape) -> Shape:
    if isinstance(shape, Array):
        shape = np.asarray(shape)
    if isinstance(shape, str) or not isinstance(shape, (Sequence, np.ndarray)):
        raise TypeError(f"{function}: shape must be a sequence of integers, got {shape!r}")
    if len(shape) != len(other):
        raise ValueError(
            f"{function}: shape must have one size per axis of {name}, got {tuple(shape)} for {name} of "
            f"shape {tuple(other)}"
        )
    sizes: list[Any] = []
    for size, old in zip(shape, other, strict=True):
        if size is old:  # a symbolic size that stays
            sizes.append(size)
            continue
        if isinstance(size, bool):
            raise TypeError(f"{function}: shape must hold integers, got {tuple(shape)}")
        try:
            sizes.append(operator.index(size))
        except TypeError:
            if not jax.export.is_symbolic_dim(size):
                raise TypeError(
                    f"{function}: shape must hold integers, got {tuple(shape)}"
                ) from None
            sizes.append(size)
            continue
        if sizes[-1] < 0:
            raise ValueError(f"{function}: shape must not be negative, got {tuple(shape)}")
    return tuple(sizes)


def _sizes(function: str, x_shape: Shape, y_shape: Shape, axis: int) -> tuple[int, int]:
    """Input and output size of an axis that is resized, both known numbers."""
    n, m = x_shape[axis], y_shape[axis]
    if not isinstance(n, int) or not isinstance(m, int):
        raise ValueError(
            f"{function}: axis {axis} is resized, so its sizes must be known, got {n} and {m} (from "
            f"{x_shape} to {y_shape})"
        )
    if n == 0 and m > 0:
        raise ValueError(
            f"{function}: axis {axis} has no elements to make {m} of (from {x_shape} to {y_shape})"
        )
    if max(n, m) >= 2**31:
        raise ValueError(f"{function}: axis {axis} has 2^31 elements or more: {x_shape}, {y_shape}")
    return n, m


def _axes(function: str, name: str, value: Any, shape: Shape) -> tuple[int, ...]:
    try:
        axes = tuple(operator.index(axis) for axis in value)
    except TypeError:
        raise TypeError(
            f"{function}: {name} must be a sequence of integers, got {value!r}"
        ) from None
    rank = len(shape)
    if any(not -rank <= axis < rank for axis in axes):
        raise ValueError(f"{function}: {name}={axes} are not axes of an array of shape {shape}")
    axes = tuple(axis % rank for axis in axes)
    if len(set(axes)) != len(axes):
        raise ValueError(f"{function}: {name}={tuple(value)} names an axis twice (shape {shape})")
    return axes


def _entries(function: str, name: str, value: Any, length: int) -> list[Any]:
    """The numbers in a vector that may be traced, in whole or in part."""
    if isinstance(value, (list, tuple)):
        entries = list(value)
    elif hasattr(value, "shape"):
        if len(value.shape) != 1:
            raise ValueError(f"{function}: {name} must be a vector, got shape {value.shape}")
        entries = [value[i] for i in range(value.shape[0])]
    else:
        raise TypeError(f"{function}: {name} must be an array or a sequence, got {value!r}")
    if len(entries) != length:
        raise ValueError(
            f"{function}: {name} must have one entry per entry of spatial_dims ({length}), got "
            f"{len(entries)}"
        )
    return entries


def _per_axis(function: str, name: str, value: Any, rank: int, default: Any) -> list[Any]:
    if value is None:
        return [default] * rank
    if isinstance(value, str) or not isinstance(value, (Sequence, np.ndarray)):
        raise TypeError(f"{function}: {name} must have one entry per axis, got {value!r}")
    if len(value) != rank:
        raise ValueError(
            f"{function}: {name} must have {rank} entries, one per axis, got {value!r}"
        )
    return list(value)


def _pair(function: str, value: Any) -> tuple[float, float]:
    if isinstance(value, str) or not hasattr(value, "__len__") or len(value) != 2:
        raise ValueError(f"{function}: roi must hold (start, end) pairs, got {value!r}")
    return (_number(function, "roi", value[0]), _number(function, "roi", value[1]))


def _number(function: str, name: str, value: Any) -> float:
    """A finite number, as a float."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{function}: {name} must be known while tracing, got {value}")
    is_array = isinstance(value, (np.ndarray, np.generic, Array)) and value.shape == ()
    if isinstance(value, bool) or not (isinstance(value, numbers.Real) or is_array):
        raise TypeError(f"{function}: {name} must be a number, got {value!r}")
    result = float(value)
    if not math.isfinite(result):
        raise ValueError(f"{function}: {name} must be finite, got {value!r}")
    return result

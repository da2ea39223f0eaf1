"""Layers and operators that resize: `jax.image`'s functions, and the linear maps behind them.

Each axis of a resize is a banded matrix (`bands`). All of them together form one primitive
(`resample_primitive`), whose gradient is the same primitive with transposed tables. The primitive is linear
and closed under transposition, so the layers need no `jax.custom_vjp` and keep forward mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from jax_convgrad._src import compat, hints
from jax_convgrad._src.dtypes import FLOAT_DTYPES, check_float_dtypes, sum_dtype
from jax_convgrad._src.resize import filters
from jax_convgrad._src.resize import primitives as resize_primitives
from jax_convgrad._src.resize.arguments import (
    Options,
    ResizeArguments,
    ScaleAndTranslateArguments,
    Steps,
    TracedAxis,
    check_resize,
    check_scale_and_translate,
    full_shape,
    make_steps,
)
from jax_convgrad._src.resize.bands import Rule

# Layers.


@hints.with_keyword_hints(hints.RESIZE_KEYWORDS, "interpolate")
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
      antialias: stretch the filter when downsampling. "nearest" and the area methods ignore it.
      precision: accepted for compatibility; no product is rounded to less than float32.
      coordinate_mode: "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
        "asymmetric" or "tf_crop_and_resize", as ONNX defines them. The area methods support half_pixel only.
      nearest_mode: "round_prefer_floor", "round_prefer_ceil", "floor" or "ceil" of the coordinate. jax.image
        rounds up at halves, in float32; here that is exact.
      cubic_coeff_a: the cubic filter's coefficient. None is -0.5, or -0.75 for "cubic-pytorch" without
        antialiasing.
      exclude_outside: what the filter reads outside the image is left out and the other weights divided
        by their sum (True), or the edge is repeated (False). None is False for "cubic-pytorch" without
        antialiasing and True otherwise.
      scale: per axis, the output size over the input size where it is not the sizes' own ratio, or None.
      roi: per axis, (start, end) of the region that tf_crop_and_resize takes, 0 and 1 being the centers
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
    arguments = check_resize(
        name,
        image.shape,
        shape,
        method,
        antialias,
        precision,
        coordinate_mode=coordinate_mode,
        nearest_mode=nearest_mode,
        cubic_coeff_a=cubic_coeff_a,
        exclude_outside=exclude_outside,
        scale=scale,
        roi=roi,
        extrapolation_value=extrapolation_value,
    )
    return compute_resize(image, arguments, make_steps(arguments.resized))


def compute_resize(image: Array, arguments: ResizeArguments, steps: Steps) -> Array:
    """The result of `resize`; ``steps`` are the bands of its arguments."""
    nearest = arguments.method == "nearest"
    return apply(image, steps, nearest=nearest, extrapolation_value=arguments.extrapolation_value)


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
      method: "linear", "cubic", "cubic-pytorch", "lanczos3", "lanczos5", "area", jax.image's other names
        for them or a `jax.image.ResizeMethod`; not "nearest" nor "area-pytorch".
      antialias: stretch the filter when downsampling. "area" ignores it.
      precision: accepted for compatibility; no product is rounded to less than float32.
      cubic_coeff_a: the cubic filter's coefficient. None is -0.5, or -0.75 for "cubic-pytorch" without
        antialiasing.

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
    arguments = check_scale_and_translate(
        name,
        image.shape,
        shape,
        spatial_dims,
        scale,
        translation,
        method,
        antialias,
        precision,
        cubic_coeff_a=cubic_coeff_a,
    )
    return compute_scale_and_translate(image, arguments, make_steps(arguments.resized))


def compute_scale_and_translate(
    image: Array, arguments: ScaleAndTranslateArguments, steps: Steps
) -> Array:
    """The result of `scale_and_translate`; ``steps`` are the bands of its arguments."""
    dtype = image.dtype
    sums = bool(arguments.traced) and jnp.issubdtype(dtype, jnp.floating)
    if sums:  # axis by axis, but all axes are one sum, which is rounded once
        image = compat.cast(image, sum_dtype(dtype))
    image = apply(image, steps)
    for entry in arguments.traced:
        image = _apply_traced(image, entry, arguments.rule)
    return compat.cast(image, dtype) if sums else image


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
    shape = full_shape(name, shape, "x", x.shape)
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
    shape = full_shape(name, shape, "dy", dy.shape)
    steps = options.steps(name, shape, dy.shape, scale, roi)
    return apply(dy, [(axis, band.transpose) for axis, band in steps])


# Shared by both.


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


def _apply_traced(image: Array, traced: TracedAxis, rule: Rule) -> Array:
    axis, scale, translation = traced.axis, traced.scale, traced.translation
    floating = jnp.result_type(scale, translation)
    if not jnp.issubdtype(floating, jnp.inexact):
        floating = _inexact(floating)
    weights = filters.weight_matrix(
        traced.size,
        traced.out_size,
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

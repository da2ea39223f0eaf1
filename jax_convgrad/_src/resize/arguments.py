"""Checks the arguments of a resize, and works out what they ask for.

Each check raises ArgumentTypeError or ArgumentValueError with a text that names the function and the
argument. Nothing here computes weights or reads the image, so a caller can find out whether arguments are
valid by calling a check and catching these two. Any other error is a bug of this package, not to be caught.
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
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jax_convgrad._src import compat
from jax_convgrad._src.resize import bands
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


class ArgumentTypeError(TypeError):
    """An argument is of the wrong kind."""


class ArgumentValueError(ValueError):
    """An argument is unknown, or does not fit the others."""


# What a check raises. One that asks whether a call can be served catches these.
ARGUMENT_ERRORS = (ArgumentTypeError, ArgumentValueError)


@dataclasses.dataclass(frozen=True)
class ResizedAxis:
    """An axis that a resize changes.

    Attributes:
      axis: its position.
      size, out_size: its number of elements before and after.
      rule: how they are resampled.
    """

    axis: int
    size: int
    out_size: int
    rule: Rule


def make_steps(resized: Sequence[ResizedAxis]) -> Steps:
    """The bands of the axes that change.

    Raises:
      bands.BandTooLargeError: one needs too many weights.
    """
    steps: Steps = []
    for entry in resized:
        if entry.out_size == 0:
            steps.append((entry.axis, _empty(entry.size)))
            continue
        band = bands.make_band(entry.size, entry.out_size, entry.rule)
        if not band.is_identity:
            steps.append((entry.axis, band))
    return steps


def _empty(n: int) -> Band:
    """From n elements to none."""
    return Band(np.zeros(0, np.int32), np.zeros((0, min(n, 1))), n)


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
        antialias = _bool(function, "antialias", antialias)
        modes = bands.COORDINATE_MODES
        if coordinate_mode not in modes:
            raise ArgumentValueError(
                f"{function}: {coordinate_name} must be one of {', '.join(modes)}, got "
                f"{coordinate_mode!r}"
            )
        if nearest_mode not in bands.NEAREST_MODES:
            raise ArgumentValueError(
                f"{function}: nearest_mode must be one of {', '.join(bands.NEAREST_MODES)}, got "
                f"{nearest_mode!r}"
            )
        if method.startswith("area") and coordinate_mode != "half_pixel":
            raise ArgumentValueError(
                f"{function}: method={method!r} supports only coordinate_mode='half_pixel', got "
                f"{coordinate_mode!r}"
            )
        if exclude_outside is not None and exclude_outside not in (0, 1):
            raise ArgumentValueError(
                f"{function}: exclude_outside must be a bool, got {exclude_outside!r}"
            )
        # Antialiased, PyTorch's cubic is the same as everybody's.
        clamped = method == "cubic-pytorch" and not antialias
        coefficient = -0.75 if clamped else -0.5
        if cubic_coeff_a is not None:
            coefficient = number(function, "cubic_coeff_a", cubic_coeff_a)
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
        """The bands from ``x_shape`` to ``y_shape``, of the axes that change."""
        return make_steps(self.resized_axes(function, x_shape, y_shape, scale, roi))

    def resized_axes(
        self,
        function: str,
        x_shape: Shape,
        y_shape: Shape,
        scale: Sequence[float | Fraction | None] | None,
        roi: Sequence[Sequence[float]] | None,
    ) -> list[ResizedAxis]:
        """The axes that change from ``x_shape`` to ``y_shape``."""
        rank = len(x_shape)
        scales = _per_axis(function, "scale", scale, rank, None)
        regions = _per_axis(function, "roi", roi, rank, (0.0, 1.0))
        crops = self.rule.coordinate_mode == "tf_crop_and_resize"
        if roi is not None and not crops:
            raise ArgumentValueError(
                f"{function}: roi belongs to coordinate_mode='tf_crop_and_resize', got "
                f"{self.rule.coordinate_mode!r}"
            )
        if roi is None and crops:
            raise ArgumentValueError(
                f"{function}: coordinate_mode='tf_crop_and_resize' needs roi, one (start, end) pair per "
                f"axis of {x_shape}"
            )
        resized = []
        for axis in range(rank):
            region = _pair(function, regions[axis])
            factor = scales[axis]
            if factor is not None and not isinstance(factor, Fraction):
                factor = number(function, "scale", factor)
            if factor is not None and factor <= 0:
                raise ArgumentValueError(f"{function}: scale must be positive, got {tuple(scales)}")
            if factor is not None and self.method.startswith("area"):
                raise ArgumentValueError(
                    f"{function}: method={self.method!r} takes no scale, got {scales}"
                )
            if x_shape[axis] == y_shape[axis] and factor is None and region == (0.0, 1.0):
                continue
            n, m = _sizes(function, x_shape, y_shape, axis)
            rule = dataclasses.replace(self.rule, scale=factor, roi=region)
            resized.append(ResizedAxis(axis, n, m, rule))
        return resized


@dataclasses.dataclass(frozen=True)
class ResizeArguments:
    """The checked arguments of `resize`."""

    method: str
    resized: list[ResizedAxis]
    extrapolation_value: float


def check_resize(
    name: str,
    image_shape: Shape,
    shape: Sequence[int],
    method: Any,
    antialias: bool,
    precision: Any,
    *,
    coordinate_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_ceil",
    cubic_coeff_a: float | None = None,
    exclude_outside: bool | None = None,
    scale: Sequence[float | None] | None = None,
    roi: Sequence[Sequence[float]] | None = None,
    extrapolation_value: float = 0.0,
) -> ResizeArguments:
    """What `resize`, here called ``name``, is to do with an image of this shape."""
    _check_precision(name, precision)
    options = Options.make(
        name,
        method,
        antialias,
        coordinate_mode,
        nearest_mode,
        cubic_coeff_a,
        exclude_outside,
    )
    shape = full_shape(name, shape, "image", image_shape)
    value = number(name, "extrapolation_value", extrapolation_value)
    resized = options.resized_axes(name, image_shape, shape, scale, roi)
    return ResizeArguments(options.method, resized, value)


@dataclasses.dataclass(frozen=True)
class TracedAxis:
    """An axis that `scale_and_translate` transforms by numbers of which at least one is traced."""

    axis: int
    size: int
    out_size: int
    scale: Any
    translation: Any


@dataclasses.dataclass(frozen=True)
class ScaleAndTranslateArguments:
    """The checked arguments of `scale_and_translate`; ``rule`` is that of the traced axes."""

    rule: Rule
    resized: list[ResizedAxis]
    traced: list[TracedAxis]


def check_scale_and_translate(
    name: str,
    image_shape: Shape,
    shape: Sequence[int],
    spatial_dims: Sequence[int],
    scale: ArrayLike | Sequence[float],
    translation: ArrayLike | Sequence[float],
    method: Any,
    antialias: bool,
    precision: Any,
    *,
    cubic_coeff_a: float | None = None,
) -> ScaleAndTranslateArguments:
    """What `scale_and_translate`, here called ``name``, is to do with an image of this shape."""
    _check_precision(name, precision)
    options = Options.make(name, method, antialias, "half_pixel", "ceil", cubic_coeff_a, None)
    if options.method in ("nearest", "area-pytorch"):
        raise ArgumentValueError(
            f"{name}: method={options.method!r} takes no scale and translation"
        )
    shape = full_shape(name, shape, "image", image_shape)
    axes = _axes(name, "spatial_dims", spatial_dims, image_shape)
    for axis, (size, wanted) in enumerate(zip(image_shape, shape, strict=True)):
        if axis not in axes and size != wanted:
            raise ArgumentValueError(
                f"{name}: axis {axis} is not in spatial_dims={axes}, so its size must stay {size}, got "
                f"shape={shape} for an image of shape {image_shape}"
            )
    scales = _entries(name, "scale", scale, len(axes))
    translations = _entries(name, "translation", translation, len(axes))
    resized, traced = [], []
    for axis, s, t in zip(axes, scales, translations, strict=True):
        n, m = _sizes(name, image_shape, shape, axis)
        if isinstance(s, jax.core.Tracer) or isinstance(t, jax.core.Tracer):
            traced.append(TracedAxis(axis, n, m, s, t))
            continue
        s, t = number(name, "scale", s), number(name, "translation", t)
        if s == 0:
            raise ArgumentValueError(f"{name}: scale must not be zero, got {scales}")
        rule = dataclasses.replace(
            options.rule,
            scale=s,
            translation=t,
            beyond="zero" if options.rule.exclude_outside else "reach",
        )
        resized.append(ResizedAxis(axis, n, m, rule))
    return ScaleAndTranslateArguments(options.rule, resized, traced)


def method_name(function: str, method: Any) -> str:
    """The canonical name of a method, from any of its names or a `jax.image.ResizeMethod`."""
    if isinstance(method, jax.image.ResizeMethod):
        method = method.name.lower().replace("_", "-")
    if not isinstance(method, str):
        raise ArgumentTypeError(
            f"{function}: method must be a string or a jax.image.ResizeMethod, got {method!r}"
        )
    name = _ALIASES.get(method, method)
    if name not in _METHODS:
        known = ", ".join((*_METHODS, *_ALIASES))
        raise ArgumentValueError(f"{function}: method must be one of {known}, got {method!r}")
    return name


def full_shape(function: str, shape: Any, name: str, other: Shape) -> Shape:
    if isinstance(shape, Array) and not isinstance(shape, jax.core.Tracer):
        shape = np.asarray(shape)
    is_vector = isinstance(shape, np.ndarray) and shape.ndim == 1
    if isinstance(shape, str) or not (isinstance(shape, Sequence) or is_vector):
        raise ArgumentTypeError(f"{function}: shape must be a sequence of integers, got {shape!r}")
    if len(shape) != len(other):
        raise ArgumentValueError(
            f"{function}: shape must have one size per axis of {name}, got {tuple(shape)} for {name} of "
            f"shape {tuple(other)}"
        )
    sizes: list[Any] = []
    for size, old in zip(shape, other, strict=True):
        if size is old:  # a symbolic size that does not change
            sizes.append(size)
            continue
        if isinstance(size, bool):
            raise ArgumentTypeError(f"{function}: shape must hold integers, got {tuple(shape)}")
        try:
            sizes.append(operator.index(size))
        except TypeError:
            if not jax.export.is_symbolic_dim(size):
                raise ArgumentTypeError(
                    f"{function}: shape must hold integers, got {tuple(shape)}"
                ) from None
            sizes.append(size)
            continue
        if sizes[-1] < 0:
            raise ArgumentValueError(f"{function}: shape must not be negative, got {tuple(shape)}")
    return tuple(sizes)


def _sizes(function: str, x_shape: Shape, y_shape: Shape, axis: int) -> tuple[int, int]:
    """Input and output size of an axis that is resized; both must be known numbers."""
    n, m = x_shape[axis], y_shape[axis]
    if not isinstance(n, int) or not isinstance(m, int):
        raise ArgumentValueError(
            f"{function}: axis {axis} is resized, so its sizes must be known, got {n} and {m} (from "
            f"{x_shape} to {y_shape})"
        )
    if n == 0 and m > 0:
        raise ArgumentValueError(
            f"{function}: axis {axis} has no elements to make {m} of (from {x_shape} to {y_shape})"
        )
    if max(n, m) >= 2**31:
        raise ArgumentValueError(
            f"{function}: axis {axis} has 2^31 elements or more: {x_shape}, {y_shape}"
        )
    return n, m


def _axes(function: str, name: str, value: Any, shape: Shape) -> tuple[int, ...]:
    try:
        axes = tuple(operator.index(axis) for axis in value)
    except TypeError:
        raise ArgumentTypeError(
            f"{function}: {name} must be a sequence of integers, got {value!r}"
        ) from None
    rank = len(shape)
    if any(not -rank <= axis < rank for axis in axes):
        raise ArgumentValueError(
            f"{function}: {name}={axes} are not axes of an array of shape {shape}"
        )
    axes = tuple(axis % rank for axis in axes)
    if len(set(axes)) != len(axes):
        raise ArgumentValueError(
            f"{function}: {name}={tuple(value)} names an axis twice (shape {shape})"
        )
    return axes


def _entries(function: str, name: str, value: Any, length: int) -> list[Any]:
    """The numbers in a vector that may be traced, in whole or in part."""
    if isinstance(value, (list, tuple)):
        entries = list(value)
    elif hasattr(value, "shape"):
        if len(value.shape) != 1:
            raise ArgumentValueError(
                f"{function}: {name} must be a vector, got shape {value.shape}"
            )
        entries = [value[i] for i in range(value.shape[0])]
    else:
        raise ArgumentTypeError(f"{function}: {name} must be an array or a sequence, got {value!r}")
    if len(entries) != length:
        raise ArgumentValueError(
            f"{function}: {name} must have one entry per entry of spatial_dims ({length}), got "
            f"{len(entries)}"
        )
    return entries


def _per_axis(function: str, name: str, value: Any, rank: int, default: Any) -> list[Any]:
    if value is None:
        return [default] * rank
    if isinstance(value, str) or not isinstance(value, (Sequence, np.ndarray)):
        raise ArgumentTypeError(f"{function}: {name} must have one entry per axis, got {value!r}")
    if len(value) != rank:
        raise ArgumentValueError(
            f"{function}: {name} must have {rank} entries, one per axis, got {value!r}"
        )
    return list(value)


def _pair(function: str, value: Any) -> tuple[float, float]:
    if isinstance(value, str) or not hasattr(value, "__len__") or len(value) != 2:
        raise ArgumentValueError(f"{function}: roi must hold (start, end) pairs, got {value!r}")
    return (number(function, "roi", value[0]), number(function, "roi", value[1]))


def number(function: str, name: str, value: Any) -> float:
    """A finite number, as a float."""
    if isinstance(value, jax.core.Tracer):
        raise ArgumentTypeError(f"{function}: {name} must be known while tracing, got {value}")
    is_array = isinstance(value, (np.ndarray, np.generic, Array)) and value.shape == ()
    if isinstance(value, bool) or not (isinstance(value, numbers.Real) or is_array):
        raise ArgumentTypeError(f"{function}: {name} must be a number, got {value!r}")
    try:
        result = float(value)
    except (TypeError, ValueError):  # an array of strings or of complex numbers
        raise ArgumentTypeError(f"{function}: {name} must be a number, got {value!r}") from None
    if not math.isfinite(result):
        raise ArgumentValueError(f"{function}: {name} must be finite, got {value!r}")
    return result


def _bool(function: str, name: str, value: Any) -> bool:
    try:
        return bool(value)
    except (TypeError, ValueError):  # traced, or an array of several
        raise ArgumentTypeError(f"{function}: {name} must be a bool, got {value!r}") from None


def _check_precision(function: str, value: Any) -> None:
    try:
        compat.canonical_precision(value)
    except ValueError as error:  # JAX's own check, in JAX's words
        raise ArgumentValueError(f"{function}: {error}") from error

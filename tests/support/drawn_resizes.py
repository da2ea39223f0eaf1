"""Random calls of `resize` and `scale_and_translate`, and what they give by definition.

A call is the same for this package's functions and for jax.image's, which have the same names.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from support import resize_oracles
from support.comparisons import FLOATS
from support.layouts import Shape
from support.rounding import rounded_sum_bound

_FILTERS = ("linear", "cubic", "cubic-pytorch", "lanczos3", "lanczos5")
_METHODS = ("nearest", *_FILTERS, "area")
_LARGEST = {1: 130, 2: 34, 3: 12}
_MAX_ELEMENTS = 20_000
# Neighboring sums of vectors and tiles, and what is left over beside them.
_OTHERS = (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 33)


@dataclasses.dataclass(frozen=True)
class DrawnResize:
    """A resize from ``x`` to ``y`` along ``axes``, in ``dtype``.

    Attributes:
      method, antialias: as passed.
      keywords: those of this package's `resize` alone.
      rules: those of the matrix of each axis, `resize_oracles.matrix`'s keywords.
      scale, translation: one number an axis for `scale_and_translate`; None for `resize`.
      is_traced: both are arguments of the compiled program, not numbers in it.
    """

    dtype: str
    x: Shape
    y: Shape
    axes: Shape
    method: str
    antialias: bool
    keywords: dict[str, Any]
    rules: list[dict[str, Any]]
    scale: tuple[float, ...] | None = None
    translation: tuple[float, ...] = ()
    is_traced: bool = False

    def __str__(self) -> str:
        text = f"{self.x} to {self.y} along {self.axes}, {self.dtype}, {self.method}"
        text += f", antialias={self.antialias}"
        if self.scale is not None:
            kind = "traced" if self.is_traced else "known"
            text += f", scale={self.scale}, translation={self.translation}, {kind}"
        return text + "".join(f", {k}={v}" for k, v in self.keywords.items())

    def call(self, functions: Any, x: Any, scale: Any = None, translation: Any = None) -> Any:
        """The result by the module ``functions``, with scale and translation where they are traced."""
        if self.scale is None:
            return functions.resize(x, self.y, self.method, self.antialias, **self.keywords)
        if not self.is_traced:
            scale, translation = np.asarray(self.scale), np.asarray(self.translation)
        return functions.scale_and_translate(
            x, self.y, self.axes, scale, translation, self.method, self.antialias
        )

    def program(self, functions: Any) -> Callable[..., tuple[Any, Any]]:
        """(x, dy, scale, translation) -> the value and the gradient."""

        def run(x: Any, dy: Any, *numbers: Any) -> tuple[Any, Any]:
            y, pullback = jax.vjp(lambda x: self.call(functions, x, *numbers), x)
            return y, pullback(dy)[0]

        return run

    def arguments(self, rng: np.random.Generator) -> list[Any]:
        arrays = [jnp.asarray(rng.normal(size=shape), self.dtype) for shape in (self.x, self.y)]
        numbers = [self.scale, self.translation] if self.is_traced else []
        return arrays + [jnp.asarray(values, "float64") for values in numbers]

    def matrices(self) -> dict[int, np.ndarray]:
        """The matrix of each axis."""
        found = {}
        for axis, rule in zip(self.axes, self.rules, strict=True):
            found[axis] = resize_oracles.matrix(self.x[axis], self.y[axis], **rule)[0]
        return found

    def check(self, functions: Any, rng: np.random.Generator) -> None:
        """Value and gradient differ from the float64 result by at most `_bound`."""
        x, dy, *numbers = self.arguments(rng)
        matrices = self.matrices()
        transposed = {axis: dense.T for axis, dense in reversed(matrices.items())}
        results = jax.jit(self.program(functions))(x, dy, *numbers)
        for name, got, array, maps in zip(
            ("y", "dx"), results, (x, dy), (matrices, transposed), strict=True
        ):
            exact = np.asarray(array).astype(np.float64)
            expected = resize_oracles.apply(exact, maps)
            assert got.dtype == self.dtype, f"{name} is {got.dtype}, not {self.dtype}"
            assert got.shape == expected.shape, f"{name} has shape {got.shape}"
            error = np.abs(np.asarray(got).astype(np.float64) - expected)
            bound = self._bound(exact, maps)
            assert (error <= bound).all(), (
                f"{name}: {(~(error <= bound)).sum()} of {error.size} elements are off, by up to "
                f"{np.nanmax(error):.3g}, {np.nanmax(error / bound):.3g} times what rounding allows"
            )

    def _bound(self, array: np.ndarray, maps: dict[int, np.ndarray]) -> np.ndarray:
        """How far each element of the result may be from the float64 result of ``array``.

        All axes are one sum, which is rounded to the dtype once.
        Each axis rounds a weight, a product and the sums of as many terms as there are weights: NOTE [The
        bound of every element]. Weights are made in float64, here and in the package, from coordinates that
        are off by a few roundings: by how much is said in test_bands.py, for sums of weights above 1/2. Where
        the edge is repeated as far as the filter reaches, a sum may be as small as NEGLIGIBLE.
        """
        magnitude, expected = np.abs(array), np.abs(resize_oracles.apply(array, maps))
        positive = {axis: np.abs(dense) for axis, dense in maps.items()}
        roundings = sum(int(np.count_nonzero(d, axis=1).max(initial=0)) + 1 for d in maps.values())
        total = resize_oracles.apply(magnitude, positive)
        bound = rounded_sum_bound(expected, total, roundings, self.dtype)
        repeats_edge = any(rule.get("beyond") == "reach" for rule in self.rules)
        smallest = resize_oracles.NEGLIGIBLE if repeats_edge else 0.5
        for axis, dense in maps.items():
            of_weight = 40 * sum(dense.shape) * float(np.finfo(np.float64).eps) * 0.5 / smallest
            everywhere = {**positive, axis: np.full(dense.shape, of_weight)}
            bound = bound + resize_oracles.apply(magnitude, everywhere)
        return bound


# Sizes.


def _shapes(rng: np.random.Generator) -> tuple[Shape, Shape, Shape]:
    """x, y and the axes that are resized: channels last or first, or without channels or a batch."""
    while True:
        count = int(rng.integers(1, 4))
        # Three in any case: with fewer of them the rest of a problem stays as it is (support/shrinking.py).
        sizes = [_sizes(rng, _LARGEST[count]) for _ in range(3)][:count]
        channels, batch = int(rng.choice(_OTHERS)), int(rng.integers(1, 4))
        layouts = [([batch], []), ([batch], [channels]), ([batch, channels], []), ([], [])]
        head, tail = layouts[rng.integers(len(layouts))]
        axes = tuple(range(len(head), len(head) + count))
        x, y = ((*head, *space, *tail) for space in zip(*sizes, strict=True))
        if max(math.prod(x), math.prod(y)) <= _MAX_ELEMENTS:
            return x, y, axes


def _sizes(rng: np.random.Generator, largest: int) -> tuple[int, int]:
    """Of an axis before and after, never the same."""
    n = int(rng.integers(1, largest + 1))
    multiple, anything = n * int(rng.integers(2, 5)), int(rng.integers(1, 3 * n + 1))
    m = int(rng.choice([multiple, anything, -(-n // 2), 2 * n + 1]))
    return n, m + 1 if m == n else m


def _filter(method: str, antialias: bool) -> dict[str, Any]:
    """The matrix's rule for a method of jax.image: antialiased, PyTorch's cubic is everybody's."""
    clamped = method == "cubic-pytorch" and not antialias
    return {
        "method": "cubic" if method == "cubic-pytorch" else method,
        "antialias": antialias,
        "a": -0.75 if clamped else -0.5,
        "exclude_outside": not clamped,
    }


# Calls.


def draw_resize(rng: np.random.Generator) -> DrawnResize:
    """What jax.image.resize has as well."""
    x, y, axes = _shapes(rng)
    method, antialias = str(rng.choice(_METHODS)), bool(rng.random() < 0.5)
    rules = [_filter(method, antialias)] * len(axes)
    return DrawnResize(str(rng.choice(FLOATS)), x, y, axes, method, antialias, {}, rules)


def draw_convention(rng: np.random.Generator) -> DrawnResize:
    """A resize with arguments that this package's function has alone."""
    drawn = draw_resize(rng)
    if rng.random() < 0.1:
        return dataclasses.replace(
            drawn, method="area-pytorch", rules=[{"method": "area-pytorch"}] * len(drawn.axes)
        )
    if drawn.method == "area":
        return drawn
    rule, keywords = dict(drawn.rules[0]), {}
    modes = ["half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]
    modes += ["pytorch_half_pixel", "tf_crop_and_resize"]
    rule["mode"] = keywords["coordinate_mode"] = str(rng.choice(modes))
    nearest_modes = ["round_prefer_ceil", "round_prefer_floor", "floor", "ceil"]
    if drawn.method == "nearest":
        rule["nearest_mode"] = keywords["nearest_mode"] = str(rng.choice(nearest_modes))
    if drawn.method == "cubic" and rng.random() < 0.3:
        rule["a"] = keywords["cubic_coeff_a"] = -0.75
    if rng.random() < 0.3:
        rule["exclude_outside"] = keywords["exclude_outside"] = bool(rng.random() < 0.5)
    rules = [rule] * len(drawn.axes)
    if rule["mode"] == "tf_crop_and_resize":
        # Eighths: where a coordinate is on the edge it is so exactly, in float64 too.
        rois = [tuple(float(v) for v in rng.integers(-4, 13, 2) / 8) for _ in drawn.axes]
        rules = [{**rule, "roi": roi} for roi in rois]
        of_axis = dict(zip(drawn.axes, rois, strict=True))
        keywords["roi"] = [of_axis.get(axis, (0.0, 1.0)) for axis in range(len(drawn.x))]
    elif drawn.method != "nearest" and rng.random() < 0.2:
        scales = [(drawn.y[a] + 0.375) / drawn.x[a] for a in drawn.axes]
        rules = [{**rule, "scale": scale} for scale in scales]
        by_axis = dict(zip(drawn.axes, scales, strict=True))
        keywords["scale"] = [by_axis.get(axis) for axis in range(len(drawn.x))]
    return dataclasses.replace(drawn, keywords=keywords, rules=rules)


def draw_scaled(rng: np.random.Generator) -> DrawnResize:
    """A call of scale_and_translate."""
    drawn = draw_resize(rng)
    method = str(rng.choice([*_FILTERS, "area"]))
    rule = _filter(method, drawn.antialias)
    rule["beyond"] = "zero" if rule["exclude_outside"] else "reach"
    numbers = [_numbers(rng, drawn.x[a], drawn.y[a], method) for a in drawn.axes]
    rules = [{**rule, "scale": scale, "translation": moved} for scale, moved in numbers]
    scale, translation = (tuple(values) for values in zip(*numbers, strict=True))
    traced = bool(rng.random() < 0.3)
    return dataclasses.replace(
        drawn,
        method=method,
        rules=rules,
        scale=scale,
        translation=translation,
        is_traced=traced,
    )


def _numbers(rng: np.random.Generator, n: int, m: int, method: str) -> tuple[float, float]:
    """Scale and translation. Where an output is on the edge of the input it is so exactly, or not at all."""
    kind = int(rng.integers(3))
    if kind == 0:
        return m / n, 0.0
    if kind == 1:
        scale = float(rng.choice([1.0, 2.0, 0.5, 4.0, 0.25]))
        moved = int(rng.integers(-8, 9)) / 4
        if method != "area" and rng.random() < 0.2:
            return -scale, n * scale + moved  # mirrored
        return scale, moved
    return float(m / n * (0.5 + rng.random())), float(4 * rng.random() - 2)


def draw_any(rng: np.random.Generator) -> DrawnResize:
    """For this package's functions."""
    return [draw_convention, draw_scaled, draw_resize][int(rng.choice([0, 0, 0, 1, 2]))](rng)


def draw_of_jax_image(rng: np.random.Generator) -> DrawnResize:
    """For jax.image's."""
    return [draw_resize, draw_scaled][int(rng.integers(2))](rng)

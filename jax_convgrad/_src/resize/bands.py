"""One axis of a resize as a banded matrix, and its exact transpose.

Every resize method in every coordinate convention is, along each axis, a sparse matrix with a few
neighboring weights per output: y[i] = sum_t weights[i, t] * x[start[i] + t]. The transpose of such a
matrix is banded again, so forward and gradient differ only in their tables. Tables are made in float64 on
the host while tracing; nothing here touches a device.

NOTE [Exact coordinates]. If the coordinate of an output is a ratio of integers, it is computed from
integers with one division at the end. It is then the float64 nearest to the true coordinate, and a tie of
`nearest` stays a tie.

NOTE [jax.image's nearest]. jax.image.resize takes element floor((i + 0.5) * n / m), computed in float32.
XLA rewrites that product differently from version to version, so that at exact integers, and near
them for large sizes, an index can come out one too small. Here it is exact.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from fractions import Fraction

import numpy as np

from jax_convgrad._src.resize import filters

METHODS = ("nearest", "linear", "cubic", "lanczos3", "lanczos5", "area", "area-pytorch")
COORDINATE_MODES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
NEAREST_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")

_MAX_WEIGHTS = 2**27


class BandTooLargeError(ValueError):
    """An axis needs more weights than a band may have."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """How one axis is resampled, apart from its sizes. Hashable.

    Attributes:
      method: one of METHODS.
      antialias: stretch the filter when downsampling.
      coordinate_mode: one of COORDINATE_MODES: where in the input an output element lies.
      nearest_mode: one of NEAREST_MODES. jax.image's is round_prefer_ceil, see NOTE [jax.image's nearest].
      cubic_coeff_a: the cubic filter's coefficient.
      exclude_outside: leave out what the filter reads outside the input and divide by the sum of the
        rest; otherwise the edge elements are repeated.
      scale: output size / input size, if it is not the ratio of the sizes.
      translation: moves the output by so many of its elements; half_pixel only.
      roi: (start, end) in units of the axis' length; tf_crop_and_resize only.
      beyond: the value of an output whose coordinate lies outside the input. "extend": no special case.
        "zero": zero, if it lies outside by more than half an element. "reach": the edge elements are
        repeated up to the filter's radius; beyond that the value is zero.
    """

    method: str
    antialias: bool = False
    coordinate_mode: str = "half_pixel"
    nearest_mode: str = "round_prefer_ceil"
    cubic_coeff_a: float = -0.5
    exclude_outside: bool = False
    scale: float | Fraction | None = None
    translation: float = 0.0
    roi: tuple[float, float] = (0.0, 1.0)
    beyond: str = "extend"


@dataclasses.dataclass(frozen=True, eq=False)
class Band:
    """y[i] = sum_t weights[i, t] * x[start[i] + t], for an x of ``size`` elements.

    Always 0 <= start[i] and start[i] + taps <= size. Hashable, and equal if the tables are equal.

    Attributes:
      start: int32 [m].
      weights: float64 [m, taps].
      size: number of input elements, n.
      outside: bool [m], the outputs that tf_crop_and_resize takes from outside the input (their weights
        are zeros); None if there are none.
    """

    start: np.ndarray
    weights: np.ndarray[tuple[int, int], np.dtype[np.float64]]
    size: int
    outside: np.ndarray | None = None

    def __post_init__(self) -> None:
        for array in (self.start, self.weights, self.outside):
            if array is not None:
                array.setflags(write=False)

    @property
    def out_size(self) -> int:
        return self.weights.shape[0]

    @property
    def taps(self) -> int:
        return self.weights.shape[1]

    @functools.cached_property
    def is_identity(self) -> bool:
        """Whether the band is the identity: y is x."""
        return (
            self.size == self.out_size
            and self.taps == 1
            and self.outside is None
            and bool((self.start == np.arange(self.size)).all() and (self.weights == 1).all())
        )

    @functools.cached_property
    def is_selection(self) -> bool:
        """Whether every y[i] is one of the elements of x."""
        return self.taps == 1 and bool((self.weights == 1).all())

    @functools.cached_property
    def transpose(self) -> Band:
        """The band of the transposed matrix; its own transpose is this one."""
        rows, taps = np.nonzero(self.weights)
        columns = self.start[rows] + taps
        transposed = _from_entries(
            columns, rows, self.weights[rows, taps], self.size, self.out_size
        )
        transposed.__dict__["transpose"] = self
        return transposed

    def dense(self) -> np.ndarray:
        """The matrix itself, float64 [m, n]."""
        matrix = np.zeros((self.out_size, self.size))
        columns = self.start[:, None] + np.arange(self.taps)
        np.put_along_axis(matrix, columns, self.weights, axis=1)
        return matrix

    @functools.cached_property
    def digest(self) -> bytes:
        """A digest that is the same for equal bands, in every process."""
        shape = np.asarray([self.size, *self.weights.shape], np.int64)
        parts = hashlib.sha256(shape.tobytes() + self.start.tobytes())
        parts.update(self.weights.tobytes())
        return parts.digest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Band):
            return NotImplemented
        return self is other or self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Band({self.size}->{self.out_size}, taps={self.taps})"


@functools.lru_cache(maxsize=256)
def make_band(n: int, m: int, rule: Rule) -> Band:
    """The band that resamples ``n`` elements (at least 1) to ``m`` by ``rule``."""
    if rule.method == "area-pytorch":
        return _adaptive_average(n, m)
    if rule.method == "area":
        return _area(n, m, rule)
    x = _coordinates(n, m, rule)
    outside = None
    if rule.coordinate_mode == "tf_crop_and_resize":
        outside = (x < 0) | (x > n - 1)
    if rule.method == "nearest":
        index = np.clip(_nearest(n, x, rule), 0, n - 1)
        band = Band(index.astype(np.int32), np.ones((m, 1)), n)
    else:
        band = _filtered(n, m, x, rule)
    if outside is None or not outside.any():
        return band
    weights = np.where(outside[:, None], 0.0, band.weights)
    # Rows without weights start where their neighbors could: any legal start is fine.
    return Band(band.start, weights, n, outside)


def _coordinates(n: int, m: int, rule: Rule) -> np.ndarray:
    """Where in the input each output lies, in elements: 0 is the center of the first one."""
    i = np.arange(m, dtype=np.int64)
    mode, scale = rule.coordinate_mode, rule.scale
    if scale is None:
        scale = Fraction(m, n)
    length = scale * n  # of the whole output; m is its length, rounded
    if mode == "pytorch_half_pixel":
        if not length > 1:
            return np.zeros(m)
        mode = "half_pixel"
    if mode == "half_pixel_symmetric":
        # The middles of input and output coincide.
        if isinstance(scale, Fraction):
            # n/2 (1 - m / length) + (i + 1/2) / scale - 1/2, all over 2 p for scale = p / q.
            p, q = scale.numerator, scale.denominator
            return _ratio((2 * i + 1 - m) * q + (n - 1) * p, 2 * p)
        return n / 2 * (1 - m / length) + (i + 0.5) / scale - 0.5
    if mode == "half_pixel":
        if isinstance(scale, Fraction) and rule.translation == 0:
            p, q = scale.numerator, scale.denominator
            return _ratio((2 * i + 1) * q - p, 2 * p)
        inverse = 1.0 / float(scale)
        return (i + 0.5) * inverse - rule.translation * inverse - 0.5
    if mode == "asymmetric":
        if isinstance(scale, Fraction):
            return _ratio(i * scale.denominator, scale.numerator)
        return i / scale
    if mode == "align_corners":
        if length == 1:
            return np.zeros(m)
        if isinstance(length, Fraction):
            last = length - 1
            return _ratio(i * ((n - 1) * last.denominator), last.numerator)
        return i * (n - 1) / (length - 1)
    start, end = rule.roi
    if not length > 1:
        return np.full(m, 0.5 * (start + end) * (n - 1))
    return start * (n - 1) + i * (end - start) * (n - 1) / float(length - 1)


def _ratio(numerator: np.ndarray, denominator: int) -> np.ndarray:
    return numerator / np.float64(denominator)


def _nearest(n: int, x: np.ndarray, rule: Rule) -> np.ndarray:
    mode = rule.nearest_mode
    x = np.clip(x, -1.0, float(n))
    if mode == "round_prefer_floor":
        return np.ceil(x - 0.5).astype(np.int64)
    if mode == "round_prefer_ceil":
        return np.floor(x + 0.5).astype(np.int64)
    whole: np.ndarray = np.floor(x) if mode == "floor" else np.ceil(x)
    return whole.astype(np.int64)


def _filtered(n: int, m: int, x: np.ndarray, rule: Rule) -> Band:
    radius = filters.RADIUS[rule.method]
    inverse = n / m if rule.scale is None else 1.0 / float(rule.scale)
    stretch = max(inverse, 1.0) if rule.antialias else 1.0
    support = radius * stretch
    zero = (x < -0.5) | (x > n - 0.5) if rule.beyond == "zero" else np.zeros(m, bool)
    # Farther out than the filter reaches nothing changes, and the integers stay small.
    x = np.clip(x, -support - 2.0, n + support + 1.0)
    first = np.floor(x - support).astype(np.int64) + 1
    last = np.ceil(x + support).astype(np.int64) - 1
    if rule.exclude_outside:
        first, last = np.maximum(first, 0), np.minimum(last, n - 1)
    elif rule.beyond == "reach":
        first, last = np.maximum(first, -radius), np.minimum(last, n - 1 + radius)
    width = max(int((last - first).max(initial=-1)) + 1, 1)
    if m * width > _MAX_WEIGHTS:
        raise BandTooLargeError(
            f"resampling {n} elements to {m} with a filter of {width} elements needs more than "
            f"{_MAX_WEIGHTS} weights"
        )
    columns = first[:, None] + np.arange(width)
    weights = filters.get(rule.method, rule.cubic_coeff_a)(np.abs(columns - x[:, None]) / stretch)
    weights = np.where(columns <= last[:, None], weights, 0.0)
    weights = filters.normalize(weights, 1)
    weights[zero] = 0.0
    rows = np.broadcast_to(np.arange(m)[:, None], columns.shape)
    keep = weights != 0
    columns = np.clip(columns, 0, n - 1)
    return _from_entries(rows[keep], columns[keep], weights[keep], m, n)


def _area(n: int, m: int, rule: Rule) -> Band:
    """Each output is the mean of what its interval covers; elements that its ends cut count in part."""
    i = np.arange(m, dtype=np.int64)
    left: np.ndarray
    right: np.ndarray
    if rule.scale is None:
        # In units of 1 / m of an element all numbers are integers.
        left, right = i * n, (i + 1) * n
        first, unit = left // m, m
        width = -(-n // m) + 1
        zero = np.zeros(m, bool)
    else:
        inverse = 1.0 / float(rule.scale)
        left = i * inverse - rule.translation * inverse
        right = left + inverse
        center = 0.5 * (left + right) - 0.5
        zero = (center < -0.5) | (center > n - 0.5)
        left, right = np.clip(left, 0.0, n), np.clip(right, 0.0, n)
        first, unit = np.floor(left).astype(np.int64), 1
        width = min(math.ceil(abs(inverse)), n) + 1
    columns = first[:, None] + np.arange(width)
    overlap = np.minimum(right[:, None], (columns + 1) * unit) - np.maximum(
        left[:, None], columns * unit
    )
    weights = filters.normalize(np.maximum(overlap, 0).astype(np.float64), 1)
    weights[zero] = 0.0
    rows = np.broadcast_to(i[:, None], columns.shape)
    keep = (weights != 0) & (columns < n)
    return _from_entries(rows[keep], columns[keep], weights[keep], m, n)


def _adaptive_average(n: int, m: int) -> Band:
    """PyTorch's area: the mean of all elements that the output's interval touches."""
    i = np.arange(m, dtype=np.int64)
    first, end = i * n // m, -(-(i + 1) * n // m)
    width = int((end - first).max(initial=1))
    columns = first[:, None] + np.arange(width)
    keep = columns < end[:, None]
    weights = keep / (end - first)[:, None].astype(np.float64)
    rows = np.broadcast_to(i[:, None], columns.shape)
    return _from_entries(rows[keep], columns[keep], weights[keep], m, n)


def _from_entries(
    rows: np.ndarray, columns: np.ndarray, values: np.ndarray, m: int, n: int
) -> Band:
    """The narrowest band with these entries; entries at the same position are added up.

    ``rows`` and ``columns`` need no order. Rows without entries get zeros.
    """
    low, high = np.full(m, n, np.int64), np.full(m, -1, np.int64)
    np.minimum.at(low, rows, columns)
    np.maximum.at(high, rows, columns)
    empty = high < 0
    low[empty] = high[empty] = 0
    taps = min(max(int((high - low).max(initial=0)) + 1, 1), n)
    if m * taps > _MAX_WEIGHTS:
        raise BandTooLargeError(f"a band of {m} rows with {taps} weights each is too large")
    start = np.minimum(low, n - taps)
    places = rows * taps + (columns - start[rows])
    weights = np.bincount(places, values, m * taps).astype(np.float64).reshape(m, taps)
    return Band(start.astype(np.int32), weights, n)

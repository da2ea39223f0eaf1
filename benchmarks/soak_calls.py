"""Layers and resizes on small integers, whose results are known exactly before anything computes them.

All products and partial sums, in whatever order, are numbers that the dtype holds, so every backend must give
the float64 result itself. Nothing here starts a backend of JAX: a process may still fork.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from layers import passes
from stress_layers import CASES

import jax_convgrad
from jax_convgrad.bench import float64
from jax_convgrad.bench.cases import DTYPES, Case
from jax_convgrad.bench.resize_cases import ResizeCase

FORMS = ("own", "lax")
# Up to here every whole number is one of the dtype's.
_LARGEST = {"bf16": 2**8, "f16": 2**11, "f32": 2**24, "f64": 2**53}
# The sizes of a new image's axes, by their number: small, for compiling is what takes the time.
_SIZES = {1: (40, 400), 2: (5, 20), 3: (3, 8)}
_RESIZES = ("linear", "nearest")
# How many problems there are that are new to JAX's caches, which are emptied. JAX keeps something of every
# shape that it has ever seen, so there must be an end of them; and they must be more than this package's
# caches of 512 plans and 512 checked calls hold, two thirds of them with three calls each.
POOL = 300


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """One layer or resize with its gradients, by this package ("own") and by JAX ("lax")."""

    name: str
    arrays: tuple[np.ndarray, ...]
    expected: tuple[np.ndarray, ...]
    forms: dict[str, Callable[..., Any]]

    def jitted(self) -> dict[str, Callable[..., Any]]:
        """Functions that no cache knows yet."""
        return {form: jax.jit(run) for form, run in self.forms.items()}

    def fault(self, run: Callable[..., Any]) -> str | None:
        """What is wrong with the results of a function, None if nothing is."""
        for index, (got, wanted) in enumerate(zip(run(*self.arrays), self.expected, strict=True)):
            array = np.asarray(got)
            if (array.shape, array.dtype) != (wanted.shape, wanted.dtype):
                return f"{self.name}: result {index} is {array.dtype}{list(array.shape)}"
            if not np.array_equal(array, wanted):
                count = np.count_nonzero(array != wanted)
                return f"{self.name}: {count} of {wanted.size} numbers of result {index} are wrong"
        return None


def draw(rng: np.random.Generator, family: int | None = None) -> Problem:
    """A problem of a family, with an image of some size."""
    if family is None:
        family = int(rng.integers(families()))
    if family >= len(CASES):
        return _resize(rng, _RESIZES[family - len(CASES)])
    case = CASES[family]
    spatial = tuple(int(size) for size in rng.integers(*_SIZES[case.ndim], case.ndim))
    return _layer(rng, dataclasses.replace(case, n=int(rng.integers(1, 4)), spatial=spatial))


def numbered(number: int) -> Problem:
    """One of POOL problems, the same for the same number, made anew."""
    return draw(np.random.default_rng(number % POOL))


def families() -> int:
    return len(CASES) + len(_RESIZES)


def _layer(rng: np.random.Generator, case: Case) -> Problem:
    dtype = jax.numpy.dtype(DTYPES[case.dtype])
    # Fewer numbers other than zero, until the sums of all magnitudes are numbers of the dtype.
    density = 1.0
    while True:
        x, w, dy = (
            rng.integers(-2, 3, shape) * (rng.random(shape) < density)
            for shape in (case.x_shape, case.w_shape, case.y_shape)
        )
        bounds = float64.passes(case, *(np.abs(a).astype(np.float64) for a in (x, w, dy)))
        if max(float(np.max(bounds[key])) for key in ("y", "dx", "dw")) <= _LARGEST[case.dtype]:
            break
        density *= 0.7
    arrays = tuple(array.astype(dtype) for array in (x, w, dy))
    truth = float64.passes(case, *arrays)
    return Problem(
        case.label,
        arrays,
        tuple(truth[key].astype(dtype) for key in ("y", "dx", "dw")),
        {"own": passes(case), "lax": passes(case, jax.lax)},
    )


def _resize(rng: np.random.Generator, method: str) -> Problem:
    """To twice and four times the size: the weights are eighths, and their products 64ths."""
    height, width = (int(size) for size in rng.integers(3, 24, 2))
    channels, dt = int(rng.integers(1, 9)), ("f32", "f64")[int(rng.integers(2))]
    shape, out = (2, height, width, channels), (2, 2 * height, 4 * width, channels)
    case = ResizeCase("soak", 2, channels, shape[1:3], out[1:3], method, False, False, dt)
    dtype = np.dtype(DTYPES[dt])
    x, dy = (rng.integers(-4, 5, s).astype(dtype) for s in (shape, out))
    truth = float64.passes(case, x, np.zeros(1), dy)

    def gradient(resize: Callable[..., Any]) -> Callable[..., Any]:
        def run(x: Any, dy: Any) -> Any:
            y, pullback = jax.vjp(lambda x: resize()(x, out, method, antialias=False), x)
            return y, *pullback(dy)

        return run

    # jax.image's function is looked up when it is traced: install() puts another one there.
    forms = {
        "own": gradient(lambda: jax_convgrad.resize),
        "lax": gradient(lambda: jax.image.resize),
    }
    return Problem(
        f"resize {method} {dt} {shape} to {out}",
        (x, dy),
        tuple(truth[key].astype(dtype) for key in ("y", "dx")),
        forms,
    )

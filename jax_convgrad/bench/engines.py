"""Whether the engines of a cuDNN compute right numbers: each on small problems, beside the definition.

The operands are small integers, so that every sum is exact in every dtype. A result may still differ by some
units where an engine transforms its arrays (Winograd, Fourier). What is off by more than a tenth of the
largest value is wrong.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_convgrad._src.conv import api
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.runtime import plans, registry
from jax_convgrad.bench import float64
from jax_convgrad.bench.cases import Case

# Name -> dtype and precision. "strict" is float32 without TF32.
ARITHMETIC: dict[str, tuple[str, str | None]] = {
    "bfloat16": ("bfloat16", None),
    "float32": ("float32", None),
    "strict": ("float32", "highest"),
    "float16": ("float16", None),
    "float64": ("float64", None),
}
OPERATORS = ("conv_fprop", "conv_dgrad", "conv_wgrad")
# Of the largest value, beyond which a result is wrong.
TOLERANCE = 0.1


@dataclasses.dataclass(frozen=True)
class Problem:
    """A convolution, channels last: x (batch, spatial..., channels), w (spatial..., inputs, outputs)."""

    name: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int = 1

    @property
    def y(self) -> tuple[int, ...]:
        """Shape of the result."""
        axes = zip(
            self.x[1:-1], self.w[:-2], self.strides, self.padding, self.dilation, strict=True
        )
        spatial = ((n + sum(p) - (k - 1) * d - 1) // s + 1 for n, k, s, p, d in axes)
        return (self.x[0], *spatial, self.w[-1])


def _problem(
    name: str,
    x: tuple[int, ...],
    w: tuple[int, ...],
    stride: int = 1,
    padding: tuple[int, int] = (0, 0),
    dilation: int = 1,
    groups: int = 1,
) -> Problem:
    rank = len(x) - 2
    return Problem(name, x, w, (stride,) * rank, (padding,) * rank, (dilation,) * rank, groups)


# Every kind of problem that has had a wrong engine, and those beside it: padding that differs on the two
# sides of an axis ("SAME" with a stride), groups, depth, dilation. In sizes that many engines accept.
PROBLEMS = (
    _problem("2-D", (2, 9, 8, 16), (3, 3, 16, 32), 1, (1, 1)),
    _problem("2-D, stride 2, uneven padding", (2, 8, 10, 16), (3, 3, 16, 16), 2, (0, 1)),
    _problem("3-D, stride 2, uneven padding", (1, 6, 4, 8, 16), (3, 3, 3, 16, 16), 2, (0, 1)),
    _problem("2-D, groups", (2, 7, 6, 16), (3, 3, 8, 16), 1, (1, 1), 1, 2),
    _problem("3-D, groups", (2, 4, 5, 4, 16), (2, 2, 2, 4, 32), 1, (0, 1), 1, 4),
    _problem("2-D, depthwise", (2, 9, 8, 8), (3, 3, 1, 8), 1, (1, 1), 1, 8),
    _problem("3-D, depthwise", (2, 4, 5, 4, 8), (3, 3, 3, 1, 8), 1, (1, 1), 1, 8),
    _problem("2-D, dilation", (2, 11, 12, 16), (3, 3, 16, 16), 1, (2, 2), 2),
    _problem("2-D, dilation, stride 2", (2, 11, 12, 8), (3, 3, 8, 16), 2, (2, 1), 2),
    _problem("1-D", (3, 40, 8), (5, 8, 16), 2, (2, 2)),
    _problem("1-D, uneven padding", (3, 40, 8), (4, 8, 16), 1, (3, 0)),
    _problem("2-D, windows of one tap", (2, 8, 8, 32), (1, 1, 32, 16)),
    _problem("2-D, stride above the window", (2, 11, 11, 16), (2, 2, 16, 16), 3, (1, 0)),
    _problem("2-D, odd channels", (2, 8, 7, 3), (3, 3, 3, 5), 1, (1, 1)),
    _problem("2-D, one channel", (2, 12, 12, 1), (5, 5, 1, 8), 1, (2, 2)),
    _problem("3-D", (1, 6, 5, 7, 8), (3, 2, 3, 8, 8), 1, (1, 1)),
)


@dataclasses.dataclass(frozen=True)
class Row:
    """What an engine made of a problem.

    If none ran, ``engine`` is "none" and ``error`` is the text of cuDNN.
    """

    operator: str
    problem: str
    arithmetic: str
    engine: str
    error: float | str  # the largest difference, over the largest value

    @property
    def is_wrong(self) -> bool:
        """Whether the result is more than rounded. NaNs are wrong too."""
        return not isinstance(self.error, str) and not self.error < TOLERANCE

    def __str__(self) -> str:
        where = f"{self.operator}, {self.problem}, {self.arithmetic}"
        if isinstance(self.error, str):
            return f"no engine: {where}: {self.error}"
        return f"{'wrong' if self.is_wrong else 'right'}: {where}: {self.engine}, error {self.error:.1e}"


def definition(problem: Problem, x: Any, w: Any, dy: Any) -> tuple[np.ndarray, ...]:
    """(y, dx, dw) in float64, by `float64.passes`. That knows no uneven padding: x is padded beforehand."""
    padded = np.pad(x, ((0, 0), *problem.padding, (0, 0)))
    none = (0,) * (x.ndim - 2)
    case = Case(
        name=problem.name,
        kind="conv",
        n=x.shape[0],
        cin=x.shape[-1],
        cout=problem.w[-1],
        spatial=padded.shape[1:-1],
        kernel=problem.w[:-2],
        stride=problem.strides,
        padding=none,
        output_padding=none,
        dilation=problem.dilation,
        groups=problem.groups,
        dtype="float64",
    )
    found = float64.passes(case, padded, w, dy)
    inside = (
        slice(low, low + n) for (low, _), n in zip(problem.padding, x.shape[1:-1], strict=True)
    )
    return found["y"], found["dx"][(slice(None), *inside)], found["dw"]


def error(found: Any, exact: Any) -> float:
    """The largest difference of a result, over the largest value, which counts as 1 at least."""
    difference = np.abs(np.asarray(found).astype(np.float64) - exact).max()
    return float(difference / max(1.0, np.abs(exact).max()))


def results_of_engines(run: Callable[[], Any]) -> Iterator[tuple[str, Any]]:
    """Each engine that can compute a program's one convolution, and its result.

    ``run`` lowers, compiles and runs the program. The plans of the process are cleared. Where no engine
    runs, the only item is ("none", the error's text).
    """
    module = registry.cuda_module()
    assert module is not None
    plans.clear()
    try:
        run()
    except jax.errors.JaxRuntimeError as error:
        yield "none", str(error)
        return
    for plan in plans.list():
        for engine in [tried["engine"] for tried in plan["tried"] if not tried["failure"]]:
            plans.clear()
            module.load_choices([(plan["problem"], engine)])
            result = run()
            if engine in [used["engine"] for used in plans.list()]:
                yield engine, result


def check(problem: Problem, operator: str, arithmetic: str) -> Iterator[Row]:
    """A row for each engine that runs. The search must be the one that tries all."""
    dtype, precision = ARITHMETIC[arithmetic]
    rng = np.random.default_rng(0)
    exact = [rng.integers(-4, 5, shape) for shape in (problem.x, problem.w, problem.y)]
    y, dx, dw = definition(problem, *exact)
    x, w, dy = (jnp.asarray(array, dtype) for array in exact)
    spatial = "DHW"[5 - len(problem.x) :]
    keywords: dict[str, Any] = {
        "strides": problem.strides,
        "padding": problem.padding,
        "dilation": problem.dilation,
        "groups": problem.groups,
        "dimension_numbers": (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C"),
        "precision": precision,
    }
    calls: dict[str, tuple[Callable[..., Any], tuple[Any, Any], np.ndarray]] = {
        "conv_fprop": (api.conv_fprop, (x, w), y),
        "conv_dgrad": (functools.partial(api.conv_dgrad, x_shape=x.shape), (dy, w), dx),
        "conv_wgrad": (functools.partial(api.conv_wgrad, w_shape=w.shape), (x, dy), dw),
    }
    function, operands, want = calls[operator]

    def result() -> Any:
        # A program keeps its engine, so that each engine needs a program of its own.
        with override_backend("cudnn"):
            program = jax.jit(functools.partial(function, **keywords))
            return jax.block_until_ready(program(*operands))

    for engine, found in results_of_engines(result):
        if engine == "none":
            yield Row(operator, problem.name, arithmetic, engine, found)
            continue
        yield Row(operator, problem.name, arithmetic, engine, error(found, want))


def run(seconds: float, progress: Callable[[Row], None]) -> tuple[list[Row], int]:
    """The rows of all problems, and how many there was no time for. float64 needs `jax.enable_x64`.

    ``progress`` gets each row as it comes. Ends with the first problem after so many seconds.
    """
    rows: list[Row] = []
    every = [*itertools.product(PROBLEMS, OPERATORS, ARITHMETIC)]
    started = time.monotonic()
    for i, (problem, operator, arithmetic) in enumerate(every):
        if time.monotonic() - started >= seconds:
            return rows, len(every) - i
        for row in check(problem, operator, arithmetic):
            rows.append(row)
            progress(row)
    return rows, 0

"""Hypothesis as the engine of the random generators: what fails is made as small as it can be.

The generators draw from a `numpy.random.Generator`. `SmallFirst` is one whose numbers Hypothesis chooses. It
has only those methods that they use, and in each of them small, first and usual values are the simple ones,
to which Hypothesis shrinks. JAX_CONVGRAD_EXAMPLES sets how many problems a test has: few, because Hypothesis
varies the parts of a problem that it has had, where the seeded loops have another one each time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest

Problem = TypeVar("Problem")

EXAMPLES = int(os.environ.get("JAX_CONVGRAD_EXAMPLES", "25"))
# `random` gives multiples of its inverse.
_STEPS = 1024


class SmallFirst:
    """Stands in for a `numpy.random.Generator` where a problem is drawn.

    An array of a shape, a tuple, is data, in which nothing is to be made simple (zeros and ones compare
    equal to much that is wrong): a generator of numpy's gives it, from a seed that Hypothesis chooses.
    """

    def __init__(self, draw: Callable[[Any], Any], strategies: Any) -> None:
        self._draw = draw
        self._strategies = strategies
        self._data: np.random.Generator | None = None

    def __repr__(self) -> str:
        return "SmallFirst()"

    def random(self) -> float:
        """Near 1 first: what is unusual is asked for by ``random() < probability``."""
        return 1 - (self._below(_STEPS) + 1) / _STEPS

    def integers(self, low: Any, high: Any = None, size: Any = None) -> Any:
        """The one nearest to zero first."""
        if high is None:
            low, high = 0, low
        if isinstance(size, tuple):
            return self.data.integers(low, high, size)
        bounds = np.broadcast_arrays(low, high, *([] if size is None else [np.empty(size)]))[:2]
        drawn = [
            self._draw(self._strategies.integers(int(least), int(end) - 1))
            for least, end in zip(*(bound.ravel() for bound in bounds), strict=True)
        ]
        return np.asarray(drawn, np.int64).reshape(bounds[0].shape)[()]

    def choice(
        self, values: Any, size: int | None = None, replace: bool = True, p: Any = None
    ) -> Any:
        """Early values first. Probabilities are left out: all that may come is worth a try."""
        values = np.arange(values) if isinstance(values, (int, np.integer)) else np.asarray(values)
        if p is not None:
            values = values[np.asarray(p) > 0]
        if size is None:
            return values[self._below(len(values))]
        if not replace:
            return self.permutation(values)[:size]
        return values[[self._below(len(values)) for _ in range(size)]]

    def permutation(self, values: Any) -> np.ndarray:
        """The order as it is first."""
        rest = list(range(values) if isinstance(values, (int, np.integer)) else values)
        return np.asarray([rest.pop(self._below(len(rest))) for _ in range(len(rest))])

    def normal(self, size: tuple[int, ...]) -> np.ndarray:
        return self.data.normal(size=size)

    @property
    def data(self) -> np.random.Generator:
        if self._data is None:
            self._data = np.random.default_rng(self._below(2**16))
        return self._data

    def _below(self, end: int) -> int:
        return self._draw(self._strategies.integers(0, end - 1))


def check(
    draw: Callable[[Any], Problem], verify: Callable[[Problem], None], examples: int = EXAMPLES
) -> None:
    """``verify`` passes for ``examples`` problems that ``draw`` makes; if not, it fails for a small one.

    The same problems every time, and nothing is written to disk. Without Hypothesis the test is skipped.
    """
    hypothesis = pytest.importorskip(
        "hypothesis", reason="Hypothesis shrinks, and is not installed"
    )
    strategies = hypothesis.strategies

    @strategies.composite
    def problems(choose: Callable[[Any], Any]) -> Problem:
        return draw(SmallFirst(choose, strategies))

    @hypothesis.settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
        # Programs take long to compile, and many problems are drawn more than once.
        suppress_health_check=list(hypothesis.HealthCheck),
        report_multiple_bugs=False,
    )
    @hypothesis.given(problem=problems())
    def run(problem: Problem) -> None:
        verify(problem)

    run()

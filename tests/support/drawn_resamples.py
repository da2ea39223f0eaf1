"""Random resamples as calls of the handler."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from support import resample_cases
from support.resample_cases import DTYPES, TARGET, Data, Problem


@dataclasses.dataclass(frozen=True)
class Call:
    """A resample, of small integers if ``integers``."""

    problem: Problem
    result_dtype: str
    integers: bool
    data: Data

    target = TARGET

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Call:
        problem, dtype = resample_cases.random_problem(rng), str(rng.choice(DTYPES))
        integers = bool(rng.random() < 0.5)
        data = resample_cases.make_data(rng, problem, dtype, integers)
        return cls(problem, dtype, integers, data)

    def __str__(self) -> str:
        return f"resample {self.result_dtype}, {self.problem}"

    @property
    def operands(self) -> list[np.ndarray]:
        return resample_cases.arguments(self.data, self.result_dtype)

    @property
    def result_shape(self) -> tuple[int, ...]:
        return self.problem.y

    @property
    def attributes(self) -> dict[str, Any]:
        return {"axes": np.array(self.problem.axes, np.int64)}

    def compare(self, got: np.ndarray) -> str:
        """A description of what is wrong with a result, empty if nothing is."""
        try:
            resample_cases.compare(self.problem, self.data, self.integers, got)
        except AssertionError as error:
            return str(error)
        return ""

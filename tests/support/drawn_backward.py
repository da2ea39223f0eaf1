"""Random backward passes of depthwise convolutions, as calls of the handler `conv_backward`."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from support import drawn_convs
from support.conv_cases import Case, in_layout
from support.conv_oracle import conv_oracle


@dataclasses.dataclass(frozen=True)
class Call:
    """A call on small integers. Arrays are in the case's layout, what is expected is float64, in order."""

    case: Case
    wanted: int
    operands: tuple[np.ndarray, ...]
    expected: tuple[np.ndarray, ...]

    @classmethod
    def draw(cls, rng: np.random.Generator, dtype: str) -> Call:
        case, wanted = drawn_convs.draw_depthwise(rng), int(rng.integers(1, 8))
        data = [rng.integers(-3, 4, shape).astype(np.float64) for shape in (case.x, case.w, case.y)]
        _, dx, dw = conv_oracle(case, *data)
        db = data[2].sum((0, *range(2, data[2].ndim)))
        operands = tuple(a.astype(jnp.dtype(dtype)) for a in in_layout(case, *data))
        gradients = (*in_layout(case, dx, dw, data[2])[:2], db)
        return cls(
            case, wanted, operands, tuple(g for i, g in enumerate(gradients) if wanted >> i & 1)
        )

    def __str__(self) -> str:
        return f"conv_backward {self.operands[0].dtype}, wanted {self.wanted}, {self.case}"

    @property
    def attributes(self) -> dict[str, Any]:
        return {**drawn_convs.attributes(self.case), "wanted": np.int64(self.wanted)}

    def compare(self, results: list[np.ndarray]) -> str:
        """What is wrong with the results, empty if nothing."""
        for got, expected in zip(results, self.expected, strict=True):
            right = got.astype(np.float64) == expected.astype(got.dtype).astype(np.float64)
            if not right.all():
                return f"{(~right).sum()} of {right.size} wrong in a result of shape {got.shape}"
        return ""

"""Random convolutions that reach into libraries' rare kernels, as calls of the handlers.

Much padding, long strides, few columns, odd numbers of channels and of groups: where oneDNN has been seen to
be wrong (NOTEs in onednn/errata.cc), and what layers seldom have.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from support.conv_cases import Case, in_layout
from support.conv_oracle import conv_oracle
from support.layouts import Shape

from jax_convgrad._src.runtime import registry
from jax_convgrad.bench import drawn

_MAX_PRODUCTS = 3_000_000
_MAX_DEPTHWISE = 40  # channels: more than two of the widest vectors, and all remainders
# Operands and result among x, w and y.
_ROLES = {"conv_fprop": (0, 1, 2), "conv_dgrad": (2, 1, 0), "conv_wgrad": (0, 2, 1)}
# Of one result to the largest of it, where a part of a sum may have been rounded before.
_ROUNDING = {"bfloat16": 2.0**-7, "float16": 2.0**-10}


@dataclasses.dataclass(frozen=True)
class Call:
    """An operator on small integers. Arrays are in the case's layout, what is expected is float64.

    A result is the sum rounded once, unless ``rounds_parts``: then parts of it may be rounded before.
    """

    operator: str
    case: Case
    result_dtype: str
    operands: tuple[np.ndarray, np.ndarray]
    expected: np.ndarray
    rounds_parts: bool = False

    @classmethod
    def draw(
        cls,
        rng: np.random.Generator,
        dtypes: list[tuple[str, str]],
        order: str = "",
        rounds_parts: bool = False,
    ) -> Call:
        """``dtypes``: pairs of what operands and result may be. ``order``: of the weights' axes."""
        case = draw(rng, order)
        operator = str(rng.choice(list(_ROLES)))
        dtype, result_dtype = dtypes[rng.integers(len(dtypes))]
        return cls.of(rng, operator, case, dtype, result_dtype, rounds_parts)

    @classmethod
    def of(
        cls,
        rng: np.random.Generator,
        operator: str,
        case: Case,
        dtype: str,
        result_dtype: str,
        rounds_parts: bool = False,
    ) -> Call:
        """An operator of a case, on random operands."""
        data = [rng.integers(-3, 4, shape).astype(np.float64) for shape in (case.x, case.w, case.y)]
        y, dx, dw = conv_oracle(case, *data)
        lhs, rhs, result = _ROLES[operator]
        arrays, results = in_layout(case, *data), in_layout(case, dx, dw, y)
        operands = arrays[lhs].astype(jnp.dtype(dtype)), arrays[rhs].astype(jnp.dtype(dtype))
        return cls(operator, case, result_dtype, operands, results[result], rounds_parts)

    def __str__(self) -> str:
        return f"{self.operator} {self.operands[0].dtype} to {self.result_dtype}, {self.case}"

    @property
    def target(self) -> str:
        return registry.CONV_TARGETS[self.operator]

    @property
    def result_shape(self) -> Shape:
        return self.expected.shape

    @property
    def attributes(self) -> dict[str, Any]:
        return attributes(self.case)

    def compare(self, got: np.ndarray) -> str:
        """What is wrong with a result, empty if nothing."""
        values = got.astype(np.float64)
        if self.rounds_parts:
            largest = np.abs(self.expected).max(initial=0)
            right = np.abs(values - self.expected) <= _ROUNDING.get(self.result_dtype, 0) * largest
        else:
            right = values == self.expected.astype(got.dtype).astype(np.float64)
        if right.all():
            return ""
        return f"{(~right).sum()} of {right.size} wrong, {np.isnan(values).sum()} of them NaN"


def attributes(case: Case) -> dict[str, Any]:
    """Those that every handler of convolutions has."""
    vectors = {
        "strides": case.strides,
        "padding_low": [low for low, _ in case.pairs],
        "padding_high": [high for _, high in case.pairs],
        "dilation": case.dilation,
        **dict(zip(("x_spec", "w_spec", "y_spec"), case.numbers, strict=True)),
    }
    arrays: dict[str, Any] = {k: np.array(v, np.int64) for k, v in vectors.items()}
    return arrays | {"groups": np.int64(case.groups)}


def draw(rng: np.random.Generator, order: str = "") -> Case:
    """Channels last, the weights in ``order``, such as "OXI", or in any of three."""
    while True:
        weights = order or str(rng.choice(["OIX", "XIO", "OXI"]))
        layer = drawn.draw(rng)
        letters = "DHW"[-len(layer.strides) :]
        layout = (f"N{letters}C", weights.replace("X", letters), f"N{letters}C")
        case = Case(
            "drawn",
            layer.x,
            layer.w,
            layer.strides,
            layer.padding,
            layer.dilation,
            layer.groups,
            layout,
        )
        if case.x[0] * math.prod(case.w) * math.prod(case.y[2:]) <= _MAX_PRODUCTS:
            return case


def draw_depthwise(rng: np.random.Generator) -> Case:
    """A random layer, with one filter for each of as many channels as are drawn."""
    case, channels = draw(rng), int(rng.integers(2, _MAX_DEPTHWISE + 1))
    return dataclasses.replace(
        case,
        x=(case.x[0], channels, *case.x[2:]),
        w=(channels, 1, *case.w[2:]),
        groups=channels,
    )

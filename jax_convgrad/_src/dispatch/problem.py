"""What is asked for: one operator, its sizes, its dtypes, its precision. Made once, where it is bound."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np

from jax_convgrad._src import compat
from jax_convgrad._src.conv.geometry import ConvGeometry, Role
from jax_convgrad._src.resize.bands import Band
from jax_convgrad._src.shapes import Shape

ConvOperator = Literal["conv_fprop", "conv_dgrad", "conv_wgrad"]

# What the operands and the result of each operator are in the convolution x -> y.
ROLES: dict[ConvOperator, tuple[Role, Role, Role]] = {
    "conv_fprop": ("x", "w", "y"),
    "conv_dgrad": ("y", "w", "x"),
    "conv_wgrad": ("x", "y", "w"),
}


@dataclasses.dataclass(frozen=True)
class ConvProblem:
    """One operator of the convolution family. Hashable; the parameter of the three primitives.

    Attributes:
      operator: which of the three maps.
      geometry: of the convolution x -> y, whichever operator it is.
      dtype: of both operands.
      result_dtype: of the result, never narrower.
      precision: what it means in lax; `jax.default_matmul_precision` has been resolved.
    """

    operator: ConvOperator
    geometry: ConvGeometry
    dtype: np.dtype
    result_dtype: np.dtype
    precision: Any = None

    @classmethod
    def make(
        cls,
        operator: ConvOperator,
        geometry: ConvGeometry,
        dtype: Any,
        result_dtype: Any = None,
        precision: Any = None,
    ) -> ConvProblem:
        """The problem of an operator that is about to be bound: a call's, or its derivative's.

        Raises:
          ValueError: ``precision`` is none of lax's.
        """
        dtype = np.dtype(dtype)
        result = dtype if result_dtype is None else np.dtype(result_dtype)
        return cls(operator, geometry, dtype, result, compat.canonical_precision(precision))

    @property
    def operand_roles(self) -> tuple[Role, Role]:
        first, second, _ = ROLES[self.operator]
        return first, second

    @property
    def result_role(self) -> Role:
        return ROLES[self.operator][2]

    @property
    def result_shape(self) -> Shape:
        return self.geometry.shape_of(self.result_role)

    def __str__(self) -> str:
        """As a jaxpr shows it."""
        numbers = tuple(map(tuple, self.geometry.config.dimension_numbers))
        dtypes = (
            f"{self.dtype}"
            if self.dtype == self.result_dtype
            else f"{self.dtype} to {self.result_dtype}"
        )
        return (
            f"({self.geometry}; {dtypes}; dimension_numbers={numbers}; precision={self.precision})"
        )

    def resolved(self) -> ConvProblem:
        """The same problem where it is bound again: a precision that was left open is JAX's default now."""
        return self.replace(precision=compat.canonical_precision(self.precision))

    def replace(self, **changes: Any) -> ConvProblem:
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(frozen=True)
class ResampleProblem:
    """Bands applied along ascending axes of one array. Hashable; the parameter of the resize primitive."""

    shape: Shape
    dtype: np.dtype
    bands: tuple[Band, ...]
    axes: tuple[int, ...]

    @property
    def result_shape(self) -> Shape:
        result = list(self.shape)
        for band, axis in zip(self.bands, self.axes, strict=True):
            result[axis] = band.out_size
        return tuple(result)

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape or 0 in self.result_shape

    @property
    def transposed(self) -> ResampleProblem:
        """The adjoint map, from the result's shape back."""
        bands = tuple(band.transpose for band in self.bands)
        return ResampleProblem(self.result_shape, self.dtype, bands, self.axes)

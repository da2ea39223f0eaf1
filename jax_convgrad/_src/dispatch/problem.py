"""A problem: one operator, its sizes, its dtypes, its precision. Made once, where it is bound."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np

from jax_convgrad._src import compat
from jax_convgrad._src.conv.geometry import ConvGeometry, Role
from jax_convgrad._src.resize.bands import Band
from jax_convgrad._src.shapes import Shape

ConvOperator = Literal["conv_fprop", "conv_dgrad", "conv_wgrad"]

# The roles that the operands and the result of each operator have in the convolution x -> y.
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
        """The problem of an operator that is about to be bound, by a call or by a derivative.

        Raises:
          ValueError: lax knows no such ``precision``.
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
        """The same problem bound again: a precision that was left open becomes JAX's current default."""
        return self.replace(precision=compat.canonical_precision(self.precision))

    def replace(self, **changes: Any) -> ConvProblem:
        return dataclasses.replace(self, **changes)


# What a backward pass can be asked for: the gradients of x, of w and of a bias.
Gradient = Literal["x", "w", "b"]
GRADIENTS: tuple[Gradient, ...] = ("x", "w", "b")


@dataclasses.dataclass(frozen=True)
class ConvBackwardProblem:
    """The backward pass of one convolution x -> y: some of dx, dw and db from x, w and dy. Hashable.

    Attributes:
      geometry: of the convolution x -> y.
      dtype: of x, w and dy.
      result_dtype: of the gradients, never narrower.
      precision: what it means in lax; `jax.default_matmul_precision` has been resolved.
      wanted: the gradients that are results, in the order of `GRADIENTS`; at least one.
    """

    geometry: ConvGeometry
    dtype: np.dtype
    result_dtype: np.dtype
    precision: Any
    wanted: tuple[Gradient, ...]

    operator = "conv_backward"

    @property
    def dgrad(self) -> ConvProblem:
        """The part that computes dx from dy and w."""
        return self._part("conv_dgrad")

    @property
    def wgrad(self) -> ConvProblem:
        """The part that computes dw from x and dy."""
        return self._part("conv_wgrad")

    def _part(self, operator: ConvOperator) -> ConvProblem:
        return ConvProblem(operator, self.geometry, self.dtype, self.result_dtype, self.precision)

    @property
    def bias_axis(self) -> int:
        """The axis of dy that db keeps."""
        return self.geometry.config.spec_of("y")[1]

    def shape_of(self, gradient: Gradient) -> Shape:
        """The shape of dx, dw or db."""
        if gradient == "b":
            return (self.geometry.out_channels,)
        return self.geometry.shape_of(gradient)

    def replace(self, **changes: Any) -> ConvBackwardProblem:
        return dataclasses.replace(self, **changes)

    def __str__(self) -> str:
        """As a jaxpr shows it."""
        wanted = ", ".join(f"d{gradient}" for gradient in self.wanted)
        return f"{wanted} of {self.dgrad}"


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

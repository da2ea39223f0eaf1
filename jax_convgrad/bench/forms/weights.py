"""The memory layout of a form's arrays, and its weights as another convolution's weights."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

import jax
import numpy as np

from jax_convgrad.bench.case_files import AnyCase
from jax_convgrad.bench.cases import Case, default_weights, dimension_numbers

AnyArray = TypeVar("AnyArray", np.ndarray, jax.Array)


@dataclasses.dataclass(frozen=True)
class WeightsOrder:
    """The memory layout of a form's weights, "HWIO", "OHWI" or "OIHW" for any spatial rank.

    With ``transpose_kernel`` they are the weights of a transposed convolution as PyTorch stores them: in
    OHWI order for the strided convolution whose adjoint the layer is, which cuDNN reads as it is. The
    kernel is reversed, and in and out are exchanged, as JAX's option of that name does. With groups the JAX
    layers count in and out differently from that convolution, so some reordering remains.
    """

    order: str
    ndim: int
    transpose_kernel: bool = False

    @classmethod
    def make(cls, case: AnyCase, layout: str, weights: str | None = None) -> WeightsOrder:
        """The requested order; by default HWIO with NHWC, OIHW with NCHW."""
        order = default_weights(layout) if weights is None else weights
        return cls(order, case.ndim, transpose_kernel=case.transposed and order == "OHWI")

    @property
    def letters(self) -> str:
        """The axes as the layer counts them: I its input channels / groups, O its output channels."""
        letters = self.axes
        return letters.translate(str.maketrans("IO", "OI")) if self.transpose_kernel else letters

    @property
    def axes(self) -> str:
        """The axes as dimension_numbers name them, of conv_transpose with that option."""
        return dimension_numbers(self.ndim, "NHWC", self.order)[1]

    def store(self, w: np.ndarray) -> np.ndarray:
        """From (spatial, in / groups, out)."""
        w = w[(slice(None, None, -1),) * self.ndim] if self.transpose_kernel else w
        return w.transpose(self._sources())

    def restore(self, w: AnyArray) -> AnyArray:
        """To (spatial, in / groups, out); JAX and NumPy arrays alike."""
        w = w.transpose(tuple(int(a) for a in np.argsort(self._sources())))
        return w[(slice(None, None, -1),) * self.ndim] if self.transpose_kernel else w

    def straight(self, w: jax.Array) -> jax.Array:
        """The weights with the kernel as the layer applies it; ``letters`` names the axes."""
        if not self.transpose_kernel:
            return w
        return jax.lax.rev(w, tuple(i for i, c in enumerate(self.letters) if c not in "IO"))

    def _sources(self) -> tuple[int, ...]:
        stored = dimension_numbers(self.ndim, "NHWC")[1]
        return tuple(stored.index(letter) for letter in self.letters)


def adjoint_weights(w: AnyArray, case: Case, order: str) -> AnyArray:
    """Weights of a transposed convolution as those of the strided one: reversed, with in and out exchanged.

    Works on JAX and NumPy arrays alike, in the orders HWIO and OIHW.
    """
    groups, inside, outside = case.groups, case.cin // case.groups, case.cout // case.groups
    if order == "HWIO":
        w = w[(slice(None, None, -1),) * case.ndim]
        w = w.reshape(*case.kernel, inside, groups, outside)
        axes = (*range(case.ndim), case.ndim + 2, case.ndim + 1, case.ndim)
        return w.transpose(axes).reshape(*case.kernel, outside, case.cin)
    w = w[(slice(None), slice(None), *(slice(None, None, -1),) * case.ndim)]
    w = w.reshape(groups, outside, inside, *case.kernel)
    axes = (0, 2, 1, *range(3, case.ndim + 3))
    return w.transpose(axes).reshape(case.cin, outside, *case.kernel)


def activation_axes(ndim: int, layout: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Transpositions from channels last to the layout and back."""
    to = tuple(range(ndim + 2)) if layout == "NHWC" else (0, ndim + 1, *range(1, ndim + 1))
    return to, tuple(int(a) for a in np.argsort(to))

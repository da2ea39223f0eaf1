"""Code that the adapters of foreign operator sets share.

An adapter checks its standard's attributes, in its standard's words, and brings them into one form, a
`Convolution`; the arithmetic is done by the operators in `conv`.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import Array, lax

from jax_convgrad._src import compat, hints
from jax_convgrad._src.conv import api, backward, primitives
from jax_convgrad._src.conv.bias import add_bias, bias_gradient
from jax_convgrad._src.conv.geometry import MAX_SPATIAL_RANK, ConvConfig, ConvGeometry, dilated
from jax_convgrad._src.dispatch.problem import (
    ConvBackwardProblem,
    ConvOperator,
    ConvProblem,
    Gradient,
)
from jax_convgrad._src.dtypes import check_float_dtypes
from jax_convgrad._src.interop.gradients import Contract, call
from jax_convgrad._src.shapes import Pairs, Shape, is_number


@dataclasses.dataclass(frozen=True)
class Convolution:
    """A foreign operator, src -> dst, as a member of the convolution family.

    A plain convolution is an fprop. A transposed one is the dgrad of the convolution underneath, which runs
    from dst to src; ``geometry`` is then that of the convolution underneath.
    """

    function: str
    geometry: ConvGeometry
    transposed: bool

    @property
    def src_shape(self) -> Shape:
        return self.geometry.y_shape if self.transposed else self.geometry.x_shape

    @property
    def dst_shape(self) -> Shape:
        return self.geometry.x_shape if self.transposed else self.geometry.y_shape

    @property
    def dst_channel_axis(self) -> int:
        numbers = self.geometry.config.dimension_numbers
        return numbers.lhs_spec[1] if self.transposed else numbers.out_spec[1]

    def apply(
        self, contract: Contract, src: Array, weights: Array, bias: Array | None, bias_name: str
    ) -> Array:
        """The forward operator, whose vjp is `gradients`."""
        if bias is not None:
            self.check_bias(bias_name, src, bias)
        operands = (src, weights) if bias is None else (src, weights, bias)

        def backward(
            diff_dst: Array, saved: Sequence[Array | None], needed: Sequence[bool]
        ) -> Sequence[Array | None]:
            src, weights = saved[:2]
            mask = needed if bias is not None else (*needed, False)
            return self.gradients(diff_dst, src, weights, mask, derivative=True)[: len(operands)]

        # The data's gradient reads the weights, the weights' the data, and the bias' neither.
        reads = ((1,), (0,), ())[: len(operands)]
        return call(contract, self.forward, backward, reads, operands)

    def forward(self, src: Array, weights: Array, bias: Array | None = None) -> Array:
        """The forward operator, with the derivatives of the package's own operators."""
        operator: ConvOperator = "conv_dgrad" if self.transposed else "conv_fprop"
        dst = self._run(operator, src, weights)
        return dst if bias is None else add_bias(dst, bias, self.dst_channel_axis)

    def gradients(
        self,
        diff_dst: Array,
        src: Array | None,
        weights: Array | None,
        mask: Sequence[bool],
        *,
        derivative: bool = False,
    ) -> tuple[Array | None, Array | None, Array | None]:
        """The gradients of data, weights and bias that ``mask`` asks for, and None for the others.

        ``src`` is read for the weights' gradient only, and ``weights`` for the data's. The bias' gradient is
        the sum over batch and space, accumulated in float32 at least. A ``derivative`` of `apply` is brought
        to its operand's sharding in an Explicit mesh, so that of these results is never ambiguous.
        """
        want_data, want_weights, want_bias = mask
        if want_data and want_weights and not self.transposed:
            assert src is not None and weights is not None
            return self._backward(diff_dst, src, weights, want_bias, derivative=derivative)
        data = kernel = None
        if want_data:
            operator: ConvOperator = "conv_fprop" if self.transposed else "conv_dgrad"
            data = self._run(operator, diff_dst, weights, derivative=derivative)
        if want_weights:
            image, gradient = (diff_dst, src) if self.transposed else (src, diff_dst)
            kernel = self._run("conv_wgrad", image, gradient, derivative=derivative)
        return data, kernel, bias_gradient(diff_dst, self.dst_channel_axis) if want_bias else None

    def _backward(
        self, diff_dst: Array, src: Array, weights: Array, want_bias: bool, *, derivative: bool
    ) -> tuple[Array | None, Array | None, Array | None]:
        """Both gradients of a plain convolution, and the bias', by one operator."""
        wanted: tuple[Gradient, ...] = ("x", "w", "b") if want_bias else ("x", "w")
        if not self._is_bound(derivative):
            return api.conv_backward(src, weights, diff_dst, wanted=wanted, **self._attributes)
        dtype, precision = np.dtype(src.dtype), compat.canonical_precision(None)
        problem = ConvBackwardProblem(self.geometry, dtype, dtype, precision, wanted)
        found = backward.bind(problem, src, weights, diff_dst)
        return found[0], found[1], found[2] if want_bias else None

    def _is_bound(self, derivative: bool) -> bool:
        """Whether the primitive is bound, and not the public operator called, which checks shardings."""
        pairs = self.geometry.config.padding
        return derivative and all(is_number(n) for pair in pairs for n in pair)

    @property
    def _attributes(self) -> dict[str, Any]:
        config = self.geometry.config
        return {
            "strides": config.strides,
            "padding": config.padding,
            "dilation": config.dilation,
            "groups": config.groups,
            "dimension_numbers": config.dimension_numbers,
        }

    def _run(
        self, operator: ConvOperator, first: Any, second: Any, *, derivative: bool = False
    ) -> Array:
        """One operator of the family, with this geometry."""
        if self._is_bound(derivative):
            dtype = np.dtype(first.dtype)
            problem = ConvProblem.make(operator, self.geometry, dtype, dtype, None)
            return primitives.bind(problem, first, second)
        attributes = self._attributes
        if operator == "conv_fprop":
            return api.conv_fprop(first, second, **attributes)
        if operator == "conv_dgrad":
            return api.conv_dgrad(first, second, self.geometry.x_shape, **attributes)
        return api.conv_wgrad(first, second, self.geometry.w_shape, **attributes)

    def check_bias(self, name: str, src: Array, bias: Array) -> None:
        """Raises unless ``bias`` has one number of src's dtype per output channel."""
        check_float_dtypes(self.function, src=src.dtype, **{name: bias.dtype})
        channels = self.dst_shape[self.dst_channel_axis]
        if bias.shape != (channels,):
            raise ValueError(
                f"{self.function}: {name} must have shape ({channels},), one element per output "
                f"channel of the result {self.dst_shape}, got {bias.shape}"
            )

    def check_dst(self, name: str, shape: Shape, arrays: str) -> None:
        """Raises ValueError unless ``shape`` is the shape of the forward operator's result."""
        if tuple(shape) != self.dst_shape:
            config = self.geometry.config
            raise ValueError(
                f"{self.function}: {name} must have the shape of the forward result, "
                f"{self.dst_shape}, got {tuple(shape)} ({arrays}, strides={config.strides}, "
                f"padding={config.padding}, dilations={config.dilation}, groups={config.groups})"
            )


def plain(function: str, config: ConvConfig, src_shape: Shape, weights_shape: Shape) -> Convolution:
    """The convolution src -> dst."""
    return Convolution(
        function, ConvGeometry.make(function, config, src_shape, weights_shape), transposed=False
    )


def transposed(
    function: str,
    config: ConvConfig,
    src_shape: Shape,
    weights_shape: Shape,
    dst_spatial: Shape,
    arrays: str,
) -> Convolution:
    """The transposed convolution src -> dst with the given output size.

    ``config`` is that of the convolution underneath. Its padding is cut off the full result of stride *
    (size - 1) + dilated kernel elements; whatever ``dst_spatial`` has beyond that is output padding. If
    this is less than a stride, the convolution underneath leaves it unread by itself; whole strides, which
    a dilation above the stride allows, are cropped from its image.
    """
    dst_spec, weights_spec, src_spec = config.dimension_numbers
    kernel = [weights_shape[axis] for axis in weights_spec[2:]]
    pairs = []
    for axis, (size, wanted, k, s, d, (low, high)) in enumerate(
        zip(
            [src_shape[axis] for axis in src_spec[2:]],
            dst_spatial,
            kernel,
            config.strides,
            config.dilation,
            config.padding,
            strict=True,
        )
    ):
        smallest = s * (size - 1) + dilated(k, d) - low - high
        extra, largest = wanted - smallest, smallest + max(s, d) - 1
        if not 0 <= extra < max(s, d) or wanted < 0:
            raise ValueError(
                f"{function}: spatial axis {axis} cannot have {wanted} outputs: {size} inputs with "
                f"kernel {k}, stride {s}, dilation {d} and padding {(low, high)} give "
                f"{smallest} to {largest} ({arrays})"
            )
        pairs.append((low, high - extra // s * s))
    batch, channels = src_shape[src_spec[0]], weights_shape[weights_spec[1]] * config.groups
    dst_shape: list[int] = [0] * len(src_shape)
    for axis, size in zip(dst_spec, (batch, channels, *dst_spatial), strict=True):
        dst_shape[axis] = size
    config = config.replace(padding=tuple(pairs))
    geometry = ConvGeometry.make(function, config, tuple(dst_shape), weights_shape)
    return Convolution(function, geometry, transposed=True)


def check_ranks(function: str, **named: Shape) -> int:
    """The number of spatial axes that all arrays share."""
    if len({len(shape) for shape in named.values()}) > 1:
        raise ValueError(f"{function}: arrays must have the same rank, but {describe(**named)}")
    rank = len(next(iter(named.values()))) - 2
    if rank < 1:
        raise ValueError(
            f"{function}: arrays need a batch, a channel and at least one spatial axis, but "
            f"{describe(**named)}"
        )
    return rank


def check_convolution_ranks(function: str, **named: Shape) -> int:
    """The same, of a convolution's arrays, which have at most three."""
    rank = check_ranks(function, **named)
    if rank > MAX_SPATIAL_RANK:
        raise ValueError(
            f"{function}: arrays may have {MAX_SPATIAL_RANK} spatial axes at most, but "
            f"{describe(**named)}"
        )
    return rank


def check_channels(
    function: str,
    config: ConvConfig,
    groups_name: str,
    weights: tuple[str, Shape],
    image: tuple[str, Shape] | None,
    result: tuple[str, Shape] | None,
    *,
    are_arrays: bool = True,
) -> None:
    """Channels and groups of the convolution ``image -> result``, in the caller's names.

    An ``image`` or ``result`` that is not an argument is None. Under a transposed convolution the
    image is its dst and the result its src. ``are_arrays``: whether the arguments are arrays, not shapes.
    """
    image_spec, (out_axis, in_axis, *_), result_spec = config.dimension_numbers
    weights_name, weights_shape = weights
    arrays = describe(**dict(array for array in (image, result, weights) if array is not None))
    groups = config.groups
    if weights_shape[out_axis] % groups:
        raise ValueError(
            f"{function}: the {weights_shape[out_axis]} channels along axis {out_axis} of "
            f"{weights_name} are not divisible by {groups_name}={groups} ({arrays})"
        )
    for array, spec, channels in (
        (image, image_spec, weights_shape[in_axis] * groups),
        (result, result_spec, weights_shape[out_axis]),
    ):
        if array is not None and array[1][spec[1]] != channels:
            name, shape = array
            raise ValueError(
                f"{function}: with {weights_name} and {groups_name}={groups}, {name} must have "
                f"{channels} channels (axis {spec[1]}), got {shape[spec[1]]} ({arrays})"
                f"{hints.channels_last(name, shape, channels) if are_arrays else ''}"
            )


def nonnegative_ints(
    function: str, name: str, value: Any, length: int, arrays: str
) -> tuple[int, ...]:
    """``length`` integers of at least 0."""
    if isinstance(value, str) or not hasattr(value, "__len__"):
        raise TypeError(f"{function}: {name} must be a sequence of integers, got {value!r}")
    if len(value) != length:
        raise ValueError(
            f"{function}: {name} must have {length} entries, got {tuple(value)} ({arrays})"
        )
    if any(isinstance(number, bool) for number in value):
        raise TypeError(f"{function}: {name} must be integers, got {value!r}")
    try:
        numbers = tuple(operator.index(number) for number in value)
    except TypeError:
        raise TypeError(f"{function}: {name} must be integers, got {value!r}") from None
    if any(number < 0 for number in numbers):
        raise ValueError(f"{function}: {name} must be at least 0, got {numbers} ({arrays})")
    return numbers


def spatial(shape: Shape, spec: Sequence[int]) -> Shape:
    """The spatial sizes of ``shape``, whose axes ``spec`` names."""
    return tuple(shape[axis] for axis in spec[2:])


def auto_pads(
    auto_pad: str, sizes: Shape, dilated_kernel: Shape, strides: tuple[int, ...]
) -> Pairs:
    """The pads of a plain convolution for "SAME_UPPER", "SAME_LOWER" or "VALID".

    SAME gives ceil(size / stride) outputs, and never a negative padding; the odd element is at the
    end (UPPER) or at the beginning (LOWER).
    """
    name = "SAME" if auto_pad == "SAME_UPPER" else auto_pad
    pads = lax.padtype_to_pads(sizes, dilated_kernel, strides, name)
    return tuple((low, high) for low, high in pads)


def describe(**named: Shape) -> str:
    """The arrays' shapes, for messages."""
    return ", ".join(f"{name} has shape {tuple(shape)}" for name, shape in named.items())


def pairs(begins: Sequence[int], ends: Sequence[int]) -> Pairs:
    return tuple(zip(begins, ends, strict=True))

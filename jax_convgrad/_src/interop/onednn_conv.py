"""oneDNN's and OpenVINO's convolutions, their data and weights gradients. See `jax_convgrad.onednn`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from jax_convgrad._src import compat, shapes
from jax_convgrad._src.conv.geometry import ConvConfig, dilated
from jax_convgrad._src.dtypes import check_float_dtypes
from jax_convgrad._src.interop import common
from jax_convgrad._src.interop.gradients import Contract
from jax_convgrad._src.shapes import Pairs, Shape

_AUTO_PADS = ("NONE", "SAME_UPPER", "SAME_LOWER", "VALID")
_DATA_FORMATS = ("NXC", "NCX")
_WEIGHTS_FORMATS = ("XIO", "OIX", "XOI", "IOX")


def convolution(
    src: ArrayLike,
    weights: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    strides: Sequence[int],
    pads_begin: Sequence[int],
    pads_end: Sequence[int],
    dilations: Sequence[int],
    auto_pad: str = "none",
    groups: int = 1,
    data_format: str = "NXC",
    weights_format: str = "XIO",
) -> Array:
    """Convolution. Definition: oneDNN Graph operation Convolution.

    Args:
      src: input in ``data_format``, one to three spatial axes; float16, bfloat16, float32 or
        float64.
      weights: kernel in ``weights_format``, I = input channels / groups, O = output channels; src's
        dtype.
      bias: None or one element per output channel, in src's dtype.
      strides, dilations: one per spatial axis, at least 1 (1 is a dense kernel).
      pads_begin, pads_end: one per spatial axis, at least 0.
      auto_pad: "none", "same_upper", "same_lower" or "valid", in any case.
      groups: number of groups.
      data_format, weights_format: the order of the axes, see the module.

    Returns:
      dst in ``data_format``, with floor((size + pads - (kernel - 1) * dilation - 1) / stride) + 1
      elements along each axis.

    Raises:
      TypeError: dtypes that differ or are not floating point, attributes of the wrong kind.
      ValueError: shapes or attributes that do not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_convgrad import onednn
      >>> src, weights = jnp.ones((1, 8, 8, 4)), jnp.ones((3, 3, 2, 6))
      >>> onednn.convolution(
      ...     src, weights, strides=(2, 2), pads_begin=(1, 1), pads_end=(1, 1), dilations=(1, 1),
      ...     groups=2).shape
      (1, 4, 4, 6)
    """
    function = "onednn.convolution"
    src, weights = compat.as_array(src), compat.as_array(weights)
    bias = None if bias is None else compat.as_array(bias)
    check_float_dtypes(function, src=src.dtype, weights=weights.dtype)
    attributes = _Attributes.make(
        function,
        ("weights", weights.shape),
        strides,
        pads_begin,
        pads_end,
        dilations,
        auto_pad,
        groups,
        data_format,
        weights_format,
        image=("src", src.shape),
    )
    problem = attributes.plain(src.shape)
    gradients = "onednn.convolution_backward_data or _weights"
    contract = Contract(function, gradients, "jax_convgrad.conv_general_dilated")
    return problem.apply(contract, src, weights, bias, "bias")


def convolution_backward_data(
    diff_dst: ArrayLike,
    weights: ArrayLike,
    dst_shape: Sequence[int] | None = None,
    *,
    strides: Sequence[int],
    pads_begin: Sequence[int],
    pads_end: Sequence[int],
    dilations: Sequence[int],
    auto_pad: str = "none",
    output_padding: Sequence[int] | None = None,
    groups: int = 1,
    data_format: str = "NXC",
    weights_format: str = "XIO",
) -> Array:
    """Input gradient of `convolution`.

    Definition: oneDNN Graph operation ConvolutionBackwardData.

    Args:
      diff_dst: gradient of `convolution`'s result, in ``data_format``.
      weights: kernel in ``weights_format``, I = input channels / groups, O = output channels; diff_dst's
        dtype.
      dst_shape: the whole shape of the result, diff_src, in ``data_format`` (oneDNN's name for it).
        With None it is the smallest that gives diff_dst, plus ``output_padding``; with SAME, the
        size of diff_dst times the stride.
      strides, pads_begin, pads_end, dilations, auto_pad, groups, data_format, weights_format: the
        attributes of the forward operation. SAME means what it means there for an input of the size
        of diff_src.
      output_padding: elements of diff_src at the end of each axis beyond the smallest size, fewer
        than the stride; zeros, as no window reads them, unless ``pads_end`` reaches that far.
        Checked against ``dst_shape`` if both are given.

    Returns:
      diff_src.

    Raises:
      TypeError: dtypes that differ or are not floating point, attributes of the wrong kind.
      ValueError: shapes or attributes that do not fit; diff_dst is not what `convolution` gives for
        an input of diff_src's shape.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_convgrad import onednn
      >>> diff_dst, weights = jnp.ones((1, 4, 4, 6)), jnp.ones((3, 3, 4, 6))
      >>> onednn.convolution_backward_data(
      ...     diff_dst, weights, (1, 8, 8, 4), strides=(2, 2), pads_begin=(1, 1), pads_end=(1, 1),
      ...     dilations=(1, 1)).shape
      (1, 8, 8, 4)
    """
    function = "onednn.convolution_backward_data"
    diff_dst, weights = compat.as_array(diff_dst), compat.as_array(weights)
    check_float_dtypes(function, diff_dst=diff_dst.dtype, weights=weights.dtype)
    attributes = _Attributes.make(
        function,
        ("weights", weights.shape),
        strides,
        pads_begin,
        pads_end,
        dilations,
        auto_pad,
        groups,
        data_format,
        weights_format,
        result=("diff_dst", diff_dst.shape),
    )
    src_shape = attributes.plain_source(diff_dst.shape, dst_shape, output_padding)
    problem = attributes.plain(src_shape)
    problem.check_dst("diff_dst", diff_dst.shape, f"{attributes.arrays}, diff_src {src_shape}")
    return _data_gradient(problem, diff_dst, weights)


def convolution_backward_weights(
    src: ArrayLike,
    diff_dst: ArrayLike,
    weights_shape: Sequence[int],
    *,
    strides: Sequence[int],
    pads_begin: Sequence[int],
    pads_end: Sequence[int],
    dilations: Sequence[int],
    auto_pad: str = "none",
    groups: int = 1,
    data_format: str = "NXC",
    weights_format: str = "XIO",
) -> Array:
    """Weight gradient of `convolution`.

    Definition: oneDNN Graph operation ConvolutionBackwardWeights.

    Args:
      src: `convolution`'s input, in ``data_format``; float16, bfloat16, float32 or float64.
      diff_dst: gradient of `convolution`'s result, of src's dtype.
      weights_shape: the whole shape of the weights, in ``weights_format``.
      strides, pads_begin, pads_end, dilations, auto_pad, groups, data_format, weights_format: the
        attributes of the forward operation.

    Returns:
      diff_weights, in ``weights_format``.

    Raises:
      TypeError: dtypes that differ or are not floating point, attributes of the wrong kind.
      ValueError: shapes or attributes that do not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_convgrad import onednn
      >>> src, diff_dst = jnp.ones((1, 8, 8, 4)), jnp.ones((1, 4, 4, 6))
      >>> onednn.convolution_backward_weights(
      ...     src, diff_dst, (3, 3, 4, 6), strides=(2, 2), pads_begin=(), pads_end=(),
      ...     dilations=(1, 1), auto_pad="same_upper").shape
      (3, 3, 4, 6)
    """
    function = "onednn.convolution_backward_weights"
    src, diff_dst = compat.as_array(src), compat.as_array(diff_dst)
    check_float_dtypes(function, src=src.dtype, diff_dst=diff_dst.dtype)
    weights_shape = shapes.full_shape(function, "weights_shape", weights_shape, src.ndim)
    attributes = _Attributes.make(
        function,
        ("weights_shape", weights_shape),
        strides,
        pads_begin,
        pads_end,
        dilations,
        auto_pad,
        groups,
        data_format,
        weights_format,
        image=("src", src.shape),
        result=("diff_dst", diff_dst.shape),
    )
    problem = attributes.plain(src.shape)
    problem.check_dst("diff_dst", diff_dst.shape, attributes.arrays)
    return _weights_gradient(problem, src, diff_dst)


def conv_transpose(
    src: ArrayLike,
    weights: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    strides: Sequence[int],
    pads_begin: Sequence[int],
    pads_end: Sequence[int],
    dilations: Sequence[int],
    auto_pad: str = "none",
    output_padding: Sequence[int] | None = None,
    groups: int = 1,
    data_format: str = "NXC",
    weights_format: str = "XOI",
) -> Array:
    """Transposed convolution. Definition: oneDNN Graph operation ConvTranspose.

    Args:
      src: input in ``data_format``, one to three spatial axes; float16, bfloat16, float32 or
        float64.
      weights: kernel in ``weights_format``, I = input channels, O = output channels / groups; src's
        dtype.
      bias: None or one element per output channel, in src's dtype.
      strides, dilations: one per spatial axis, at least 1.
      pads_begin, pads_end: cut off the result, one per spatial axis, at least 0.
      auto_pad: "none", "same_upper", "same_lower" or "valid", in any case. SAME cuts off
        (kernel - 1) * dilation + 1 - stride elements, which must not be negative: the result has
        size * stride + output_padding elements.
      output_padding: elements added at the end of each axis, fewer than its stride or its dilation;
        0 by default.
      groups: number of groups.
      data_format, weights_format: the order of the axes, see the module.

    Returns:
      dst in ``data_format``, with stride * (size - 1) + (kernel - 1) * dilation + 1 +
      output_padding - pads elements along each axis.

    Raises:
      TypeError: dtypes that differ or are not floating point, attributes of the wrong kind.
      ValueError: shapes or attributes that do not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_convgrad import onednn
      >>> src, weights = jnp.ones((1, 4, 4, 6)), jnp.ones((3, 3, 2, 6))
      >>> onednn.conv_transpose(
      ...     src, weights, strides=(2, 2), pads_begin=(1, 1), pads_end=(1, 1), dilations=(1, 1),
      ...     output_padding=(1, 1)).shape
      (1, 8, 8, 2)
    """
    function = "onednn.conv_transpose"
    src, weights = compat.as_array(src), compat.as_array(weights)
    bias = None if bias is None else compat.as_array(bias)
    check_float_dtypes(function, src=src.dtype, weights=weights.dtype)
    attributes = _Attributes.make(
        function,
        ("weights", weights.shape),
        strides,
        pads_begin,
        pads_end,
        dilations,
        auto_pad,
        groups,
        data_format,
        weights_format,
        transposed=True,
        result=("src", src.shape),
    )
    problem = attributes.transposed_forward(src.shape, output_padding)
    gradients = "onednn.conv_transpose_backward_data or _weights"
    contract = Contract(function, gradients, "jax_convgrad.conv_transpose")
    return problem.apply(contract, src, weights, bias, "bias")


def conv_transpose_backward_data(
    diff_dst: ArrayLike,
    weights: ArrayLike,
    *,
    strides: Sequence[int],
    pads_begin: Sequence[int],
    pads_end: Sequence[int],
    dilations: Sequence[int],
    auto_pad: str = "none",
    output_padding: Sequence[int] | None = None,
    groups: int = 1,
    data_format: str = "NXC",
    weights_format: str = "XOI",
) -> Array:
    """Input gradient of `conv_transpose`.

    Definition: oneDNN Graph operation ConvTransposeBackwardData.

    Pass the ``output_padding`` of the forward operation: the result is then exactly the adjoint of
    `conv_transpose`. Without it the operation does what oneDNN's source does, which has no such
    attribute here: diff_src has floor((size + pads - dilated kernel) / stride) + 1 elements, and
    SAME means the pads of a plain convolution over diff_dst. That is the same adjoint with two
    exceptions. An output padding of whole strides (legal where the dilation is above the stride)
    cannot be seen in the sizes and gives a diff_src that is longer. And under SAME a diff_dst that is not a
    multiple of the stride gives one element more than the src of `conv_transpose` had, with other pads.

    Args:
      diff_dst: gradient of `conv_transpose`'s result, in ``data_format``.
      weights: kernel in ``weights_format``, I = input channels, O = output channels / groups; diff_dst's
        dtype.
      strides, pads_begin, pads_end, dilations, auto_pad, groups, data_format, weights_format: the
        attributes of the forward operation.
      output_padding: that of the forward operation, see above. Zeros are not the same as None: they
        demand that diff_dst has the size that `conv_transpose` gives without output padding.

    Returns:
      diff_src, in ``data_format``.

    Raises:
      TypeError: dtypes that differ or are not floating point, attributes of the wrong kind.
      ValueError: shapes or attributes that do not fit; no src gives a result of diff_dst's shape.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_convgrad import onednn
      >>> diff_dst, weights = jnp.ones((1, 9, 9, 2)), jnp.ones((3, 3, 2, 6))
      >>> onednn.conv_transpose_backward_data(
      ...     diff_dst, weights, strides=(2, 2), pads_begin=(), pads_end=(), dilations=(1, 1),
      ...     auto_pad="same_upper", output_padding=(1, 1)).shape
      (1, 4, 4, 6)
    """
    function = "onednn.conv_transpose_backward_data"
    diff_dst, weights = compat.as_array(diff_dst), compat.as_array(weights)
    check_float_dtypes(function, diff_dst=diff_dst.dtype, weights=weights.dtype)
    attributes = _Attributes.make(
        function,
        ("weights", weights.shape),
        strides,
        pads_begin,
        pads_end,
        dilations,
        auto_pad,
        groups,
        data_format,
        weights_format,
        transposed=True,
        image=("diff_dst", diff_dst.shape),
    )
    problem = attributes.transposed_from_dst(diff_dst.shape, output_padding)
    return _data_gradient(problem, diff_dst, weights)


def conv_transpose_backward_weights(
    src: ArrayLike,
    diff_dst: ArrayLike,
    weights_shape: Sequence[int],
    *,
    strides: Sequence[int],
    pads_begin: Sequence[int],
    pads_end: Sequence[int],
    dilations: Sequence[int],
    auto_pad: str = "none",
    output_padding: Sequence[int] | None = None,
    groups: int = 1,
    data_format: str = "NXC",
    weights_format: str = "XOI",
) -> Array:
    """Weight gradient of `conv_transpose`.

    Definition: oneDNN Graph operation ConvTransposeBackwardWeights.

    Args:
      src: `conv_transpose`'s input, in ``data_format``; float16, bfloat16, float32 or float64.
      diff_dst: gradient of `conv_transpose`'s result, of src's dtype.
      weights_shape: the whole shape of the weights, in ``weights_format``.
      strides, pads_begin, pads_end, dilations, auto_pad, groups, data_format, weights_format: the
        attributes of the forward operation.
      output_padding: that of the forward operation, or None: it then follows from the sizes of src
        and diff_dst. Without it SAME means the pads of `conv_transpose`, except along an axis where
        diff_dst is shorter than src times the stride: there it means those of oneDNN's source, a
        plain convolution over diff_dst, as in `conv_transpose_backward_data`.

    Returns:
      diff_weights, in ``weights_format``.

    Raises:
      TypeError: dtypes that differ or are not floating point, attributes of the wrong kind.
      ValueError: shapes or attributes that do not fit; src does not give a result of diff_dst's
        shape.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_convgrad import onednn
      >>> src, diff_dst = jnp.ones((1, 4, 4, 6)), jnp.ones((1, 8, 8, 2))
      >>> onednn.conv_transpose_backward_weights(
      ...     src, diff_dst, (3, 3, 2, 6), strides=(2, 2), pads_begin=(1, 1), pads_end=(1, 1),
      ...     dilations=(1, 1)).shape
      (3, 3, 2, 6)
    """
    function = "onednn.conv_transpose_backward_weights"
    src, diff_dst = compat.as_array(src), compat.as_array(diff_dst)
    check_float_dtypes(function, src=src.dtype, diff_dst=diff_dst.dtype)
    weights_shape = shapes.full_shape(function, "weights_shape", weights_shape, src.ndim)
    attributes = _Attributes.make(
        function,
        ("weights_shape", weights_shape),
        strides,
        pads_begin,
        pads_end,
        dilations,
        auto_pad,
        groups,
        data_format,
        weights_format,
        transposed=True,
        image=("diff_dst", diff_dst.shape),
        result=("src", src.shape),
    )
    problem = attributes.transposed_from_both(src.shape, diff_dst.shape, output_padding)
    problem.check_dst("diff_dst", diff_dst.shape, attributes.arrays)
    return _weights_gradient(problem, src, diff_dst)


def _data_gradient(problem: common.Convolution, diff_dst: Array, weights: Array) -> Array:
    diff_src, _, _ = problem.gradients(diff_dst, None, weights, (True, False, False))
    assert diff_src is not None
    return diff_src


def _weights_gradient(problem: common.Convolution, src: Array, diff_dst: Array) -> Array:
    _, diff_weights, _ = problem.gradients(diff_dst, src, None, (False, True, False))
    assert diff_weights is not None
    return diff_weights


@dataclasses.dataclass(frozen=True)
class _Attributes:
    """Checked attributes of one call, in terms of the convolution (underneath) and its image.

    ``config.padding`` holds the explicit pads; ``auto_pad``, in upper case, says whether they are used.
    """

    function: str
    arrays: str
    weights_shape: Shape
    config: ConvConfig
    auto_pad: str

    @classmethod
    def make(
        cls,
        function: str,
        weights: tuple[str, Shape],
        strides: Any,
        pads_begin: Any,
        pads_end: Any,
        dilations: Any,
        auto_pad: Any,
        groups: Any,
        data_format: Any,
        weights_format: Any,
        *,
        transposed: bool = False,
        image: tuple[str, Shape] | None = None,
        result: tuple[str, Shape] | None = None,
    ) -> _Attributes:
        """Checks a call. Arrays are (name, shape) pairs, None for those that are not arguments.

        Image and result are those of the convolution underneath: a transposed one's dst and src.
        """
        named = dict(array for array in (image, result, weights) if array is not None)
        rank = common.check_convolution_ranks(function, **named)
        arrays = common.describe(**named)
        data_spec = _spec(function, "data_format", data_format, _DATA_FORMATS, "NC", rank)
        # The convolution under a transposed one makes its input channels from its output channels.
        channels = "IO" if transposed else "OI"
        weights_spec = _spec(
            function, "weights_format", weights_format, _WEIGHTS_FORMATS, channels, rank
        )
        pads = []
        for name, value in (("pads_begin", pads_begin), ("pads_end", pads_end)):
            if isinstance(value, (Sequence, np.ndarray)) and len(value) == 0:
                value = (0,) * rank
            pads.append(common.nonnegative_ints(function, name, value, rank, arrays))
        if not isinstance(auto_pad, str):
            raise TypeError(f"{function}: auto_pad must be a string, got {auto_pad!r}")
        if auto_pad.upper() not in _AUTO_PADS:
            raise ValueError(
                f"{function}: auto_pad must be one of {', '.join(_AUTO_PADS).lower()}, got "
                f"{auto_pad!r}"
            )
        config = ConvConfig(
            shapes.positive_ints(function, "strides", strides, rank, arrays),
            common.pairs(*pads),
            shapes.positive_ints(function, "dilations", dilations, rank, arrays),
            shapes.positive_int(function, "groups", groups),
            lax.ConvDimensionNumbers(data_spec, weights_spec, data_spec),
        )
        common.check_channels(function, config, "groups", weights, image, result)
        return cls(function, arrays, weights[1], config, auto_pad.upper())

    @property
    def data_spec(self) -> tuple[int, ...]:
        return tuple(self.config.dimension_numbers.lhs_spec)

    @property
    def kernel(self) -> Shape:
        """The dilated kernel's sizes."""
        sizes = common.spatial(self.weights_shape, self.config.dimension_numbers.rhs_spec)
        return tuple(map(dilated, sizes, self.config.dilation))

    def plain_pads(self, image_spatial: Shape) -> Pairs:
        """The pads of a plain convolution over an image of this size."""
        if self.auto_pad == "NONE":
            return self.config.padding
        return common.auto_pads(self.auto_pad, image_spatial, self.kernel, self.config.strides)

    def transposed_pads(self) -> Pairs:
        """The pads of a transposed convolution: those of SAME do not depend on its sizes."""
        return tuple(map(self._transposed_pair, range(self.config.spatial_rank)))

    def _transposed_pair(self, axis: int) -> tuple[int, int]:
        if self.auto_pad == "NONE":
            return self.config.padding[axis]
        if self.auto_pad == "VALID":
            return 0, 0
        total = self.kernel[axis] - self.config.strides[axis]
        if total < 0:
            raise ValueError(
                f"{self.function}: auto_pad={self.auto_pad.lower()} needs a dilated kernel of at "
                f"least the stride, got {self.kernel} and strides={self.config.strides} "
                f"({self.arrays})"
            )
        smaller, larger = total // 2, total - total // 2
        return (smaller, larger) if self.auto_pad == "SAME_UPPER" else (larger, smaller)

    def output_padding(self, value: Any, limits: Sequence[int]) -> tuple[int, ...]:
        """``output_padding``, each element smaller than its limit; zeros for None."""
        rank = self.config.spatial_rank
        if value is None:
            return (0,) * rank
        extra = common.nonnegative_ints(self.function, "output_padding", value, rank, self.arrays)
        if any(more >= limit for more, limit in zip(extra, limits, strict=True)):
            raise ValueError(
                f"{self.function}: output_padding must be smaller than {tuple(limits)}, got "
                f"{extra} (strides={self.config.strides}, dilations={self.config.dilation}, "
                f"{self.arrays})"
            )
        return extra

    def plain(self, src_shape: Shape) -> common.Convolution:
        pads = self.plain_pads(common.spatial(src_shape, self.data_spec))
        config = self.config.replace(padding=pads)
        return common.plain(self.function, config, src_shape, self.weights_shape)

    def plain_source(self, diff_dst_shape: Shape, src_shape: Any, output_padding: Any) -> Shape:
        """The shape of the input whose gradient is asked for."""
        extra = self.output_padding(output_padding, self.config.strides)
        dst = common.spatial(diff_dst_shape, self.data_spec)
        if src_shape is None:
            same = self.auto_pad.startswith("SAME")
            if same and any(extra):
                raise ValueError(
                    f"{self.function}: auto_pad={self.auto_pad.lower()} has no output_padding, got "
                    f"{extra}; give dst_shape instead ({self.arrays})"
                )
            sizes = tuple(
                n * s if same else s * (n - 1) + k + more - low - high
                for n, s, k, more, (low, high) in zip(
                    dst,
                    self.config.strides,
                    self.kernel,
                    extra,
                    self.plain_pads(dst),
                    strict=True,
                )
            )
            if any(shapes.known_below(size, 0) for size in sizes):
                raise ValueError(
                    f"{self.function}: pads {self.config.padding} leave {sizes} elements of "
                    f"diff_src ({self.arrays})"
                )
            batch = diff_dst_shape[self.data_spec[0]]
            channels = self.weights_shape[self.config.dimension_numbers.rhs_spec[1]]
            return self._data_shape(batch, channels * self.config.groups, sizes)
        shape = shapes.full_shape(self.function, "dst_shape", src_shape, len(diff_dst_shape))
        sizes = common.spatial(shape, self.data_spec)
        if output_padding is not None:
            for axis, (size, n, s, k, more, pair) in enumerate(
                zip(
                    sizes,
                    dst,
                    self.config.strides,
                    self.kernel,
                    extra,
                    self.plain_pads(sizes),
                    strict=True,
                )
            ):
                if size != s * (n - 1) + k + more - sum(pair):
                    raise ValueError(
                        f"{self.function}: dst_shape={shape} and output_padding={extra} "
                        f"disagree along spatial axis {axis}: {s * (n - 1) + k - sum(pair)} "
                        f"elements plus {more} are not {size} ({self.arrays})"
                    )
        config = self.config
        common.check_channels(
            self.function,
            config,
            "groups",
            ("weights", self.weights_shape),
            ("dst_shape", shape),
            None,
            are_arrays=False,
        )
        return shape

    def transposed_forward(self, src_shape: Shape, output_padding: Any) -> common.Convolution:
        extra = self.output_padding(output_padding, self._transposed_limits)
        pads = self.transposed_pads()
        sizes = common.spatial(src_shape, self.data_spec)
        return self._transposed(src_shape, pads, self._transposed_sizes(sizes, pads, extra))

    def transposed_from_dst(self, dst_shape: Shape, output_padding: Any) -> common.Convolution:
        extra = self.output_padding(output_padding, self._transposed_limits)
        dst = common.spatial(dst_shape, self.data_spec)
        pads = self.plain_pads(dst) if output_padding is None else self.transposed_pads()
        sizes = []
        for axis, (size, more, k, s, pair) in enumerate(
            zip(dst, extra, self.kernel, self.config.strides, pads, strict=True)
        ):
            room = size + sum(pair) - k - more
            if room < 0 or (output_padding is not None and room % s):
                raise ValueError(
                    f"{self.function}: no src gives {size} elements along spatial axis {axis} of "
                    f"diff_dst, with a dilated kernel of {k}, stride {s}, pads {pair} and "
                    f"output_padding={output_padding} ({self.arrays})"
                )
            sizes.append(room // s + 1)
        channels = self.weights_shape[self.config.dimension_numbers.rhs_spec[0]]
        src_shape = self._data_shape(dst_shape[self.data_spec[0]], channels, sizes)
        return self._transposed(src_shape, pads, dst)

    def transposed_from_both(
        self, src_shape: Shape, dst_shape: Shape, output_padding: Any
    ) -> common.Convolution:
        extra = self.output_padding(output_padding, self._transposed_limits)
        src = common.spatial(src_shape, self.data_spec)
        dst = common.spatial(dst_shape, self.data_spec)
        if output_padding is not None:
            pads = self.transposed_pads()
            return self._transposed(src_shape, pads, self._transposed_sizes(src, pads, extra))
        # Up to src times the stride the source's rule holds, and agrees with conv_transpose's.
        pads = tuple(
            self._transposed_pair(axis) if size > n * s else pair
            for axis, (size, n, s, pair) in enumerate(
                zip(dst, src, self.config.strides, self.plain_pads(dst), strict=True)
            )
        )
        return self._transposed(src_shape, pads, dst)

    @property
    def _transposed_limits(self) -> tuple[int, ...]:
        return tuple(map(max, self.config.strides, self.config.dilation))

    def _transposed_sizes(self, src: Shape, pads: Pairs, extra: tuple[int, ...]) -> Shape:
        return tuple(
            s * (n - 1) + k + more - sum(pair)
            for n, s, k, more, pair in zip(
                src, self.config.strides, self.kernel, extra, pads, strict=True
            )
        )

    def _transposed(self, src_shape: Shape, pads: Pairs, dst_spatial: Shape) -> common.Convolution:
        return common.transposed(
            self.function,
            self.config.replace(padding=pads),
            src_shape,
            self.weights_shape,
            dst_spatial,
            self.arrays,
        )

    def _data_shape(self, batch: int, channels: int, sizes: Sequence[int]) -> Shape:
        shape: list[int] = [0] * (len(sizes) + 2)
        for axis, size in zip(self.data_spec, (batch, channels, *sizes), strict=True):
            shape[axis] = size
        return tuple(shape)


def _spec(
    function: str, name: str, value: Any, allowed: tuple[str, ...], roles: str, rank: int
) -> tuple[int, ...]:
    """Positions of the two ``roles`` and of the spatial axes in a format like "NXC"."""
    if not isinstance(value, str):
        raise TypeError(f"{function}: {name} must be a string, got {value!r}")
    if value not in allowed:
        raise ValueError(f"{function}: {name} must be one of {', '.join(allowed)}, got {value!r}")
    axes = value.replace("X", "X" * rank)
    first = axes.index("X")
    return (axes.index(roles[0]), axes.index(roles[1]), *range(first, first + rank))

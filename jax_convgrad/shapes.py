"""Geometry and shape rules of the convolution family, and every message for bad input.

Nothing here touches a device or an array: the functions see shapes and parameters only. All of
them describe one thing, the convolution ``x -> y`` with weights ``w``; its input gradient and its
weight gradient are the same geometry read in another direction.

NOTE [Why x_shape is a parameter]. With a stride above 1 several input sizes give the same output
size, so the shape of ``dx`` does not follow from ``dy`` and ``w``. The caller of a dgrad names it;
a transposed convolution, which is a dgrad used forwards, works it out from its own arguments.

NOTE [Rows no window reads]. For the same reason the last rows of ``x`` may be read by no window.
Nothing flows back to them: dgrad writes zeros there and wgrad skips them.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_convgrad import compat

Shape = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]

MAX_SPATIAL_RANK = 3
FLOAT_DTYPES = ("float16", "bfloat16", "float32", "float64")
PADDING_NAMES = ("SAME", "SAME_LOWER", "VALID")


@dataclasses.dataclass(frozen=True)
class ConvConfig:
    """What a convolution ``x -> y`` is, apart from its sizes. Hashable; the primitives' parameter.

    ``padding`` holds one (low, high) pair per spatial axis, in elements of ``x``; negative numbers
    crop. ``dilation`` is the kernel's. ``dimension_numbers`` is :class:`jax.lax.ConvDimensionNumbers`.
    """

    strides: tuple[int, ...]
    padding: Pairs
    dilation: tuple[int, ...]
    groups: int
    dimension_numbers: lax.ConvDimensionNumbers

    @property
    def spatial_rank(self) -> int:
        return len(self.strides)

    def replace(self, **changes: Any) -> ConvConfig:
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(frozen=True)
class ConvGeometry:
    """A :class:`ConvConfig` together with the sizes it is applied to, in canonical order."""

    config: ConvConfig
    batch: int
    in_channels: int
    out_channels: int
    in_spatial: Shape
    kernel: Shape
    out_spatial: Shape

    @classmethod
    def make(
        cls, function: str, config: ConvConfig, x_shape: Shape, w_shape: Shape
    ) -> ConvGeometry:
        """Checks the shapes against each other and derives the output size.

        Raises:
          ValueError: with ``function`` as the first word and both shapes in the text.
        """
        shapes = f"x has shape {_show(x_shape)}, w has shape {_show(w_shape)}"
        if len(x_shape) != len(w_shape):
            raise ValueError(f"{function}: x and w must have the same rank, but {shapes}")
        for name, shape in (("x", x_shape), ("w", w_shape)):
            if any(known_below(size, 0) for size in shape):
                raise ValueError(f"{function}: {name} has a negative size: {shapes}")
        x_spec, w_spec, _ = config.dimension_numbers
        batch, in_channels, *in_spatial = (x_shape[i] for i in x_spec)
        out_channels, group_channels, *kernel = (w_shape[i] for i in w_spec)
        groups = config.groups
        if in_channels % groups:
            raise ValueError(
                f"{function}: the {in_channels} channels of x are not divisible by "
                f"groups={groups}: {shapes}"
            )
        if in_channels // groups != group_channels:
            raise ValueError(
                f"{function}: w must have {in_channels}/{groups} = {in_channels // groups} input "
                f"channels (axis {w_spec[1]}), got {group_channels}: {shapes}"
            )
        if out_channels % groups:
            raise ValueError(
                f"{function}: the {out_channels} output channels of w (axis {w_spec[0]}) are not "
                f"divisible by groups={groups}: {shapes}"
            )
        for axis, (size, (low, high)) in enumerate(zip(in_spatial, config.padding, strict=True)):
            if known_below(size + low + high, 0):
                raise ValueError(
                    f"{function}: negative padding {(low, high)} removes more than the {size} "
                    f"elements of spatial axis {axis}: {shapes}"
                )
        out_spatial = tuple(
            map(_windows, in_spatial, kernel, config.strides, config.padding, config.dilation)
        )
        return cls(
            config, batch, in_channels, out_channels, tuple(in_spatial), tuple(kernel), out_spatial
        )

    @property
    def spatial_rank(self) -> int:
        return self.config.spatial_rank

    @property
    def dilated_kernel(self) -> Shape:
        return tuple(map(dilated, self.kernel, self.config.dilation))

    @property
    def x_shape(self) -> Shape:
        return _logical(
            self.config.dimension_numbers.lhs_spec, self.batch, self.in_channels, self.in_spatial
        )

    @property
    def w_shape(self) -> Shape:
        group_channels = self.in_channels // self.config.groups
        return _logical(
            self.config.dimension_numbers.rhs_spec, self.out_channels, group_channels, self.kernel
        )

    @property
    def y_shape(self) -> Shape:
        return _logical(
            self.config.dimension_numbers.out_spec, self.batch, self.out_channels, self.out_spatial
        )

    @property
    def tiles(self) -> bool:
        """Whether the windows lie side by side: each element of x is in one of them, and in one alone.

        Never with groups, with windows of one element, or where spatial sizes are symbolic.
        """
        config = self.config
        sizes = (*self.in_spatial, *self.kernel)
        if config.groups > 1 or not all(isinstance(size, int | np.integer) for size in sizes):
            return False
        return (
            math.prod(self.kernel) > 1
            and tuple(self.kernel) == config.strides
            and self.dilated_kernel == tuple(self.kernel)
            and not any(map(any, config.padding))
            and all(x % k == 0 for x, k in zip(self.in_spatial, self.kernel, strict=True))
        )

    def check_dy(self, function: str, dy_shape: Shape) -> None:
        """Raises ValueError unless ``dy_shape`` is what the convolution x -> y produces."""
        if tuple(dy_shape) != self.y_shape:
            raise ValueError(
                f"{function}: dy must have the shape of the convolution's output, "
                f"{_show(self.y_shape)}, got {_show(dy_shape)} (x has shape {_show(self.x_shape)}, "
                f"w has shape {_show(self.w_shape)}, strides={self.config.strides}, "
                f"padding={self.config.padding}, dilation={self.config.dilation})"
            )

    @property
    def is_empty(self) -> bool:
        """Whether nothing is multiplied with anything: all results are zeros.

        So it is where x, w or y has no elements, and where negative padding crops all of x away
        and positive padding of the other side stands in its place.
        """
        if 0 in self.x_shape or 0 in self.w_shape or 0 in self.y_shape:
            return True
        return any(
            known_below(size + min(pair), 1)
            for size, pair in zip(self.in_spatial, self.config.padding, strict=True)
        )


def make_config(
    function: str,
    x_shape: Shape,
    w_shape: Shape,
    *,
    strides: int | Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    dilation: int | Sequence[int] | None,
    groups: int,
    dimension_numbers: Any,
    names: tuple[str, str, str, str] = ("strides", "padding", "dilation", "groups"),
) -> ConvConfig:
    """Brings the arguments of a convolution ``x -> y`` into the one form everything else reads.

    ``names`` are the caller's own words for the arguments, used in messages.

    Raises:
      TypeError: an argument is not of the right kind.
      ValueError: an argument has the wrong length or an impossible value.
    """
    numbers = make_dimension_numbers(function, x_shape, w_shape, dimension_numbers)
    rank = len(x_shape) - 2
    shapes = f"x has shape {_show(x_shape)}, w has shape {_show(w_shape)}"
    if not 1 <= rank <= MAX_SPATIAL_RANK:
        raise ValueError(
            f"{function}: x and w must have 1 to {MAX_SPATIAL_RANK} spatial axes, but {shapes}"
        )
    strides = positive_ints(function, names[0], strides, rank, shapes)
    dilation = positive_ints(function, names[2], 1 if dilation is None else dilation, rank, shapes)
    groups = positive_int(function, names[3], groups)
    if isinstance(padding, str):
        name = padding_name(function, padding, names[1])
        kernel = [
            dilated(w_shape[i], d) for i, d in zip(numbers.rhs_spec[2:], dilation, strict=True)
        ]
        sizes = [x_shape[i] for i in numbers.lhs_spec[2:]]
        pairs = tuple(tuple(pair) for pair in lax.padtype_to_pads(sizes, kernel, strides, name))
    else:
        pairs = int_pairs(function, names[1], padding, rank, shapes)
    return ConvConfig(strides, pairs, dilation, groups, numbers)


def make_dimension_numbers(
    function: str,
    x_shape: Shape,
    w_shape: Shape,
    dimension_numbers: Any,
    names: tuple[str, str] = ("x", "w"),
) -> lax.ConvDimensionNumbers:
    """``dimension_numbers`` as lax takes them, checked to be three permutations of the axes.

    ``names`` are what the function calls its image and its weights.
    """
    x, w = names
    shapes = f"{x} has shape {_show(x_shape)}, {w} has shape {_show(w_shape)}"
    if len(x_shape) != len(w_shape):
        raise ValueError(f"{function}: {x} and {w} must have the same rank, but {shapes}")
    if len(x_shape) < 2:
        raise ValueError(f"{function}: {x} and {w} need a batch and a channel axis, but {shapes}")
    try:
        numbers = lax.conv_dimension_numbers(x_shape, w_shape, dimension_numbers)
    except (TypeError, ValueError, IndexError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"{function}: dimension_numbers={dimension_numbers!r}: {error} ({shapes})"
        ) from None
    axes = list(range(len(x_shape)))
    for spec in numbers:
        if sorted(spec) != axes:
            raise ValueError(
                f"{function}: dimension_numbers={tuple(numbers)} must be three permutations of "
                f"{axes}: {shapes}"
            )
    return lax.ConvDimensionNumbers(*(tuple(map(int, spec)) for spec in numbers))


def channels_last_numbers(function: str, x_shape: Shape, w_shape: Shape) -> tuple[str, str, str]:
    """lax.conv_transpose's default dimension numbers, NHWC, HWIO, NHWC in one to three dimensions."""
    letters = {2: "", 3: "H", 4: "HW", 5: "HWD"}.get(len(x_shape))
    if letters is None:
        raise ValueError(
            f"{function}: dimension_numbers have no default for rank {len(x_shape)}: lhs has shape "
            f"{_show(x_shape)}, rhs has shape {_show(w_shape)}"
        )
    return f"N{letters}C", f"{letters}IO", f"N{letters}C"


def check_group_counts(
    function: str,
    x_shape: Shape,
    w_shape: Shape,
    numbers: lax.ConvDimensionNumbers,
    feature_group_count: int,
    batch_group_count: int,
) -> int:
    """The number of groups that lax's two group counts amount to, checked against the shapes."""
    shapes = f"lhs has shape {_show(x_shape)}, rhs has shape {_show(w_shape)}"
    features = positive_int(function, "feature_group_count", feature_group_count)
    batches = positive_int(function, "batch_group_count", batch_group_count)
    if features > 1 and batches > 1:
        raise ValueError(
            f"{function}: at most one of feature_group_count={features} and "
            f"batch_group_count={batches} may be above 1 ({shapes})"
        )
    batch, channels = x_shape[numbers.lhs_spec[0]], x_shape[numbers.lhs_spec[1]]
    out_channels, group_channels = w_shape[numbers.rhs_spec[0]], w_shape[numbers.rhs_spec[1]]
    if batches > 1 and batch % batches:
        raise ValueError(
            f"{function}: the batch {batch} is not divisible by batch_group_count={batches} ({shapes})"
        )
    groups = features * batches
    if channels % features:
        raise ValueError(
            f"{function}: the {channels} input channels are not divisible by "
            f"feature_group_count={features} ({shapes})"
        )
    if channels // features != group_channels:
        raise ValueError(
            f"{function}: rhs must have {channels}/{features} = {channels // features} input channels, "
            f"got {group_channels} ({shapes})"
        )
    if out_channels % groups:
        raise ValueError(
            f"{function}: the {out_channels} output channels are not divisible by {groups} groups ({shapes})"
        )
    return groups


# Transposed convolution. Its padding is that of the dilated input, lax's convention: an axis of
# `size` inputs, stride s and a dilated kernel k gives (size - 1) * s + 1 + low + high - k + 1
# outputs. The convolution whose adjoint it is has padding k - 1 - low and k - 1 - high.


def transposed_padding(
    function: str,
    in_spatial: Shape,
    dilated_kernel: Shape,
    strides: tuple[int, ...],
    dilation: tuple[int, ...],
    padding: str | Sequence[tuple[int, int]],
    *,
    use_consistent_padding: bool,
    output_padding: int | Sequence[int],
    output_shape: Sequence[int] | None,
) -> Pairs:
    """The (low, high) pairs, of the dilated input, that a transposed convolution's arguments mean."""
    rank = len(in_spatial)
    shapes = f"the input's spatial shape is {_show(in_spatial)}, the dilated kernel's {_show(dilated_kernel)}"
    extra = _ints(function, "output_padding", output_padding, rank, shapes)
    for axis, (more, s, d) in enumerate(zip(extra, strides, dilation, strict=True)):
        if not 0 <= more < max(s, d):
            raise ValueError(
                f"{function}: output_padding must be at least 0 and smaller than the stride or the "
                f"dilation, got output_padding={extra} with strides={strides} and "
                f"dilation={dilation} (spatial axis {axis}; {shapes})"
            )
    if isinstance(padding, str):
        name = padding_name(function, padding)
        pairs = [
            _transposed_named(k, s, name) for k, s in zip(dilated_kernel, strides, strict=True)
        ]
    else:
        pairs = list(int_pairs(function, "padding", padding, rank, shapes))
        if use_consistent_padding:
            pairs = [
                (k - 1 - low, k - 1 - high)
                for k, (low, high) in zip(dilated_kernel, pairs, strict=True)
            ]
        name = None
    if output_shape is None:
        return tuple((low, high + more) for (low, high), more in zip(pairs, extra, strict=True))
    if any(extra):
        raise ValueError(
            f"{function}: output_shape={_show(output_shape)} fixes the size already, "
            f"output_padding={extra} must then be 0 ({shapes})"
        )
    wanted = sizes(function, "output_shape", output_shape, rank, 0, shapes)
    return tuple(
        _transposed_to_size(function, axis, *numbers, name)
        for axis, numbers in enumerate(
            zip(in_spatial, dilated_kernel, strides, dilation, pairs, wanted, strict=True)
        )
    )


def transposed_size(
    function: str, size: int, kernel: int, stride: int, pair: tuple[int, int], shapes: str
) -> int:
    """Output size of a transposed convolution along one axis (``kernel`` is the dilated one)."""
    spread = (size - 1) * stride + 1 if size else 0
    if spread + sum(pair) < 0:
        raise ValueError(
            f"{function}: negative padding {pair} removes more than the {spread} elements of the dilated "
            f"input (shapes {shapes})"
        )
    return max(spread + sum(pair) - kernel + 1, 0)


def _transposed_extent(size: int, kernel: int, stride: int, pair: tuple[int, int]) -> int:
    return (size - 1) * stride + 1 + sum(pair) - kernel + 1


def _transposed_named(kernel: int, stride: int, name: str) -> tuple[int, int]:
    """lax.conv_transpose's reading of 'SAME' and 'VALID'; 'SAME_LOWER' mirrors 'SAME'."""
    if name == "VALID":
        return kernel - 1, kernel - 1 + max(stride - kernel, 0)
    total = kernel + stride - 2
    low = kernel - 1 if stride > kernel - 1 else -(-total // 2)
    return (low, total - low) if name == "SAME" else (total - low, low)


def _transposed_to_size(
    function: str,
    axis: int,
    size: int,
    kernel: int,
    stride: int,
    dilation: int,
    pair: tuple[int, int],
    wanted: int,
    name: str | None,
) -> tuple[int, int]:
    """Padding that gives exactly ``wanted`` outputs.

    With 'SAME' the padding of the convolution underneath is split evenly, the odd element at the
    end ('SAME_LOWER': at the start); with 'VALID' and with explicit pairs the low side stays and the
    high side gives way. A size is possible if an output_padding would be legal that reaches it.
    """
    same = name in ("SAME", "SAME_LOWER")
    full = _transposed_extent(size, kernel, stride, (kernel - 1, kernel - 1))
    least = full if name is not None else _transposed_extent(size, kernel, stride, pair)
    more = difference(function, "output_shape", wanted, least)
    slack = max(stride, dilation) - 1
    if more > slack or (known_below(wanted, 1) if same else more < 0):
        raise ValueError(
            f"{function}: output_shape {wanted} cannot be on spatial axis {axis}: an input of size "
            f"{size} with dilated kernel {kernel}, stride {stride} and padding "
            f"{name or pair} gives {1 if same else least} to {least + slack}"
        )
    if same:
        cut = max(-more, 0)
        low_cut = cut // 2 if name == "SAME" else cut - cut // 2
        low = kernel - 1 - low_cut
    else:
        low = pair[0]
    return low, wanted - _transposed_extent(size, kernel, stride, (low, 0))


def difference(function: str, name: str, wanted: int, size: int) -> int:
    """``wanted - size``, of which padding is made; ValueError if it is a symbolic number."""
    more = wanted - size
    if not _is_number(more):
        raise ValueError(
            f"{function}: {name} {wanted} asks for a padding that is no known number, without any the "
            f"size is {size}"
        )
    return more


def underlying_padding(padding: Pairs, dilated_kernel: Shape) -> Pairs:
    """Padding of the convolution whose adjoint has ``padding`` on its dilated input; an involution
    up to the rows that no window reads (see NOTE [Rows no window reads])."""
    return tuple(
        (k - 1 - low, k - 1 - high) for (low, high), k in zip(padding, dilated_kernel, strict=True)
    )


# Arguments.


def check_float_dtypes(function: str, **dtypes: Any) -> np.dtype:
    """The one dtype that all arrays share; TypeError if they differ or it is none of ours."""
    named = {name: np.dtype(dtype) for name, dtype in dtypes.items()}
    text = ", ".join(f"{name} is {dtype}" for name, dtype in named.items())
    for dtype in named.values():
        if dtype.name not in FLOAT_DTYPES:
            raise TypeError(f"{function}: dtypes must be one of {', '.join(FLOAT_DTYPES)}; {text}")
    if len(set(named.values())) > 1:
        raise TypeError(f"{function}: arrays must have the same dtype; {text}")
    return next(iter(named.values()))


def sum_dtype(dtype: Any) -> np.dtype:
    """What sums of a floating dtype are taken in: float64 for float64, float32 for all others."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def wider_dtype(first: np.dtype, second: np.dtype) -> np.dtype:
    """The narrowest floating dtype that holds both: float32 for float16 and bfloat16."""
    if first == second or first.itemsize > second.itemsize:
        return first
    return second if second.itemsize > first.itemsize else sum_dtype(first)


def result_dtype(function: str, operands: np.dtype, preferred_element_type: Any) -> np.dtype:
    """``preferred_element_type`` as a dtype, the operands' own when None; never a narrower one."""
    if preferred_element_type is None:
        return operands
    preferred = np.dtype(preferred_element_type)
    if preferred != operands and preferred != jax.dtypes.canonicalize_dtype(preferred):
        # 64 bits that are not enabled: JAX takes 32, and warns unless it was Python's float.
        wanted = preferred_element_type
        preferred = jax.eval_shape(lambda: jnp.zeros((), None if wanted is float else wanted)).dtype
    if preferred.name not in FLOAT_DTYPES:
        raise TypeError(
            f"{function}: preferred_element_type must be one of {', '.join(FLOAT_DTYPES)}, got {preferred}"
        )
    if preferred.itemsize < operands.itemsize:
        raise TypeError(
            f"{function}: preferred_element_type={preferred} is narrower than the arrays' {operands}"
        )
    return preferred


def check_bias(
    function: str, bias_shape: Shape, bias_dtype: Any, channels: int, dtype: Any
) -> None:
    """Raises unless ``bias`` is a vector with one element per output channel."""
    if tuple(bias_shape) != (channels,):
        raise ValueError(
            f"{function}: bias must have shape ({channels},), one element per output channel, "
            f"got {_show(bias_shape)}"
        )
    check_float_dtypes(function, lhs=dtype, bias=bias_dtype)


def padding_name(function: str, padding: str, argument: str = "padding") -> str:
    """One of PADDING_NAMES, in upper case."""
    name = padding.upper()
    if name not in PADDING_NAMES:
        raise ValueError(
            f"{function}: {argument} must be one of {', '.join(PADDING_NAMES)} or (low, high) pairs, "
            f"got {padding!r}"
        )
    return name


def positive_int(function: str, name: str, value: Any) -> int:
    number = _index(function, name, value, value)
    if number < 1:
        raise ValueError(f"{function}: {name} must be at least 1, got {value!r}")
    return number


def positive_ints(function: str, name: str, value: Any, rank: int, shapes: str) -> tuple[int, ...]:
    """One int per spatial axis, each at least 1; a single int stands for all axes."""
    numbers = _ints(function, name, value, rank, shapes)
    _check_least(function, name, numbers, 1, value)
    return numbers


def int_pairs(function: str, name: str, value: Any, rank: int, shapes: str) -> Pairs:
    """One (low, high) pair of ints per spatial axis."""
    try:
        pairs = [tuple(pair) for pair in value]
    except TypeError:
        raise TypeError(
            f"{function}: {name} must be a string or (low, high) pairs, got {value!r}"
        ) from None
    if len(pairs) != rank:
        raise ValueError(
            f"{function}: {name} must have one (low, high) pair for each of {rank} spatial axes, "
            f"got {value!r} ({shapes})"
        )
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"{function}: {name} must be (low, high) pairs, got {value!r}")
    return tuple(
        (_index(function, name, a, value), _index(function, name, b, value)) for a, b in pairs
    )


def full_shape(function: str, name: str, value: Any, rank: int) -> Shape:
    """A whole logical shape given as an argument (x_shape, w_shape). Symbolic sizes pass through."""
    try:
        shape = tuple(value)
    except TypeError:
        raise TypeError(f"{function}: {name} must be a sequence of sizes, got {value!r}") from None
    if len(shape) != rank:
        raise ValueError(
            f"{function}: {name} must have {rank} entries like the arrays, got {_show(shape)}"
        )
    return tuple(_size(function, name, size, value) for size in shape)


def sizes(function: str, name: str, value: Any, rank: int, least: int, shapes: str) -> Shape:
    """A size for each of ``rank`` spatial axes, or one for all. Symbolic sizes pass through."""
    values = _per_axis(function, name, value, rank, shapes)
    sizes = tuple(_size(function, name, size, value) for size in values)
    _check_least(function, name, sizes, least, value)
    return sizes


def dilated(kernel: int, dilation: int) -> int:
    """Extent of a dilated kernel; a kernel without taps has none."""
    return 0 if _is_number(kernel) and kernel == 0 else (kernel - 1) * dilation + 1


def _windows(size: int, kernel: int, stride: int, pair: tuple[int, int], dilation: int) -> int:
    room = size + sum(pair) - dilated(kernel, dilation)
    return compat.at_least_zero(room // stride + 1)


def _logical(spec: tuple[int, ...], first: int, second: int, spatial: Shape) -> Shape:
    shape: list[int] = [0] * len(spec)
    for axis, size in zip(spec, (first, second, *spatial), strict=True):
        shape[axis] = size
    return tuple(shape)


def _ints(function: str, name: str, value: Any, rank: int, shapes: str) -> tuple[int, ...]:
    values = _per_axis(function, name, value, rank, shapes)
    return tuple(_index(function, name, number, value) for number in values)


def _per_axis(function: str, name: str, value: Any, rank: int, shapes: str) -> list[Any]:
    if isinstance(value, str):
        raise TypeError(f"{function}: {name} must be integers, got {value!r}")
    values = [value] * rank if np.ndim(value) == 0 else list(value)
    if len(values) != rank:
        raise ValueError(
            f"{function}: {name} must have one entry for each of {rank} spatial axes, got {value!r} "
            f"({shapes})"
        )
    return values


def _check_least(function: str, name: str, numbers: Shape, least: int, value: Any) -> None:
    if any(known_below(number, least) for number in numbers):
        raise ValueError(f"{function}: {name} must be at least {least} everywhere, got {value!r}")


def _size(function: str, name: str, size: Any, value: Any) -> Any:
    return size if jax.export.is_symbolic_dim(size) else _index(function, name, size, value)


def _index(function: str, name: str, number: Any, value: Any) -> int:
    if isinstance(number, (bool, np.bool_)):
        raise TypeError(f"{function}: {name} must be integers, got {value!r}")
    try:
        return operator.index(number)
    except TypeError:
        raise TypeError(f"{function}: {name} must be integers, got {value!r}") from None


def _is_number(size: Any) -> bool:
    return isinstance(size, (int, np.integer, float, np.floating))


def known_below(size: Any, bound: int) -> bool:
    """Whether ``size`` is below ``bound``; False for a symbolic size that may be either."""
    return _is_number(size) and size < bound


def _show(shape: Any) -> str:
    try:
        return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
    except TypeError:
        return repr(shape)

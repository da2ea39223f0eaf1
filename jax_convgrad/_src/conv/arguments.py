"""What users pass to the convolution family, checked and brought into one form.

Every message for bad input is made here or in `shapes`. A message names the function and the argument and
shows both shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from jax import lax

from jax_convgrad._src import hints
from jax_convgrad._src.conv.geometry import MAX_SPATIAL_RANK, ConvConfig, dilated
from jax_convgrad._src.dtypes import check_same_dtype
from jax_convgrad._src.shapes import (
    Pairs,
    Shape,
    int_pairs,
    ints,
    is_number,
    known_below,
    positive_int,
    positive_ints,
    show,
    sizes,
)

_Name = TypeVar("_Name", bound=str)

PADDING_NAMES = ("SAME", "SAME_LOWER", "VALID")


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

    ``names`` are the caller's names for the arguments, used in messages.

    Raises:
      TypeError: an argument is not of the right kind.
      ValueError: an argument has the wrong length or an impossible value.
    """
    numbers = make_dimension_numbers(function, x_shape, w_shape, dimension_numbers)
    rank = len(x_shape) - 2
    shapes = f"x has shape {show(x_shape)}, w has shape {show(w_shape)}"
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
        pads = lax.padtype_to_pads(sizes, kernel, strides, name)
        pairs = tuple((low, high) for low, high in pads)
    else:
        pairs = int_pairs(function, names[1], padding, rank, shapes)
    return ConvConfig(strides, pairs, dilation, groups, numbers)


def split_symbolic(config: ConvConfig) -> tuple[Pairs, ConvConfig]:
    """(padding to do beforehand, config with the rest): the symbolic pairs, and the numbers.

    "SAME" with a stride makes symbolic padding of a symbolic size. Handlers' attributes are numbers, so
    such axes are padded beforehand.
    """
    symbolic = [not all(map(is_number, pair)) for pair in config.padding]
    beforehand, rest = (
        tuple(
            pair if is_symbolic == wanted else (0, 0)
            for pair, is_symbolic in zip(config.padding, symbolic, strict=True)
        )
        for wanted in (True, False)
    )
    return beforehand, config.replace(padding=rest)


def make_dimension_numbers(
    function: str,
    x_shape: Shape,
    w_shape: Shape,
    dimension_numbers: Any,
    names: tuple[str, str] = ("x", "w"),
) -> lax.ConvDimensionNumbers:
    """``dimension_numbers`` as lax takes them, checked to be three permutations of the axes.

    ``names`` are the function's names for its image and its weights.
    """
    x, w = names
    shapes = f"{x} has shape {show(x_shape)}, {w} has shape {show(w_shape)}"
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
            f"{show(x_shape)}, rhs has shape {show(w_shape)}"
        )
    return f"N{letters}C", f"{letters}IO", f"N{letters}C"


def check_group_counts(
    function: str,
    x_shape: Shape,
    w_shape: Shape,
    numbers: lax.ConvDimensionNumbers,
    feature_group_count: int,
    batch_group_count: int,
    *,
    transposed: bool = False,
    padding: Any = "VALID",
) -> int:
    """The number of groups that lax's two group counts amount to, checked against the shapes.

    ``padding`` may still be unchecked: an error of the channels has the hint for it too.
    """
    shapes = f"lhs has shape {show(x_shape)}, rhs has shape {show(w_shape)}"
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
            f"{hints.layout(x_shape, w_shape, numbers, features, transposed=transposed)}"
            f"{hints.any_padding(padding, len(x_shape) - 2)}"
        )
    if out_channels % groups:
        raise ValueError(
            f"{function}: the {out_channels} output channels are not divisible by {groups} groups ({shapes})"
        )
    return groups


def check_bias(
    function: str, bias_shape: Shape, bias_dtype: Any, channels: int, dtype: Any
) -> None:
    """Raises unless ``bias`` is a vector with one element per output channel."""
    if tuple(bias_shape) != (channels,):
        raise ValueError(
            f"{function}: bias must have shape ({channels},), one element per output channel, "
            f"got {show(bias_shape)}"
        )
    check_same_dtype(function, lhs=dtype, bias=bias_dtype)


def padding_name(function: str, padding: str, argument: str = "padding") -> str:
    """One of PADDING_NAMES, in upper case."""
    name = padding.upper()
    if name not in PADDING_NAMES:
        raise ValueError(
            f"{function}: {argument} must be one of {', '.join(PADDING_NAMES)} or (low, high) pairs, "
            f"got {padding!r}{hints.padding_mode(padding)}"
        )
    return name


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
    shapes = f"the input's spatial shape is {show(in_spatial)}, the dilated kernel's {show(dilated_kernel)}"
    extra = ints(function, "output_padding", output_padding, rank, shapes)
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
            f"{function}: output_shape={show(output_shape)} fixes the size already, "
            f"output_padding={extra} must then be 0 ({shapes})"
        )
    wanted = sizes(function, "output_shape", output_shape, rank, 0, shapes)
    return tuple(
        _transposed_to_size(function, axis, n, k, s, d, pair, size, name)
        for axis, (n, k, s, d, pair, size) in enumerate(
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

    With 'SAME' the padding of the convolution underneath is split evenly, the odd element at the end
    ('SAME_LOWER': at the start). With 'VALID' and with explicit pairs the low side is kept and the high
    side is adjusted. A size is possible if a legal output_padding reaches it.
    """
    same = name in ("SAME", "SAME_LOWER")
    full = _transposed_extent(size, kernel, stride, (kernel - 1, kernel - 1))
    least = full if name is not None else _transposed_extent(size, kernel, stride, pair)
    more = difference(function, "output_shape", wanted, least)
    slack = max(stride, dilation) - 1
    if more > slack or (known_below(wanted, 1) if same else more < 0):
        raise ValueError(
            f"{function}: output_shape {wanted} is impossible on spatial axis {axis}: input size "
            f"{size} with dilated kernel {kernel}, stride {stride} and padding "
            f"{name or pair} allow {1 if same else least} to {least + slack}"
        )
    if same:
        cut = max(-more, 0)
        low_cut = cut // 2 if name == "SAME" else cut - cut // 2
        low = kernel - 1 - low_cut
    else:
        low = pair[0]
    return low, wanted - _transposed_extent(size, kernel, stride, (low, 0))


def difference(function: str, name: str, wanted: int, size: int) -> int:
    """``wanted - size``; ValueError if it is a symbolic number."""
    more = wanted - size
    if not is_number(more):
        raise ValueError(
            f"{function}: {name} {wanted} needs a padding that is not a known number: without padding the "
            f"size is {size}"
        )
    return more


def underlying_padding(padding: Pairs, dilated_kernel: Shape) -> Pairs:
    """Padding of the convolution whose adjoint has ``padding`` on its dilated input; an involution
    up to the rows that no window reads (see NOTE [Rows no window reads])."""
    return tuple(
        (k - 1 - low, k - 1 - high) for (low, high), k in zip(padding, dilated_kernel, strict=True)
    )


def check_wanted(
    function: str, wanted: Sequence[str], known: tuple[_Name, ...]
) -> tuple[_Name, ...]:
    """The names in ``wanted``, each once and in the order of ``known``.

    Raises:
      ValueError: ``wanted`` is a string or has a name that is not known.
    """
    names = None if isinstance(wanted, str) or not isinstance(wanted, Iterable) else [*wanted]
    if names is None or any(name not in known for name in names):
        shown = ", ".join(map(repr, known))
        raise ValueError(f"{function}: wanted must be a tuple of any of {shown}, got {wanted!r}")
    return tuple(name for name in known if name in names)

"""Hints for common mistakes: what a user of another library probably meant, at the end of an error."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

Shape = tuple[int, ...]
P = ParamSpec("P")
T = TypeVar("T")

# PyTorch's words for the arguments of each function.
CONV_KEYWORDS = {
    "stride": "window_strides=",
    "dilation": "rhs_dilation=",
    "groups": "feature_group_count=",
    "weight": "rhs=",
    "input": "lhs=",
}
OPERATOR_KEYWORDS = {"stride": "strides=", "weight": "w=", "input": "x="}
TRANSPOSE_KEYWORDS = {**CONV_KEYWORDS, "stride": "strides="}
RESIZE_KEYWORDS = {
    "align_corners": 'coordinate_mode="align_corners", or coordinate_mode="half_pixel" for False',
    "mode": "method=",
    "size": "shape=, the size of every axis",
    "scale_factor": "shape=, the size of every axis",
    "input": "image=",
}


def with_keyword_hints(
    words: dict[str, str], torch_function: str
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator: the error for one of PyTorch's keywords names this function's own keyword for it."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        known = inspect.signature(function).parameters

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            slips = [name for name in kwargs if name in words and name not in known]
            if slips:
                name = slips[0]
                raise TypeError(
                    f"{function.__name__}: unexpected keyword {name}=; here it is {words[name]} "
                    f"(jax_convgrad.torch.{torch_function} takes PyTorch's own keywords)"
                )
            return function(*args, **kwargs)

        return call

    return decorate


def any_padding(value: Any, rank: int) -> str:
    """The hint for an argument that is no padding, of either kind below."""
    if rank < 1:
        return ""
    return padding_mode(value) if isinstance(value, str) else padding(value, rank)


def padding(value: Any, rank: int) -> str:
    """The hint for ints that were given where (low, high) pairs are expected."""
    if isinstance(value, int) and not isinstance(value, bool):
        sides = [value] * rank
    elif (
        isinstance(value, (tuple, list))
        and len(value) == rank
        and all(isinstance(v, int) and not isinstance(v, bool) for v in value)
    ):
        sides = list(value)
    else:
        return ""
    return f"; PyTorch's padding={value!r} is padding={[(p, p) for p in sides]} here"


def padding_mode(value: str) -> str:
    """The hint for a mode of `jax.numpy.pad` or of PyTorch's padding_mode."""
    modes = {
        "reflect": "reflect",
        "symmetric": "symmetric",
        "replicate": "edge",
        "edge": "edge",
        "circular": "wrap",
        "wrap": "wrap",
    }
    mode = modes.get(value.lower())
    if mode is None:
        return ""
    return f'; pad first, with jnp.pad(x, ..., mode="{mode}"), and convolve with "VALID"'


def cast(dtypes: dict[str, Any]) -> str:
    """The hint for arrays of different floating dtypes, by their names: which to cast to the first's."""
    first, *others = dtypes
    casts = [f"{name}.astype({first}.dtype)" for name in others if dtypes[name] != dtypes[first]]
    return f"; cast one: {casts[0]}" if len(casts) == 1 else f"; cast them: {', '.join(casts)}"


def channels_last(name: str, shape: Shape, channels: int) -> str:
    """The hint for an array, named ``name``, whose channels are expected on axis 1 but may be last.

    A name that ends in "[None]" is that of an array which was given without its batch axis.
    """
    if len(shape) < 3 or shape[-1] != channels or all(size == channels for size in shape[2:]):
        return ""  # it may be a square image
    given = name.removesuffix("[None]")
    axis = 1 if given == name else 0
    return f"; are the channels of {given} last? Then pass jnp.moveaxis({given}, -1, {axis})"


def layout(
    x_shape: Shape,
    w_shape: Shape,
    numbers: Any,
    groups: int,
    *,
    transposed: bool = False,
    weights: str | None = "rhs",
) -> str:
    """The hint where input channels differ: the layout in which the arrays would fit, if there is one.

    ``weights`` is the function's name for its weights; None where it takes their shape alone.
    """
    rank = len(x_shape) - 2
    if not 1 <= rank <= 3:
        return ""
    letters = "DHW"[-rank:]
    lhs_spec, rhs_spec, out_spec = numbers
    image_last = f"N{letters}C"
    if lhs_spec[1] == 1 and (fitting := _orders_that_fit(x_shape[-1], w_shape, rhs_spec, groups)):
        numbers_last = (str((image_last, order, image_last)) for order in fitting)
        return (
            f"; is the image channels last? Then pass dimension_numbers={' or '.join(numbers_last)}"
        )
    if (
        not transposed
        and rhs_spec[:2] == (0, 1)
        and x_shape[lhs_spec[1]] == w_shape[-2] * groups
        and _is_kernel_first(w_shape)
    ):
        image, result = (_written(spec, f"NC{letters}") for spec in (lhs_spec, out_spec))
        flax = (image, f"{letters}IO", result)
        axes = (rank + 1, rank, *range(rank))
        turned = f", or {weights}.transpose{axes} for OI{letters}" if weights else ""
        return (
            f"; are these Flax's weights, {letters}IO? Then pass dimension_numbers={flax}{turned}"
        )
    in_axis = 0 if transposed else 1
    fits = w_shape[in_axis] * (1 if transposed else groups) in (x_shape[lhs_spec[1]], x_shape[1])
    if rhs_spec[1] == in_axis or not fits:
        return ""
    if transposed:
        function, order = f"conv_transpose{rank}d", f"IO{letters}"
        return f"; are these PyTorch's weights, {order}? jax_convgrad.torch.{function} takes them"
    axes = (*range(2, rank + 2), 1, 0)
    turned = f"pass {weights}.transpose{axes} for {letters}IO, or " if weights else ""
    return f"; are these PyTorch's weights, OI{letters}? Then {turned}use jax_convgrad.torch.conv{rank}d"


def _orders_that_fit(
    channels: int, w_shape: Shape, rhs_spec: tuple[int, ...], groups: int
) -> list[str]:
    """The orders of weights that fit an image's channels: kernel first, or channels first if asked for."""
    rank = len(w_shape) - 2
    letters = "DHW"[-rank:]
    kernel_first, channels_first = f"{letters}IO", f"OI{letters}"
    fits_kernel_first = channels == w_shape[-2] * groups
    fits_channels_first = rhs_spec[:2] == (0, 1) and channels == w_shape[1] * groups
    if fits_kernel_first and fits_channels_first:
        if _is_kernel_first(w_shape):
            return [kernel_first]
        if _is_kernel_first(w_shape[::-1]):
            return [channels_first]
    return [kernel_first] * fits_kernel_first + [channels_first] * fits_channels_first


def _is_kernel_first(w_shape: Shape) -> bool:
    """Whether the kernel's sizes come first in the shape, not last: kernels are smaller than channels are."""
    rank = len(w_shape) - 2
    if not all(isinstance(size, int) for size in w_shape):  # symbolic
        return False
    return max(w_shape[:rank]) < max(w_shape[-rank:])


def _written(spec: tuple[int, ...], names: str) -> str:
    """The letters of an array's axes, in their order. ``spec`` has the axis of each of ``names``."""
    return "".join(name for _, name in sorted(zip(spec, names, strict=True)))

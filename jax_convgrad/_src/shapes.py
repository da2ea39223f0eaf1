"""Shapes and numbers that users pass: the checks that convolutions and resizes share.

Sizes may be symbolic, as `jax.export` makes them: a check refuses only what it knows to be wrong.
"""

from __future__ import annotations

import operator
from typing import Any

import jax
import numpy as np

from jax_convgrad._src import hints

Shape = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]


def positive_int(function: str, name: str, value: Any) -> int:
    number = index(function, name, value, value)
    if number < 1:
        raise ValueError(f"{function}: {name} must be at least 1, got {value!r}")
    return number


def positive_ints(function: str, name: str, value: Any, rank: int, shapes: str) -> tuple[int, ...]:
    """One int per spatial axis, each at least 1; a single int stands for all axes."""
    numbers = ints(function, name, value, rank, shapes)
    check_min(function, name, numbers, 1, value)
    return numbers


def int_pairs(function: str, name: str, value: Any, rank: int, shapes: str) -> Pairs:
    """One (low, high) pair of ints per spatial axis."""
    try:
        pairs = [tuple(pair) for pair in value]
    except TypeError:
        raise TypeError(
            f"{function}: {name} must be a string or (low, high) pairs, got {value!r}"
            f"{hints.padding(value, rank)}"
        ) from None
    if len(pairs) != rank:
        raise ValueError(
            f"{function}: {name} must have one (low, high) pair for each of {rank} spatial axes, "
            f"got {value!r} ({shapes})"
        )
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"{function}: {name} must be (low, high) pairs, got {value!r}")
    return tuple(
        (index(function, name, a, value), index(function, name, b, value)) for a, b in pairs
    )


def full_shape(function: str, name: str, value: Any, rank: int) -> Shape:
    """A whole logical shape given as an argument (x_shape, w_shape). Symbolic sizes pass through."""
    try:
        shape = tuple(value)
    except TypeError:
        raise TypeError(f"{function}: {name} must be a sequence of sizes, got {value!r}") from None
    if len(shape) != rank:
        raise ValueError(
            f"{function}: {name} must have {rank} entries like the arrays, got {show(shape)}"
        )
    return tuple(size_or_symbol(function, name, size, value) for size in shape)


def sizes(function: str, name: str, value: Any, rank: int, least: int, shapes: str) -> Shape:
    """A size for each of ``rank`` spatial axes, or one for all. Symbolic sizes pass through."""
    values = per_axis(function, name, value, rank, shapes)
    sizes = tuple(size_or_symbol(function, name, size, value) for size in values)
    check_min(function, name, sizes, least, value)
    return sizes


def known_below(size: Any, bound: int) -> bool:
    """Whether ``size`` is below ``bound``; False for a symbolic size that may be either."""
    return is_number(size) and size < bound


def is_number(size: Any) -> bool:
    return isinstance(size, (int, np.integer, float, np.floating))


def show(shape: Any) -> str:
    try:
        return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
    except TypeError:
        return repr(shape)


def ints(function: str, name: str, value: Any, rank: int, shapes: str) -> tuple[int, ...]:
    values = per_axis(function, name, value, rank, shapes)
    return tuple(index(function, name, number, value) for number in values)


def per_axis(function: str, name: str, value: Any, rank: int, shapes: str) -> list[Any]:
    if isinstance(value, str):
        raise TypeError(f"{function}: {name} must be integers, got {value!r}")
    values = [value] * rank if np.ndim(value) == 0 else list(value)
    if len(values) != rank:
        raise ValueError(
            f"{function}: {name} must have one entry for each of {rank} spatial axes, got {value!r} "
            f"({shapes})"
        )
    return values


def check_min(function: str, name: str, numbers: Shape, least: int, value: Any) -> None:
    if any(known_below(number, least) for number in numbers):
        raise ValueError(f"{function}: {name} must be at least {least} everywhere, got {value!r}")


def size_or_symbol(function: str, name: str, size: Any, value: Any) -> Any:
    return size if jax.export.is_symbolic_dim(size) else index(function, name, size, value)


def index(function: str, name: str, number: Any, value: Any) -> int:
    if isinstance(number, (bool, np.bool_)):
        raise TypeError(f"{function}: {name} must be integers, got {value!r}")
    try:
        return operator.index(number)
    except TypeError:
        raise TypeError(f"{function}: {name} must be integers, got {value!r}") from None

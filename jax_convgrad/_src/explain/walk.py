"""Where in a traced program equations lie: how often they run, in which loops, for which source line."""

from __future__ import annotations

import dataclasses
import functools
import math
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.extend.core import Literal

from jax_convgrad._src import compat
from jax_convgrad._src.conv import backward, tangent

# Primitives that may be computed by parts, and the jaxprs of these.
_PARTS = {
    backward.conv_backward_p: backward.parts_of,
    tangent.conv_tangent_p: tangent.parts_of,
}


class SourceLine(NamedTuple):
    """A line of a Python file."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line} ({self.function})" if self.file else "?"


@dataclasses.dataclass(frozen=True)
class Found:
    """An equation and its surroundings.

    Attributes:
      equation: of the jaxpr.
      callers: the equations whose inner programs it lies in, outermost first.
      count: how often one call of the program runs it, None where that is not known.
      within: the loops and branches around it, outermost first.
      scope: the names of `jax.named_scope` around it, as modules of Flax and Haiku set them.
      backward: whether it came out of a transposition.
      used: whether anything depends on its results; XLA drops what nothing depends on.
      partitioned: whether XLA divides the program here among several devices.
      operations_only: whether it can divide operations alone there, no calls.
      kernel_reversed: whether its second operand is reversed in front of it, in the same program.
    """

    equation: Any
    callers: tuple[Any, ...]
    count: int | None
    within: tuple[str, ...]
    scope: str
    backward: bool
    used: bool
    partitioned: bool
    operations_only: bool
    kernel_reversed: bool

    @property
    def source(self) -> SourceLine:
        """The innermost call outside of JAX and this package, and of installed packages if there is one.

        An equation knows its nearest calls; for those further out its callers are asked.
        """
        calls = [
            SourceLine(file, line, function.rpartition("<locals>.")[2])
            for equation in (self.equation, *self.callers[::-1])
            for file, line, function in compat.frames(equation)
            if not file.startswith(_internal())
        ]
        own = (call for call in calls if not _is_installed(call.file))
        return next(own, calls[0] if calls else SourceLine("", 0, ""))


@functools.cache
def _internal() -> tuple[str, ...]:
    import jaxlib

    theirs = (Path(module.__file__ or "").parent for module in (jax, jaxlib))
    return tuple(f"{folder}/" for folder in (*theirs, Path(__file__).parents[2]))


def _is_installed(file: str) -> bool:
    """Whether a file belongs to an installed package or to Python."""
    parts = Path(file).parts
    in_package = "site-packages" in parts or "dist-packages" in parts
    return in_package or file.startswith((f"{sysconfig.get_path('stdlib')}/", "<frozen"))


@dataclasses.dataclass(frozen=True)
class _Place:
    """The surroundings of a jaxpr."""

    callers: tuple[Any, ...] = ()
    count: int | None = 1
    within: tuple[str, ...] = ()
    names: tuple[tuple[str, str], ...] = ()
    manual: frozenset[Any] = frozenset()
    partitioned: bool = False


def find(
    jaxpr: Any, wanted: Callable[[Any, bool], bool], shardings: Sequence[Any] = ()
) -> list[Found]:
    """All equations of a program that are wanted, in order, those of inner programs in their places.

    An inner program that is called several times is found several times. What lies inside a wanted
    equation is not looked at.

    Args:
      jaxpr: the program.
      wanted: of an equation, and of whether XLA divides the program there among several devices.
      shardings: those of the program's arguments and results.
    """
    divided = any(map(_is_divided, shardings)) or _names_devices(jaxpr)
    used = [True] * len(jaxpr.outvars)
    return list(_walk(jaxpr, wanted, used, _Place(partitioned=divided)))


def _walk(
    jaxpr: Any, wanted: Callable[[Any, bool], bool], needed: Sequence[bool], place: _Place
) -> Iterator[Found]:
    makers = {v: equation for equation in jaxpr.eqns for v in equation.outvars}
    for equation, results in zip(jaxpr.eqns, _needed_results(jaxpr, needed), strict=True):
        if equation.primitive is backward.conv_backward_p and any(results):
            narrowed = compat.without_unused_results(equation, results)
            if narrowed is not equation:
                equation, results = narrowed, [True] * len(narrowed.outvars)
        used = any(results) or bool(equation.effects)
        names = place.names + tuple(compat.name_stack(equation))
        if wanted(equation, place.partitioned):
            yield Found(
                equation,
                place.callers,
                place.count,
                place.within,
                "/".join(name for kind, name in names if kind == "scope"),
                ("transform", "transpose") in names,
                any(results),
                place.partitioned,
                place.partitioned and (bool(place.manual) or not compat.has_shardy()),
                len(equation.invars) > 1 and _is_reversed(equation.invars[1], makers),
            )
            continue
        for inner in inner_jaxprs(equation):
            same = equation.primitive in _PARTS or compat.is_transparent(equation)
            same = same and len(inner.outvars) == len(equation.outvars)
            inside = results if same else [used] * len(inner.outvars)
            yield from _walk(inner, wanted, inside, _enter(equation, place, names))


# What moves elements and keeps their order along each axis.
_ORDERLY = {"transpose", "reshape", "convert_element_type", "optimization_barrier", "copy"}


def _is_reversed(variable: Any, makers: dict[Any, Any]) -> bool:
    """Whether an array is another one reversed, seen through what keeps the order of its elements."""
    while not isinstance(variable, Literal) and variable in makers:
        equation = makers[variable]
        if equation.primitive is lax.rev_p:
            return True
        if equation.primitive.name not in _ORDERLY:
            return False
        variable = equation.invars[0]
    return False


def _needed_results(jaxpr: Any, needed: Sequence[bool]) -> list[list[bool]]:
    """For each equation which of its results something depends on."""
    pairs = zip(jaxpr.outvars, needed, strict=True)
    live = {v for v, is_needed in pairs if is_needed and not isinstance(v, Literal)}
    results = []
    for equation in reversed(jaxpr.eqns):
        flags = [bool(equation.effects) or v in live for v in equation.outvars]
        if any(flags) or equation.effects:
            live.update(v for v in equation.invars if not isinstance(v, Literal))
        results.append(flags)
    return results[::-1]


def _enter(equation: Any, place: _Place, names: tuple[tuple[str, str], ...]) -> _Place:
    """The surroundings of the programs inside an equation."""
    changes: dict[str, Any] = {"names": names, "callers": (*place.callers, equation)}
    loop = compat.loop(equation)
    if loop is not None:
        description, count = loop
        changes["within"] = (*place.within, description)
        if place.count is None or count is None:
            changes["count"] = None
        else:
            changes["count"] = place.count * count
    manual = compat.manual_axes(equation)
    if manual is not None:
        mesh, axes = manual
        changes["manual"] = inside = place.manual | axes
        # XLA divides it along the other axes, of which those with one device do not count.
        others = (size for axis, size in mesh.shape.items() if axis not in inside)
        changes["partitioned"] = math.prod(others) > 1
    return dataclasses.replace(place, **changes)


def inner_jaxprs(equation: Any) -> Iterator[Any]:
    """The programs among an equation's parameters; for a whole backward pass or tangent, its parts."""
    if (parts_of := _PARTS.get(equation.primitive)) is not None:
        yield parts_of(equation)
        return
    for value in equation.params.values():
        for entry in value if isinstance(value, tuple | list) else (value,):
            jaxpr = getattr(entry, "jaxpr", entry)
            if hasattr(jaxpr, "eqns"):
                yield jaxpr


def _names_devices(jaxpr: Any) -> bool:
    """Whether a sharding over several devices is named anywhere outside of `shard_map`."""
    for equation in jaxpr.eqns:
        if any(map(_is_divided, compat.equation_shardings(equation))):
            return True
        if compat.manual_axes(equation) is None and any(
            map(_names_devices, inner_jaxprs(equation))
        ):
            return True
    return False


def _is_divided(sharding: Any) -> bool:
    return isinstance(sharding, jax.sharding.Sharding) and sharding.num_devices > 1

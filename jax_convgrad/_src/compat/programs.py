"""Traced programs, as `explain` reads them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental.xla_metadata import set_xla_metadata


@contextlib.contextmanager
def separate_traces() -> Iterator[None]:
    """What is traced inside is traced anew, and what is traced outside afterwards as well.

    Metadata for XLA belongs to the key by which JAX remembers traced functions.
    """
    with set_xla_metadata(jax_convgrad="explain"):
        yield


def trace(function: Any, *arguments: Any) -> tuple[Any, list[Any]]:
    """The jaxpr of a function, which may be jitted already, and the shardings that its `jit` names.

    The latter are read from the parameters of `jax.stages.Traced`.
    """
    jitted = function if isinstance(function, jax.stages.Wrapped) else _jit(function)
    traced = jitted.trace(*arguments)
    if not isinstance(traced, jax.stages.Traced):  # by another library's jit, as Flax's
        traced = _jit(function).trace(*arguments)
    params = getattr(traced, "_params", {})
    return traced.jaxpr.jaxpr, [s for name in _SHARDINGS for s in params.get(name, ())]


def _jit(function: Any) -> Any:
    """`jax.jit` of any callable, also one that cannot be hashed, as Equinox's."""

    @functools.wraps(function, updated=())
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    return jax.jit(call)


_SHARDINGS = ("in_shardings", "out_shardings")


def equation_shardings(equation: Any) -> list[Any]:
    """The shardings that an equation names: a `jit` inside, or a constraint."""
    named = [s for name in _SHARDINGS for s in equation.params.get(name, ())]
    return [*named, equation.params.get("sharding")]


def manual_axes(equation: Any) -> tuple[Any, frozenset[Any]] | None:
    """Mesh and newly manual axes of a `shard_map` equation, None for others."""
    if equation.primitive.name != "shard_map":
        return None
    mesh, params = equation.params["mesh"], equation.params
    # The second is its name in jax 0.10.0.
    axes = params.get("newly_manual_axes", params.get("manual_axes", mesh.axis_names))
    return mesh, frozenset(axes)


def frames(equation: Any) -> list[tuple[str, int, str]]:
    """(file, line, function) of the Python calls that made an equation, innermost first."""
    traceback = equation.source_info.traceback
    return [(f.file_name, f.line_num, f.function_name) for f in getattr(traceback, "frames", ())]


def name_stack(equation: Any) -> list[tuple[str, str]]:
    """("scope" or "transform", name) pairs around an equation in its own jaxpr, outermost first."""
    return [(type(e).__name__.lower(), e.name) for e in equation.source_info.name_stack.stack]


def defined_in(jaxpr: Any) -> str:
    """The file of the function that a jaxpr was traced from; "" where it is not known."""
    info = getattr(jaxpr, "debug_info", None)
    return getattr(info, "func_filename", None) or ""

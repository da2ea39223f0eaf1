"""Traced programs, as `explain` reads them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import primitives

from jax_convgrad._src.compat.features import TRACED_PROGRAMS

_set_xla_metadata: Any = None
with contextlib.suppress(ImportError):
    from jax.experimental.xla_metadata import set_xla_metadata as _set_xla_metadata


@contextlib.contextmanager
def separate_traces() -> Iterator[None]:
    """Forces a new trace of what is traced inside, and of the same functions outside afterwards.

    Metadata for XLA is part of the key under which JAX caches traced functions.
    """
    if _set_xla_metadata is not None:
        with _set_xla_metadata(jax_convgrad="explain"):
            yield
        return
    jax.clear_caches()
    try:
        yield
    finally:
        jax.clear_caches()


def trace(function: Any, *arguments: Any) -> tuple[Any, list[Any]]:
    """The jaxpr of a function, which may be jitted already, and the shardings that its `jit` names.

    The latter are read from the parameters of `jax.stages.Traced`.
    """
    traced = function.trace(*arguments) if isinstance(function, jax.stages.Wrapped) else None
    if not isinstance(traced, jax.stages.Traced):  # no jit, or another library's, such as Flax's
        traced = _trace_objects(function, arguments)
    params = TRACED_PROGRAMS.read(traced, "_params", {})
    return traced.jaxpr.jaxpr, [s for name in _SHARDINGS for s in params.get(name, ())]


def jaxpr_of(function: Any, equation: Any) -> Any:
    """The jaxpr of a function of an equation's operands, with their dtypes whatever JAX has enabled."""
    operands = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars]
    with jax.enable_x64(True):
        return jax.make_jaxpr(function)(*operands).jaxpr


def _trace_objects(function: Any, arguments: tuple[Any, ...]) -> Any:
    """Traces a function of pytrees with leaves that are not arrays, such as Equinox's modules.

    Such leaves are constants. Objects that the function updates in place, as a step under Flax's `nnx.jit`
    does, count as results as well.
    """
    leaves, structure = jax.tree.flatten(arguments)
    traced = [_is_array(leaf) for leaf in leaves]

    @functools.wraps(function, updated=())
    def call(arrays: list[Any]) -> list[Any]:
        given = iter(arrays)
        all_leaves = [
            next(given) if is_traced else leaf
            for leaf, is_traced in zip(leaves, traced, strict=True)
        ]
        objects = jax.tree.unflatten(structure, all_leaves)
        result = function(*objects)
        return [leaf for leaf in jax.tree.leaves((result, objects)) if _is_array(leaf)]

    arrays = [leaf for leaf, is_traced in zip(leaves, traced, strict=True) if is_traced]
    return jax.jit(call).trace(arrays)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct | np.ndarray | np.generic)


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
    traceback = TRACED_PROGRAMS.read(equation, "source_info.traceback")
    return [(f.file_name, f.line_num, f.function_name) for f in getattr(traceback, "frames", ())]


def name_stack(equation: Any) -> list[tuple[str, str]]:
    """("scope" or "transform", name) pairs around an equation in its own jaxpr, outermost first."""
    stack = TRACED_PROGRAMS.read(equation, "source_info.name_stack.stack", ())
    return [(type(e).__name__.lower(), e.name) for e in stack]


# Equations whose inner program has the same results as the equation, one for one.
_TRANSPARENT = frozenset(
    "jit closed_call core_call checkpoint remat remat2 cond shard_map custom_jvp_call "
    "custom_vjp_call".split()
)


def is_transparent(equation: Any) -> bool:
    """Whether the results of an equation's inner programs are the equation's own, one for one."""
    return equation.primitive.name in _TRANSPARENT


def loop(equation: Any) -> tuple[str, int | None] | None:
    """A loop or branch in a few words, and how often its body runs; None for other equations."""
    params = equation.params
    if equation.primitive is lax.scan_p:
        return f"scan of {params['length']}", params["length"]
    if equation.primitive is lax.while_p:
        return "while", None
    if equation.primitive is lax.cond_p:
        return f"one of {len(params['branches'])} branches", 1
    return None


def is_jax_image_resize(equation: Any) -> bool:
    """Whether an equation calls the jitted function inside `jax.image.resize`."""
    if equation.primitive is not primitives.jit_p:
        return False
    if "_resize" not in str(equation.params.get("name")):
        return False
    jaxpr = getattr(equation.params.get("jaxpr"), "jaxpr", None)
    file = TRACED_PROGRAMS.read(jaxpr, "debug_info.func_filename") or ""
    return file.replace("\\", "/").endswith("/jax/_src/image/scale.py")

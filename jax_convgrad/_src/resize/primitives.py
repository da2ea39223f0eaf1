"""The primitive behind every resize: bands applied along up to three axes of one array.

    resample(x; bands, axes) -> y        its transpose: resample(dy; transposed bands, axes) -> dx

The map is linear, and its transpose is the same map with other tables, so derivatives of any order in both
modes stay inside it. The tables are in the parameter ``problem`` (`ResampleProblem`) and are not operands:
transposition must be able to read them, and they become constants of the program when it is lowered. A
resize whose scale is traced has no table and does not come here (see api.py).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from jax_convgrad._src import compat
from jax_convgrad._src.dispatch.decide import decide
from jax_convgrad._src.dispatch.devices import Target
from jax_convgrad._src.dispatch.problem import ResampleProblem
from jax_convgrad._src.dtypes import check_float_dtypes
from jax_convgrad._src.resize import sharding
from jax_convgrad._src.resize.bands import Band
from jax_convgrad._src.resize.lowering import emit
from jax_convgrad._src.sharding import custom_partitioning

MAX_AXES = 3

resample_p = Primitive("resample")


def resample(x: Array, bands: tuple[Band, ...], axes: tuple[int, ...]) -> Array:
    """Binds resample_p; ``axes`` are ascending and at most MAX_AXES."""
    return _bind(x, ResampleProblem(x.shape, np.dtype(x.dtype), tuple(bands), tuple(axes)))


def _bind(x: Array, problem: ResampleProblem) -> Array:
    y: Array = resample_p.bind(x, problem=problem)
    return y


def _abstract(x: Any, *, problem: ResampleProblem) -> Any:
    dtype = check_float_dtypes("resample", x=x.dtype)
    axes, bands = problem.axes, problem.bands
    if tuple(x.shape) != tuple(problem.shape) or dtype != problem.dtype:
        raise ValueError(
            f"resample: x is {dtype} of shape {x.shape}, the problem's {problem.dtype} of shape "
            f"{problem.shape}"
        )
    if not 1 <= len(axes) <= MAX_AXES or list(axes) != sorted(set(axes)):
        raise ValueError(f"resample: axes must be 1 to {MAX_AXES} ascending positions, got {axes}")
    if axes[0] < 0 or axes[-1] >= len(x.shape):
        raise ValueError(f"resample: x has shape {x.shape} and does not have the axes {axes}")
    for band, axis in zip(bands, axes, strict=True):
        if x.shape[axis] != band.size:
            raise ValueError(
                f"resample: axis {axis} of x has {x.shape[axis]} elements, its band reads "
                f"{band.size} (x has shape {x.shape})"
            )
    # An update of the operand's abstract value, never a fresh one: that carries shard_map's varying
    # axes. In an Explicit mesh an axis that is resized comes out whole.
    changes: dict[str, Any] = {}
    split = compat.partitions(x)
    if split is not None:
        entries = tuple(None if axis in axes else entry for axis, entry in enumerate(split))
        changes["sharding"] = compat.with_partitions(x, entries)
    return x.update(shape=problem.result_shape, weak_type=False, **changes)


def _transpose(ct: Any, x: Any, *, problem: ResampleProblem) -> list[Any]:
    if type(ct) is ad.Zero:
        return [ad.Zero(x.aval)]
    transposed = dataclasses.replace(problem.transposed, dtype=np.dtype(ct.dtype))
    return [compat.reshard_like(_bind(ct, transposed), x.aval)]


def _batch(operands: Any, dims: Any, *, problem: ResampleProblem) -> tuple[Array, int]:
    # The batch becomes the outermost axis, which the handlers fold into those in front.
    (x,), (dim,) = operands, dims
    x = jnp.moveaxis(x, dim, 0)
    axes = tuple(axis + 1 for axis in problem.axes)
    return _bind(x, dataclasses.replace(problem, shape=x.shape, axes=axes)), 0


def _lower(platform: str | None, ctx: Any, x: Any, *, problem: ResampleProblem) -> Any:
    """Decides, and emits: the whole resize, or each device's shard of it."""
    custom_calls = not compat.is_partitioned_without_custom_calls(ctx)
    decision = decide(problem, Target.of(platform, custom_calls))
    # Profiles show the operator's name, whatever it is lowered to.
    run = jax.named_scope(resample_p.name)(functools.partial(emit, decision))
    make_call = None
    if platform is not None:
        make_call = functools.partial(sharding.partitioned_call, problem, decision)
    return custom_partitioning.lower_fun(run, make_call)(ctx, x)


resample_p.def_impl(functools.partial(compat.apply_primitive, resample_p))
resample_p.def_abstract_eval(_abstract)
ad.deflinear2(resample_p, _transpose)
compat.differentiate_like(resample_p, lax.neg_p)
batching.primitive_batchers[resample_p] = _batch
for _platform in (None, "cpu", "cuda"):
    compat.register_lowering(resample_p, functools.partial(_lower, _platform), platform=_platform)

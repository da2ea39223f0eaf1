"""The primitive behind every resize: bands applied along up to three axes of one array.

    resample(x; bands, axes) -> y        its transpose: resample(dy; transposed bands, axes) -> dx

Linear, and its transpose is itself with other tables, so derivatives of any order in both modes stay
inside it. The tables are parameters, not operands: a transposition must be able to read them, and they
become constants of the program when it is lowered. A resize whose scale is traced has no table and does
not come here (see `resize`).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jax_convgrad._src import compat
from jax_convgrad._src.dispatch import routes
from jax_convgrad._src.dispatch.routes import Route
from jax_convgrad._src.dtypes import check_float_dtypes
from jax_convgrad._src.resize import emit_xla
from jax_convgrad._src.resize.bands import Band
from jax_convgrad._src.runtime import registry
from jax_convgrad._src.sharding import solver

MAX_AXES = 3

resample_p = Primitive("resample")


def resample(x: Array, bands: tuple[Band, ...], axes: tuple[int, ...]) -> Array:
    """Binds resample_p; ``axes`` are ascending and at most MAX_AXES."""
    return resample_p.bind(x, bands=tuple(bands), axes=tuple(axes))


def _result_shape(
    shape: tuple[int, ...], bands: tuple[Band, ...], axes: tuple[int, ...]
) -> tuple[int, ...]:
    result = list(shape)
    for band, axis in zip(bands, axes, strict=True):
        result[axis] = band.out_size
    return tuple(result)


def _abstract(x: Any, *, bands: tuple[Band, ...], axes: tuple[int, ...]) -> Any:
    check_float_dtypes("resample", x=x.dtype)
    if not 1 <= len(axes) <= MAX_AXES or list(axes) != sorted(set(axes)):
        raise ValueError(f"resample: axes must be 1 to {MAX_AXES} ascending positions, got {axes}")
    if axes[0] < 0 or axes[-1] >= len(x.shape):
        raise ValueError(f"resample: x has shape {x.shape}, no axes {axes}")
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
    return x.update(shape=_result_shape(x.shape, bands, axes), weak_type=False, **changes)


def _transpose(ct: Any, x: Any, *, bands: tuple[Band, ...], axes: tuple[int, ...]) -> list[Any]:
    if type(ct) is ad.Zero:
        return [ad.Zero(x.aval)]
    dx = resample(ct, tuple(band.transpose for band in bands), axes)
    return [compat.reshard_like(dx, x.aval)]


def _batch(
    operands: Any, dims: Any, *, bands: tuple[Band, ...], axes: tuple[int, ...]
) -> tuple[Array, int]:
    # The batch becomes the outermost axis, which the handlers fold into those in front.
    (x,), (dim,) = operands, dims
    return resample(jnp.moveaxis(x, dim, 0), bands, tuple(axis + 1 for axis in axes)), 0


def _implementation(
    platform: str | None, x: Array, *, bands: tuple[Band, ...], axes: tuple[int, ...]
) -> Array:
    shape = _result_shape(x.shape, bands, axes)
    if 0 in x.shape or 0 in shape:
        return jnp.zeros(shape, x.dtype)
    route = choose_route(platform, x, bands, axes, compat.operations_only())
    if route.name == routes.NATIVE:
        return _call(x, shape, bands, axes)
    return emit_xla.resample(platform, x, bands=bands, axes=axes)


def choose_route(
    platform: str | None,
    x: Any,
    bands: tuple[Band, ...],
    axes: tuple[int, ...],
    operations_only: bool,
) -> Route:
    """Who does a resample: the chosen route, or plain lax where that cannot be.

    ``x``: anything with a shape and a dtype.
    ``operations_only``: XLA divides the program among devices, and cannot divide a call there.
    """
    if operations_only:
        return routes.OPERATIONS_ONLY
    copies = all(band.is_selection for band in bands)
    grows = all(band.out_size >= band.size for band in bands)
    route = routes.choose_resample(platform, x.dtype, copies, grows)
    if route.name == routes.NATIVE:
        assert platform is not None
        if not registry.require(platform).serves(registry.RESAMPLE_TARGET, x.dtype):
            return Route("xla", "no handler")
    return route


def _call(
    x: Array, shape: tuple[int, ...], bands: tuple[Band, ...], axes: tuple[int, ...]
) -> Array:
    """The handler of the platform that is being lowered for. All arrays are row-major."""
    wide = np.float64 if x.dtype == np.float64 else np.float32
    tables = [table for band in bands for table in (band.start, band.weights.astype(wide))]
    call = jax.ffi.ffi_call(registry.RESAMPLE_TARGET, jax.ShapeDtypeStruct(shape, x.dtype))
    return call(x, *tables, axes=np.asarray(axes, np.int64))


resample_p.def_impl(functools.partial(compat.apply_primitive, resample_p))
resample_p.def_abstract_eval(_abstract)
ad.deflinear2(resample_p, _transpose)
compat.differentiate_like(resample_p, lax.neg_p)
batching.primitive_batchers[resample_p] = _batch
for _platform in (None, "cpu", "cuda"):
    _here = jax.named_scope(resample_p.name)(functools.partial(_implementation, _platform))
    _parts = None if _platform is None else functools.partial(solver.resample, _here, _platform)
    mlir.register_lowering(resample_p, compat.lower_fun(_here, _parts), platform=_platform)

"""The three bilinear primitives of the convolution family, closed under every transformation.

    conv_fprop(x, w) -> y        conv_dgrad(dy, w; x_shape) -> dx        conv_wgrad(x, dy; w_shape) -> dw

With one geometry each one's derivatives are the other two, so JVP and transposition stay inside the
family at every order. A batched operand folds into the batch or the channels, two into the groups.
The lowering takes out what stride and dilation have in common (`subsample`) and runs what `routes`
names. Every function here checks its shapes through `shapes`.

Parameters of all three: ``config`` (ConvConfig), ``precision`` (as lax has it: JAX's default is asked for
where the operator is called, and not again), and ``preferred_element_type`` (dtype of the result); dgrad
adds ``x_shape``, wgrad ``w_shape``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jax_convgrad._src import compat
from jax_convgrad._src.conv import emit_ffi, emit_gemm, emit_xla
from jax_convgrad._src.conv.geometry import ConvConfig, ConvGeometry
from jax_convgrad._src.conv.subsample import subsample
from jax_convgrad._src.dispatch import routes
from jax_convgrad._src.dispatch.routes import Route
from jax_convgrad._src.dtypes import check_float_dtypes, wider_dtype
from jax_convgrad._src.runtime import registry
from jax_convgrad._src.shapes import Shape
from jax_convgrad._src.sharding import solver

conv_fprop_p = Primitive("conv_fprop")
conv_dgrad_p = Primitive("conv_dgrad")
conv_wgrad_p = Primitive("conv_wgrad")


def conv_fprop(
    x: Array, w: Array, config: ConvConfig, precision: Any, preferred_element_type: Any
) -> Array:
    """Binds conv_fprop_p, operands brought to the same varying mesh axes."""
    x, w = compat.match_varying(x, w)
    return conv_fprop_p.bind(
        x,
        w,
        config=config,
        precision=compat.canonical_precision(precision),
        preferred_element_type=jnp.dtype(preferred_element_type),
    )


def conv_dgrad(
    dy: Array,
    w: Array,
    x_shape: Shape,
    config: ConvConfig,
    precision: Any,
    preferred_element_type: Any,
) -> Array:
    """Binds conv_dgrad_p, operands brought to the same varying mesh axes."""
    dy, w = compat.match_varying(dy, w)
    return conv_dgrad_p.bind(
        dy,
        w,
        x_shape=tuple(x_shape),
        config=config,
        precision=compat.canonical_precision(precision),
        preferred_element_type=jnp.dtype(preferred_element_type),
    )


def conv_wgrad(
    x: Array,
    dy: Array,
    w_shape: Shape,
    config: ConvConfig,
    precision: Any,
    preferred_element_type: Any,
) -> Array:
    """Binds conv_wgrad_p, operands brought to the same varying mesh axes."""
    x, dy = compat.match_varying(x, dy)
    return conv_wgrad_p.bind(
        x,
        dy,
        w_shape=tuple(w_shape),
        config=config,
        precision=compat.canonical_precision(precision),
        preferred_element_type=jnp.dtype(preferred_element_type),
    )


# Abstract evaluation. Results are updates of an operand's abstract value, never fresh ones: that is
# what carries the varying axes of shard_map.


def _conv_fprop_abstract(x: Any, w: Any, **params: Any) -> Any:
    check_float_dtypes("conv_fprop", x=x.dtype, w=w.dtype)
    geometry = ConvGeometry.make("conv_fprop", params["config"], x.shape, w.shape)
    return _result("conv_fprop", x, w, geometry.y_shape, params)


def _conv_dgrad_abstract(dy: Any, w: Any, **params: Any) -> Any:
    check_float_dtypes("conv_dgrad", dy=dy.dtype, w=w.dtype)
    geometry = ConvGeometry.make("conv_dgrad", params["config"], params["x_shape"], w.shape)
    geometry.check_dy("conv_dgrad", dy.shape)
    return _result("conv_dgrad", dy, w, geometry.x_shape, params)


def _conv_wgrad_abstract(x: Any, dy: Any, **params: Any) -> Any:
    check_float_dtypes("conv_wgrad", x=x.dtype, dy=dy.dtype)
    geometry = ConvGeometry.make("conv_wgrad", params["config"], x.shape, params["w_shape"])
    geometry.check_dy("conv_wgrad", dy.shape)
    return _result("conv_wgrad", x, dy, geometry.w_shape, params)


def _result(operator: str, first: Any, second: Any, shape: Shape, params: dict[str, Any]) -> Any:
    """The abstract result: the first operand with another shape and dtype.

    In an Explicit mesh the shardings of axes that the result has too are carried over to it. What is
    summed over comes out whole: here, unlike in `check_shardings`, that is never ambiguous, because a
    derivative is brought to the sharding of what it is the derivative of.
    """
    if compat.varying_axes(first) != compat.varying_axes(second):
        raise ValueError(
            f"{operator}: operands vary over different mesh axes, {set(compat.varying_axes(first))} and "
            f"{set(compat.varying_axes(second))}; bring them together with jax.lax.pcast"
        )
    changes: dict[str, Any] = {"shape": tuple(shape), "dtype": params["preferred_element_type"]}
    placed = _placed(first, second)
    if placed is not None:
        division = getattr(solver, operator)(None, None, first, second, **params)
        split, _ = division.carry(
            compat.mesh_sizes(placed), [*map(compat.split_of, (first, second))]
        )
        changes["sharding"] = compat.with_split(placed, split)
    return first.update(weak_type=False, **changes)


def _placed(*avals: Any) -> Any:
    """The first of the abstract values that has a sharding on an Explicit mesh, None if none has."""
    return next((aval for aval in avals if compat.is_placed(aval)), None)


def check_shardings(operator: str, first: Array, second: Array, **params: Any) -> None:
    """Refuses operands on an Explicit mesh of which it is not clear how the result should lie.

    So it is where a mesh axis splits what is summed over (but the batch and the spatial axes in a weight
    gradient), or different factors of the two operands, or an axis that it does not divide.

    Raises:
      ShardingTypeError: as `jax.lax.conv_general_dilated` does.
    """
    avals = jax.typeof(first), jax.typeof(second)
    placed = _placed(*avals)
    if placed is None:
        return
    division = getattr(solver, operator)(None, None, *avals, **params)
    sizes = compat.mesh_sizes(placed)
    # An axis of one device splits nothing, wherever it is named.
    splits = [
        tuple(tuple(name for name in names if sizes[name] > 1) for names in compat.split_of(aval))
        for aval in avals
    ]
    _, moved = division.carry(sizes, splits)
    summed = () if operator == "conv_wgrad" else division.summed_over(sizes, splits)
    if moved or summed:
        shown = " and ".join(f"{aval.shape} split as {compat.partitions(aval)}" for aval in avals)
        reason = (
            f"the sum over axes of the mesh {summed} could lie in several ways"
            if summed
            else "they cannot both stay as they are"
        )
        raise compat.ShardingTypeError(
            f"{operator}: it is ambiguous how the result of operands {shown} should lie, because {reason}; "
            "bring them with jax.reshard to where they should be"
        )


# Derivatives. A cotangent has the dtype of the result it belongs to, which preferred_element_type may
# have made wider than the operands: the product is then taken in the wider one and rounded once.


def _widened(
    bind: Callable[..., Array],
    target: Any,
    first: Array,
    second: Array,
    *shape: Shape,
    **params: Any,
) -> Array:
    wide = wider_dtype(first.dtype, second.dtype)
    first, second = compat.cast(first, wide), compat.cast(second, wide)
    result = bind(first, second, *shape, params["config"], params["precision"], wide)
    return compat.reshard_like(compat.cast(result, target.dtype), target)


def _conv_fprop_transpose_x(ct: Array, x: Any, w: Array, **params: Any) -> Array:
    return _widened(conv_dgrad, x.aval, ct, w, x.aval.shape, **params)


def _conv_fprop_transpose_w(ct: Array, x: Array, w: Any, **params: Any) -> Array:
    return _widened(conv_wgrad, w.aval, x, ct, w.aval.shape, **params)


def _conv_dgrad_transpose_dy(
    ct: Array, dy: Any, w: Array, *, x_shape: Shape, **params: Any
) -> Array:
    return _widened(conv_fprop, dy.aval, ct, w, **params)


def _conv_dgrad_transpose_w(
    ct: Array, dy: Array, w: Any, *, x_shape: Shape, **params: Any
) -> Array:
    return _widened(conv_wgrad, w.aval, ct, dy, w.aval.shape, **params)


def _conv_wgrad_transpose_x(
    ct: Array, x: Any, dy: Array, *, w_shape: Shape, **params: Any
) -> Array:
    return _widened(conv_dgrad, x.aval, dy, ct, x.aval.shape, **params)


def _conv_wgrad_transpose_dy(
    ct: Array, x: Array, dy: Any, *, w_shape: Shape, **params: Any
) -> Array:
    return _widened(conv_fprop, dy.aval, x, ct, **params)


# Batching. `_fold` merges a mapped axis into another one, inside each of `groups` equal parts of it;
# `_unfold` takes it out again and says where it then is. With both operands mapped the examples become
# groups. Arrays whose examples lie beside the axis already are not moved, and results are left as they
# come: what sums over the examples of a gradient, or convolves them again, then reads them in place.


def _fold(array: Array, mapped: int, axis: int, groups: int = 1) -> Array:
    """``axis`` is counted as in one example."""
    if groups > 1:
        place = axis if mapped > axis else axis + 1
        shape = array.shape
        split = (groups, shape[place] // groups)
        array = array.reshape(*shape[:place], *split, *shape[place + 1 :])
        mapped, axis = mapped + (mapped > place), axis + 1
    array = jnp.moveaxis(array, mapped, axis)
    shape = array.shape
    if groups == 1:
        return array.reshape(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
    merged = groups * shape[axis] * shape[axis + 1]
    return array.reshape(*shape[: axis - 1], merged, *shape[axis + 2 :])


def _unfold(array: Array, size: int, axis: int, groups: int = 1) -> tuple[Array, int]:
    shape = array.shape
    before, after = shape[:axis], shape[axis + 1 :]
    rest = shape[axis] // (size * groups)
    if groups > 1:
        array = jnp.moveaxis(array.reshape(*before, groups, size, rest, *after), axis + 1, axis)
    return array.reshape(*before, size, groups * rest, *after), axis


def _grown(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], shape[axis] * size, *shape[axis + 1 :])


def _conv_fprop_batch(
    operands: Any, axes: Any, *, config: ConvConfig, **params: Any
) -> tuple[Array, int]:
    (x, w), (x_axis, w_axis) = operands, axes
    (x_n, x_c, *_), (w_o, _, *_), (y_n, y_c, *_) = config.dimension_numbers
    groups = config.groups
    if w_axis is None:
        size = x.shape[x_axis]
        y = conv_fprop(_fold(x, x_axis, x_n), w, config, **params)
        return _unfold(y, size, y_n)
    size = w.shape[w_axis]
    if x_axis is None:
        y = conv_fprop(x, _fold(w, w_axis, w_o, groups), config, **params)
        return _unfold(y, size, y_c, groups)
    config = config.replace(groups=groups * size)
    y = conv_fprop(_fold(x, x_axis, x_c), _fold(w, w_axis, w_o), config, **params)
    return _unfold(y, size, y_c)


def _conv_dgrad_batch(
    operands: Any, axes: Any, *, x_shape: Shape, config: ConvConfig, **params: Any
) -> tuple[Array, int]:
    (dy, w), (dy_axis, w_axis) = operands, axes
    (x_n, x_c, *_), (w_o, w_i, *_), (y_n, y_c, *_) = config.dimension_numbers
    groups = config.groups
    if w_axis is None:
        size = dy.shape[dy_axis]
        dx = conv_dgrad(_fold(dy, dy_axis, y_n), w, _grown(x_shape, x_n, size), config, **params)
        return _unfold(dx, size, x_n)
    size = w.shape[w_axis]
    x_shape = _grown(x_shape, x_c, size)
    if dy_axis is None:
        dx = conv_dgrad(dy, _fold(w, w_axis, w_i), x_shape, config, **params)
        return _unfold(dx, size, x_c, groups)
    config = config.replace(groups=groups * size)
    dx = conv_dgrad(_fold(dy, dy_axis, y_c), _fold(w, w_axis, w_o), x_shape, config, **params)
    return _unfold(dx, size, x_c)


def _conv_wgrad_batch(
    operands: Any, axes: Any, *, w_shape: Shape, config: ConvConfig, **params: Any
) -> tuple[Array, int]:
    (x, dy), (x_axis, dy_axis) = operands, axes
    (_, x_c, *_), (w_o, w_i, *_), (_, y_c, *_) = config.dimension_numbers
    groups = config.groups
    if dy_axis is None:
        size = x.shape[x_axis]
        dw = conv_wgrad(
            _fold(x, x_axis, x_c, groups), dy, _grown(w_shape, w_i, size), config, **params
        )
        return _unfold(dw, size, w_i)
    size = dy.shape[dy_axis]
    w_shape = _grown(w_shape, w_o, size)
    if x_axis is None:
        dw = conv_wgrad(x, _fold(dy, dy_axis, y_c, groups), w_shape, config, **params)
        return _unfold(dw, size, w_o, groups)
    config = config.replace(groups=groups * size)
    dw = conv_wgrad(_fold(x, x_axis, x_c), _fold(dy, dy_axis, y_c), w_shape, config, **params)
    return _unfold(dw, size, w_o)


def _without(shape: Shape, axis: int | None) -> Shape:
    return shape if axis is None else (*shape[:axis], *shape[axis + 1 :])


# Lowering.


def _conv_fprop_implementation(
    platform: str | None,
    x: Array,
    w: Array,
    *,
    config: ConvConfig,
    precision: Any,
    preferred_element_type: Any,
) -> Array:
    geometry = ConvGeometry.make("conv_fprop", config, x.shape, w.shape)
    if geometry.is_empty:
        return jnp.zeros(geometry.y_shape, preferred_element_type)
    if smaller := subsample(config, x.shape):
        return _conv_fprop_implementation(
            platform,
            smaller.take(x),
            w,
            config=smaller.config,
            precision=precision,
            preferred_element_type=preferred_element_type,
        )
    route = choose_route(
        platform,
        "conv_fprop",
        geometry,
        x.dtype,
        preferred_element_type,
        precision,
        compat.operations_only(),
    )
    if route.name in routes.HANDLER_ROUTES:
        return emit_ffi.conv_fprop(
            x,
            w,
            platform=platform,
            config=config,
            precision=precision,
            result_dtype=preferred_element_type,
            y_shape=geometry.y_shape,
        )
    if route.name == routes.MATMUL:
        return emit_gemm.conv_fprop(
            x, w, config=config, precision=precision, preferred_element_type=preferred_element_type
        )
    return emit_xla.conv_fprop(
        x, w, config=config, precision=precision, preferred_element_type=preferred_element_type
    )


def _conv_dgrad_implementation(
    platform: str | None,
    dy: Array,
    w: Array,
    *,
    x_shape: Shape,
    config: ConvConfig,
    precision: Any,
    preferred_element_type: Any,
) -> Array:
    geometry = ConvGeometry.make("conv_dgrad", config, x_shape, w.shape)
    if geometry.is_empty:
        return jnp.zeros(x_shape, preferred_element_type)
    if smaller := subsample(config, x_shape):
        dx = _conv_dgrad_implementation(
            platform,
            dy,
            w,
            x_shape=smaller.x_shape,
            config=smaller.config,
            precision=precision,
            preferred_element_type=preferred_element_type,
        )
        return smaller.spread(dx)
    route = choose_route(
        platform,
        "conv_dgrad",
        geometry,
        dy.dtype,
        preferred_element_type,
        precision,
        compat.operations_only(),
    )
    if route.name in routes.HANDLER_ROUTES:
        return emit_ffi.conv_dgrad(
            dy,
            w,
            platform=platform,
            config=config,
            precision=precision,
            result_dtype=preferred_element_type,
            x_shape=x_shape,
        )
    if route.name == routes.MATMUL:
        return emit_gemm.conv_dgrad(
            dy,
            w,
            x_shape=x_shape,
            config=config,
            precision=precision,
            preferred_element_type=preferred_element_type,
        )
    return emit_xla.conv_dgrad(
        dy,
        w,
        x_shape=x_shape,
        config=config,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def _conv_wgrad_implementation(
    platform: str | None,
    x: Array,
    dy: Array,
    *,
    w_shape: Shape,
    config: ConvConfig,
    precision: Any,
    preferred_element_type: Any,
) -> Array:
    geometry = ConvGeometry.make("conv_wgrad", config, x.shape, w_shape)
    if geometry.is_empty:
        return jnp.zeros(w_shape, preferred_element_type)
    if smaller := subsample(config, x.shape):
        return _conv_wgrad_implementation(
            platform,
            smaller.take(x),
            dy,
            w_shape=w_shape,
            config=smaller.config,
            precision=precision,
            preferred_element_type=preferred_element_type,
        )
    route = choose_route(
        platform,
        "conv_wgrad",
        geometry,
        x.dtype,
        preferred_element_type,
        precision,
        compat.operations_only(),
    )
    if route.name in routes.HANDLER_ROUTES:
        return emit_ffi.conv_wgrad(
            x,
            dy,
            platform=platform,
            config=config,
            precision=precision,
            result_dtype=preferred_element_type,
            w_shape=w_shape,
        )
    if route.name == routes.MATMUL:
        return emit_gemm.conv_wgrad(
            x,
            dy,
            config=config,
            precision=precision,
            preferred_element_type=preferred_element_type,
        )
    return emit_xla.conv_wgrad(
        x,
        dy,
        w_shape=w_shape,
        config=config,
        precision=precision,
        preferred_element_type=preferred_element_type,
        grouping="feature" if route.name == "swap" else "batch",
    )


def choose_route(
    platform: str | None,
    operator: str,
    geometry: ConvGeometry,
    dtype: Any,
    result_dtype: Any,
    precision: Any,
    operations_only: bool,
) -> Route:
    """The chosen route, or the platform's fallback where its handlers are not there or cannot be called.

    ``operations_only``: XLA divides the program among devices, and cannot divide a call there.
    """
    route = routes.choose(platform, operator, geometry, dtype, result_dtype, precision)
    # XLA's older partitioner cannot say either how an axis is split that is cut into patches.
    if operations_only and route.name in routes.HANDLER_ROUTES | {routes.MATMUL}:
        return routes.OPERATIONS_ONLY._replace(name=routes.fallback(platform).name)
    if route.name in routes.HANDLER_ROUTES:
        assert platform is not None
        if not registry.require(platform).serves(registry.CONV_TARGETS[operator], dtype):
            return routes.fallback(platform)
    return route


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the lowering of a problem comes to: what is computed in the end, and by which route.

    ``smaller`` says that ``geometry`` is what `subsample` left of the problem.
    """

    geometry: ConvGeometry
    route: Route
    smaller: bool


def plan(
    platform: str | None,
    operator: str,
    config: ConvConfig,
    x_shape: Shape,
    w_shape: Shape,
    dtype: Any,
    result_dtype: Any,
    precision: Any,
    operations_only: bool,
) -> Plan:
    """What the rules above do with a problem, without doing it."""
    geometry = ConvGeometry.make(operator, config, x_shape, w_shape)
    smaller = None if geometry.is_empty else subsample(config, x_shape)
    if smaller is not None:
        geometry = ConvGeometry.make(operator, smaller.config, smaller.x_shape, w_shape)
    route = choose_route(
        platform, operator, geometry, dtype, result_dtype, precision, operations_only
    )
    return Plan(geometry, route, smaller is not None)


def _batch_rule(primitive: Primitive, rule: Callable[..., Any]) -> Callable[..., Any]:
    """``rule``, and what a merged axis cannot hold: no examples, and an unknown number of weights."""

    def batch(operands: Any, axes: Any, **params: Any) -> Any:
        pairs = list(zip(operands, axes, strict=True))
        size = next(operand.shape[axis] for operand, axis in pairs if axis is not None)
        if not isinstance(size, int) and (axes[1] is not None or primitive is conv_wgrad_p):
            # Symbolic: no program has an unknown number of groups or of channels, lax's neither.
            return _one_after_another(functools.partial(primitive.bind, **params), pairs), 0
        if isinstance(size, int) and size == 0:
            one = [jax.ShapeDtypeStruct(_without(a.shape, axis), a.dtype) for a, axis in pairs]
            result = jax.eval_shape(functools.partial(primitive.bind, **params), *one)
            return jnp.zeros((0, *result.shape), result.dtype), 0
        return rule(operands, axes, **params)

    return batch


def _one_after_another(bind: Callable[..., Array], pairs: list[tuple[Array, int | None]]) -> Array:
    mapped = [jnp.moveaxis(array, axis, 0) for array, axis in pairs if axis is not None]

    def one(examples: list[Array]) -> Array:
        left = iter(examples)
        return bind(*(array if axis is None else next(left) for array, axis in pairs))

    return lax.map(one, mapped)


def _lax_parameters(params: dict[str, Any]) -> dict[str, Any]:
    """Those that `lax.conv_general_dilated_p` has for the convolution x -> y."""
    config: ConvConfig = params["config"]
    return {
        "window_strides": config.strides,
        "padding": config.padding,
        "lhs_dilation": (1,) * config.spatial_rank,
        "rhs_dilation": config.dilation,
        "dimension_numbers": config.dimension_numbers,
        "feature_group_count": config.groups,
        "batch_group_count": 1,
        "precision": params["precision"],
        "preferred_element_type": params["preferred_element_type"],
    }


def _define(
    primitive: Primitive,
    abstract: Callable[..., Any],
    transpose_first: Callable[..., Array],
    transpose_second: Callable[..., Array],
    batch: Callable[..., Any],
    implementation: Callable[..., Array],
    divide: Callable[..., Any],
) -> None:
    primitive.def_impl(functools.partial(compat.apply_primitive, primitive))
    primitive.def_abstract_eval(abstract)
    ad.defbilinear(primitive, transpose_first, transpose_second)
    batching.primitive_batchers[primitive] = _batch_rule(primitive, batch)
    compat.checkpoint_like(primitive, lax.conv_general_dilated_p, _lax_parameters)
    compat.differentiate_like(primitive, lax.conv_general_dilated_p)
    for platform in (None, "cpu", "cuda"):
        # The operator's name is seen in profiles, whatever it is lowered to.
        here = jax.named_scope(primitive.name)(functools.partial(implementation, platform))
        parts = None if platform is None else functools.partial(divide, here, platform)
        mlir.register_lowering(primitive, compat.lower_fun(here, parts), platform=platform)


_define(
    conv_fprop_p,
    _conv_fprop_abstract,
    _conv_fprop_transpose_x,
    _conv_fprop_transpose_w,
    _conv_fprop_batch,
    _conv_fprop_implementation,
    solver.conv_fprop,
)
_define(
    conv_dgrad_p,
    _conv_dgrad_abstract,
    _conv_dgrad_transpose_dy,
    _conv_dgrad_transpose_w,
    _conv_dgrad_batch,
    _conv_dgrad_implementation,
    solver.conv_dgrad,
)
_define(
    conv_wgrad_p,
    _conv_wgrad_abstract,
    _conv_wgrad_transpose_x,
    _conv_wgrad_transpose_dy,
    _conv_wgrad_batch,
    _conv_wgrad_implementation,
    solver.conv_wgrad,
)

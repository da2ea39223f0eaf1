"""What one equation asks for: its operator and sizes, its route and why, its roofline, who could run it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_convgrad._src import compat
from jax_convgrad._src.conv import primitives
from jax_convgrad._src.conv.geometry import ConvConfig, ConvGeometry
from jax_convgrad._src.dispatch import routes
from jax_convgrad._src.dispatch.routes import Route
from jax_convgrad._src.dtypes import FLOAT_DTYPES
from jax_convgrad._src.explain import xla
from jax_convgrad._src.explain.roofline import Roofline, conv_roofline, resample_roofline
from jax_convgrad._src.explain.walk import Found
from jax_convgrad._src.install import lowering_rules
from jax_convgrad._src.resize import primitives as resize_primitives
from jax_convgrad._src.runtime import registry
from jax_convgrad._src.shapes import Shape

# A function to time and the context to compile it in.
Timed = tuple[Callable[..., Any], Callable[[], contextlib.AbstractContextManager[Any]]]

IN_PARTS = "divided among devices, each of which goes by the sizes of its part"

_CONVOLUTIONS = {
    primitives.conv_fprop_p: "conv_fprop",
    primitives.conv_dgrad_p: "conv_dgrad",
    primitives.conv_wgrad_p: "conv_wgrad",
}


@dataclasses.dataclass(frozen=True)
class Problem:
    """An equation's problem.

    Attributes:
      operator: of the family, "resample" or "resize"; None where the equation could not be read.
      sizes: in one line.
      operands: the shapes and dtypes.
      result: shape and dtype.
      ours: whether this package computes it, or would with `install` on.
      route: who computes it and why.
      xla: what XLA has without this package.
      roofline: None where that is not known, as with symbolic sizes.
      timed: "ours" and "xla", of those that can be timed alone.
    """

    operator: str | None
    sizes: str
    operands: tuple[jax.ShapeDtypeStruct, ...]
    result: jax.ShapeDtypeStruct
    ours: bool
    route: Route
    xla: str
    roofline: Roofline | None
    timed: dict[str, Timed]


def is_problem(equation: Any) -> bool:
    """Whether an equation is a convolution or a resize."""
    primitive = equation.primitive
    known = primitive in _CONVOLUTIONS or primitive is resize_primitives.resample_p
    return known or primitive is lax.conv_general_dilated_p or _is_jax_image(equation)


def make(platform: str, found: Found) -> Problem:
    """The problem of an equation."""
    equation = found.equation
    if equation.primitive is lax.conv_general_dilated_p:
        problem = _lax_convolution(platform, equation, found.operations_only)
    elif equation.primitive in _CONVOLUTIONS:
        problem = _convolution(platform, equation, found.operations_only)
    elif equation.primitive is resize_primitives.resample_p:
        problem = _resample(platform, equation, found.operations_only)
    else:
        return _jax_image(equation)
    if not found.partitioned:
        return problem
    # Alone it would run whole on one device, or on no device at all.
    return dataclasses.replace(problem, timed={}, route=_in_parts(problem, found.operations_only))


def _in_parts(problem: Problem, operations_only: bool) -> Route:
    """The route of a problem that is divided among devices; that of a part may be another."""
    if not problem.ours or operations_only:
        return problem.route
    return problem.route._replace(reason=f"{problem.route.reason}; {IN_PARTS}")


def _lax_convolution(platform: str, equation: Any, operations_only: bool) -> Problem:
    params = {**equation.params, "out_sharding": None}
    lhs, rhs, out = _operand(equation.invars[0]), _operand(equation.invars[1]), _result(equation)
    decision = lowering_rules.decide(platform, lhs, rhs, out, params, operations_only)
    theirs = functools.partial(lax.conv_general_dilated_p.bind, **params)
    timed: dict[str, Timed] = {"xla": (theirs, compat.jax_rules)}
    reading, plan = decision.reading, decision.plan
    description = xla.describe_convolution(platform, equation)
    if reading is None or plan is None:
        sizes = f"{_times(lhs)} with {_times(rhs)} to {_times(out)}"
        return Problem(
            None, sizes, (lhs, rhs), out, False, decision.route, description, None, timed
        )
    ours = functools.partial(
        lowering_rules.compute,
        reading=reading,
        precision=params["precision"],
        result_dtype=out.dtype,
    )
    context = _context(platform, reading.operator, lhs.dtype, out.dtype, decision.replaced)
    if context is not None:
        timed["ours"] = ours, context
    geometry = ConvGeometry.make(reading.operator, reading.config, reading.x_shape, reading.w_shape)
    return Problem(
        reading.operator,
        _conv_sizes(geometry),
        (lhs, rhs),
        out,
        decision.replaced,
        _of_smaller(decision.route, plan) if decision.replaced else _kept(decision.route),
        description,
        conv_roofline(reading.operator, geometry, lhs.dtype.itemsize, out.dtype.itemsize)
        if _known(lhs, rhs, out)
        else None,
        timed,
    )


def _convolution(platform: str, equation: Any, operations_only: bool) -> Problem:
    """One of this package's own layers and operators."""
    operator, params = _CONVOLUTIONS[equation.primitive], equation.params
    operands, out = tuple(map(_operand, equation.invars)), _result(equation)
    config: ConvConfig = params["config"]
    x_shape: Shape = params.get("x_shape", operands[0].shape)
    w_shape: Shape = params.get("w_shape", operands[1].shape)
    dtype = operands[0].dtype
    plan = primitives.plan(
        platform,
        operator,
        config,
        x_shape,
        w_shape,
        dtype,
        out.dtype,
        params["precision"],
        operations_only,
    )
    theirs = xla.lax_form(operator, params)
    timed: dict[str, Timed] = {"xla": (theirs, compat.jax_rules)}
    context = _context(platform, operator, dtype, out.dtype, plan.route.name != "xla")
    if context is not None:
        timed["ours"] = functools.partial(equation.primitive.bind, **params), context
    geometry = ConvGeometry.make(operator, config, x_shape, w_shape)
    empty = geometry.is_empty
    return Problem(
        operator,
        _conv_sizes(geometry),
        operands,
        out,
        True,
        _of_smaller(plan.route, plan),
        "zeros" if empty else xla.describe_lax_form(platform, theirs, operands),
        conv_roofline(operator, geometry, dtype.itemsize, out.dtype.itemsize)
        if _known(*operands, out)
        else None,
        {} if empty else timed,
    )


def _kept(route: Route) -> Route:
    """JAX's own rule is called, whichever of the forms in plain JAX it is."""
    return Route("xla", route.reason)


def _of_smaller(route: Route, plan: primitives.Plan) -> Route:
    if not plan.smaller:
        return route
    what = _conv_sizes(plan.geometry)
    return Route(
        route.name,
        f"stride and dilation share a factor, which leaves {what}; then: {route.reason}",
    )


def _context(
    platform: str, operator: str, dtype: Any, result_dtype: Any, routed: bool
) -> Callable[[], contextlib.AbstractContextManager[Any]] | None:
    """How to compile this package's way: as it is routed, or else by the handler if there is one."""
    if routed:
        return contextlib.nullcontext
    for name, target in routes.PLATFORMS.items():
        served = target == platform and registry.require(platform).serves(
            registry.CONV_TARGETS[operator], dtype
        )
        if served and dtype == result_dtype:
            return functools.partial(routes.force, name)
    return None


def _resample(platform: str, equation: Any, operations_only: bool) -> Problem:
    bands, axes = equation.params["bands"], equation.params["axes"]
    x, out = _operand(equation.invars[0]), _result(equation)
    taps = xla.times([band.taps for band in bands])
    empty = 0 in x.shape or 0 in out.shape
    return Problem(
        "resample",
        f"{_times(x)} to {_times(out)}, {taps} taps",
        (x,),
        out,
        True,
        resize_primitives.choose_route(platform, x, bands, axes, operations_only),
        xla.describe_image_form(bands, axes),
        resample_roofline(x.shape, bands, axes, x.dtype.itemsize) if _known(x) else None,
        {}
        if empty
        else {
            # By the handler if there is one, even where XLA has it.
            "ours": (
                functools.partial(equation.primitive.bind, **equation.params),
                functools.partial(routes.force, routes.NATIVE),
            ),
            "xla": (xla.image_form(bands, axes), contextlib.nullcontext),
        },
    )


_NAMED_BEFORE = Route(
    "xla", "the program calls jax.image's own function: it has kept it by another name"
)


def _jax_image(equation: Any) -> Problem:
    """A resize that `install` does not reach."""
    out = _result(equation)
    image = _image(equation, out)
    route = _NAMED_BEFORE
    if str(image.dtype) not in FLOAT_DTYPES:
        route = Route("xla", f"{image.dtype} is not for this package")
    sizes = f"{_times(image)} to {_times(out)}"
    return Problem("resize", sizes, (image,), out, False, route, "jax.image", None, {})


def _is_jax_image(equation: Any) -> bool:
    """Whether it calls the jitted function that is in jax.image.resize."""
    if equation.primitive.name != "jit" or "_resize" not in str(equation.params.get("name")):
        return False
    file = compat.defined_in(getattr(equation.params["jaxpr"], "jaxpr", None))
    return file.replace("\\", "/").endswith("/jax/_src/image/scale.py")


def _image(equation: Any, out: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """The image among the operands, whose others are what a gradient keeps: it comes last there."""
    operands = [_operand(v) for v in equation.invars]
    images = [a for a in operands if len(a.shape) == len(out.shape)]
    images = [a for a in images if not jnp.issubdtype(a.dtype, jnp.integer)] or images
    return images[-1] if images else operands[-1]


def _known(*arrays: jax.ShapeDtypeStruct) -> bool:
    return all(isinstance(size, int) for array in arrays for size in array.shape)


def _operand(variable: Any) -> jax.ShapeDtypeStruct:
    aval = variable.aval
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _result(equation: Any) -> jax.ShapeDtypeStruct:
    return _operand(equation.outvars[0])


def _times(array: Any) -> str:
    return xla.times(array.shape) if array.shape else "scalar"


def _conv_sizes(geometry: ConvGeometry) -> str:
    """The convolution x -> y underneath, in the words of the benchmark's tables."""
    config = geometry.config
    text = (
        f"{xla.times((geometry.batch, *geometry.in_spatial))}, {geometry.in_channels} to "
        f"{geometry.out_channels}, k{_short(geometry.kernel)} s{_short(config.strides)}"
    )
    if any(low or high for low, high in config.padding):
        pads = [str(low) if low == high else f"{low}/{high}" for low, high in config.padding]
        text += f" p{_short(pads)}"
    if any(d > 1 for d in config.dilation):
        text += f" d{_short(config.dilation)}"
    return text + (f" g{config.groups}" if config.groups > 1 else "")


def _short(values: Sequence[Any]) -> str:
    return str(values[0]) if len(set(values)) == 1 else "x".join(map(str, values))

"""What one equation asks for: its operator and sizes, who computes it and why, its roofline."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_convgrad._src import compat
from jax_convgrad._src.conv import backward
from jax_convgrad._src.conv.primitives import PRIMITIVES
from jax_convgrad._src.dispatch.decide import (
    HANDLER_BACKENDS,
    NATIVE,
    PARTS,
    XLA,
    ZEROS,
    Decision,
    decide,
)
from jax_convgrad._src.dispatch.devices import Target
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.dispatch.problem import ConvBackwardProblem, ConvProblem, ResampleProblem
from jax_convgrad._src.dtypes import FLOAT_DTYPES
from jax_convgrad._src.explain import similar, xla
from jax_convgrad._src.explain.roofline import (
    Roofline,
    backward_roofline,
    conv_roofline,
    resample_roofline,
)
from jax_convgrad._src.explain.similar import Sketch
from jax_convgrad._src.explain.walk import Found
from jax_convgrad._src.install.equation import decide_equation
from jax_convgrad._src.resize.primitives import resample_p
from jax_convgrad._src.runtime import registry

# A function to time and the context to compile it in.
Timed = tuple[Callable[..., Any], Callable[[], contextlib.AbstractContextManager[Any]]]

PARTITIONED = "XLA divides it among devices, and each computes its shard so"

_CONVOLUTIONS = set(PRIMITIVES.values())


@dataclasses.dataclass(frozen=True)
class Backend:
    """Who computes an equation.

    Attributes:
      name: the backend.
      reason: why.
      evidence: the measurements behind it, as FILE#CASE#PASS under benchmarks/.
      measured_on: the class of devices that they were made on, None where the reason is none of speed.
      preparation: what is done to the operands of its call.
      preparation_evidence: the measurements behind that.
      missing: as of a `Decision`.
    """

    name: str
    reason: str
    evidence: tuple[str, ...] = ()
    measured_on: str | None = None
    preparation: str = "none"
    preparation_evidence: tuple[str, ...] = ()
    missing: str | None = None


@dataclasses.dataclass(frozen=True)
class Equation:
    """A convolution or a resize of a traced program.

    Attributes:
      operator: of the family, "conv_backward" for a whole backward pass in one call, "resample" or "resize";
        None where the equation is no operator of the family.
      sizes: in one line.
      operands: the shapes and dtypes.
      result: shape and dtype, of the first if there are several.
      ours: whether this package computes it, or would with `install` on.
      backend: who computes it and why.
      xla: what XLA has without this package.
      roofline: None where that is not known, as with symbolic sizes.
      timed: "ours" and "xla", of those that can be timed alone.
      kept: whether XLA computes what it would without this package.
      sketch: by which similar problems are found among the measured ones; None where there are none.
    """

    operator: str | None
    sizes: str
    operands: tuple[jax.ShapeDtypeStruct, ...]
    result: jax.ShapeDtypeStruct
    ours: bool
    backend: Backend
    xla: str
    roofline: Roofline | None
    timed: dict[str, Timed]
    kept: bool = False
    sketch: Sketch | None = None


def is_described(platform: str, equation: Any, partitioned: bool) -> bool:
    """Whether an equation is a convolution or a resize, or a whole backward pass in one call.

    A backward pass in its parts is not: each of them is.
    """
    primitive = equation.primitive
    if primitive is backward.conv_backward_p:
        return _decide_backward(platform, equation, partitioned).backend != PARTS
    known = primitive in _CONVOLUTIONS or primitive is resample_p
    return known or primitive is lax.conv_general_dilated_p or compat.is_jax_image_resize(equation)


def describe(platform: str, found: Found) -> Equation:
    """What an equation asks for, and who computes it."""
    equation = found.equation
    if equation.primitive is lax.conv_general_dilated_p:
        described = _lax_convolution(platform, found)
    elif equation.primitive in _CONVOLUTIONS:
        described = _convolution(platform, equation, found.operations_only)
    elif equation.primitive is backward.conv_backward_p:
        described = _backward(platform, equation)
    elif equation.primitive is resample_p:
        described = _resample(platform, equation, found.operations_only)
    else:
        return _jax_image(equation)
    if not found.partitioned:
        return described
    backend = described.backend
    if described.ours and not found.operations_only:
        backend = dataclasses.replace(backend, reason=f"{backend.reason}; {PARTITIONED}")
    # Alone it would run whole on one device, or on no device at all.
    return dataclasses.replace(described, timed={}, backend=backend, sketch=None)


def _lax_convolution(platform: str, place: Found) -> Equation:
    equation = place.equation
    params = {**equation.params, "out_sharding": None}
    lhs, rhs, out = _operand(equation.invars[0]), _operand(equation.invars[1]), _result(equation)
    custom_calls = not place.operations_only
    found = decide_equation(platform, lhs, rhs, out, params, custom_calls)
    theirs = functools.partial(lax.conv_general_dilated_p.bind, **params)
    timed: dict[str, Timed] = {"xla": (theirs, compat.jax_rules)}
    description = xla.describe_convolution(platform, equation)
    if found.match is None or found.decision is None:
        sizes = f"{_times(lhs)} with {_times(rhs)} to {_times(out)}"
        backend = Backend(XLA, found.reason)
        return Equation(
            None, sizes, (lhs, rhs), out, False, backend, description, None, timed, True
        )
    operator, geometry = found.match.operator, found.match.geometry
    if found.replaced:
        timed["ours"] = found.compute, contextlib.nullcontext
    elif context := _handler(platform, operator, lhs.dtype, out.dtype):
        timed["ours"] = _by_handler(platform, lhs, rhs, out, params), context
    decided = _backend(found.decision)
    if not custom_calls:  # whatever was measured
        decided = Backend(XLA, found.reason)
    elif not found.replaced:
        decision = found.decision
        reason = _with_device(found.reason, decision.measured_on, decision.device_class)
        evidence, measured_on = decision.evidence, decision.measured_on
        decided = Backend(XLA, reason, evidence, measured_on, missing=decision.missing)
    return Equation(
        operator,
        str(geometry),
        (lhs, rhs),
        out,
        found.replaced,
        decided,
        description,
        conv_roofline(operator, geometry, lhs.dtype.itemsize, out.dtype.itemsize)
        if _known(lhs, rhs, out)
        else None,
        timed,
        not found.replaced,
        similar.sketch_of_equation(equation, found.match, place.kernel_reversed)
        if _known(lhs, rhs, out)
        else None,
    )


def _by_handler(
    platform: str, lhs: Any, rhs: Any, out: Any, params: dict[str, Any]
) -> Callable[..., Any]:
    """An equation that XLA keeps, computed by this package: decided anew under the context's override."""

    def compute(*operands: Any) -> Any:
        return decide_equation(platform, lhs, rhs, out, params).compute(*operands)

    return compute


def _convolution(platform: str, equation: Any, operations_only: bool) -> Equation:
    """One of this package's own layers and operators."""
    problem: ConvProblem = equation.params["problem"]
    operands, out = tuple(map(_operand, equation.invars)), _result(equation)
    operator, geometry, dtype = problem.operator, problem.geometry, problem.dtype
    decision = equation.params["decision"] or decide(
        problem, Target.of(platform, not operations_only)
    )
    theirs = xla.lax_form(problem)
    timed: dict[str, Timed] = {"xla": (theirs, compat.jax_rules)}
    context: Callable[[], contextlib.AbstractContextManager[Any]] | None = contextlib.nullcontext
    if decision.backend == XLA:
        context = _handler(platform, operator, dtype, out.dtype)
    if context is not None:
        timed["ours"] = functools.partial(equation.primitive.bind, **equation.params), context
    empty = decision.backend == ZEROS
    return Equation(
        operator,
        str(geometry),
        operands,
        out,
        True,
        _backend(decision),
        "zeros" if empty else xla.describe_lax_form(platform, theirs, operands),
        conv_roofline(operator, geometry, dtype.itemsize, out.dtype.itemsize)
        if _known(*operands, out)
        else None,
        {} if empty else timed,
        empty or similar.is_xla_form(problem, decision.backend),
        similar.sketch_of_problem(problem) if _known(*operands, out) else None,
    )


def _decide_backward(platform: str, equation: Any, partitioned: bool) -> Decision:
    return decide(equation.params["problem"], Target.of(platform, partitioned=partitioned))


def _backward(platform: str, equation: Any) -> Equation:
    """A whole backward pass in one call."""
    problem: ConvBackwardProblem = equation.params["problem"]
    operands = tuple(map(_operand, equation.invars))
    wanted = " ".join(f"d{gradient}" for gradient in problem.wanted)
    roles = dict(zip(("x", "w", "y"), operands, strict=True))
    convolutions = [
        xla.describe_lax_form(
            platform, xla.lax_form(part), [roles[role] for role in part.operand_roles]
        )
        for gradient, part in (("x", problem.dgrad), ("w", problem.wgrad))
        if gradient in problem.wanted
    ]
    return Equation(
        problem.operator,
        f"{problem.geometry}, {wanted}",
        operands,
        _result(equation),
        True,
        _backend(_decide_backward(platform, equation, partitioned=False)),
        "; ".join(convolutions),
        backward_roofline(problem),
        {
            "ours": (
                functools.partial(equation.primitive.bind, **equation.params),
                contextlib.nullcontext,
            ),
            "xla": (xla.backward_form(problem), compat.jax_rules),
        },
    )


def _backend(decision: Decision) -> Backend:
    reason, problem, preparation = decision.reason, decision.problem, decision.preparation
    if decision.subsample is not None and isinstance(problem, ConvProblem):
        reason = (
            f"stride and dilation share a factor, which leaves {decision.computed}; then: {reason}"
        )
    reason = _with_device(reason, decision.measured_on, decision.device_class)
    if preparation.name != "none":
        why = _with_device(preparation.reason, preparation.measured_on, decision.device_class)
        reason = f"{reason}; {_PREPARED[preparation.name]}: {why}"
    return Backend(
        decision.backend,
        reason,
        decision.evidence,
        decision.measured_on,
        preparation.name,
        preparation.evidence,
        decision.missing,
    )


# What the call's operands are, by the preparation.
_PREPARED = {
    "zero_channel": "with a channel of zeros",
    "float32": "with operands in float32",
    "even_padding": "with the uneven padding written out",
    "xio_weights": "with weights in their own order",
}


def _with_device(reason: str, measured_on: str | None, device_class: str | None) -> str:
    """The reason, and where it was measured unless on devices of this one's class."""
    if measured_on is None or measured_on == device_class:
        return reason
    return f"{reason} (measured on {measured_on}, this device is {device_class or 'unknown'})"


def _handler(
    platform: str, operator: str, dtype: Any, result_dtype: Any
) -> Callable[[], contextlib.AbstractContextManager[Any]] | None:
    """The context in which the platform's handler computes an operator that XLA has; None if it cannot."""
    backend = HANDLER_BACKENDS.get(platform)
    if backend is None or dtype != result_dtype:
        return None
    target = registry.CONV_TARGETS[operator]
    if not registry.require(platform).serves(target, dtype):
        return None
    return functools.partial(override_backend, backend)


def _resample(platform: str, equation: Any, operations_only: bool) -> Equation:
    problem: ResampleProblem = equation.params["problem"]
    bands, axes = problem.bands, problem.axes
    x, out = _operand(equation.invars[0]), _result(equation)
    taps = xla.times([band.taps for band in bands])
    decision = decide(problem, Target.of(platform, not operations_only))
    return Equation(
        "resample",
        f"{_times(x)} to {_times(out)}, {taps} taps",
        (x,),
        out,
        True,
        _backend(decision),
        xla.describe_image_form(bands, axes),
        resample_roofline(x.shape, bands, axes, x.dtype.itemsize) if _known(x) else None,
        {}
        if problem.is_empty
        else {
            # By the handler if there is one, even where XLA has it.
            "ours": (
                functools.partial(equation.primitive.bind, **equation.params),
                functools.partial(override_backend, NATIVE),
            ),
            "xla": (xla.image_form(bands, axes), contextlib.nullcontext),
        },
        similar.is_xla_form(problem, decision.backend),
        similar.sketch_of_problem(problem) if _known(x) else None,
    )


_NAMED_BEFORE = Backend(
    XLA, "the program calls jax.image's own function: it has kept it by another name"
)


def _jax_image(equation: Any) -> Equation:
    """A resize that `install` does not reach."""
    out = _result(equation)
    image = _image(equation, out)
    backend = _NAMED_BEFORE
    if str(image.dtype) not in FLOAT_DTYPES:
        served = ", ".join(FLOAT_DTYPES)
        backend = Backend(XLA, f"{image.dtype} stays with JAX: this package resizes {served}")
    sizes = f"{_times(image)} to {_times(out)}"
    return Equation("resize", sizes, (image,), out, False, backend, "jax.image", None, {}, True)


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

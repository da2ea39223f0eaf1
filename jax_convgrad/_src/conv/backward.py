"""The backward pass of a convolution as one primitive.

    conv_backward(x, w, dy) -> those of dx, dw and db that are wanted

Its parts are `conv_dgrad` for dx, `conv_wgrad` for dw and a sum for db. One call is lowered where one call
is faster; elsewhere, and in every program that XLA partitions, the parts are, each by its own decision and
its own sharding rule. Derivatives and batching are those of the parts, which are closed under both.

Parameter: ``problem`` (`ConvBackwardProblem`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax import Array, lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from jax_convgrad._src import compat
from jax_convgrad._src.conv import emit_backward, primitives
from jax_convgrad._src.conv.bias import bias_gradient
from jax_convgrad._src.dispatch.decide import PARTS, Decision, decide
from jax_convgrad._src.dispatch.devices import Target
from jax_convgrad._src.dispatch.problem import ConvBackwardProblem
from jax_convgrad._src.dtypes import sum_dtype

conv_backward_p = Primitive("conv_backward")
conv_backward_p.multiple_results = True


def bind(problem: ConvBackwardProblem, x: Array, w: Array, dy: Array) -> list[Array]:
    """Binds the primitive, with the operands brought to the same varying mesh axes."""
    x, w, dy = compat.match_varying(x, w, dy)
    gradients: list[Array] = conv_backward_p.bind(x, w, dy, problem=problem)
    return gradients


def parts(problem: ConvBackwardProblem, x: Array, w: Array, dy: Array) -> list[Array]:
    """The wanted gradients, each by an operation of its own."""
    compute = {
        "x": lambda: primitives.bind(problem.dgrad, dy, w),
        "w": lambda: primitives.bind(problem.wgrad, x, dy),
        "b": lambda: _bias(problem, dy),
    }
    return [compute[gradient]() for gradient in problem.wanted]


def parts_of(equation: Any) -> Any:
    """The jaxpr of the parts of an equation that binds the primitive."""
    return compat.jaxpr_of(functools.partial(parts, equation.params["problem"]), equation)


def _bias(problem: ConvBackwardProblem, dy: Array) -> Array:
    return bias_gradient(dy, problem.bias_axis, problem.result_dtype)


def _abstract(x: Any, w: Any, dy: Any, *, problem: ConvBackwardProblem) -> list[Any]:
    dgrad, wgrad = problem.dgrad, problem.wgrad
    dx = primitives.abstract_result("conv_dgrad", dy, w, problem=dgrad, decision=None)
    dw = primitives.abstract_result("conv_wgrad", x, dy, problem=wgrad, decision=None)
    changes: dict[str, Any] = {"shape": problem.shape_of("b"), "dtype": problem.result_dtype}
    if compat.is_placed(dy):
        changes["sharding"] = compat.with_split(dy, (compat.split_of(dy)[problem.bias_axis],))
    db = dy.update(weak_type=False, **changes)
    results = {"x": dx, "w": dw, "b": db}
    return [results[gradient] for gradient in problem.wanted]


def _jvp(
    primals: Sequence[Array], tangents: Sequence[Any], *, problem: ConvBackwardProblem
) -> tuple[list[Array], list[Any]]:
    """dx and dw are bilinear and db is linear: each tangent is a sum of parts."""
    x, w, dy = primals
    x_dot, w_dot, dy_dot = tangents
    terms = {
        "x": ((problem.dgrad, dy_dot, w), (problem.dgrad, dy, w_dot)),
        "w": ((problem.wgrad, x_dot, dy), (problem.wgrad, x, dy_dot)),
    }
    results = bind(problem, x, w, dy)
    dots: list[Any] = []
    for gradient, result in zip(problem.wanted, results, strict=True):
        if gradient == "b":
            found = [] if is_zero(dy_dot) else [_bias(problem, dy_dot)]
        else:
            found = [
                primitives.bind(part, first, second)
                for part, first, second in terms[gradient]
                if not is_zero(first) and not is_zero(second)
            ]
        zero = ad.Zero(jax.typeof(result).to_tangent_aval())
        dots.append(functools.reduce(lax.add, found) if found else zero)
    return results, dots


def _transpose(
    cts: Sequence[Any], x: Any, w: Any, dy: Any, *, problem: ConvBackwardProblem
) -> list[Any]:
    """The cotangents of the operands in which the results are linear: dy, or x and w."""
    found: dict[str, list[Any]] = {"x": [], "w": [], "dy": []}
    for gradient, ct in zip(problem.wanted, cts, strict=True):
        if is_zero(ct):
            continue
        if gradient == "b":
            if ad.is_undefined_primal(dy):
                found["dy"].append(_spread(problem, ct, dy.aval))
            continue
        part, named = (
            (problem.dgrad, {"dy": dy, "w": w})
            if gradient == "x"
            else (problem.wgrad, {"x": x, "dy": dy})
        )
        operands = tuple(named.values())
        # At most one: JAX transposes what is linear, and a gradient is not in both of its operands.
        for position in (
            i for i, operand in enumerate(operands) if ad.is_undefined_primal(operand)
        ):
            name = tuple(named)[position]
            found[name].append(
                primitives.transpose(position, ct, *operands, problem=part, decision=None)
            )
    return [
        functools.reduce(lax.add, found[name])
        if found[name]
        else (ad.Zero(operand.aval) if ad.is_undefined_primal(operand) else None)
        for name, operand in (("x", x), ("w", w), ("dy", dy))
    ]


def _spread(problem: ConvBackwardProblem, ct: Array, aval: Any) -> Array:
    """The transpose of the bias gradient's sum."""
    wide = compat.cast(ct, sum_dtype(ct.dtype))
    spread = lax.broadcast_in_dim(wide, aval.shape, (problem.bias_axis,))
    return compat.reshard_like(compat.cast(spread, aval.dtype), aval)


def is_zero(value: Any) -> bool:
    return isinstance(value, ad.Zero)


def _batch(
    operands: Sequence[Array], axes: Sequence[int | None], *, problem: ConvBackwardProblem
) -> tuple[list[Array], list[int | None]]:
    x, w, dy = operands
    at_x, at_w, at_dy = axes

    def part(name: str) -> tuple[Array, int | None]:
        if name == "b":
            return _batch_bias(problem, dy, at_dy)
        each, pair, at = (
            (problem.dgrad, (dy, w), (at_dy, at_w))
            if name == "x"
            else (problem.wgrad, (x, dy), (at_x, at_dy))
        )
        if at == (None, None):
            return primitives.bind(each, *pair), None
        return primitives.batch_operator(pair, at, problem=each, decision=None)

    found = [part(gradient) for gradient in problem.wanted]
    return [array for array, _ in found], [axis for _, axis in found]


def _batch_bias(
    problem: ConvBackwardProblem, dy: Array, mapped: int | None
) -> tuple[Array, int | None]:
    if mapped is None:
        return _bias(problem, dy), None
    kept = problem.bias_axis + (mapped <= problem.bias_axis)
    summed = tuple(axis for axis in range(dy.ndim) if axis not in (mapped, kept))
    total = lax.reduce_sum(compat.cast(dy, sum_dtype(dy.dtype)), summed)
    return compat.cast(total, problem.result_dtype), int(mapped > kept)


def _narrow(
    params: dict[str, Any], used: Sequence[bool]
) -> tuple[Primitive, dict[str, Any], tuple[int, ...]]:
    """The operator of the gradients that are used: one part, if that is enough."""
    problem: ConvBackwardProblem = params["problem"]
    wanted = tuple(g for g, is_used in zip(problem.wanted, used, strict=True) if is_used)
    if wanted == ("x",):
        return primitives.conv_dgrad_p, {"problem": problem.dgrad, "decision": None}, (2, 1)
    if wanted == ("w",):
        return primitives.conv_wgrad_p, {"problem": problem.wgrad, "decision": None}, (0, 2)
    return conv_backward_p, {"problem": problem.replace(wanted=wanted)}, (0, 1, 2)


def _lower(
    platform: str | None, ctx: Any, x: Any, w: Any, dy: Any, *, problem: ConvBackwardProblem
) -> Any:
    custom_calls = not compat.is_partitioned_without_custom_calls(ctx)
    target = Target.of(platform, custom_calls, compat.is_partitioned(ctx))
    run = jax.named_scope(problem.operator)(functools.partial(_emit, decide(problem, target)))
    return compat.lower_fun(run, multiple_results=True)(ctx, x, w, dy)


def _emit(decision: Decision, x: Array, w: Array, dy: Array) -> list[Array]:
    """The wanted gradients, by one call or by the parts, as was decided."""
    problem = decision.problem
    assert isinstance(problem, ConvBackwardProblem)
    compute = parts if decision.backend == PARTS else emit_backward.emit
    return compute(problem, x, w, dy)


conv_backward_p.def_impl(functools.partial(compat.apply_primitive, conv_backward_p))
conv_backward_p.def_abstract_eval(_abstract)
ad.primitive_jvps[conv_backward_p] = _jvp
ad.primitive_transposes[conv_backward_p] = _transpose
batching.primitive_batchers[conv_backward_p] = _batch
compat.differentiate_through(conv_backward_p, parts)
compat.drop_unused_results(conv_backward_p, _narrow)
for _platform in (None, "cpu", "cuda"):
    compat.register_lowering(
        conv_backward_p, functools.partial(_lower, _platform), platform=_platform
    )

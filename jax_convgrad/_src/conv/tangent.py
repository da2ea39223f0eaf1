"""The tangent of a convolution as one primitive, which is linear in both tangents.

    conv_tangent(x, w, x_dot, w_dot) -> y_dot = conv_fprop(x_dot, w) + conv_fprop(x, w_dot)

The JVP of `conv_fprop` binds it where both operands are differentiated and a kernel exists that computes dx
and dw in one call. Forward mode computes the two parts. Reverse mode transposes the whole, which is one
`conv_backward`. Elsewhere the tangent is a sum of two operators, each with a transpose of its own: what is
not differentiated costs nothing.

Parameter: ``problem`` (`ConvProblem`), that of the fprop.
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
from jax_convgrad._src.conv import backward, primitives
from jax_convgrad._src.conv.backward import is_zero
from jax_convgrad._src.dispatch.decide import has_backward_kernel
from jax_convgrad._src.dispatch.problem import ConvBackwardProblem, ConvProblem
from jax_convgrad._src.dtypes import wider_dtype

conv_tangent_p = Primitive("conv_tangent")


def parts(problem: ConvProblem, x: Array, w: Array, x_dot: Array, w_dot: Array) -> Array:
    """The tangent by two operators."""
    return lax.add(primitives.bind(problem, x_dot, w), primitives.bind(problem, x, w_dot))


def parts_of(equation: Any) -> Any:
    """The jaxpr of the parts of an equation that binds the primitive."""
    return compat.jaxpr_of(functools.partial(parts, equation.params["problem"]), equation)


def _jvp_of_fprop(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    problem: ConvProblem = params["problem"]
    if any(map(is_zero, tangents)) or not has_backward_kernel(_backward_problem(problem)):
        return _bilinear_jvp(primals, tangents, **params)
    x, w = primals
    return primitives.bind(problem, x, w, params["decision"]), _bind(problem, x, w, *tangents)


def _bind(problem: ConvProblem, *operands: Array) -> Array:
    tangent: Array = conv_tangent_p.bind(*compat.match_varying(*operands), problem=problem)
    return tangent


def _backward_problem(problem: ConvProblem, *dtypes: Any) -> ConvBackwardProblem:
    """dx and dw of the fprop, multiplied in the widest dtype of the operands and the cotangent."""
    wide = functools.reduce(wider_dtype, dtypes, problem.result_dtype)
    precision = compat.canonical_precision(problem.precision)
    return ConvBackwardProblem(problem.geometry, wide, wide, precision, ("x", "w"))


def _abstract(x: Any, w: Any, x_dot: Any, w_dot: Any, *, problem: ConvProblem) -> Any:
    for primal, tangent in ((x, x_dot), (w, w_dot)):
        if (primal.shape, primal.dtype) != (tangent.shape, tangent.dtype):
            raise TypeError(
                f"conv_tangent: a tangent is {tangent.dtype}{list(tangent.shape)}, its primal "
                f"{primal.dtype}{list(primal.shape)}"
            )
    return primitives.abstract_result("conv_fprop", x, w, problem=problem, decision=None)


def _sum(problem: ConvProblem, x: Array, w: Array, x_dot: Any, w_dot: Any) -> list[Array]:
    """conv_tangent of tangents that may be zeros; no element if both are."""
    if not is_zero(x_dot) and not is_zero(w_dot):
        return [_bind(problem, x, w, x_dot, w_dot)]
    pairs = (x_dot, w), (x, w_dot)
    return [primitives.bind(problem, *pair) for pair in pairs if not any(map(is_zero, pair))]


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, problem: ConvProblem) -> Any:
    """The primitive is linear in (x_dot, w_dot), and in (x, w), which it treats alike."""
    x, w, x_dot, w_dot = primals
    terms = _sum(problem, x, w, *tangents[2:]) + _sum(problem, x_dot, w_dot, *tangents[:2])
    y_dot = _bind(problem, *primals)
    zero = ad.Zero(jax.typeof(y_dot).to_tangent_aval())
    return y_dot, functools.reduce(lax.add, terms) if terms else zero


def _transpose(ct: Any, *operands: Any, problem: ConvProblem) -> list[Any]:
    """The cotangents of the tangents; of x and w where these are what it is transposed in."""
    unknown = [ad.is_undefined_primal(operand) for operand in operands]
    first = 0 if any(unknown[:2]) else 2
    known, wanted = operands[2 - first : 4 - first], operands[first : first + 2]
    avals: list[Any] = [
        operand.aval if lacks else None for operand, lacks in zip(operands, unknown, strict=True)
    ]
    results: list[Any] = [None if aval is None else ad.Zero(aval) for aval in avals]
    if is_zero(ct):
        return results
    if all(unknown[first : first + 2]):
        backward_problem = _backward_problem(problem, ct.dtype, known[0].dtype)
        arrays = [compat.cast(a, backward_problem.dtype) for a in (*known, ct)]
        for i, gradient in enumerate(backward.bind(backward_problem, *arrays), start=first):
            aval = avals[i]
            results[i] = compat.reshard_like(compat.cast(gradient, aval.dtype), aval)
        return results
    # The other tangent is a constant: it adds nothing to what is linear.
    position = unknown[first : first + 2].index(True)
    pair = (wanted[0], known[1]) if position == 0 else (known[0], wanted[1])
    results[first + position] = primitives.transpose(
        position, ct, *pair, problem=problem, decision=None
    )
    return results


def _batch(
    operands: Sequence[Array], axes: Sequence[int | None], *, problem: ConvProblem
) -> tuple[Array, int]:
    return jax.vmap(functools.partial(parts, problem), tuple(axes))(*operands), 0


def _lower(ctx: Any, *operands: Any, problem: ConvProblem) -> Any:
    return compat.lower_fun(functools.partial(parts, problem), multiple_results=False)(
        ctx, *operands
    )


_bilinear_jvp = ad.primitive_jvps[primitives.conv_fprop_p]
ad.primitive_jvps[primitives.conv_fprop_p] = _jvp_of_fprop

conv_tangent_p.def_impl(functools.partial(compat.apply_primitive, conv_tangent_p))
conv_tangent_p.def_abstract_eval(_abstract)
ad.primitive_jvps[conv_tangent_p] = _jvp
ad.primitive_transposes[conv_tangent_p] = _transpose
batching.primitive_batchers[conv_tangent_p] = _batch
compat.checkpoint_like(conv_tangent_p, lax.conv_general_dilated_p, primitives.lax_parameters)
compat.differentiate_through(conv_tangent_p, parts)
compat.register_lowering(conv_tangent_p, _lower)

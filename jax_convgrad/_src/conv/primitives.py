"""The three bilinear primitives of the convolution family, closed under every transformation.

    conv_fprop(x, w) -> y        conv_dgrad(dy, w; x_shape) -> dx        conv_wgrad(x, dy; w_shape) -> dw

With one geometry each one's derivatives are the other two, so JVP and transposition stay inside the family
at every order, and the geometry that was checked where an operator was called serves all of them.
(`tangent` replaces conv_fprop's JVP where both gradients can be computed in one call.)

Parameters of all three: ``problem`` (`ConvProblem`) and ``decision`` (its backend, where `install` has
decided before it binds; None elsewhere).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax import Array, lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from jax_convgrad._src import compat
from jax_convgrad._src.conv import sharding
from jax_convgrad._src.conv.batching import batch
from jax_convgrad._src.conv.lowering import emit
from jax_convgrad._src.dispatch.decide import Decision, decide
from jax_convgrad._src.dispatch.devices import Target
from jax_convgrad._src.dispatch.problem import ConvOperator, ConvProblem
from jax_convgrad._src.dtypes import check_float_dtypes, wider_dtype
from jax_convgrad._src.shapes import show
from jax_convgrad._src.sharding import custom_partitioning

conv_fprop_p = Primitive("conv_fprop")
conv_dgrad_p = Primitive("conv_dgrad")
conv_wgrad_p = Primitive("conv_wgrad")

PRIMITIVES: dict[ConvOperator, Primitive] = {
    "conv_fprop": conv_fprop_p,
    "conv_dgrad": conv_dgrad_p,
    "conv_wgrad": conv_wgrad_p,
}


def bind(
    problem: ConvProblem, first: Array, second: Array, decision: Decision | None = None
) -> Array:
    """Binds the operator's primitive, with the operands brought to the same varying mesh axes."""
    first, second = compat.match_varying(first, second)
    primitive = PRIMITIVES[problem.operator]
    result: Array = primitive.bind(first, second, problem=problem, decision=decision)
    return result


# Abstract evaluation. Results are updates of an operand's abstract value, never fresh ones: that is
# what carries the varying axes of shard_map.


def abstract_result(
    operator: ConvOperator, first: Any, second: Any, *, problem: ConvProblem, decision: Any
) -> Any:
    """The abstract result: the first operand with another shape and dtype.

    In an Explicit mesh the result keeps the shardings of the axes that it shares with the operands. An axis
    that is summed over leaves no sharding behind. Unlike in `check_shardings`, that is never ambiguous
    here, because a derivative is brought to the sharding of its primal.
    """
    _check(operator, first, second, problem)
    if compat.varying_axes(first) != compat.varying_axes(second):
        raise ValueError(
            f"{operator}: operands vary over different mesh axes, {set(compat.varying_axes(first))} and "
            f"{set(compat.varying_axes(second))}; bring them together with jax.lax.pcast"
        )
    changes: dict[str, Any] = {"shape": problem.result_shape, "dtype": problem.result_dtype}
    placed = _placed(first, second)
    if placed is not None:
        given = [*map(compat.split_of, (first, second))]
        result, _ = sharding.rule(problem).propagate(compat.mesh_sizes(placed), given)
        changes["sharding"] = compat.with_split(placed, result)
    return first.update(weak_type=False, **changes)


def _check(operator: ConvOperator, first: Any, second: Any, problem: ConvProblem) -> None:
    """Raises unless the operands are those of the problem: primitives can be bound without `bind`."""
    if problem.operator != operator:
        raise ValueError(
            f"{operator}: expected a problem of this operator, got one of {problem.operator}"
        )
    named = dict(zip(_names(problem), (first, second), strict=True))
    dtype = check_float_dtypes(operator, **{name: aval.dtype for name, aval in named.items()})
    if dtype != problem.dtype:
        raise TypeError(f"{operator}: operands are {dtype}, those of the problem {problem.dtype}")
    for (name, aval), role in zip(named.items(), problem.operand_roles, strict=True):
        expected = problem.geometry.shape_of(role)
        if tuple(aval.shape) != expected:
            raise ValueError(
                f"{operator}: {name} has shape {show(aval.shape)}, the problem's has {show(expected)}"
            )


def _names(problem: ConvProblem) -> tuple[str, str]:
    first, second = ("dy" if role == "y" else role for role in problem.operand_roles)
    return first, second


def _placed(*avals: Any) -> Any:
    """The first of the abstract values that has a sharding on an Explicit mesh, None if none has."""
    return next((aval for aval in avals if compat.is_placed(aval)), None)


def check_shardings(problem: ConvProblem, first: Array, second: Array) -> None:
    """Refuses operands on an Explicit mesh that leave the result's sharding open.

    That is the case where a mesh axis splits a factor that is summed over (except the batch and the spatial
    axes in a weight gradient), or different factors of the two operands, or an axis that it does not divide.

    Raises:
      ShardingTypeError: as `jax.lax.conv_general_dilated` does.
    """
    avals = jax.typeof(first), jax.typeof(second)
    placed = _placed(*avals)
    if placed is None:
        return
    rule = sharding.rule(problem)
    sizes = compat.mesh_sizes(placed)
    # An axis of one device splits nothing, wherever it is named.
    given = [
        tuple(tuple(name for name in names if sizes[name] > 1) for names in compat.split_of(aval))
        for aval in avals
    ]
    _, changed = rule.propagate(sizes, given)
    summed = () if problem.operator == "conv_wgrad" else rule.summed_over(sizes, given)
    if changed or summed:
        shown = " and ".join(f"{aval.shape} split as {compat.partitions(aval)}" for aval in avals)
        reason = (
            f"the sum over mesh axes {summed} could be sharded in several ways"
            if summed
            else "their shardings conflict"
        )
        raise compat.ShardingTypeError(
            f"{problem.operator}: the sharding of the result of operands {shown} is ambiguous, because "
            f"{reason}; give them unambiguous shardings with jax.reshard"
        )


# Derivatives, by the position of the operand that is transposed: the operator, and whether the cotangent is
# its first operand.
_TRANSPOSED: dict[ConvOperator, tuple[tuple[ConvOperator, bool], tuple[ConvOperator, bool]]] = {
    "conv_fprop": (("conv_dgrad", True), ("conv_wgrad", False)),
    "conv_dgrad": (("conv_fprop", True), ("conv_wgrad", True)),
    "conv_wgrad": (("conv_dgrad", False), ("conv_fprop", False)),
}


def transpose(
    position: int, ct: Array, first: Any, second: Any, *, problem: ConvProblem, decision: Any
) -> Array:
    """A cotangent has its result's dtype, which preferred_element_type may have made wider than the
    operands': the product is then taken in the wider dtype and rounded once."""
    operator, cotangent_first = _TRANSPOSED[problem.operator][position]
    target, known = ((first, second), (second, first))[position]
    wide = wider_dtype(ct.dtype, known.dtype)
    operands = compat.cast(ct, wide), compat.cast(known, wide)
    derivative = ConvProblem.make(operator, problem.geometry, wide, wide, problem.precision)
    result = bind(derivative, *(operands if cotangent_first else operands[::-1]))
    return compat.reshard_like(compat.cast(result, target.aval.dtype), target.aval)


def batch_operator(
    operands: Any, axes: Any, *, problem: ConvProblem, decision: Any
) -> tuple[Array, int]:
    return batch(bind, tuple(operands), tuple(axes), problem.resolved())


def lax_parameters(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of `lax.conv_general_dilated_p` for the convolution x -> y."""
    problem: ConvProblem = params["problem"]
    config = problem.geometry.config
    return {
        "window_strides": config.strides,
        "padding": config.padding,
        "lhs_dilation": (1,) * config.spatial_rank,
        "rhs_dilation": config.dilation,
        "dimension_numbers": config.dimension_numbers,
        "feature_group_count": config.groups,
        "batch_group_count": 1,
        "precision": problem.precision,
        "preferred_element_type": problem.result_dtype,
    }


def _lower(
    platform: str | None,
    ctx: Any,
    first: Any,
    second: Any,
    *,
    problem: ConvProblem,
    decision: Decision | None,
) -> Any:
    """Decides, unless `install` has, and emits: the whole operator, or each device's shard of it."""
    if decision is None:
        custom_calls = not compat.is_partitioned_without_custom_calls(ctx)
        decision = decide(problem, Target.of(platform, custom_calls))
    # Profiles show the operator's name, whatever it is lowered to.
    run = jax.named_scope(problem.operator)(functools.partial(emit, decision))
    make_call = None
    if platform is not None:
        make_call = functools.partial(sharding.partitioned_call, problem, decision)
    return custom_partitioning.lower_fun(run, make_call)(ctx, first, second)


def _define(operator: ConvOperator) -> None:
    primitive = PRIMITIVES[operator]
    primitive.def_impl(functools.partial(compat.apply_primitive, primitive))
    primitive.def_abstract_eval(functools.partial(abstract_result, operator))
    ad.defbilinear(primitive, functools.partial(transpose, 0), functools.partial(transpose, 1))
    batching.primitive_batchers[primitive] = batch_operator
    compat.checkpoint_like(primitive, lax.conv_general_dilated_p, lax_parameters)
    compat.differentiate_like(primitive, lax.conv_general_dilated_p)
    for platform in (None, "cpu", "cuda"):
        compat.register_lowering(primitive, functools.partial(_lower, platform), platform=platform)


for _operator in PRIMITIVES:
    _define(_operator)

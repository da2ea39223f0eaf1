"""Adapters whose vjp is their own contract's gradient operator.

An adapter is wired to that operator by `jax.custom_vjp`, so what `jax.grad` computes is the operator itself.
It saves the operands that the needed gradients read, and computes those gradients alone, in one call.

NOTE [Forward mode]. A function with a custom vjp has no forward mode. JAX finds out when it evaluates a
tangent, or when it lowers a program that holds one, and its error names no function. So the operands first
pass through `adapter_operands_p`, an identity whose tangents are linear identities, `adapter_tangent_p`.
Reverse mode transposes these and never evaluates them. Forward mode does evaluate them, in front of JAX's own
check, and they raise an error that names the layer to use. The identity takes all operands at once, because
it vanishes with the first derivative in any of them, as the custom vjp does: what follows are derivatives of
the operators, which have both modes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
from jax import Array
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from jax_convgrad._src import compat


@dataclasses.dataclass(frozen=True)
class Contract:
    """What the error about forward mode names.

    Attributes:
      forward: the adapter, such as "onnx.conv".
      gradient: its gradient operators.
      layer: the layer of this package that computes the same and has forward mode.
    """

    forward: str
    gradient: str
    layer: str

    @property
    def no_forward_mode(self) -> str:
        return (
            f"{self.forward}: the derivative is the operator {self.gradient}, which is for reverse mode "
            f"(jax.grad, jax.vjp); for forward mode (jax.jvp, jax.jacfwd, jax.linearize) use "
            f"{self.layer}, which has both"
        )


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Needed:
    """For each operand, whether its gradient is needed."""

    operands: tuple[bool, ...]


def call(
    contract: Contract,
    forward: Callable[..., Array],
    backward: Callable[[Array, Sequence[Array | None], Sequence[bool]], Sequence[Array | None]],
    reads: Sequence[Sequence[int]],
    operands: Sequence[Array],
) -> Array:
    """``forward(*operands)``, whose vjp is ``backward``.

    Args:
      contract: see `Contract`.
      forward: the forward operator.
      backward: from the result's gradient, the operands (None where not saved) and which gradients are
        needed to those gradients, in one call.
      reads: for each operand, the positions of the operands that its gradient reads.
      operands: the arrays.
    """
    operands = compat.match_varying(*operands)
    types = [jax.typeof(operand) for operand in operands]

    @jax.custom_vjp
    def adapter(*operands: Array) -> Array:
        return forward(*operands)

    def saving(*primals: Any) -> tuple[Array, tuple[_Needed, list[Array | None]]]:
        needed = tuple(primal.perturbed for primal in primals)
        read = {i for of, wanted in zip(reads, needed, strict=True) if wanted for i in of}
        values = [primal.value for primal in primals]
        saved = [value if i in read else None for i, value in enumerate(values)]
        return forward(*values), (_Needed(needed), saved)

    def pulling_back(residuals: Any, ct: Any) -> tuple[Array | None, ...]:
        needed, saved = residuals
        if isinstance(ct, SymbolicZero):
            return (None,) * len(operands)
        gradients = backward(ct, saved, needed.operands)
        return tuple(
            None if gradient is None else compat.reshard_like(gradient, aval)
            for gradient, aval in zip(gradients, types, strict=True)
        )

    adapter.defvjp(saving, pulling_back, symbolic_zeros=True)
    return adapter(*adapter_operands_p.bind(*operands, contract=contract))


# NOTE [Forward mode].

adapter_operands_p = Primitive("adapter_operands")
adapter_operands_p.multiple_results = True
adapter_tangent_p = Primitive("adapter_tangent")


def _differentiate(primals: Any, tangents: Any, *, contract: Contract) -> tuple[Any, Any]:
    return primals, [
        tangent if type(tangent) is ad.Zero else adapter_tangent_p.bind(tangent, contract=contract)
        for tangent in tangents
    ]


def _transpose(ct: Any, tangent: Any, *, contract: Contract) -> list[Any]:
    return [ct]


def _refuse(*_: Any, contract: Contract) -> NoReturn:
    raise TypeError(contract.no_forward_mode)


def _batch_operands(operands: Any, dims: Any, *, contract: Contract) -> tuple[Any, Any]:
    return adapter_operands_p.bind(*operands, contract=contract), dims


def _batch_tangent(operands: Any, dims: Any, *, contract: Contract) -> tuple[Array, Any]:
    return adapter_tangent_p.bind(*operands, contract=contract), *dims


adapter_operands_p.def_impl(lambda *operands, contract: list(operands))
adapter_operands_p.def_abstract_eval(lambda *operands, contract: list(operands))
ad.primitive_jvps[adapter_operands_p] = _differentiate
batching.primitive_batchers[adapter_operands_p] = _batch_operands
compat.register_lowering(adapter_operands_p, lambda ctx, *operands, contract: list(operands))

adapter_tangent_p.def_impl(_refuse)
adapter_tangent_p.def_abstract_eval(lambda operand, contract: operand)
ad.deflinear2(adapter_tangent_p, _transpose)
batching.primitive_batchers[adapter_tangent_p] = _batch_tangent
compat.register_lowering(adapter_tangent_p, lambda ctx, *_, contract: _refuse(contract=contract))

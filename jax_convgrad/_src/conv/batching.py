"""How `jax.vmap` maps the convolution family.

If one operand is mapped, its examples fold into another axis: one that it shares with the result and not
with the other operand (the batch, or the channels of one side). If both operands are mapped, the examples
become groups. An array whose examples already lie beside that axis is not moved, and results keep the order
in which they come: an operation that sums over the examples of a gradient, or convolves them again, then
reads them in place.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

from jax_convgrad._src.conv.geometry import ConvConfig, Factor, Role
from jax_convgrad._src.dispatch.problem import ConvProblem

# For each array that has a factor, which entry of its specification the factor's axis is, and whether the
# examples go inside each group of that axis.
_AXES: dict[Factor, dict[Role, tuple[int, bool]]] = {
    "batch": {"x": (0, False), "y": (0, False)},
    "in_channels": {"x": (1, True), "w": (1, False)},
    "out_channels": {"w": (0, True), "y": (1, True)},
    "groups": {"x": (1, False), "w": (0, False), "y": (1, False)},
}


def batch(
    bind: Callable[[ConvProblem, Array, Array], Array],
    operands: tuple[Array, Array],
    axes: tuple[int | None, int | None],
    problem: ConvProblem,
) -> tuple[Array, int]:
    """The mapped operator, and where the examples are in its result."""
    pairs = list(zip(operands, axes, strict=True))
    size = next(operand.shape[axis] for operand, axis in pairs if axis is not None)
    factor = _factor(problem, axes)
    if not isinstance(size, int) and factor != "batch":
        # Symbolic: neither here nor in lax can a program have an unknown number of groups or channels.
        return _one_after_another(lambda *both: bind(problem, *both), pairs), 0
    if isinstance(size, int) and size == 0:
        return jnp.zeros((0, *problem.result_shape), problem.result_dtype), 0
    config = problem.geometry.config
    folded = [
        array if axis is None else _fold(array, axis, *_place(config, factor, role))
        for (array, axis), role in zip(pairs, problem.operand_roles, strict=True)
    ]
    result = bind(problem.replace(geometry=problem.geometry.grown(factor, size)), *folded)
    return _unfold(result, size, *_place(config, factor, problem.result_role))


def _factor(problem: ConvProblem, axes: tuple[int | None, int | None]) -> Factor:
    """The factor that grows by the number of examples."""
    if None not in axes:
        return "groups"
    mapped = problem.operand_roles[0 if axes[1] is None else 1]
    shared = {mapped, problem.result_role}
    return next(factor for factor, roles in _AXES.items() if set(roles) == shared)


def _place(config: ConvConfig, factor: Factor, role: Role) -> tuple[int, int]:
    """The axis of an array that holds the factor, and the groups inside which the examples go."""
    entry, inside_groups = _AXES[factor][role]
    return config.spec_of(role)[entry], config.groups if inside_groups else 1


def _fold(array: Array, mapped: int, axis: int, groups: int) -> Array:
    """Merges the mapped axis into ``axis``, counted as in one example, inside each of its groups."""
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


def _unfold(array: Array, size: int, axis: int, groups: int) -> tuple[Array, int]:
    """Takes the examples out of ``axis`` again, and says where they then are."""
    shape = array.shape
    before, after = shape[:axis], shape[axis + 1 :]
    rest = shape[axis] // (size * groups)
    if groups > 1:
        array = jnp.moveaxis(array.reshape(*before, groups, size, rest, *after), axis + 1, axis)
    return array.reshape(*before, size, groups * rest, *after), axis


def _one_after_another(bind: Callable[..., Array], pairs: list[tuple[Array, int | None]]) -> Array:
    mapped = [jnp.moveaxis(array, axis, 0) for array, axis in pairs if axis is not None]

    def one(examples: list[Array]) -> Array:
        rest = iter(examples)
        return bind(*(array if axis is None else next(rest) for array, axis in pairs))

    stacked: Array = lax.map(one, mapped)
    return stacked

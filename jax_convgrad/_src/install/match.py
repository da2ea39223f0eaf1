"""Which member of the family a `lax.conv_general_dilated` equation is, from its parameters alone.

lax has one operation for everything: user code, its own transposition rules and its batching rule all
emit it. Along each spatial axis it joins element i of lhs, j of rhs and k of the result where

    i * lhs_dilation - j * rhs_dilation - k * window_stride + low = 0

and the family's own rule, for element p of x, i of y and tap t of w, is

    p - i * stride - t * dilation + low = 0.

So the array whose factor is 1 can be x, and the two others y and w in either order: six matches of one
equation, of which several may be possible. The sign of a factor changes by reversing one of the arrays. What
the result is names the operator: y is fprop's, x is dgrad's, w is wgrad's.

NOTE [Which array is w]. Every match computes the same numbers; the right one has the images' batch where the
handlers look for it. The other axes have three roles, each shared by two of the arrays; N is the one that w
does not have. Nearly all programs, and so the gradients derived from them, have N in front of both images:
where two arrays have the role that they share in front, the third is w. Where none have, the groups tell, and
without any w is the array of the smallest dilated extent.

NOTE [Reversals]. fprop as lax emits it, and wgrad of a plain convolution, need none. dgrad needs rhs
reversed, which lax has just done by an operation of its own before the equation: the two cancel in XLA's
simplifier, and the handler reads the weights as they lie. wgrad of a transposed convolution has its result
reversed, as large as the weights. Images are reversed in second derivatives only, by lax too, and cancel.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from jax import Array, lax

from jax_convgrad._src.conv.arrays import move_groups
from jax_convgrad._src.conv.geometry import MAX_SPATIAL_RANK, ConvConfig, ConvGeometry, dilated
from jax_convgrad._src.dispatch.problem import ConvOperator
from jax_convgrad._src.shapes import Shape

_LHS, _RHS, _OUT = "lhs", "rhs", "out"
_OPERATORS: dict[str, ConvOperator] = {"y": "conv_fprop", "x": "conv_dgrad", "w": "conv_wgrad"}


@dataclasses.dataclass(frozen=True)
class Match:
    """A convolution of lax as one operator of the family.

    Attributes:
      operator: "conv_fprop", "conv_dgrad" or "conv_wgrad".
      geometry: of the convolution x -> y underneath, groups where the family has them.
      swapped: whether lax's rhs is the operator's first operand and lhs the second.
      reversed_array: lax's array, "rhs" or "out", whose spatial axes are reversed; None for neither.
      group_axis_move: (source, target) axes between which the groups of w are moved, from where lax has
        them to where the family has them for an operand, the other way round for a result; None where they
        are in place.
    """

    operator: ConvOperator
    geometry: ConvGeometry
    swapped: bool
    reversed_array: str | None
    group_axis_move: tuple[int, int] | None

    def operands(self, lhs: Array, rhs: Array) -> tuple[Array, Array]:
        """The operator's operands."""
        config = self.geometry.config
        if self.reversed_array == _RHS:
            # The spatial axes of rhs: those of w as dgrad's second operand, of y as its first.
            spec = config.spec_of("y" if self.swapped else "w")
            rhs = lax.rev(rhs, spec[2:])
        if self.group_axis_move is not None and self.operator != "conv_wgrad":
            rhs = move_groups(rhs, config.groups, *self.group_axis_move)
        return (rhs, lhs) if self.swapped else (lhs, rhs)

    def result(self, out: Array) -> Array:
        """lax's result from the operator's."""
        config = self.geometry.config
        if self.reversed_array == _OUT:
            spec = config.spec_of("w" if self.operator == "conv_wgrad" else "y")
            out = lax.rev(out, spec[2:])
        if self.group_axis_move is not None and self.operator == "conv_wgrad":
            out = move_groups(out, config.groups, *self.group_axis_move)
        return out

    def apply(self, lhs: Array, rhs: Array, run: Callable[[Array, Array], Array]) -> Array:
        """The equation's result; ``run`` computes the operator of its own operands."""
        return self.result(run(*self.operands(lhs, rhs)))


@dataclasses.dataclass(frozen=True)
class NoMatch:
    """Why an equation is no operator of the family."""

    reason: str


def match(
    lhs_shape: Shape,
    rhs_shape: Shape,
    out_shape: Shape,
    *,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    dimension_numbers: lax.ConvDimensionNumbers,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
) -> Match | NoMatch:
    """The match of an equation, or why it is outside the family or would have to copy images.

    The arguments are an equation's own parameters and shapes. Outside are: other than one to three spatial
    axes, symbolic spatial sizes, arrays without elements, axes of which none of the three arrays has the
    factor 1 (or not the same array in all axes), and groups that the match has at another place.
    """
    rank = len(dimension_numbers.lhs_spec) - 2
    shapes = {_LHS: lhs_shape, _RHS: rhs_shape, _OUT: out_shape}
    specs = dict(zip((_LHS, _RHS, _OUT), map(tuple, dimension_numbers), strict=True))
    if not 1 <= rank <= MAX_SPATIAL_RANK:
        return NoMatch(f"{rank} spatial axes, not 1 to {MAX_SPATIAL_RANK}")
    sizes = {name: tuple(shapes[name][axis] for axis in specs[name][2:]) for name in shapes}
    if not all(isinstance(n, int | np.integer) for spatial in sizes.values() for n in spatial):
        return NoMatch("symbolic spatial sizes")
    if any(isinstance(n, int | np.integer) and n == 0 for shape in shapes.values() for n in shape):
        return NoMatch("an array without elements")
    # The factor of an axis with one element stands for nothing, whatever it is.
    factors = {
        name: tuple(1 if n == 1 else int(f) for n, f in zip(sizes[name], given, strict=True))
        for name, given in ((_LHS, lhs_dilation), (_RHS, rhs_dilation), (_OUT, window_strides))
    }
    # Feature groups share out the channels of lhs and of the result, batch groups the batch of lhs and the
    # channels of the result: N is none of the two, which leaves one array for w.
    groups = feature_group_count * batch_group_count
    grouped = None if groups == 1 else _RHS if feature_group_count > 1 else _OUT
    weights = _weights_behind_batch(specs) or grouped or _smallest(sizes, factors)
    if grouped not in (None, weights):
        return NoMatch("groups where the family has none: it would have to copy images")
    image = _image(weights, specs, factors)
    if image is None:
        return NoMatch("strided or dilated in all three arrays, as no member of the family is")
    return _matched(
        image,
        weights,
        shapes,
        specs,
        sizes,
        factors,
        tuple(low for low, _ in padding),
        groups,
    )


def _weights_behind_batch(specs: dict[str, Shape]) -> str | None:
    """w where the two other arrays have the role that they share in front, as N."""
    shared = {
        _RHS: (specs[_LHS][0], specs[_OUT][0]),
        _OUT: (specs[_LHS][1], specs[_RHS][1]),
        _LHS: (specs[_RHS][0], specs[_OUT][1]),
    }
    return next((weights for weights, axes in shared.items() if axes == (0, 0)), None)


def _smallest(sizes: dict[str, Shape], factors: dict[str, tuple[int, ...]]) -> str:
    """The array of the smallest extent; its own factor is what it is dilated by as w."""
    extents = {
        name: math.prod(map(dilated, sizes[name], factors[name])) for name in (_RHS, _OUT, _LHS)
    }
    return min(extents, key=lambda name: extents[name])


def _image(
    weights: str, specs: dict[str, Shape], factors: dict[str, tuple[int, ...]]
) -> str | None:
    """Which of the two arrays beside w is x: one whose factor is 1 along all axes."""
    order = {_RHS: [_LHS, _OUT], _OUT: [_LHS, _RHS], _LHS: [_OUT, _RHS]}[weights]
    possible = [name for name in order if set(factors[name]) == {1}]
    if len(possible) == 2 and weights == _RHS and _looks_transposed(specs[_RHS]):
        return _OUT
    return possible[0] if possible else None


def _looks_transposed(spec: Shape) -> bool:
    """Whether weights lie as a gradient's do: I where layouts have O, outermost or innermost.

    With stride 1 a convolution and an input gradient are the same map, except for a reversed kernel.
    """
    ends = (0, len(spec) - 1)
    return (spec[1] in ends and spec[0] not in ends) or spec[:2] == (1, 0)


def _matched(
    image: str,
    weights: str,
    shapes: dict[str, Shape],
    specs: dict[str, Shape],
    sizes: dict[str, Shape],
    factors: dict[str, tuple[int, ...]],
    lows: tuple[int, ...],
    groups: int,
) -> Match:
    (other,) = {_LHS, _RHS, _OUT} - {image, weights}
    operator = _OPERATORS[{image: "x", weights: "w", other: "y"}[_OUT]]
    strides, dilation = factors[other], factors[weights]
    # With lhs as x the signs are the family's. Otherwise one index runs backwards: that of the result
    # where rhs is x, that of rhs where the result is x.
    reversed_array = {_LHS: None, _RHS: _OUT, _OUT: _RHS}[image]
    if reversed_array is not None:
        lows = tuple(
            (n - 1) * f - low
            for n, f, low in zip(sizes[reversed_array], factors[reversed_array], lows, strict=True)
        )
    padding = tuple(map(_pair, sizes[image], sizes[weights], sizes[other], strides, dilation, lows))
    x_spec, w_spec, y_spec = _family_specs(image, weights, other, specs)
    w_shape, move = list(shapes[weights]), None
    if groups > 1 and image != _LHS:
        # The groups lie on the axis of w that the family has for input channels.
        inputs, outputs = w_spec[1], w_spec[0]
        w_shape[inputs] //= groups
        w_shape[outputs] *= groups
        move = (outputs, inputs) if weights == _OUT else (inputs, outputs)
    numbers = lax.ConvDimensionNumbers(x_spec, w_spec, y_spec)
    config = ConvConfig(strides, padding, dilation, groups, numbers)
    return Match(
        operator=operator,
        geometry=ConvGeometry.make(operator, config, tuple(shapes[image]), tuple(w_shape)),
        swapped=_is_swapped(operator, image, weights),
        reversed_array=reversed_array,
        group_axis_move=move,
    )


def _is_swapped(operator: str, image: str, weights: str) -> bool:
    """Operators take (x, w), (dy, w) and (x, dy); lax has (lhs, rhs)."""
    if operator == "conv_wgrad":
        return image == _RHS
    return weights == _LHS


def _family_specs(
    image: str, weights: str, other: str, specs: dict[str, Shape]
) -> tuple[Shape, Shape, Shape]:
    """x (N, C, ...), w (O, C, ...), y (N, O, ...) from lhs (a, b, ...), rhs (o, b, ...), out (a, o, ...)."""
    roles = {_LHS: "ab", _RHS: "ob", _OUT: "ao"}

    def spec(name: str, *wanted: str) -> Shape:
        return (*(specs[name][roles[name].index(role)] for role in wanted), *specs[name][2:])

    def shared(first: str, second: str) -> str:
        (role,) = set(roles[first]) & set(roles[second])
        return role

    n, c, o = shared(image, other), shared(image, weights), shared(weights, other)
    return spec(image, n, c), spec(weights, o, c), spec(other, n, o)


def _pair(
    size: int, taps: int, windows: int, stride: int, dilation: int, low: int
) -> tuple[int, int]:
    """The padding of x that gives exactly ``windows`` windows from ``low`` on.

    As many high sides do as the stride is long: the same as the low side if that is among them, which
    libraries like best, then none, then the one nearest to none.
    """
    smallest = (windows - 1) * stride + dilated(taps, dilation) - size - low
    largest = smallest + stride - 1
    for high in (low, 0):
        if high >= 0 and smallest <= high <= largest:
            return low, high
    return low, largest if largest < 0 else smallest

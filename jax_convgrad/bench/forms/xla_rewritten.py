"""A transposed convolution rewritten in pure JAX so that XLA sees only forms that it knows."""

from __future__ import annotations

import functools
import math

import jax

from jax_convgrad.bench.case_files import AnyCase
from jax_convgrad.bench.cases import Case, dimension_numbers
from jax_convgrad.bench.forms.jax_form import JaxForm, Pass
from jax_convgrad.bench.forms.weights import WeightsOrder, adjoint_weights
from jax_convgrad.bench.resize_cases import ResizeCase


class XlaRewrittenForm(JaxForm):
    """The best pure-JAX form of a transposed convolution: input and output exchange roles.

    The layer's input gradient is the strided convolution F(dy, w). The layer itself is F transposed
    in dy, and the weight gradient is F transposed in w with x as its cotangent, so that XLA sees only forms
    that it knows.
    """

    name = "xla_rewritten"

    def not_applicable(self, case: AnyCase) -> str | None:
        """Plain convolutions need no rewriting."""
        if isinstance(case, ResizeCase):
            return "a resize has no such form"
        return None if case.transposed else "a plain convolution already has this form"

    def function(self, case: AnyCase, pass_: str, layout: str, weights: WeightsOrder) -> Pass:
        """All passes, from the strided convolution whose adjoint the layer is."""
        assert isinstance(case, Case)  # not_applicable says so
        adjoint = functools.partial(_adjoint_conv, case, layout, weights)

        def fprop(x: jax.Array, w: jax.Array, dy: jax.Array) -> tuple[jax.Array, ...]:
            transposed = jax.linear_transpose(lambda u: adjoint(u, w), _like(dy))
            results: tuple[jax.Array] = transposed(x)
            return results

        def dx(x: jax.Array, w: jax.Array, dy: jax.Array) -> tuple[jax.Array, ...]:
            return (adjoint(dy, w),)

        def dw(x: jax.Array, w: jax.Array, dy: jax.Array) -> tuple[jax.Array, ...]:
            transposed = jax.linear_transpose(lambda v: adjoint(dy, v), _like(w))
            results: tuple[jax.Array] = transposed(x)
            return results

        def dxdwdb(x: jax.Array, w: jax.Array, dy: jax.Array) -> tuple[jax.Array, ...]:
            channel = dy.ndim - 1 if layout == "NHWC" else 1
            db = dy.sum(axis=tuple(a for a in range(dy.ndim) if a != channel))
            return (*dx(x, w, dy), *dw(x, w, dy), db)

        def ddxddw(x: jax.Array, w: jax.Array, dy: jax.Array) -> tuple[jax.Array, ...]:
            # The result of differentiating twice, see jax_form.
            (y,) = fprop(x, w, dy)
            (slope,) = dx(x, w, y - dy)
            (curvature,) = fprop(slope, w, dy)
            (first,), (second,) = dw(slope, w, y - dy), dw(x, w, curvature)
            return (*dx(x, w, curvature), first + second)

        passes = {"fprop": fprop, "dx": dx, "dw": dw, "dxdwdb": dxdwdb, "ddxddw": ddxddw}
        return passes[pass_]


def _adjoint_conv(
    case: Case, layout: str, weights: WeightsOrder, u: jax.Array, w: jax.Array
) -> jax.Array:
    """The strided convolution from the layer's output to its input, linear in `u` and `w`."""
    # Where stride and dilation have a common factor c, only every c-th element of u is ever read: we take
    # those, and divide both by c. XLA then needs no dilated gradient.
    common = tuple(map(math.gcd, case.stride, case.dilation))
    spatial = range(1, case.ndim + 1) if layout == "NHWC" else range(2, case.ndim + 2)
    padding = [(0, 0)] * case.ndim
    if all(c == 1 for c in common):
        axes = zip(case.kernel, case.padding, case.dilation, case.stride, strict=True)
        sizes = zip(case.spatial, case.out_spatial, strict=True)
        # The high side may be smaller than the low one, and negative: rows that no window reads are
        # cut off.
        padding = [
            (p, (i - 1) * s + d * (k - 1) + 1 - o - p)
            for (k, p, d, s), (i, o) in zip(axes, sizes, strict=True)
        ]
    else:
        pads, starts, steps = [(0, 0, 0)] * u.ndim, [0] * u.ndim, [1] * u.ndim
        limits = list(u.shape)
        for axis, i, k, s, p, d, c in zip(
            spatial,
            case.spatial,
            case.kernel,
            case.stride,
            case.padding,
            case.dilation,
            common,
            strict=True,
        ):
            extent = (i - 1) * s + d * (k - 1) + 1
            pads[axis] = (p, extent - u.shape[axis] - p, 0)
            limits[axis], steps[axis] = extent, c
        u = jax.lax.slice(jax.lax.pad(u, u.dtype.type(0), pads), starts, limits, steps)
    w, order = _adjoint_operand(w, case, weights)
    return jax.lax.conv_general_dilated(
        u,
        w,
        window_strides=[s // c for s, c in zip(case.stride, common, strict=True)],
        padding=padding,
        rhs_dilation=[d // c for d, c in zip(case.dilation, common, strict=True)],
        dimension_numbers=dimension_numbers(case.ndim, layout, order),
        feature_group_count=case.groups,
    )


def _adjoint_operand(w: jax.Array, case: Case, weights: WeightsOrder) -> tuple[jax.Array, str]:
    """The strided convolution's weights and their order, from the weights that the layer is given."""
    if not weights.transpose_kernel:
        order = "OIHW" if weights.order == "OIHW" else "HWIO"
        return adjoint_weights(w, case, order), order
    if case.groups == 1:
        return w, "OHWI"  # unchanged
    return adjoint_weights(weights.restore(w), case, "HWIO"), "HWIO"


def _like(array: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)

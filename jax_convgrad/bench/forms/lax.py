"""The layers of plain JAX."""

from __future__ import annotations

import jax

from jax_convgrad.bench.case_files import AnyCase
from jax_convgrad.bench.cases import dimension_numbers
from jax_convgrad.bench.forms import resize
from jax_convgrad.bench.forms.jax_form import JaxForm, Pass, dilated_padding, layer_pass
from jax_convgrad.bench.forms.weights import WeightsOrder
from jax_convgrad.bench.resize_cases import ResizeCase


class LaxForm(JaxForm):
    """Plain JAX. A transposed convolution is the input-dilated convolution.

    A resize is jax.image's.
    """

    name = "lax"

    def function(self, case: AnyCase, pass_: str, layout: str, weights: WeightsOrder) -> Pass:
        """lax.conv_general_dilated, which lax.conv_transpose calls, and its jax.vjp."""
        if isinstance(case, ResizeCase):
            return resize.jax_image(case, pass_, layout)
        numbers = dimension_numbers(case.ndim, layout, weights.letters)
        strides, dilation = case.stride, (1,) * case.ndim
        padding = [(p, p) for p in case.padding]
        if case.transposed:
            strides, dilation, padding = dilation, strides, dilated_padding(case)

        def layer(x: jax.Array, w: jax.Array, bias: jax.Array | None) -> jax.Array:
            y = jax.lax.conv_general_dilated(
                x,
                weights.straight(w),
                strides,
                padding,
                lhs_dilation=dilation,
                rhs_dilation=case.dilation,
                dimension_numbers=numbers,
                feature_group_count=case.groups,
            )
            return y if bias is None else y + _bias_to(bias, layout, case.ndim)

        return layer_pass(layer, case.cout, pass_)


def _bias_to(bias: jax.Array, layout: str, ndim: int) -> jax.Array:
    return bias if layout == "NHWC" else bias.reshape(-1, *(1,) * ndim)

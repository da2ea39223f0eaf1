"""This package's layers."""

from __future__ import annotations

import jax

from jax_convgrad.bench.case_files import AnyCase
from jax_convgrad.bench.cases import dimension_numbers
from jax_convgrad.bench.forms import resize
from jax_convgrad.bench.forms.jax_form import JaxForm, Pass, dilated_padding, layer_pass
from jax_convgrad.bench.forms.weights import WeightsOrder
from jax_convgrad.bench.resize_cases import ResizeCase


class OursForm(JaxForm):
    """The layers of this package."""

    name = "ours"

    def function(self, case: AnyCase, pass_: str, layout: str, weights: WeightsOrder) -> Pass:
        """The layer of the same name as lax's, differentiated by jax.vjp."""
        import jax_convgrad

        if isinstance(case, ResizeCase):
            return resize.ours(case, pass_, layout)
        numbers = dimension_numbers(case.ndim, layout, weights.axes)

        def layer(x: jax.Array, w: jax.Array, bias: jax.Array | None) -> jax.Array:
            if case.transposed:
                return jax_convgrad.conv_transpose(
                    x,
                    w,
                    case.stride,
                    dilated_padding(case),
                    rhs_dilation=case.dilation,
                    dimension_numbers=numbers,
                    transpose_kernel=weights.transpose_kernel,
                    feature_group_count=case.groups,
                    bias=bias,
                )
            return jax_convgrad.conv_general_dilated(
                x,
                w,
                case.stride,
                [(p, p) for p in case.padding],
                rhs_dilation=case.dilation,
                dimension_numbers=numbers,
                feature_group_count=case.groups,
                bias=bias,
            )

        return layer_pass(layer, case.cout, pass_)

"""Bad input: every row a clear error of the right type, raised while tracing.

The rows of the compiled handlers, called past Python, are in cpu/test_handlers.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_convgrad as jc

NHWC = ("NHWC", "HWIO", "NHWC")


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.float32)


def of(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


@dataclasses.dataclass(frozen=True)
class Row:
    id: str
    call: Callable[..., Any]
    arrays: tuple[jax.ShapeDtypeStruct, ...]
    error: type[Exception]
    text: str  # a regular expression: names the argument, shows what was given


X, W = f32(2, 4, 9, 9), f32(6, 4, 3, 3)  # NCHW, OIHW
DY = f32(2, 6, 7, 7)
TX, TW = f32(2, 9, 9, 4), f32(3, 3, 4, 6)  # NHWC, HWIO


def fprop(**keywords: Any) -> Callable[..., Any]:
    return lambda x, w: jc.conv_fprop(x, w, **keywords)


def dgrad(x_shape: Any = (2, 4, 9, 9), **keywords: Any) -> Callable[..., Any]:
    return lambda dy, w: jc.conv_dgrad(dy, w, x_shape, **keywords)


def wgrad(w_shape: Any = (6, 4, 3, 3), **keywords: Any) -> Callable[..., Any]:
    return lambda x, dy: jc.conv_wgrad(x, dy, w_shape, **keywords)


def conv(strides: Any = (1, 1), padding: Any = "SAME", **keywords: Any) -> Callable[..., Any]:
    def call(x: Any, w: Any, bias: Any = None) -> Any:
        return jc.conv_general_dilated(x, w, strides, padding, bias=bias, **keywords)

    return call


def transpose(strides: Any = (2, 2), padding: Any = "SAME", **keywords: Any) -> Callable[..., Any]:
    def call(x: Any, w: Any, bias: Any = None) -> Any:
        return jc.conv_transpose(x, w, strides, padding, bias=bias, **keywords)

    return call


V, T = ValueError, TypeError
SHAPES = r"\(2, 4, 9, 9\).*\(6, 4, 3, 3\)"
ROWS = [
    # Ranks and channels.
    Row(
        "ranks-differ",
        fprop(),
        (X, f32(6, 4, 3)),
        V,
        r"conv_fprop.*same rank.*\(2, 4, 9, 9\).*\(6, 4, 3\)",
    ),
    Row("rank-1", fprop(), (f32(4), f32(4)), V, r"conv_fprop.*batch and a channel axis.*\(4,\)"),
    Row("rank-2", fprop(), (f32(4, 3), f32(4, 3)), V, r"conv_fprop.*1 to 3 spatial axes.*\(4, 3\)"),
    Row(
        "rank-6",
        wgrad((1, 1, 2, 2, 2, 2)),
        (f32(1, 1, 3, 3, 3, 3), f32(1, 1, 2, 2, 2, 2)),
        V,
        r"conv_wgrad.*1 to 3 spatial axes.*\(1, 1, 3, 3, 3, 3\)",
    ),
    Row(
        "channels-differ",
        fprop(),
        (X, f32(6, 5, 3, 3)),
        V,
        r"w must have 4/1 = 4 input.*got 5.*\(6, 5, 3, 3\)",
    ),
    Row("groups-do-not-divide-in", fprop(groups=3), (X, W), V, r"4 channels.*groups=3.*" + SHAPES),
    Row(
        "groups-do-not-divide-out",
        fprop(groups=4),
        (X, f32(6, 1, 3, 3)),
        V,
        r"6 output channels.*groups=4.*\(6, 1, 3, 3\)",
    ),
    Row("groups-zero", fprop(groups=0), (X, W), V, r"groups must be at least 1, got 0"),
    Row("groups-negative", fprop(groups=-2), (X, W), V, r"groups must be at least 1, got -2"),
    Row("groups-float", fprop(groups=2.0), (X, W), T, r"groups must be integers, got 2\.0"),
    # Strides and dilation.
    Row("stride-zero", fprop(strides=(1, 0)), (X, W), V, r"strides must be at least 1.*\(1, 0\)"),
    Row("stride-negative", fprop(strides=-1), (X, W), V, r"strides must be at least 1.*-1"),
    Row("stride-float", fprop(strides=(1.5, 2)), (X, W), T, r"strides must be integers.*1\.5"),
    Row("stride-nan", fprop(strides=float("nan")), (X, W), T, r"strides must be integers.*nan"),
    Row("stride-bool", fprop(strides=True), (X, W), T, r"strides must be integers.*True"),
    Row("stride-string", fprop(strides="2"), (X, W), T, r"strides must be integers.*'2'"),
    Row(
        "too-many-strides",
        fprop(strides=(1, 1, 1)),
        (X, W),
        V,
        r"strides.*2 spatial axes.*\(1, 1, 1\).*" + SHAPES,
    ),
    Row("dilation-zero", fprop(dilation=0), (X, W), V, r"dilation must be at least 1.*0"),
    Row("dilation-length", fprop(dilation=(1,)), (X, W), V, r"dilation.*2 spatial axes.*\(1,\)"),
    Row(
        "dilation-none-in-list", fprop(dilation=(None, 1)), (X, W), T, r"dilation must be integers"
    ),
    # Padding.
    Row("padding-name", fprop(padding="FULL"), (X, W), V, r"padding must be one of SAME.*'FULL'"),
    Row(
        "padding-length", fprop(padding=((1, 1),)), (X, W), V, r"padding.*2 spatial axes.*" + SHAPES
    ),
    Row(
        "padding-triple",
        fprop(padding=((1, 1, 1), (0, 0))),
        (X, W),
        V,
        r"padding must be \(low, high\) pairs",
    ),
    Row(
        "padding-number",
        fprop(padding=1),
        (X, W),
        T,
        r"padding must be a string or \(low, high\) pairs, got 1",
    ),
    Row(
        "padding-numbers",
        fprop(padding=(1, 1)),
        (X, W),
        T,
        r"padding must be a string or \(low, high\)",
    ),
    Row(
        "padding-float",
        fprop(padding=((0.5, 1), (0, 0))),
        (X, W),
        T,
        r"padding must be integers.*0\.5",
    ),
    Row(
        "crop-too-much",
        fprop(padding=((-5, -5), (0, 0))),
        (X, W),
        V,
        r"negative padding \(-5, -5\).*9.*" + SHAPES,
    ),
    # Dimension numbers.
    Row(
        "dimension-letters",
        fprop(dimension_numbers=("NCHW", "OIXY", "NCHW")),
        (X, W),
        T,
        r"dimension_numbers",
    ),
    Row(
        "dimension-length",
        fprop(dimension_numbers=("NCH", "OIH", "NCH")),
        (X, W),
        T,
        r"dimension_numbers.*" + SHAPES,
    ),
    Row(
        "dimension-not-a-permutation",
        fprop(
            dimension_numbers=jax.lax.ConvDimensionNumbers((0, 0, 1, 2), (0, 1, 2, 3), (0, 1, 2, 3))
        ),
        (X, W),
        V,
        r"dimension_numbers.*permutations.*" + SHAPES,
    ),
    Row("dimension-number", fprop(dimension_numbers=3), (X, W), T, r"dimension_numbers=3"),
    # Dtypes.
    Row(
        "mixed-dtypes",
        fprop(),
        (X, of(jnp.bfloat16, 6, 4, 3, 3)),
        T,
        r"same dtype; x is float32, w is bfloat16",
    ),
    Row(
        "integer-dtype",
        fprop(),
        (of(np.int32, 2, 4, 9, 9), of(np.int32, 6, 4, 3, 3)),
        T,
        r"x is int32",
    ),
    Row(
        "bool-dtype",
        dgrad(),
        (of(np.bool_, 2, 6, 7, 7), of(np.bool_, 6, 4, 3, 3)),
        T,
        r"dy is bool",
    ),
    Row(
        "complex-dtype",
        wgrad(),
        (of(np.complex64, 2, 4, 9, 9), of(np.complex64, 2, 6, 7, 7)),
        T,
        r"x is complex64",
    ),
    Row(
        "narrower-result",
        fprop(preferred_element_type=jnp.float16),
        (X, W),
        T,
        r"preferred_element_type=float16",
    ),
    Row(
        "integer-result",
        fprop(preferred_element_type=jnp.int32),
        (X, W),
        T,
        r"preferred_element_type.*int32",
    ),
    # Operators' own arguments.
    Row(
        "dgrad-dy-shape",
        dgrad(),
        (f32(2, 6, 8, 7), W),
        V,
        r"conv_dgrad: dy.*\(2, 6, 7, 7\), got \(2, 6, 8, 7\)",
    ),
    Row("dgrad-x-rank", dgrad((2, 4, 9)), (DY, W), V, r"x_shape must have 4 entries.*\(2, 4, 9\)"),
    Row("dgrad-x-float", dgrad((2, 4, 9.0, 9)), (DY, W), T, r"x_shape must be integers"),
    Row("dgrad-x-text", dgrad((2, "4", 9, 9)), (DY, W), T, r"x_shape must be integers"),
    Row("dgrad-x-none", dgrad((2, None, 9, 9)), (DY, W), T, r"x_shape must be integers"),
    Row("dgrad-x-number", dgrad(9), (DY, W), T, r"x_shape must be a sequence.*9"),
    Row("dgrad-x-negative", dgrad((2, 4, -9, 9)), (DY, W), V, r"negative size.*\(2, 4, -9, 9\)"),
    Row(
        "wgrad-dy-shape",
        wgrad(),
        (X, f32(3, 6, 7, 7)),
        V,
        r"conv_wgrad: dy.*\(2, 6, 7, 7\), got \(3, 6, 7, 7\)",
    ),
    Row(
        "wgrad-w-nan", wgrad((6, 4, float("nan"), 3)), (X, DY), T, r"w_shape must be integers.*nan"
    ),
    Row("wgrad-w-channels", wgrad((6, 3, 3, 3)), (X, DY), V, r"4 input.*got 3.*\(6, 3, 3, 3\)"),
    # conv_general_dilated.
    Row(
        "conv-named-padding-dilated",
        conv(lhs_dilation=(2, 2)),
        (X, W),
        V,
        r"padding='SAME'.*lhs_dilation=\(2, 2\)",
    ),
    Row(
        "conv-window-strides",
        conv((1,)),
        (X, W),
        V,
        r"window_strides.*2 spatial axes.*\(1,\).*" + SHAPES,
    ),
    Row(
        "conv-lhs-dilation",
        conv(padding=((0, 0),) * 2, lhs_dilation=(0, 1)),
        (X, W),
        V,
        r"lhs_dilation.*at least 1",
    ),
    Row(
        "conv-rhs-dilation",
        conv(rhs_dilation=(1, 2.5)),
        (X, W),
        T,
        r"rhs_dilation must be integers",
    ),
    Row(
        "conv-both-groups",
        conv(feature_group_count=2, batch_group_count=2),
        (X, f32(6, 2, 3, 3)),
        V,
        r"feature_group_count=2.*batch_group_count=2.*\(2, 4, 9, 9\)",
    ),
    Row(
        "conv-batch-groups",
        conv(batch_group_count=4),
        (f32(6, 4, 9, 9), f32(8, 4, 3, 3)),
        V,
        r"batch 6.*batch_group_count=4",
    ),
    Row("conv-bias-shape", conv(), (X, W, f32(4)), V, r"bias must have shape \(6,\).*got \(4,\)"),
    Row(
        "conv-bias-rank", conv(), (X, W, f32(1, 6)), V, r"bias must have shape \(6,\).*got \(1, 6\)"
    ),
    Row("conv-bias-dtype", conv(), (X, W, of(jnp.float16, 6)), T, r"same dtype.*bias is float16"),
    # conv_transpose.
    Row(
        "transpose-channels",
        transpose(),
        (TX, f32(3, 3, 5, 6)),
        V,
        r"4 input channels, got 5.*\(3, 3, 5, 6\)",
    ),
    Row(
        "transpose-groups",
        transpose(feature_group_count=4),
        (TX, f32(3, 3, 1, 6)),
        V,
        r"6 output channels.*4 groups",
    ),
    Row("transpose-strides", transpose((0, 1)), (TX, TW), V, r"strides must be at least 1"),
    Row(
        "transpose-rank",
        transpose(),
        (f32(2, 9, 4), TW),
        V,
        r"lhs and rhs .* same rank.*lhs has shape \(2, 9, 4\).*\(3, 3, 4, 6\)",
    ),
    Row(
        "transpose-output-padding",
        transpose(output_padding=2),
        (TX, TW),
        V,
        r"output_padding.*\(2, 2\).*strides=\(2, 2\)",
    ),
    Row(
        "transpose-output-padding-negative",
        transpose(output_padding=(0, -1)),
        (TX, TW),
        V,
        r"output_padding.*\(0, -1\)",
    ),
    Row(
        "transpose-output-shape-large",
        transpose(output_shape=(40, 18)),
        (TX, TW),
        V,
        r"output_shape 40 is impossible",
    ),
    Row(
        "transpose-output-shape-zero",
        transpose(output_shape=(0, 18)),
        (TX, TW),
        V,
        r"output_shape 0 is impossible",
    ),
    Row(
        "transpose-output-shape-length",
        transpose(output_shape=(18,)),
        (TX, TW),
        V,
        r"output_shape.*2 spatial axes",
    ),
    Row(
        "transpose-output-shape-nan",
        transpose(output_shape=(float("nan"), 18)),
        (TX, TW),
        T,
        r"output_shape must be int",
    ),
    Row(
        "transpose-output-both",
        transpose(output_shape=(18, 18), output_padding=1),
        (TX, TW),
        V,
        r"output_shape=\(18, 18\).*output_padding=\(1, 1\)",
    ),
    Row(
        "transpose-crop",
        transpose(padding=((-30, -30), (0, 0))),
        (TX, TW),
        V,
        r"negative padding \(-30, -30\)",
    ),
    Row(
        "transpose-padding-length",
        transpose(padding=((1, 1),)),
        (TX, TW),
        V,
        r"padding.*2 spatial axes",
    ),
    Row(
        "transpose-bias",
        transpose(),
        (TX, TW, f32(4)),
        V,
        r"bias must have shape \(6,\).*got \(4,\)",
    ),
    Row(
        "transpose-rank-6",
        transpose((2,) * 4),
        (f32(2, 3, 3, 3, 3, 4), f32(2, 2, 2, 2, 4, 6)),
        V,
        r"no default for rank 6",
    ),
]


def test_the_table_is_long_enough():
    assert len(ROWS) >= 40
    assert len({row.id for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_bad_input(row: Row):
    for trace in (jax.eval_shape, lambda call, *arrays: jax.jit(call).trace(*arrays)):
        with pytest.raises(row.error, match=row.text) as caught:
            trace(row.call, *row.arrays)
        assert type(caught.value) is row.error


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_bad_input_of_arrays(row: Row):
    """The same with real arrays, outside any trace."""
    arrays = [jnp.zeros(array.shape, array.dtype) for array in row.arrays]
    with pytest.raises(row.error, match=row.text):
        row.call(*arrays)


def test_shapes_are_checked_again_when_a_primitive_is_bound_by_hand():
    """What a transformation gone wrong, or a caller past the operators, would do."""
    from jax_convgrad._src.conv import arguments, primitives
    from jax_convgrad._src.conv.geometry import ConvGeometry
    from jax_convgrad._src.dispatch.problem import ConvOperator, ConvProblem

    x_shape, w_shape = (2, 4, 9, 9), (6, 4, 3, 3)
    config = arguments.make_config(
        "test",
        x_shape,
        w_shape,
        strides=1,
        padding="VALID",
        dilation=1,
        groups=1,
        dimension_numbers=None,
    )
    geometry = ConvGeometry.make("test", config, x_shape, w_shape)

    def bound(operator: ConvOperator, first: Any, second: Any, of: ConvOperator) -> Any:
        problem = ConvProblem.make(of, geometry, np.float32)
        primitive = primitives.PRIMITIVES[operator]
        return primitive.bind(first, second, problem=problem, decision=None)

    x, w, dy = jnp.zeros(x_shape), jnp.zeros(w_shape), jnp.zeros((2, 6, 7, 7))
    x, w, dy = (array.astype(np.float32) for array in (x, w, dy))
    with pytest.raises(ValueError, match=r"w has shape \(6, 5, 3, 3\), the problem's has \(6, 4"):
        bound("conv_fprop", x, jnp.zeros((6, 5, 3, 3), np.float32), "conv_fprop")
    with pytest.raises(
        ValueError, match=r"dy has shape \(2, 6, 6, 7\), the problem's has \(2, 6, 7"
    ):
        bound("conv_dgrad", dy[:, :, 1:], w, "conv_dgrad")
    with pytest.raises(TypeError, match="same dtype"):
        bound("conv_wgrad", x, dy.astype(np.float16), "conv_wgrad")
    with pytest.raises(TypeError, match="operands are float64, those of the problem float32"):
        bound("conv_wgrad", x.astype(np.float64), dy.astype(np.float64), "conv_wgrad")
    with pytest.raises(ValueError, match="conv_wgrad: expected a problem of this operator"):
        bound("conv_wgrad", x, dy, "conv_dgrad")

"""The shape rules alone, against counting windows and against lax."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax_convgrad._src.conv import arguments
from jax_convgrad._src.conv.geometry import ConvGeometry, dilated


def count_windows(size: int, kernel: int, stride: int, pair: tuple[int, int], dilation: int) -> int:
    """Windows that lie inside the padded axis, one by one."""
    length = size + sum(pair)
    span = (kernel - 1) * dilation
    return sum(1 for start in range(0, length, stride) if start + span < length)


AXES = list(
    itertools.product(
        (1, 2, 5, 8), (1, 2, 3), (1, 2, 3), ((0, 0), (1, 2), (-1, 1), (4, 0)), (1, 2, 3)
    )
)


def make(size: int, kernel: int, stride: int, pair: tuple[int, int], dilation: int) -> ConvGeometry:
    config = arguments.make_config(
        "test",
        (2, 3, size),
        (4, 3, kernel),
        strides=stride,
        padding=[pair],
        dilation=dilation,
        groups=1,
        dimension_numbers=None,
    )
    return ConvGeometry.make("test", config, (2, 3, size), (4, 3, kernel))


def test_output_size_counts_windows():
    for size, kernel, stride, pair, dilation in AXES:
        geometry = make(size, kernel, stride, pair, dilation)
        assert geometry.out_spatial == (count_windows(size, kernel, stride, pair, dilation),)
        assert geometry.y_shape == (2, 4, *geometry.out_spatial)


def test_output_shape_is_lax():
    for size, kernel, stride, pair, dilation in AXES:
        expected = jax.eval_shape(
            lambda x, w, s=stride, p=pair, d=dilation: lax.conv_general_dilated(
                x, w, (s,), [p], rhs_dilation=(d,)
            ),
            jax.ShapeDtypeStruct((2, 3, size), np.float32),
            jax.ShapeDtypeStruct((4, 3, kernel), np.float32),
        )
        assert make(size, kernel, stride, pair, dilation).y_shape == expected.shape


@pytest.mark.parametrize("name", ["SAME", "SAME_LOWER", "VALID", "same"])
def test_named_padding_is_lax(name: str):
    for size, kernel, stride, dilation in itertools.product(
        (1, 4, 7), (1, 3, 4), (1, 2, 3), (1, 2)
    ):
        config = arguments.make_config(
            "test",
            (1, 1, size, 9),
            (1, 1, kernel, 3),
            strides=(stride, 1),
            padding=name,
            dilation=(dilation, 1),
            groups=1,
            dimension_numbers=None,
        )
        expected = lax.padtype_to_pads(
            (size, 9), ((kernel - 1) * dilation + 1, 3), (stride, 1), name.upper()
        )
        assert config.padding == tuple(map(tuple, expected))


@pytest.mark.parametrize(
    "numbers", [("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC"), ("HNWC", "IWOH", "CWNH")]
)
def test_logical_shapes_round_trip(numbers: tuple[str, str, str]):
    sizes = {"N": 2, "C": 6, "H": 7, "W": 5}
    x_shape = tuple(sizes[letter] for letter in numbers[0])
    w_shape = tuple({"O": 8, "I": 3, "H": 3, "W": 2}[letter] for letter in numbers[1])
    config = arguments.make_config(
        "test",
        x_shape,
        w_shape,
        strides=(2, 1),
        padding="VALID",
        dilation=1,
        groups=2,
        dimension_numbers=numbers,
    )
    geometry = ConvGeometry.make("test", config, x_shape, w_shape)
    assert geometry.x_shape == x_shape
    assert geometry.w_shape == w_shape
    assert (geometry.batch, geometry.in_channels, geometry.out_channels) == (2, 6, 8)
    expected = jax.eval_shape(
        lambda x, w: lax.conv_general_dilated(
            x, w, (2, 1), "VALID", dimension_numbers=numbers, feature_group_count=2
        ),
        jnp.zeros(x_shape),
        jnp.zeros(w_shape),
    )
    assert geometry.y_shape == expected.shape


@pytest.mark.parametrize("padding", ["SAME", "VALID", ((1, 2),), ((0, -1),)], ids=str)
@pytest.mark.parametrize("consistent", [False, True])
def test_transposed_padding_is_lax(padding: object, consistent: bool):
    for size, kernel, stride, dilation in itertools.product((2, 5), (1, 2, 4), (1, 2, 3), (1, 2)):
        extent = dilated(kernel, dilation)
        pairs = arguments.transposed_padding(
            "test",
            (size,),
            (extent,),
            (stride,),
            (dilation,),
            padding,
            use_consistent_padding=consistent,
            output_padding=0,
            output_shape=None,
        )
        try:
            expected = jax.eval_shape(
                lambda x, w, s=stride, d=dilation: lax.conv_transpose(
                    x, w, (s,), padding, rhs_dilation=(d,), use_consistent_padding=consistent
                ),
                jnp.zeros((1, size, 1)),
                jnp.zeros((kernel, 1, 1)),
            )
        except ValueError:
            continue  # negative padding larger than the input: test_arguments.py has ours
        got = arguments.transposed_size("test", size, extent, stride, pairs[0], "")
        assert got == expected.shape[1]


@pytest.mark.parametrize("name", ["SAME", "SAME_LOWER", "VALID"])
def test_output_shape_is_reached_wherever_it_can_be(name: str):
    """Every size from the smallest to the largest legal one, each the input size of a convolution that
    gives the transposed convolution's input back."""
    for size, kernel, stride, dilation in itertools.product(
        (1, 3, 4), (1, 2, 5), (1, 2, 3), (1, 2, 4)
    ):
        extent = dilated(kernel, dilation)
        full = (size - 1) * stride + extent
        smallest = full if name == "VALID" else 1
        for wanted in range(smallest, full + max(stride, dilation)):
            pairs = arguments.transposed_padding(
                "test",
                (size,),
                (extent,),
                (stride,),
                (dilation,),
                name,
                use_consistent_padding=False,
                output_padding=0,
                output_shape=(wanted,),
            )
            assert arguments.transposed_size("test", size, extent, stride, pairs[0], "") == wanted
            under = arguments.underlying_padding(pairs, (extent,))
            assert make(wanted, kernel, stride, under[0], dilation).out_spatial == (size,)
            if name != "VALID" and wanted <= full:
                low, high = under[0]
                assert low + high == full - wanted
                assert abs(low - high) <= 1
                assert low <= high if name == "SAME" else low >= high


def test_output_padding_widens_the_high_side():
    given = ("test", (4,), (5,), (3,), (2,), ((4, 4),))
    plain = arguments.transposed_padding(
        *given, use_consistent_padding=False, output_padding=0, output_shape=None
    )
    wider = arguments.transposed_padding(
        *given, use_consistent_padding=False, output_padding=2, output_shape=None
    )
    assert plain == ((4, 4),)
    assert wider == ((4, 6),)


def test_configs_are_hashable_parameters():
    one, two = make(5, 3, 1, (0, 0), 1).config, make(5, 3, 1, (0, 0), 1).config
    assert one == two and hash(one) == hash(two)
    assert one != one.replace(groups=3)


def test_symbolic_sizes_pass():
    (n,) = jax.export.symbolic_shape("n")
    geometry = ConvGeometry.make("test", make(5, 3, 1, (0, 0), 1).config, (n, 3, 5), (4, 3, 3))
    assert geometry.y_shape == (n, 4, 3)

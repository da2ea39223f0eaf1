"""Errors about the usual slips say what was probably meant, and what they say to type works."""

from __future__ import annotations

import re
from typing import Any

import jax.numpy as jnp
import pytest

import jax_convgrad
from jax_convgrad import conv_fprop, conv_general_dilated, conv_transpose, resize

NHWC, HWIO = jnp.ones((2, 8, 8, 16)), jnp.ones((3, 3, 16, 32))
NCHW, OIHW = jnp.ones((2, 16, 8, 8)), jnp.ones((32, 16, 3, 3))
NUMBERS = ("NHWC", "HWIO", "NHWC")


def message(call: Any) -> str:
    with pytest.raises((TypeError, ValueError)) as error:
        call()
    return str(error.value)


def test_channels_last_without_dimension_numbers():
    text = message(lambda: conv_general_dilated(NHWC, HWIO, (1, 1), "SAME"))
    assert "is the image channels last?" in text
    found = re.search(r"dimension_numbers=(\(.*?\))", text.partition("last?")[2])
    assert found is not None and found[1] == str(NUMBERS)
    y = conv_general_dilated(NHWC, HWIO, (1, 1), "SAME", dimension_numbers=NUMBERS)
    assert y.shape == (2, 8, 8, 32)
    assert str(NUMBERS) in message(lambda: conv_fprop(NHWC, HWIO))


@pytest.mark.parametrize("weights", [(32, 5, 3, 3), (32, 3, 16, 3)], ids=["none", "odd-kernel"])
def test_what_fits_no_layout_has_no_hint(weights: tuple[int, ...]):
    text = message(lambda: conv_general_dilated(NCHW, jnp.ones(weights), (1, 1), "SAME"))
    assert "channels last" not in text and "PyTorch" not in text and "Flax" not in text


def test_pytorchs_weights_with_an_image_that_is_channels_last():
    text = message(lambda: conv_general_dilated(NHWC, OIHW, (1, 1), "SAME"))
    numbers = ("NHWC", "OIHW", "NHWC")
    assert f"is the image channels last? Then pass dimension_numbers={numbers}" in text
    y = conv_general_dilated(NHWC, OIHW, (1, 1), "SAME", dimension_numbers=numbers)
    assert y.shape == (2, 8, 8, 32)


@pytest.mark.parametrize(
    ("image", "weights", "groups"),
    [
        ((2, 3, 9, 8), (7, 7, 3, 64), 1),
        ((2, 32, 9, 8), (7, 7, 1, 64), 32),
        ((2, 16, 4, 5, 6), (3, 3, 3, 16, 32), 1),
    ],
    ids=["2d", "depthwise", "3d"],
)
def test_flaxs_weights_without_dimension_numbers(
    image: tuple[int, ...], weights: tuple[int, ...], groups: int
):
    """In one dimension the input channels are on axis 1 in both orders, and no shape is wrong."""
    x, w = jnp.ones(image), jnp.ones(weights)
    rank = x.ndim - 2
    letters = "DHW"[-rank:]
    shape = (2, w.shape[-1], *image[2:])

    def layer(x: Any, w: Any, numbers: Any = None) -> Any:
        return conv_general_dilated(
            x, w, (1,) * rank, "SAME", dimension_numbers=numbers, feature_group_count=groups
        )

    text = message(lambda: layer(x, w))
    assert f"are these Flax's weights, {letters}IO?" in text
    found = re.search(r"dimension_numbers=\((.*?)\), or rhs\.transpose\((.*?)\)", text)
    assert found is not None
    numbers = tuple(re.findall(r"\w+", found[1]))
    assert numbers == (f"NC{letters}", f"{letters}IO", f"NC{letters}")
    assert layer(x, w, numbers).shape == shape
    assert layer(x, w.transpose(*map(int, found[2].split(",")))).shape == shape
    text = message(lambda: conv_fprop(x, w, groups=groups))
    assert f"{letters}IO?" in text and f"w.transpose({found[2]})" in text


def test_flaxs_weights_with_other_numbers_for_the_image():
    numbers = ("NHWC", "OIHW", "CNHW")
    text = message(
        lambda: conv_general_dilated(NHWC, HWIO, (1, 1), "SAME", dimension_numbers=numbers)
    )
    assert "dimension_numbers=('NHWC', 'HWIO', 'CNHW')" in text
    numbers = ("NHWC", "HWIO", "CNHW")
    y = conv_general_dilated(NHWC, HWIO, (1, 1), "SAME", dimension_numbers=numbers)
    assert y.shape == (32, 2, 8, 8)


@pytest.mark.parametrize(
    ("x", "w", "orders"),
    [
        ((2, 64, 64, 3), (64, 3, 3, 3), ["OIHW"]),
        ((2, 64, 64, 3), (3, 3, 3, 64), ["HWIO"]),
        ((2, 64, 64, 3), (3, 3, 3, 3), ["HWIO", "OIHW"]),
        ((2, 64, 3), (16, 3, 5), ["OIW"]),
        ((2, 64, 3), (5, 3, 16), ["WIO"]),
    ],
)
def test_rgb_images_channels_last_with_weights_in_either_order(x: Any, w: Any, orders: list[str]):
    """Three channels and a kernel of three: the shape alone does not say which is which."""
    strides = (1,) * (len(x) - 2)
    image = {3: "NWC", 4: "NHWC"}[len(x)]
    image_array, weights = jnp.ones(x), jnp.ones(w)
    text = message(lambda: conv_general_dilated(image_array, weights, strides, "SAME"))
    numbers = [(image, order, image) for order in orders]
    assert text.endswith(f"dimension_numbers={' or '.join(map(str, numbers))}")
    y = conv_general_dilated(image_array, weights, strides, "SAME", dimension_numbers=numbers[0])
    assert y.shape == (*x[:-1], max(w))


def test_a_square_image_is_not_taken_for_one_with_channels_last():
    square, weights = jnp.ones((2, 3, 32, 32)), jnp.ones((16, 32, 3, 3))
    assert "last?" not in message(lambda: jax_convgrad.torch.conv2d(square, weights))


def test_a_shape_is_not_to_be_transposed():
    text = message(lambda: jax_convgrad.conv_wgrad(NCHW, NCHW, (3, 3, 16, 32)))
    assert "Flax's weights, HWIO?" in text and "transpose" not in text


@pytest.mark.parametrize("batch", [True, False])
def test_channels_last_given_to_pytorchs_functions(batch: bool):
    x = NHWC if batch else NHWC[0]
    axis = 1 if batch else 0
    moved = jnp.moveaxis(x, -1, axis)
    hint = f"are the channels of input last? Then pass jnp.moveaxis(input, -1, {axis})"
    assert hint in message(lambda: jax_convgrad.torch.conv2d(x, OIHW, padding=1))
    assert jax_convgrad.torch.conv2d(moved, OIHW, padding=1).shape[axis:] == (32, 8, 8)
    weights = jnp.ones((16, 32, 4, 4))
    assert hint in message(lambda: jax_convgrad.torch.conv_transpose2d(x, weights))
    assert jax_convgrad.torch.conv_transpose2d(moved, weights).shape[axis:] == (32, 11, 11)
    assert "last?" not in message(lambda: jax_convgrad.torch.conv2d(x, OIHW[:, :5]))


def test_channels_last_given_to_onnx():
    text = message(lambda: jax_convgrad.onnx.conv(NHWC, OIHW))
    assert "are the channels of X last? Then pass jnp.moveaxis(X, -1, 1)" in text
    assert jax_convgrad.onnx.conv(jnp.moveaxis(NHWC, -1, 1), OIHW).shape == (2, 32, 6, 6)


def test_dtypes_that_differ():
    half = NCHW.astype("bfloat16")
    text = message(lambda: conv_general_dilated(half, OIHW, (1, 1), "SAME"))
    assert text.endswith("; cast one: rhs.astype(lhs.dtype)")
    assert message(lambda: conv_fprop(half, OIHW)).endswith("; cast one: w.astype(x.dtype)")
    text = message(lambda: jax_convgrad.torch.conv2d(half, OIHW, jnp.ones(32)))
    assert text.endswith("; cast them: weight.astype(input.dtype), bias.astype(input.dtype)")
    text = message(lambda: jax_convgrad.torch.conv2d(NCHW, OIHW, jnp.ones(32, "float16")))
    assert text.endswith("; cast one: bias.astype(input.dtype)")
    y = conv_general_dilated(half, OIHW.astype(half.dtype), (1, 1), "SAME")
    assert y.dtype == half.dtype


def test_integers_are_not_to_be_cast():
    text = message(lambda: conv_general_dilated(NCHW.astype("int8"), OIHW, (1, 1), "SAME"))
    assert "must have the same dtype" in text and "cast" not in text


@pytest.mark.parametrize(
    ("padding", "hint"),
    [
        (1, "PyTorch's padding=1 is padding=[(1, 1), (1, 1)] here"),
        ("reflect", 'pad first, with jnp.pad(x, ..., mode="reflect")'),
    ],
)
@pytest.mark.parametrize("weights", [HWIO, jnp.ones((32, 5, 3, 3))], ids=["layout", "channels"])
def test_channels_that_differ_hide_no_hint_for_the_padding(padding: Any, hint: str, weights: Any):
    text = message(lambda: conv_general_dilated(NHWC, weights, (1, 1), padding))
    assert "input channels, got" in text and hint in text
    assert ("is the image channels last?" in text) == (weights is HWIO)
    for valid in ("SAME", [(1, 1), (1, 1)]):
        right = message(lambda valid=valid: conv_general_dilated(NHWC, weights, (1, 1), valid))
        assert "input channels, got" in right and "padding" not in right and "pad " not in right


def test_pytorchs_weights():
    text = message(
        lambda: conv_general_dilated(NHWC, OIHW, (1, 1), "SAME", dimension_numbers=NUMBERS)
    )
    assert "PyTorch's weights, OIHW?" in text and "rhs.transpose(2, 3, 1, 0)" in text
    weights = OIHW.transpose(2, 3, 1, 0)
    y = conv_general_dilated(NHWC, weights, (1, 1), "SAME", dimension_numbers=NUMBERS)
    assert y.shape == (2, 8, 8, 32)


def test_pytorchs_weights_of_a_transposed_convolution():
    weights = jnp.ones((16, 32, 4, 4))
    text = message(lambda: conv_transpose(NHWC, weights, (2, 2), "SAME"))
    assert "PyTorch's weights, IOHW? jax_convgrad.torch.conv_transpose2d takes them" in text
    assert jax_convgrad.torch.conv_transpose2d(NCHW, weights, stride=2).shape == (2, 32, 18, 18)


@pytest.mark.parametrize(
    ("function", "keyword", "ours"),
    [
        (conv_general_dilated, "stride", "window_strides="),
        (conv_general_dilated, "groups", "feature_group_count="),
        (conv_general_dilated, "dilation", "rhs_dilation="),
        (conv_transpose, "stride", "strides="),
        (conv_transpose, "groups", "feature_group_count="),
        (conv_fprop, "stride", "strides="),
    ],
)
def test_pytorchs_keywords(function: Any, keyword: str, ours: str):
    text = message(lambda: function(NCHW, OIHW, padding=[(1, 1)] * 2, **{keyword: 1}))
    assert f"unexpected keyword {keyword}=; here it is {ours} (jax_convgrad.torch.conv" in text


def test_pytorchs_padding():
    text = message(lambda: conv_general_dilated(NCHW, OIHW, (1, 1), 1))  # type: ignore[arg-type]
    assert "PyTorch's padding=1 is padding=[(1, 1), (1, 1)] here" in text
    assert conv_general_dilated(NCHW, OIHW, (1, 1), [(1, 1), (1, 1)]).shape == (2, 32, 8, 8)
    text = message(lambda: conv_general_dilated(NCHW, OIHW, (1, 1), (1, 2)))  # type: ignore[arg-type]
    assert "padding=[(1, 1), (2, 2)]" in text


@pytest.mark.parametrize(
    ("mode", "numpys"), [("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap")]
)
def test_padding_that_is_not_zeros(mode: str, numpys: str):
    text = message(lambda: conv_general_dilated(NCHW, OIHW, (1, 1), mode))
    assert f'pad first, with jnp.pad(x, ..., mode="{numpys}")' in text
    padded = jnp.pad(NCHW, [(0, 0), (0, 0), (1, 1), (1, 1)], mode=numpys)
    assert conv_general_dilated(padded, OIHW, (1, 1), "VALID").shape == (2, 32, 8, 8)


@pytest.mark.parametrize(
    ("keyword", "ours"),
    [("align_corners", 'coordinate_mode="align_corners"'), ("mode", "method="), ("size", "shape=")],
)
def test_pytorchs_keywords_of_a_resize(keyword: str, ours: str):
    text = message(lambda: resize(NHWC, (2, 9, 9, 16), "linear", **{keyword: True}))  # type: ignore[arg-type]
    assert f"resize: unexpected keyword {keyword}=; here it is {ours}" in text


def test_other_keywords_are_pythons_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        resize(NHWC, (2, 9, 9, 16), "linear", nonsense=1)  # type: ignore[call-arg]

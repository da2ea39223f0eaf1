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
    assert "are these arrays channels last?" in text
    found = re.search(r"dimension_numbers=(\(.*?\))", text.partition("last?")[2])
    assert found is not None and found[1] == str(NUMBERS)
    y = conv_general_dilated(NHWC, HWIO, (1, 1), "SAME", dimension_numbers=NUMBERS)
    assert y.shape == (2, 8, 8, 32)
    assert str(NUMBERS) in message(lambda: conv_fprop(NHWC, HWIO))


def test_what_fits_no_layout_has_no_hint():
    text = message(lambda: conv_general_dilated(NCHW, jnp.ones((32, 5, 3, 3)), (1, 1), "SAME"))
    assert "channels last" not in text and "PyTorch" not in text


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

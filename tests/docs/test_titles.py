"""What the site calls a layer is said in words, and no two layers of a file have one name."""

from __future__ import annotations

import pathlib
import sys

import pytest

pytestmark = pytest.mark.docs

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "docs" / "_ext"))
import runs  # noqa: E402
from titles import layer_title  # noqa: E402

TITLES = {
    "convt4x4_s2": "transposed 4x4, stride 2: 8x32x32, 128 to 64 channels, float32",
    "depthwise3x3": "depthwise 3x3: 8x56x56, 128 to 128 channels, float32",
    "groups8_3x3": "8 groups, 3x3: 8x56x56, 64 to 64 channels, float32",
}


def test_titles():
    cases = {p.case.name: p.case for p in runs.load("cpu/bench.json").passes}
    assert {name: layer_title(cases[name]) for name in TITLES} == TITLES
    (wavenet,) = (case for case in cases.values() if case.dilation == (256,))
    assert layer_title(wavenet).startswith("1-D kernel 2, dilation 256: 2x8000, ")


@pytest.mark.parametrize("file", ["h100/conv_ohwi.json", "h100/resize_nhwc.json", "cpu/bench.json"])
def test_a_title_is_one_layers(file: str):
    cases = {p.case for p in runs.load(file).passes}
    assert len({layer_title(case) for case in cases}) == len(cases)

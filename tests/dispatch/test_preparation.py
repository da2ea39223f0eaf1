"""What is done to a handler's operands is part of the decision, for a whole problem and for a shard of it."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from typing import Any

import jax
import pytest
from jax import lax
from support.drawn_geometries import drawn_geometries

from jax_convgrad._src.conv import arguments
from jax_convgrad._src.conv.geometry import ConvGeometry
from jax_convgrad._src.dispatch import preparation as preparation_module
from jax_convgrad._src.dispatch import rules_preparation
from jax_convgrad._src.dispatch.decide import decide, for_part
from jax_convgrad._src.dispatch.devices import Target
from jax_convgrad._src.dispatch.features import preparation_features
from jax_convgrad._src.dispatch.override import override_backend, override_preparation
from jax_convgrad._src.dispatch.preparation import call_dtype, decide_preparation
from jax_convgrad._src.dispatch.problem import ConvProblem
from jax_convgrad._src.dispatch.rules import at_least
from jax_convgrad._src.dispatch.tables import choose
from jax_convgrad._src.runtime import registry, settings

BACKENDS = {"cpu": "onednn", "cuda": "cudnn"}
TARGETS = {"cpu": Target("cpu", "avx512"), "cuda": Target("cuda", "sm_90")}
EVEN, UNEVEN = [(1, 1), (1, 1)], [(0, 1), (1, 1)]


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both platforms have every handler. What is decided does not depend on what was built."""
    found = registry.PlatformHandlers(
        frozenset(registry.TARGETS), frozenset({"float32", "float64", "float16", "bfloat16"})
    )
    monkeypatch.setattr(registry, "require", lambda platform: found)


def problem(
    operator: str,
    channels: tuple[Any, int],
    dtype: str = "bfloat16",
    *,
    groups: int = 1,
    strides: int = 1,
    padding: Any = EVEN,
    precision: Any = None,
    numbers: Any = ("NHWC", "HWIO", "NHWC"),
    image: int = 9,
) -> ConvProblem:
    inputs, outputs = channels
    x, w = (2, image, image, inputs), (3, 3, inputs // groups, outputs)
    if numbers[1] == "OHWI":
        w = (outputs, 3, 3, inputs // groups)
    config = arguments.make_config(
        "test",
        x,
        w,
        strides=strides,
        padding=padding,
        dilation=1,
        groups=groups,
        dimension_numbers=numbers,
    )
    geometry = ConvGeometry.make("test", config, x, w)
    return ConvProblem.make(operator, geometry, dtype, precision=precision)


def prepared(platform: str, *args: Any, **keywords: Any) -> str:
    with override_backend(BACKENDS[platform]):
        return decide(problem(*args, **keywords), TARGETS[platform]).preparation.name


@pytest.mark.parametrize("operator", ["conv_fprop", "conv_dgrad", "conv_wgrad"])
def test_on_a_cpu_that_multiplies_bfloat16(operator: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preparation_module, "multiplies_bfloat16", lambda: True)
    odd = {"conv_fprop": (3, 16), "conv_dgrad": (16, 3), "conv_wgrad": (3, 3)}[operator]
    zero = "none" if operator == "conv_wgrad" else "zero_channel"
    assert prepared("cpu", operator, odd) == zero
    assert prepared("cpu", operator, odd[::-1]) == "none"
    assert prepared("cpu", operator, (4, 16)) == "none"
    assert prepared("cpu", operator, odd, "float32") == "none"
    # Of each group: 3 groups of one input channel are no pairs, unless each has one output channel too.
    assert prepared("cpu", operator, (9, 9), groups=3) == zero
    assert prepared("cpu", operator, (6, 6), groups=3) == "none"
    assert prepared("cpu", operator, (7, 7), groups=7) == "none"
    strided = "float32" if operator == "conv_dgrad" else "none"
    assert prepared("cpu", operator, (7, 7), groups=7, strides=2) == strided


@pytest.mark.parametrize("operator", ["conv_fprop", "conv_dgrad", "conv_wgrad"])
@pytest.mark.parametrize("native", [True, False])
def test_float16_becomes_float32(operator: str, native: bool, monkeypatch: pytest.MonkeyPatch):
    """Of odd channels and depthwise windows too: oneDNN has no float16 at all."""
    monkeypatch.setattr(preparation_module, "multiplies_bfloat16", lambda: native)
    (symbolic,) = jax.export.symbolic_shape("c")
    for channels in ((3, 16), (16, 3), (64, 64), (symbolic, 16)):
        assert prepared("cpu", operator, channels, "float16") == "float32"
    assert prepared("cpu", operator, (8, 8), "float16", groups=8) == "float32"
    assert prepared("cpu", operator, (8, 8), "float16", groups=8, strides=2) == "float32"


def test_symbolic_channels(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preparation_module, "multiplies_bfloat16", lambda: True)
    (channels,) = jax.export.symbolic_shape("c")
    assert prepared("cpu", "conv_fprop", (channels, 16)) == "float32"
    assert prepared("cpu", "conv_fprop", (channels, 16), "float32") == "none"
    assert prepared("cpu", "conv_dgrad", (channels, 16)) == "none"


def test_without_avx512(monkeypatch: pytest.MonkeyPatch):
    """oneDNN has no bfloat16 there, for no shape."""
    monkeypatch.setattr(preparation_module, "has_bfloat16", lambda: False)
    monkeypatch.setattr(preparation_module, "multiplies_bfloat16", lambda: False)
    for geometry in drawn_geometries(11, 300):
        for operator in ("conv_fprop", "conv_dgrad", "conv_wgrad"):
            each = ConvProblem.make(operator, geometry, "bfloat16")
            assert decide_preparation(each, geometry, "cpu", "avx2", None).name == "float32"
    assert call_dtype("cpu", "bfloat16") == "float32"
    assert call_dtype("cuda", "bfloat16") == "bfloat16"


@pytest.mark.parametrize("native", [True, False])
def test_dw_of_several_filters_a_channel(native: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preparation_module, "multiplies_bfloat16", lambda: native)
    keywords = {"groups": 8, "channels": (8, 24)}
    assert prepared("cpu", "conv_wgrad", **keywords) == "float32"
    assert prepared("cpu", "conv_wgrad", dtype="float32", **keywords) == "none"


def test_on_a_cpu_that_does_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preparation_module, "multiplies_bfloat16", lambda: False)
    for operator in ("conv_fprop", "conv_dgrad", "conv_wgrad"):
        for channels in ((3, 16), (64, 64)):
            assert prepared("cpu", operator, channels) == "float32"
            assert prepared("cpu", operator, channels, "float32") == "none"
    depthwise = {"groups": 8, "channels": (8, 8)}
    assert prepared("cpu", "conv_fprop", **depthwise) == "none"
    assert prepared("cpu", "conv_dgrad", **depthwise) == "none"
    assert prepared("cpu", "conv_wgrad", **depthwise) == "none"
    # Pairs of channels that are none: see NOTE [Pairs of channels].
    assert prepared("cpu", "conv_dgrad", strides=2, **depthwise) == "float32"


@pytest.mark.parametrize("operator", ["conv_fprop", "conv_dgrad", "conv_wgrad"])
def test_padding_on_cuda(operator: str):
    highest = lax.Precision.HIGHEST
    evened = "even_padding" if operator == "conv_wgrad" else "none"
    with jax.enable_x64(True):
        for keywords in ({"dtype": "float64"}, {"dtype": "float32", "precision": highest}):
            assert prepared("cuda", operator, (64, 64), padding=UNEVEN, **keywords) == evened
            assert prepared("cuda", operator, (64, 64), padding=EVEN, **keywords) == "none"
            depthwise = {"groups": 8, "padding": UNEVEN, **keywords}
            assert prepared("cuda", operator, (8, 8), **depthwise) == "none"
    for dtype in ("float32", "bfloat16"):
        assert prepared("cuda", operator, (96, 96), dtype, padding=UNEVEN) == "none"


@pytest.mark.parametrize("operator", ["conv_fprop", "conv_dgrad", "conv_wgrad"])
def test_weights_on_cuda(operator: str):
    for channels in ((16, 8), (24, 32), (64, 64)):
        assert prepared("cuda", operator, channels) == "xio_weights"
        assert prepared("cuda", operator, channels, numbers=("NHWC", "OHWI", "NHWC")) == "none"
    assert prepared("cuda", operator, (64, 64), "float32") == "xio_weights"
    highest = lax.Precision.HIGHEST
    assert prepared("cuda", operator, (64, 64), "float32", precision=highest) == "none"
    assert prepared("cuda", operator, (64, 64), strides=2) == "none"
    assert prepared("cuda", operator, (96, 96)) == "none"
    size = 3 * 3 * 16 * 8 * 2
    room = dataclasses.replace(settings.current(), workspace_limit=size + -size % 256)
    with settings.override(room):
        assert prepared("cuda", operator, (16, 8)) == "xio_weights"
    with settings.override(dataclasses.replace(room, workspace_limit=room.workspace_limit - 1)):
        assert prepared("cuda", operator, (16, 8)) == "none"


def test_cuda_does_not_ask_the_cpu(monkeypatch: pytest.MonkeyPatch):
    """It would load the CPU's module."""
    monkeypatch.setattr(preparation_module, "multiplies_bfloat16", lambda: pytest.fail("asked"))
    assert prepared("cuda", "conv_fprop", (96, 96)) == "none"


@pytest.mark.parametrize("native", [True, False])
def test_no_call_reads_pairs_that_are_none(native: bool):
    """NOTE [Pairs of channels] in rules_preparation.py, whatever the rules were measured to be."""
    seen = 0
    for geometry in drawn_geometries(7, 2000):
        for operator in ("conv_fprop", "conv_dgrad"):
            features = preparation_features(
                operator, geometry, "bfloat16", "bfloat16", None, True, native
            )
            is_dx, has_one_filter = operator == "conv_dgrad", features.multiplier == 1
            if features.sums_pairs or (has_one_filter and not (is_dx and features.is_strided)):
                continue
            if (
                has_one_filter
                and features.in_channels >= 8
                and (features.spatial_rank != 2 or features.is_dilated)
            ):
                assert choose("cpu", None, features)[0].choice == "none"  # a kernel of ours
                continue
            seen += 1
            choice = choose("cpu", None, features)[0].choice
            assert choice in ("float32", "zero_channel")
            assert choice == "float32" or not has_one_filter
    assert seen > 500


def test_the_depthwise_kernel_serves_what_its_rule_says():
    """The number of channels from which on it is asked stands in C++, too."""
    source = pathlib.Path(__file__).parents[2] / "cpp/cpu/kernels/depthwise/conv.cc"
    (least,) = re.findall(r"kMinChannels = (\d+);", source.read_text())
    rule = rules_preparation.AVX512.rule("depthwise signals, volumes and dilated dX")
    assert {every["in_channels"] for every in rule.alternatives} == {at_least(int(least))}


def test_a_shard_is_prepared_by_its_own_sizes(monkeypatch: pytest.MonkeyPatch):
    """Six channels are pairs, and three are not."""
    monkeypatch.setattr(preparation_module, "multiplies_bfloat16", lambda: True)
    with override_backend("onednn"):
        whole = decide(problem("conv_fprop", (6, 16)), TARGETS["cpu"])
    assert whole.preparation.name == "none"
    assert for_part(whole, problem("conv_fprop", (3, 16))).preparation.name == "zero_channel"
    empty = for_part(whole, problem("conv_fprop", (0, 16)))
    assert (empty.backend, empty.preparation.name) == ("zeros", "none")


def test_a_shard_keeps_what_the_whole_was_overridden_with():
    """XLA asks for shards while it compiles, where the override may have ended."""
    with override_backend("onednn"), override_preparation("none"):
        whole = decide(problem("conv_fprop", (6, 16)), TARGETS["cpu"])
    assert for_part(whole, problem("conv_fprop", (3, 16))).preparation.name == "none"


def test_it_has_its_rule_s_reason_and_measurements(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preparation_module, "multiplies_bfloat16", lambda: False)
    with override_backend("onednn"):
        found = decide(problem("conv_fprop", (64, 64)), TARGETS["cpu"]).preparation
    assert (found.name, found.measured_on) == ("float32", "avx512")
    assert found.reason == "oneDNN widens bfloat16 at every use, and here it is widened once"
    assert "cpu/preparations.json#64 to 64, k3, bf16#fprop" in found.evidence


def test_only_handlers_have_operands_to_prepare():
    with override_backend("xla"):
        assert decide(problem("conv_fprop", (3, 16)), TARGETS["cpu"]).preparation.name == "none"


def test_override():
    with override_preparation("float32"):
        assert prepared("cpu", "conv_wgrad", (4, 16)) == "float32"
        with override_preparation("none"):
            assert prepared("cpu", "conv_wgrad", (4, 16)) == "none"
    with (
        pytest.raises(ValueError, match="expected one of even_padding, float32, none"),
        override_preparation("float64"),
    ):
        pass

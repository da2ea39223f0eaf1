"""What is lowered for CUDA: targets, attributes, layouts and the workspace. Needs no GPU.

The handlers' registration is stood in for where the CUDA module is not built; the module itself is
tested where it is, and JAX_CONVGRAD_REQUIRE_CUDA=1 makes its absence a failure.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import math
import os
import re
import shutil
import subprocess
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support import jax_internals

import jax_convgrad
from jax_convgrad import conv_wgrad, plans
from jax_convgrad._src import compat
from jax_convgrad._src.conv import arguments
from jax_convgrad._src.conv.geometry import ConvGeometry
from jax_convgrad._src.conv.workspace import ALIGNMENT, workspace_size
from jax_convgrad._src.dispatch.decide import decide
from jax_convgrad._src.dispatch.devices import Target
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.dispatch.problem import ConvProblem
from jax_convgrad._src.runtime import registry, settings

BUILT = importlib.util.find_spec("jax_convgrad._src.runtime._cuda") is not None
NHWC = ("NHWC", "HWIO", "NHWC")
NCHW = ("NCHW", "OIHW", "NCHW")
H100 = Target("cuda", "sm_90")


@dataclasses.dataclass(frozen=True)
class Call:
    """One custom call: its target, attributes as text, layouts major to minor, result types."""

    target: str
    attributes: dict[str, str]
    operand_layouts: list[tuple[int, ...]]
    result_layouts: list[tuple[int, ...]]
    results: list[str]

    @property
    def workspace_bytes(self) -> int:
        return int(re.fullmatch(r"(\d+)xui8", self.results[1])[1])


@pytest.fixture(autouse=True)
def cuda_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    if not BUILT and os.environ.get("JAX_CONVGRAD_REQUIRE_CUDA") != "1":
        found = registry.PlatformHandlers(
            frozenset(registry.CONV_TARGETS.values()),
            frozenset({"float16", "bfloat16", "float32", "float64"}),
        )
        monkeypatch.setattr(registry, "require", lambda platform: found)


@pytest.fixture(autouse=True)
def on_cudnn() -> Iterator[None]:
    """The handlers, whatever was measured to be faster; tests of the rules say so."""
    with override_backend("cudnn"):
        yield


def lowered(f: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = jnp.bfloat16) -> str:
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    return jax.jit(f).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


def calls(text: str) -> list[Call]:
    found = []
    for line in text.splitlines():
        match = re.search(r"custom_call @(jax_convgrad_\w+)", line)
        if match is None:
            continue
        config = re.search(r"mhlo\.backend_config = \{(.*?)\}", line)[1]
        attributes = dict(
            re.findall(r'(\w+) = (dense<.*?>|"[\w+]+"|\w+)(?: : [^,]*)?(?:, |$)', config)
        )
        found.append(
            Call(
                match[1],
                attributes,
                _layouts(line, "operand_layouts"),
                _layouts(line, "result_layouts"),
                re.findall(r"tensor<([^>]*)>", line.rpartition("->")[2]),
            )
        )
    return found


def by_target(found: list[Call]) -> list[Call]:
    """In alphabetical order: which gradient comes first in a program is JAX's to say."""
    return sorted(found, key=lambda call: call.target)


def _layouts(line: str, name: str) -> list[tuple[int, ...]]:
    text = re.search(name + r" = \[(.*?)\](?:, \w+_layouts|\})", line)[1]
    orders = re.findall(r"dense<\[?([\d, ]*)\]?>", text)
    return [tuple(map(int, reversed(order.split(", ")))) for order in orders]


def gradients(f: Callable[..., Any]) -> Callable[..., Any]:
    def run(dy: Any, *operands: Any) -> Any:
        y, pullback = jax.vjp(f, *operands)
        return y, *pullback(dy)

    return run


def transposed(rank: int, **keywords: Any) -> Callable[..., Any]:
    return lambda x, w: jax_convgrad.conv_transpose(x, w, (2,) * rank, "SAME", **keywords)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_transposed_convolution_and_its_gradients_are_one_call_each(rank: int) -> None:
    space = (8,) * rank
    text = lowered(
        gradients(transposed(rank)), (2, *(16,) * rank, 3), (2, *space, 6), (*(4,) * rank, 6, 3)
    )
    assert [call.target for call in by_target(calls(text))] == [
        "jax_convgrad_conv_dgrad",
        "jax_convgrad_conv_fprop",
        "jax_convgrad_conv_wgrad",
    ]
    assert "stablehlo.convolution" not in text
    assert "stablehlo.transpose" not in text


def test_only_what_is_differentiated_is_lowered() -> None:
    text = lowered(
        lambda w, x: jax.grad(lambda w: transposed(2)(x, w).sum())(w), (4, 4, 6, 3), (2, 8, 8, 6)
    )
    assert [call.target for call in calls(text)] == ["jax_convgrad_conv_wgrad"]


def test_activations_are_asked_for_channels_last_and_weights_output_channels_first() -> None:
    shapes = {NCHW: ((2, 3, 16, 16), (2, 6, 8, 8), (3, 6, 4, 4))}
    shapes[NHWC] = ((2, 16, 16, 3), (2, 8, 8, 6), (4, 4, 6, 3))
    expected = {
        # The convolution underneath has the transposed one's inputs as its output channels, so the
        # weights are those, then the kernel, then the transposed one's outputs.
        NCHW: {"activation": (0, 2, 3, 1), "weights": (1, 2, 3, 0)},
        NHWC: {"activation": (0, 1, 2, 3), "weights": (2, 0, 1, 3)},
    }
    for layout, arrays in shapes.items():
        f = transposed(2, dimension_numbers=layout)
        dgrad, fprop, wgrad = by_target(calls(lowered(gradients(f), *arrays)))
        activation, weights = expected[layout]["activation"], expected[layout]["weights"]
        assert dgrad.operand_layouts == fprop.operand_layouts == [activation, weights]
        assert dgrad.result_layouts == fprop.result_layouts == [activation, (0,)]
        assert wgrad.operand_layouts == [activation, activation]
        assert wgrad.result_layouts == [weights, (0,)]


def _layer_calls(
    numbers: tuple[str, str, str],
    channels: tuple[int, int],
    dtype: Any = jnp.bfloat16,
    **keywords: Any,
) -> list[Call]:
    """dgrad, fprop and wgrad of 3x3 windows on images of 16x16."""
    sizes = {"N": 2, "H": 16, "W": 16, "C": channels[0]}
    x = tuple(sizes[axis] for axis in numbers[0])
    w = tuple({"O": channels[1], "I": channels[0]}.get(axis, 3) for axis in numbers[1])

    def layer(x: Any, w: Any) -> Any:
        return jax_convgrad.conv_fprop(x, w, padding="SAME", dimension_numbers=numbers, **keywords)

    with jax.enable_x64(True):
        y = jax.eval_shape(layer, *(jax.ShapeDtypeStruct(s, dtype) for s in (x, w))).shape
        return by_target(calls(lowered(gradients(layer), y, x, w, dtype=dtype)))


@pytest.mark.parametrize(
    "numbers, channels, keywords, orders",
    [
        # Of an image: thin kernels compute all three.
        (NHWC, (4, 16), {}, ["XIO"] * 3),
        (NHWC, (16, 4), {}, ["XIO"] * 3),
        # With a stride none computes the weight gradient of a thin y; cuDNN leads forward.
        (NHWC, (64, 4), {"strides": 2}, ["OXI"] * 3),
        (NHWC, (4, 64), {"strides": 2}, ["XIO"] * 3),
        (NHWC, (4, 16), {"dtype": jnp.float32}, ["XIO"] * 3),
        (NHWC, (4, 16), {"dtype": jnp.float32, "precision": "highest"}, ["OXI"] * 3),
        (NHWC, (4, 16), {"dtype": jnp.float64}, ["OXI"] * 3),
        # Not thin.
        (NHWC, (24, 32), {}, ["XIO"] * 3),
        # Thin, but the weights lie in another order already.
        (NCHW, (4, 16), {}, ["OXI"] * 3),
        (("NHWC", "OHWI", "NHWC"), (4, 16), {}, ["OXI"] * 3),
        (("NHWC", "HWOI", "NHWC"), (4, 16), {}, ["OXI"] * 3),
        # The order of activations does not matter.
        (("NCHW", "HWIO", "NHWC"), (4, 16), {}, ["XIO"] * 3),
    ],
)  # fmt: skip
def test_thin_kernels_get_the_weights_as_they_lie(
    numbers: tuple[str, str, str],
    channels: tuple[int, int],
    keywords: dict[str, Any],
    orders: list[str],
) -> None:
    found = _layer_calls(numbers, channels, **keywords)
    assert [call.attributes["weights"] for call in found] == [f'"{order}"' for order in orders]
    weights = numbers[1]
    for call, order in zip(found, orders, strict=True):
        axes = "OHWI" if order == "OXI" else "HWIO"
        layout = tuple(weights.index(axis) for axis in axes)
        if call.target.endswith("wgrad"):
            assert call.result_layouts == [layout, (0,)]
        else:
            assert call.operand_layouts[1] == layout
            assert call.result_layouts[1] == (0,)


def test_weights_of_symbolic_sizes_are_asked_for_as_cudnn_reads_them() -> None:
    batch, rows = jax.export.symbolic_shape("b, h")
    for shape, order in (((batch, 16, 16, 4), "XIO"), ((2, rows, 16, 4), "OXI")):
        f = jax.jit(lambda x, w: jax_convgrad.conv_fprop(x, w, dimension_numbers=NHWC))
        exported = jax.export.export(
            f, platforms=["cuda"], disabled_checks=jax_convgrad.export_checks()
        )(
            jax.ShapeDtypeStruct(shape, jnp.bfloat16),
            jax.ShapeDtypeStruct((3, 3, 4, 16), jnp.bfloat16),
        )
        assert f'weights = "{order}"' in exported.mlir_module()


@pytest.mark.usefixtures("settings_as_they_come")
def test_a_copy_of_the_weights_fits_the_workspace() -> None:
    """Which engines that read another order need. Where the limit has no room for it, XLA reorders."""
    copy = 2 * 9 * 4 * 16 + 128  # rounded up to 256
    assert copy % 256 == 0
    thin = _layer_calls(NHWC, (4, 16))
    other = _layer_calls(("NHWC", "OHWI", "NHWC"), (4, 16))
    for call, without in zip(thin, other, strict=True):
        assert call.workspace_bytes == without.workspace_bytes + copy
    for limit, order in ((copy, "XIO"), (copy - 1, "OXI"), (0, "OXI"), (2**40, "XIO")):
        jax_convgrad.set_workspace_limit(limit)
        for call, unlimited in zip(_layer_calls(NHWC, (4, 16)), thin, strict=True):
            assert call.attributes["weights"] == f'"{order}"'
            assert call.workspace_bytes == min(limit + ALIGNMENT, unlimited.workspace_bytes)


def test_an_nchw_network_is_lowered_without_transposes() -> None:
    def network(x: Any, w1: Any, w2: Any) -> Any:
        hidden = jax.nn.relu(
            jax_convgrad.conv_transpose(x, w1, (2, 2), "SAME", dimension_numbers=NCHW)
        )
        return jax_convgrad.conv_general_dilated(
            hidden, w2, (2, 2), "SAME", dimension_numbers=NCHW, feature_group_count=2
        )

    text = lowered(gradients(network), (2, 4, 8, 8), (2, 6, 8, 8), (8, 6, 4, 4), (4, 4, 3, 3))
    assert len(calls(text)) == 6
    assert "stablehlo.transpose" not in text


def test_attributes() -> None:
    def f(x: Any, w: Any) -> Any:
        return jax_convgrad.conv_fprop(
            x,
            w,
            strides=(2, 1),
            padding=((1, 0), (-1, 2)),
            dilation=(1, 3),
            groups=2,
            dimension_numbers=NHWC,
        )

    text = lowered(f, (2, 9, 12, 4), (3, 2, 2, 6))
    (call,) = calls(text)
    assert call.attributes == {
        "strides": "dense<[2, 1]>",
        "padding_low": "dense<[1, 0]>",
        "padding_high": "dense<[0, 2]>",
        "dilation": "dense<[1, 3]>",
        "groups": "2",
        "x_spec": "dense<[0, 3, 1, 2]>",
        "w_spec": "dense<[3, 2, 0, 1]>",
        "y_spec": "dense<[0, 3, 1, 2]>",
        "weights": '"OXI"',
        "allow_tf32": "true",
        "search": '"default"',
        "deterministic": "false",
        "generation": str(settings.current().generation),
    }
    assert call.results[0] == "2x4x10x6xbf16"
    assert "2x9x11x4xbf16" in text, "negative padding is cropped before the call"


@pytest.mark.parametrize(
    ("precision", "allowed"),
    [
        (None, True),
        ("default", True),
        ("high", True),
        ("highest", False),
        ("float32", False),
        (lax.Precision.DEFAULT, True),
        (lax.Precision.HIGH, True),
        (lax.Precision.HIGHEST, False),
        ((lax.Precision.DEFAULT, lax.Precision.HIGHEST), False),
        (("default", "default"), True),
    ],
    ids=str,
)
def test_tf32_is_allowed_unless_the_highest_precision_is_asked_for(
    precision: Any, allowed: bool
) -> None:
    f = transposed(2, precision=precision)
    text = lowered(gradients(f), (2, 8, 8, 3), (2, 4, 4, 6), (4, 4, 6, 3), dtype=jnp.float32)
    assert {call.attributes["allow_tf32"] for call in calls(text)} == {str(allowed).lower()}


@pytest.mark.parametrize(
    ("default", "allowed"),
    [("float32", False), ("highest", False), ("F32_F32_F32", True), ("tensorfloat32", True)],
)
def test_jax_default_matmul_precision_counts(default: str, allowed: bool) -> None:
    with jax.default_matmul_precision(default):
        text = lowered(transposed(2), (2, 4, 4, 6), (4, 4, 6, 3), dtype=jnp.float32)
    assert calls(text)[0].attributes["allow_tf32"] == str(allowed).lower()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes(dtype: str) -> None:
    text = lowered(gradients(transposed(2)), (2, 8, 8, 3), (2, 4, 4, 6), (4, 4, 6, 3), dtype=dtype)
    found = by_target(calls(text))
    short = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}[dtype]
    assert [call.results[0] for call in found] == [
        f"2x8x8x3x{short}",
        f"2x4x4x6x{short}",
        f"4x4x6x3x{short}",
    ]


@pytest.fixture
def settings_as_they_come() -> Iterator[None]:
    yield
    jax_convgrad.set_algorithm_search("default")
    jax_convgrad.set_workspace_limit(None)
    jax_convgrad.set_deterministic(False)


@pytest.mark.usefixtures("settings_as_they_come")
def test_the_workspace_follows_the_arrays_and_the_limit() -> None:
    shapes = (2, 32, 32, 6), (4, 4, 6, 3)
    (call,) = calls(lowered(transposed(2), *shapes, dtype=jnp.float32))
    arrays = math.prod(shapes[0]) + 2 * math.prod(shapes[1]) + 2 * 64 * 64 * 3
    assert call.workspace_bytes >= 4 * arrays
    for limit in (0, 1000):
        jax_convgrad.set_workspace_limit(limit)
        (call,) = calls(lowered(transposed(2), *shapes, dtype=jnp.float32))
        # What brings its start to an aligned address comes on top.
        assert call.workspace_bytes == limit + ALIGNMENT


def test_the_workspace_is_no_result_of_the_program() -> None:
    text = lowered(transposed(2), (2, 4, 4, 6), (4, 4, 6, 3))
    signature = next(line for line in text.splitlines() if "@main" in line)
    assert "ui8" not in signature
    jaxpr = jax.make_jaxpr(transposed(2))(jnp.ones((2, 4, 4, 6)), jnp.ones((4, 4, 6, 3)))
    assert "uint8" not in str(jaxpr) and "ui8" not in str(jaxpr)


@pytest.mark.parametrize(
    "dtype, precision, evened",
    [
        ("bfloat16", "highest", False),
        ("float16", None, False),
        ("float32", None, False),
        ("float32", "highest", True),
        ("float64", None, True),
    ],
)
def test_uneven_padding_of_weight_gradients(dtype: str, precision: Any, evened: bool) -> None:
    """See NOTE [Uneven padding] in rules_preparation.py."""

    def f(x: Any, w: Any) -> Any:
        return jax_convgrad.conv_fprop(
            x, w, padding=((2, 0), (1, 3), (-1, 1)), groups=2, precision=precision
        )

    with jax.enable_x64(True):
        text = lowered(gradients(f), (1, 4, 5, 9, 4), (1, 4, 4, 6, 5), (4, 2, 2, 2, 2), dtype=dtype)
    fprop, dgrad, wgrad = sorted(
        calls(text), key=lambda c: ["fprop", "dgrad", "wgrad"].index(c.target.rpartition("_")[2])
    )
    for call in (fprop, dgrad):
        assert _padding(call) == ([2, 1, 0], [0, 3, 1])
    assert _padding(wgrad) == (([0, 1, 0], [0, 1, 0]) if evened else ([2, 1, 0], [0, 3, 1]))
    assert wgrad.results[0].startswith("4x2x2x2x2x")


def test_uneven_padding_of_depthwise_weight_gradients_is_left_to_the_kernels() -> None:
    def f(x: Any, w: Any) -> Any:
        return jax_convgrad.conv_fprop(x, w, padding=((2, 0), (1, 3)), groups=4)

    with jax.enable_x64(True):
        text = lowered(gradients(f), (1, 4, 5, 11), (1, 4, 5, 9), (4, 1, 3, 3), dtype=jnp.float64)
    for call in calls(text):
        assert _padding(call) == ([2, 1], [0, 3])


def _padding(call: Call) -> tuple[list[int], list[int]]:
    low, high = (
        [int(n) for n in re.findall(r"-?\d+(?=[,\]>])", call.attributes[f"padding_{side}"])]
        for side in ("low", "high")
    )
    return low, high


def _backend(
    operator: str, dtype: str, channels: tuple[int, int], window: int = 3, **keywords: Any
) -> str:
    """The backend, by the rules of an H100, of a layer with a square image."""
    rank = keywords.pop("rank", 2)
    groups, precision = keywords.get("groups", 1), keywords.pop("precision", None)
    shapes_ = (
        (2, channels[0], *(9,) * rank),
        (channels[1], channels[0] // groups, *(window,) * rank),
    )
    defaults = {"strides": 1, "padding": "VALID", "dilation": 1, "groups": 1}
    config = arguments.make_config(
        "test", *shapes_, dimension_numbers=None, **(defaults | keywords)
    )
    geometry = ConvGeometry.make("test", config, *shapes_)
    with override_backend(None):
        problem = ConvProblem.make(operator, geometry, dtype, dtype, precision)
        decision = decide(problem, H100)
    assert decision.reason
    return decision.backend


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_rules_of_an_h100(dtype: str) -> None:
    half, double = dtype in ("float16", "bfloat16"), dtype == "float64"
    operators = ("conv_fprop", "conv_dgrad", "conv_wgrad")

    def of(channels: tuple[int, int], **keywords: Any) -> list[str]:
        return [_backend(operator, dtype, channels, **keywords) for operator in operators]

    gradients_by = ["xla" if double else "cudnn"] * 2
    forward = "xla" if double else "cudnn"  # by implicit GEMM, as TF32 if the precision allows it
    strict_forward = "cudnn" if half else "xla"
    assert of((24, 32)) == of((24, 32), rank=1) == [forward, *gradients_by]
    assert of((19, 32)) == of((32, 19)) == ["xla", *(["xla"] * 2 if half else gradients_by)]
    strict = ["xla"] * 2 if dtype == "float32" else gradients_by
    assert of((24, 32), precision="highest") == [strict_forward, *strict]
    with jax.default_matmul_precision("highest"):
        bound_with = compat.canonical_precision(None)
    assert of((24, 32), precision=bound_with) == [strict_forward, *strict]
    assert of((24, 32), strides=2) == ["xla", *gradients_by]
    uneven = ["xla" if double else "cudnn"] * 3
    assert of((24, 32), strides=2, padding=((0, 1), (0, 1))) == uneven
    assert of((24, 32), strides=2, rank=3) == ["cudnn", *gradients_by]
    assert of((24, 32), strides=2, rank=1)[1:] == gradients_by
    odd = ["xla", "cudnn", "xla"] if half else uneven
    assert of((19, 32), strides=2, padding=((0, 1), (0, 1))) == odd
    assert of((19, 32), dilation=2, rank=3) == of((19, 32), rank=3) == ["cudnn"] * 3
    assert of((19, 32), dilation=2) == ["xla", "cudnn", "cudnn"]
    assert of((19, 32), dilation=2, rank=1) == ["cudnn", "xla", "cudnn"]
    assert of((19, 32), dilation=2, strides=3) == ["cudnn"] * 3
    # Without the factor that they share this is the plain one.
    assert of((19, 32), dilation=2, strides=2) == of((19, 32))
    assert of((24, 32), padding=((-1, 0), (0, 0))) == [forward, gradients_by[0], "cudnn"]
    assert of((8, 16), groups=2) == ["xla"] * 3
    # Windows side by side.
    if double:
        assert of((3, 16), strides=3) == ["xla"] * 3
    else:
        # In 16 bits by kernels whose windows have an even number of elements.
        small = ["cudnn"] * 3
        assert of((3, 16), strides=3) == (["gemm"] * 3 if half else small)
        assert of((4, 16), strides=3, rank=1) == (["cudnn", "gemm", "cudnn"] if half else small)
        assert of((1, 16), strides=3, rank=3) == ["gemm"] * 3
        large = "cudnn" if half else "gemm"
        assert of((8, 16), strides=3, rank=3) == ["cudnn", large, "cudnn"]
        assert of((8, 16), strides=9, window=9) == ["cudnn", large, "cudnn"]
        assert of((8, 128), strides=9, window=9) == ["cudnn", large, "cudnn"]
    assert of((8, 16), strides=3) == ["xla" if double else "cudnn", *gradients_by]
    assert of((8, 16), strides=2, window=2) == ["xla" if double else "cudnn", *gradients_by]
    if dtype == "float32":
        assert "gemm" not in of((3, 16), strides=3, precision="highest")
    # Thin results.
    if not double:
        for channels in ((4, 16), (3, 16)):
            for strides in (1, 2):
                assert of(channels, strides=strides) == ["cudnn"] * 3
        assert of((16, 4)) == ["cudnn"] * 3
        assert of((32, 4), window=1) == ["cudnn"] * 3
    if dtype == "float32":
        assert of((4, 16), precision="highest") == ["xla"] * 3
    few, many = ["cudnn", "xla", "cudnn"], ["cudnn"] * 3
    if dtype == "float32":
        few, many = ["cudnn", "cudnn", "xla"], ["cudnn", "xla", "xla"]
    elif dtype == "float64":
        few = many = ["xla", "cudnn", "xla"]
    assert of((8, 16), groups=2, strides=2) == few
    assert of((32, 64), groups=16, strides=2) == many
    for keywords in ({"dilation": 2}, {"rank": 1}, {"rank": 3}, {"window": 4}):
        assert of((8, 8), groups=8, **keywords) == ["cudnn"] * 3
        assert of((8, 8), groups=8, strides=2, **keywords) == ["cudnn"] * 3
    for window in (3, 5, 7):
        dw = "xla" if half and window == 7 else "cudnn"
        assert of((8, 8), groups=8, window=window) == ["cudnn", "cudnn", dw]
        y = "xla" if window == 3 else "cudnn"
        assert of((8, 8), groups=8, window=window, strides=2) == [y, "cudnn", "cudnn"]
    assert of((8, 16), groups=8) == ["xla"] * 3
    # Windows so far apart that XLA would write down 2**60 pixels, most of them padding or zeros.
    far = {"strides": 2**30, "padding": ((0, 2**30), (1, 2**30))}
    assert of((8, 16), **far) == of((3, 16), **far) == of((8, 16), groups=2, **far) == ["cudnn"] * 3
    near = {"rank": 1, "strides": 2**30, "padding": ((2**30, 2**30),)}
    assert of((8, 16), **near) == of((8, 16), rank=1, strides=2)
    for operator in operators:
        geometry = ConvGeometry.make(
            "test",
            arguments.make_config(
                "test", (2, 8, 9, 9), (8, 8, 3, 3), strides=2, padding="VALID", dilation=1, groups=1,
                dimension_numbers=None,
            ),
            (2, 8, 9, 9),
            (8, 8, 3, 3),
        )  # fmt: skip
        with override_backend(None):
            problem = ConvProblem.make(operator, geometry, "bfloat16", "float32")
            assert decide(problem, H100).backend == "xla"


def test_dense_convolutions_of_odd_channels_with_stride_1_stay_with_xla() -> None:
    def f(x: Any, w: Any) -> Any:
        return jax_convgrad.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC)

    with override_backend(None):
        text = lowered(gradients(f), (2, 8, 8, 19), (2, 8, 8, 35), (3, 3, 35, 19))
    assert calls(text) == []
    assert text.count("stablehlo.convolution") == 3


def test_arrays_without_elements_reach_no_handler() -> None:
    text = lowered(gradients(transposed(2)), (0, 8, 8, 3), (0, 4, 4, 6), (4, 4, 6, 3))
    assert calls(text) == []


def test_other_platforms_get_no_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAX_CONVGRAD_REQUIRE_CUDA", raising=False)
    arguments = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((2, 4, 4, 6), (4, 4, 6, 3))]
    trace = jax.jit(transposed(2)).trace(*arguments)
    assert "ui8" not in trace.lower(lowering_platforms=("cpu",)).as_text()
    assert "jax_convgrad" not in trace.lower(lowering_platforms=("tpu",)).as_text()


def test_symbolic_batch() -> None:
    (batch,) = jax.export.symbolic_shape("b")
    arguments = [
        jax.ShapeDtypeStruct((batch, 4, 4, 6), jnp.float32),
        jax.ShapeDtypeStruct((4, 4, 6, 3), jnp.float32),
    ]
    checks = [jax.export.DisabledSafetyCheck.custom_call("jax_convgrad_conv_dgrad")]
    exported = jax.export.export(
        jax.jit(transposed(2)), platforms=["cuda"], disabled_checks=checks
    )(*arguments)
    assert "jax_convgrad_conv_dgrad" in str(exported.mlir_module())
    assert exported.out_avals[0].shape == (batch, 8, 8, 3)


@pytest.mark.usefixtures("settings_as_they_come")
@pytest.mark.parametrize("channels", [6, 8])
def test_the_workspace_of_a_symbolic_batch(channels: int) -> None:
    """What an exported program with that limit reserves for a batch is what one of that batch does."""
    (batch,) = jax.export.symbolic_shape("b")
    weights = jax.ShapeDtypeStruct((4, 4, channels, 8), jnp.float32)

    def image(size: Any) -> Any:
        return jax.ShapeDtypeStruct((size, 4, 4, channels), jnp.float32)

    def workspace(text: str) -> int:
        (call,) = calls(text)
        return call.workspace_bytes

    batches = (1, 3, 10**5)
    checks = [jax.export.DisabledSafetyCheck.custom_call("jax_convgrad_conv_dgrad")]
    for limit in (None, 0, 1000, 2**21):
        jax_convgrad.set_workspace_limit(limit)
        up = jax.jit(lambda x, w: transposed(2)(x, w))  # lowered anew
        exported = jax.export.export(up, platforms=["cuda"], disabled_checks=checks)(
            image(batch), weights
        )
        for size in batches:
            called = jax.jit(exported.call).trace(image(size), weights)
            refined = jax_internals.refine(called.lower(lowering_platforms=("cuda",)).as_text())
            assert workspace(refined) == workspace(
                up.trace(image(size), weights).lower(lowering_platforms=("cuda",)).as_text()
            )
            if limit is not None:
                assert workspace(refined) <= limit + ALIGNMENT


# The module.


@pytest.fixture
def module() -> Any:
    if not BUILT:
        if os.environ.get("JAX_CONVGRAD_REQUIRE_CUDA") == "1":
            pytest.fail(
                "JAX_CONVGRAD_REQUIRE_CUDA=1, but jax_convgrad._src.runtime._cuda is not built"
            )
        pytest.skip("jax_convgrad._src.runtime._cuda is not built")
    return registry.cuda_module()


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs binutils")
def test_the_module_leaves_no_cuda_symbol_undefined(module: Any) -> None:
    output = subprocess.run(
        ["nm", "-D", "--undefined-only", module.__file__],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    symbols = [line.split()[-1] for line in output.splitlines()]
    assert symbols
    assert [s for s in symbols if re.match(r"cudnn|cu[A-Z]|cuda|nvrtc|__cuda", s)] == []
    exported = subprocess.run(
        ["nm", "-D", "--defined-only", module.__file__], check=True, capture_output=True, text=True
    ).stdout
    assert [line.split()[-1] for line in exported.splitlines()] == ["PyInit__cuda"]


def test_the_module_is_there_without_a_gpu(module: Any) -> None:
    entry = jax_convgrad.info()["handlers"]["cuda"]
    assert entry["available"], entry["reason"]
    assert entry["targets"] == sorted([*registry.CONV_TARGETS.values(), registry.RESAMPLE_TARGET])
    assert set(entry["versions"]) == {"cuda runtime", "cudnn"}
    assert jax_convgrad.has_cuda()
    assert module.workspace_alignment == ALIGNMENT


@pytest.mark.usefixtures("settings_as_they_come")
def test_a_program_carries_the_settings_it_was_lowered_with(module: Any) -> None:
    """Also one function, under one jax.jit, that was lowered under others before."""
    function = jax.jit(lambda x, w: jax_convgrad.conv_fprop(x, w))
    shapes_ = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((2, 4, 9, 9), (6, 4, 3, 3))]

    def settings_of_the_call() -> tuple[dict[str, str], str]:
        with override_backend("cudnn"):
            text = function.trace(*shapes_).lower(lowering_platforms=("cuda",)).as_text()
        (call,) = calls(text)
        names = ("search", "deterministic", "generation")
        return {name: call.attributes[name] for name in names}, call.results[1]

    before, workspace = settings_of_the_call()
    generation = module.generation()
    assert before == {
        "search": '"default"', "deterministic": "false", "generation": str(generation)
    }  # fmt: skip
    jax_convgrad.set_algorithm_search("exhaustive")
    jax_convgrad.set_workspace_limit(2**10)
    jax_convgrad.set_deterministic(True)
    plans.clear()
    assert plans.workspace_limit() == 2**10
    after, limited = settings_of_the_call()
    assert after == {
        "search": '"exhaustive"', "deterministic": "true", "generation": str(generation + 1)
    }  # fmt: skip
    assert workspace != limited == f"{2**10 + ALIGNMENT}xui8"
    jax_convgrad.set_algorithm_search("default")
    jax_convgrad.set_workspace_limit(None)
    jax_convgrad.set_deterministic(False)
    assert settings_of_the_call() == (before | {"generation": str(generation + 1)}, workspace)


@pytest.mark.usefixtures("settings_as_they_come")
def test_caches_are_cleared_only_where_something_was_lowered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings.invalidate_jit_caches()
    cleared = []
    monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append(1))
    jax_convgrad.set_algorithm_search("heuristic")
    assert not cleared
    lowered(lambda x, w: jax_convgrad.conv_fprop(x, w), (2, 4, 9, 9), (6, 4, 3, 3))
    jax_convgrad.set_algorithm_search("heuristic")
    assert not cleared, "nothing has changed"
    jax_convgrad.set_deterministic(True)
    assert len(cleared) == 1


def test_loaded_choices_are_kept_for_the_next_file(module: Any, tmp_path: Any) -> None:
    plans.clear()
    module.load_choices([("a problem", "eng1_k2=3"), ("another", "eng2")])
    try:
        assert plans.save(tmp_path / "plans.json") == 2
        plans.clear()
        assert plans.save(tmp_path / "none.json") == 0
        assert plans.load(tmp_path / "plans.json") == 2
        assert sorted(module.loaded_choices()) == [
            ("a problem", "eng1_k2=3"),
            ("another", "eng2"),
        ]
        assert sorted(p.name for p in tmp_path.iterdir()) == ["none.json", "plans.json"]
    finally:
        plans.clear()


# Bad arguments and a missing module.


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: jax_convgrad.set_algorithm_search("fast"), ValueError, "default, heuristic"),
        (lambda: jax_convgrad.set_workspace_limit(-1), ValueError, "at least 0"),
        (lambda: jax_convgrad.set_workspace_limit(1.5), TypeError, "int or None"),
        (lambda: jax_convgrad.set_workspace_limit(True), TypeError, "int or None"),
        (lambda: jax_convgrad.set_deterministic(1), TypeError, "True or False"),
    ],
)
def test_bad_settings(call: Callable[[], None], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "[" * 200_000, "{}", '{"format": "other", "choices": []}',
        '{"format": "jax_convgrad plans 1", "choices": [{"problem": 1, "engine": "e"}]}',
        '{"format": "jax_convgrad plans 1", "choices": [{"engine": "e"}]}',
    ],
)  # fmt: skip
def test_bad_plan_files(content: str, tmp_path: Any) -> None:
    (tmp_path / "plans.json").write_text(content)
    with pytest.raises(ValueError, match=r"plans.json.* holds no plans"):
        plans.load(tmp_path / "plans.json")


def test_a_missing_module_warns_once_and_runs_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.delenv("JAX_CONVGRAD_REQUIRE_CUDA", raising=False)
    missing = registry.PlatformHandlers(reason="ImportError: its own words", broken=True)
    load = registry._load
    monkeypatch.setattr(
        registry, "_load", lambda platform: missing if platform == "cuda" else load(platform)
    )
    monkeypatch.setattr(registry, "_warned", set())
    with pytest.warns(registry.MissingHandlersWarning, match="its own words") as caught:
        text = lowered(gradients(transposed(2)), (2, 8, 8, 3), (2, 4, 4, 6), (4, 4, 6, 3))
    assert len(caught) == 1
    assert calls(text) == []
    assert text.count("stablehlo.convolution") == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not jax_convgrad.has_cuda()
        assert jax_convgrad.info()["handlers"]["cuda"]["reason"] == "ImportError: its own words"
        lowered(transposed(2), (2, 4, 4, 6), (4, 4, 6, 3))
    monkeypatch.setenv("JAX_CONVGRAD_REQUIRE_CUDA", "1")
    with pytest.raises(RuntimeError, match="its own words"):
        lowered(transposed(2), (2, 5, 4, 6), (4, 4, 6, 3))


@pytest.mark.parametrize(
    ("capabilities", "reason"),
    [
        ([], None),  # no driver: programs are lowered for other machines
        ([(8, 0), (12, 0)], None),
        (
            [(9, 0), (7, 5)],
            "RuntimeError: device 1 has compute capability 7.5, .* need 8.0 or newer",
        ),
    ],
)
def test_devices_older_than_the_kernels(
    capabilities: list[tuple[int, int]], reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.SimpleNamespace(
        capabilities=lambda: capabilities, min_capability=(8, 0),
        versions=lambda: {"cuda runtime": "12.9"}, validated_versions=dict, handlers=dict,
        supported_dtypes=list,
    )  # fmt: skip
    monkeypatch.setattr(registry, "_import_cuda", lambda: module)
    found = registry._load.__wrapped__("cuda")
    assert found.broken == (reason is not None)
    assert re.match(reason or "None", str(found.reason))


def _workspace(
    x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...], dtype: Any, fast: bool = True
) -> int:
    config = arguments.make_config(
        "test", x, w, strides=1, padding="VALID", dilation=1, groups=x[1] // w[1],
        dimension_numbers=None,
    )  # fmt: skip
    arrays = {role: (shape, dtype) for role, shape in (("x", x), ("w", w), ("y", y))}
    return workspace_size(config, arrays, fast, None) - ALIGNMENT


def test_the_workspace_rule() -> None:
    """Copies of all arrays, channels filled up, the weights' sums in float32, or less if dense."""
    mega = 2**20
    small = (2, 8, 4), (16, 8, 3), (2, 16, 2)
    # A weight gradient summed in parts keeps them in float32, whatever its own dtype.
    assert _workspace(*small, jnp.bfloat16) == mega + 2 * (64 + 64) + 4 * 2 * 384
    assert _workspace(*small, jnp.float32) == mega + 4 * (64 + 64) + 4 * 2 * 384
    assert _workspace(*small, np.float64) == mega + 8 * (64 + 64 + 2 * 384)
    odd = (2, 3, 4), (5, 3, 3), (2, 5, 2)
    assert _workspace(*odd, jnp.float16) == mega + 2 * (64 + 32) + 4 * 2 * 192
    assert _workspace(*odd, jnp.float32) == mega + 4 * (24 + 20) + 4 * 2 * 45
    large = (64, 8, mega), (8, 8, 1), (64, 8, mega)
    dense = 32 * mega + 4 * 2 * 64
    copies = mega + 2 * 512 * mega * 2
    assert _workspace(*large, jnp.bfloat16) == _workspace(*large, jnp.float32) == dense
    assert _workspace(*large, jnp.bfloat16, fast=False) == copies + 4 * 2 * 64
    assert _workspace(*large, np.float64) > copies
    grouped = (64, 8, mega), (8, 1, 1), (64, 8, mega)
    assert _workspace(*grouped, jnp.bfloat16) == copies + 4 * 2 * 8


@pytest.mark.usefixtures("settings_as_they_come")
def test_the_part_of_one_device() -> None:
    """What XLA is given when it asks for it, in a program for eight devices that need not be there.

    It asks when the program is compiled; the settings are those with which it was lowered.
    """
    mesh = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, P("data"))
    x, dy, w = (16, 8, 8, 16), (16, 8, 8, 32), (3, 3, 16, 32)
    arguments = [jax.ShapeDtypeStruct(s, jnp.float32, sharding=sharding) for s in (x, dy)]
    f = functools.partial(conv_wgrad, w_shape=w, padding="SAME", dimension_numbers=NHWC)
    lowering = jax.jit(f).trace(*arguments).lower(lowering_platforms=("cuda",))
    (key,) = re.findall(r'backend_config = "(jax_convgrad [^"]*)"', lowering.as_text())
    split = jax_internals.xla_sharding(sharding, 4)
    jax_convgrad.set_deterministic(True)
    jax_convgrad.set_workspace_limit(0)
    text, operands, result = jax_internals.ask_for_shard(key, (x, dy, w), [split, split])
    assert [str(s) for s in operands] == [str(split)] * 2 and result.is_replicated()
    (call,) = calls(text)
    assert call.target == "jax_convgrad_conv_wgrad"
    assert "tensor<2x8x8x16xf32>, tensor<2x8x8x32xf32>) -> (tensor<3x3x16x32xf32>" in text
    assert call.operand_layouts == [(0, 1, 2, 3)] * 2 and call.result_layouts[0] == (0, 1, 2, 3)
    assert call.attributes["weights"] == '"XIO"'
    assert text.count("stablehlo.all_reduce") == 1
    assert call.attributes["deterministic"] == "false" and call.workspace_bytes > 2**20


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("groups", [1, 2])
def test_symbolic_channels_and_windows_go_to_the_handlers(dtype: Any, groups: int) -> None:
    """No rule can be looked up."""
    c, o, k = jax.export.symbolic_shape("c, o, k", constraints=["k <= 9"])
    shapes_ = (2, 9, 9, groups * c), (k, 3, c, groups * o)
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes_]

    def loss(x: Any, w: Any) -> Any:
        y = jax_convgrad.conv_general_dilated(
            x, w, (1, 2), "VALID", dimension_numbers=NHWC, feature_group_count=groups
        )
        return jnp.sum(y.astype(jnp.float32) ** 2)

    make = jax.export.export(
        jax.jit(jax.grad(loss, (0, 1))),
        platforms=["cuda"],
        disabled_checks=jax_convgrad.export_checks(),
    )
    with override_backend(None):
        module = make(*arguments).mlir_module()
    for operator in ("conv_fprop", "conv_dgrad", "conv_wgrad"):
        assert f"@jax_convgrad_{operator}" in module

"""Strides and dilations with a common factor: the smaller convolution is the same one, exactly."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.comparisons import FLOATS, assert_exact, value_and_gradients
from support.conv_cases import Case, ids
from support.conv_oracle import conv_oracle
from support.layouts import NDHWC, NHWC, NWC, to_layout
from support.transposed_cases import TransposedCase

from jax_convgrad import conv_dgrad, conv_fprop, conv_general_dilated, conv_transpose, conv_wgrad
from jax_convgrad._src.conv import arguments
from jax_convgrad._src.conv.geometry import ConvConfig, ConvGeometry
from jax_convgrad._src.conv.subsample import subsample
from jax_convgrad._src.dispatch import decide as decide_module
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.runtime import registry

SCRAMBLED = lax.ConvDimensionNumbers((2, 0, 3, 1), (1, 3, 0, 2), (3, 1, 0, 2))

CASES = [
    Case("1d", (2, 3, 13), (4, 3, 3), (2,), ((2, 2),), (2,)),
    Case("1d-odd-padding", (2, 3, 14), (4, 3, 3), (2,), ((1, 2),), (4,), layout=NWC),
    Case("1d-factor-of-both", (1, 3, 25), (4, 3, 3), (6,), ((5, 3),), (4,)),
    Case("1d-crop-odd", (2, 3, 15), (4, 3, 2), (2,), ((-1, -2),), (2,)),
    Case("1d-crop-more-than-the-factor", (2, 3, 19), (4, 3, 2), (3,), ((-5, 4),), (3,)),
    Case("1d-crop-low-pad-high", (2, 3, 9), (4, 3, 3), (2,), ((-3, 7),), (2,), layout=NWC),
    Case("1d-unread-rows", (2, 3, 20), (4, 3, 2), (6,), ((0, 0),), (3,)),
    Case("1d-one-tap", (2, 3, 11), (4, 3, 1), (2,), ((1, 0),), (2,)),
    Case("1d-nothing-left", (2, 3, 1), (4, 3, 3), (2,), ((3, 4),), (2,)),
    Case("1d-nothing-left-of-two", (2, 3, 2), (4, 3, 2), (3,), ((1, 5),), (3,)),
    Case("2d", (2, 3, 9, 10), (4, 3, 3, 3), (2, 2), ((2, 2), (2, 2)), (2, 2)),
    Case("2d-one-axis", (2, 3, 9, 8), (4, 3, 3, 2), (2, 2), ((1, 2), (0, 1)), (2, 3), layout=NHWC),
    Case("2d-same", (2, 3, 11, 12), (4, 3, 3, 2), (2, 3), "SAME", (4, 3), layout=NHWC),
    Case("2d-groups", (2, 6, 9, 8), (4, 3, 3, 2), (2, 4), ((1, -1), (3, 2)), (2, 2), 2, NHWC),
    Case("2d-depthwise", (1, 5, 12, 9), (5, 1, 3, 3), (2, 3), ((2, 1), (0, 3)), (2, 3), 5),
    Case("2d-orders", (2, 3, 10, 9), (4, 3, 3, 2), (4, 2), ((3, 3), (1, 1)), (2, 2), 1, SCRAMBLED),
    Case("2d-nothing-left", (2, 3, 1, 8), (4, 3, 2, 2), (2, 2), ((1, 3), (0, 0)), (2, 2), 1, NHWC),
    Case("2d-empty-batch", (0, 3, 9, 8), (4, 3, 3, 2), (2, 2), "VALID", (2, 2)),
    Case("2d-no-output", (2, 3, 4, 8), (4, 3, 3, 2), (2, 2), "VALID", (2, 2)),
    Case("3d", (1, 2, 7, 6, 8), (3, 2, 2, 3, 2), (2, 1, 3), ((1, 1), (2, 2), (0, 2)), (2, 2, 3)),
    Case("3d-all", (1, 2, 5, 6, 7), (3, 2, 2, 2, 2), (2,) * 3, "SAME", (2,) * 3, 1, NDHWC),
]  # fmt: skip


def reduced(case: Case) -> Any:
    config = arguments.make_config(
        "test", case.logical("x"), case.logical("w"), strides=case.strides, padding=case.pairs,
        dilation=case.dilation, groups=case.groups, dimension_numbers=case.numbers,
    )  # fmt: skip
    return config, subsample(config, case.logical("x"))


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_the_smaller_convolution_has_no_common_factor_and_the_same_output(case: Case) -> None:
    config, smaller = reduced(case)
    assert smaller is not None
    pairs = zip(smaller.config.strides, smaller.config.dilation, strict=True)
    assert all(math.gcd(s, d) == 1 for s, d in pairs)
    whole = ConvGeometry.make("whole", config, case.logical("x"), case.logical("w"))
    part = ConvGeometry.make("part", smaller.config, smaller.x_shape, case.logical("w"))
    assert part.out_spatial == whole.out_spatial
    taken = jax.eval_shape(smaller.take, jax.ShapeDtypeStruct(case.logical("x"), jnp.float32))
    assert taken.shape == smaller.x_shape


def test_every_small_axis() -> None:
    """All sizes, paddings, strides and dilations of one axis: which element meets which tap."""
    numbers = lax.ConvDimensionNumbers((0, 1, 2), (0, 1, 2), (0, 1, 2))
    found = 0
    for size, kernel, s, d, low, high in itertools.product(
        range(1, 9), range(1, 4), (2, 3, 4, 6), (2, 3, 4), range(-3, 5), range(-3, 5)
    ):
        room = size + low + high
        if room < 0 or (out := (room - (kernel - 1) * d - 1) // s + 1) < 1:
            continue
        config = ConvConfig((s,), ((low, high),), (d,), 1, numbers)
        smaller = subsample(config, (1, 1, size))
        assert (smaller is None) == (math.gcd(s, d) == 1)
        if smaller is None:
            continue
        found += 1
        (s_,), (d_,), ((low_, _),) = (
            smaller.config.strides, smaller.config.dilation, smaller.config.padding,
        )  # fmt: skip
        places = range(size)[smaller.starts[0] :: smaller.steps[0]]
        assert len(places) == smaller.x_shape[2]
        geometry = ConvGeometry.make("t", smaller.config, smaller.x_shape, (1, 1, kernel))
        assert geometry.out_spatial == (out,)
        for i, t in itertools.product(range(out), range(kernel)):
            place, index = i * s + t * d - low, i * s_ + t * d_ - low_
            inside = 0 <= index < len(places)
            assert inside == (0 <= place < size)
            assert not inside or places[index] == place
    assert found > 5000


def test_no_common_factor_is_left_alone() -> None:
    for strides, dilation in (((2, 3), (3, 2)), ((1, 1), (2, 4)), ((2, 2), (1, 1))):
        case = Case("t", (1, 2, 9, 9), (3, 2, 2, 2), strides, "VALID", dilation)
        assert reduced(case)[1] is None


@pytest.mark.parametrize(
    ("dtype", "backend"),
    [*((dtype, None) for dtype in FLOATS), ("float32", "xla"), ("float32", "xla_rewritten")],
)
@pytest.mark.parametrize("case", CASES, ids=ids)
def test_operators_are_exact(
    case: Case, dtype: str, backend: str | None, rng: np.random.Generator
) -> None:
    data = case.data(rng, dtype)
    y, dx, dw = conv_oracle(case, *data)
    x, w, dy = (
        jnp.asarray(to_layout(a, s), dtype) for a, s in zip(data, case.numbers, strict=True)
    )
    keywords = case.operator_keywords

    def run(x: Any, w: Any, dy: Any) -> Any:
        return (
            conv_fprop(x, w, **keywords),
            conv_dgrad(dy, w, case.logical("x"), **keywords),
            conv_wgrad(x, dy, case.logical("w"), **keywords),
        )

    with override_backend(backend):
        got = jax.jit(run)(x, w, dy)
    for name, array, wanted, spec in zip(
        ("y", "dx", "dw"), got, (y, dx, dw), (case.numbers[i] for i in (2, 0, 1)), strict=True
    ):
        assert_exact(array, to_layout(wanted, spec), dtype, name)


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_layers_and_their_gradients_are_exact(case: Case, rng: np.random.Generator) -> None:
    x, w, dy = case.data(rng, "float32")
    y, dx, dw = conv_oracle(case, x, w, dy)
    x_spec, w_spec, y_spec = case.numbers
    arrays = (to_layout(dy, y_spec), to_layout(x, x_spec), to_layout(w, w_spec))
    got = value_and_gradients(lambda x, w: conv_general_dilated(x, w, **case.lax_keywords))(
        *(jnp.asarray(a, "float32") for a in arrays)
    )
    wanted = to_layout(y, y_spec), to_layout(dx, x_spec), to_layout(dw, w_spec)
    for name, array, expected in zip(("y", "dx", "dw"), got, wanted, strict=True):
        assert_exact(array, expected, "float32", name)


TRANSPOSED = [
    TransposedCase(
        "1d", (2, 3, 6), (4, 3, 3), (2,), ((2, 3),), ((2, 3),), dilation=(2,)
    ),
    TransposedCase(
        "2d-output-padding", (2, 3, 4, 5), (4, 3, 3, 3), (2, 2), ((2, 2), (2, 2)),
        ((2, 3), (2, 3)), dilation=(2, 2), output_padding=1,
    ),
    TransposedCase(
        "2d-groups-crop", (1, 4, 3, 3), (6, 2, 2, 3), (4, 3), ((-1, 4), (1, 7)),
        ((-1, 4), (1, 7)), dilation=(2, 3), groups=2,
    ),
    TransposedCase(
        "3d", (1, 2, 2, 3, 2), (3, 2, 2, 2, 3), (2, 3, 2), ((2, 1), (2, 4), (3, 3)),
        ((2, 1), (2, 4), (3, 3)), dilation=(2, 3, 4),
    ),
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", TRANSPOSED, ids=ids)
def test_transposed_layers_are_exact(
    case: TransposedCase, dtype: str, rng: np.random.Generator
) -> None:
    x, w, dy = case.conv.data(rng, dtype)
    y, dx, dw = conv_oracle(case.conv, x, w, dy)
    x_spec, _, y_spec = case.conv.numbers
    arrays = (to_layout(dy, y_spec), to_layout(x, x_spec), case.passed_weights(w))
    got = value_and_gradients(lambda x, w: conv_transpose(x, w, **case.keywords))(
        *(jnp.asarray(a, dtype) for a in arrays)
    )
    wanted = to_layout(y, y_spec), to_layout(dx, x_spec), case.passed_weights(dw)
    for name, array, expected in zip(("y", "dx", "dw"), got, wanted, strict=True):
        assert_exact(array, expected, dtype, name)


def test_a_kernel_without_taps() -> None:
    """lax counts one window more than the sizes divided by the common factor would give."""
    x, w = jnp.ones((2, 3, 3, 8)), jnp.ones((4, 3, 0, 2))
    y = conv_fprop(x, w, strides=2, dilation=2)
    expected = jax.eval_shape(
        lambda x, w: lax.conv_general_dilated(x, w, (2, 2), "VALID", rhs_dilation=(2, 2)), x, w
    )
    assert y.shape == expected.shape == (2, 4, 2, 3)
    assert not y.any()


def test_handlers_see_the_smaller_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules are asked, and the handlers called, for what is left."""
    found = registry.PlatformHandlers(
        frozenset(registry.CONV_TARGETS.values()), frozenset({"float32"})
    )
    monkeypatch.setattr(registry, "require", lambda platform: found)
    x, w = jnp.ones((2, 9, 9, 8)), jnp.ones((3, 3, 8, 16))

    def f(x: Any, w: Any) -> Any:
        return conv_fprop(
            x, w, strides=(2, 4), padding=((2, 2), (2, 2)), dilation=2, dimension_numbers=NHWC
        )

    arguments = (x.astype("float32"), w.astype("float32"))
    for platform in ("cpu", "cuda"):
        with override_backend({"cpu": "onednn", "cuda": "cudnn"}[platform]):
            text = jax.jit(f).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()
        (call,) = [line for line in text.splitlines() if "@jax_convgrad_conv_fprop" in line]
        for attribute in ("strides = dense<[1, 2]>", "dilation = dense<1>"):
            assert attribute in call, call
        assert "tensor<2x5x5x8xf32>" in call
    asked = []
    features = decide_module.conv_features
    monkeypatch.setattr(
        decide_module, "conv_features", lambda *a: asked.append(a[1].config) or features(*a)
    )
    jax.jit(lambda *a: f(*a)).trace(*arguments).lower(lowering_platforms=("cuda",))
    assert [(config.strides, config.dilation) for config in asked] == [((1, 2), (1, 1))]


def test_symbolic_sizes_are_left_alone() -> None:
    (n,) = jax.export.symbolic_shape("n")
    keywords: dict[str, Any] = {"strides": 2, "dilation": 2, "padding": "VALID"}
    with override_backend("xla"):
        exported = jax.export.export(jax.jit(lambda x, w: conv_fprop(x, w, **keywords)))(
            jax.ShapeDtypeStruct((n, 3, 8), jnp.float32),
            jax.ShapeDtypeStruct((4, 3, 2), jnp.float32),
        )
        x, w = jnp.arange(96.0).reshape(4, 3, 8), jnp.arange(24.0).reshape(4, 3, 2)
        x, w = x.astype("float32"), w.astype("float32")
        np.testing.assert_array_equal(exported.call(x, w), conv_fprop(x, w, **keywords))
    text = str(exported.mlir_module())
    assert re.search(r"stablehlo.slice|dynamic_slice", text), "only the batch is symbolic here"
    config = ConvConfig((2,), ((0, 0),), (2,), 1, lax.ConvDimensionNumbers(*((0, 1, 2),) * 3))
    assert subsample(config, (4, 3, n)) is None

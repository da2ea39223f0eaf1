"""What the rules see of a problem, against formulas of another kind."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.drawn_geometries import channels_last, drawn_geometries

from jax_convgrad._src.conv.geometry import ConvConfig, ConvGeometry
from jax_convgrad._src.dispatch.features import MAX_PIXELS, conv_features, resample_features
from jax_convgrad.bench import case_files, problems

OPERATORS = ("conv_fprop", "conv_dgrad", "conv_wgrad")


def of(geometry: ConvGeometry, operator: str = "conv_fprop", dtype: str = "float32", **rest):
    return conv_features(operator, geometry, dtype, rest.pop("result_dtype", dtype), **rest)


def reads_per_element(size: int, kernel: int, stride: int, dilation: int, low: int, high: int):
    """How many windows' taps lie on each element of one axis, window by window."""
    counts = np.zeros(size, int)
    for start in itertools.count(0, stride):
        taps = [start + tap * dilation - low for tap in range(kernel)]
        if taps[-1] >= size + high:
            return counts
        for tap in taps:
            if 0 <= tap < size:
                counts[tap] += 1


def test_features_follow_their_definitions():
    nonoverlapping = 0
    for geometry in drawn_geometries(0, 3000):
        features, config = of(geometry), geometry.config
        axes = list(
            zip(
                geometry.in_spatial,
                geometry.kernel,
                config.strides,
                config.dilation,
                *zip(*config.padding, strict=True),
                strict=True,
            )
        )
        assert features.spatial_rank == len(axes)
        assert features.taps == np.empty(geometry.kernel, np.int8).size
        assert features.weights == np.prod(np.array(geometry.w_shape, object))
        images = (geometry.batch, *geometry.out_spatial)
        assert features.result_pixels == np.prod(np.array(images, object))
        assert features.stride_product == np.empty(config.strides, np.int8).size
        assert features.is_strided == (max(config.strides) > 1)
        assert features.is_dilated == (max(config.dilation) > 1)
        assert features.is_cropped == (min(map(min, config.padding)) < 0)
        assert features.has_uneven_padding == any(a[4] != a[5] for a in axes)
        filters = geometry.out_channels // config.groups
        assert features.multiplier == filters
        assert features.is_dense == (config.groups == 1)
        one_channel_each = geometry.w_shape[-2] == 1 and geometry.in_channels > 1
        assert features.is_depthwise == one_channel_each
        full_rows = all(math.gcd(c, 8) == 8 for c in (geometry.in_channels, geometry.out_channels))
        assert features.has_odd_channels == (not full_rows)
        assert features.known_channels
        if max(geometry.in_spatial) > 2**12:
            continue
        once = all((reads_per_element(*axis) == 1).all() for axis in axes)
        cut = config.groups == 1 and features.taps > 1 and not any(map(any, config.padding))
        # A lone window, or dilated ones that take turns, are not what a reshape cuts an array into.
        side_by_side = all(k == s and (d == 1 or k == 1) for _, k, s, d, _, _ in axes)
        expected = once and cut and side_by_side
        assert features.has_nonoverlapping_windows == expected, geometry
        nonoverlapping += expected
        _, kernel, stride, *_ = axes[-1]
        starts = range(0, 10 * (kernel + stride), stride)
        over = [sum(s <= e < s + kernel for s in starts) for e in range(2 * kernel, 3 * kernel)]
        most = [sum(s <= e < s + kernel for s in starts) for e in range(kernel + stride)]
        assert features.inner_overlap == max(over + most)
    assert nonoverlapping > 100


def test_beyond_memory_counts_padding_and_the_zeros_of_strides():
    seen = set()
    for geometry in drawn_geometries(1, 3000):
        config = geometry.config
        padded = [
            size + max(low, 0) + max(high, 0)
            for size, (low, high) in zip(geometry.in_spatial, config.padding, strict=True)
        ]
        spread = [
            (n - 1) * s + 1 for n, s in zip(geometry.out_spatial, config.strides, strict=True)
        ]
        pixels = math.prod(map(max, padded, spread))
        beyond = of(geometry).is_beyond_memory
        assert beyond == (pixels > MAX_PIXELS)
        seen.add(beyond)
    assert seen == {False, True}


def test_dtypes_and_precision():
    geometry = next(iter(drawn_geometries(2, 1)))
    assert of(geometry, dtype="bfloat16", result_dtype="float32").widens
    assert not of(geometry, dtype=np.dtype("float64")).widens
    assert of(geometry, dtype=jnp.bfloat16).dtype == "bfloat16"
    for precision, allowed in (
        (None, True),
        (lax.Precision.HIGH, True),
        ((lax.Precision.DEFAULT, lax.Precision.HIGHEST), False),
    ):
        assert of(geometry, precision=precision).allows_tf32 is allowed


def test_is_thin_is_asked_of_dense_float32_problems_of_one_or_two_axes_only():
    asked = []

    def is_thin(*sizes):
        asked.append(sizes)
        return True

    for geometry in drawn_geometries(3, 500):
        for dtype, operator in itertools.product(("float32", "bfloat16"), OPERATORS):
            asked.clear()
            features = of(geometry, operator, dtype, is_thin=is_thin)
            serves = dtype == "float32" and features.is_dense and features.spatial_rank <= 2
            assert features.is_thin == bool(asked) == serves
            if serves:
                sizes = geometry.in_channels, geometry.out_channels
                assert asked == [(operator, *sizes, geometry.kernel, geometry.config.strides)]
        assert not of(geometry).is_thin
    assert not of(geometry, dtype="float32", result_dtype="float64", is_thin=is_thin).is_thin


def test_symbolic_sizes_are_unknown():
    batch, rows, channels = jax.export.symbolic_shape("n, h, c")
    config = ConvConfig((2, 2), ((0, 0), (0, 0)), (1, 1), 1, channels_last(2))
    spatial = ConvGeometry.make("t", config, (batch, rows, 8, 3), (2, 2, 3, 16))
    features = of(spatial)
    assert features.known_channels and features.taps == 4
    assert not features.has_nonoverlapping_windows and not features.is_beyond_memory
    features = of(ConvGeometry.make("t", config, (2, 8, 8, channels), (2, 2, channels, 16)))
    assert not features.known_channels and features.in_channels is None
    assert features.out_channels == 16 and not features.has_odd_channels


def test_resample_features():
    features = resample_features(jnp.bfloat16, copies=True, grows=False)
    assert (features.dtype, features.copies, features.grows) == ("bfloat16", True, False)


@pytest.mark.parametrize("pass_", ["fprop", "dx", "dw"])
def test_problems_of_cases_are_those_of_their_sizes(pass_: str):
    """x and y change places where the layer is transposed."""
    for case in case_files.published("all"):
        if case.kind == "resize":
            continue
        problem = problems.problem_of(case, pass_)
        shapes = (case.y_shape, case.x_shape) if case.transposed else (case.x_shape, case.y_shape)
        assert (problem.geometry.x_shape, problem.geometry.y_shape) == shapes
        assert sorted(problem.geometry.kernel) == sorted(case.kernel)
        operators = dict(zip(("fprop", "dx", "dw"), OPERATORS, strict=True))
        turned = {"fprop": "dx", "dx": "fprop", "dw": "dw"} if case.transposed else {}
        assert problem.operator == operators[turned.get(pass_, pass_)]

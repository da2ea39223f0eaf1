"""The case files under benchmarks/ with layers of named networks: each holds what its name says."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

from jax_convgrad.bench.case_files import AnyCase, load_cases, published
from jax_convgrad.bench.cases import Case
from jax_convgrad.bench.resize_cases import METHODS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MAX_ELEMENTS = 2**28  # of an array: what a GPU of 16 GB trains


def layers(kind: str, count: int) -> list[AnyCase]:
    cases = load_cases(BENCHMARKS / f"{kind}_cases.json")
    assert len(cases) >= count
    assert len({case.label for case in cases}) == len(cases)
    for case in cases:
        assert min(case.out_spatial) >= 1, case.label
        assert max(math.prod(case.x_shape), math.prod(case.y_shape)) <= MAX_ELEMENTS, case.label
    return cases


@pytest.mark.parametrize("kind", ["thin", "highres", "grouped"])
def test_convolutions_have_one_to_three_axes_in_both_precisions(kind: str) -> None:
    assert {(case.ndim, case.dtype) for case in layers(kind, 40)} == {
        (ndim, dtype) for ndim in (1, 2, 3) for dtype in ("bf16", "f32")
    }


def test_thin_layers_are_narrow_or_have_windows_side_by_side() -> None:
    for case in layers("thin", 40):
        assert isinstance(case, Case)
        assert min(case.cin, case.cout) <= 16 or case.kernel == case.stride, case.label


def test_layers_of_high_resolution_have_16_to_64_channels() -> None:
    """The narrower side has at most 64, the wider one 128; 8 channels are the limit of the thin ones."""
    cases = layers("highres", 40)
    for case in cases:
        assert isinstance(case, Case)
        assert 8 <= min(case.cin, case.cout) <= 64, case.label
        assert max(case.cin, case.cout) <= 128 and case.groups == 1, case.label
    assert {case.transposed for case in cases} == {False, True}


def test_grouped_layers_are_depthwise_and_of_wider_groups() -> None:
    depthwise, wider = 0, set()
    for case in layers("grouped", 30):
        assert isinstance(case, Case)
        assert case.groups > 1, case.label
        if case.groups == case.cin:
            depthwise += 1
        else:
            wider.add(case.cin // case.groups)
    assert depthwise >= 15 and min(wider) <= 4 and max(wider) >= 112, wider


def test_resizes_cover_axes_dtypes_methods_factors_and_channels() -> None:
    cases = layers("resize", 50)
    assert {case.ndim for case in cases} == {1, 2, 3}
    assert {case.dtype for case in cases} == {"f16", "bf16", "f32", "f64"}
    channels = [case.x_shape[-1] for case in cases]
    assert min(channels) == 1 and max(channels) >= 1024
    assert {case.method for case in cases} == set(METHODS)
    assert any(case.align_corners for case in cases) and any(case.antialias for case in cases)
    factors = {
        after / before
        for case in cases
        for before, after in zip(case.spatial, case.out_spatial, strict=True)
        if before > 1
    }
    assert min(factors) <= 1 / 8 and max(factors) >= 16
    odd = [case for case in cases if any(n % 2 for n in (*case.spatial, *case.out_spatial))]
    assert len(odd) >= 8


def test_no_resize_is_a_published_one() -> None:
    """No choice of a kernel was made by them."""
    known = {(case.kind, case.x_shape, case.out_spatial, case.dtype) for case in published("all")}
    for case in layers("resize", 50):
        assert (case.kind, case.x_shape, case.out_spatial, case.dtype) not in known, case.label


def test_no_layer_is_in_two_files() -> None:
    files = [
        {case.label.split(" (")[1] + case.dtype for case in layers(kind, 30)}
        for kind in ("highres", "grouped")
    ]
    files.append(
        {
            case.label.split(" (")[1] + case.dtype
            for case in load_cases(BENCHMARKS / "unseen_gpu_cases.json")
        }
    )
    for one, other in itertools.combinations(files, 2):
        assert one & other == set()

"""Bands against their definition, their exact transposes, and the bounds that the kernels rely on."""

from __future__ import annotations

import itertools
import time

import jax
import numpy as np
import pytest
from support import resize_oracles as oracles

import jax_convgrad
from jax_convgrad._src.resize.bands import COORDINATE_MODES, Band, Rule, count_taps, make_band

EPS = float(np.finfo(np.float64).eps)
SIZES = [
    (5, 5),
    (4, 8),
    (4, 11),
    (7, 3),
    (8, 2),
    (13, 5),
    (1, 6),
    (6, 1),
    (3, 40),
    (40, 3),
    (33, 34),
]
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
FILTERS = ("linear", "cubic", "lanczos3", "lanczos5")

RULES = [
    *(
        Rule("nearest", coordinate_mode=c, nearest_mode=n, roi=(0.25, 0.75))
        for c, n in itertools.product(COORDINATE_MODES, NEAREST)
    ),
    *(
        Rule(f, antialias=aa, coordinate_mode=c, exclude_outside=e, roi=(0.25, 0.75))
        for f, aa, c, e in itertools.product(
            FILTERS, (False, True), COORDINATE_MODES, (False, True)
        )
    ),
    Rule("cubic", cubic_coeff_a=-0.75),
    Rule("cubic", True, cubic_coeff_a=0.3, exclude_outside=True),
    Rule("area"),
    Rule("area-pytorch"),
    *(Rule("linear", coordinate_mode="tf_crop_and_resize", roi=r) for r in [(-0.5, 1.5), (1, 0)]),
    Rule("nearest", coordinate_mode="tf_crop_and_resize", roi=(0.5, 2.0)),
    *(
        Rule("linear", coordinate_mode=c, scale=s)
        for c in COORDINATE_MODES
        for s in (0.625, 1.3, 2.75)
    ),
    Rule("cubic", True, scale=0.375),
]


def name(rule: Rule) -> str:
    options = (rule.antialias and "aa", rule.exclude_outside and "excl", rule.scale, rule.roi[0])
    parts = [rule.method, rule.coordinate_mode, rule.nearest_mode, str(rule.cubic_coeff_a)]
    return "-".join([*parts, *(str(option) for option in options if option)])


def expected(n: int, m: int, rule: Rule) -> tuple[np.ndarray, np.ndarray]:
    return oracles.matrix(
        n,
        m,
        rule.method,
        antialias=rule.antialias,
        mode=rule.coordinate_mode,
        nearest_mode=rule.nearest_mode,
        a=rule.cubic_coeff_a,
        exclude_outside=rule.exclude_outside,
        scale=rule.scale,
        roi=rule.roi,
    )


def check_is_legal(band: Band) -> None:
    m, taps = band.weights.shape
    assert band.start.dtype == np.int32 and band.start.shape == (m,)
    assert band.weights.dtype == np.float64 and taps <= band.size
    assert (band.start >= 0).all() and (band.start + taps <= band.size).all()
    assert np.isfinite(band.weights).all()


@pytest.mark.parametrize("rule", RULES, ids=name)
def test_the_matrix_is_that_of_the_definition(rule: Rule):
    for n, m in SIZES:
        band = make_band(n, m, rule)
        check_is_legal(band)
        dense, outside = expected(n, m, rule)
        if rule.method == "nearest":
            np.testing.assert_array_equal(band.dense(), dense)
        else:
            # A coordinate is below n + m and off by a few roundings; a filter's slope is below 5,
            # and a sum of lanczos weights above 1/2.
            np.testing.assert_allclose(band.dense(), dense, rtol=0, atol=40 * (n + m) * EPS)
        got = np.zeros(m, bool) if band.outside is None else band.outside
        np.testing.assert_array_equal(got, outside)


@pytest.mark.parametrize("rule", RULES, ids=name)
def test_the_transpose_is_exact(rule: Rule):
    for n, m in SIZES:
        band = make_band(n, m, rule)
        check_is_legal(band.transpose)
        np.testing.assert_array_equal(band.transpose.dense(), band.dense().T)
        assert band.transpose.transpose is band
        assert (band.transpose.size, band.transpose.out_size) == (m, n)


@pytest.mark.parametrize("seed", range(5))
def test_random_sizes(seed: int, rng: np.random.Generator):
    for _ in range(20):
        n, m = (int(size) for size in rng.integers(1, 120, 2))
        rule = RULES[rng.integers(len(RULES))]
        band = make_band(n, m, rule)
        tolerance = 0 if rule.method == "nearest" else 40 * (n + m) * EPS
        what = f"make_band({n}, {m}, {rule})"
        np.testing.assert_allclose(
            band.dense(), expected(n, m, rule)[0], rtol=0, atol=tolerance, err_msg=what
        )
        np.testing.assert_array_equal(band.transpose.dense(), band.dense().T, what)


@pytest.mark.parametrize(
    ("mode", "index"),
    [
        # 4 to 2 at -0.5 + 2 (i + 0.5): both outputs lie halfway between two inputs.
        ("round_prefer_floor", [0, 2]),
        ("round_prefer_ceil", [1, 3]),
        ("floor", [0, 2]),
        ("ceil", [1, 3]),
    ],
)
def test_ties_of_nearest(mode: str, index: list[int]):
    assert make_band(4, 2, Rule("nearest", nearest_mode=mode)).start.tolist() == index


def test_ties_of_nearest_are_exact_at_every_ratio():
    """Ties of large odd ratios, which rounded scales would break."""
    for n, m in itertools.product(range(2, 60, 2), range(1, 60)):
        for mode in NEAREST:
            rule = Rule("nearest", nearest_mode=mode)
            dense, _ = expected(n, m, rule)
            np.testing.assert_array_equal(make_band(n, m, rule).dense(), dense, f"{n} {m} {mode}")


def test_nearest_is_that_of_jax_image_but_for_its_rounding(rng: np.random.Generator):
    """jax.image's three float32 roundings can only matter within 4 of them from an integer."""
    pairs = [*itertools.product(range(1, 16), range(1, 16)), (4097, 3001), (8191, 16381)]
    pairs += [tuple(map(int, rng.integers(16, 1500, 2))) for _ in range(50)]
    for n, m in pairs:
        index = make_band(n, m, Rule("nearest")).start
        theirs = np.asarray(jax.image.resize(np.arange(n), (m,), "nearest"))
        true = (np.arange(m) + 0.5) * n / m
        safe = np.abs(true - np.round(true)) > 4 * 2.0**-24 * true
        np.testing.assert_array_equal(index[safe], theirs[safe], f"{n} to {m}")
        assert np.abs(index - theirs).max() <= 1


@pytest.mark.parametrize("method", FILTERS)
def test_rows_sum_to_one_and_integers_are_hit(method: str):
    for n, m in SIZES:
        weights = make_band(n, m, Rule(method, True)).weights
        np.testing.assert_allclose(weights.sum(1), 1, rtol=0, atol=weights.shape[1] * EPS)
    assert make_band(9, 9, Rule("linear")).is_identity
    corners = make_band(5, 9, Rule("linear", coordinate_mode="align_corners")).dense()
    np.testing.assert_array_equal(corners[::2], np.eye(5))


def test_scale_and_translation_beyond_the_image_are_zeros():
    rule = Rule("linear", scale=1.0, translation=10.0, exclude_outside=True, boundary="zero")
    assert not make_band(4, 6, rule).weights.any()
    rule = Rule("cubic", scale=1.0, translation=2.0, boundary="reach")
    weights = make_band(4, 8, rule).dense()
    np.testing.assert_array_equal(weights.any(1), [True] * 8)
    assert (
        not make_band(4, 8, Rule("cubic", scale=1.0, translation=9, boundary="reach"))
        .weights[:5]
        .any()
    )


def test_reversed_scale_mirrors():
    rule = Rule("linear", scale=-1.0, translation=4.0, exclude_outside=True, boundary="zero")
    band = make_band(4, 4, rule)
    np.testing.assert_array_equal(band.dense(), np.eye(4)[::-1])
    np.testing.assert_array_equal(band.transpose.dense(), np.eye(4)[::-1])


def test_equality_and_hash_are_those_of_the_tables():
    band = make_band(4, 8, Rule("linear"))
    same = Band(band.start.copy(), band.weights.copy(), 4)
    other = Band(band.start.copy(), band.weights * 2, 4)
    assert band == same and hash(band) == hash(same)
    assert band != other and band != make_band(4, 8, Rule("cubic")) and band != "band"
    assert make_band(4, 8, Rule("linear")) is band
    with pytest.raises(ValueError, match="read-only"):
        band.weights[0] = 1


@pytest.mark.parametrize(
    ("n", "m", "rule"),
    [
        (20_000, 40_000, Rule("linear")),
        (100_000, 100, Rule("lanczos5", True)),
        (3, 100_000, Rule("cubic")),
        (50_000, 49_999, Rule("lanczos3", True, exclude_outside=True)),
        (65_536, 7, Rule("area")),
    ],
    ids=lambda value: value.method if isinstance(value, Rule) else str(value),
)
def test_large_tables_are_made_without_a_loop(n: int, m: int, rule: Rule):
    start = time.perf_counter()
    band = make_band.__wrapped__(n, m, rule)
    transposed = band.transpose
    # 0.2 seconds at most on the machine it was written on; a loop over the elements takes minutes.
    assert time.perf_counter() - start < 10
    check_is_legal(band)
    check_is_legal(transposed)
    x, y = np.cos(np.arange(n)), np.sin(np.arange(m))
    forward = (band.weights * x[band.start[:, None] + np.arange(band.taps)]).sum(1)
    back = (transposed.weights * y[transposed.start[:, None] + np.arange(transposed.taps)]).sum(1)
    magnitude = np.abs(band.weights).sum() + 1
    assert abs(y @ forward - x @ back) <= 100 * magnitude * EPS


def test_a_table_that_would_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"needs 8192 weights for each, more than \d+ in all"):
        jax_convgrad.resample(np.zeros(2**20, np.float32), (2**20,), scale=[2.0**-12])


@pytest.mark.parametrize("rule", RULES, ids=name)
def test_no_table_is_larger_than_counted(rule: Rule):
    for n, m in SIZES:
        assert make_band(n, m, rule).taps <= count_taps(n, m, rule), (n, m)

"""Layers and operators that resize: values, gradients, exactness, determinism, lowering.

Run as they are, these tests take whatever serves the device: the compiled handler where it is there,
the pure-JAX forms where it is not. What JAX can do to the functions is in
transformations/, other libraries' conventions in interop/test_resize.py.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from support import resize_oracles as oracles
from support.comparisons import FLOATS, assert_equal
from support.rounding import half_ulp

from jax_convgrad import resample, resample_transpose, resize, scale_and_translate
from jax_convgrad._src.dispatch.decide import decide
from jax_convgrad._src.dispatch.devices import Target
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.dispatch.problem import ResampleProblem
from jax_convgrad._src.resize import emit_xla
from jax_convgrad._src.resize.bands import Rule, make_band
from jax_convgrad._src.runtime import registry

METHODS = ("nearest", "linear", "cubic", "cubic-pytorch", "lanczos3", "lanczos5", "area")
SMOOTH = METHODS[1:]
# jax.image got "area" after 0.10.0; this package has it with every jax.
JAX_METHODS = {m.name.lower().replace("_", "-") for m in jax.image.ResizeMethod}
# Up, down, mixed, one axis only, factors that are no simple ratio, one element.
SIZES = {
    "up": ((6, 7), (12, 28)),
    "up-odd": ((5, 7), (11, 16)),
    "down": ((16, 12), (8, 3)),
    "down-odd": ((17, 13), (7, 5)),
    "mixed": ((6, 20), (14, 9)),
    "one-axis": ((6, 9), (6, 18)),
    "from-one": ((1, 5), (4, 5)),
    "to-one": ((7, 6), (1, 3)),
}
sizes = pytest.mark.parametrize("size", list(SIZES))
SHRINKING = ("down", "down-odd", "mixed", "to-one")  # the others have nothing to antialias


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = "float64") -> jax.Array:
    return jnp.asarray(rng.standard_normal(shape), dtype)


def f64(array: Any) -> np.ndarray:
    return np.asarray(array).astype(np.float64)


def largest(error: np.ndarray) -> float:
    """The largest error of each draw along the first axis, the mean of all draws."""
    return float(np.abs(error).max(axis=(1, 2, 3)).mean())


# jax.image.


@pytest.mark.parametrize(
    ("size", "antialias"), [*((s, True) for s in SIZES), *((s, False) for s in SHRINKING)]
)
@pytest.mark.parametrize("method", [m for m in METHODS if m in JAX_METHODS])
def test_values_and_gradients_are_those_of_jax_image(
    method: str, size: str, antialias: bool, rng: np.random.Generator
):
    """float64 to rounding; float32 with a largest error, the mean of 8 draws, of at most 3 times jax.image's.

    One draw says less. Where one sum takes a hundred taps, as in a GPU's kernel for any window, the largest
    error is 1.9 times jax.image's in the mean of 30 draws, and more than 3 times in 4 of them.
    """
    before, after = SIZES[size]
    if method == "nearest" and size in ("up-odd", "down-odd", "mixed"):
        pytest.skip("jax.image's float32 index arithmetic: see test_bands.py")
    shape = (8, *after, 3)
    x, dy = normal(rng, (8, *before, 3)), normal(rng, shape)

    def both(f: Callable[..., Any], dtype: Any) -> tuple[Any, ...]:
        run = jax.jit(lambda x, dy: (lambda y, back: (y, *back(dy)))(*jax.vjp(f, x)))
        return run(x.astype(dtype), dy.astype(dtype))

    ours = functools.partial(resize, shape=shape, method=method, antialias=antialias)
    theirs = functools.partial(jax.image.resize, shape=shape, method=method, antialias=antialias)
    wide = both(ours, "float64")
    for got, expected in zip(wide, both(theirs, "float64"), strict=True):
        assert got.dtype == expected.dtype and got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)
    truth = [f64(array) for array in wide]
    for got, other, true in zip(both(ours, "float32"), both(theirs, "float32"), truth, strict=True):
        error, allowed = largest(f64(got) - true), largest(f64(other) - true)
        assert error <= max(3 * allowed, largest(true) * 2.0**-23)


def test_resize_methods_by_enum_and_alias(rng: np.random.Generator):
    x = normal(rng, (4, 6), "float32")
    for method in jax.image.ResizeMethod:
        name = method.name.lower().replace("_", "-")
        np.testing.assert_array_equal(resize(x, (8, 3), method), resize(x, (8, 3), name))
    for alias, name in {"bilinear": "linear", "tricubic": "cubic"}.items():
        np.testing.assert_array_equal(resize(x, (8, 3), alias), resize(x, (8, 3), name))


TRANSFORMS = {
    "up": ((2.0, 1.7), (0.0, 0.0)),
    "down": ((0.4, 0.8), (0.0, 0.3)),
    "crop": ((1.5, 1.0), (-3.25, 2.5)),
    "mostly-outside": ((1.0, 0.5), (-6.25, 9.0)),
    "mirrored": ((-1.0, 1.25), (9.0, -0.75)),
}


# Without a scale below one there is nothing to antialias.
@pytest.mark.parametrize(
    ("name", "antialias"),
    [*((n, True) for n in TRANSFORMS), ("down", False), ("crop", False), ("mostly-outside", False)],
)
@pytest.mark.parametrize("method", [m for m in SMOOTH if m in JAX_METHODS])
def test_scale_and_translate_is_that_of_jax_image(
    method: str, name: str, antialias: bool, rng: np.random.Generator
):
    """Static and traced; the gradient of the image, the scale and the translation."""
    scale, translation = map(np.asarray, TRANSFORMS[name])
    x, shape = normal(rng, (2, 9, 14, 3)), (2, 11, 12, 3)
    dy = normal(rng, shape)

    def call(f: Callable[..., Any], x: Any, scale: Any, translation: Any) -> Any:
        return f(x, shape, (1, -2), scale, translation, method, antialias)

    @jax.jit
    def run(x: Any, s: Any, t: Any) -> Any:
        # Closed over, scale and translation are known while tracing.
        static = jax.vjp(lambda x: call(scale_and_translate, x, scale, translation), x)
        traced = jax.vjp(functools.partial(call, scale_and_translate), x, s, t)
        theirs = jax.vjp(functools.partial(call, jax.image.scale_and_translate), x, s, t)
        return [(value, *back(dy)) for value, back in (static, traced, theirs)]

    static, traced, theirs = run(x, scale, translation)
    for got in (static, traced):
        for a, b in zip(got[:2], theirs, strict=False):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
    for a, b in zip(traced[2:], theirs[2:], strict=True):
        # A derivative by the scale sums up hundreds of terms times coordinates.
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


def test_align_corners_is_the_emulation_that_jax_documents(rng: np.random.Generator):
    x = normal(rng, (5, 7))
    got = resize(x, (9, 4), "linear", False, coordinate_mode="align_corners")
    scale = np.asarray([8 / 4, 3 / 6])
    translation = 0.5 * (1 - scale)
    expected = jax.image.scale_and_translate(x, (9, 4), (0, 1), scale, translation, "linear", False)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)


# The definition, in every convention.

CONVENTIONS = {
    "cubic-edge-a": {"method": "cubic", "cubic_coeff_a": -0.75, "exclude_outside": False},
    "nearest-floor": {
        "method": "nearest",
        "coordinate_mode": "asymmetric",
        "nearest_mode": "floor",
    },
    "area-pytorch": {"method": "area-pytorch"},
    "corners-cubic": {"method": "cubic", "coordinate_mode": "align_corners", "antialias": False},
    "aa-edge": {"method": "linear", "exclude_outside": False},
    "lanczos-asymmetric": {"method": "lanczos3", "coordinate_mode": "asymmetric"},
    "pytorch-half": {"method": "linear", "coordinate_mode": "pytorch_half_pixel"},
    "crop": {"method": "linear", "coordinate_mode": "tf_crop_and_resize", "antialias": False},
    "symmetric-scale": {"method": "cubic", "coordinate_mode": "half_pixel_symmetric"},
}


def matrices(convention: str, before: Any, after: Any) -> tuple[dict[str, Any], dict[int, Any]]:
    """(keywords of `resample`, {axis: (matrix, outside)}) for images N x C x space."""
    keywords = dict(CONVENTIONS[convention])
    rank = len(before) + 2
    scales = regions = None
    if keywords.get("coordinate_mode") == "tf_crop_and_resize":
        regions = [(0, 1)] * 2 + [(0.1, 1.2), (0.9, -0.2), (0.25, 0.5)][: len(before)]
        keywords["roi"] = regions
    if convention == "symmetric-scale":
        ratios = [(m + 0.375) / n for n, m in zip(before, after, strict=True)]
        scales = [None, None, *ratios]
        keywords["scale"] = scales
    found = {}
    for axis, (n, m) in enumerate(zip(before, after, strict=True), 2):
        found[axis] = oracles.matrix(
            n,
            m,
            keywords["method"],
            antialias=keywords.get("antialias", True),
            mode=keywords.get("coordinate_mode", "half_pixel"),
            nearest_mode=keywords.get("nearest_mode", "round_prefer_ceil"),
            a=keywords.get("cubic_coeff_a", -0.5),
            exclude_outside=keywords.get("exclude_outside", True),
            scale=None if scales is None else scales[axis],
            roi=(0, 1) if regions is None else regions[axis],
        )
    assert len(found) + 2 == rank
    return keywords, found


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("convention", list(CONVENTIONS))
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_operators_by_definition(
    convention: str, spatial: int, dtype: str, rng: np.random.Generator
):
    """One rounding to the dtype, after sums in float32 (float64) with weights rounded to it."""
    before, after = (7, 6, 4)[:spatial], (5, 13, 9)[:spatial]
    keywords, found = matrices(convention, before, after)
    x, dy = normal(rng, (2, 3, *before), dtype), normal(rng, (2, 3, *after), dtype)
    forward = {axis: dense for axis, (dense, _) in found.items()}
    back = {axis: dense.T for axis, dense in forward.items()}
    wide = "float64" if dtype == "float64" else "float32"
    for got, array, maps in (
        (resample(x, dy.shape, **keywords), x, forward),
        (resample_transpose(dy, x.shape, **keywords), dy, back),
    ):
        expected = oracles.apply(array, maps)
        magnitude = oracles.apply(np.abs(f64(array)), {a: np.abs(d) for a, d in maps.items()})
        steps = sum(max(np.count_nonzero(d, axis=1)) + 2 for d in maps.values())
        accumulated = steps * float(jnp.finfo(wide).eps) * magnitude
        if wide == "float64":
            # The oracle's own coordinates, and its sums.
            accumulated = 100 * accumulated
        rounding = half_ulp(np.abs(expected) + accumulated, dtype)
        assert got.dtype == dtype and got.shape == expected.shape
        assert (np.abs(f64(got) - expected) <= accumulated + rounding).all()


@pytest.mark.parametrize("method", ["linear", "nearest", "cubic", "area"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_exact_on_integers(method: str, layout: str, dtype: str, rng: np.random.Generator):
    """Factors of two have weights that are binary fractions: no sum is rounded before the last step.

    Any difference is a wrong index or a second rounding.
    """
    axes = (1, 2) if layout == "NHWC" else (2, 3)
    shape = {"NHWC": (2, 6, 4, 5), "NCHW": (2, 5, 6, 4)}[layout]
    x = jnp.asarray(rng.integers(-8, 9, shape), dtype)
    # A cubic weight between quarters has 11 bits, and two of them with the data would not fit 24.
    for factor in (2,) if method == "cubic" else (2, 4):
        after = tuple(n * factor if axis in axes else n for axis, n in enumerate(shape))
        keywords = {"method": method, "antialias": False, "exclude_outside": False}
        dense = {axis: oracles.matrix(shape[axis], after[axis], method)[0] for axis in axes}
        y = oracles.apply(x, dense)
        assert_equal(resample(x, after, **keywords), f64(jnp.asarray(y, dtype)), dtype)
        dy = jnp.asarray(rng.integers(-8, 9, after), dtype)
        dx = oracles.apply(dy, {axis: a.T for axis, a in dense.items()})
        assert_equal(resample_transpose(dy, shape, **keywords), f64(jnp.asarray(dx, dtype)), dtype)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_float16_gradient_of_upsampling_by_8(layout: str, rng: np.random.Generator):
    """Within half a unit in the last place of float16, for sums of 256 products."""
    shape = {"NHWC": (2, 9, 9, 8), "NCHW": (2, 8, 9, 9)}[layout]
    after = {"NHWC": (2, 72, 72, 8), "NCHW": (2, 8, 72, 72)}[layout]
    axes = (1, 2) if layout == "NHWC" else (2, 3)
    dy = normal(rng, after, "float16")
    x = jnp.zeros(shape, "float16")
    for method in ("linear", "cubic"):
        dx = jax.vjp(lambda x, m=method: resize(x, after, m), x)[1](dy)[0]
        kind = {"exclude_outside": True}
        dense = {a: oracles.matrix(9, 72, method, **kind)[0].T for a in axes}
        expected = oracles.apply(dy, dense)
        # One rounding to float16; float32's own is allowed for at ties only.
        slack = 2.0**-23 * 32 * np.abs(expected).max()
        assert (np.abs(f64(dx) - expected) <= half_ulp(expected, "float16") + slack).all()
        assert (f64(dx) == f64(jnp.asarray(expected, "float16"))).mean() > 0.99


@pytest.mark.parametrize("method", METHODS)
def test_adjoint(method: str, rng: np.random.Generator):
    for before, after in SIZES.values():
        x, dy = normal(rng, (2, *before)), normal(rng, (2, *after))
        left = jnp.vdot(resample(x, dy.shape, method=method), dy)
        right = jnp.vdot(x, resample_transpose(dy, x.shape, method=method))
        np.testing.assert_allclose(left, right, rtol=0, atol=1e-12 * dy.size)


@pytest.mark.parametrize("method", METHODS)
def test_check_grads(method: str, rng: np.random.Generator):
    x = normal(rng, (1, 4, 5, 2))
    for antialias in (True, False):
        f = functools.partial(resize, shape=(1, 6, 3, 2), method=method, antialias=antialias)
        check_grads(f, (x,), order=2, modes=("fwd", "rev"))
        check_grads(lambda x, f=f: f(x) ** 2, (x,), order=2, modes=("fwd", "rev"))


# What is left alone.


def test_identity_returns_the_input(rng: np.random.Generator):
    x = normal(rng, (2, 5, 5, 3))
    assert resize(x, x.shape, "cubic") is x
    assert resample(x, x.shape, method="lanczos3") is x
    assert resample_transpose(x, x.shape) is x
    assert scale_and_translate(x, x.shape, (1,), [1.0], [0.0], "linear") is x
    crop = {"coordinate_mode": "tf_crop_and_resize", "roi": [(0, 1)] * 4}
    assert resize(x, x.shape, "linear", **crop) is x
    assert not jax.make_jaxpr(lambda x: resize(x, x.shape, "linear"))(x).eqns


def test_only_axes_that_change_are_touched(rng: np.random.Generator):
    x = normal(rng, (2, 5, 6, 3))
    (equation,) = jax.make_jaxpr(lambda x: resize(x, (2, 5, 9, 3), "linear"))(x).eqns
    assert equation.primitive.name == "resample" and equation.params["problem"].axes == (2,)
    (equation,) = jax.make_jaxpr(lambda x: resize(x, (4, 5, 9, 3), "cubic"))(x).eqns
    assert equation.params["problem"].axes == (0, 2)


def test_more_than_three_axes(rng: np.random.Generator):
    """One call for three of them, and still one rounding."""
    shape, after = (3, 4, 5, 3, 2), (6, 3, 7, 5, 4)
    x, dy = normal(rng, shape, "bfloat16"), normal(rng, after, "bfloat16")
    dense = {
        axis: oracles.matrix(n, m, "linear", antialias=True, exclude_outside=True)[0]
        for axis, (n, m) in enumerate(zip(shape, after, strict=True))
    }
    for got, expected in (
        (resample(x, after), oracles.apply(x, dense)),
        (resample_transpose(dy, shape), oracles.apply(dy, {a: d.T for a, d in dense.items()})),
    ):
        slack = 2.0**-23 * 20 * np.abs(expected).max()
        assert (np.abs(f64(got) - expected) <= half_ulp(expected, "bfloat16") + slack).all()
    check_grads(functools.partial(resample, shape=after), (x.astype("float64"),), order=1)


def test_empty_arrays():
    assert resize(jnp.ones((0, 4, 3)), (0, 8, 3), "linear").shape == (0, 8, 3)
    assert resize(jnp.ones((2, 4, 3)), (2, 0, 3), "linear").shape == (2, 0, 3)
    assert resize(jnp.ones((2, 0, 3)), (2, 0, 6), "cubic").shape == (2, 0, 6)
    gradient = jax.grad(lambda x: resize(x, (2, 0), "linear").sum())(jnp.ones((2, 4)))
    np.testing.assert_array_equal(gradient, np.zeros((2, 4)))
    assert scale_and_translate(jnp.ones((3,)), (0,), (0,), [1.0], [0.0], "linear").shape == (0,)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "bool", "complex64", "float8_e4m3fn"])
def test_other_dtypes(dtype: str, rng: np.random.Generator):
    x = jnp.asarray(rng.integers(0, 5, (4, 6)), dtype)
    nearest = resize(x, (8, 3), "nearest")
    assert nearest.dtype == dtype
    np.testing.assert_array_equal(nearest, jax.image.resize(x, (8, 3), "nearest"))
    got, expected = resize(x, (8, 3), "linear"), jax.image.resize(x, (8, 3), "linear")
    assert got.dtype == expected.dtype
    tolerance = 0.25 if dtype.startswith("float8") else 1e-6  # jax.image multiplies in the dtype
    np.testing.assert_allclose(
        np.asarray(got, np.complex128), np.asarray(expected, np.complex128), rtol=tolerance, atol=0
    )


@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
def test_extrapolation(dtype: str):
    x = jnp.asarray([[1, 2, 3], [4, 5, 6]], dtype)
    crop = {"coordinate_mode": "tf_crop_and_resize", "roi": [(0.0, 2.0), (-0.5, 1.0)]}
    got = resize(x, (3, 4), "nearest", extrapolation_value=9.0, **crop)
    assert got.dtype == dtype
    np.testing.assert_array_equal(f64(got), [[9, 1, 2, 3], [9, 4, 5, 6], [9, 9, 9, 9]])
    if dtype == "int32":
        return
    f = lambda x: resize(x, (3, 4), "nearest", extrapolation_value=9.0, **crop)  # noqa: E731
    gradient = jax.vjp(f, x)[1](jnp.ones((3, 4), dtype))[0]
    np.testing.assert_array_equal(f64(gradient), np.ones((2, 3)))
    linear = resample(x, (3, 4), method="nearest", **crop)
    np.testing.assert_array_equal(f64(linear)[[2]], [[0, 0, 0, 0]])
    jitted = jax.jit(f)(x)
    np.testing.assert_array_equal(f64(jitted), f64(got))


# Determinism.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("method", ["nearest", "linear", "cubic", "lanczos3", "area"])
def test_a_hundred_runs_give_the_same_bits(
    method: str, layout: str, dtype: str, rng: np.random.Generator
):
    channels_last = layout == "NHWC"
    shape = (2, 33, 40, 24) if channels_last else (2, 24, 33, 40)
    after = (2, 71, 16, 24) if channels_last else (2, 24, 71, 16)
    dy = normal(rng, after, dtype)
    gradient = jax.jit(lambda dy: resample_transpose(dy, shape, method=method))
    first = np.asarray(gradient(dy)).tobytes()
    assert all(np.asarray(gradient(dy)).tobytes() == first for _ in range(99))


# The pure-JAX forms.


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("form", ["gather", "slices", "dense"])
def test_every_form_is_the_matrix(form: str, axis: int, rng: np.random.Generator):
    rules = [Rule("linear"), Rule("cubic", True), Rule("nearest"), Rule("area")]
    rules.append(Rule("linear", coordinate_mode="tf_crop_and_resize", roi=(-0.5, 1.2)))
    for rule, (n, m) in [*itertools.product(rules, [(6, 12), (9, 6), (4, 1)]), (rules[1], (90, 5))]:
        band = make_band(n, m, rule)
        for table in (band, band.transpose):
            x = normal(rng, tuple(table.size if a == axis else 3 for a in range(3)))
            if form == "slices" and emit_xla.phases(table) is None:
                assert max(n, m) > 16
                continue
            got = jax.jit(lambda x, t=table: emit_xla.apply(x, t, axis, form))(x)
            expected = oracles.apply(x, {axis: table.dense()})
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-14 * n * m)


@pytest.mark.parametrize("platform", ["cpu", "cuda", None])
def test_the_choice_of_a_form_is_one_that_exists(platform: str | None, rng: np.random.Generator):
    for n, m in [(8, 64), (65, 513), (512, 224), (4, 4097)]:
        band = make_band(n, m, Rule("linear", True))
        for table in (band, band.transpose):
            for shape, axis in (((2, table.size, 16), 1), ((2, 16, table.size), 2)):
                form = emit_xla.form(platform, shape, table, axis)
                x = normal(rng, shape)
                got = emit_xla.apply(x, table, axis, form)
                expected = oracles.apply(x, {axis: table.dense()})
                np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("method", METHODS)
def test_the_backends_agree(method: str, dtype: str, rng: np.random.Generator):
    """The handler, where there is one, and pure JAX: at most their last roundings differ."""
    x, after = normal(rng, (2, 9, 12, 5), dtype), (2, 14, 5, 5)
    results = []
    for backend in ("native", "xla"):
        with override_backend(backend):
            f = lambda x: resize(x, after, method)  # noqa: E731
            results.append(jax.jit(lambda x: (lambda y, b: (y, *b(y)))(*jax.vjp(f, x)))(x))  # noqa: B023
    for native, plain in zip(*results, strict=True):
        eps = float(jnp.finfo(dtype).eps)
        np.testing.assert_allclose(f64(native), f64(plain), rtol=2 * eps, atol=64 * eps)


# Lowering.


@dataclasses.dataclass(frozen=True)
class _Served:
    """Stands in for a registration, to lower what no module here can run."""

    def serves(self, target: str, dtype: Any) -> bool:
        return target == registry.RESAMPLE_TARGET


def lowered(f: Callable[..., Any], x: jax.ShapeDtypeStruct, platform: str) -> str:
    return jax.jit(f).trace(x).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize(("dtype", "wide"), [("bf16", "f32"), ("f16", "f32"), ("f64", "f64")])
def test_one_call_for_all_axes_with_their_tables(
    platform: str, dtype: str, wide: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(registry, "require", lambda platform: _Served())
    names = {"bf16": "bfloat16", "f16": "float16", "f64": "float64"}
    x = jax.ShapeDtypeStruct((2, 4, 6, 5, 3), names[dtype])
    with override_backend("native"):
        text = lowered(lambda x: resize(x, (2, 8, 3, 5, 6), "linear"), x, platform)
    (line,) = [line for line in text.splitlines() if "custom_call" in line]
    assert "@jax_convgrad_resample(" in line
    assert re.search(r"axes = dense<\[1, 2, 4\]> : tensor<3xi64>", line)
    operands = re.search(r": \((.*)\) -> (\S+)", line)
    assert operands[1] == (
        f"tensor<2x4x6x5x3x{dtype}>, tensor<8xi32>, tensor<8x2x{wide}>, "
        f"tensor<3xi32>, tensor<3x4x{wide}>, tensor<6xi32>, tensor<6x2x{wide}>"
    )
    assert operands[2] == f"tensor<2x8x3x5x6x{dtype}>"


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("method", ["nearest", "linear"])
def test_the_handler_runs_where_it_is_there(method: str, dtype: str):
    platform = jax.default_backend().replace("gpu", "cuda")
    served = registry.find(platform).serves(registry.RESAMPLE_TARGET, dtype)
    x = jax.ShapeDtypeStruct((2, 8, 8, 4), dtype)

    def text(backend: str | None) -> str:
        # A function of its own: a backend is chosen when a program is lowered, not when it is found again.
        gradient = jax.jit(lambda dy: resample_transpose(dy, (2, 4, 4, 4), method=method))
        with override_backend(backend):
            return gradient.lower(x).as_text()

    assert ("@jax_convgrad_resample(" in text(None)) == served
    assert ("@jax_convgrad_resample(" in text("native")) == served
    assert "@jax_convgrad_resample(" not in text("xla")


@pytest.mark.parametrize(
    ("platform", "dtype", "method", "axes", "sizes", "copies"),
    [
        ("cuda", "float32", "nearest", (1, 2), (8, 12), True),
        ("cuda", "float32", "nearest", (1,), (7,), True),
        ("cuda", "bfloat16", "nearest", (1, 2), (8, 12), False),
        ("cuda", "float32", "nearest", (2, 3), (8, 12), True),
        ("cuda", "float32", "nearest", (1, 2), (2, 12), False),
        ("cuda", "float32", "linear", (1, 2), (8, 12), False),
        ("cpu", "float32", "nearest", (1, 2), (8, 12), True),
        ("cpu", "bfloat16", "nearest", (2, 3), (2, 12), True),
        ("cpu", "float32", "linear", (1, 2), (8, 12), False),
    ],
)
@pytest.mark.filterwarnings("ignore::jax_convgrad.MissingHandlersWarning")
def test_copies_are_left_to_xla(
    platform: str,
    dtype: str,
    method: str,
    axes: tuple[int, ...],
    sizes: tuple[int, ...],
    copies: bool,
):
    bands = tuple(make_band(4, size, Rule(method)) for size in sizes)
    with override_backend(None):
        problem = ResampleProblem((2, 4, 4, 4), np.dtype(dtype), bands, axes)
        decision = decide(problem, Target.of(platform))
    assert ("copies" in decision.reason) == copies
    assert not copies or decision.backend == "xla"


def test_a_platform_without_handlers_is_lowered_in_plain_xla():
    x = jax.ShapeDtypeStruct((2, 4, 4, 3), np.float32)
    text = lowered(jax.grad(lambda x: (resize(x, (2, 8, 8, 3), "cubic") ** 2).sum()), x, "tpu")
    assert "jax_convgrad" not in text.replace("jit_jax_convgrad", "")

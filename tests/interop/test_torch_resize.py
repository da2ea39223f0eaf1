"""PyTorch's interpolate under its own name, against PyTorch itself: values, gradients, refusals."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from support import torch_oracles
from support.comparisons import relative_error, value_and_gradients
from support.torch_oracles import TIGHT

from jax_convgrad import torch

Shape = tuple[int, ...]

# By number of spatial axes: up, down, odd ratios, the same size, to one element and from one.
SIZES: dict[int, list[tuple[Shape, Shape]]] = {
    1: [((7,), (14,)), ((16,), (5,)), ((9,), (20,)), ((6,), (6,)), ((5,), (1,)), ((1,), (3,))],
    2: [
        ((5, 8), (10, 19)),
        ((16, 13), (7, 5)),
        ((6, 12), (9, 4)),
        ((4, 7), (4, 3)),
        ((1, 3), (4, 1)),
        ((6, 1), (1, 1)),
    ],
    3: [((3, 4, 5), (6, 6, 5)), ((6, 5, 8), (3, 7, 3)), ((2, 1, 4), (1, 3, 4))],
}
# By number of spatial axes: (sizes, scale factors).
SCALES: dict[int, list[tuple[Shape, Any]]] = {
    1: [((7,), 2), ((11,), 1.7), ((20,), 0.45), ((9,), (2.3,))],
    2: [((5, 4), 2), ((11, 9), 1.7), ((20, 31), 0.45), ((9, 8), (1.3, 0.7)), ((6, 6), [0.5, 3.0])],
    3: [((3, 4, 5), 2.0), ((7, 6, 9), (1.3, 0.6, 2.3))],
}


@dataclasses.dataclass(frozen=True)
class Mode:
    mode: str
    rank: int
    align_corners: bool | None = None
    antialias: bool = False

    def __str__(self) -> str:
        text = f"{self.mode}-{self.rank}d"
        if self.align_corners is not None:
            text += f"-corners{int(self.align_corners)}"
        return text + ("-antialias" if self.antialias else "")

    @property
    def keywords(self) -> dict[str, Any]:
        found = {"mode": self.mode, "align_corners": self.align_corners}
        return found | ({"antialias": True} if self.antialias else {})


MODES = [
    *(Mode(mode, rank) for mode in ("nearest", "nearest-exact", "area") for rank in (1, 2, 3)),
    *(
        Mode(mode, rank, corners)
        for mode, rank in (("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3))
        for corners in (None, False, True)
    ),
    *(Mode(m, 2, corners, True) for m in ("bilinear", "bicubic") for corners in (False, True)),
    Mode("lanczos", 2, None, True),
]
by_mode = pytest.mark.parametrize("mode", MODES, ids=str)


def require_lanczos(mode: str) -> None:
    import torch as pytorch

    if mode == "lanczos" and not hasattr(pytorch.ops.aten, "_upsample_lanczos2d_aa"):
        pytest.skip("this PyTorch has no lanczos")


def agree(
    spatial: Shape, keywords: dict[str, Any], dtype: str, rng: np.random.Generator, batch: int = 2
) -> None:
    """Value and gradient are PyTorch's.

    In float64 to a few units in the last place; in the others our error against float64 is no more than
    three times PyTorch's, or than one rounding's.
    """
    require_lanczos(keywords["mode"])
    ours = functools.partial(torch.interpolate, **keywords)
    theirs = functools.partial(torch_oracles.functional("interpolate"), **keywords)
    x_shape = (batch, 3, *spatial)
    y_shape = jax.eval_shape(ours, jax.ShapeDtypeStruct(x_shape, np.float32)).shape
    arrays = [
        np.asarray(jnp.asarray(rng.standard_normal(shape), dtype).astype(np.float64))
        for shape in (y_shape, x_shape)
    ]
    expected = torch_oracles.value_and_gradients(theirs, "float64", *arrays)
    got = value_and_gradients(ours)(*(jnp.asarray(array, dtype) for array in arrays))
    most = [TIGHT, TIGHT]
    if dtype != "float64":
        other = torch_oracles.value_and_gradients(theirs, dtype, *arrays)
        unit = float(jnp.finfo(dtype).eps) / 2
        most = [
            3 * max(relative_error(a, truth), unit)
            for a, truth in zip(other, expected, strict=True)
        ]
    for name, a, truth, bound in zip(("y", "dx"), got, expected, most, strict=True):
        assert a.dtype == jnp.dtype(dtype)
        assert a.shape == truth.shape
        error = relative_error(a, truth)
        assert error <= bound, f"{name} of {spatial}, {keywords}: {error} > {bound}"
    if keywords["mode"].startswith("nearest"):
        np.testing.assert_array_equal(np.asarray(got[0]).astype(np.float64), expected[0])


@pytest.mark.pytorch
@by_mode
def test_size(mode: Mode, rng: np.random.Generator):
    for before, after in SIZES[mode.rank]:
        agree(before, {"size": after, **mode.keywords}, "float64", rng)
    # One number for all axes.
    agree(SIZES[mode.rank][0][0], {"size": 6, **mode.keywords}, "float64", rng)


@pytest.mark.pytorch
@pytest.mark.parametrize("recompute", [None, False, True])
@by_mode
def test_scale_factor(mode: Mode, recompute: bool | None, rng: np.random.Generator):
    for before, factor in SCALES[mode.rank]:
        keywords = {"scale_factor": factor, "recompute_scale_factor": recompute, **mode.keywords}
        agree(before, keywords, "float64", rng)


@pytest.mark.pytorch
@by_mode
def test_float32(mode: Mode, rng: np.random.Generator):
    for before, after in SIZES[mode.rank][:3]:
        agree(before, {"size": after, **mode.keywords}, "float32", rng)
    before, factor = SCALES[mode.rank][1]
    agree(before, {"scale_factor": factor, **mode.keywords}, "float32", rng)


@pytest.mark.pytorch
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("mode", [m for m in MODES if not m.antialias], ids=str)
def test_16_bits(mode: Mode, dtype: str, rng: np.random.Generator):
    """PyTorch antialiases 16-bit images on CUDA only."""
    before, after = SIZES[mode.rank][1]
    agree(before, {"size": after, **mode.keywords}, dtype, rng)


@pytest.mark.pytorch
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "area", "bilinear"])
def test_exact_on_small_integers(mode: str, rng: np.random.Generator):
    """Twice and half the size: the weights are dyadic and all sums exact, in float32 too."""
    for factor in (2, 0.5):
        keywords = {"scale_factor": factor, "mode": mode}
        x = rng.integers(-99, 100, (2, 3, 6, 8)).astype(np.float64)
        dy = rng.integers(-99, 100, (2, 3, int(6 * factor), int(8 * factor))).astype(np.float64)
        theirs = functools.partial(torch_oracles.functional("interpolate"), **keywords)
        expected = torch_oracles.value_and_gradients(theirs, "float64", dy, x)
        ours = functools.partial(torch.interpolate, **keywords)
        got = value_and_gradients(ours)(jnp.asarray(dy, "float32"), jnp.asarray(x, "float32"))
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)


# Scales.


@pytest.mark.pytorch
def test_sizes_of_fractional_scales():
    """The product of two float64 numbers, its fraction dropped: 100 * 0.29 is 28.999999999999996."""
    import torch as pytorch

    draw = random.Random(0)
    cases = [(100, 0.29), (10, 0.7), (5, 1.1), (3, 1 / 3), (98, 1 / 49), (5, 0.6), (7, 3)]
    for _ in range(400):
        n = draw.randint(1, 300)
        scale = draw.choice(
            [draw.uniform(0.1, 4), round(draw.uniform(0.1, 4), 2), draw.randint(1, 300) / n]
        )
        if n * scale >= 1:
            cases.append((n, scale))
    for n, scale in cases:
        image = pytorch.empty((1, 1, n), device="meta")
        for recompute in (None, True):
            keywords = {
                "scale_factor": scale,
                "recompute_scale_factor": recompute,
                "mode": "linear",
            }
            expected = torch_oracles.functional("interpolate")(image, **keywords).shape
            ours = functools.partial(torch.interpolate, **keywords)
            got = jax.eval_shape(ours, jax.ShapeDtypeStruct((1, 1, n), np.float32)).shape
            assert got == tuple(expected), (n, scale, recompute)


@pytest.mark.pytorch
@pytest.mark.parametrize(
    ("mode", "keywords", "copied"),
    [
        ("linear", {}, True),
        ("bilinear", {}, True),
        ("trilinear", {}, True),
        ("bilinear", {"antialias": True}, True),
        ("bicubic", {"antialias": True}, True),
        ("lanczos", {"antialias": True}, True),
        ("bicubic", {}, False),
        ("nearest", {}, False),
    ],
    ids=str,
)
def test_scales_that_leave_an_axis_its_size(
    mode: str, keywords: dict[str, Any], copied: bool, rng: np.random.Generator
):
    """Value against PyTorch's; the gradient, in which PyTorch differs from itself, is the transpose."""
    require_lanczos(mode)
    rank = {"linear": 1, "nearest": 1, "trilinear": 3}.get(mode, 2)
    for before, factor in (
        ((5,) * rank, (1.1,) * rank),
        ((9, 4, 3)[:rank], (1.1, 2.0, 1.5)[:rank]),
    ):
        x = rng.standard_normal((2, 3, *before))
        f = functools.partial(torch.interpolate, scale_factor=factor, mode=mode, **keywords)
        expected = torch_oracles.functional("interpolate")(
            *torch_oracles.tensors("float64", x), scale_factor=factor, mode=mode, **keywords
        ).numpy()
        y, pullback = jax.vjp(f, x)
        assert relative_error(y, expected) <= TIGHT
        dy = rng.standard_normal(expected.shape)
        np.testing.assert_allclose(
            np.vdot(pullback(jnp.asarray(dy))[0], x), np.vdot(dy, expected), rtol=1e-12
        )
        # The case is one: with the sizes' own ratio the first axis is copied.
        plain = torch.interpolate(x, size=expected.shape[2:], mode=mode, **keywords)
        assert np.allclose(y, plain) == (copied and all(
            m == n or m / n == s for n, m, s in zip(before, expected.shape[2:], factor, strict=True)
        ))  # fmt: skip


@pytest.mark.pytorch
def test_recomputed_and_given_scales_differ(rng: np.random.Generator):
    """So the tests above tell them apart."""
    x = rng.standard_normal((1, 1, 11, 9))
    for mode in ("bilinear", "bicubic"):
        given, recomputed = (
            torch.interpolate(x, scale_factor=1.7, mode=mode, recompute_scale_factor=flag)
            for flag in (False, True)
        )
        by_size = torch.interpolate(x, size=given.shape[2:], mode=mode)
        np.testing.assert_array_equal(recomputed, by_size)
        assert np.abs(given - recomputed).max() > 1e-2


@pytest.mark.pytorch
@pytest.mark.parametrize("mode", [m for m in MODES if m.antialias], ids=str)
def test_antialiased_results_one_element_wide(mode: Mode, rng: np.random.Generator):
    """PyTorch 2.13 mixes the rows of such results up; those one element high, and gradients, are right."""
    require_lanczos(mode.mode)
    for before, rows in (((14, 1), 32), ((14, 1), 5), ((5, 6), 3)):
        x = rng.standard_normal((2, 3, *before))
        ours = functools.partial(torch.interpolate, size=(rows, 1), **mode.keywords)
        theirs = torch_oracles.functional("interpolate")
        lying = functools.partial(theirs, size=(1, rows), **mode.keywords)
        (image,) = torch_oracles.tensors("float64", x.swapaxes(2, 3))
        assert relative_error(ours(x), lying(image).numpy().swapaxes(2, 3)) <= TIGHT
        dy = rng.standard_normal((2, 3, rows, 1))
        upright = functools.partial(theirs, size=(rows, 1), **mode.keywords)
        _, gradient = torch_oracles.value_and_gradients(upright, "float64", dy, x)
        assert relative_error(jax.vjp(ours, x)[1](jnp.asarray(dy))[0], gradient) <= TIGHT


# Nearest: exact indices.


def index(i: int, step: Fraction, mode: str) -> Fraction:
    return i * step if mode == "nearest" else (i + Fraction(1, 2)) * step


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_is_exact_and_pytorchs_but_for_its_rounding(mode: str):
    draw = random.Random(1)
    pairs = [(2, 82), (4, 41), (8, 82), (26, 22)]
    pairs += [(draw.randint(1, 60), draw.randint(1, 130)) for _ in range(40)]
    for n, m in pairs:
        places = [index(i, Fraction(n, m), mode) for i in range(m)]
        exact = [min(math.floor(place), n - 1) for place in places]
        image = np.arange(n, dtype=np.float32).reshape(1, 1, n)
        np.testing.assert_array_equal(torch.interpolate(image, size=m, mode=mode)[0, 0], exact)
        if torch_oracles.HAS_TORCH:
            theirs = torch_oracles.functional("interpolate")(
                *torch_oracles.tensors("float32", image), size=m, mode=mode
            )[0, 0].tolist()
            for place, a, b in zip(places, exact, theirs, strict=True):
                assert a == b or place.denominator == 1, (n, m)


# Random problems.


def draw_problem(seed: int) -> tuple[Shape, dict[str, Any]]:
    """Sizes and keywords of a seed; where PyTorch agrees with itself, see `settled`."""
    draw = random.Random(seed)
    while True:
        mode = draw.choice(MODES)
        if mode.mode == "lanczos":
            continue
        most = {1: 30, 2: 16, 3: 7}[mode.rank]
        before = tuple(draw.randint(1, most) for _ in range(mode.rank))
        keywords = mode.keywords
        if draw.random() < 0.4:
            keywords["size"] = tuple(draw.randint(1, 2 * most) for _ in range(mode.rank))
        else:
            keywords["scale_factor"] = tuple(
                draw.choice([draw.uniform(0.3, 3), round(draw.uniform(0.3, 3), 1)])
                for _ in range(mode.rank)
            )
            keywords["recompute_scale_factor"] = draw.choice([None, False, True])
            if any(n * s < 1 for n, s in zip(before, keywords["scale_factor"], strict=True)):
                continue
        if settled(before, keywords):
            return before, keywords


def settled(before: Shape, keywords: dict[str, Any]) -> bool:
    """Whether all of PyTorch's kernels do the same with the problem, forwards and backwards.

    Not so where a scale factor leaves an axis its size, and for nearest also where it doubles it, or
    where a coordinate is so near to an element's edge that float32 may take the neighbor, or where an
    antialiased result is one element wide (see the test of that).
    """
    used = "scale_factor" in keywords and not keywords["recompute_scale_factor"]
    nearest = keywords["mode"].startswith("nearest")
    wanted = keywords.get("scale_factor") or keywords["size"]
    if "antialias" in keywords:
        width = int(before[1] * wanted[1]) if "scale_factor" in keywords else wanted[1]
        if width == 1:
            return False
    for n, want in zip(before, wanted, strict=True):
        m = int(n * want) if "scale_factor" in keywords else want
        step = 1 / Fraction(want) if used else Fraction(n, m)
        if used and m in (n, 2 * n) and step * m != n:
            return False
        if nearest and step.denominator > 2**10:
            places = [index(i, step, keywords["mode"]) for i in range(1, m)]
            if any(abs(place - round(place)) < Fraction(1, 10**5) for place in places):
                return False
        elif nearest and step.denominator & (step.denominator - 1):
            places = [index(i, step, keywords["mode"]) for i in range(1, m)]
            if any(place.denominator == 1 for place in places):
                return False
    return True


RANDOM, CHUNK = 160, 20


@pytest.mark.pytorch
@pytest.mark.parametrize("first", range(0, RANDOM, CHUNK))
def test_random_problems(first: int, rng: np.random.Generator):
    for seed in range(first, first + CHUNK):
        before, keywords = draw_problem(seed)
        agree(before, keywords, "float64", rng, batch=1)


# As PyTorch is called, and as JAX is.


@pytest.mark.pytorch
def test_signature_is_pytorchs():
    theirs = inspect.signature(torch_oracles.functional("interpolate")).parameters
    ours = inspect.signature(torch.interpolate).parameters
    assert {name: p.default for name, p in ours.items()} == {
        name: p.default for name, p in theirs.items()
    }
    assert list(ours) == list(theirs)


def test_numbers_of_other_kinds():
    x = np.ones((1, 1, 4, 4), np.float32)
    assert torch.interpolate(x, np.int64(3)).shape == (1, 1, 3, 3)
    assert torch.interpolate(x, [np.int32(3), 2]).shape == (1, 1, 3, 2)
    assert torch.interpolate(x, scale_factor=np.float32(1.5)).shape == (1, 1, 6, 6)
    assert torch.interpolate(x, scale_factor=jnp.float32(0.5)).shape == (1, 1, 2, 2)
    flag = np.bool_(True)
    assert torch.interpolate(x, 3, mode="bilinear", align_corners=flag).shape == (1, 1, 3, 3)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "bool", "complex64"])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_takes_any_dtype(mode: str, dtype: str, rng: np.random.Generator):
    x = rng.integers(0, 200, (2, 3, 5, 4)).astype(dtype)
    got = torch.interpolate(x, size=(9, 3), mode=mode)
    assert got.dtype == x.dtype
    rows, columns = (
        [math.floor(index(i, Fraction(n, m), mode)) for i in range(m)] for n, m in ((5, 9), (4, 3))
    )
    np.testing.assert_array_equal(got, x[:, :, rows][..., columns])
    if torch_oracles.HAS_TORCH and dtype == "uint8":
        import torch as pytorch

        expected = pytorch.nn.functional.interpolate(pytorch.from_numpy(x), size=(9, 3), mode=mode)
        np.testing.assert_array_equal(got, expected.numpy())


def test_area_may_leave_nothing():
    """PyTorch's adaptive pooling makes empty images, of which the gradient is zeros."""
    x = jnp.ones((1, 2, 4, 5))
    f = functools.partial(torch.interpolate, size=(0, 3), mode="area")
    assert f(x).shape == (1, 2, 0, 3)
    np.testing.assert_array_equal(jax.grad(lambda x: f(x).sum())(x), np.zeros(x.shape))
    assert torch.interpolate(x, scale_factor=0.2, mode="area").shape == (1, 2, 0, 1)


@pytest.mark.parametrize(
    ("shape", "keywords"),
    [
        ((2, 3, 5), {"size": 8, "mode": "linear", "align_corners": True}),
        ((1, 2, 5, 6), {"scale_factor": (1.7, 0.6), "mode": "bicubic"}),
        ((1, 2, 9, 6), {"size": (4, 8), "mode": "bilinear", "antialias": True}),
        ((1, 2, 5, 6), {"size": (7, 4), "mode": "area"}),
        ((1, 2, 3, 4, 3), {"scale_factor": 2, "mode": "trilinear"}),
        ((1, 2, 3, 4, 3), {"size": (4, 3, 5)}),
    ],
    ids=str,
)
def test_transformations(shape: Shape, keywords: dict[str, Any], rng: np.random.Generator):
    f = functools.partial(torch.interpolate, **keywords)
    x = rng.standard_normal(shape)
    y = f(x)
    np.testing.assert_allclose(jax.jit(f)(x), y, rtol=1e-13, atol=1e-13)
    check_grads(f, (x,), order=2, modes=("fwd", "rev"))
    stack = rng.standard_normal((3, *shape))
    mapped = jax.jit(jax.vmap(f))(stack)
    gradients = jax.vmap(jax.grad(lambda x: (f(x) ** 2).sum()))(stack)
    for i, image in enumerate(stack):
        np.testing.assert_allclose(mapped[i], f(image), rtol=1e-12, atol=1e-12)
        alone = jax.grad(lambda x: (f(x) ** 2).sum())(jnp.asarray(image))
        np.testing.assert_allclose(gradients[i], alone, rtol=1e-12, atol=1e-12)


# Bad input.


@dataclasses.dataclass(frozen=True)
class Row:
    id: str
    shape: Shape
    keywords: dict[str, Any]
    error: type[Exception]
    text: str  # a regular expression: names the argument, shows what was given
    dtype: str = "float32"
    pytorch_refuses: bool = True


X = (2, 3, 5, 6)


def row(
    id: str,
    text: str,
    error: type[Exception] = ValueError,
    *,
    shape: Shape = X,
    dtype: str = "float32",
    pytorch_refuses: bool = True,
    **keywords: Any,
) -> Row:
    return Row(id, shape, keywords, error, text, dtype, pytorch_refuses)


def bad_ranks() -> list[Row]:
    """Every mode with every number of axes that is not its own."""
    fitting = {(m.mode, m.rank) for m in MODES}
    return [
        row(
            f"{mode}-{ndim}-axes",
            rf"mode='{mode}' needs input with .* axes, got {ndim} \(input has shape \(2, ",
            shape=(2,) * ndim,
            size=3,
            mode=mode,
            **({"antialias": True} if mode == "lanczos" else {}),
        )
        for mode, ndim in itertools.product(sorted({m.mode for m in MODES}), (2, 3, 4, 5, 6))
        if (mode, ndim - 2) not in fitting
    ]


ROWS = [
    *bad_ranks(),
    *(
        row(f"{mode}-corners-{corners}", f"align_corners={corners} belongs to .*mode='{mode}'",
            size=3, mode=mode, align_corners=corners)
        for mode in ("nearest", "nearest-exact", "area") for corners in (True, False)
    ),
    *(
        row(f"{mode}-antialias", f"antialias=True belongs to bilinear.*mode='{mode}'",
            shape=(2,) * (rank + 2), size=3, mode=mode, antialias=True)
        for mode, rank in (("nearest", 2), ("nearest-exact", 1), ("area", 2), ("linear", 1),
                           ("trilinear", 3))
    ),
    row("neither", "exactly one of size and scale_factor must be given, got neither"),
    row("both", "exactly one of size and scale_factor must be given, got both", size=3,
        scale_factor=2.0),
    row("mode", "mode must be one of nearest, .*, got 'cubic'", size=3, mode="cubic"),
    row("mode-none", "mode must be one of nearest, .*, got None", size=3, mode=None),
    row("mode-unhashable", r"mode must be one of nearest, .*, got \[\]", size=3, mode=[]),
    row("recompute-size", "recompute_scale_factor=True goes with scale_factor, not with size=3",
        size=3, recompute_scale_factor=True),
    row("lanczos-plain", "mode='lanczos' needs antialias=True", size=3, mode="lanczos"),
    row("lanczos-corners", "mode='lanczos' needs .* no align_corners", size=3, mode="lanczos",
        antialias=True, align_corners=True),
    row("corners-kind", "align_corners must be None, True or False, got 'yes'", TypeError, size=3,
        mode="bilinear", align_corners="yes"),
    row("size-zero", r"size=0 would leave an axis no elements, \(0, 0\) .*\(2, 3, 5, 6\)", size=0),
    row("size-zero-axis", r"size=\(3, 0\) would leave an axis no elements", size=(3, 0),
        mode="bilinear"),
    row("size-negative", "size must be at least 1 .* got -1", size=-1),
    row("size-negative-area", "size must be at least 1", size=(3, -1), mode="area"),
    row("size-length", r"size must have one entry per spatial axis \(2\), got \(3, 3, 3\).*shape",
        size=(3, 3, 3)),
    row("size-length-1", r"size must have one entry per spatial axis \(2\), got \(3,\)", size=[3]),
    row("size-float", r"size must be integers, got 3\.0", TypeError, size=3.0),
    row("size-floats", r"size must be integers, got \(3, 3\.0\)", TypeError, size=(3, 3.0)),
    row("size-bool", "size must be integers, got True", TypeError, size=True),
    row("size-string", "size must be integers, got '3'", TypeError, size="3"),
    row("size-large", "size must be at least 1 and below 2^31".replace("^", r"\^"),
        size=(2**60, 3)),
    row("scale-zero", "scale_factor must be positive and finite, got 0", scale_factor=0),
    row("scale-negative", "scale_factor must be positive and finite", scale_factor=(2, -1.0)),
    row("scale-nan", "scale_factor must be positive and finite, got nan",
        scale_factor=float("nan")),
    row("scale-infinite", "scale_factor must be positive and finite, got inf",
        scale_factor=float("inf"), mode="bilinear"),
    row("scale-small", r"scale_factor=0\.1 would leave an axis no elements, \(0, 0\)",
        scale_factor=0.1),
    row("scale-large", r"scale_factor=.* 2\^31 elements or more", scale_factor=1e30),
    row("scale-length", r"scale_factor must have one entry per spatial axis \(2\), got \(2,\)",
        scale_factor=(2,)),
    row("scale-string", "scale_factor must be numbers, got '2'", TypeError, scale_factor="2"),
    row("scale-none", r"scale_factor must be numbers, got \(1\.5, None\)", TypeError,
        scale_factor=(1.5, None)),
    row("scale-complex", "scale_factor must be numbers, got 2j", TypeError, scale_factor=2j),
    row("input-empty", r"axis 2 has no elements to make 3 of", shape=(2, 3, 0, 6), size=3),
    row("integers", "dtypes must be one of .*; input is int32", TypeError, dtype="int32", size=3,
        mode="bilinear"),
    row("integers-area", "dtypes must be one of .*; input is uint8", TypeError, dtype="uint8",
        size=3, mode="area"),
    row("complex", "dtypes must be one of .*; input is complex64", TypeError, dtype="complex64",
        size=3, mode="bicubic"),
    # PyTorch rounds the result to integers.
    row("bytes", "dtypes must be one of .*; input is uint8", TypeError, dtype="uint8", size=3,
        mode="bilinear", pytorch_refuses=False),
    # PyTorch takes True for 1.
    row("scale-bool", "scale_factor must be numbers, got True", TypeError, scale_factor=True,
        pytorch_refuses=False),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_bad_input(row: Row):
    function = functools.partial(torch.interpolate, **row.keywords)
    with pytest.raises(row.error, match=row.text) as raised:
        jax.eval_shape(function, np.ones(row.shape, row.dtype))
    assert str(raised.value).startswith("torch.interpolate: ")


@pytest.mark.pytorch
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_pytorch_refuses_it_too(row: Row):
    import torch as pytorch

    require_lanczos(row.keywords.get("mode", "nearest"))
    function = functools.partial(torch_oracles.functional("interpolate"), **row.keywords)
    image = pytorch.from_numpy(np.ones(row.shape, row.dtype))
    if not row.pytorch_refuses:
        function(image)
        return
    with pytest.raises((RuntimeError, TypeError, ValueError)):  # NotImplementedError among them
        function(image)


@pytest.mark.parametrize("name", ["size", "scale_factor"])
def test_traced_sizes_are_refused(name: str):
    def f(x: Any, number: Any) -> Any:
        return torch.interpolate(x, **{name: number})

    with pytest.raises(TypeError, match=f"torch.interpolate: {name} must be"):
        jax.jit(f)(jnp.ones(X), 2)


def test_every_mode_is_tested():
    used: Callable[[str], bool] = lambda mode: any(m.mode == mode for m in MODES)  # noqa: E731
    known = "nearest nearest-exact linear bilinear bicubic trilinear area lanczos".split()
    assert all(map(used, known))
    with pytest.raises(ValueError) as raised:
        torch.interpolate(jnp.ones(X), 3, mode="none of them")
    assert f"mode must be one of {', '.join(known)}, got" in str(raised.value)

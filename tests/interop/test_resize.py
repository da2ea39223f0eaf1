"""Resize in other libraries' words: ONNX's own cases, PyTorch's interpolate, oneDNN's literals."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from support import onnx_node_tests
from support import resize_oracles as oracles

from jax_convgrad import export_checks, onednn, onnx, resample, resample_transpose, resize

# ONNX's own tests. Names are spelled out so that collecting them needs no onnx package.

NODE_CASES = [
    f"test_resize_{name}"
    for name in """
    downsample_scales_cubic downsample_scales_cubic_A_n0p5_exclude_outside
    downsample_scales_cubic_align_corners downsample_scales_cubic_antialias
    downsample_scales_linear downsample_scales_linear_align_corners
    downsample_scales_linear_antialias downsample_scales_linear_half_pixel_symmetric
    downsample_scales_nearest downsample_sizes_cubic downsample_sizes_cubic_antialias
    downsample_sizes_linear_antialias downsample_sizes_linear_pytorch_half_pixel
    downsample_sizes_nearest downsample_sizes_nearest_not_larger
    downsample_sizes_nearest_not_smaller tf_crop_and_resize tf_crop_and_resize_axes_2_3
    tf_crop_and_resize_axes_3_2 tf_crop_and_resize_extrapolation_value upsample_scales_cubic
    upsample_scales_cubic_A_n0p5_exclude_outside upsample_scales_cubic_align_corners
    upsample_scales_cubic_asymmetric upsample_scales_linear upsample_scales_linear_align_corners
    upsample_scales_linear_half_pixel_symmetric upsample_scales_nearest
    upsample_scales_nearest_axes_2_3 upsample_scales_nearest_axes_3_2 upsample_sizes_cubic
    upsample_sizes_nearest upsample_sizes_nearest_axes_2_3 upsample_sizes_nearest_axes_3_2
    upsample_sizes_nearest_ceil_half_pixel upsample_sizes_nearest_floor_align_corners
    upsample_sizes_nearest_not_larger upsample_sizes_nearest_not_smaller
    upsample_sizes_nearest_round_prefer_ceil_asymmetric
    """.split()
]


@functools.cache
def onnx_cases() -> dict[str, tuple[dict[str, Any], np.ndarray]]:
    """Name -> (inputs and attributes by name, output): all that the installed onnx carries."""
    found = {}
    for case, node, inputs, output in onnx_node_tests.of("Resize"):
        given = [
            name
            for name, present in zip(("X", "roi", "scales", "sizes"), node.input, strict=False)
            if present
        ]
        keywords = dict(zip(given, inputs, strict=True))
        found[case] = (keywords | onnx_node_tests.attributes(node), output)
    return found


def test_every_case_of_the_installed_onnx_is_listed():
    assert set(onnx_cases()) - set(NODE_CASES) == set()


@pytest.mark.parametrize("name", NODE_CASES)
def test_onnx_own_case(name: str, rng: np.random.Generator):
    """The forward literals of ONNX; the gradient by adjointness, jax.vjp and finite differences."""
    cases = onnx_cases()
    if name not in cases:
        pytest.skip(f"the installed onnx has no {name}")
    keywords, output = cases[name]
    keywords = dict(keywords)
    x = keywords.pop("X")
    got = onnx.resize(x, **keywords)
    assert got.dtype == output.dtype
    # The literals are float32, some of them with seven digits, some computed in float32.
    np.testing.assert_allclose(got, output, rtol=1e-5, atol=1e-5)

    x, dx = rng.standard_normal((2, *x.shape))
    dy = jnp.asarray(rng.standard_normal(output.shape))
    forward = functools.partial(onnx.resize, **keywords)
    gradient = onnx.resize_grad(dy, x, **keywords)
    constant = forward(np.zeros_like(x))
    left, right = jnp.vdot(forward(dx) - constant, dy), jnp.vdot(dx, gradient)
    np.testing.assert_allclose(left, right, rtol=0, atol=1e-13 * dy.size)
    np.testing.assert_array_equal(jax.vjp(forward, x)[1](dy)[0], gradient)
    check_grads(forward, (x,), order=2, modes=("rev",))
    check_grads(lambda dy: onnx.resize_grad(dy, x, **keywords), (dy,), order=2)


@pytest.mark.parametrize(
    ("policy", "shape", "scale"),
    [
        ("not_larger", (1, 7, 4), 7 / 5),
        ("not_smaller", (1, 13, 8), 8 / 3),
        ("stretch", (1, 7, 8), None),
    ],
)
def test_onnx_aspect_policies(policy: str, shape: Any, scale: Any, rng: np.random.Generator):
    """5 x 3 into 7 x 8: scales 7/5 and 8/3; sizes are rounded, halves upwards."""
    x = rng.standard_normal((1, 5, 3))
    keywords = {"axes": [-2, -1], "mode": "linear", "keep_aspect_ratio_policy": policy}
    got = onnx.resize(x, sizes=[7, 8], **keywords)
    dense = {a: oracles.matrix(x.shape[a], shape[a], "linear", scale=scale)[0] for a in (1, 2)}
    assert got.shape == shape
    np.testing.assert_allclose(got, oracles.apply(x, dense), rtol=0, atol=1e-13)
    gradient = onnx.resize_grad(np.asarray(got), x, sizes=[7, 8], **keywords)
    back = oracles.apply(got, {a: d.T for a, d in dense.items()})
    np.testing.assert_allclose(gradient, back, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "keywords",
    [
        {"scales": [1.0, 1.0, 2.0, 2.0]},
        {"sizes": [None, 3, 16, 16]},
        {"sizes": [None, 3, 16, 16], "keep_aspect_ratio_policy": "not_larger"},
        {"sizes": [16, 16], "axes": [2, 3], "keep_aspect_ratio_policy": "not_smaller"},
    ],
    ids=str,
)
def test_onnx_symbolic_batch(keywords: Any, rng: np.random.Generator):
    """With an entry for the batch, as ONNX writes it, which leaves it as it is."""

    def up(x: Any) -> Any:
        given = dict(keywords)
        if "sizes" in given:
            given["sizes"] = [x.shape[0] if size is None else size for size in given["sizes"]]
        return onnx.resize(x, mode="linear", **given)

    (batch,) = jax.export.symbolic_shape("batch")
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(up(x) ** 2)))
    exported = jax.export.export(gradient, disabled_checks=export_checks())(
        jax.ShapeDtypeStruct((batch, 3, 8, 8), np.float32)
    )
    for size in (1, 3):
        x = rng.integers(-8, 9, (size, 3, 8, 8)).astype(np.float32)
        np.testing.assert_array_equal(exported.call(x), gradient(x))


@pytest.mark.parametrize(
    "keywords, text",
    [
        ({"scales": [2.0, 1.0]}, r"onnx.resize: axis 0 is resized, .* must be known, got b"),
        ({"sizes": [4, 8]}, r"onnx.resize: axis 0 is resized, .* must be known, got b"),
        ({"sizes": ["b", "2*b"]}, r"onnx.resize: sizes must be known, or equal to those of X"),
        (
            {"sizes": ["b", 16], "keep_aspect_ratio_policy": "not_smaller"},
            r"onnx.resize: axis 0 is resized, .* must be known, got b",
        ),
    ],
    ids=str,
)
def test_onnx_a_symbolic_axis_that_is_resized(keywords: Any, text: str):
    scope = jax.export.SymbolicScope()
    (b,) = jax.export.symbolic_shape("b", scope=scope)
    given = {
        name: [
            jax.export.symbolic_shape(entry, scope=scope)[0] if isinstance(entry, str) else entry
            for entry in entries
        ]
        if name == "sizes"
        else entries
        for name, entries in keywords.items()
    }
    with pytest.raises(ValueError, match=text):
        jax.eval_shape(
            lambda x: onnx.resize(x, mode="linear", **given),
            jax.ShapeDtypeStruct((b, 8), np.float32),
        )


def test_onnx_an_empty_batch():
    x = jnp.ones((0, 3, 4, 4))
    for keywords in (
        {"scales": [1, 1, 2, 2]},
        {"sizes": [0, 3, 8, 8]},
        {"sizes": [0, 3, 8, 8], "keep_aspect_ratio_policy": "not_smaller"},
    ):
        assert onnx.resize(x, **keywords).shape[::3] == (0, 8)


@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners"])
@pytest.mark.parametrize("axes", [None, [3, 2]])
def test_onnx_gradient_without_scales_and_sizes(
    coordinates: str, axes: list[int] | None, rng: np.random.Generator
):
    """The sizes are then those of the gradient, against dense matrices."""
    x, after = rng.standard_normal((2, 3, 5, 4)), (7, 3)
    dy = rng.standard_normal((2, 3, *after))
    keywords = {"mode": "linear", "coordinate_transformation_mode": coordinates, "axes": axes}
    dense = {
        axis: oracles.matrix(x.shape[axis], m, "linear", mode=coordinates)[0].T
        for axis, m in enumerate(after, 2)
    }
    got = onnx.resize_grad(dy, x, **keywords)
    np.testing.assert_allclose(got, oracles.apply(dy, dense), rtol=0, atol=1e-13)
    with pytest.raises(ValueError, match=r"onnx.resize_grad: dY must have the rank of X"):
        onnx.resize_grad(dy[0], x, **keywords)
    with pytest.raises(
        ValueError, match=r"onnx.resize_grad: keep_aspect_ratio_policy.* needs sizes"
    ):
        onnx.resize_grad(dy, x, **keywords, keep_aspect_ratio_policy="not_larger")
    with pytest.raises(ValueError, match=r"onnx.resize: exactly one of scales and sizes"):
        onnx.resize(x, **keywords)


def test_onnx_scales_are_float32():
    """0.7 of 10 elements is 7: 0.7 in float32 is less, its product with 10, rounded, is not."""
    assert onnx.resize(np.ones(10), scales=[0.7]).shape == (7,)
    assert onnx.resize(np.ones(10), scales=jnp.asarray([0.7], jnp.float32)).shape == (7,)


@pytest.mark.parametrize("length", [1, 2])
def test_onnx_pytorch_half_pixel_of_one_output(length: int):
    """The middle of the image for the half pixel, element 0 for pytorch's single one."""
    x = np.asarray([1.0, 2.0, 3.0, 4.0, 5.0])
    got = onnx.resize(
        x, sizes=[length], mode="cubic", coordinate_transformation_mode="pytorch_half_pixel"
    )
    if length == 1:
        np.testing.assert_array_equal(got, [1.0])
    else:
        np.testing.assert_allclose(got, onnx.resize(x, sizes=[2], mode="cubic"), atol=1e-15)


# PyTorch.

TORCH_SIZES = {
    1: [((9,), (20,)), ((16,), (5,)), ((7,), (7,)), ((4,), (1,))],
    2: [((5, 8), (10, 19)), ((16, 13), (7, 5)), ((6, 12), (9, 4)), ((1, 3), (4, 1))],
    3: [((3, 4, 5), (6, 6, 5)), ((6, 5, 8), (3, 7, 3))],
}
# PyTorch's mode -> (spatial axes, antialias, align_corners, our keywords).
TORCH_MODES: list[tuple[str, tuple[int, ...], bool, bool | None, dict[str, Any]]] = [
    (
        "nearest",
        (1, 2, 3),
        False,
        None,
        {"method": "nearest", "coordinate_mode": "asymmetric", "nearest_mode": "floor"},
    ),
    ("nearest-exact", (1, 2, 3), False, None, {"method": "nearest"}),
    ("area", (1, 2, 3), False, None, {"method": "area-pytorch"}),
    *(
        (mode, (rank,), False, corners, {"method": "linear", "antialias": False})
        for (rank, mode), corners in itertools.product(
            {1: "linear", 2: "bilinear", 3: "trilinear"}.items(), (False, True)
        )
    ),
    *(
        ("bicubic", (2,), False, corners, {"method": "cubic-pytorch", "antialias": False})
        for corners in (False, True)
    ),
    *(
        (mode, (2,), True, corners, {"method": ours})
        for (mode, ours), corners in itertools.product(
            {"bilinear": "linear", "bicubic": "cubic-pytorch"}.items(), (False, True)
        )
    ),
    ("lanczos", (2,), True, None, {"method": "lanczos3"}),
]


@pytest.mark.pytorch
@pytest.mark.parametrize(
    ("mode", "ranks", "antialias", "corners", "keywords"),
    TORCH_MODES,
    ids=[f"{m}-{r[-1]}d-aa{int(a)}-corners{c}" for m, r, a, c, _ in TORCH_MODES],
)
def test_pytorch_interpolate_and_its_gradient(
    mode: str,
    ranks: tuple[int, ...],
    antialias: bool,
    corners: bool | None,
    keywords: dict[str, Any],
    rng: np.random.Generator,
):
    import torch

    if mode == "lanczos" and not hasattr(torch.ops.aten, "_upsample_lanczos2d_aa"):
        pytest.skip("this PyTorch has no lanczos")
    for rank in ranks:
        for before, after in TORCH_SIZES[rank]:
            x = rng.standard_normal((2, 3, *before))
            dy = rng.standard_normal((2, 3, *after))
            options = dict(keywords)
            if corners and antialias:
                # There align_corners changes the scale and leaves the half pixels.
                if any(m == 1 or n == 1 for n, m in zip(before, after, strict=True)):
                    continue
                ratios = ((m - 1) / (n - 1) for n, m in zip(before, after, strict=True))
                options["scale"] = [None, None, *ratios]
            elif corners:
                options["coordinate_mode"] = "align_corners"
            image = torch.from_numpy(x).requires_grad_()
            expected = torch.nn.functional.interpolate(
                image, after, mode=mode, align_corners=corners, antialias=antialias
            )
            expected.backward(torch.from_numpy(dy))
            got = resize(x, dy.shape, **options)
            np.testing.assert_allclose(got, expected.detach().numpy(), rtol=0, atol=1e-12)
            for gradient in (
                resample_transpose(dy, x.shape, **options),
                jax.vjp(lambda x, s=dy.shape, o=options: resize(x, s, **o), x)[1](jnp.asarray(dy))[
                    0
                ],
            ):
                np.testing.assert_allclose(gradient, image.grad.numpy(), rtol=0, atol=1e-12)


@pytest.mark.pytorch
@pytest.mark.parametrize("factor", [1.7, 0.45, 2.0])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_pytorch_scale_factor(mode: str, factor: float, rng: np.random.Generator):
    import torch

    x = rng.standard_normal((1, 2, 11, 9))
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(x), scale_factor=factor, mode=mode, recompute_scale_factor=False
    ).numpy()
    assert expected.shape[2:] == tuple(math.floor(n * factor) for n in (11, 9))
    method = {"bilinear": "linear", "bicubic": "cubic-pytorch"}[mode]
    got = resample(
        x,
        expected.shape,
        method=method,
        antialias=False,
        exclude_outside=False,
        scale=[None, None, factor, factor],
    )
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)


# oneDNN.


@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
def test_onednn_literals(data_format: str):
    """2 to 3 elements, by hand: nearest takes 0, 1, 1; linear the middle; backward is the transpose."""
    add = (lambda a: a[None, :, None]) if data_format == "NXC" else (lambda a: a[None, None, :])
    src, diff = add(jnp.asarray([10.0, 20.0])), add(jnp.asarray([1.0, 2.0, 4.0]))
    common = {"sizes": (3,), "data_format": data_format}
    nearest = onednn.interpolate(src, mode="nearest", **common)
    np.testing.assert_array_equal(nearest.ravel(), [10, 20, 20])
    back = onednn.interpolate_backward(src, diff, mode="nearest", **common)
    np.testing.assert_array_equal(back.ravel(), [1, 6])
    for mode in ("linear", "bilinear", "trilinear"):
        linear = onednn.interpolate(src, mode=mode, **common)
        np.testing.assert_allclose(linear.ravel(), [10, 15, 20], rtol=1e-7)
        back = onednn.interpolate_backward(src, diff, mode=mode, **common)
        np.testing.assert_allclose(back.ravel(), [2, 5], rtol=1e-7)


@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners"])
@pytest.mark.parametrize("mode", ["nearest", "trilinear"])
def test_onednn_by_definition(mode: str, coordinates: str, rng: np.random.Generator):
    src = rng.standard_normal((2, 4, 5, 6, 3))
    keywords = {"mode": mode, "coordinate_transformation_mode": coordinates}
    method = "nearest" if mode == "nearest" else "linear"
    after = (7, 5, 3)
    dense = {
        axis: oracles.matrix(src.shape[axis], m, method, mode=coordinates)[0]
        for axis, m in enumerate(after, 1)
    }
    got = onednn.interpolate(src, after, **keywords)
    np.testing.assert_allclose(got, oracles.apply(src, dense), rtol=0, atol=1e-13)
    diff = rng.standard_normal(got.shape)
    back = onednn.interpolate_backward(src, diff, after, **keywords)
    expected = oracles.apply(diff, {a: d.T for a, d in dense.items()})
    np.testing.assert_allclose(back, expected, rtol=0, atol=1e-13)
    check_grads(lambda x: onednn.interpolate(x, after, **keywords), (src,), 1, ("rev",))


def test_onednn_scales_are_truncated_to_sizes(rng: np.random.Generator):
    src = rng.standard_normal((1, 5, 7, 2))
    got = onednn.interpolate(src, scales=(1.5, 0.5), mode="linear")
    np.testing.assert_array_equal(got, onednn.interpolate(src, (7, 3), mode="linear"))

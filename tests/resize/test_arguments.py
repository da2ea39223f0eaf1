"""Bad input of the resizes: every row a clear error of the right type, raised while tracing."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import jax_convgrad as jc
from jax_convgrad import onednn, onnx
from jax_convgrad._src.resize import primitives as resize_primitives
from jax_convgrad._src.resize.bands import Rule, make_band


@dataclasses.dataclass(frozen=True)
class Row:
    id: str
    call: Callable[..., Any]
    error: type[Exception]
    text: str
    shape: tuple[int, ...] = (1, 4, 6, 3)
    dtype: Any = np.float32
    more: tuple[tuple[int, ...], ...] = ()  # shapes of further arrays


def resize(
    shape: Any = (1, 8, 6, 3), method: Any = "linear", **keywords: Any
) -> Callable[..., Any]:
    return lambda x: jc.resize(x, shape, method, **keywords)


def translate(
    shape: Any = (1, 8, 6, 3),
    dims: Any = (1,),
    scale: Any = (2.0,),
    shift: Any = (0.0,),
    method: Any = "linear",
) -> Callable[..., Any]:
    return lambda x: jc.scale_and_translate(x, shape, dims, scale, shift, method)


def resample(shape: Any = (1, 8, 6, 3), **keywords: Any) -> Callable[..., Any]:
    return lambda x: jc.resample(x, shape, **keywords)


def transpose(shape: Any = (1, 8, 6, 3), **keywords: Any) -> Callable[..., Any]:
    return lambda x: jc.resample_transpose(x, shape, **keywords)


def ort(**keywords: Any) -> Callable[..., Any]:
    return lambda x: onnx.resize(x, **keywords)


def ort_grad(**keywords: Any) -> Callable[..., Any]:
    return lambda x, dy: onnx.resize_grad(dy, x, **keywords)


def dnnl(**keywords: Any) -> Callable[..., Any]:
    return lambda x: onednn.interpolate(x, **keywords)


V, T = ValueError, TypeError
CROP = "tf_crop_and_resize"
ROI = [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
BAND = make_band(4, 8, Rule("linear"))


def bind(bands: Any, axes: Any) -> Callable[..., Any]:
    return lambda x: resize_primitives.resample(x, bands, axes)


ROWS = [
    # Layers and operators: names.
    Row("method", resize(method="bilinar"), V, r"resize: method .*area-pytorch.*'bilinar'"),
    Row("method-kind", resize(method=3), T, r"resize: method must be a string.*3"),
    Row(
        "coordinates", resize(coordinate_mode="center"), V, r"coordinate_mode.*half_pixel.*'center'"
    ),
    Row("nearest-mode", resize(nearest_mode="up"), V, r"nearest_mode.*floor.*'up'"),
    Row(
        "area-corners",
        resize(method="area", coordinate_mode="align_corners"),
        V,
        "only coordinate_mode='half_pixel'",
    ),
    Row("exclude", resize(exclude_outside=2), V, "exclude_outside must be a bool, got 2"),
    Row("coefficient", resize(method="cubic", cubic_coeff_a="x"), T, "cubic_coeff_a.*number.*'x'"),
    Row("coefficient-nan", resize(cubic_coeff_a=float("nan")), V, "cubic_coeff_a must be finite"),
    # Sizes.
    Row("rank", resize((8, 6)), V, r"resize: shape.*\(8, 6\).*\(1, 4, 6, 3\)"),
    Row("negative", resize((1, -8, 6, 3)), V, r"negative.*\(1, -8, 6, 3\)"),
    Row("fraction", resize((1, 8.5, 6, 3)), T, r"integers.*8\.5"),
    Row("bool-size", resize((1, True, 6, 3)), T, "integers.*True"),
    Row("string-shape", resize("8x8"), T, "sequence of integers, got '8x8'"),
    Row("from-nothing", resize((1, 8, 6, 3)), V, "axis 1 has no elements to make 8", (1, 0, 6, 3)),
    Row("too-long", resize((1, 2**31, 6, 3)), V, r"2\^31"),
    Row("operator-dtype", resample(), T, "resample: .*int32", dtype=np.int32),
    Row("transpose-dtype", transpose(), T, "resample_transpose: .*complex64", dtype=np.complex64),
    Row("transpose-rank", transpose((8,)), V, r"resample_transpose: shape.*dy of shape \(1, 4"),
    # Scale, roi.
    Row("scale-length", resample(scale=[2.0]), V, "scale must have 4 entries"),
    Row("scale-zero", resample(scale=[None, 0.0, None, None]), V, "scale must be positive"),
    Row("scale-negative", resample(scale=[None, -2, None, None]), V, "scale must be positive.*-2"),
    Row("scale-inf", resample(scale=[None, np.inf, None, None]), V, "scale must be finite.*inf"),
    Row("scale-text", resample(scale="2222"), T, "scale must have one entry per axis"),
    Row("area-scale", resample(method="area", scale=[None, 2.0, None, None]), V, "takes no scale"),
    Row("roi-elsewhere", resize(roi=[(0, 1)] * 4), V, "roi belongs to.*tf_crop.*'half_pixel'"),
    Row("roi-missing", resize(coordinate_mode=CROP), V, r"needs roi.*\(1, 4, 6, 3\)"),
    Row("roi-length", resize(coordinate_mode=CROP, roi=[(0, 1)]), V, "roi must have 4 entries"),
    Row("roi-triple", resize(coordinate_mode=CROP, roi=[(0, 1, 2)] * 4), V, "pairs.*0, 1, 2"),
    Row("roi-nan", resize(coordinate_mode=CROP, roi=[(0, np.nan)] * 4), V, "roi must be finite"),
    Row("value", resize(extrapolation_value="0"), T, "extrapolation_value must be a number"),
    # scale_and_translate.
    Row("st-nearest", translate(method="nearest"), V, "'nearest' takes no scale and translation"),
    Row("st-axis", translate(dims=(4,)), V, r"spatial_dims=\(4,\).*\(1, 4, 6, 3\)"),
    Row("st-twice", translate(dims=(1, -3), scale=(2, 2), shift=(0, 0)), V, "names an axis twice"),
    Row("st-scale-length", translate(scale=(2.0, 2.0)), V, r"scale must have.*\(1\), got 2"),
    Row("st-shift-matrix", translate(shift=np.zeros((1, 1))), V, r"translation.*vector.*\(1, 1\)"),
    Row("st-scale-number", translate(scale=2.0), T, "scale must be an array or a sequence"),
    Row("st-zero", translate(scale=(0.0,)), V, "scale must not be zero"),
    Row("st-inf", translate(scale=(np.inf,)), V, "scale must be finite"),
    Row("st-other-axis", translate((1, 8, 7, 3)), V, r"axis 2 is not in spatial_dims=\(1,\)"),
    # onnx.resize.
    Row("onnx-mode", ort(sizes=[1, 8, 6, 3], mode="bilinear"), V, "mode.*'bilinear'"),
    Row("onnx-nearest-mode", ort(sizes=[1, 8, 6, 3], nearest_mode="jax"), V, "nearest_mode.*'jax'"),
    Row(
        "onnx-coordinates",
        ort(sizes=[1, 8, 6, 3], coordinate_transformation_mode="tf_half_pixel"),
        V,
        "onnx.resize: coordinate_transformation_mode.*'tf_half_pixel'",
    ),
    Row(
        "onnx-policy", ort(sizes=[1, 8, 6, 3], keep_aspect_ratio_policy="keep"), V, "policy.*'keep'"
    ),
    Row(
        "onnx-policy-scales",
        ort(scales=[1, 2, 1, 1], keep_aspect_ratio_policy="not_larger"),
        V,
        "goes with sizes, not with scales",
    ),
    Row("onnx-both", ort(scales=[1, 2, 1, 1], sizes=[1, 8, 6, 3]), V, "exactly one.*both"),
    Row("onnx-neither", ort(), V, "exactly one.*neither"),
    Row("onnx-empty", ort(scales=[], sizes=[]), V, "exactly one.*neither"),
    Row(
        "onnx-scales-length",
        ort(scales=[2.0, 2.0]),
        V,
        r"scales must have 4 entries, got 2.*\(1, 4",
    ),
    Row("onnx-scale-zero", ort(scales=[1, 0, 1, 1]), V, "scales must be positive"),
    Row("onnx-scale-negative", ort(scales=[1, -1, 1, 1]), V, "scales must be positive"),
    Row("onnx-scale-inf", ort(scales=[1, np.inf, 1, 1]), V, "scales must be finite"),
    Row("onnx-scale-huge", ort(scales=[1, 1e39, 1, 1]), V, "scales must be positive and finite"),
    Row("onnx-scale-tiny", ort(scales=[1, 0.1, 1, 1]), V, r"no elements left: \(1, 0, 6, 3\)"),
    Row("onnx-size-zero", ort(sizes=[1, 0, 6, 3]), V, "sizes must be at least 1"),
    Row("onnx-size-negative", ort(sizes=[1, -8, 6, 3]), V, "sizes must be at least 1"),
    Row("onnx-size-float", ort(sizes=[1, 8.0, 6, 3]), T, "sizes must be integers"),
    Row("onnx-axes-range", ort(sizes=[8], axes=[4]), V, r"axes=\(4,\)"),
    Row("onnx-axes-twice", ort(sizes=[8, 8], axes=[1, -3]), V, "names an axis twice"),
    Row("onnx-axes-kind", ort(sizes=[8], axes=[1.0]), T, "axes must be a sequence of integers"),
    Row(
        "onnx-roi-length",
        ort(sizes=[1, 8, 6, 3], roi=ROI[:6], coordinate_transformation_mode=CROP),
        V,
        "roi must have 8 entries, got 6",
    ),
    Row(
        "onnx-roi-missing",
        ort(sizes=[1, 8, 6, 3], coordinate_transformation_mode=CROP),
        V,
        "needs roi",
    ),
    Row("onnx-antialias", ort(sizes=[1, 8, 6, 3], antialias=1), V, "antialias=1 belongs to"),
    Row(
        "onnx-antialias-2", ort(sizes=[1, 8, 6, 3], mode="linear", antialias=2), V, "0 or 1, got 2"
    ),
    Row("onnx-exclude", ort(sizes=[1, 8, 6, 3], exclude_outside=-1), V, "0 or 1, got -1"),
    Row("onnx-value", ort(sizes=[1, 8, 6, 3], extrapolation_value=np.inf), V, "must be finite"),
    Row("onnx-dtype", ort(sizes=[1, 8, 6, 3]), T, "onnx.resize: .*int8", dtype=np.int8),
    Row(
        "onnx-dy",
        ort_grad(sizes=[1, 8, 6, 3]),
        V,
        r"onnx.resize_grad: dY.*\(1, 8, 6, 3\), got \(1, 9, 6, 3\)",
        more=((1, 9, 6, 3),),
    ),
    # onednn.interpolate.
    Row("dnnl-mode", dnnl(sizes=[8, 6], mode="cubic"), V, "onednn.interpolate: mode.*'cubic'"),
    Row(
        "dnnl-coordinates",
        dnnl(sizes=[8, 6], mode="linear", coordinate_transformation_mode="asymmetric"),
        V,
        "coordinate_transformation_mode.*'asymmetric'",
    ),
    Row(
        "dnnl-format",
        dnnl(sizes=[8, 6], mode="linear", data_format="NHWC"),
        V,
        "data_format.*'NHWC'",
    ),
    Row("dnnl-both", dnnl(sizes=[8, 6], scales=[2, 1], mode="linear"), V, "exactly one.*both"),
    Row("dnnl-neither", dnnl(mode="linear"), V, "exactly one.*neither"),
    Row("dnnl-length", dnnl(sizes=[8], mode="linear"), V, r"per spatial axis \(2\), got \(8,\)"),
    Row("dnnl-size", dnnl(sizes=[8, 0], mode="linear"), V, "sizes must be at least 1"),
    Row("dnnl-scale", dnnl(scales=[2, -1], mode="linear"), V, "scales must be positive"),
    Row("dnnl-scale-text", dnnl(scales=["a", 1], mode="linear"), T, "scales must be numbers"),
    Row("dnnl-rank", dnnl(sizes=[], mode="linear"), V, "at least one spatial axis", (4, 6)),
    # The primitive.
    Row("bind-size", bind((BAND,), (2,)), V, "resample: axis 2 of x has 6 elements.*reads 4"),
    Row(
        "bind-axis",
        bind((BAND,), (5,)),
        V,
        r"x has shape \(1, 4, 6, 3\) and does not have .*\(5,\)",
    ),
    Row("bind-order", bind((BAND, BAND), (1, 1)), V, r"ascending positions, got \(1, 1\)"),
    Row("bind-none", bind((), ()), V, "1 to 3"),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_every_row_is_a_clear_error(row: Row):
    arrays = [jax.ShapeDtypeStruct(shape, row.dtype) for shape in (row.shape, *row.more)]
    with pytest.raises(row.error, match=row.text):
        jax.eval_shape(row.call, *arrays)


@pytest.mark.parametrize("name", ["scales", "roi", "sizes"])
def test_traced_onnx_inputs_are_refused(name: str):
    values = {"scales": np.ones(4), "roi": np.asarray(ROI), "sizes": np.asarray([1, 8, 6, 3])}

    def call(x: Any, traced: Any) -> Any:
        keywords = {"sizes": [1, 8, 6, 3], "coordinate_transformation_mode": CROP, "roi": ROI}
        if name == "scales":
            del keywords["sizes"]
        return onnx.resize(x, **{**keywords, name: traced})

    x = np.ones((1, 4, 6, 3), np.float32)
    assert call(x, values[name]).ndim == 4
    with pytest.raises(TypeError, match=f"onnx.resize: {name} must be known while tracing"):
        jax.jit(call)(x, values[name])


def test_a_resized_axis_of_unknown_size_is_refused():
    (n,) = jax.export.symbolic_shape("n")
    f = jax.jit(functools.partial(jc.resize, shape=(1, 8), method="linear"))
    with pytest.raises(ValueError, match="axis 1 is resized, so its sizes must be known"):
        jax.export.export(f)(jax.ShapeDtypeStruct((1, n), np.float32))

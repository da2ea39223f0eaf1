"""`conv_backward`: all gradients of a convolution by one primitive, against float64 and its parts."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.test_util import check_grads
from support import oracles
from support.meshes import gathered, make_mesh, put

from jax_convgrad import conv_backward, conv_dgrad, conv_fprop, conv_wgrad
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.runtime import registry

GRADIENTS = ("x", "w", "b")
SUBSETS = [s for n in range(4) for s in itertools.combinations(GRADIENTS, n)]
# (x, w, keywords): a dense problem with everything uneven, and depthwise ones, which have a kernel.
DENSE = (
    (2, 4, 9, 8),
    (6, 2, 3, 2),
    dict(strides=(2, 1), padding=((1, 0), (-1, 2)), dilation=(1, 2), groups=2),
)
DEPTHWISE = {
    "3x3": ((3, 20, 9, 10), (20, 1, 3, 3), dict(padding=((1, 1), (1, 1)))),
    "3x3-strided": ((2, 33, 10, 9), (33, 1, 3, 3), dict(strides=2, padding=((0, 1), (1, 1)))),
    "7x7": ((2, 16, 8, 7), (16, 1, 7, 7), dict(padding=((3, 3), (3, 3)))),
    "1d-31": ((1, 17, 600), (17, 1, 31), dict(padding=((30, 0),))),
    "dilated": (
        (2, 5, 11, 12),
        (5, 1, 3, 4),
        dict(strides=(3, 2), dilation=(2, 3), padding="SAME"),
    ),
    "rows-that-nothing-reads": ((1, 4, 11, 6), (4, 1, 2, 1), dict(strides=(4, 3))),
    "cropped": ((1, 18, 9, 9), (18, 1, 3, 3), dict(padding=((-1, 2), (2, -2)))),
    "3d": ((2, 8, 4, 5, 6), (8, 1, 3, 2, 3), dict(strides=(1, 2, 1), padding="SAME")),
}


def draw(case: Any, dtype: str, rng: np.random.Generator, ints: bool = True) -> tuple[Any, ...]:
    """(x, w, dy, keywords), and the three gradients in float64."""
    x_shape, w_shape, keywords = case
    rank = len(x_shape) - 2
    keywords = {"strides": 1, "dilation": 1, "padding": "VALID", **keywords}
    keywords.setdefault("groups", w_shape[0])
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (x_shape, w_shape)]
    y = jax.eval_shape(functools.partial(conv_fprop, **keywords), *shapes)
    values = [
        jnp.asarray(rng.integers(-2, 3, s) if ints else rng.standard_normal(s), dtype)
        for s in (x_shape, w_shape, y.shape)
    ]
    x, w, dy = (np.asarray(array, np.float64) for array in values)
    each = {k: (v,) * rank if isinstance(v, int) else v for k, v in keywords.items()}
    each["groups"] = keywords["groups"]
    if isinstance(each["padding"], str):
        dilated = [(k - 1) * d + 1 for k, d in zip(w_shape[2:], each["dilation"], strict=True)]
        each["padding"] = jax.lax.padtype_to_pads(
            x_shape[2:], dilated, each["strides"], each["padding"]
        )
    expected = {
        "x": oracles.conv_dgrad(dy, w, x_shape, **each),
        "w": oracles.conv_wgrad(x, dy, w_shape, **each),
        "b": dy.sum((0, *range(2, dy.ndim))),
    }
    return (*values, keywords, expected)


def assert_gradients(results: Any, expected: dict[str, Any], wanted: Any, dtype: str) -> None:
    """Every partial sum is exact in float32, so a result is the exact one, rounded once."""
    for gradient, result in zip(GRADIENTS, results, strict=True):
        assert (result is not None) == (gradient in wanted)
        if result is not None:
            assert result.dtype == dtype
            exact = np.asarray(jnp.asarray(expected[gradient], dtype), np.float64)
            np.testing.assert_array_equal(np.asarray(result, np.float64), exact, gradient)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_every_subset_is_exact(dtype: str, rng: np.random.Generator):
    for case in (DENSE, DEPTHWISE["3x3"]):
        with jax.enable_x64(dtype == "float64"), override_backend("native"):
            x, w, dy, keywords, expected = draw(case, dtype, rng)
            for wanted in SUBSETS:
                results = jax.jit(functools.partial(conv_backward, wanted=wanted, **keywords))(
                    x, w, dy
                )
                assert_gradients(results, expected, wanted, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", DEPTHWISE)
def test_depthwise_layers_are_exact(case: str, dtype: str, rng: np.random.Generator):
    x, w, dy, keywords, expected = draw(DEPTHWISE[case], dtype, rng)
    f = jax.jit(functools.partial(conv_backward, **keywords))
    with override_backend("native"):
        assert_gradients(f(x, w, dy), expected, GRADIENTS, dtype)


@pytest.mark.parametrize("case", ["3x3", "3x3-strided", "1d-31"])
def test_one_call_is_as_accurate_as_its_parts(case: str, rng: np.random.Generator):
    x, w, dy, keywords, expected = draw(DEPTHWISE[case], "float32", rng, ints=False)
    f = functools.partial(conv_backward, **keywords)
    errors = []
    for backend in ("native", "xla"):
        with override_backend(backend):
            results = dict(zip(GRADIENTS, jax.jit(lambda *a: f(*a))(x, w, dy), strict=True))
        errors.append({g: np.abs(results[g] - expected[g]).max() for g in GRADIENTS})
    for gradient in GRADIENTS:
        assert errors[0][gradient] <= 3 * errors[1][gradient]


def test_sums_over_a_long_signal_keep_their_digits(rng: np.random.Generator):
    channels, samples = 8, 2**20
    x, dy = (rng.standard_normal((1, samples - i, channels), np.float32) for i in range(2))
    w = rng.standard_normal((channels, 1, 2)).astype(np.float32)
    f = functools.partial(
        conv_backward, groups=channels, dimension_numbers=("NWC", "OIW", "NWC"), wanted=("w", "b")
    )
    wide = dy[0].astype(np.float64)
    expected = [np.stack([(x[0, i:][: len(wide)] * wide).sum(0) for i in range(2)]), wide.sum(0)]
    errors = []
    for backend in ("native", "xla"):
        with override_backend(backend):
            _, dw, db = jax.jit(lambda *a: f(*a))(x, w, dy)
        found = [np.asarray(dw)[:, 0].T, db]
        pairs = zip(found, expected, strict=True)
        errors.append([np.sqrt(np.mean(np.square(a - b))) for a, b in pairs])
    for ours, xla in zip(*errors, strict=True):
        assert ours <= 2 * xla, errors


def test_parts_have_the_bits_of_the_three_operators(rng: np.random.Generator):
    x, w, dy, keywords, _ = draw(DENSE, "float32", rng, ints=False)
    dx, dw, db = jax.jit(functools.partial(conv_backward, **keywords))(x, w, dy)
    np.testing.assert_array_equal(dx, jax.jit(lambda: conv_dgrad(dy, w, x.shape, **keywords))())
    np.testing.assert_array_equal(dw, jax.jit(lambda: conv_wgrad(x, dy, w.shape, **keywords))())
    np.testing.assert_allclose(db, dy.sum((0, 2, 3)), rtol=1e-5)


def test_derivatives(rng: np.random.Generator):
    with jax.enable_x64(True):
        x, w, dy, keywords, _ = draw(DENSE, "float64", rng, ints=False)
        check_grads(functools.partial(conv_backward, **keywords), (x, w, dy), order=2)
        # Linear in x and w together, and in dy alone: the transposes are the adjoints.
        for linear in (
            lambda x, w: conv_backward(x, w, dy, wanted=("x", "w"), **keywords)[:2],
            lambda dy: conv_backward(x, w, dy, **keywords),
        ):
            operands = (x, w) if linear.__code__.co_argcount == 2 else (dy,)
            results = linear(*operands)
            cts = jax.tree.map(lambda a: jnp.asarray(rng.standard_normal(a.shape)), results)
            back = jax.linear_transpose(linear, *operands)(cts)
            one, other = (
                sum(jnp.vdot(a, b) for a, b in zip(*pairs, strict=True))
                for pairs in ((results, cts), (operands, back))
            )
            np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("axes", [(0, None, None), (None, 1, None), (None, None, 2), (1, 0, 3)])
def test_vmap(axes: tuple[int | None, ...], rng: np.random.Generator):
    x, w, dy, keywords, _ = draw(DENSE, "float32", rng)
    f = functools.partial(conv_backward, **keywords)
    operands = [
        a if axis is None else jnp.stack([a, 2 * a, -a], axis)
        for a, axis in zip((x, w, dy), axes, strict=True)
    ]
    got = jax.jit(jax.vmap(f, axes))(*operands)
    for i, factor in enumerate((1, 2, -1)):
        each = [a if axis is None else factor * a for a, axis in zip((x, w, dy), axes, strict=True)]
        for result, one in zip(got, f(*each), strict=True):
            np.testing.assert_array_equal(result[i], one)


@pytest.mark.devices(8)
def test_a_mesh_divides_the_parts(rng: np.random.Generator):
    x_shape, w_shape, keywords = DEPTHWISE["3x3"]
    x, w, dy, keywords, expected = draw(((8, *x_shape[1:]), w_shape, keywords), "float32", rng)
    mesh = make_mesh(AxisType.Auto)
    f = jax.jit(functools.partial(conv_backward, **keywords))
    axis = mesh.axis_names[0]
    split = put(x, mesh, axis), put(w, mesh), put(dy, mesh, axis)
    assert_gradients(f(*split), expected, GRADIENTS, "float32")
    assert not gathered(f.lower(*split).compile().as_text())


@pytest.mark.parametrize("wanted", ["xw", ("x", "y"), 3])
def test_bad_wanted(wanted: Any):
    x, w, dy = jnp.ones((1, 1, 4)), jnp.ones((1, 1, 2)), jnp.ones((1, 1, 3))
    with pytest.raises(
        ValueError, match="conv_backward: wanted must be a tuple of any of 'x', 'w'"
    ):
        conv_backward(x, w, dy, wanted=wanted)
    with pytest.raises(ValueError, match=r"conv_backward: dy.*\(1, 1, 3\), got \(1, 1, 4\)"):
        conv_backward(x, w, x)


# Attributes and results that the handler refuses, and what it says.
BAD_CALLS = {
    "no-gradient": (dict(wanted=np.int64(0)), None, "wanted is 0"),
    "too-few-results": (dict(wanted=np.int64(7)), None, "too few"),
    "too-many-results": (dict(wanted=np.int64(1)), None, "too many"),
    "strides": (dict(strides=np.asarray([0, 1])), None, "strides is"),
    "groups": (dict(groups=np.int64(3)), None, "groups"),
    "dx": ({}, [(1, 4, 5, 4), (4, 1, 3, 3)], "dx has shape"),
    "dw": ({}, [(1, 4, 5, 5), (4, 1, 3, 2)], "dw has shape"),
    "dense": (dict(groups=np.int64(1)), None, "input channels / groups"),
}


@pytest.mark.on_cpu
@pytest.mark.usefixtures("needs_cpu_handlers")
@pytest.mark.parametrize("bad", BAD_CALLS)
def test_a_bad_call_is_an_error(bad: str):
    changes, shapes, text = BAD_CALLS[bad]
    registry.require("cpu")
    ones = np.ones(2, np.int64)
    attributes = dict(
        strides=ones,
        padding_low=0 * ones,
        padding_high=0 * ones,
        dilation=ones,
        groups=np.int64(4),
        x_spec=np.arange(4),
        w_spec=np.arange(4),
        y_spec=np.arange(4),
        wanted=np.int64(3),
    )
    shapes = shapes or [(1, 4, 5, 5), (4, 1, 3, 3)]
    layouts = [(0, 2, 3, 1), None]
    call = jax.ffi.ffi_call(
        registry.BACKWARD_TARGET,
        [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes],
        input_layouts=[*layouts, layouts[0]],
        output_layouts=layouts,
    )
    x, w, dy = (jnp.ones(s, jnp.float32) for s in ((1, 4, 5, 5), (4, 1, 3, 3), (1, 4, 3, 3)))
    with pytest.raises(Exception, match=f"conv_backward: .*{text}"):
        jax.block_until_ready(jax.jit(lambda *a: call(*a, **{**attributes, **changes}))(x, w, dy))


@pytest.mark.on_cpu
def test_the_rule_takes_the_call_only_for_both_gradients():
    x, w, dy, keywords, _ = draw(DEPTHWISE["1d-31"], "float32", np.random.default_rng(0))

    def calls(wanted: Any) -> int:
        f = jax.jit(functools.partial(conv_backward, wanted=wanted, **keywords))
        return f.lower(x, w, dy).as_text().count("@jax_convgrad_conv_backward")

    if registry.find("cpu").reason is None:
        assert [calls(wanted) for wanted in (("x", "w"), ("x", "b"))] == [1, 0]

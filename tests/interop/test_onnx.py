"""The ONNX adapter against ONNX's own cases, numpy by definition, PyTorch, and its own adjoints."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from support import foreign_oracles, onnx_node_tests, oracles
from support.comparisons import assert_exact, relative_error

from jax_convgrad import onnx

Shape = tuple[int, ...]

# ONNX's own tests. Names are spelled out so that collecting them needs no onnx package.

NODE_CASES = [
    "test_basic_conv_with_padding",
    "test_basic_conv_without_padding",
    "test_conv_with_autopad_same",
    "test_conv_with_strides_and_asymmetric_padding",
    "test_conv_with_strides_no_padding",
    "test_conv_with_strides_padding",
    "test_convtranspose",
    "test_convtranspose_1d",
    "test_convtranspose_3d",
    "test_convtranspose_autopad_same",
    "test_convtranspose_dilations",
    "test_convtranspose_group_2",
    "test_convtranspose_group_2_image_3",
    "test_convtranspose_kernel_shape",
    "test_convtranspose_output_shape",
    "test_convtranspose_pad",
    "test_convtranspose_pads",
]
MODEL_CASES = [
    "test_Conv1d",
    "test_Conv1d_dilated",
    "test_Conv1d_groups",
    "test_Conv1d_pad1",
    "test_Conv1d_pad1size1",
    "test_Conv1d_pad2",
    "test_Conv1d_pad2size1",
    "test_Conv1d_stride",
    "test_Conv2d",
    "test_Conv2d_depthwise",
    "test_Conv2d_depthwise_padded",
    "test_Conv2d_depthwise_strided",
    "test_Conv2d_depthwise_with_multiplier",
    "test_Conv2d_dilated",
    "test_Conv2d_groups",
    "test_Conv2d_groups_thnn",
    "test_Conv2d_no_bias",
    "test_Conv2d_padding",
    "test_Conv2d_strided",
    "test_Conv3d",
    "test_Conv3d_dilated",
    "test_Conv3d_dilated_strided",
    "test_Conv3d_groups",
    "test_Conv3d_no_bias",
    "test_Conv3d_stride",
    "test_Conv3d_stride_padding",
    "test_ConvTranspose2d",
    "test_ConvTranspose2d_no_bias",
    "test_operator_conv",
    "test_operator_convtranspose",
]


@functools.cache
def onnx_cases() -> dict[str, tuple[str, dict[str, Any], list[np.ndarray], np.ndarray]]:
    """Name -> (operator, attributes, inputs, output): all that the installed onnx carries."""
    package = pytest.importorskip("onnx")
    from onnx import numpy_helper

    def load(path: pathlib.Path) -> np.ndarray:
        return numpy_helper.to_array(package.load_tensor(str(path)))

    found = {
        name: (node.op_type, onnx_node_tests.attributes(node), inputs, output)
        for name, node, inputs, output in onnx_node_tests.of("Conv", "ConvTranspose")
    }
    folder = pathlib.Path(package.__file__).parent / "backend" / "test" / "data"
    for model_path in sorted(folder.glob("pytorch-*/*/model.onnx")):
        model = package.load(str(model_path))
        (node, *others) = model.graph.node
        if others or node.op_type not in ("Conv", "ConvTranspose"):
            continue
        data = model_path.parent / "test_data_set_0"
        tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        images = [v.name for v in model.graph.input if v.name not in tensors]
        tensors |= {name: load(data / f"input_{i}.pb") for i, name in enumerate(images)}
        inputs = [tensors[name] for name in node.input]
        found[model_path.parent.name] = (
            node.op_type,
            onnx_node_tests.attributes(node),
            inputs,
            load(data / "output_0.pb"),
        )
    return found


def test_every_case_of_the_installed_onnx_is_listed():
    assert set(onnx_cases()) - set(NODE_CASES) - set(MODEL_CASES) == set()


def adapter(operator: str) -> tuple[Any, Any]:
    return {
        "Conv": (onnx.conv, onnx.conv_grad),
        "ConvTranspose": (onnx.conv_transpose, onnx.conv_transpose_grad),
    }[operator]


@pytest.mark.parametrize("name", NODE_CASES + MODEL_CASES)
def test_onnx_own_case(name, rng):
    """The forward literals of ONNX; the gradients by adjointness and against jax.vjp and numpy."""
    cases = onnx_cases()
    if name not in cases:
        pytest.skip(f"the installed onnx has no {name}")
    operator, attributes, inputs, expected = cases[name]
    forward, gradient = adapter(operator)
    with jax.default_matmul_precision("highest"):  # no TF32 in ONNX's literals
        got = forward(*inputs, **attributes)
    assert got.dtype == jnp.float32 and got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)

    # In float64, on random data: the literals' shapes and attributes, not their all-ones weights.
    x, w = (rng.standard_normal(array.shape) for array in inputs[:2])
    b, dy = rng.standard_normal(expected.shape[1]), rng.standard_normal(expected.shape)
    check_adjoint(forward, gradient, dy, x, w, b, attributes)


def check_adjoint(
    forward: Any, gradient: Any, dy: Any, x: Any, w: Any, b: Any, attributes: dict[str, Any]
) -> None:
    @jax.jit
    def run(dy: Any, x: Any, w: Any, b: Any) -> Any:
        y, pullback = jax.vjp(lambda x, w, b: forward(x, w, b, **attributes), x, w, b)
        return y, gradient(dy, x, w, **attributes), pullback(dy)

    y, grads, pulled_back = run(dy, x, w, b)
    product = np.vdot(dy, y - np.reshape(b, (1, -1) + (1,) * (x.ndim - 2)))
    for name, primal, got, ours in zip(
        ("dX", "dW", "dB"), (x, w, b), grads, pulled_back, strict=True
    ):
        assert got.shape == primal.shape and got.dtype == jnp.float64, name
        assert relative_error(got, np.asarray(ours)) < 1e-12, name
    scale = np.linalg.norm(dy) * np.linalg.norm(y)
    assert abs(np.vdot(grads[0], x) - product) < 1e-12 * scale
    assert abs(np.vdot(grads[1], w) - product) < 1e-12 * scale
    assert relative_error(grads[2], foreign_oracles.bias_gradient(dy)) < 1e-12


# What the attributes mean, written out by hand: (X, W, attributes, pads (begin, end), Y's space).

CONV_ATTRIBUTES = {
    "defaults": ((2, 3, 6), (4, 3, 3), {}, ((0, 0),), (4,)),
    "asymmetric": ((2, 3, 6), (4, 3, 3), {"pads": [2, 1]}, ((2, 1),), (7,)),
    "pads-order": (
        (1, 2, 6, 5),
        (2, 2, 3, 2),
        {"pads": [0, 1, 2, 3], "strides": [2, 1]},
        ((0, 2), (1, 3)),
        (3, 8),
    ),
    "unread-row": ((1, 2, 7), (2, 2, 2), {"strides": [3]}, ((0, 0),), (2,)),
    "valid": ((1, 2, 7), (2, 2, 2), {"strides": [3], "auto_pad": "VALID"}, ((0, 0),), (2,)),
    "upper-odd": ((1, 2, 5), (2, 2, 4), {"auto_pad": "SAME_UPPER"}, ((1, 2),), (5,)),
    "lower-odd": ((1, 2, 5), (2, 2, 4), {"auto_pad": "SAME_LOWER"}, ((2, 1),), (5,)),
    "upper-stride-even-size": (
        (1, 2, 6),
        (2, 2, 3),
        {"auto_pad": "SAME_UPPER", "strides": [2]},
        ((0, 1),),
        (3,),
    ),
    "lower-stride-even-size": (
        (1, 2, 6),
        (2, 2, 3),
        {"auto_pad": "SAME_LOWER", "strides": [2]},
        ((1, 0),),
        (3,),
    ),
    "upper-stride-odd-size": (
        (1, 2, 7),
        (2, 2, 3),
        {"auto_pad": "SAME_UPPER", "strides": [2]},
        ((1, 1),),
        (4,),
    ),
    "same-kernel-below-stride": (
        (1, 2, 7),
        (2, 2, 1),
        {"auto_pad": "SAME_LOWER", "strides": [3]},
        ((0, 0),),
        (3,),
    ),
    "upper-dilated": (
        (1, 2, 8),
        (2, 2, 3),
        {"auto_pad": "SAME_UPPER", "strides": [3], "dilations": [2]},
        ((1, 2),),
        (3,),
    ),
    "groups-3d": (
        (2, 4, 5, 4, 3),
        (6, 2, 2, 3, 1),
        {"group": 2, "pads": [1, 0, 0, 0, 2, 0], "strides": [2, 1, 2], "dilations": [1, 2, 1]},
        ((1, 0), (0, 2), (0, 0)),
        (3, 2, 2),
    ),
    "depthwise": (
        (2, 3, 5, 5),
        (6, 1, 3, 3),
        {"group": 3, "auto_pad": "SAME_UPPER", "kernel_shape": [3, 3]},
        ((1, 1), (1, 1)),
        (5, 5),
    ),
}

# (X, W, attributes, begin pads, Y's space).
TRANSPOSED_ATTRIBUTES = {
    "defaults": ((2, 3, 4), (3, 2, 3), {}, (0,), (6,)),
    "asymmetric": ((2, 3, 4), (3, 2, 3), {"pads": [2, 1], "strides": [2]}, (2,), (6,)),
    "pads-order": (
        (1, 2, 4, 3),
        (2, 2, 3, 4),
        {"pads": [0, 1, 2, 3], "strides": [2, 3]},
        (0, 1),
        (7, 6),
    ),
    "output-padding": (
        (1, 2, 4),
        (2, 2, 3),
        {"pads": [1, 1], "strides": [2], "output_padding": [1]},
        (1,),
        (8,),
    ),
    "output-padding-beyond-pads": (
        (1, 2, 4),
        (2, 2, 3),
        {"strides": [3], "output_padding": [2]},
        (0,),
        (14,),
    ),
    "output-padding-is-stride": (
        (1, 2, 4),
        (2, 2, 3),
        {"pads": [1, 2], "strides": [2], "dilations": [3], "output_padding": [2]},
        (1,),
        (12,),
    ),
    "output-padding-above-stride": (
        (1, 2, 4, 3),
        (2, 2, 3, 2),
        {"strides": [2, 1], "dilations": [4, 4], "output_padding": [3, 2]},
        (0, 0),
        (18, 9),
    ),
    "valid": (
        (1, 2, 4),
        (2, 2, 3),
        {"auto_pad": "VALID", "strides": [2], "output_padding": [1]},
        (0,),
        (10,),
    ),
    "upper-odd": ((1, 2, 3), (2, 2, 3), {"auto_pad": "SAME_UPPER", "strides": [2]}, (0,), (6,)),
    "lower-odd": ((1, 2, 3), (2, 2, 3), {"auto_pad": "SAME_LOWER", "strides": [2]}, (1,), (6,)),
    "upper-even": ((1, 2, 3), (2, 2, 4), {"auto_pad": "SAME_UPPER", "strides": [2]}, (1,), (6,)),
    "upper-dilated": (
        (1, 2, 3),
        (2, 2, 3),
        {"auto_pad": "SAME_UPPER", "strides": [2], "dilations": [2]},
        (1,),
        (6,),
    ),
    "same-absorbs-output-padding": (
        (1, 2, 3),
        (2, 2, 3),
        {"auto_pad": "SAME_LOWER", "strides": [2], "output_padding": [1]},
        (1,),
        (6,),
    ),
    "same-kernel-below-stride": (
        (1, 2, 3),
        (2, 2, 1),
        {"auto_pad": "SAME_UPPER", "strides": [3]},
        (0,),
        (9,),
    ),
    "output-shape-notset": (
        (1, 2, 4),
        (2, 2, 4),
        {"strides": [2], "output_shape": [7]},
        (2,),
        (7,),
    ),
    "output-shape-upper": (
        (1, 2, 4),
        (2, 2, 4),
        {"strides": [2], "output_shape": [7], "auto_pad": "SAME_UPPER"},
        (1,),
        (7,),
    ),
    "output-shape-ignores-pads": (
        (1, 2, 4),
        (2, 2, 4),
        {"strides": [2], "output_shape": [8], "pads": [3, 0]},
        (1,),
        (8,),
    ),
    "output-shape-and-padding": (
        (1, 2, 4),
        (2, 2, 4),
        {"strides": [2], "output_shape": [8], "output_padding": [1]},
        (2,),
        (8,),
    ),
    "output-shape-beyond-full": (
        (1, 2, 4),
        (2, 2, 3),
        {"strides": [3], "output_shape": [14]},
        (0,),
        (14,),
    ),
    "output-shape-crops-the-kernel": ((1, 2, 4), (2, 2, 3), {"output_shape": [1]}, (3,), (1,)),
    "groups-3d": (
        (2, 4, 3, 2, 3),
        (4, 3, 2, 3, 1),
        {
            "group": 2,
            "pads": [1, 0, 0, 0, 2, 0],
            "strides": [2, 1, 3],
            "dilations": [1, 2, 1],
            "output_padding": [1, 1, 2],
        },
        (1, 0, 0),
        (6, 5, 9),
    ),
    "depthwise": (
        (2, 3, 4, 4),
        (3, 1, 4, 4),
        {"group": 3, "auto_pad": "SAME_UPPER", "strides": [2, 2]},
        (1, 1),
        (8, 8),
    ),
}


def value_and_gradients(
    operator: str, attributes: dict[str, Any], dtype: str, dy: Any, x: Any, w: Any, b: Any
) -> list[jax.Array]:
    """Y, dX, dW and dB from one compiled program."""
    forward, gradient = adapter(operator)

    @jax.jit
    def run(dy: Any, x: Any, w: Any, b: Any) -> Any:
        return forward(x, w, b, **attributes), *gradient(dy, x, w, **attributes)

    return run(*(jnp.asarray(array, dtype) for array in (dy, x, w, b)))


def small_ints(rng: np.random.Generator, *shapes: Shape) -> list[np.ndarray]:
    """Float64 integers, all sums of products of which are exact in float32."""
    return [rng.integers(-2, 3, shape).astype(np.float64) for shape in shapes]


def of(attributes: dict[str, Any], rank: int) -> dict[str, Any]:
    return {
        "strides": tuple(attributes.get("strides", (1,) * rank)),
        "dilation": tuple(attributes.get("dilations", (1,) * rank)),
        "groups": attributes.get("group", 1),
    }


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, "float32") for name in CONV_ATTRIBUTES]
    + [(name, "bfloat16") for name in ("asymmetric", "upper-dilated", "groups-3d")],
)
def test_conv_and_gradients_by_definition(name, dtype, rng):
    x_shape, w_shape, attributes, pads, out = CONV_ATTRIBUTES[name]
    shapes = x_shape, w_shape, w_shape[:1], (x_shape[0], w_shape[0], *out)
    x, w, b, dy = small_ints(rng, *shapes)
    if dtype == "bfloat16":  # its 8 bits hold sums of signs only
        x, w, b, dy = np.sign(x), np.sign(w), np.sign(b), np.sign(dy)
    keywords = {**of(attributes, len(out)), "padding": pads}
    bias = b.reshape(-1, *(1,) * len(out))
    y, dx, dw, db = value_and_gradients("Conv", attributes, dtype, dy, x, w, b)
    assert_exact(y, oracles.conv_fprop(x, w, **keywords) + bias, dtype, "Y")
    assert_exact(dx, oracles.conv_dgrad(dy, w, x_shape, **keywords), dtype, "dX")
    assert_exact(dw, oracles.conv_wgrad(x, dy, w_shape, **keywords), dtype, "dW")
    assert_exact(db, foreign_oracles.bias_gradient(dy), dtype, "dB")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, "float32") for name in TRANSPOSED_ATTRIBUTES]
    + [(name, "bfloat16") for name in ("output-padding-is-stride", "upper-odd", "groups-3d")],
)
def test_conv_transpose_and_gradients_by_definition(name, dtype, rng):
    x_shape, w_shape, attributes, begins, out = TRANSPOSED_ATTRIBUTES[name]
    keywords = of(attributes, len(out))
    channels = w_shape[1] * keywords["groups"]
    x, w, b, dy = small_ints(rng, x_shape, w_shape, (channels,), (x_shape[0], channels, *out))
    if dtype == "bfloat16":
        x, w, b, dy = np.sign(x), np.sign(w), np.sign(b), np.sign(dy)
    bias = b.reshape(-1, *(1,) * len(out))
    y, dx, dw, db = value_and_gradients("ConvTranspose", attributes, dtype, dy, x, w, b)
    expected = foreign_oracles.transposed(x, w, begins, out, **keywords) + bias
    assert_exact(y, expected, dtype, "Y")
    expected_dx, expected_dw = foreign_oracles.transposed_gradients(dy, x, w, begins, **keywords)
    assert_exact(dx, expected_dx, dtype, "dX")
    assert_exact(dw, expected_dw, dtype, "dW")
    assert_exact(db, foreign_oracles.bias_gradient(dy), dtype, "dB")


@pytest.mark.parametrize(
    "name",
    [
        "output-padding-is-stride",
        "output-shape-beyond-full",
        "output-shape-crops-the-kernel",
        "same-absorbs-output-padding",
        "groups-3d",
    ],
)
def test_gradients_are_adjoints(name, rng):
    """What ONNX's own cases do not reach."""
    x_shape, w_shape, attributes, _, out = TRANSPOSED_ATTRIBUTES[name]
    channels = w_shape[1] * attributes.get("group", 1)
    shapes = (x_shape[0], channels, *out), x_shape, w_shape, (channels,)
    dy, x, w, b = (rng.standard_normal(shape) for shape in shapes)
    check_adjoint(*adapter("ConvTranspose"), dy, x, w, b, attributes)


def random_transposed(rng: np.random.Generator) -> tuple[Shape, Shape, dict[str, Any], Shape]:
    """Valid attributes of ConvTranspose: (X, W, attributes, Y's space)."""
    while True:
        rank = int(rng.integers(1, 4))
        strides, dilations, kernel = rng.integers(1, 4, (3, rank))
        sizes, begins, ends = rng.integers([[1], [0], [0]], [[5], [3], [3]], (3, rank))
        extra = rng.integers(0, np.maximum(strides, dilations))
        out = (sizes - 1) * strides + (kernel - 1) * dilations + 1 + extra - begins - ends
        if out.min() < 1:
            continue
        group, per_group = (int(n) for n in rng.integers(1, 4, 2))
        attributes = {
            "strides": strides.tolist(),
            "dilations": dilations.tolist(),
            "group": group,
            "pads": [*begins.tolist(), *ends.tolist()],
            "output_padding": extra.tolist(),
        }
        x, w = (2, 2 * group, *sizes.tolist()), (2 * group, per_group, *kernel.tolist())
        return x, w, attributes, tuple(out.tolist())


def test_seeded_random_attributes(rng):
    """Forward and gradients against numpy; a failure names everything that reproduces it."""
    for _ in range(30):
        x_shape, w_shape, attributes, out = random_transposed(rng)
        keywords, begins = of(attributes, len(out)), tuple(attributes["pads"][: len(out)])
        channels = w_shape[1] * attributes["group"]
        x, w, b, dy = small_ints(rng, x_shape, w_shape, (channels,), (2, channels, *out))
        bias = b.reshape(-1, *(1,) * len(out))
        repro = f"X {x_shape}, W {w_shape}, {attributes}"
        got = value_and_gradients("ConvTranspose", attributes, "float32", dy, x, w, b)
        expected = (
            foreign_oracles.transposed(x, w, begins, out, **keywords) + bias,
            *foreign_oracles.transposed_gradients(dy, x, w, begins, **keywords),
            foreign_oracles.bias_gradient(dy),
        )
        for name, ours, theirs in zip(("Y", "dX", "dW", "dB"), got, expected, strict=True):
            assert_exact(ours, theirs, "float32", f"{name} of {repro}")


# PyTorch.


@pytest.mark.pytorch
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("group", [1, 2])
def test_conv_grad_equals_torch(rank, group, rng):
    import torch

    strides, pads, dilations = [2, 1, 3][:rank], [1, 2, 0][:rank], [1, 2, 1][:rank]
    x = rng.standard_normal((2, 4, *(7, 6, 5)[:rank]))
    w = rng.standard_normal((6, 4 // group, *(3, 2, 3)[:rank]))
    b = rng.standard_normal(6)
    leaves = [torch.tensor(array, requires_grad=True) for array in (x, w, b)]
    function = getattr(torch.nn.functional, f"conv{rank}d")
    y = function(*leaves, strides, pads, dilations, group)
    dy = rng.standard_normal(tuple(y.shape))
    y.backward(torch.tensor(dy))
    attributes = {
        "strides": strides,
        "pads": pads * 2,
        "dilations": dilations,
        "group": group,
    }
    got_y, *grads = value_and_gradients("Conv", attributes, "float64", dy, x, w, b)
    assert relative_error(got_y, y.detach().numpy()) < 1e-12
    for got, leaf in zip(grads, leaves, strict=True):
        assert relative_error(got, leaf.grad.numpy()) < 1e-12


@pytest.mark.pytorch
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("group", [1, 2])
def test_conv_transpose_grad_equals_torch(rank, group, rng):
    import torch

    strides, pads, dilations = [2, 1, 3][:rank], [1, 2, 0][:rank], [1, 3, 1][:rank]
    extra = [1, 2, 2][:rank]  # the second is above its stride
    x = rng.standard_normal((2, 4, *(5, 4, 3)[:rank]))
    w = rng.standard_normal((4, 3, *(3, 2, 3)[:rank]))
    b = rng.standard_normal(3 * group)
    leaves = [torch.tensor(array, requires_grad=True) for array in (x, w, b)]
    function = getattr(torch.nn.functional, f"conv_transpose{rank}d")
    y = function(*leaves, strides, pads, extra, group, dilations)
    dy = rng.standard_normal(tuple(y.shape))
    y.backward(torch.tensor(dy))
    attributes = {
        "strides": strides,
        "pads": pads * 2,
        "dilations": dilations,
        "group": group,
        "output_padding": extra,
    }
    got_y, *grads = value_and_gradients("ConvTranspose", attributes, "float64", dy, x, w, b)
    assert relative_error(got_y, y.detach().numpy()) < 1e-12
    for got, leaf in zip(grads, leaves, strict=True):
        assert relative_error(got, leaf.grad.numpy()) < 1e-12


# Transformations, masks, dtypes.


@pytest.mark.parametrize(
    "mask", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0), (True, False, True), "array"]
)
def test_what_is_masked_out_is_not_computed(mask):
    mask = np.array([True, False, True]) if mask == "array" else mask
    x, w, dy = jnp.ones((2, 3, 6)), jnp.ones((4, 3, 3)), jnp.ones((2, 4, 4))
    wt, dyt = jnp.ones((3, 2, 3)), jnp.ones((2, 2, 8))
    operators = ("conv_fprop", "conv_dgrad", "conv_wgrad")
    for gradient, arrays in (
        (onnx.conv_grad, (dy, x, w)),
        (onnx.conv_transpose_grad, (dyt, x, wt)),
    ):
        masked = functools.partial(gradient, output_mask=mask)
        assert [g is not None for g in masked(*arrays)] == [bool(m) for m in mask]
        program = str(jax.make_jaxpr(masked)(*arrays))
        assert sum(program.count(f"= {name}[") for name in operators) == sum(map(bool, mask[:2]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_bias_gradient_accumulates_in_float32(dtype):
    """In bfloat16 a running sum of ones stops at 256; some platforms widen by themselves."""
    dy = jnp.ones((2, 3, 1024), dtype)
    x, w = jnp.zeros((2, 1, 1024), dtype), jnp.zeros((3, 1, 1), dtype)

    def own(dy: jax.Array) -> Any:
        return onnx.conv_grad(dy, x, w, output_mask=(False, False, True))[2]

    def pulled_back(dy: jax.Array) -> Any:
        return jax.vjp(lambda b: onnx.conv(x, w, b), jnp.zeros(3, dtype))[1](dy)[0]

    for gradient in (own, pulled_back):
        assert_exact(gradient(dy), np.full(3, 2048.0), dtype)
        (total,) = (e for e in jax.make_jaxpr(gradient)(dy).eqns if "sum" in e.primitive.name)
        assert total.outvars[0].aval.dtype == jnp.float32


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_results_have_the_arrays_dtype(dtype):
    x, w, b = jnp.ones((1, 2, 4), dtype), jnp.ones((2, 2, 3), dtype), jnp.ones(2, dtype)
    for forward, gradient in (adapter("Conv"), adapter("ConvTranspose")):
        y = forward(x, w, b)
        assert [a.dtype for a in (y, *gradient(y, x, w))] == [jnp.dtype(dtype)] * 4


def test_second_order(rng):
    """The gradient operators are differentiated in both modes, the forward operators in reverse mode."""
    x, w, b = (rng.standard_normal(shape) for shape in ((2, 2, 4), (2, 3, 3), (3,)))
    attributes = {"strides": [2], "dilations": [3], "output_padding": [2], "pads": [1, 2]}
    check_grads(functools.partial(onnx.conv_transpose, **attributes), (x, w, b), 2, ("rev",))
    w = rng.standard_normal((3, 2, 2))
    plain = functools.partial(onnx.conv, auto_pad="SAME_LOWER", strides=[2])
    check_grads(plain, (x, w, b), 2, ("rev",))
    dy = rng.standard_normal((2, 3, 2))
    check_grads(
        functools.partial(onnx.conv_grad, auto_pad="SAME_LOWER", strides=[2]), (dy, x, w), order=2
    )


def test_jit_and_vmap(rng):
    x, w = rng.standard_normal((5, 2, 2, 4)), rng.standard_normal((5, 2, 3, 3))
    up = functools.partial(onnx.conv_transpose, strides=[2], auto_pad="SAME_UPPER")
    loop = np.stack([up(a, b) for a, b in zip(x, w, strict=True)])
    assert relative_error(jax.jit(jax.vmap(up))(x, w), loop) < 1e-13


def test_zero_sizes():
    """An empty batch has zero weight gradients, of the right shape."""
    x, w = jnp.ones((0, 2, 4)), jnp.ones((2, 3, 3))
    y = onnx.conv_transpose(x, w, jnp.ones(3), strides=[2])
    assert y.shape == (0, 3, 9)
    dx, dw, db = onnx.conv_transpose_grad(y, x, w, strides=[2])
    assert dx.shape == x.shape and not dw.any() and not db.any()


# Bad input: (call, error, what the text must contain).

X, W = np.ones((2, 4, 6, 6)), np.ones((4, 2, 3, 3))
XS = r"\(2, 4, 6, 6\)"
WS = r"\(4, 2, 3, 3\)"
DY = np.ones((2, 4, 4, 4))
G2 = {"group": 2}
ERRORS = {
    "rank": (onnx.conv, (X[0], W), {}, ValueError, rf"same rank.*X has.*\(4, 6, 6\).*W has.*{WS}"),
    "no-space": (onnx.conv, (X[..., 0, 0], W[..., 0, 0]), {}, ValueError, "at least one spatial"),
    "too-much-space": (
        onnx.conv,
        (X[..., None, None], W[..., None, None]),
        {},
        ValueError,
        r"3 spatial axes at most, but X has shape \(2, 4, 6, 6, 1, 1\)",
    ),
    "channels": (onnx.conv, (X, W), {}, ValueError, rf"X must have 2 channels.*{XS}.*{WS}"),
    "group-divides": (
        onnx.conv,
        (np.ones((2, 6, 6, 6)), W),
        {"group": 3},
        ValueError,
        r"4 channels along axis 0 of W are not divisible by group=3",
    ),
    "group-zero": (onnx.conv, (X, W), {"group": 0}, ValueError, "group must be at least 1"),
    "group-float": (onnx.conv, (X, W), {"group": 2.0}, TypeError, "group must be integers"),
    "mixed-dtypes": (onnx.conv, (X, W.astype(np.float32)), G2, TypeError, "X is .*W is"),
    "integers": (onnx.conv, (X.astype(int), W.astype(int)), G2, TypeError, "X is int64"),
    "bias-shape": (onnx.conv, (X, W, np.ones(3)), G2, ValueError, r"B must have shape \(4,\)"),
    "bias-dtype": (onnx.conv, (X, W, np.ones(4, int)), G2, TypeError, "B is int64"),
    "strides-length": (onnx.conv, (X, W), {**G2, "strides": [1]}, ValueError, f"strides.*{XS}"),
    "strides-zero": (onnx.conv, (X, W), {**G2, "strides": [1, 0]}, ValueError, "strides must be"),
    "dilations-float": (onnx.conv, (X, W), {**G2, "dilations": [1, 1.5]}, TypeError, "dilations"),
    "pads-length": (onnx.conv, (X, W), {**G2, "pads": [1, 1]}, ValueError, f"pads .*4 entr.*{XS}"),
    "pads-negative": (onnx.conv, (X, W), {**G2, "pads": [0, 0, -1, 0]}, ValueError, "at least 0"),
    "pads-number": (onnx.conv, (X, W), {**G2, "pads": 1}, TypeError, "pads must be a sequence"),
    "pads-and-auto": (
        onnx.conv,
        (X, W),
        {**G2, "pads": [0] * 4, "auto_pad": "VALID"},
        ValueError,
        "cannot be used together",
    ),
    "auto-name": (onnx.conv, (X, W), {**G2, "auto_pad": "SAME"}, ValueError, "SAME_UPPER.*'SAME'"),
    "auto-bytes": (onnx.conv, (X, W), {**G2, "auto_pad": b"VALID"}, TypeError, "must be a string"),
    "kernel-shape": (
        onnx.conv,
        (X, W),
        {**G2, "kernel_shape": [3, 2]},
        ValueError,
        rf"kernel_shape=\(3, 2\).*{WS}",
    ),
    "dy-shape": (
        onnx.conv_grad,
        (DY[..., :3], X, W),
        G2,
        ValueError,
        rf"dY.*\(2, 4, 4, 4\), got \(2, 4, 4, 3\).*{XS}.*{WS}",
    ),
    "dy-auto-pad": (
        onnx.conv_grad,
        (DY, X, W),
        {**G2, "auto_pad": "SAME_UPPER"},
        ValueError,
        r"\(2, 4, 6, 6\), got \(2, 4, 4, 4\)",
    ),
    "mask": (onnx.conv_grad, (DY, X, W), {**G2, "output_mask": (1, 1)}, ValueError, "output_mask"),
    "t-channels": (
        onnx.conv_transpose,
        (X[:, :3], W),
        {},
        ValueError,
        r"X must have 4 channels.*\(2, 3, 6, 6\)",
    ),
    "t-group-divides": (onnx.conv_transpose, (X, W), {"group": 3}, ValueError, "not divisible"),
    "t-output-padding-large": (
        onnx.conv_transpose,
        (X, W),
        {"strides": [2, 2], "output_padding": [0, 2]},
        ValueError,
        r"output_padding=\(0, 2\).*strides=\(2, 2\)",
    ),
    "t-output-padding-length": (
        onnx.conv_transpose,
        (X, W),
        {"output_padding": [0]},
        ValueError,
        "output_padding must have 2 entries",
    ),
    "t-output-padding-negative": (
        onnx.conv_transpose,
        (X, W),
        {"output_padding": [-1, 0]},
        ValueError,
        "output_padding must be at least 0",
    ),
    "t-output-shape-large": (
        onnx.conv_transpose,
        (X, W),
        {"strides": [2, 2], "output_shape": [15, 13]},
        ValueError,
        "axis 0 cannot have 15 outputs.*13 to 14",
    ),
    "t-output-shape-length": (
        onnx.conv_transpose,
        (X, W),
        {"output_shape": [2, 2, 8, 8]},
        ValueError,
        "output_shape",
    ),
    "t-output-shape-zero": (
        onnx.conv_transpose,
        (X, W),
        {"output_shape": [8, 0]},
        ValueError,
        "output_shape must be at least 1",
    ),
    "t-pads-large": (
        onnx.conv_transpose,
        (X, W),
        {"pads": [5, 0, 5, 0]},
        ValueError,
        "axis 0 cannot have -2 outputs",
    ),
    "t-bias": (
        onnx.conv_transpose,
        (X, W, np.ones(4)),
        {},
        ValueError,
        r"B must have shape \(2,\)",
    ),
    "t-dy-shape": (
        onnx.conv_transpose_grad,
        (DY, X, W),
        {"strides": [2, 2], "output_padding": [1, 1]},
        ValueError,
        r"dY.*\(2, 2, 14, 14\), got \(2, 4, 4, 4\)",
    ),
    "t-dy-dtype": (
        onnx.conv_transpose_grad,
        (DY.astype(np.float32), X, W),
        {},
        TypeError,
        "dY is float32",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_bad_input(name):
    function, arguments, attributes, error, text = ERRORS[name]
    with pytest.raises(error, match=text) as raised:
        function(*arguments, **attributes)
    assert str(raised.value).startswith(f"onnx.{function.__name__}: ")

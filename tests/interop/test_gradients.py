"""The adapters of ONNX and oneDNN: `jax.grad` computes their contract's own gradient operator."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from support.layer_cases import assert_same, compiled_text, convolutions_in, ints, operators_in

from jax_convgrad import onednn, onnx

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Adapter:
    """A forward operator and its gradients, of which ``gradient`` returns those that its mask asks for.

    Attributes:
      forward: from the operands to the result.
      gradient: from the result's gradient, the operands and a mask to all gradients, None where masked out.
      operators: of each operand, the primitive that computes its gradient; None is a plain sum.
      layer: the layer that the error about forward mode names.
    """

    forward: Callable[..., jax.Array]
    gradient: Callable[..., tuple[jax.Array | None, ...]]
    shapes: tuple[Shape, ...]
    operators: tuple[str | None, ...]
    layer: str

    def loss(self, *operands: Any) -> jax.Array:
        return jnp.sum(jnp.sin(self.forward(*operands)))


def by_output_mask(gradient: Callable[..., Any]) -> Callable[..., Any]:
    return lambda dy, x, w, b, mask: gradient(dy, x, w, output_mask=mask)


def by_operation(data: Callable[..., Any], weights: Callable[..., Any]) -> Callable[..., Any]:
    """oneDNN has an operation for each; the bias' gradient is a sum."""

    def gradient(dy: Any, x: Any, w: Any, b: Any, mask: Any) -> tuple[jax.Array | None, ...]:
        dx, dw, db = mask
        return (
            data(dy, w, x.shape) if dx else None,
            weights(x, dy, w.shape) if dw else None,
            jnp.sum(dy, (0, 2)) if db else None,
        )

    return gradient


UP: dict[str, Any] = {"strides": [3], "dilations": [2], "output_padding": [1], "group": 2}
DOWN: dict[str, Any] = {"strides": [2], "pads": [2, 1], "group": 2}
COMMON: dict[str, Any] = {
    "strides": [2],
    "pads_begin": [1],
    "pads_end": [2],
    "dilations": [2],
    "groups": 2,
    "data_format": "NCX",
}
PLAIN, TRANSPOSED = {**COMMON, "weights_format": "OIX"}, {**COMMON, "weights_format": "IOX"}
CROP: dict[str, Any] = {
    "sizes": [9],
    "axes": [2],
    "roi": [-0.5, 1.5],
    "coordinate_transformation_mode": "tf_crop_and_resize",
    "extrapolation_value": 5.0,
    "mode": "linear",
}
CONV = ((2, 4, 9), (6, 2, 3), (6,))
CONV_TRANSPOSE = ((2, 4, 5), (4, 3, 3), (6,))

ADAPTERS = {
    "onnx.conv": Adapter(
        functools.partial(onnx.conv, **DOWN),
        by_output_mask(functools.partial(onnx.conv_grad, **DOWN)),
        CONV,
        ("conv_dgrad", "conv_wgrad", None),
        "conv_general_dilated",
    ),
    "onnx.conv_transpose": Adapter(
        functools.partial(onnx.conv_transpose, **UP),
        by_output_mask(functools.partial(onnx.conv_transpose_grad, **UP)),
        CONV_TRANSPOSE,
        ("conv_fprop", "conv_wgrad", None),
        "conv_transpose",
    ),
    "onnx.resize": Adapter(
        functools.partial(onnx.resize, **CROP),
        lambda dy, x, mask: (onnx.resize_grad(dy, x, **CROP),),
        ((2, 3, 5),),
        ("resample",),
        "resize",
    ),
    "onednn.convolution": Adapter(
        functools.partial(onednn.convolution, **PLAIN),
        by_operation(
            functools.partial(onednn.convolution_backward_data, **PLAIN),
            functools.partial(onednn.convolution_backward_weights, **PLAIN),
        ),
        CONV,
        ("conv_dgrad", "conv_wgrad", None),
        "conv_general_dilated",
    ),
    "onednn.conv_transpose": Adapter(
        functools.partial(onednn.conv_transpose, **TRANSPOSED),
        by_operation(
            lambda dy, w, _: onednn.conv_transpose_backward_data(dy, w, **TRANSPOSED),
            functools.partial(onednn.conv_transpose_backward_weights, **TRANSPOSED),
        ),
        CONV_TRANSPOSE,
        ("conv_fprop", "conv_wgrad", None),
        "conv_transpose",
    ),
    "onednn.interpolate": Adapter(
        lambda src: onednn.interpolate(src, (10,), mode="linear", data_format="NCX"),
        lambda dy, src, mask: (
            onednn.interpolate_backward(src, dy, (10,), mode="linear", data_format="NCX"),
        ),
        ((2, 3, 5),),
        ("resample",),
        "resize",
    ),
}
per_adapter = pytest.mark.parametrize("name", list(ADAPTERS))


def operands_of(adapter: Adapter, rng: np.random.Generator) -> list[jax.Array]:
    return [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in adapter.shapes]


def assert_same_bits(got: Any, expected: Any) -> None:
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(a).view(np.uint32), np.asarray(b).view(np.uint32))


@per_adapter
def test_the_gradient_is_the_operator(name: str, rng: np.random.Generator):
    """The same bits, for all operands at once and for each of them alone, in one call of each operator."""
    adapter = ADAPTERS[name]
    operands = operands_of(adapter, rng)
    count = len(operands)
    y = adapter.forward(*operands)
    dy = jnp.asarray(rng.standard_normal(y.shape), y.dtype)
    wanted = [tuple(range(count)), *((i,) for i in range(count) if count > 1)]
    for argnums in wanted:
        mask = tuple(i in argnums for i in range(count))

        def gradient(
            dy: Any, *operands: Any, argnums: tuple[int, ...] = argnums
        ) -> tuple[jax.Array, ...]:
            return jax.grad(lambda *o: jnp.vdot(adapter.forward(*o), dy), argnums)(*operands)

        expected = [g for g in adapter.gradient(dy, *operands, mask) if g is not None]
        assert_same_bits(gradient(dy, *operands), expected)
        operators = Counter(o for i in argnums if (o := adapter.operators[i]) is not None)
        # The program has the forward operator too, whose result the loss reads and the compiler drops.
        traced = operators_in(gradient, dy, *operands) - operators_in(adapter.forward, *operands)
        both = Counter(("conv_dgrad", "conv_wgrad"))  # which are one operator, here in its parts
        assert traced == (Counter(["conv_backward"]) if operators == both else operators)
        if "resample" not in operators:
            assert convolutions_in(compiled_text(gradient, dy, *operands)) == operators.total()


@per_adapter
def test_only_what_is_read_is_saved(name: str, rng: np.random.Generator):
    """Of a convolution the other operand of each that is differentiated, of a resize and a bias nothing."""
    adapter = ADAPTERS[name]
    operands = operands_of(adapter, rng)
    reads = {0: [1], 1: [0], 2: []} if len(operands) == 3 else {0: []}
    for position, read in reads.items():

        def alone(operand: Any, position: int = position) -> jax.Array:
            return adapter.forward(*operands[:position], operand, *operands[position + 1 :])

        _, vjp = jax.vjp(alone, operands[position])
        saved = [leaf for leaf in jax.tree.leaves(vjp) if isinstance(leaf, jax.Array)]
        assert [any(a is b for a in saved) for b in operands] == [
            i in read for i in range(len(operands))
        ]
        assert len(saved) == len(read)


FORWARD_MODES: dict[str, Callable[..., Any]] = {
    "jvp": lambda f, x: jax.jvp(f, x, x),
    "jvp of jit": lambda f, x: jax.jvp(jax.jit(f), x, x),
    "jit of jvp": lambda f, x: jax.jit(lambda *x: jax.jvp(f, x, x))(*x),
    "jacfwd of vmap": lambda f, x: jax.jacfwd(jax.vmap(f))(*(a[None] for a in x)),
    "linearize": lambda f, x: jax.linearize(f, *x)[1](*x),
    "jvp of remat in scan": lambda f, x: jax.jvp(
        lambda *x: jax.lax.scan(lambda c, _: (jax.checkpoint(f)(*x), None), 0.0, length=2), x, x
    ),
}


@pytest.mark.parametrize("mode", list(FORWARD_MODES))
@per_adapter
def test_forward_mode_names_the_layer_that_has_it(name: str, mode: str, rng: np.random.Generator):
    adapter = ADAPTERS[name]
    text = rf"^{name}: .*for forward mode .* use jax_convgrad.{adapter.layer}, which has both"
    with pytest.raises(TypeError, match=text):
        FORWARD_MODES[mode](adapter.loss, operands_of(adapter, rng))


@pytest.mark.optimized
@per_adapter
def test_transformations(name: str, rng: np.random.Generator):
    """Of integers, which are summed without error in any order."""
    adapter = ADAPTERS[name]

    def loss(*operands: Any) -> jax.Array:
        return jnp.sum(adapter.forward(*operands) ** 2)

    operands = ints(rng, *adapter.shapes)
    every = tuple(range(len(operands)))
    gradient = jax.grad(loss, every)
    expected = gradient(*operands)
    assert_same(jax.jit(gradient)(*operands), expected)
    assert_same(jax.grad(jax.checkpoint(jax.jit(loss)), every)(*operands), expected)
    batches = ints(rng, *((3, *shape) for shape in adapter.shapes))
    loop = [gradient(*(batch[i] for batch in batches)) for i in range(3)]
    assert_same(
        jax.jit(jax.vmap(gradient))(*batches), tuple(map(jnp.stack, zip(*loop, strict=True)))
    )
    # Inside grad, with operands that all examples share: their gradients are sums.
    inner = jax.vmap(adapter.forward, (0, *(None,) * (len(operands) - 1)))
    shared = jax.grad(lambda *o: jnp.sum(inner(*o) ** 2), every)(batches[0], *operands[1:])
    loop = [gradient(image, *operands[1:]) for image in batches[0]]
    images, *sums = zip(*loop, strict=True)
    assert_same(shared, (jnp.stack(images), *map(sum, sums)))
    # The derivatives of a gradient, in both modes.
    hessian = jax.jacrev(jax.grad(loss))(*operands)
    assert_same(jax.jit(jax.jacfwd(jax.grad(loss)))(*operands), hessian)


@pytest.mark.optimized
@pytest.mark.devices(2)
@pytest.mark.parametrize("name", ["onnx.conv", "onnx.conv_transpose"])
def test_weights_split_by_output_channels_in_types(name: str, rng: np.random.Generator):
    """The gradients sum over the mesh, and come out split as their operands."""
    axis = 0 if name == "onnx.conv" else 1
    attributes = {**DOWN, "group": 1} if name == "onnx.conv" else {**UP, "group": 1}
    forward = functools.partial(getattr(onnx, name.partition(".")[2]), **attributes)
    x, w, b = ints(rng, (2, 4, 9), (6, 4, 3) if axis == 0 else (4, 6, 3), (6,))
    gradient = jax.grad(lambda *o: jnp.sum(forward(*o) ** 2), (0, 1, 2))
    expected = gradient(x, w, b)
    specs = P(None, None, None), P(*(None,) * axis, "d", *(None,) * (2 - axis)), P("d")
    with jax.set_mesh(jax.make_mesh((2,), ("d",), axis_types=(AxisType.Explicit,))):
        split = [jax.device_put(o, s) for o, s in zip((x, w, b), specs, strict=True)]
        got = jax.jit(gradient)(*split)
        assert [jax.typeof(g).sharding.spec for g in got] == list(specs)
    assert_same(got, expected)


@pytest.mark.optimized
@pytest.mark.devices(2)
def test_data_parallel_in_shard_map(rng: np.random.Generator):
    """Every device has examples of its own; the gradients of what they share are summed."""
    adapter = ADAPTERS["onnx.conv"]
    operands = ints(rng, *adapter.shapes)
    gradient = jax.grad(lambda *o: jnp.sum(adapter.forward(*o) ** 2), (0, 1, 2))
    specs = P("d"), P(), P()
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
    mapped = jax.shard_map(gradient, mesh=mesh, in_specs=specs, out_specs=specs)
    assert_same(jax.jit(mapped)(*operands), gradient(*operands))

"""PyTorch's convolutions under their own names, against PyTorch itself: values, gradients, refusals."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import math
import re
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from support import torch_oracles
from support.comparisons import assert_exact, exact_ints, relative_error, value_and_gradients
from support.rounding import rounding_floor
from support.torch_oracles import TIGHT

import jax_convgrad
from jax_convgrad import torch

Shape = tuple[int, ...]


@pytest.fixture(autouse=True)
def _full_float32() -> Iterator[None]:
    """PyTorch's results here are those of its CPU, which has no TF32."""
    with jax.default_matmul_precision("highest"):
        yield


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of ``function`` with an input, a weight and a bias or none."""

    id: str
    function: str
    x: Shape
    w: Shape
    bias: bool = False
    keywords: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def rank(self) -> int:
        return len(self.w) - 2

    @property
    def out_channels(self) -> int:
        transposed = "transpose" in self.function
        return self.w[1] * self.keywords.get("groups", 1) if transposed else self.w[0]

    def call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return functools.partial(function, **self.keywords)

    @functools.cached_property
    def shapes(self) -> list[Shape]:
        """Those of dy and of the arrays."""
        arrays = [self.x, self.w, *([(self.out_channels,)] if self.bias else [])]
        ours = self.call(getattr(torch, self.function))
        y = jax.eval_shape(ours, *(jax.ShapeDtypeStruct(shape, np.float32) for shape in arrays))
        return [y.shape, *arrays]


def conv(id: str, x: Shape, w: Shape, bias: bool = False, **keywords: Any) -> Case:
    return Case(f"conv-{id}", f"conv{len(w) - 2}d", x, w, bias, keywords)


def up(id: str, x: Shape, w: Shape, bias: bool = False, **keywords: Any) -> Case:
    return Case(f"up-{id}", f"conv_transpose{len(w) - 2}d", x, w, bias, keywords)


CASES = [
    conv("1d", (2, 3, 9), (4, 3, 3)),
    conv("1d-bias-unbatched", (3, 9), (4, 3, 3), True),
    conv("1d-same-even", (2, 3, 9), (4, 3, 4), padding="same"),
    conv("1d-same-even-dilated", (2, 3, 9), (4, 3, 4), padding="same", dilation=2),
    conv("1d-same-even-dilated-3", (3, 11), (4, 3, 2), True, padding="same", dilation=3),
    conv("1d-same-above-input", (2, 2, 3), (2, 2, 8), padding="same"),
    conv("1d-valid-strided", (2, 3, 10), (4, 3, 3), padding="valid", stride=2),
    conv("1d-one-output", (2, 3, 5), (4, 3, 5)),
    conv("1d-depthwise", (2, 6, 12), (6, 1, 5), True, stride=2, padding=2, groups=6),
    conv("1d-multiplier", (2, 3, 12), (6, 1, 5), padding=2, groups=3),
    conv("2d", (2, 3, 7, 6), (4, 3, 3, 3)),
    conv("2d-bias", (2, 3, 7, 6), (4, 3, 3, 2), True, stride=2, padding=1),
    conv("2d-tuples", (2, 3, 9, 8), (4, 3, 3, 2), stride=(2, 1), padding=(0, 3), dilation=(1, 2)),
    conv("2d-lists", (2, 3, 9, 8), (4, 3, 3, 2), stride=[1, 3], padding=[2, 0], dilation=[2, 1]),
    conv("2d-tuples-of-one", (1, 2, 9, 8), (4, 2, 3, 2), stride=(2,), padding=(1,), dilation=(2,)),
    conv("2d-unbatched", (3, 7, 6), (4, 3, 3, 3), True, padding=1),
    conv("2d-unbatched-same", (3, 7, 6), (4, 3, 2, 4), padding="same"),
    conv("2d-same", (2, 3, 7, 6), (4, 3, 4, 3), True, padding="same", dilation=(1, 2)),
    conv("2d-groups", (2, 6, 7, 6), (4, 3, 3, 3), True, padding=1, groups=2),
    conv("2d-groups-strided", (2, 6, 8, 9), (9, 2, 3, 3), padding=1, stride=2, groups=3),
    conv("2d-depthwise", (2, 4, 8, 9), (4, 1, 3, 3), True, padding=1, groups=4),
    conv("2d-pointwise", (2, 5, 4, 4), (7, 5, 1, 1), True),
    conv("2d-pointwise-strided", (2, 5, 5, 4), (7, 5, 1, 1), stride=3),
    conv("2d-dilated", (1, 3, 12, 12), (4, 3, 3, 3), padding=4, dilation=4),
    conv("2d-padding-above-kernel", (1, 2, 4, 3), (2, 2, 2, 2), padding=(3, 5), stride=2),
    conv("2d-rows-unread", (2, 2, 8, 9), (3, 2, 2, 2), stride=4),
    conv("3d", (2, 2, 4, 5, 6), (3, 2, 3, 3, 3), True, padding=1),
    conv("3d-tuples", (1, 2, 5, 6, 7), (3, 2, 2, 3, 1), stride=(1, 2, 3), padding=(1, 0, 0)),
    conv("3d-same", (1, 2, 3, 4, 5), (3, 2, 2, 3, 4), padding="same", dilation=(1, 2, 1)),
    conv("3d-groups-unbatched", (4, 4, 5, 6), (4, 2, 2, 2, 2), groups=2, dilation=2),
    up("1d", (2, 3, 5), (3, 4, 3)),
    up("1d-bias-unbatched", (3, 5), (3, 4, 3), True, stride=2),
    up("1d-output-padding", (2, 3, 5), (3, 4, 3), stride=3, padding=1, output_padding=2),
    up("1d-vocoder", (1, 6, 7), (6, 3, 16), True, stride=8, padding=4),
    up("1d-kernel-below-stride", (2, 3, 5), (3, 4, 2), True, stride=4, output_padding=3),
    up("1d-dilated-output-padding", (2, 3, 5), (3, 4, 3), dilation=3, output_padding=2),
    up("1d-dilation-above-stride", (3, 5), (3, 4, 3), stride=2, dilation=5, output_padding=4),
    up("2d", (2, 3, 4, 5), (3, 4, 3, 3)),
    up("2d-dcgan", (2, 4, 4, 4), (4, 3, 4, 4), stride=2, padding=1),
    up("2d-bias", (2, 3, 4, 5), (3, 4, 3, 3), True, stride=2, padding=1, output_padding=1),
    up("2d-tuples", (2, 3, 4, 5), (3, 4, 2, 3), stride=(1, 3), padding=(0, 1), dilation=(2, 1)),
    up("2d-tuples-of-one", (2, 3, 4, 5), (3, 4, 2, 3), stride=(2,), output_padding=(1,)),
    up("2d-output-padding-of-one-axis", (1, 3, 4, 5), (3, 2, 2, 3), stride=2, output_padding=[0, 1]),
    up("2d-unbatched", (3, 4, 5), (3, 4, 3, 3), True, stride=2, padding=1),
    up("2d-groups", (2, 6, 4, 3), (6, 2, 3, 3), True, stride=2, padding=1, groups=2),
    up("2d-groups-3", (2, 6, 4, 3), (6, 1, 4, 4), stride=2, padding=1, groups=3),
    up("2d-depthwise", (2, 4, 4, 3), (4, 1, 4, 4), True, stride=2, padding=1, groups=4),
    up("2d-stride-is-kernel", (2, 4, 3, 3), (4, 2, 2, 2), stride=2),
    up("2d-cropped", (1, 2, 5, 5), (2, 2, 3, 3), padding=(4, 3), stride=2),
    up("2d-pointwise", (2, 5, 4, 4), (5, 3, 1, 1), True, stride=2, output_padding=1),
    up("3d", (1, 2, 3, 3, 4), (2, 3, 2, 2, 2), True, stride=2),
    up("3d-tuples", (2, 2, 3, 3, 2), (2, 3, 3, 2, 4), stride=(1, 2, 2), padding=(1, 0, 1)),
    up("3d-output-padding", (1, 2, 3, 2, 2), (2, 2, 3, 3, 3), stride=(2, 1, 3), padding=1,
       output_padding=(1, 0, 2)),
    up("3d-groups-unbatched", (4, 3, 3, 2), (4, 2, 2, 3, 2), stride=2, groups=2, dilation=(1, 2, 1)),
]  # fmt: skip

by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)


def agree(case: Case, rng: np.random.Generator, dtype: str, *, random: bool = True) -> None:
    """Value and gradients are PyTorch's: every bit of them for small integers, to rounding otherwise.

    In float64 to a few units in the last place; in the others our error against float64 is no more than
    three times PyTorch's, or than one rounding's. The bias's gradient has so few elements that PyTorch's
    error in them is a matter of luck: there the error that sums of this length have is allowed too.
    """
    theirs = case.call(torch_oracles.functional(case.function))
    run = value_and_gradients(case.call(getattr(torch, case.function)))
    names = ("y", "dx", "dw", "dbias")[: len(case.shapes)]
    if dtype in ("float32", "float64"):
        reduction = max(map(math.prod, case.shapes))
        arrays = [exact_ints(rng, shape, dtype, reduction) for shape in case.shapes]
        expected = torch_oracles.value_and_gradients(theirs, "float64", *arrays)
        got = run(*(jnp.asarray(array, dtype) for array in arrays))
        for name, ours, truth in zip(names, got, expected, strict=True):
            assert_exact(ours, truth, dtype, f"{case}: {name}")
    if not random:
        return
    arrays = [
        np.asarray(jnp.asarray(rng.standard_normal(shape), dtype).astype(np.float64))
        for shape in case.shapes
    ]
    expected = torch_oracles.value_and_gradients(theirs, "float64", *arrays)
    their_own = torch_oracles.value_and_gradients(theirs, dtype, *arrays)
    got = run(*(jnp.asarray(array, dtype) for array in arrays))
    unit = float(jnp.finfo(dtype).eps) / 2
    for name, ours, other, truth in zip(names, got, their_own, expected, strict=True):
        assert ours.dtype == jnp.dtype(dtype)
        most = TIGHT if dtype == "float64" else 3 * max(relative_error(other, truth), unit)
        if name == "dbias" and dtype != "float64":
            most = max(most, rounding_floor(arrays[0].size // truth.size, dtype))
        assert relative_error(ours, truth) <= most, f"{case}: {name}"


@pytest.mark.pytorch
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@by_case
def test_value_and_gradients(case: Case, dtype: str, rng: np.random.Generator):
    agree(case, rng, dtype)


@pytest.mark.pytorch
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("case", [c for c in CASES if c.bias], ids=lambda case: case.id)
def test_value_and_gradients_in_16_bits(case: Case, dtype: str, rng: np.random.Generator):
    agree(case, rng, dtype)


# Random problems.


def draw(seed: int) -> Case:
    """The problem of a seed, small enough for many."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    most = {1: 14, 2: 8, 3: 5}[rank]
    groups = int(rng.choice([1, 1, 2, 3]))
    first, second = (int(n) for n in rng.integers(1, 4, 2))
    bias, batched = (bool(flag) for flag in rng.integers(0, 2, 2))
    draw_ints = lambda low, high: tuple(int(n) for n in rng.integers(low, high, rank))  # noqa: E731
    kernel, stride, dilation = draw_ints(1, 5), draw_ints(1, 4), draw_ints(1, 4)
    padding = draw_ints(0, 4)
    spatial = draw_ints(1, most + 1)
    batch = (int(rng.integers(1, 4)),) if batched else ()
    keywords: dict[str, Any] = {"stride": stride, "dilation": dilation, "groups": groups}
    keywords["padding"] = padding
    if rng.integers(2):
        x, w = (*batch, first * groups, *spatial), (first * groups, second, *kernel)
        keywords["output_padding"] = tuple(
            int(rng.integers(max(s, d))) for s, d in zip(stride, dilation, strict=True)
        )
        # Some result must be left.
        keywords["padding"] = tuple(
            min(p, ((n - 1) * s + (k - 1) * d + more) // 2)
            for p, n, s, k, d, more in zip(
                padding, spatial, stride, kernel, dilation, keywords["output_padding"], strict=True
            )
        )
        return up(f"seed-{seed}", x, w, bias, **keywords)
    if all(s == 1 for s in stride) or rng.integers(4) == 0:
        keywords |= {"stride": 1, "padding": "same"}
    else:
        spatial = tuple(
            max(n, (k - 1) * d + 1 - 2 * p)
            for n, k, d, p in zip(spatial, kernel, dilation, padding, strict=True)
        )
    x, w = (*batch, first * groups, *spatial), (second * groups, first, *kernel)
    return conv(f"seed-{seed}", x, w, bias, **keywords)


RANDOM, CHUNK = 160, 20


@pytest.mark.pytorch
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("first", range(0, RANDOM, CHUNK))
def test_random_problems_are_exact(first: int, rng: np.random.Generator):
    for seed in range(first, first + CHUNK):
        agree(draw(seed), rng, "float32", random=False)


# output_size.


@pytest.mark.pytorch
@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_every_output_size_that_the_module_takes(
    rank: int, batched: bool, dilation: int, rng: np.random.Generator
):
    """torch.nn.ConvTranspose's forward; its own output_padding is not read then."""
    import torch as pytorch

    module = getattr(pytorch.nn, f"ConvTranspose{rank}d")
    stride = (3, 2, 2)[:rank]
    layer = module(2, 3, 3, stride, 1, output_padding=1, dilation=dilation).double()
    w, b = (parameter.detach().numpy() for parameter in (layer.weight, layer.bias))
    x = rng.standard_normal((*([2] if batched else []), 2, *(4, 3, 2)[:rank]))
    smallest = [
        (n - 1) * s - 2 + 2 * dilation + 1 for n, s in zip(x.shape[-rank:], stride, strict=True)
    ]
    for extra in itertools.product(*map(range, stride)):
        size = [n + more for n, more in zip(smallest, extra, strict=True)]
        for output_size in (size, (*x.shape[:-rank], *size), (7,) * (x.ndim - rank) + (*size,)):
            expected = layer(pytorch.from_numpy(x), output_size).detach().numpy()
            got = getattr(torch, f"conv_transpose{rank}d")(
                x, w, b, stride, 1, 1, 1, dilation, output_size=output_size
            )
            assert relative_error(got, expected) <= TIGHT
    for axis, (n, s) in enumerate(zip(smallest, stride, strict=True)):
        for beyond in (n - 1, n + s):
            size = [*smallest[:axis], beyond, *smallest[axis + 1 :]]
            with pytest.raises(ValueError, match="valid sizes range") as theirs:
                layer(pytorch.from_numpy(x), size)
            with pytest.raises(ValueError, match=r"output_size=.* sizes range") as ours:
                getattr(torch, f"conv_transpose{rank}d")(
                    x, w, b, stride, 1, 0, 1, dilation, output_size=size
                )
            said = re.search(r"range from \[(.*?)\] to \[(.*?)\]", str(theirs.value)).groups()
            range_text = re.search(r"range from \((.*?),?\) to \((.*?),?\)", str(ours.value))
            assert said == range_text.groups()


def test_gradients_through_output_size(rng: np.random.Generator):
    x, w = rng.standard_normal((2, 4, 3)), rng.standard_normal((4, 2, 3))
    f = functools.partial(torch.conv_transpose1d, stride=3, groups=2, output_size=(11,))
    check_grads(f, (x, w), order=2)


# As PyTorch is called.


@pytest.mark.pytorch
def test_arguments_have_pytorchs_order(rng: np.random.Generator):
    x, w, b = rng.standard_normal((1, 4, 7, 6)), rng.standard_normal((6, 2, 3, 2)), np.arange(6.0)
    positional = ((2, 1), (1, 0), (1, 2), 2)
    theirs = torch_oracles.functional("conv2d")(
        *torch_oracles.tensors("float64", x, w, b), *positional
    )
    assert relative_error(torch.conv2d(x, w, b, *positional), theirs.numpy()) <= TIGHT
    w = rng.standard_normal((4, 3, 3, 2))
    positional = ((2, 3), (1, 0), (1, 2), 2, (3, 2))
    theirs = torch_oracles.functional("conv_transpose2d")(
        *torch_oracles.tensors("float64", x, w, b), *positional
    )
    assert relative_error(torch.conv_transpose2d(x, w, b, *positional), theirs.numpy()) <= TIGHT


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_arguments_have_pytorchs_names(rank: int):
    parameters = inspect.signature(getattr(torch, f"conv{rank}d")).parameters
    assert list(parameters) == [*"input weight bias stride padding dilation groups".split()]
    parameters = inspect.signature(getattr(torch, f"conv_transpose{rank}d")).parameters
    assert list(parameters) == [
        *"input weight bias stride padding output_padding groups dilation output_size".split()
    ]


def test_literals():
    """Input 1 2 3 (4), kernel 1 10 100: the digits show what was read."""
    w = jnp.asarray([[[1.0, 10.0, 100.0]]])
    x = jnp.asarray([[1.0, 2.0, 3.0, 4.0]])
    for keywords, expected in (
        ({}, [321, 432]),
        ({"padding": 1}, [210, 321, 432, 43]),
        ({"padding": "same"}, [210, 321, 432, 43]),
        ({"padding": 1, "stride": 2}, [210, 432]),
        ({"padding": 2, "dilation": 2}, [310, 420, 31, 42]),
    ):
        np.testing.assert_array_equal(torch.conv1d(x, w, **keywords), [expected], str(keywords))
    # Of an odd padding the larger half is at the end.
    np.testing.assert_array_equal(torch.conv1d(x, w[..., :2], padding="same"), [[21, 32, 43, 4]])
    x = x[:, :3]
    for keywords, expected in (
        ({}, [1, 12, 123, 230, 300]),
        ({"stride": 2}, [1, 10, 102, 20, 203, 30, 300]),
        ({"stride": 2, "padding": 1}, [10, 102, 20, 203, 30]),
        ({"stride": 2, "padding": 1, "output_padding": 1}, [10, 102, 20, 203, 30, 300]),
        ({"stride": 2, "padding": 1, "output_size": (6,)}, [10, 102, 20, 203, 30, 300]),
        ({"dilation": 2, "output_padding": 1}, [1, 2, 13, 20, 130, 200, 300, 0]),
    ):
        got = torch.conv_transpose1d(x, w, **keywords)
        np.testing.assert_array_equal(got, [expected], str(keywords))


def test_empty_batch():
    assert torch.conv2d(jnp.ones((0, 2, 5, 5)), jnp.ones((3, 2, 3, 3)), jnp.ones(3)).shape == (
        0,
        3,
        3,
        3,
    )
    up = torch.conv_transpose2d(jnp.ones((0, 2, 5, 5)), jnp.ones((2, 3, 3, 3)), jnp.ones(3))
    assert up.shape == (0, 3, 7, 7)


TRANSFORMED = [
    conv("2d", (2, 4, 6, 5), (4, 2, 3, 2), True, stride=(2, 1), padding=1, groups=2),
    conv("1d-same-unbatched", (2, 7), (3, 2, 4), True, padding="same"),
    up("2d", (2, 4, 3, 4), (4, 2, 3, 3), True, stride=2, padding=1, output_padding=1, groups=2),
    up("1d-unbatched", (2, 4), (2, 3, 3), True, stride=3, output_size=(12,)),
]


@pytest.mark.parametrize("case", TRANSFORMED, ids=lambda case: case.id)
def test_transformations(case: Case, rng: np.random.Generator):
    f = case.call(getattr(torch, case.function))
    _, *shapes = case.shapes
    arrays = [rng.standard_normal(shape) for shape in shapes]
    y = f(*arrays)
    np.testing.assert_allclose(jax.jit(f)(*arrays), y, rtol=1e-13, atol=1e-13)
    check_grads(f, arrays, order=2, modes=("fwd", "rev"))
    stacks = [rng.standard_normal((3, *shape)) for shape in shapes]
    for axes in itertools.product((0, None), repeat=3):
        if axes == (None,) * 3:
            continue
        operands = [s if a == 0 else s[0] for s, a in zip(stacks, axes, strict=True)]
        got = jax.jit(jax.vmap(f, axes))(*operands)
        for i, one in enumerate(got):
            alone = [o[i] if a == 0 else o for o, a in zip(operands, axes, strict=True)]
            np.testing.assert_allclose(one, f(*alone), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("function", "calls"),
    [
        # Which maps the gradients for input, weight and bias add to the forward pass.
        ("conv1d", (["conv_dgrad"], ["conv_wgrad"], [])),
        ("conv_transpose1d", (["conv_fprop"], ["conv_wgrad"], [])),
    ],
)
def test_what_is_not_differentiated_is_not_computed(function: str, calls: tuple[list[str], ...]):
    f = getattr(torch, function)
    arrays = jnp.ones((2, 4, 9)), jnp.ones((4, 4, 3)), jnp.ones(4)

    def maps(program: Callable[..., Any]) -> list[str]:
        return re.findall(
            r"\b(conv_(?:fprop|dgrad|wgrad))\[", str(jax.make_jaxpr(program)(*arrays))
        )

    for argument, more in enumerate(calls):
        gradient = jax.grad(lambda *a: (f(*a) * jnp.arange(4.0)[:, None]).sum(), argument)
        assert sorted(maps(gradient)) == sorted(maps(f) + more)


# Bad input.


@dataclasses.dataclass(frozen=True)
class Row:
    id: str
    function: str
    arrays: tuple[Any, ...]  # shapes of float32, or (shape, dtype)
    keywords: dict[str, Any]
    error: type[Exception]
    text: str  # a regular expression: names the argument, shows what was given
    pytorch_refuses: bool = True


def row(
    id: str,
    function: str,
    arrays: Any,
    text: str,
    error: type[Exception] = ValueError,
    pytorch_refuses: bool = True,
    **keywords: Any,
) -> Row:
    return Row(id, function, arrays, keywords, error, text, pytorch_refuses)


X, W = (2, 4, 7, 6), (6, 4, 3, 3)
UW = (4, 3, 3, 3)
XS, WS = r"input has shape \(2, 4, 7, 6\)", r"weight has shape \(6, 4, 3, 3\)"
C, T = "conv2d", "conv_transpose2d"

ROWS = [
    row("channels", C, ((2, 3, 7, 6), W), r"input must have 4 channels.*got 3.*weight has shape"),
    row("channels-unbatched", C, ((3, 7, 6), W), r"input\[None\] must have 4 channels"),
    row("input-rank", C, ((1, 2, 4, 7, 6), W), r"input must have 4 axes, or 3 without a batch"),
    row("input-rank-low", C, ((7, 6), W), r"input must have 4 axes"),
    row("weight-rank", C, (X, (6, 4, 3)), rf"weight must have 4 axes \({XS}"),
    row("groups-channels", C, (X, W), r"groups=3, input must have 12 channels", groups=3),
    row("groups-weight", C, (X, (5, 2, 3, 3)), r"weight are not divisible by groups=2", groups=2),
    row("groups-zero", C, (X, W), "groups must be at least 1, got 0", groups=0),
    row("groups-float", C, (X, W), r"groups must be integers, got 2\.0", TypeError, groups=2.0),
    row("stride-zero", C, (X, W), "stride must be at least 1", stride=0),
    row("stride-negative", C, (X, W), "stride must be at least 1", stride=(1, -1)),
    row("stride-length", C, (X, W), f"stride must have one entry.*{XS}", stride=(1, 1, 1)),
    row("stride-empty", C, (X, W), "stride must have one entry", stride=()),
    row("stride-float", C, (X, W), "stride must be integers", TypeError, stride=1.0),
    row("stride-bool", C, (X, W), "stride must be integers", TypeError, stride=True),
    row("stride-string", C, (X, W), "stride must be integers", TypeError, stride="2"),
    row("stride-none", C, (X, W), "stride must be integers", TypeError, stride=None),
    row("dilation-zero", C, (X, W), "dilation must be at least 1", dilation=0),
    row("dilation-length", C, (X, W), "dilation must have one entry", dilation=(1, 1, 1)),
    row("padding-negative", C, (X, W), "padding must be at least 0, got", padding=-1),
    row("padding-length", C, (X, W), f"padding must have 2 entries.*{XS}.*{WS}", padding=[1] * 3),
    row("padding-float", C, (X, W), "padding must be integers", TypeError, padding=1.5),
    row("padding-pairs", C, (X, W), "padding must be integers", TypeError,
        padding=((1, 1), (1, 1))),
    row("padding-name", C, (X, W), "padding must be integers, 'valid' or 'same', got 'SAME'",
        padding="SAME"),
    row("same-strided", C, (X, W), r"padding='same' needs stride 1, got stride=\(1, 2\)",
        padding="same", stride=(1, 2)),
    row("kernel-large", C, (X, (6, 4, 9, 3)), rf"axis 0 the kernel spans 9.* the 7 of input.*{XS}"),
    row("kernel-large-dilated", C, (X, W), r"kernel spans 9 .* the 7 of input.*dilation=\(4, 1\)",
        dilation=(4, 1)),
    row("input-empty", C, ((2, 4, 0, 6), W), "spatial axes of input and weight must not be empty",
        padding=2),
    row("kernel-empty", C, (X, (6, 4, 0, 3)), "spatial axes of input and weight must not be empty"),
    row("bias-length", C, (X, W, (5,)), r"bias must have shape \(6,\).*got \(5,\)"),
    row("bias-rank", C, (X, W, (1, 6)), r"bias must have shape \(6,\).*got \(1, 6\)"),
    row("bias-dtype", C, (X, W, ((6,), "float64")), "bias is float64", TypeError),
    row("weight-dtype", C, (X, (W, "float64")), "weight is float64", TypeError),
    # PyTorch convolves integers on the CPU.
    row("integers", C, ((X, "int32"), (W, "int32")), "input is int32", TypeError, False),
    row("up-channels", T, (X, (5, 3, 3, 3)), "input must have 5 channels.*got 4"),
    row("up-input-rank", T, ((7, 6), UW), "input must have 4 axes"),
    row("up-weight-rank", T, (X, (4, 3, 3)), "weight must have 4 axes"),
    row("up-groups", T, (X, UW), "not divisible by groups=3", groups=3),
    row("up-groups-zero", T, (X, UW), "groups must be at least 1", groups=0),
    row("up-same", T, (X, UW), "padding must be integers, got 'same'", TypeError, padding="same"),
    row("up-padding-negative", T, (X, UW), "padding must be at least 0", padding=-1),
    row("up-padding-large", T, (X, UW), r"padding=\(5, 5\) removes the whole .*\(-1, -2\)", padding=5),
    row("up-stride-zero", T, (X, UW), "stride must be at least 1", stride=0),
    row("up-dilation-zero", T, (X, UW), "dilation must be at least 1", dilation=0),
    row("up-output-padding", T, (X, UW), "output_padding=.* must be smaller than the stride",
        stride=2, output_padding=2),
    row("up-output-padding-stride-1", T, (X, UW), r"output_padding=\(1, 0\) must be smaller",
        output_padding=(1, 0)),
    row("up-output-padding-dilation", T, (X, UW), r"output_padding=.* or the dilation.*\(3, 3\)",
        stride=2, dilation=3, output_padding=3),
    row("up-output-padding-negative", T, (X, UW), "output_padding must be at least 0",
        stride=2, output_padding=-1),
    row("up-output-padding-length", T, (X, UW), "output_padding must have 2 entries",
        stride=2, output_padding=(1, 1, 1)),
    row("up-input-empty", T, ((2, 4, 0, 6), UW), "spatial axes of input .* must not be empty"),
    row("up-bias", T, (X, UW, (4,)), r"bias must have shape \(3,\)"),
    row("up-dtype", T, (X, (UW, "float64")), "weight is float64", TypeError),
]  # fmt: skip


def array(spec: Any) -> np.ndarray:
    shape, dtype = spec if spec and isinstance(spec[-1], str) else (spec, "float32")
    return np.ones(shape, dtype)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_bad_input(row: Row):
    arrays = [array(spec) for spec in row.arrays]
    function = functools.partial(getattr(torch, row.function), **row.keywords)
    with pytest.raises(row.error, match=row.text) as raised:
        jax.eval_shape(function, *arrays)
    assert str(raised.value).startswith(f"torch.{row.function}: ")


@pytest.mark.pytorch
def test_padding_may_cut_everything_off(rng: np.random.Generator):
    """PyTorch's transposed convolution has a result without elements then, its convolution none."""
    import torch as pytorch

    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in (X, UW))
    run = functools.partial(torch.conv_transpose2d, padding=4)
    theirs = pytorch.nn.functional.conv_transpose2d(*map(pytorch.from_numpy, (x, w)), padding=4)
    y, pullback = jax.vjp(run, x, w)
    assert y.shape == tuple(theirs.shape) == (2, 3, 1, 0)
    assert all(not gradient.any() for gradient in pullback(y))


@pytest.mark.pytorch
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_pytorch_refuses_it_too(row: Row):
    import torch as pytorch

    arrays = [pytorch.from_numpy(array(spec)) for spec in row.arrays]
    function = functools.partial(torch_oracles.functional(row.function), **row.keywords)
    if not row.pytorch_refuses:
        function(*arrays)
        return
    with pytest.raises((RuntimeError, TypeError, ValueError)):
        function(*arrays)


@pytest.mark.parametrize(
    ("output_size", "error", "text"),
    [
        (13, TypeError, "output_size must be a sequence of integers, got 13"),
        ("13", TypeError, "output_size must be a sequence"),
        ([13.0, 11.0], TypeError, "output_size must be integers"),
        ([13], ValueError, r"output_size must have 2 or 4 entries, got \(13,\)"),
        ([1, 13, 11], ValueError, "output_size must have 2 or 4 entries"),
        ([-13, 11], ValueError, "output_size must be at least 0"),
        ([15, 12], ValueError, r"output_size=\(15, 12\) is impossible.*\(13, 11\) to \(14, 12\)"),
    ],
    ids=str,
)
def test_bad_output_size(output_size: Any, error: type[Exception], text: str):
    x, w = np.ones(X, np.float32), np.ones(UW, np.float32)
    with pytest.raises(error, match=text):
        torch.conv_transpose2d(x, w, stride=2, padding=1, output_size=output_size)
    if torch_oracles.HAS_TORCH:
        import torch as pytorch

        layer = pytorch.nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1)
        with pytest.raises((TypeError, ValueError)):
            layer(pytorch.from_numpy(x), output_size)


# The name.


def test_the_package_neither_needs_nor_hides_pytorch(subprocess_python: list[str]):
    code = "import sys, jax_convgrad.torch as t; assert 'torch' not in sys.modules; t.conv1d"
    if torch_oracles.HAS_TORCH:
        code += "; import torch; assert torch is not t and torch.nn.functional.conv1d"
    subprocess.run([*subprocess_python, "-c", code], check=True, timeout=300)
    assert jax_convgrad.torch is torch

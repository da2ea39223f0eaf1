"""Seeded random problems over the whole parameter space, exact on small integers.

One seed is one problem: what is called (operators, layers, adapters), its geometry, layout, dtype
and data all follow from it. A failure names its seeds; this runs exactly that problem again:

    PYTHONPATH=tests python tests/conv/test_random.py --seed N

JAX_CONVGRAD_RANDOM_CASES sets how many run, JAX_CONVGRAD_RANDOM_FIRST the first seed.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import oracles, seeded, shrinking
from support.comparisons import EXACT_LIMIT, FLOATS, assert_exact, exact_ints
from support.conv_cases import Case
from support.conv_oracle import conv_oracle
from support.layouts import to_layout
from support.random_cases import draw_case

from jax_convgrad import (
    conv_dgrad,
    conv_fprop,
    conv_general_dilated,
    conv_transpose,
    conv_wgrad,
    onednn,
    onnx,
)

pytestmark = pytest.mark.optimized

CASES = int(os.environ.get("JAX_CONVGRAD_RANDOM_CASES", "300"))
FIRST = int(os.environ.get("JAX_CONVGRAD_RANDOM_FIRST", "0"))
CHUNK = 50


@dataclasses.dataclass
class Problem:
    """One call: ``run(*arrays)`` is jitted; it gives one array per entry of ``expected``."""

    text: str
    dtype: str
    run: Callable[..., Any] = dataclasses.field(repr=False)
    arrays: tuple[np.ndarray, ...] = dataclasses.field(repr=False)
    expected: dict[str, np.ndarray] = dataclasses.field(repr=False)

    def check(self) -> None:
        got = jax.jit(self.run)(*(jnp.asarray(array, self.dtype) for array in self.arrays))
        for (name, wanted), array in zip(self.expected.items(), got, strict=True):
            assert_exact(array, wanted, self.dtype, name)


def describe(subject: str, dtype: str, case: Case, **extra: Any) -> str:
    fields = {f.name: getattr(case, f.name) for f in dataclasses.fields(case) if f.name != "id"}
    return f"{subject} {dtype} " + ", ".join(f"{k}={v}" for k, v in {**fields, **extra}.items())


# The problems. Each takes the generator and the dtype.


def operator_problem(rng: np.random.Generator, dtype: str) -> Problem:
    case = draw_case(rng, dtype)
    data = case.data(rng, dtype)
    y, dx, dw = conv_oracle(case, *data)
    x_spec, w_spec, y_spec = case.numbers
    x, w, dy = (to_layout(a, s) for a, s in zip(data, case.numbers, strict=True))
    keywords = case.operator_keywords
    name = str(rng.choice(["fprop", "dgrad", "wgrad"]))
    run, arrays, expected = {
        "fprop": (lambda x, w: [conv_fprop(x, w, **keywords)], (x, w), to_layout(y, y_spec)),
        "dgrad": (
            lambda dy, w: [conv_dgrad(dy, w, case.logical("x"), **keywords)],
            (dy, w),
            to_layout(dx, x_spec),
        ),
        "wgrad": (
            lambda x, dy: [conv_wgrad(x, dy, case.logical("w"), **keywords)],
            (x, dy),
            to_layout(dw, w_spec),
        ),
    }[name]
    return Problem(describe(f"conv_{name}", dtype, case), dtype, run, arrays, {name: expected})


def layer_problem(
    rng: np.random.Generator,
    text: str,
    dtype: str,
    layer: Callable[..., Any],
    operands: tuple[np.ndarray, ...],
    dy: np.ndarray,
    expected: dict[str, np.ndarray],
) -> Problem:
    """Value and gradients of ``layer`` for some of its operands, the others not differentiated."""
    wrt = [i for i in range(3) if rng.random() < 0.75] or [int(rng.integers(3))]
    names = ["y", *(("dx", "dw", "dbias")[i] for i in wrt)]

    def run(dy: Any, *arrays: Any) -> Any:
        def partial(*differentiated: Any) -> Any:
            full = list(arrays)
            for i, array in zip(wrt, differentiated, strict=True):
                full[i] = array
            return layer(*full)

        y, pullback = jax.vjp(partial, *(arrays[i] for i in wrt))
        return y, *pullback(dy)

    wanted = {name: expected[name] for name in names}
    return Problem(f"{text}, wrt={wrt}", dtype, run, (dy, *operands), wanted)


def bias_data(rng: np.random.Generator, channels: int) -> np.ndarray:
    return rng.integers(-3, 4, (channels,)).astype(np.float64)


def add_bias(y: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return y + bias.reshape(-1, *[1] * (y.ndim - 2))


def sum_bias(dy: np.ndarray) -> np.ndarray:
    return dy.sum((0, *range(2, dy.ndim)))


def conv_layer_problem(rng: np.random.Generator, dtype: str) -> Problem:
    case = draw_case(rng, dtype, lhs_dilated=bool(rng.random() < 0.3), batch_groups=True)
    x, w, dy = case.data(rng, dtype)
    bias = bias_data(rng, case.w[0])
    y, dx, dw = conv_oracle(case, x, w, dy)
    x_spec, w_spec, y_spec = case.numbers
    expected = {
        "y": to_layout(add_bias(y, bias), y_spec),
        "dx": to_layout(dx, x_spec),
        "dw": to_layout(dw, w_spec),
        "dbias": sum_bias(dy),
    }
    return layer_problem(
        rng,
        describe("conv_general_dilated", dtype, case),
        dtype,
        lambda x, w, b: conv_general_dilated(x, w, **case.lax_keywords, bias=b),
        (to_layout(x, x_spec), to_layout(w, w_spec), bias),
        to_layout(dy, y_spec),
        expected,
    )


def transposed_layer_problem(rng: np.random.Generator, dtype: str) -> Problem:
    case = draw_case(rng, dtype, lhs_dilated=True)
    case = dataclasses.replace(case, strides=(1,) * len(case.strides))
    strides, dilation = case.lhs_dilation, case.dilation
    kernel = [(k - 1) * d + 1 for k, d in zip(case.w[2:], dilation, strict=True)]
    extra: dict[str, Any] = {}
    if rng.random() < 0.3:
        padding: Any = str(rng.choice(["SAME", "VALID"]))
        pairs = tuple(named_transposed(k, s, padding) for k, s in zip(kernel, strides, strict=True))
        case = dataclasses.replace(case, padding=pairs)
    else:
        padding = pairs = case.pairs
        style, more = (
            rng.random(),
            [int(rng.integers(max(s, d))) for s, d in zip(strides, dilation, strict=True)],
        )
        shrunk = tuple((low, high - m) for (low, high), m in zip(pairs, more, strict=True))
        if style < 0.3:
            padding, extra["output_padding"] = shrunk, tuple(more)
        elif style < 0.5 and 0 not in case.x[2:] and 0 not in case.y[2:]:
            padding, extra["output_shape"] = shrunk, case.y[2:]
        if rng.random() < 0.4:
            extra["use_consistent_padding"] = True
            padding = tuple(
                (k - 1 - low, k - 1 - high) for k, (low, high) in zip(kernel, padding, strict=True)
            )
    legal = all(n + sum(pair) >= 0 for n, pair in zip(case.dilated_x[2:], case.pairs, strict=True))
    if not legal or case.reduction > EXACT_LIMIT[dtype] - 4:
        return transposed_layer_problem(rng, dtype)
    x, w, dy = case.data(rng, dtype)
    bias = bias_data(rng, case.w[0])
    y, dx, dw = conv_oracle(case, x, w, dy)
    x_spec, w_spec, y_spec = case.numbers
    flip = bool(rng.random() < 0.4)

    def passed(w: np.ndarray) -> np.ndarray:
        if flip:
            w = np.flip(np.swapaxes(w, 0, 1), tuple(range(2, w.ndim)))
        return to_layout(w, w_spec)

    keywords = {
        "strides": strides,
        "padding": padding,
        "rhs_dilation": dilation,
        "dimension_numbers": case.numbers,
        "transpose_kernel": flip,
        "feature_group_count": case.groups,
        **extra,
    }
    expected = {
        "y": to_layout(add_bias(y, bias), y_spec),
        "dx": to_layout(dx, x_spec),
        "dw": passed(dw),
        "dbias": sum_bias(dy),
    }
    return layer_problem(
        rng,
        f"conv_transpose {dtype} x={case.x}, w={case.w}, {keywords}",
        dtype,
        lambda x, w, b: conv_transpose(x, w, **keywords, bias=b),
        (to_layout(x, x_spec), passed(w), bias),
        to_layout(dy, y_spec),
        expected,
    )


def named_transposed(kernel: int, stride: int, name: str) -> tuple[int, int]:
    """lax's rule: VALID gives max(size * stride, full) outputs, SAME size * stride."""
    if name == "VALID":
        return kernel - 1, max(kernel, stride) - 1
    total = kernel + stride - 2
    low = kernel - 1 if stride >= kernel else (total + 1) // 2
    return low, total - low


def adapter_case(rng: np.random.Generator, dtype: str) -> Case:
    """What ONNX and oneDNN know: no negative padding, no zero channels."""
    while True:
        case = draw_case(rng, dtype, negative=False)
        if 0 not in case.x[1:] + case.w and 0 not in case.y[1:]:
            return case


def onnx_conv_problem(rng: np.random.Generator, dtype: str) -> Problem:
    case = dataclasses.replace(adapter_case(rng, dtype), layout=None)
    x, w, dy = case.data(rng, dtype)
    bias = bias_data(rng, case.w[0])
    y, dx, dw = conv_oracle(case, x, w, dy)
    keywords: dict[str, Any] = {
        "strides": case.strides,
        "dilations": case.dilation,
        "group": case.groups,
    }
    if isinstance(case.padding, str):
        keywords["auto_pad"] = {"SAME": "SAME_UPPER"}.get(case.padding, case.padding)
    else:
        keywords["pads"] = [low for low, _ in case.pairs] + [high for _, high in case.pairs]

    def run(x: Any, w: Any, b: Any, dy: Any) -> Any:
        return onnx.conv(x, w, b, **keywords), *onnx.conv_grad(dy, x, w, **keywords)

    expected = {"Y": add_bias(y, bias), "dX": dx, "dW": dw, "dB": sum_bias(dy)}
    text = describe("onnx.conv", dtype, case)
    return Problem(text, dtype, run, (x, w, bias, dy), expected)


def underneath_data(rng: np.random.Generator, dtype: str, case: Case) -> Any:
    """(src, weights, d_dst), (dst, d_src, d_weights) of the transposed convolution over ``case``.

    ``case`` runs from dst to src: the forward result is its input gradient.
    """
    src = exact_ints(rng, case.y, dtype, case.reduction)
    weights = exact_ints(rng, case.w, dtype, case.reduction)
    d_dst = exact_ints(rng, case.x, dtype, case.reduction)
    dst = oracles.conv_dgrad(src, weights, case.x, **case.geometry)
    d_src = oracles.conv_fprop(d_dst, weights, **case.geometry)
    d_weights = oracles.conv_wgrad(d_dst, src, case.w, **case.geometry)
    return (src, weights, d_dst), (dst, d_src, d_weights)


def transposed_adapter_case(rng: np.random.Generator, dtype: str) -> tuple[Case, tuple[int, ...]]:
    """A convolution from dst to src, its padding in numbers, and the rows it leaves unread."""
    while True:
        case = adapter_case(rng, dtype)
        case = dataclasses.replace(case, padding=case.pairs)
        if math.prod(case.x[:1] + case.x[2:]) > EXACT_LIMIT[dtype] - 4:
            continue  # the bias gradient sums all of d_dst
        unread = tuple(
            n - ((m - 1) * s + (k - 1) * d + 1 - low - high)
            for n, m, s, k, d, (low, high) in zip(
                case.x[2:],
                case.y[2:],
                case.strides,
                case.w[2:],
                case.dilation,
                case.pairs,
                strict=True,
            )
        )
        return case, unread


def onnx_transposed_problem(rng: np.random.Generator, dtype: str) -> Problem:
    case, unread = transposed_adapter_case(rng, dtype)
    keywords: dict[str, Any] = {
        "strides": case.strides,
        "dilations": case.dilation,
        "group": case.groups,
    }
    if rng.random() < 0.3:
        # The total splits with the odd element at the beginning, at the end for SAME_UPPER.
        upper = bool(rng.random() < 0.5)
        totals = [low + high - more for (low, high), more in zip(case.pairs, unread, strict=True)]
        if min(totals) >= 0:
            halves = [(t // 2, t - t // 2) if upper else (t - t // 2, t // 2) for t in totals]
            case = dataclasses.replace(case, padding=tuple(halves))
            keywords["output_shape"] = case.x[2:]
            keywords["auto_pad"] = "SAME_UPPER" if upper else "NOTSET"
    if "output_shape" not in keywords:
        keywords["pads"] = [low for low, _ in case.pairs] + [high for _, high in case.pairs]
        keywords["output_padding"] = unread
    case = dataclasses.replace(case, layout=None)
    (src, weights, d_dst), (dst, d_src, d_weights) = underneath_data(rng, dtype, case)
    bias = bias_data(rng, case.x[1])

    def run(x: Any, w: Any, b: Any, dy: Any) -> Any:
        return onnx.conv_transpose(x, w, b, **keywords), *onnx.conv_transpose_grad(
            dy, x, w, **keywords
        )

    expected = {"Y": add_bias(dst, bias), "dX": d_src, "dW": d_weights, "dB": sum_bias(d_dst)}
    text = describe("onnx.conv_transpose over", dtype, case, keywords=keywords)
    return Problem(text, dtype, run, (src, weights, bias, d_dst), expected)


def onednn_formats(
    rng: np.random.Generator, rank: int, transposed: bool
) -> tuple[dict[str, str], Any, Any]:
    """The two format arguments and what they are as dimension specifications of our weights."""
    data, weights = str(rng.choice(["NXC", "NCX"])), str(rng.choice(["XIO", "OIX", "XOI", "IOX"]))
    space = "123"[:rank]
    # A transposed convolution's O is the input channel of the convolution underneath.
    roles = weights.translate(str.maketrans("IO", "OI")) if transposed else weights
    find = lambda text, letters: tuple(text.replace("X", space).index(c) for c in letters + space)  # noqa: E731
    return {"data_format": data, "weights_format": weights}, find(data, "NC"), find(roles, "OI")


def onednn_keywords(case: Case) -> dict[str, Any]:
    """Attributes that the whole oneDNN family has."""
    named = isinstance(case.padding, str)
    pairs = ((0, 0),) * len(case.strides) if named else case.pairs
    names = {"SAME": "same_upper", "SAME_LOWER": "same_lower", "VALID": "valid"}
    return {
        "strides": case.strides,
        "pads_begin": tuple(low for low, _ in pairs),
        "pads_end": tuple(high for _, high in pairs),
        "dilations": case.dilation,
        "groups": case.groups,
        "auto_pad": names[case.padding] if named else "none",
    }


def onednn_conv_problem(rng: np.random.Generator, dtype: str) -> Problem:
    case = dataclasses.replace(adapter_case(rng, dtype), layout=None)
    x, w, dy = case.data(rng, dtype)
    bias = bias_data(rng, case.w[0])
    y, dx, dw = conv_oracle(case, x, w, dy)
    formats, data_spec, w_spec = onednn_formats(rng, len(case.strides), transposed=False)
    keywords = {**onednn_keywords(case), **formats}
    x, w, dy, dx, dw = (
        to_layout(a, s)
        for a, s in zip(
            (x, w, dy, dx, dw), (data_spec, w_spec, data_spec, data_spec, w_spec), strict=True
        )
    )

    def run(x: Any, w: Any, b: Any, dy: Any) -> Any:
        return (
            onednn.convolution(x, w, b, **keywords),
            onednn.convolution_backward_data(dy, w, x.shape, **keywords),
            onednn.convolution_backward_weights(x, dy, w.shape, **keywords),
        )

    expected = {"dst": to_layout(add_bias(y, bias), data_spec), "diff_src": dx, "diff_weights": dw}
    text = describe("onednn.convolution", dtype, case, **formats)
    return Problem(text, dtype, run, (x, w, bias, dy), expected)


def onednn_transposed_problem(rng: np.random.Generator, dtype: str) -> Problem:
    case, unread = transposed_adapter_case(rng, dtype)
    case = dataclasses.replace(case, layout=None)
    (src, weights, d_dst), (dst, d_src, d_weights) = underneath_data(rng, dtype, case)
    bias = bias_data(rng, case.x[1])
    formats, data_spec, w_spec = onednn_formats(rng, len(case.strides), transposed=True)
    backward = {**onednn_keywords(case), **formats}
    forward = {**backward, "output_padding": unread}

    def run(src: Any, weights: Any, b: Any, diff_dst: Any) -> Any:
        return (
            onednn.conv_transpose(src, weights, b, **forward),
            onednn.conv_transpose_backward_data(diff_dst, weights, **backward),
            onednn.conv_transpose_backward_weights(src, diff_dst, weights.shape, **backward),
        )

    arrays = (
        to_layout(src, data_spec),
        to_layout(weights, w_spec),
        bias,
        to_layout(d_dst, data_spec),
    )
    expected = {
        "dst": to_layout(add_bias(dst, bias), data_spec),
        "diff_src": to_layout(d_src, data_spec),
        "diff_weights": to_layout(d_weights, w_spec),
    }
    text = describe("onednn.conv_transpose over", dtype, case, unread=unread, **formats)
    return Problem(text, dtype, run, arrays, expected)


PROBLEMS = [
    (operator_problem, 0.42),
    (conv_layer_problem, 0.18),
    (transposed_layer_problem, 0.18),
    (onnx_conv_problem, 0.05),
    (onnx_transposed_problem, 0.06),
    (onednn_conv_problem, 0.05),
    (onednn_transposed_problem, 0.06),
]


def make_problem(seed: int) -> Problem:
    return draw_problem(np.random.default_rng(seed))


def draw_problem(rng: np.random.Generator) -> Problem:
    makers, weights = zip(*PROBLEMS, strict=True)
    dtype = str(rng.choice(FLOATS, p=[0.45, 0.35, 0.08, 0.12]))
    return makers[int(rng.choice(len(makers), p=weights))](rng, dtype)


def run_seed(seed: int) -> str | None:
    """None if the problem of ``seed`` passes, else what is wrong and how to see it again."""
    problem = make_problem(seed)
    try:
        problem.check()
    except Exception as error:
        what = f"{problem.text}: {type(error).__name__}: {error}"
        return f"PYTHONPATH=tests python tests/conv/test_random.py --seed {seed}   # {what}"
    return None


@pytest.mark.parametrize("seeds", seeded.chunks(FIRST, CASES, CHUNK), ids=str)
def test_random(seeds: range):
    seeded.check(run_seed, seeds)


def test_shrinks_convolutions():
    shrinking.check(draw_problem, Problem.check)
    jax.clear_caches()


def test_shrinking_ends_at_a_small_problem():
    """A comparison that fails where a stride is more than 1 does so for a larger problem at first."""
    failed = []

    def verify(case: Case) -> None:
        if max(case.strides) > 1:
            failed.append(case)
            raise AssertionError("a stride")

    with pytest.raises(AssertionError, match="a stride"):
        shrinking.check(lambda rng: draw_case(rng, "float32"), verify, examples=100)
    smallest = failed[-1]
    # Hypothesis also tries constants of the modules that are loaded, so where it ends depends on the process.
    assert sorted(smallest.strides) in ([2], [1, 2])
    assert set(smallest.w[2:]) == set(smallest.dilation) == {1}
    assert math.prod(smallest.x) <= 2 and math.prod(smallest.w) <= 2
    assert math.prod(failed[0].x) > math.prod(smallest.x)


def test_the_generator_covers_the_space():
    """The first 400 seeds already contain everything that is to be drawn."""
    texts = [make_problem(seed).text for seed in range(400)]
    for wanted in [
        *("conv_fprop", "conv_dgrad", "conv_wgrad", "conv_general_dilated", "conv_transpose"),
        *("onnx.conv ", "onnx.conv_transpose", "onednn.convolution", "onednn.conv_transpose"),
        *FLOATS,
        *(
            "padding=SAME",
            "padding=SAME_LOWER",
            "output_padding",
            "output_shape",
            "'transpose_kernel': True",
        ),
        *(
            "use_consistent_padding",
            "x=(0,",
            "groups=3",
            "groups=5",
            "batch_groups=2",
            "NXC",
            "NCX",
            "IOX",
            "XIO",
        ),
    ]:
        assert any(wanted in text for text in texts), f"no problem with {wanted}"
    for strides in ("strides", "lhs_dilation"):  # of the convolution underneath, if transposed
        assert sum(shares_a_factor(text, strides) for text in texts) >= 10


def shares_a_factor(text: str, name: str) -> bool:
    """Whether ``name`` and the kernel's dilation have a common factor on some axis."""
    lists = [re.search(rf"\b{key}=\(([\d, ]*)\)", text) for key in (name, "dilation")]
    if None in lists:
        return False
    values = [[int(v) for v in re.findall(r"\d+", found[1])] for found in lists]
    return any(math.gcd(*pair) > 1 for pair in zip(*values, strict=False))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, required=True)
    seed = parser.parse_args().seed
    jax.config.update("jax_enable_x64", True)
    print(make_problem(seed).text)
    failure = run_seed(seed)
    print("passes" if failure is None else failure)
    raise SystemExit(failure is not None)


if __name__ == "__main__":
    main()

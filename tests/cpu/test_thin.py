"""The CPU's kernels for thin convolutions in float32: against float64, and the same bits whatever runs.

Which problems they serve is the handler's choice; those here are such, and next to such. How the kernels
walk through memory is tested in C++ (tests/cpp/thin_fuzz.cc), for each instruction set.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support import native, oracles

from jax_convgrad import conv_general_dilated, conv_transpose
from jax_convgrad._src.dispatch.override import override_backend

PROBLEMS = 250

needs_cpu_handlers = pytest.mark.usefixtures("needs_cpu_handlers", "by_the_handlers")


@pytest.fixture
def by_the_handlers() -> Iterator[None]:
    """Also where XLA is as fast."""
    with override_backend("onednn"):
        yield


@dataclasses.dataclass(frozen=True)
class Layer:
    """Channels-last: x (batch, *sizes, channels), w (*kernel, channels, features)."""

    batch: int
    sizes: tuple[int, ...]
    channels: int
    features: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    padding: tuple[int, int] | None = None  # None keeps the size

    @property
    def id(self) -> str:
        sizes = "x".join(map(str, (self.batch, *self.sizes)))
        channels = f"{self.channels}-to-{self.features}"
        return f"{sizes}-{channels}-k{self.kernel}s{self.stride}d{self.dilation}-{self.padding}"

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def params(self) -> dict[str, Any]:
        reach = (self.kernel - 1) * self.dilation
        pair = (reach // 2, reach - reach // 2) if self.padding is None else self.padding
        each = (self.rank,)
        return {
            "strides": (self.stride,) * each[0],
            "padding": (pair,) * each[0],
            "dilation": (self.dilation,) * each[0],
        }

    def arrays(self, rng: np.random.Generator) -> tuple[Any, Any]:
        x = rng.standard_normal((self.batch, *self.sizes, self.channels), np.float32)
        shape = (self.kernel,) * self.rank + (self.channels, self.features)
        return x, rng.standard_normal(shape, np.float32)

    def __call__(self, x: Any, w: Any) -> Any:
        letters = "HWD"[: self.rank]
        params = self.params
        return conv_general_dilated(
            x,
            w,
            params["strides"],
            params["padding"],
            rhs_dilation=params["dilation"],
            dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
        )


LAYERS = [
    Layer(2, (300,), 4, 4, 3),
    Layer(2, (301,), 4, 4, 3, dilation=5),
    Layer(1, (257,), 8, 8, 3, dilation=3),
    Layer(2, (200,), 16, 16, 3, padding=(2, 0)),
    Layer(2, (64,), 32, 32, 3),
    Layer(2, (16,), 80, 64, 7),
    Layer(3, (99,), 12, 20, 5, padding=(7, 1)),
    Layer(2, (515,), 4, 1, 7),
    Layer(2, (130,), 1, 8, 5),
    Layer(2, (80,), 8, 3, 4, stride=2, padding=(1, 1)),
    Layer(2, (256,), 4, 8, 4, stride=2, padding=(1, 1)),
    Layer(2, (250,), 16, 32, 16, stride=8, padding=(4, 5)),
    Layer(1, (100,), 8, 4, 3, stride=4, dilation=6, padding=(3, 9)),
    Layer(2, (40,), 8, 8, 2, stride=5),
    Layer(2, (13, 17), 8, 4, 3),
    Layer(1, (20, 20), 4, 24, 4, stride=2, padding=(1, 1)),
    Layer(2, (12, 9), 16, 3, 5),
    Layer(1, (7, 6, 9), 8, 16, 3),
    Layer(1, (6, 8, 6), 4, 4, 2, stride=2, padding=(0, 1)),
]
layers = pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.id)


def first_order(layer: Callable[..., Any]) -> Callable[..., Any]:
    """y, dx and dw of dy."""

    def run(x: Any, w: Any, dy: Any) -> Any:
        y, pull = jax.vjp(layer, x, w)
        return y, *pull(dy)

    return run


def cotangent(layer: Callable[..., Any], rng: np.random.Generator, *arrays: Any) -> np.ndarray:
    return rng.standard_normal(jax.eval_shape(layer, *arrays).shape, np.float32)


def in_float64(layer: Layer, x: Any, w: Any, dy: Any) -> list[np.ndarray]:
    """By definition, in the layer's layout."""
    last = lambda a: np.moveaxis(a, 1, -1)  # noqa: E731
    x, dy = (np.moveaxis(np.float64(a), -1, 1) for a in (x, dy))
    w = np.moveaxis(np.float64(w), (-1, -2), (0, 1))
    params = layer.params | {"groups": 1}
    return [
        last(oracles.conv_fprop(x, w, **params)),
        last(oracles.conv_dgrad(dy, w, x.shape, **params)),
        np.moveaxis(oracles.conv_wgrad(x, dy, w.shape, **params), (0, 1), (-1, -2)),
    ]


def assert_rounded(got: Any, want: np.ndarray, bound: np.ndarray, terms: int) -> None:
    """A float32 sum of so many products, ``bound`` that of their magnitudes, in any order."""
    most = 1.01 * terms * np.finfo(np.float32).eps / 2 * bound
    assert got.shape == want.shape and got.dtype == np.float32
    assert np.all(np.abs(np.float64(got) - want) <= most)


@needs_cpu_handlers
@layers
def test_gradients_are_those_of_float64(layer: Layer, rng: np.random.Generator) -> None:
    x, w = layer.arrays(rng)
    dy = cotangent(layer, rng, x, w)
    got = jax.jit(first_order(layer))(x, w, dy)
    want = in_float64(layer, x, w, dy)
    bounds = in_float64(layer, *map(np.abs, (x, w, dy)))
    taps = layer.kernel**layer.rank
    terms = taps * layer.channels, taps * layer.features, dy.size // layer.features
    for array, truth, bound, count in zip(got, want, bounds, terms, strict=True):
        assert_rounded(np.asarray(array), truth, bound, count)


@needs_cpu_handlers
@layers
def test_vmap_is_a_loop(layer: Layer, rng: np.random.Generator) -> None:
    """Also over weights, which makes a convolution of several groups: no case for these kernels."""
    several = [layer.arrays(rng) for _ in range(3)]
    xs, ws = (np.stack(arrays) for arrays in zip(*several, strict=True))
    dys = np.stack([cotangent(layer, rng, *arrays) for arrays in several])
    run = first_order(layer)
    singles = [jax.jit(run)(*arrays) for arrays in zip(xs, ws, dys, strict=True)]
    for got, *want in zip(jax.jit(jax.vmap(run))(xs, ws, dys), *singles, strict=True):
        np.testing.assert_allclose(got, np.stack(want), rtol=1e-4, atol=2e-4)
    shared = [jax.jit(run)(x, ws[0], dy) for x, dy in zip(xs, dys, strict=True)]
    for got, *want in zip(
        jax.jit(jax.vmap(run, (0, None, 0)))(xs, ws[0], dys), *shared, strict=True
    ):
        np.testing.assert_allclose(got, np.stack(want), rtol=1e-4, atol=2e-4)


@needs_cpu_handlers
def test_a_transposed_layer(rng: np.random.Generator) -> None:
    """What a vocoder grows its signal with: the kernel twice the stride."""
    x = rng.standard_normal((2, 30, 16), np.float32)
    w = rng.standard_normal((16, 16, 8), np.float32)
    ours = lambda x, w: conv_transpose(x, w, (8,), "SAME")  # noqa: E731
    dy = cotangent(ours, rng, x, w)
    plain = lambda x, w: lax.conv_transpose(x, w, (8,), "SAME")  # noqa: E731
    got = jax.jit(first_order(ours))(x, w, dy)
    with jax.enable_x64(True):
        want = first_order(plain)(*(jnp.asarray(a, jnp.float64) for a in (x, w, dy)))
    for array, truth in zip(got, want, strict=True):
        np.testing.assert_allclose(array, truth, rtol=1e-4, atol=1e-4)


@needs_cpu_handlers
def test_not_a_number_spreads_as_far_as_its_taps(rng: np.random.Generator) -> None:
    """Nothing is computed from padding: what lies beyond the taps stays finite."""
    layer = Layer(1, (60,), 4, 8, 3)
    x, w = layer.arrays(rng)
    dy = cotangent(layer, rng, x, w)
    w[0, 0, 0] = np.inf
    y, dx, _ = jax.jit(first_order(layer))(x, w, dy)
    assert np.isfinite(y[0, 0]).all() and not np.isfinite(y[0, 1:, 0]).any()
    assert np.isfinite(y[0, :, 1:]).all()
    assert np.isfinite(dx[0, -1]).all() and not np.isfinite(dx[0, :-1, 0]).any()


@needs_cpu_handlers
def test_weight_gradients_that_end_later(rng: np.random.Generator) -> None:
    """A program goes on while they are computed: what uses them still waits, in loops too."""
    layer = Layer(2, (40,), 8, 8, 3)
    weights = jnp.asarray(rng.standard_normal((12, 3, 8, 8)) / 5, jnp.float32)
    x = jnp.asarray(rng.standard_normal((2, 40, 8)), jnp.float32)

    def loss(weights: Any) -> Any:
        y = x
        for w in weights:
            y = jnp.sin(layer(y, w))
        return jnp.sum(y**2)

    def repeated(weights: Any) -> Any:
        return lax.scan(lambda _, __: (None, jax.grad(loss)(weights)), None, length=20)[1]

    with override_backend("xla"):
        want = jax.jit(jax.grad(loss)).lower(weights).compile()(weights)
    run = jax.jit(jax.grad(loss)).lower(weights).compile()
    calls = run.as_text().count('custom_call_target="jax_convgrad_conv_wgrad"')
    assert calls == len(weights)
    first = run(weights)
    np.testing.assert_allclose(first, want, rtol=1e-4, atol=1e-5)
    for _ in range(50):
        np.testing.assert_array_equal(run(weights), first)
    for got in jax.jit(repeated)(weights):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


# Work for several threads in each operator, and for one.
BITS = """
import hashlib, sys
import jax, numpy as np
from cpu import test_thin as tests
override = tests.override_backend("onednn")  # kept: one that is collected ends
override.__enter__()
digest = hashlib.sha256()
for layer in (*tests.LAYERS, *tests.LARGE_LAYERS):
    rng = np.random.default_rng(0)
    x, w = layer.arrays(rng)
    run = jax.jit(tests.first_order(layer))
    arrays = x, w, tests.cotangent(layer, rng, x, w)
    first = [np.asarray(a).tobytes() for a in run(*arrays)]
    for _ in range(3):
        assert [np.asarray(a).tobytes() for a in run(*arrays)] == first, layer
    for array in first:
        digest.update(array)
print(digest.hexdigest())
"""
LARGE_LAYERS = [
    Layer(1, (20011,), 4, 4, 3, dilation=2),
    Layer(2, (6007,), 16, 16, 3),
    Layer(1, (9001,), 8, 16, 4, stride=2, padding=(1, 1)),
    Layer(1, (5003,), 16, 1, 7),
    Layer(1, (70, 71), 16, 24, 3, padding=(3, 0)),
]


@needs_cpu_handlers
def test_the_same_bits_with_any_number_of_threads(subprocess_python: list[str]) -> None:
    digests = set()
    for threads in ("1", "2", "5"):
        environment = os.environ | {"NPROC": threads, "PJRT_NPROC": threads}
        run = subprocess.run(
            [*subprocess_python, "-c", BITS], env=environment, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stderr[-3000:]
        digests.add(run.stdout.split()[-1])
    assert len(digests) == 1
    assert all(len(digest) == hashlib.sha256().digest_size * 2 for digest in digests)


@pytest.mark.cpp
@pytest.mark.slow
def test_random_problems_for_the_kernels(tmp_path: pathlib.Path, rng: np.random.Generator) -> None:
    program = native.build(
        tmp_path,
        [
            "tests/cpp/thin_fuzz.cc",
            "cpp/ffi/conv.cc",
            "cpp/cpu/kernels/thin/avx2.cc",
            "cpp/cpu/kernels/thin/avx512.cc",
            "cpp/cpu/kernels/thin/gather.cc",
            "cpp/cpu/kernels/thin/weights.cc",
            "cpp/cpu/kernels/thin/wgrad.cc",
            "cpp/cpu/runtime/scratch.cc",
        ],
        "-ffp-contract=fast",
        level="-O1",
        headers=("tests/cpp/emulated_cuda", "cpp"),
    )
    printed = native.run(program, str(rng.integers(2**32)), str(PROBLEMS))
    assert printed.splitlines()[-1] == f"{PROBLEMS} problems, 0 failures"

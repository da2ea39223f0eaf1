"""install(): existing programs compute what they did, in all that JAX does to them, with other calls inside.

Small integers and polynomials only, so that equal means equal; float32, which the CPU handlers serve.
Programs are those of `lax` and `jax.image`; layers of other libraries are in test_frameworks.py.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from support import jax_internals, reimport
from support.lax_layers import LAYERS, NHWC, per_layer, strided, transposed
from support.layer_cases import assert_same, ints
from support.meshes import DEVICES, collectives, make_mesh, put
from support.programs import called, compiled, without_metadata

import jax_convgrad
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.install import jax_image
from jax_convgrad._src.resize import api as resize_api
from jax_convgrad._src.resize import arguments as resize_arguments
from jax_convgrad._src.resize import bands
from jax_convgrad._src.runtime import registry

pytestmark = [
    pytest.mark.optimized,
    pytest.mark.skipif(
        jax.default_backend() != "cpu", reason="asks for the calls that the CPU's rules choose"
    ),
    pytest.mark.usefixtures("uninstalled"),
]


def loss(layer: Callable[..., Any], x: Any, w: Any) -> Any:
    return jnp.sum(layer(x, w) ** 2)


# What runs.


@per_layer
def test_gradients_are_the_package_s_calls(
    name: str, needs_cpu_handlers: None, rng: np.random.Generator
):
    layer, *shapes = LAYERS[name]
    x, w = ints(rng, *shapes)
    f = lambda x, w: jax.value_and_grad(functools.partial(loss, layer), (0, 1))(x, w)  # noqa: E731
    before = compiled(f, x, w)
    expected = f(x, w)
    jax_convgrad.install()
    got = compiled(f, x, w)
    assert called(before).keys() == {"convolution"}
    assert called(got) == Counter(["conv_fprop", "conv_dgrad", "conv_wgrad"])
    assert_same(f(x, w), expected)
    jax_convgrad.uninstall()
    assert without_metadata(compiled(f, x, w)) == without_metadata(before)
    assert_same(f(x, w), expected)


def test_reversals_cancel(needs_cpu_handlers: None, rng: np.random.Generator):
    """The reversed weights of lax's input gradients are read as they lie; nothing is reversed."""
    layer, *shapes = LAYERS["strided"]
    x, w = ints(rng, *shapes)
    jax_convgrad.install()
    with jax.enable_x64(True):
        text = compiled(jax.grad(functools.partial(loss, layer), (0, 1)), x, w)
    if os.environ.get("JAX_DISABLE_MOST_OPTIMIZATIONS") != "1":
        assert " reverse(" not in text
    assert called(text)["conv_dgrad"] == 1


def test_a_compiled_function_is_compiled_anew(needs_cpu_handlers: None, rng: np.random.Generator):
    """Traced and run before, after, and after that: each time by what is installed at the moment."""
    layer, *shapes = LAYERS["transposed"]
    x, w = ints(rng, *shapes)
    f = jax.jit(jax.grad(functools.partial(loss, layer), (0, 1)))
    expected = f(x, w)
    text = lambda: called(f.lower(x, w).compile().as_text())  # noqa: E731
    aot = f.lower(x, w).compile()
    assert "conv_wgrad" not in text()
    for _ in range(2):
        jax_convgrad.install()
        assert text()["conv_wgrad"] == 1
        assert_same(f(x, w), expected)
        assert_same(aot(x, w), expected)
        jax_convgrad.uninstall()
        assert "conv_wgrad" not in text()
        assert_same(f(x, w), expected)


@pytest.mark.parametrize("backend", ["xla_rewritten", "xla"])
@per_layer
def test_backends_without_handlers_keep_lax_s_forms_or_better_them(
    name: str, backend: str, rng: np.random.Generator
):
    layer, *shapes = LAYERS[name]
    x, w = ints(rng, *shapes)
    f = jax.grad(functools.partial(loss, layer), (0, 1))
    expected = f(x, w)
    jax_convgrad.install()
    with override_backend(backend):
        jax.clear_caches()
        text = compiled(f, x, w)
        assert called(text).keys() == {"convolution"}
        assert_same(f(x, w), expected)
        if name == "transposed":  # its weight gradient is one without a dilated input
            stable = jax.jit(f).lower(x, w).as_text()
            assert len(re.findall(r"lhs_dilate = \[2, 2\]", stable)) == 1
    jax.clear_caches()


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16", "float32"])
def test_dtypes(dtype: str, rng: np.random.Generator):
    """With x64 as without: the handlers' dtypes, and the others in pure JAX."""
    for layer, *shapes in LAYERS.values():
        x, w = (array.astype(dtype) for array in ints(rng, *shapes))
        w = jnp.clip(w, -1, 1)
        f = lambda x, w, layer=layer: jax.vjp(layer, x, w)[1](jnp.ones_like(layer(x, w)))  # noqa: E731
        expected = jax.jit(f)(x.astype(np.float64), w.astype(np.float64))
        jax_convgrad.install()
        got = jax.jit(f)(x, w)
        for a, b in zip(got, expected, strict=True):
            assert a.dtype == dtype
            np.testing.assert_array_equal(a.astype(np.float64), b.astype(dtype).astype(np.float64))
        jax_convgrad.uninstall()


@pytest.mark.parametrize("channels", [3, 24])
def test_other_dtypes_stay_with_jax(channels: int, rng: np.random.Generator):
    shapes = (2, 6, 5, channels), (3, 2, channels, channels)
    x, w = (array.astype(np.int32) for array in ints(rng, *shapes))
    f = jax.jit(strided)
    text = lambda: without_metadata(f.lower(x, w).compile().as_text())  # noqa: E731
    before = text()
    expected = f(x, w)
    jax_convgrad.install()
    assert text() == before
    assert_same(f(x, w), expected)


def test_complex_numbers_are_taken_apart_by_jax(needs_cpu_handlers: None, rng: np.random.Generator):
    """Its own rule makes real convolutions of a complex one, and those are this package's."""
    real = ints(rng, (2, 6, 5, 12), (3, 2, 12, 12))
    imaginary = ints(rng, (2, 6, 5, 12), (3, 2, 12, 12))
    x, w = (a + 1j * b for a, b in zip(real, imaginary, strict=True))
    f = jax.jit(lambda x, w: jax.vjp(strided, x, w)[1](strided(x, w)))
    before = called(f.lower(x, w).compile().as_text())
    expected = f(x, w)
    jax_convgrad.install()
    found = called(f.lower(x, w).compile().as_text())
    assert found["convolution"] == 0
    assert found.total() == before["convolution"] == 9
    assert_same(f(x, w), expected)


def test_preferred_element_type(needs_cpu_handlers: None, rng: np.random.Generator):
    _, *shapes = LAYERS["strided"]
    x, w = (array.astype(jnp.bfloat16) for array in ints(rng, *shapes))
    f = jax.jit(
        lambda x, w: lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=NHWC, preferred_element_type=np.float32
        )
    )
    gradients = jax.jit(jax.grad(lambda x, w: jnp.sum(f(x, w) ** 2), (0, 1)))
    expected = f(x, w), gradients(x, w)
    jax_convgrad.install()
    assert called(f.lower(x, w).compile().as_text())["conv_fprop"] == 1
    y = f(x, w)
    assert y.dtype == np.float32
    assert [g.dtype for g in gradients(x, w)] == [jnp.bfloat16] * 2
    assert_same((y, gradients(x, w)), expected)


@pytest.fixture
def cuda_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stood in for: enough to lower for CUDA."""
    found = registry.PlatformHandlers(
        frozenset(registry.CONV_TARGETS.values()), frozenset({"float32", "bfloat16"})
    )
    monkeypatch.setattr(registry, "require", lambda platform, warn=True: found)


@pytest.mark.parametrize(("channels", "by_call"), [(32, True), (21, False)])
def test_a_transposed_convolution_on_cuda(channels: int, by_call: bool, cuda_handlers: None):
    """Neither a handler nor XLA, which takes weight gradients of odd channels, gets a dilated input."""
    x, w = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((2, 8, 8, 64), (4, 4, 64, channels)))
    f = jax.grad(lambda x, w: jnp.sum(transposed(x, w) ** 2), (0, 1))
    lowered = lambda: jax.jit(f).trace(x, w).lower(lowering_platforms=("cuda",)).as_text()  # noqa: E731
    assert len(re.findall(r"lhs_dilate = \[2, 2\]", lowered())) == 2
    jax_convgrad.install()
    text = lowered()
    assert "lhs_dilate = [2, 2]" not in text
    assert text.count("@jax_convgrad_conv_dgrad") == 1
    assert text.count("@jax_convgrad_conv_wgrad") == by_call


def test_precision_reaches_the_handler(cuda_handlers: None):
    """Lowered for CUDA, where it decides about TF32."""
    jax_convgrad.install("cuda")
    x, w = (jax.ShapeDtypeStruct(s, np.float32) for s in ((2, 8, 8, 16), (3, 3, 16, 16)))
    for precision, allowed in (("highest", "false"), ("default", "true"), (None, "true")):
        layer = lambda x, w, p=precision: lax.conv_transpose(x, w, (2, 2), "SAME", precision=p)  # noqa: E731
        text = jax.jit(layer).trace(x, w).lower(lowering_platforms=("cuda",)).as_text()
        assert "jax_convgrad_conv_dgrad" in text
        assert f"allow_tf32 = {allowed}" in text


@pytest.mark.parametrize(
    "numbers", [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")], ids=["NHWC", "NCHW"]
)
def test_dense_layers_on_cuda(numbers: tuple[str, str, str], cuda_handlers: None):
    """The gradients are calls that command buffers can hold, and the forward pass stays XLA's.

    Of 96 channels: the forward pass of 8 to 64 is a call too.
    """
    shapes = ((2, 8, 8, 96), (3, 3, 96, 96)), ((2, 96, 8, 8), (96, 96, 3, 3))
    x, w = (jax.ShapeDtypeStruct(s, np.float32) for s in shapes[numbers[0] == "NCHW"])
    layer = lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers)  # noqa: E731
    both = jax.grad(lambda x, w: jnp.sum(layer(x, w) ** 2), (0, 1))
    lowered = lambda f: jax.jit(f).trace(x, w).lower(lowering_platforms=("cuda",)).as_text()  # noqa: E731
    before = lowered(layer)
    jax_convgrad.install("cuda")
    assert lowered(layer) == before
    text = lowered(both)
    assert text.count("stablehlo.convolution") == 1
    for operator in ("dgrad", "wgrad"):
        assert text.count(f"@jax_convgrad_conv_{operator}") == 1


# What JAX does to programs.


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@per_layer
def test_the_package_s_own_layers_stay_what_they_are(
    name: str, dtype: Any, rng: np.random.Generator
):
    """Their forms in pure JAX are convolutions of lax's, which go on to XLA."""
    if name == "depthwise":
        layer = lambda x, w: jax_convgrad.conv_general_dilated(  # noqa: E731
            x, w, (2, 2), "SAME", dimension_numbers=NHWC, feature_group_count=x.shape[-1]
        )
    elif name == "strided":
        layer = lambda x, w: jax_convgrad.conv_general_dilated(  # noqa: E731
            x, w, (2, 1), "SAME", dimension_numbers=NHWC
        )
    else:
        layer = lambda x, w: jax_convgrad.conv_transpose(x, w, (2,) * (x.ndim - 2), "SAME")  # noqa: E731
    x, w = (a.astype(dtype) for a in ints(rng, *LAYERS[name][1:]))
    f = jax.jit(jax.value_and_grad(functools.partial(loss, layer), (0, 1)))
    expected, text = f(x, w), f.lower(x, w).as_text()
    jax_convgrad.install()
    assert f.lower(x, w).as_text() == text
    assert_same(f(x, w), expected)


# Many devices.


@pytest.fixture
def mesh() -> jax.sharding.Mesh:
    return make_mesh(jax.sharding.AxisType.Auto)


def split_problem(name: str, mesh: Any, rng: np.random.Generator) -> Any:
    layer, (_, *rest), w = LAYERS[name]
    x, w = ints(rng, (2 * DEVICES, *rest), w)
    return layer, x, w, put(x, mesh, "data"), put(w, mesh)


@per_layer
def test_sharded_jit(name: str, mesh: Any, needs_cpu_handlers: None, rng: np.random.Generator):
    """Each device computes its part by the package's calls, and as much is exchanged as before."""
    layer, x, w, split, replicated = split_problem(name, mesh, rng)
    f = jax.jit(jax.value_and_grad(functools.partial(loss, layer), (0, 1)))
    expected = f(x, w)
    before = collectives(f.lower(split, replicated).compile().as_text())
    jax_convgrad.install()
    text = f.lower(split, replicated).compile().as_text()
    assert called(text) == Counter(["conv_fprop", "conv_dgrad", "conv_wgrad"])
    assert collectives(text) == before and set(before) == {"all-reduce"}
    assert_same(f(split, replicated), expected)
    # The same function on one device is another program.
    assert_same(f(x, w), expected)


@pytest.mark.parametrize("way", ["rows", "output channels", "batch and input channels"])
@pytest.mark.parametrize("name", ["strided", "transposed"])
def test_sharded_jit_in_other_ways(
    name: str, way: str, needs_cpu_handlers: None, rng: np.random.Generator
):
    layer, _, w_shape = LAYERS[name]
    grid = make_mesh(jax.sharding.AxisType.Auto, {"data": DEVICES // 2, "model": 2})
    x, w = ints(rng, (DEVICES, 4 * DEVICES, 3, w_shape[2]), w_shape)
    specs = {
        "rows": ((None, "data"), ()),
        "output channels": ((), (None, None, None, "model")),
        "batch and input channels": (("data", None, None, "model"), (None, None, "model")),
    }
    f = jax.jit(jax.grad(functools.partial(loss, layer), (0, 1)))
    expected = f(x, w)
    jax_convgrad.install()
    split = [put(array, grid, *spec) for array, spec in zip((x, w), specs[way], strict=True)]
    text = f.lower(*split).compile().as_text()
    assert called(text) == Counter(["conv_fprop", "conv_dgrad", "conv_wgrad"])
    assert not collectives(text)["all-gather"]
    assert_same(f(*split), expected)


def test_two_meshes_in_one_program(rng: np.random.Generator):
    """What JAX allows without install() it allows with it."""
    layer, _, w_shape = LAYERS["strided"]
    x, w = ints(rng, (2 * DEVICES, 6, 5, w_shape[2]), w_shape)
    f = jax.jit(jax.grad(functools.partial(loss, layer), (0, 1)))
    expected = f(x, w)
    jax_convgrad.install()
    axis_type = jax.sharding.AxisType.Auto
    grid = make_mesh(axis_type, {"data": DEVICES // 2, "model": 2})
    split = put(x, make_mesh(axis_type), "data"), put(w, grid, None, None, None, "model")
    assert_same(f(*split), expected)


@pytest.mark.parametrize("check_vma", [True, False])
@per_layer
def test_shard_map(
    name: str, check_vma: bool, mesh: Any, needs_cpu_handlers: None, rng: np.random.Generator
):
    layer, x, w, split, replicated = split_problem(name, mesh, rng)

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P("data"), P()),
        out_specs=(P("data"), P()),
        check_vma=check_vma,
    )
    def gradients(x: Any, w: Any) -> Any:
        dx, dw = jax.grad(functools.partial(loss, layer), (0, 1))(x, w)
        return dx, (dw if check_vma else lax.psum(dw, "data"))

    expected = jax.grad(functools.partial(loss, layer), (0, 1))(x, w)
    jax_convgrad.install()
    run = jax.jit(gradients)
    text = run.lower(split, replicated).compile().as_text()
    assert called(text).keys() <= {"conv_fprop", "conv_dgrad", "conv_wgrad"}
    assert called(text)["conv_wgrad"] == 1
    assert set(collectives(text)) == {"all-reduce"}
    assert_same(run(split, replicated), expected)


def test_export_holds_xla_s_convolutions(rng: np.random.Generator):
    """An exported program runs where this package is not; no safety check has to be turned off."""
    layer, (_, *rest), w = LAYERS["strided"]
    x, w = ints(rng, (3, *rest), w)
    gradient = jax.jit(jax.grad(functools.partial(loss, layer), (0, 1)))
    expected = gradient(x, w)
    jax_convgrad.install()
    (n,) = jax.export.symbolic_shape("n")
    exported = jax.export.export(gradient, platforms=("tpu", "cpu"))(
        jax.ShapeDtypeStruct((n, *rest), x.dtype), w
    )
    assert "jax_convgrad" not in exported.mlir_module()
    assert_same(exported.call(x, w), expected)


# Turning it on and off.


def test_installing_twice_is_installing_once(needs_cpu_handlers: None, rng: np.random.Generator):
    layer, *shapes = LAYERS["transposed"]
    x, w = ints(rng, *shapes)
    original = jax.image.resize
    jax_convgrad.install("cpu")
    f = jax.jit(layer)
    f(x, w)
    jax_convgrad.install(["cpu"])
    assert jax_internals.cache_size(f) == 1, "nothing changed, so nothing is compiled anew"
    assert jax_convgrad.installed() == ("cpu",)
    jax_convgrad.install()
    assert jax_convgrad.installed() == ("cpu", "cuda")
    jax_convgrad.uninstall()
    assert jax_convgrad.installed() == ()
    assert jax.image.resize is original
    assert called(compiled(layer, x, w)).keys() == {"convolution"}
    jax_convgrad.uninstall()


def test_a_function_that_was_put_around_ours_stays():
    """What ours do not take goes to JAX's own, not around in a circle."""
    original = jax.image.resize
    image = jnp.ones((4, 4), jnp.complex64)
    jax_convgrad.install("cpu")
    ours = jax.image.resize
    calls: list[Any] = []

    def around(*arguments: Any) -> Any:
        calls.append(arguments)
        return ours(*arguments)

    try:
        jax.image.resize = around
        jax_convgrad.install("cpu")
        jax_convgrad.install()
        assert jax.image.resize is around
        assert jax.image.resize(image, (8, 8), "linear").shape == (8, 8)
        jax_convgrad.uninstall()
        assert jax.image.resize is around
        jax_convgrad.install()
        assert jax.image.resize(image, (8, 8), "linear").shape == (8, 8)
        assert len(calls) == 2
        jax_convgrad.uninstall()
        assert jax.image.resize is around
    finally:
        jax.image.resize = original


def test_a_function_that_was_there_only_for_a_while_is_not_called_later():
    original = jax.image.resize
    image = jnp.ones((4, 4), jnp.complex64)
    calls: list[Any] = []

    def around(*arguments: Any) -> Any:
        calls.append(arguments)
        return original(*arguments)

    try:
        jax.image.resize = around
        jax_convgrad.install()
        jax.image.resize(image, (8, 8), "linear")
        assert len(calls) == 1, "while it is there it is what ours stands in for"
        jax_convgrad.uninstall()
        assert jax.image.resize is around
        jax.image.resize = original
        jax_convgrad.install()
        ours = jax.image.resize
        jax.image.resize(image, (8, 8), "linear")
        jax.image.resize = around
        with jax_image.redirected():
            pass
        jax.image.resize = ours
        jax_convgrad.uninstall()
        assert jax.image.resize is original
        assert len(calls) == 1
    finally:
        jax.image.resize = original


def test_an_error_inside_a_resize_is_not_taken_for_a_refusal(monkeypatch: pytest.MonkeyPatch):
    def broken(*_: Any) -> Any:
        raise ValueError("broken inside")

    image = jnp.ones((1, 4, 4, 1))
    calls = [
        lambda: jax.image.resize(image, (1, 8, 8, 1), "linear"),
        lambda: jax.image.scale_and_translate(image, (1, 8, 4, 1), (1,), **ONE_AXIS),
    ]
    jax_convgrad.install()
    inside = [
        (resize_api, "_apply_float"),
        (bands, "make_band"),
        (resize_arguments, "full_shape"),  # a check of what was asked for
        (resize_arguments, "_sizes"),
    ]
    for module, name in inside:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, broken)
            for call in calls:
                with pytest.raises(ValueError, match="broken inside"):
                    call()


def test_a_resize_of_too_many_weights_is_jax_s(monkeypatch: pytest.MonkeyPatch):
    image = jnp.arange(6.0)
    call = lambda: jax.image.resize(image, (9,), "linear")  # noqa: E731
    expected = call()
    monkeypatch.setattr(bands, "_MAX_WEIGHTS", 9)
    bands.make_band.cache_clear()
    jax_convgrad.install()
    with pytest.raises(bands.BandTooLargeError, match="needs more than 9 weights"):
        jax_convgrad.resize(image, (9,), "linear")
    np.testing.assert_array_equal(call(), expected)


def test_an_argument_of_a_newer_jax(monkeypatch: pytest.MonkeyPatch):
    seen: list[Any] = []
    monkeypatch.setattr(jax.image, "resize", lambda *args, **kwargs: seen.append((args, kwargs)))
    jax_convgrad.install()
    jax.image.resize(1, 2, "linear", new=3)
    jax_convgrad.uninstall()
    assert seen == [((1, 2, "linear"), {"new": 3})]


@pytest.mark.parametrize("way", ["reload", "reload-all", "purge"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_package_imported_anew(way: str, wrapped: bool, subprocess_python: list[str]):
    """While install() is on. The new copy knows that, and can turn it off; nothing goes in a circle."""
    program = Path(reimport.__file__).read_text()
    subprocess.run([*subprocess_python, "-c", program, way, str(int(wrapped))], check=True)


ONE_AXIS = {"scale": np.ones(1), "translation": np.zeros(1), "method": "linear"}
SCALED = {"scale": jnp.ones(2), "translation": jnp.zeros(2), "method": "linear"}


@pytest.mark.parametrize(
    "call",
    [
        lambda x: jax.image.resize(x, np.array((2, 5, 9, 3)), "nearest"),
        lambda x: jax.image.scale_and_translate(x, (1, 4, 4, 3), (1, 2), **SCALED),
        lambda x: jax.image.scale_and_translate(
            x, (2, 4, 4, 3), (1, 2), **{**SCALED, "scale": jnp.array([0.0, 1.0])}
        ),
        lambda x: jax.image.scale_and_translate(
            x, (2, 4, 4, 3), (1, 2), **{**SCALED, "translation": jnp.array([jnp.inf, 1.0])}
        ),
        lambda x: jax.image.scale_and_translate(
            x, (2, 4, 4, 3), (1, 2), **{**SCALED, "scale": jnp.ones((2, 1))}
        ),
    ],
)
@pytest.mark.parametrize("jitted", [False, True])
def test_what_jax_image_takes_is_still_taken(
    call: Callable[..., Any], jitted: bool, rng: np.random.Generator
):
    x = jnp.asarray(rng.integers(-2, 3, (2, 8, 8, 3)), jnp.float32)
    call = jax.jit(call) if jitted else call
    expected = call(x)
    jax_convgrad.install()
    np.testing.assert_allclose(call(x), expected, rtol=1e-5, atol=1e-5)


def test_a_shape_in_an_array():
    """Outside of jit, where its numbers are known."""
    x, shape = jnp.arange(48.0).reshape(1, 4, 4, 3), jnp.array((1, 8, 8, 3))
    expected = jax.image.resize(x, shape, "linear")
    jax_convgrad.install()
    np.testing.assert_allclose(jax.image.resize(x, shape, "linear"), expected, rtol=1e-6)
    np.testing.assert_allclose(jax_convgrad.resize(x, shape, "linear"), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: jax.image.resize(x, (2, 5, 9), "linear"),
        lambda x: jax.image.resize(x, (2, 5, 9, 3), "bogus"),
        lambda x: jax.image.resize(x, (2, 5, 9, 3), "linear", precision="bogus"),
        lambda x: jax.image.resize(x, np.int64(5), "linear"),
        lambda x: jax.image.resize(x, (2, 5, 9, 3), "linear", antialias=np.array([True, False])),
        lambda x: jax.image.scale_and_translate(x, (2, 4, 4, 3), (1, 7), **SCALED),
    ],
)
def test_what_jax_image_refuses_is_refused_in_its_words(call: Callable[..., Any]):
    x = jnp.ones((2, 8, 8, 3))
    with pytest.raises(Exception) as theirs:
        call(x)
    jax_convgrad.install()
    with pytest.raises(type(theirs.value)) as ours:
        call(x)
    assert str(ours.value) == str(theirs.value)


def test_only_the_platforms_asked_for(needs_cpu_handlers: None, rng: np.random.Generator):
    layer, *shapes = LAYERS["transposed"]
    x, w = ints(rng, *shapes)
    jax_convgrad.install("cuda")
    assert called(compiled(layer, x, w)).keys() == {"convolution"}


@pytest.mark.parametrize("platforms", ["tpu", ("cpu", "rocm"), ["CPU"]])
def test_unknown_platforms_change_nothing(platforms: Any):
    with pytest.raises(ValueError, match="install: platforms must be among cpu, cuda or gpu, got"):
        jax_convgrad.install(platforms)
    assert jax_convgrad.installed() == ()


def test_threads(rng: np.random.Generator):
    """Some turn it on and off, some compile and run: results stay right, the end is as asked for."""
    layer, *shapes = LAYERS["depthwise"]
    x, w = ints(rng, *shapes)
    expected = jax.grad(functools.partial(loss, layer), 1)(x, w)
    failures: list[BaseException] = []
    done = threading.Event()

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                failures.append(error)

        return run

    def switch() -> None:
        for _ in range(10):
            jax_convgrad.install()
            jax_convgrad.uninstall()

    def compute() -> None:
        while not done.is_set():
            assert_same(jax.jit(jax.grad(functools.partial(loss, layer), 1))(x, w), expected)

    switching = [threading.Thread(target=guarded(switch)) for _ in range(3)]
    computing = [threading.Thread(target=guarded(compute)) for _ in range(3)]
    for thread in (*switching, *computing):
        thread.start()
    for thread in switching:
        thread.join()
    done.set()
    for thread in computing:
        thread.join()
    assert not failures
    assert jax_convgrad.installed() == ()


def test_a_rule_that_another_package_has_set_since_stays():
    from jax_convgrad._src import compat

    theirs = compat.lowering_rule(lax.conv_general_dilated_p, "cpu")
    jax_convgrad.install()
    other = lambda *arguments, **params: theirs(*arguments, **params)  # noqa: E731
    try:
        compat.register_lowering(lax.conv_general_dilated_p, other, platform="cpu")
        jax_convgrad.uninstall()
        assert compat.lowering_rule(lax.conv_general_dilated_p, "cpu") is other
    finally:
        compat.register_lowering(lax.conv_general_dilated_p, theirs, platform="cpu")


@pytest.mark.parametrize(("value", "platforms"), [("1", ["cpu", "cuda"]), ("0", []), ("", [])])
def test_the_environment(value: str, platforms: list[str], subprocess_python: list[str]):
    program = "import json, jax_convgrad; print(json.dumps(jax_convgrad.installed()))"
    environment = {**os.environ, "JAX_CONVGRAD_INSTALL": value}
    output = subprocess.run(
        [*subprocess_python, "-c", program],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert json.loads(output) == platforms


def test_info_says_whether_it_is_on(capsys: pytest.CaptureFixture[str]):
    from jax_convgrad.__main__ import main

    def lines(*options: str) -> list[str]:
        assert main(["info", *options]) == 0
        return capsys.readouterr().out.splitlines()

    def on() -> list[list[str]]:
        text = lines()
        return [line.split() for line in text[text.index("install()") + 1 :]]

    assert on() == [["cpu", "off"], ["cuda", "off"]]
    jax_convgrad.install("cpu")
    assert on() == [["cpu", "on"], ["cuda", "off"]]
    read = json.loads("\n".join(lines("--json")))
    assert read["install()"] == {"cpu": "on", "cuda": "off"}


# jax.image.

IMAGES: dict[str, Callable[[Any], Any]] = {
    "linear": lambda x: jax.image.resize(x, (2, 8, 3, 3), "linear"),
    "nearest": lambda x: jax.image.resize(x, (2, 12, 10, 3), method="nearest", antialias=False),
    "method": lambda x: jax.image.resize(x, (2, 9, 10, 3), jax.image.ResizeMethod.CUBIC),
    "translate": lambda x: jax.image.scale_and_translate(
        x, (2, 7, 5, 3), (1,), np.array([1.5]), np.array([0.25]), "linear"
    ),
}


@pytest.mark.parametrize("name", list(IMAGES))
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
def test_images(name: str, dtype: str, rng: np.random.Generator):
    x = jnp.asarray(rng.integers(0, 9, (2, 6, 5, 3)), dtype)
    f = IMAGES[name]
    original = jax.image.resize, jax.image.scale_and_translate
    expected = f(x)
    jax_convgrad.install()
    assert (jax.image.resize, jax.image.scale_and_translate) != original
    got = jax.jit(lambda x: f(x))(x)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    if dtype.startswith("float"):
        # Copies are XLA's.
        called = registry.RESAMPLE_TARGET in compiled(lambda x: f(x), x)
        assert called == (name != "nearest") or not registry.require("cpu").targets
        (mine,) = jax.vjp(f, x)[1](got)
        _, tangent = jax.jvp(f, (x,), (x,))
        np.testing.assert_allclose(tangent, got, rtol=0, atol=1e-5)
        jax_convgrad.uninstall()
        (theirs,) = jax.vjp(f, x)[1](got)
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)
    jax_convgrad.uninstall()
    assert (jax.image.resize, jax.image.scale_and_translate) == original


def test_images_split_over_devices_are_not_gathered(mesh: Any, rng: np.random.Generator):
    """The batch is divided; the resized axes, here an image's height and width, are whole."""
    (x,) = ints(rng, (DEVICES, 6, 5, 3))
    split = jax.device_put(x, NamedSharding(mesh, P("data")))
    layer = lambda x: jax.image.resize(x, (DEVICES, 12, 10, 3), "linear")  # noqa: E731
    gradient = lambda x: jax.grad(lambda x: jnp.sum(layer(x) ** 2))(x)  # noqa: E731
    expected = gradient(x)
    jax_convgrad.install()
    f = jax.jit(lambda x: gradient(x))
    text = f.lower(split).compile().as_text()
    assert not collectives(text)
    assert "jax_convgrad_resample" in text or not registry.require("cpu").targets
    np.testing.assert_allclose(f(split), expected, rtol=1e-5, atol=1e-5)


def test_images_of_other_dtypes_stay_with_jax(rng: np.random.Generator):
    x = jnp.asarray(rng.standard_normal((1, 4, 4, 2)), np.complex64)
    f = lambda: jax.image.resize(x, (1, 8, 8, 2), "nearest")  # noqa: E731
    expected = f()
    jax_convgrad.install()
    np.testing.assert_array_equal(f(), expected)


def test_a_replacement_that_somebody_kept_still_works(rng: np.random.Generator):
    jax_convgrad.install()
    kept = jax.image.resize
    jax_convgrad.uninstall()
    for dtype in (np.float32, np.complex64):
        x = jnp.asarray(rng.integers(0, 5, (4,)), dtype)
        np.testing.assert_array_equal(
            kept(x, (8,), "nearest"), jax.image.resize(x, (8,), "nearest")
        )


def test_a_resize_too_long_for_this_package_stays_with_jax():
    """Its axis is longer than 32 bits count, which is no error of jax.image's where there are no elements."""
    with jax_convgrad.install():
        assert jax.image.resize(jnp.ones((0, 4)), (0, 2**33), "linear").shape == (0, 2**33)

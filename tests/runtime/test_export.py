"""Programs that leave the process: `jax.export`, and the compilation cache that outlives it.

Symbolic batch sizes, several platforms at once, another process that runs what this one made; and what
a process is told that has no handlers registered.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from support.layer_cases import (
    LAYERS,
    Layer,
    assert_same,
    ints,
    per_layer,
    resample_is_called,
    squares,
)
from support.meshes import DEVICES, make_mesh

import jax_convgrad
from jax_convgrad import conv_general_dilated, conv_transpose, export_checks, onednn, onnx, torch
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.runtime import registry

HERE = export.default_export_platform()
BATCHES = (1, 3, 8)


def functions(layer: Layer) -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """(ours, the same in JAX) of (parameters, images): forward, gradients, by example, twice.

    Weight gradients by example, of a symbolic number of them, are taken one after another.
    """

    def make(f: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
        loss = squares(f)
        by_example = jax.grad(lambda params, image: loss(params, image[None]), (0, 1))
        penalty = lambda p, x: jnp.sum(jax.grad(loss, 1)(p, x) ** 2)  # noqa: E731
        return {
            "forward": lambda params, x: f(x, params),
            "gradients": jax.value_and_grad(loss, (0, 1)),
            "per-example": jax.vmap(by_example, (None, 0)),
            "penalty": jax.grad(penalty, (0, 1)),
        }

    ours, theirs = make(layer.ours), make(layer.theirs)
    return {kind: (ours[kind], theirs[kind]) for kind in ours}


KINDS = list(functions(LAYERS["resize"]))


def exported_with_a_symbolic_batch(
    layer: Layer, function: Callable[..., Any], dtype: Any, platforms: tuple[str, ...]
) -> export.Exported:
    (batch,) = export.symbolic_shape("batch")
    image = jax.ShapeDtypeStruct((batch, *layer.x[1:]), dtype)
    params = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape in layer.params)
    make = export.export(jax.jit(function), platforms=platforms, disabled_checks=export_checks())
    return make(params, image)


@pytest.mark.matrix("export with a symbolic batch")
@pytest.mark.parametrize("kind", KINDS)
@per_layer
def test_symbolic_batch(name: str, kind: str, rng: np.random.Generator):
    layer = LAYERS[name]
    ours, theirs = functions(layer)[kind]
    dtype = layer.ints(rng)[0].dtype
    exported = exported_with_a_symbolic_batch(layer, ours, dtype, (HERE,))
    for batch in BATCHES:
        x, params = layer.ints(rng, batch)
        assert_same(exported.call(params, x), theirs(params, x))
    if resample_is_called() and name == "resize":
        assert registry.RESAMPLE_TARGET in exported.mlir_module()


@pytest.mark.parametrize("name", ["convolution", "conv_transpose"])
def test_symbolic_spatial_sizes(name: str, rng: np.random.Generator):
    """Where padding does not depend on them. lax cannot express the gradient of the strided one."""
    layer = LAYERS[name]
    gradients, theirs = functions(layer)["gradients"]
    sizes = export.symbolic_shape(
        f"batch, height, width, {layer.x[3]}", constraints=["height >= 3", "width >= 3"]
    )
    dtype = layer.ints(rng)[0].dtype
    params = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape in layer.params)
    exported = export.export(jax.jit(gradients), disabled_checks=export_checks())(
        params, jax.ShapeDtypeStruct(sizes, dtype)
    )
    for shape in ((2, 5, 6), (1, 8, 3)):
        x, *parameters = ints(rng, (*shape, layer.x[3]), *layer.params)
        parameters = tuple(parameters)
        assert_same(exported.call(parameters, x), theirs(parameters, x))


@pytest.mark.parametrize("padding", ["SAME", "SAME_LOWER"])
def test_same_padding_of_a_symbolic_size_with_a_stride(padding: str, rng: np.random.Generator):
    """The padding depends on the size then. lax cannot export these gradients."""
    keywords: Any = {"window_strides": (3, 2), "padding": padding}
    ours = functools.partial(conv_general_dilated, **keywords)
    theirs = functools.partial(jax.lax.conv_general_dilated, **keywords)

    def gradients(layer: Callable[..., Any]) -> Callable[..., Any]:
        return jax.value_and_grad(lambda x, w: jnp.sum(layer(x, w) ** 2), (0, 1))

    make = functools.partial(export.export, disabled_checks=export_checks())
    n, h = export.symbolic_shape("n, h", constraints=["h >= 4"])
    kernel = (4, 3, 4, 2)
    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((n, 3, h, 7), kernel)]
    forward = make(jax.jit(ours))(*shapes)
    backward = make(jax.jit(gradients(ours)))(*shapes)
    for batch, height in ((1, 4), (2, 5), (1, 6), (3, 11)):
        x, w = (array.astype(np.float32) for array in ints(rng, (batch, 3, height, 7), kernel))
        assert_same(forward.call(x, w), theirs(x, w))
        assert_same(backward.call(x, w), gradients(theirs)(x, w))


def test_operators_of_a_symbolic_size_take_same_padding_with_a_stride(rng: np.random.Generator):
    def operators(x: Any, w: Any, dy: Any) -> Any:
        keywords: Any = {"strides": 2, "padding": "SAME"}
        dx = jax_convgrad.conv_dgrad(dy, w, x.shape, **keywords)
        dw = jax_convgrad.conv_wgrad(x, dy, w.shape, **keywords)
        return jax_convgrad.conv_fprop(x, w, **keywords), dx, dw

    (n,) = export.symbolic_shape("n", constraints=["n >= 4"])
    w, dy_shape = (
        (4, 3, 3),
        lambda n: (
            jax.eval_shape(
                functools.partial(jax_convgrad.conv_fprop, strides=2, padding="SAME"),
                *(jax.ShapeDtypeStruct(shape, np.float32) for shape in ((2, 3, n), w)),
            ).shape
        ),
    )
    shapes = (2, 3, n), w, dy_shape(n)
    exported = export.export(jax.jit(operators), disabled_checks=export_checks())(
        *(jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes)
    )
    for size in (4, 5, 8):
        arrays = ints(rng, (2, 3, size), w, dy_shape(size))
        arrays = [array.astype(np.float32) for array in arrays]
        assert_same(exported.call(*arrays), operators(*arrays))


CHANNELS_FIRST = ("NCHW", "OIHW", "NCHW")
# Upsampling to twice the size, which is asked for by its symbolic value.
TO_TWICE: dict[str, Callable[..., Any]] = {
    "conv_transpose-SAME": lambda x, w, sizes: conv_transpose(
        x, w, (2, 2), "SAME", output_shape=sizes,
        dimension_numbers=CHANNELS_FIRST, transpose_kernel=True,
    ),
    "conv_transpose-pairs": lambda x, w, sizes: conv_transpose(
        x, w, (2, 2), [(1, 1)] * 2, use_consistent_padding=True, output_shape=sizes,
        dimension_numbers=CHANNELS_FIRST, transpose_kernel=True,
    ),
    "torch": lambda x, w, sizes: torch.conv_transpose2d(
        x, w, stride=2, padding=1, output_size=sizes
    ),
    "onnx": lambda x, w, sizes: onnx.conv_transpose(x, w, strides=[2, 2], output_shape=sizes),
}  # fmt: skip


@pytest.mark.parametrize("name", list(TO_TWICE))
def test_symbolic_output_sizes(name: str, rng: np.random.Generator):
    def up(x: Any, w: Any) -> Any:
        return TO_TWICE[name](x, w, tuple(2 * size for size in x.shape[2:]))

    kernel = (4, 3, 4, 3)
    sizes = export.symbolic_shape("n, 4, h, w", constraints=["h >= 2", "w >= 2"])
    (weights,) = ints(rng, kernel)
    shapes = jax.ShapeDtypeStruct(sizes, weights.dtype), weights
    exported = export.export(jax.jit(up), disabled_checks=export_checks())(*shapes)
    for shape in ((1, 4, 5, 2), (2, 4, 3, 6)):
        (x,) = ints(rng, shape)
        got = exported.call(x, weights)
        assert got.shape == (shape[0], 3, 2 * shape[2], 2 * shape[3])
        assert_same(got, up(x, weights))

    def to_height(x: Any, w: Any) -> Any:
        return TO_TWICE[name](x, w, (x.shape[2], x.shape[2]))

    with pytest.raises(ValueError, match=r"output_s.* needs a padding that is not a known number"):
        export.export(jax.jit(to_height), disabled_checks=export_checks())(*shapes)


def test_symbolic_sizes_by_adapters(rng: np.random.Generator):
    """Two symbolic sizes are not compared with each other, nor with the kernel's."""
    pads = {"pads_begin": (1, 1), "pads_end": (1, 1)}
    one = {"strides": (1, 1), "dilations": (1, 1)}
    functions: dict[Callable[..., Any], tuple[int, ...]] = {
        lambda x, w: torch.conv2d(x, w): (3, 4, 3, 3),
        lambda dy, w: onednn.convolution_backward_data(dy, w, **one, **pads): (3, 3, 4, 3),
    }
    for function, kernel in functions.items():
        data = "n, h, w, 3" if kernel[2] == 4 else "n, 4, h, w"
        (w,) = ints(rng, kernel)
        sizes = export.symbolic_shape(data)
        exported = export.export(jax.jit(function), disabled_checks=export_checks())(
            jax.ShapeDtypeStruct(sizes, w.dtype), w
        )
        for n, height, width in ((2, 5, 6), (1, 4, 8)):
            numbers = {"n": n, "h": height, "w": width}
            (x,) = ints(rng, tuple(numbers.get(str(size), size) for size in sizes))
            assert_same(exported.call(x, w), function(x, w))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("layer", [conv_general_dilated, conv_transpose])
def test_symbolic_channels(layer: Any, strides: int, dtype: str, rng: np.random.Generator):
    """No rule can be looked up, and a handler serves what comes."""

    def loss(layer: Any, x: Any, w: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        y = layer(x, w, (strides, strides), "VALID", dimension_numbers=numbers)
        rows, columns = (jax.lax.broadcasted_iota(jnp.float32, y.shape, axis) for axis in (1, 3))
        return jnp.sum(y.astype(jnp.float32) * ((rows + 2 * columns) % 5 - 2))

    gradients = jax.grad(functools.partial(loss, layer), (0, 1))
    given, made = export.symbolic_shape("c, o")
    shapes = (2, 7, 7, given), (3, 3, given, made)
    make = export.export(jax.jit(gradients), disabled_checks=export_checks())
    exported = make(*(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes))
    for c, o in ((3, 5), (16, 8), (1, 1)):
        arrays = ints(rng, (2, 7, 7, c), (3, 3, c, o))
        theirs = functools.partial(loss, getattr(jax.lax, layer.__name__))
        got = exported.call(*(array.astype(dtype) for array in arrays))
        wide = jax.tree.map(lambda g: np.asarray(g, np.float64), got)
        expected = jax.grad(theirs, (0, 1))(*arrays)
        assert_same(wide, tuple(np.asarray(g.astype(dtype), np.float64) for g in expected))


def test_symbolic_channels_keep_a_nan_in_its_group(rng: np.random.Generator):
    layer = functools.partial(
        conv_general_dilated,
        window_strides=(1,),
        padding="SAME",
        dimension_numbers=("NHC", "HIO", "NHC"),
        feature_group_count=4,
    )
    (given,) = export.symbolic_shape("c")
    make = export.export(jax.jit(layer), disabled_checks=export_checks())
    shapes = (2, 14, 4 * given), (5, given, 36)
    exported = make(*(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes))
    for _ in range(20):
        x, w = rng.standard_normal((2, 14, 12)), rng.standard_normal((5, 3, 36))
        group = rng.integers(0, 4)
        x[0, rng.integers(0, 14), 3 * group + rng.integers(0, 3)] = np.nan
        y = exported.call(jnp.asarray(x, jnp.bfloat16), jnp.asarray(w, jnp.bfloat16))
        bad = np.isnan(np.asarray(y, np.float32)).any((0, 1)).reshape(4, 9).any(1)
        assert list(bad.nonzero()[0]) == [group]


def test_a_symbolic_size_below_the_window_gives_nothing():
    """As in lax: no rows, not less than none."""
    (height,) = export.symbolic_shape("height")
    x = jax.ShapeDtypeStruct((2, 3, height, 8), jnp.float32)
    w = jax.ShapeDtypeStruct((4, 3, 3, 3), jnp.float32)
    layer = lambda x, w: conv_general_dilated(x, w, (2, 1), "VALID")  # noqa: E731
    make = export.export(jax.jit(layer), disabled_checks=export_checks())
    exported = make(x, w)
    for size in (1, 2, 3, 7):
        arrays = jnp.ones((2, 3, size, 8), x.dtype), jnp.ones((4, 3, 3, 3), w.dtype)
        expected = jax.lax.conv_general_dilated(*arrays, (2, 1), "VALID")
        np.testing.assert_array_equal(exported.call(*arrays), expected)


@pytest.mark.matrix("export for several platforms")
@pytest.mark.parametrize("kind", ["forward", "gradients"])
@per_layer
def test_several_platforms(name: str, kind: str, rng: np.random.Generator):
    """One artifact with what each platform does; here it runs as it would alone."""
    layer = LAYERS[name]
    ours, theirs = functions(layer)[kind]
    x, params = layer.ints(rng, 3)
    exported = exported_with_a_symbolic_batch(layer, ours, x.dtype, ("cpu", "cuda", "tpu"))
    assert exported.platforms == ("cpu", "cuda", "tpu")
    assert_same(exported.call(params, x), theirs(params, x))


@pytest.mark.parametrize("name", ["convolution", "conv_transpose", "resize"])
def test_each_platform_s_calls_are_in_the_artifact(name: str, monkeypatch: pytest.MonkeyPatch):
    """With the handlers of both, one artifact holds the calls of each."""
    both = registry.PlatformHandlers(frozenset(registry.TARGETS), frozenset({"float32"}))
    monkeypatch.setattr(registry, "require", lambda platform, warn=True: both)
    layer = LAYERS[name]
    gradients = functions(layer)["gradients"][0]

    def calls(*platforms: str) -> list[str]:
        with override_backend("cudnn" if platforms == ("cuda",) else "onednn"):
            module = exported_with_a_symbolic_batch(layer, gradients, np.float32, platforms)
        return sorted(re.findall(r"custom_call @(jax_convgrad_\w+)", module.mlir_module()))

    cpu, cuda = calls("cpu"), calls("cuda")
    passes = [layer.forward, *layer.gradients.elements()]
    assert cpu == cuda == sorted(f"jax_convgrad_{operator}" for operator in passes)
    jax.clear_caches()
    with override_backend(None):
        text = exported_with_a_symbolic_batch(
            layer, gradients, np.float32, ("cpu", "cuda")
        ).mlir_module()
    branches = re.findall(r"custom_call @(jax_convgrad_\w+)", text)
    # By the rules: oneDNN has all of these; some of CUDA's XLA has.
    assert not Counter(cpu) - Counter(branches)
    assert set(branches) == set(cpu)
    if name == "resize":
        assert Counter(branches) == Counter(cpu + cuda)


def test_every_handler_s_target_is_allowed():
    """A target that export_checks does not know would keep a program from being exported."""
    allowed = {str(check) for check in export_checks()}
    assert len(allowed) == len(export_checks()) == len(registry.TARGETS)
    for platform in ("cpu", "cuda"):
        assert registry.find(platform).targets <= set(registry.TARGETS)


def test_without_the_checks_jax_names_the_call(needs_cpu_handlers: None):
    with (
        jax.enable_x64(False),
        override_backend("onednn"),
        pytest.raises(ValueError, match="jax_convgrad_conv_fprop"),
    ):
        export.export(jax.jit(LAYERS["convolution"].ours), platforms=("cpu",))(
            jax.ShapeDtypeStruct(LAYERS["convolution"].x, np.float32),
            tuple(
                jax.ShapeDtypeStruct(shape, np.float32) for shape in LAYERS["convolution"].params
            ),
        )


def test_large_weights_and_a_symbolic_batch():
    """Which of a transposed convolution's operands is reversed depends on sizes that are not known."""
    x = jax.ShapeDtypeStruct(export.symbolic_shape("batch, 4, 4, 1024"), np.float32)
    w = jax.ShapeDtypeStruct((4, 4, 1024, 512), np.float32)
    up = jax.jit(lambda x, w: jax_convgrad.conv_transpose(x, w, (2, 2), "SAME"))
    exported = export.export(up, disabled_checks=export_checks())(x, w)
    assert str(exported.out_avals[0].shape) == "(batch, 8, 8, 512)"


@pytest.mark.matrix("export of sharded programs", devices=2)
@per_layer
def test_sharded_programs(name: str, rng: np.random.Generator):
    """Data parallelism in an artifact: the calls stand there as they are, and XLA divides around them."""
    layer = LAYERS[name]
    x, params = layer.ints(rng, 2 * DEVICES)
    mesh = make_mesh(jax.sharding.AxisType.Auto)
    split, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    ours, theirs = functions(layer)["gradients"]
    step = jax.jit(ours, in_shardings=(whole, split), out_shardings=(whole, (whole, split)))
    arguments = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (params, x))
    exported = export.export(step, disabled_checks=export_checks())(*arguments)
    assert exported.nr_devices == DEVICES
    call = jax.jit(exported.call, in_shardings=(whole, split))
    got = call(jax.device_put(params, whole), jax.device_put(x, split))
    assert_same(got, theirs(params, x))


# Another process.

RUN = """
import json, pathlib, sys
import jax, numpy as np
from jax import export

folder = pathlib.Path(sys.argv[1])
{before}
for path in sorted(folder.glob("*.exported")):
    exported = export.deserialize(bytearray(path.read_bytes()))
    for batch in json.loads((folder / "batches.json").read_text()):
        data = np.load(folder / f"{{path.stem.split('-')[0]}}-{{batch}}.npz")
        params = tuple(data[f"p{{i}}"] for i in range(len(data) - 1))
        for i, leaf in enumerate(jax.tree.leaves(exported.call(params, data["x"]))):
            np.save(folder / f"{{path.stem}}-{{batch}}-{{i}}.npy", leaf)
"""


def python(
    command: list[str], code: str, folder: pathlib.Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` in a new process that does not have these tests' settings."""
    kept = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_CONVGRAD_INSTALL")}
    script = folder / "program.py"
    script.write_text(code)
    return subprocess.run(
        [*command, str(script), str(folder), *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**kept, **environment},
        timeout=300,
    )


def write(folder: pathlib.Path, names: list[str], kinds: list[str], rng: Any) -> dict[str, Any]:
    """Artifacts and inputs; returns what the artifacts must give, by file name."""
    pytest.importorskip("flatbuffers", reason="jax.export serializes with it")
    (folder / "batches.json").write_text(json.dumps(BATCHES))
    expected = {}
    for name in names:
        layer = LAYERS[name]
        inputs = {}
        for batch in BATCHES:
            x, params = jax.tree.map(lambda a: np.asarray(a, np.float32), layer.ints(rng, batch))
            inputs[batch] = x, params
            named = {f"p{i}": p for i, p in enumerate(params)}
            np.savez(folder / f"{name}-{batch}.npz", x=x, **named)
        for kind in kinds:
            ours, theirs = functions(layer)[kind]
            exported = exported_with_a_symbolic_batch(layer, ours, np.float32, (HERE,))
            stem = f"{name}-{kind.replace('-', '_')}"
            (folder / f"{stem}.exported").write_bytes(exported.serialize())
            for batch, (x, params) in inputs.items():
                for i, leaf in enumerate(jax.tree.leaves(theirs(params, x))):
                    expected[f"{stem}-{batch}-{i}.npy"] = leaf
    return expected


@pytest.mark.matrix("exported, run by another process")
def test_another_process(
    tmp_path: pathlib.Path, rng: np.random.Generator, subprocess_python: list[str]
):
    """All layers, serialized; the other process has never traced one of them."""
    expected = write(tmp_path, list(LAYERS), ["gradients", "per-example"], rng)
    code = RUN.format(before="import jax_convgrad\njax_convgrad.load_handlers()")
    done = python(subprocess_python, code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(expected) > 40
    for file, values in expected.items():
        assert_same(np.load(tmp_path / file), np.asarray(values))


@pytest.mark.parametrize("before", ["", "import jax_convgrad"])
def test_a_process_without_the_handlers_is_told_so(
    before: str,
    needs_cpu_handlers: None,
    tmp_path: pathlib.Path,
    rng: np.random.Generator,
    subprocess_python: list[str],
):
    """XLA names the call that it does not know, and the name begins with the package's."""
    with override_backend("onednn"):
        write(tmp_path, ["conv_transpose"], ["gradients"], rng)
    done = python(subprocess_python, RUN.format(before=before), tmp_path)
    assert done.returncode != 0
    (sentence,) = [line for line in done.stderr.splitlines() if "jax_convgrad_conv_" in line]
    assert re.search(
        r"No FFI handler registered for jax_convgrad_conv_(dgrad|fprop|wgrad)", sentence
    )


def test_load_handlers_says_what_is_missing():
    with pytest.raises(RuntimeError, match="no handlers for tpu: this version has no handlers"):
        jax_convgrad.load_handlers("tpu")


# The persistent compilation cache.

TRAIN = """
import collections, json, sys
import jax, jax.monitoring, jax.numpy as jnp, numpy as np

events = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: events.update([event]))
jax.config.update("jax_compilation_cache_dir", sys.argv[1] + "/cache")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

from jax_convgrad import conv_general_dilated, conv_transpose, resize, set_deterministic

set_deterministic(True)  # or a GPU's engines are timed, and each process may choose others

def loss(params, x):
    y = jax.nn.relu(conv_transpose(x, params["up"], (2, 2), "SAME"))
    y = conv_general_dilated(y, params["out"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jnp.mean(resize(y, (2, 7, 9, 4), "cubic") ** 2)

params = {"up": np.full((3, 3, 4, 4), 0.1, np.float32), "out": np.full((3, 3, 4, 4), 0.1, np.float32)}
step = jax.jit(lambda p, x: jax.tree.map(lambda a, g: a - 0.1 * g, p, jax.grad(loss)(p, x)))
x = np.linspace(-1, 1, 2 * 4 * 4 * 4, dtype=np.float32).reshape(2, 4, 4, 4)
result = step(params, x)
text = step.lower(params, x).as_text()
print(json.dumps({
    "hits": events["/jax/compilation_cache/cache_hits"],
    "misses": events["/jax/compilation_cache/cache_misses"],
    "calls": text.count("custom_call @jax_convgrad"),
    "values": [np.asarray(a).ravel().tolist() for a in jax.tree.leaves(result)],
}))
"""


@pytest.mark.matrix("persistent compilation cache")
def test_a_second_process_finds_the_compiled_program(
    tmp_path: pathlib.Path, subprocess_python: list[str]
):
    """A training step with all three layers: nothing is compiled anew, and the numbers are the same."""
    runs, files = [], []
    for _ in range(2):
        done = python(subprocess_python, TRAIN, tmp_path)
        assert done.returncode == 0, done.stderr
        runs.append(json.loads(done.stdout.splitlines()[-1]))
        files.append(
            sorted(p.name for p in (tmp_path / "cache").iterdir() if "-atime" not in p.name)
        )
    first, second = runs
    assert first["misses"] > 0 == first["hits"]
    assert second["hits"] == first["misses"] and second["misses"] == 0
    assert files[0] == files[1] and files[0]
    assert first["values"] == second["values"]
    assert first["calls"] == second["calls"]
    if resample_is_called():
        assert first["calls"] > 0

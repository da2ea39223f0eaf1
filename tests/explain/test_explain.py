"""explain(): every convolution and resize of a program has its row, and the row says what happens.

Rows are held against equations counted by a walker of this file's own, against compiled programs, and
against the definition; nothing is asked of the package's own walker but its results.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import string
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from support.conv_cases import CONV_CASES, Case, ids
from support.conv_oracle import conv_oracle
from support.framework_layers import CHANNELS, FLAX, OUTPUTS, SIZES, per_axis
from support.lax_layers import LAYERS
from support.meshes import make_mesh, need_devices
from support.programs import called, compiled, equations_of

import jax_convgrad
from jax_convgrad import ExplanationRow, explain
from jax_convgrad._src.conv.arguments import make_config
from jax_convgrad._src.conv.geometry import ConvGeometry
from jax_convgrad._src.dispatch import devices, preparation
from jax_convgrad._src.dispatch.decide import WITHOUT_CUSTOM_CALLS, decide
from jax_convgrad._src.dispatch.devices import Target
from jax_convgrad._src.dispatch.problem import ConvProblem
from jax_convgrad._src.explain import equations, walk, xla
from jax_convgrad._src.explain.roofline import Memory, conv_roofline, reach, resample_roofline
from jax_convgrad._src.resize.bands import Rule, make_band
from jax_convgrad._src.runtime import registry

pytestmark = pytest.mark.usefixtures("uninstalled", "without_x64")

NHWC = ("NHWC", "HWIO", "NHWC")
NONE = ((0, 0), (0, 0))
on_cpu = pytest.mark.skipif(jax.default_backend() != "cpu", reason="the CPU's rules")


def check(f: Callable[..., Any], *arguments: Any) -> list[ExplanationRow]:
    """The rows with install() on, one for each equation; off, it says the same."""
    would = explain(f, *arguments)
    assert not would.installed
    jax_convgrad.install()
    found = explain(f, *arguments)
    assert found.installed == (jax.default_backend() in ("cpu", "gpu"))
    assert Counter(row.primitive for row in found.rows) == equations_of(f, *arguments)
    assert found.rows == would.rows
    jax_convgrad.uninstall()
    return list(found.rows)


def conv(x: Any, w: Any, stride: int = 1) -> jax.Array:
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=NHWC)


X, W = np.ones((2, 8, 8, 16), np.float32), np.ones((3, 3, 16, 16), np.float32)


# Each kind of equation.


def test_a_convolution_of_lax():
    (row,) = check(conv, X, W)
    assert row.source.file == __file__
    assert row.source.function == "conv"
    assert row.source.line == conv.__code__.co_firstlineno + 1
    assert (row.primitive, row.operator) == ("conv_general_dilated", "conv_fprop")
    assert row.sizes == "2x8x8, 16 to 16, k3 s1 p1"
    assert (row.dtype, row.result_dtype) == ("float32", "float32")
    assert (row.backward, row.within, row.count, row.used) == (False, (), 1, True)
    assert row.xla == "convolution with a window of 3x3"
    assert row.seconds is row.xla_seconds is None


def test_the_gradients_of_a_convolution():
    """Last to first, as they come; the weights' has a window as large as the image."""

    def f(x: Any, w: Any) -> Any:
        return jax.vjp(functools.partial(conv, stride=2), x, w)[1](jnp.ones((2, 4, 4, 16)))

    rows = check(f, X, W)
    assert {row.sizes for row in rows} == {"2x8x8, 16 to 16, k3 s2 p0/1"}
    assert [row.backward for row in rows] == [False, True, True]
    forward, dw, dx = rows if rows[1].operator == "conv_wgrad" else (rows[0], rows[2], rows[1])
    assert [row.operator for row in (forward, dw, dx)] == ["conv_fprop", "conv_wgrad", "conv_dgrad"]
    # The forward pass is in the program, but nothing asks for it.
    assert [row.used for row in (forward, dw, dx)] == [False, True, True]
    assert dw.xla == "convolution with a window of 4x4 dilated by 2x2"
    zeros = "convolution with a window of 3x3, its input dilated by 2x2: "
    assert dx.xla.startswith(zeros)
    # Of output 0 to 7 along an axis the taps that meet an element, and those between the first and the last.
    taps = [(o + t - 2, t) for o in range(8) for t in range(3)]
    inside = [p for p, _ in taps if 0 <= p <= 6]
    share = (len(inside) / sum(p % 2 == 0 for p in inside)) ** 2
    assert dx.xla == f"{zeros}{share:.3g} times the products"


def test_groups_of_the_batch_are_named():
    w = np.ones((3, 3, 1, 16), np.float32)

    def f(w: Any) -> Any:
        layer = functools.partial(
            lax.conv_general_dilated,
            window_strides=(1, 1),
            padding="SAME",
            dimension_numbers=NHWC,
            feature_group_count=16,
        )
        return jax.vjp(lambda w: layer(X, w), w)[1](jnp.ones((2, 8, 8, 16)))

    forward, dw = check(f, w)
    assert forward.sizes == dw.sizes == "2x8x8, 16 to 16, k3 s1 p1 g16"
    assert forward.xla == "convolution with a window of 3x3, 16 groups"
    assert dw.xla.startswith("convolution with a window of 8x8, batch_group_count 16")
    assert (xla._BATCH_GROUPS_ON_CPU in dw.xla) == (jax.default_backend() == "cpu")


def test_this_package_s_own_layers():
    w = np.ones((4, 4, 16, 8), np.float32)

    def f(x: Any, w: Any) -> Any:
        return jnp.sum(jax_convgrad.conv_transpose(x, w, (2, 2), "SAME") ** 2)

    rows = check(jax.value_and_grad(f, (0, 1)), X, w)
    assert rows[0].operator == rows[0].primitive == "conv_dgrad"
    assert sorted(row.operator for row in rows[1:]) == ["conv_fprop", "conv_wgrad"]
    assert [row.backward for row in rows] == [False, True, True]
    assert {row.sizes for row in rows} == {"2x16x16, 8 to 16, k4 s2 p1"}
    assert {row.source.function for row in rows} == {"f"}
    assert all(row.ours for row in rows)


@pytest.mark.parametrize("method", ["nearest", "linear", "lanczos3"])
def test_a_resize(method: str):
    def f(x: Any) -> Any:
        return jnp.sum(jax.image.resize(x, (2, 16, 8, 16), method) ** 2)

    forward, backward = check(jax.value_and_grad(f), X)
    assert (forward.operator, backward.operator) == ("resample", "resample")
    assert forward.sizes.startswith("2x8x8x16 to 2x16x8x16, ")
    assert backward.sizes.startswith("2x16x8x16 to 2x8x8x16, ")
    assert (forward.backward, backward.backward) == (False, True)
    if method == "nearest":
        assert forward.xla == "jax.image: a gather for each axis"
        assert backward.xla == "jax.image: a scatter-add for each axis"
    else:
        assert forward.xla == "jax.image: products with dense matrices, 16x8"
        assert backward.xla == "jax.image: products with dense matrices, 8x16"


def test_a_resize_by_a_name_from_before():
    kept = jax.image.resize

    def f(x: Any) -> Any:
        return jnp.sum(kept(x, (2, 16, 24, 16), "linear") ** 2)

    for program in (jax.value_and_grad(f), jax.jit(jax.value_and_grad(f))):
        for _ in range(2):
            forward, backward = explain(program, X).rows
            assert (forward.operator, forward.sizes) == ("resize", "2x8x8x16 to 2x16x24x16")
            assert (backward.operator, backward.sizes) == ("resize", "2x16x24x16 to 2x8x8x16")
            for row in (forward, backward):
                assert not row.ours and row.backend == "xla" and row.roofline is None
                assert "by another name" in row.reason
            jax_convgrad.install()
    (row,) = explain(lambda x: jax.image.resize(x, (4, 4), "nearest"), np.ones((2, 2), "c8")).rows
    assert row.reason.startswith("complex64 stays with JAX: this package resizes float16, ")


def test_a_function_of_the_same_name_is_no_resize():
    @jax.jit
    def _resize(x: Any) -> Any:
        return conv(x, W)

    (row,) = check(lambda x: _resize(x), X)
    assert row.operator == "conv_fprop"


def test_what_is_no_member_of_the_family():
    def strided_and_dilated(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (2, 2), NONE, (3, 3), dimension_numbers=NHWC)

    (row,) = check(strided_and_dilated, X, W)
    assert row.operator is None and row.roofline is None and not row.ours
    assert row.sizes == "2x8x8x16 with 3x3x16x16 to 2x10x10x16"
    assert (row.backend, row.reason[:34]) == ("xla", "strided or dilated in all three ar")
    (row,) = check(conv, X.astype(np.int8), W.astype(np.int8))
    assert row.reason.startswith(
        "int8 and int8 to int8 stays with JAX: this package takes operands of "
    )
    (row,) = check(conv, X.astype(np.complex64), W.astype(np.complex64))
    assert row.reason.startswith("JAX takes complex64 apart into real convolutions")


# Who computes it, and why.


@on_cpu
@pytest.mark.usefixtures("needs_cpu_handlers")
@pytest.mark.parametrize(("inputs", "outputs"), [(24, 24), (128, 4), (24, 4)])
def test_reasons_are_the_decision_s_own(inputs: int, outputs: int):
    x, w = np.ones((2, 8, 8, inputs), np.float32), np.ones((3, 3, inputs, outputs), np.float32)
    config = make_config(
        "test",
        x.shape,
        w.shape,
        strides=1,
        padding="SAME",
        dilation=None,
        groups=1,
        dimension_numbers=NHWC,
    )
    geometry = ConvGeometry.make("test", config, x.shape, w.shape)
    problem = ConvProblem.make("conv_fprop", geometry, "float32")
    decision = decide(problem, Target.of("cpu"))
    (row,) = check(conv, x, w)
    assert (row.evidence, row.measured_on) == (decision.evidence, decision.measured_on)
    assert row.reason.startswith(decision.reason)
    if decision.measured_on in (None, decision.device_class):
        assert row.reason == decision.reason
    # Into a thin y XLA is faster, but not from a thin x.
    assert row.ours == (decision.backend == "onednn") == ((inputs, outputs) != (128, 4))
    assert row.backend == ("onednn" if row.ours else "xla")


@on_cpu
@pytest.mark.usefixtures("needs_cpu_handlers")
def test_what_subsampling_leaves():

    def f(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (2, 2), "VALID", None, (2, 2), NHWC)

    (row,) = check(f, X, W)
    assert row.sizes == "2x8x8, 16 to 16, k3 s2 d2"
    less = "stride and dilation share a factor, which leaves 2x4x4, 16 to 16, k3 s1; then: "
    assert row.ours and row.reason.startswith(less)
    assert row.roofline.bytes == 4 * (2 * 16 * 16 + 9 * 256 + 2 * 16 * 4)  # x: 4 of 8 along an axis


def test_without_handlers_the_fallback_says_so(monkeypatch: pytest.MonkeyPatch):
    absent = registry.PlatformHandlers(reason="ImportError: not built", broken=True)
    monkeypatch.setattr(registry, "require", lambda platform: absent)
    # Of stride 2, which the handlers have on every platform.
    f = lambda x: jnp.sum(jax.image.resize(conv(x, W, 2), (2, 8, 8, 16), "linear"))  # noqa: E731
    kind = {"cpu": "CPU", "gpu": "CUDA"}[jax.default_backend()]
    cause = f"handlers are missing: {absent.reason}. To fix this, run: "
    for row in check(jax.grad(f), X):
        assert row.backend in ("xla_rewritten", "xla")
        assert row.reason == f"the {kind} handlers are missing, so it runs in pure JAX"
        assert row.missing is not None and row.missing.startswith(f"the {kind} {cause}")
    # Below the table, once.
    *_, empty, last = str(explain(jax.grad(f), X)).splitlines()
    assert empty == "" and last.startswith(f"The {kind} {cause}")
    assert str(explain(jax.grad(f), X)).count("not built") == 1


def test_how_operands_are_prepared_is_said(monkeypatch: pytest.MonkeyPatch):
    there = registry.PlatformHandlers(frozenset(registry.TARGETS), frozenset(("bfloat16",)))
    monkeypatch.setattr(registry, "require", lambda platform: there)
    monkeypatch.setattr(preparation, "multiplies_bfloat16", lambda: False)
    monkeypatch.setattr(devices, "device_class", lambda platform: "amx")
    x, w = np.ones((2, 8, 8, 64), jnp.bfloat16), np.ones((3, 3, 64, 64), jnp.bfloat16)
    found = walk.find(
        jax.make_jaxpr(conv)(x, w).jaxpr, functools.partial(equations.is_described, "cpu")
    )
    backend = equations.describe("cpu", found[0]).backend
    assert (backend.name, backend.preparation) == ("onednn", "float32")
    assert backend.preparation_evidence[0].startswith("cpu/preparations.json#")
    said = "; with operands in float32: oneDNN widens bfloat16 at every use, and here it is widened once"
    assert backend.reason.endswith(f"{said} (measured on avx512, this device is amx)")


def test_on_cuda_the_reasons_are_cuda_s(monkeypatch: pytest.MonkeyPatch):
    """What a GPU's user reads, without one."""
    there = registry.PlatformHandlers(
        frozenset((*registry.CONV_TARGETS.values(), registry.RESAMPLE_TARGET)),
        frozenset(("float32", "bfloat16")),
    )
    monkeypatch.setattr(registry, "require", lambda platform: there)

    def f(x: Any, w: Any) -> Any:
        y = lax.conv_transpose(x, w, (2, 2), "SAME")
        return jnp.sum(conv(y, next_w) ** 2)

    shapes = ((2, 8, 8, 32), (4, 4, 32, 32), (3, 3, 32, 96))
    x, w, next_w = (np.ones(shape, np.float32) for shape in shapes)
    jaxpr = jax.make_jaxpr(jax.value_and_grad(f, (0, 1)))(x, w).jaxpr
    found = walk.find(jaxpr, functools.partial(equations.is_described, "cuda"))
    asked = [equations.describe("cuda", entry) for entry in found]
    said = {(e.operator, e.sizes): (e.ours, e.backend) for e in asked}
    ours, backend = said["conv_dgrad", "2x16x16, 32 to 32, k4 s2 p1"]
    assert ours and backend.name == "cudnn"
    assert backend.reason.startswith("XLA inserts the zeros of the strides")
    assert any("dcgan4" in case for case in backend.evidence) and backend.measured_on == "sm_90"
    ours, backend = said["conv_fprop", "2x16x16, 32 to 96, k3 s1 p1"]
    assert not ours and backend.name == "xla"
    assert backend.reason.startswith("times tie, and XLA adds the bias")
    assert backend.evidence and backend.measured_on == "sm_90"


@on_cpu
@pytest.mark.usefixtures("needs_cpu_handlers")
@pytest.mark.parametrize("name", list(LAYERS))
def test_the_compiled_program_makes_the_calls(name: str):
    """Used rows of a handler are the calls of the compiled program, the others are not in it."""
    layer, *shapes = LAYERS[name]
    x, w = (np.ones(shape, np.float32) for shape in shapes)

    def loss(x: Any, w: Any) -> Any:
        return jnp.sum(layer(x, w) ** 2)

    def penalty(x: Any, w: Any) -> Any:
        return jnp.sum(jax.grad(loss)(x, w) ** 2)

    for program in (loss, jax.grad(loss, (0, 1)), jax.grad(loss), jax.grad(penalty, (0, 1))):
        rows = [row for row in check(program, x, w) if row.used]
        jax_convgrad.install()
        calls = called(compiled(program, x, w))
        jax_convgrad.uninstall()
        calls.pop("convolution", None)
        assert Counter(row.operator for row in rows if row.backend == "onednn") == calls


def test_unused_rows_are_not_lowered():
    def f(x: Any, w: Any) -> Any:
        return jnp.sum(conv(x, w))

    for program in (f, jax.grad(f), jax.value_and_grad(f, (0, 1)), jax.jit(jax.grad(f, 1))):
        used = sum(row.used for row in check(program, X, W))
        text = jax.jit(program).lower(X, W).as_text()
        assert text.count("stablehlo.convolution(") == used > 0
    (row,) = check(lambda x: (conv(x, W), jnp.sin(x))[1], X)
    assert not row.used
    # An effect is a use.
    (row,) = check(lambda x: jax.debug.print("{}", conv(x, W)), X)
    assert row.used


# Programs inside programs.


def twice(x: Any) -> Any:
    return conv(conv(x, W), W)


def test_loops_count():
    scan = lambda x: lax.scan(lambda c, _: (conv(c, W), None), x, None, length=4)[0]  # noqa: E731
    nested = lambda x: lax.fori_loop(0, 3, lambda _, c: twice(scan(c)), x)  # noqa: E731
    (row,) = check(scan, X)
    assert (row.count, row.within) == (4, ("scan of 4",))
    rows = check(nested, X)
    assert [row.count for row in rows] == [12, 3, 3]
    assert rows[0].within == ("scan of 3", "scan of 4")
    gradients = check(jax.grad(lambda x: jnp.sum(scan(x) ** 2)), X)
    assert [(row.operator, row.count) for row in gradients] == [
        ("conv_fprop", 4),
        ("conv_dgrad", 4),
    ]
    (row, inner) = check(lambda x: lax.while_loop(lambda c: jnp.sum(conv(c, W)) < 1, scan, x), X)
    assert row.count is inner.count is None
    assert (row.within, inner.within) == (("while",), ("while", "scan of 4"))


def test_branches():
    def f(x: Any) -> Any:
        return lax.switch(2, [jnp.sin, lambda x: conv(x, W), twice], x) + lax.cond(
            jnp.sum(x) > 0, twice, jnp.sin, x
        )

    rows = check(f, X)
    assert [row.within for row in rows] == [("one of 3 branches",)] * 3 + [
        ("one of 2 branches",)
    ] * 2
    assert {row.count for row in rows} == {1}


@jax.custom_jvp
def with_jvp(x: Any) -> Any:
    return conv(x, W)


@with_jvp.defjvp
def _jvp(primals: Any, tangents: Any) -> Any:
    return with_jvp(*primals), twice(*tangents)


@jax.custom_vjp
def with_vjp(x: Any) -> Any:
    return conv(x, W)


with_vjp.defvjp(lambda x: (twice(x), None), lambda _, g: (twice(twice(g)),))


def test_custom_rules():
    total = lambda f: lambda x: jnp.sum(f(x) ** 2)  # noqa: E731
    assert len(check(with_jvp, X)) == len(check(with_vjp, X)) == 1
    assert len(check(lambda x: jax.jvp(with_jvp, (x,), (x,)), X)) == 3
    assert [r.backward for r in check(jax.grad(total(with_jvp)), X)] == [False, True, True]
    rows = check(jax.grad(total(with_vjp)), X)
    assert [r.backward for r in rows] == [False, False, True, True, True, True]


def test_transformations():
    layers = jax.checkpoint(lambda x: jnp.sin(conv(jnp.sin(conv(x, W)), W)))
    rows = check(jax.jit(jax.grad(jax.jit(lambda x: jnp.sum(layers(x))))), X)
    # Both convolutions are computed again for the backward pass.
    assert Counter((row.operator, row.backward) for row in rows) == {
        ("conv_fprop", False): 2,
        ("conv_fprop", True): 2,
        ("conv_dgrad", True): 2,
    }
    (row,) = check(jax.vmap(lambda x: conv(x, W)), X[None])
    assert row.sizes == "2x8x8, 16 to 16, k3 s1 p1"
    rows = check(lambda x: jax.jvp(jax.grad(lambda x: jnp.sum(conv(x, W) ** 3)), (x,), (x,)), X)
    assert Counter(row.operator for row in rows if row.used) == {"conv_fprop": 2, "conv_dgrad": 2}


def test_named_scopes_are_kept():
    @jax.jit
    def f(x: Any) -> Any:
        with jax.named_scope("outer"), jax.named_scope("inner"):
            return jnp.sum(jax.jit(twice)(x))

    rows = check(jax.grad(f), X)
    assert {row.scope for row in rows} == {"outer/inner"}


# Many devices.


def test_programs_that_xla_divides():
    """Each device computes its part; what is inside a shard_map over other axes is XLA's operations."""
    need_devices(2)
    mesh = make_mesh(jax.sharding.AxisType.Auto)
    sharding = NamedSharding(mesh, P("data"))
    x = jnp.ones((mesh.size, 8, 8, 16))

    def f(x: Any) -> Any:
        return jnp.sum(jax.image.resize(conv(x, W), (*x.shape[:1], 4, 4, 16), "linear") ** 2)

    def constrained(x: Any) -> Any:
        return f(lax.with_sharding_constraint(x, sharding))

    jitted = jax.jit(jax.grad(f), in_shardings=sharding)
    divided = [
        check(jax.grad(f), jax.device_put(x, sharding)),
        check(jax.grad(constrained), x),
        list(explain(jitted, x).rows),
        check(lambda x: jitted(x), x),
    ]
    alone = [(row.ours, row.backend) for row in check(jax.grad(f), x)]
    for rows in divided:
        assert len(rows) == 4
        assert [(row.ours, row.backend) for row in rows] == alone
        assert all(row.reason.endswith(equations.PARTITIONED) == row.ours for row in rows)
    mapped = jax.shard_map(jax.grad(f), mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    for arguments in (x, jax.device_put(x, sharding)):
        rows = check(mapped, arguments)
        assert len(rows) == 4
        assert not any(row.reason.endswith(equations.PARTITIONED) for row in rows)
        assert rows[0].sizes == "1x8x8, 16 to 16, k3 s1 p1"
    assert not any(row.xla_seconds for row in explain(jitted, x, measure=True).rows)
    if mesh.size > 2:
        grid = make_mesh(jax.sharding.AxisType.Auto, {"data": mesh.size // 2, "model": 2})
        partly = jax.shard_map(
            jax.grad(f), mesh=grid, in_specs=P("data"), out_specs=P("data"), axis_names={"data"}
        )
        rows = check(partly, x)
        assert {row.reason for row in rows} == {WITHOUT_CUSTOM_CALLS}
        assert [row.ours for row in rows] == [row.primitive == "resample" for row in rows]


# What tracing leaves behind.


def test_nothing_of_it_stays():
    """A program that was explained before it ran is still jax.image's, and so is another thread's."""
    before = jax.image.resize
    shape = (2, 16, 16, 16)
    resize = jax.jit(lambda x: jax.image.resize(x, shape, "linear"))
    elsewhere: list[Counter[str]] = []

    def f(x: Any) -> Any:
        look = lambda: elsewhere.append(  # noqa: E731
            equations_of(lambda x: jax.image.resize(x, shape, "linear"), X)
        )
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return resize(x)

    assert [row.operator for row in explain(f, X).rows] == ["resample"]
    assert elsewhere == [Counter()]
    assert equations_of(resize, X) == Counter()
    assert jax.image.resize is before
    with pytest.raises(ZeroDivisionError):
        explain(lambda x: 1 // 0, X)
    assert jax.image.resize is before


def test_threads_explain_at_once():
    """Each sees this package's resizes, in any order of coming and going, and nothing of it stays."""
    before = jax.image.resize
    inside, outside = threading.Barrier(2, timeout=60), threading.Event()
    found: dict[str, list[str]] = {}

    def resize(x: Any) -> Any:
        return jax.image.resize(x, (2, 16, 16, 16), "linear")

    def first(x: Any) -> Any:
        inside.wait()
        return resize(x)

    def second(x: Any) -> Any:
        inside.wait()
        assert outside.wait(60)
        return resize(x)

    def run(f: Callable[..., Any], end: Callable[[], None]) -> None:
        found[f.__name__] = [row.primitive for row in explain(f, X).rows]
        end()

    threads = [
        threading.Thread(target=run, args=(first, outside.set)),
        threading.Thread(target=run, args=(second, lambda: None)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"first": ["resample"], "second": ["resample"]}
    assert jax.image.resize is before


def test_install_while_a_program_is_traced():
    before = jax.image.resize
    image = np.ones((2, 2), np.complex64)

    def f(x: Any) -> Any:
        jax_convgrad.install()
        # Not for this package: jax.image's own is called.
        jax.image.resize(image, (4, 4), "linear")
        return jax.image.resize(x, (2, 16, 16, 16), "linear")

    assert [row.operator for row in explain(f, X).rows] == ["resize", "resample"]
    assert jax.image.resize(image, (4, 4), "linear").shape == (4, 4)
    assert jax.image.resize is not before
    jax_convgrad.uninstall()
    assert jax.image.resize is before


def test_uninstall_while_a_program_is_traced():
    """As another thread would call both."""
    before = jax.image.resize

    def f(x: Any) -> Any:
        jax_convgrad.install()
        jax_convgrad.uninstall()
        return jax.image.resize(x, (2, 16, 16, 16), "linear")

    assert [row.operator for row in explain(f, X).rows] == ["resample"]
    assert jax.image.resize is before


def test_inside_a_trace():
    seen = []
    jax.jit(lambda x: seen.append(explain(conv, x, W)) or x)(X)
    assert seen[0].rows[0].operator == "conv_fprop"


# The roofline.


@pytest.mark.parametrize("case", [case for case in CONV_CASES if case.is_plain], ids=ids)
def test_rooflines_of_convolutions(case: Case):
    """Ones everywhere: what is not zero was reached, and the sum counts the products."""
    ones = [np.ones(shape) for shape in (case.x, case.w, case.y)]
    y, dx, dw = conv_oracle(case, *ones)
    config = make_config("test", case.logical("x"), case.logical("w"), **case.operator_keywords)
    geometry = ConvGeometry.make("test", config, case.logical("x"), case.logical("w"))
    read = {"x": np.count_nonzero(dx), "w": np.count_nonzero(dw), "y": np.count_nonzero(y)}
    for operator, result in (("conv_fprop", "y"), ("conv_dgrad", "x"), ("conv_wgrad", "w")):
        found = conv_roofline(operator, geometry, 2, 4)
        written = math.prod(getattr(case, result))
        assert found.bytes == 2 * sum(read[n] for n in read if n != result) + 4 * written
        assert found.operations == 2 * int(y.sum())
        assert found.seconds(None) is None
        assert found.seconds(Memory(100.0, 0)) == found.bytes / 100


def test_what_meets_along_an_axis(rng: np.random.Generator):
    """By enumeration: of a convolution, and of one whose input is dilated as well."""
    for _ in range(500):
        x, y, taps, stride, dilation, spread = (int(n) for n in rng.integers(1, 7, 6))
        low = int(rng.integers(-5, 9))
        i, t = np.indices((y, taps))
        p = i * stride + t * dilation - low
        inside = (0 <= p) & (p < x)
        assert reach(x, y, taps, stride, low, dilation) == (
            len(set(p[inside])),
            inside.any(1).sum(),
            inside.any(0).sum(),
            inside.sum(),
        )
        inside = (0 <= p) & (p <= (x - 1) * spread)
        meets = np.count_nonzero(inside & (p % spread == 0))
        params = {
            "lhs_dilation": (spread,),
            "rhs_dilation": (dilation,),
            "window_strides": (stride,),
            "padding": ((low, 0),),
        }
        expected = f": {np.count_nonzero(inside) / max(1, meets):.3g} times the products"
        assert xla._zeros(params, [x], [taps], [y]).endswith(expected)


def test_rooflines_of_resamples():
    down = make_band(8, 2, Rule("linear"))  # reads 4 of 8
    up = make_band(3, 6, Rule("linear"))
    found = resample_roofline((5, 8, 3), (down, up), (1, 2), 4)
    assert found.bytes == 4 * (5 * 4 * 3 + 5 * 2 * 6)
    products = [int(np.count_nonzero(band.dense())) for band in (down, up)]
    assert found.operations == 2 * (5 * 3 * products[0] + 5 * 2 * products[1])  # down first
    (row,) = check(lambda x: jax.image.resize(x, (5, 6, 3), "nearest"), np.ones((5, 3, 3), "f4"))
    assert row.roofline == resample_roofline(
        (5, 3, 3), (make_band(3, 6, Rule("nearest")),), (1,), 4
    )
    assert row.roofline.bytes == 4 * (5 * 3 * 3 + 5 * 6 * 3)


# Times.


def test_times_of_a_tiny_layer():
    def f(x: Any, w: Any) -> Any:
        return jnp.sum(jax.image.resize(conv(x, w), (2, 16, 16, 16), "linear") ** 2)

    rows = explain(jax.value_and_grad(f, (0, 1)), X, W, measure=True).rows
    assert len(rows) == 5
    for row in rows:
        assert row.xla_seconds > 0
        # Where XLA keeps an equation and there is no handler there is nothing else to time.
        if row.ours or registry.find("cpu").reason is None:
            assert row.seconds > 0
    text = str(explain(f, X, W, measure=True)).splitlines()
    assert text[2].startswith("measured gain over XLA, all rows together")
    assert "XLA" in text[4].split()


def test_equal_equations_are_timed_once(monkeypatch: pytest.MonkeyPatch):
    timed = []

    def compare(functions: Any, operands: Any, method: Any) -> dict[str, float]:
        timed.append([(a.shape, str(a.dtype)) for a in operands.arrays])
        return dict.fromkeys(functions, float(len(timed)))

    monkeypatch.setattr("jax_convgrad._src.explain.program.compare", compare)
    half = lambda x: conv(x.astype(jnp.bfloat16), W.astype(jnp.bfloat16))  # noqa: E731
    rows = explain(lambda x: (twice(x), half(x), conv(x, W, 2), half(x)), X, measure=True).rows
    assert [row.xla_seconds for row in rows] == [1, 1, 2, 3, 2]
    assert timed[1] == [(X.shape, "bfloat16"), (W.shape, "bfloat16")]
    assert len(timed) == 3


def test_a_row_that_cannot_be_timed(monkeypatch: pytest.MonkeyPatch):
    def compare(functions: Any, operands: Any, method: Any) -> dict[str, float]:
        if operands.arrays[1].shape == (1, 1, 16, 16):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory\nand more")
        return dict.fromkeys(functions, 1.0)

    monkeypatch.setattr("jax_convgrad._src.explain.program.compare", compare)
    with pytest.warns(UserWarning, match="could not be timed: RESOURCE_EXHAUSTED: out of memory$"):
        rows = explain(lambda x: conv(conv(x, W), W[:1, :1]), X, measure=True).rows
    assert [row.xla_seconds for row in rows] == [1, None]


@on_cpu
@pytest.mark.usefixtures("needs_cpu_handlers")
@pytest.mark.parametrize("installed", [False, True])
def test_what_is_timed(installed: bool, monkeypatch: pytest.MonkeyPatch):
    """All compute what the equation does; this package's with its call in it, XLA's without."""
    calls: list[str] = []

    def compare(functions: Any, operands: Any, method: Any) -> dict[str, float]:
        arrays = [jnp.round(2 * array) for array in operands.arrays]
        results = []
        for name, (function, context) in functions.items():
            with context():
                program = jax.jit(function).lower(*arrays).compile()
            results.append(np.asarray(program(*arrays)))
            found = re.findall(r'custom_call_target="jax_convgrad_(\w+)"', program.as_text())
            assert len(found) == (name == "ours")
            calls.extend(found)
        assert functions.keys() == {"ours", "xla"}
        np.testing.assert_allclose(*results, rtol=1e-6, atol=1e-4)
        return dict.fromkeys(functions, 1.0)

    monkeypatch.setattr("jax_convgrad._src.explain.program.compare", compare)
    own, few = np.ones((3, 2, 16, 128), np.float32), np.ones((3, 3, 128, 2), np.float32)

    def f(x: Any, w: Any, own: Any, few: Any) -> Any:
        y = jax.image.resize(conv(x, w, 2), (2, 6, 9, 16), "linear")
        y = y + jax.image.resize(y[:, :3, :3], y.shape, "nearest")
        y = jax_convgrad.conv_general_dilated(y, own, (1, 2), "SAME", None, (2, 2), NHWC)
        return jnp.sum(conv(y, few) ** 2)

    if installed:
        jax_convgrad.install()
    rows = explain(jax.value_and_grad(f, (0, 1, 2, 3)), X, W, own, few, measure=True).rows
    assert all(row.seconds == row.xla_seconds == 1 for row in rows)
    assert Counter(calls) == Counter(
        {"conv_fprop": 3, "conv_dgrad": 3, "conv_wgrad": 3, "resample": 4}
    )
    # XLA keeps the convolution into two channels; what is timed is the handler that it could have had.
    assert [row.ours for row in rows if row.operator == "conv_fprop"] == [True, True, False]


# As text, and as data.


def test_the_table():
    def f(x: Any) -> Any:
        x = lax.scan(lambda c, _: (conv(c, W), None), x, None, length=3)[0]
        x = conv(x, W)
        return lax.conv_general_dilated(x, W, (2, 2), NONE, (3, 3), dimension_numbers=NHWC)

    found = explain(f, X)
    lines = str(found).splitlines()
    ours = sum(row.ours for row in found.rows)
    platform = found.platform
    assert lines[0] == (
        f"3 convolutions and resizes on {platform} in float32, install() is off; with it this "
        f"package computes {ours}"
    )
    assert lines[1].startswith("expected gain over XLA")
    header, *body = lines[3:7]
    assert header.split() == "where pass operator sizes runs by gain roofline notes".split()
    for line, row in zip(body, found.rows, strict=True):
        assert line.startswith(f"test_explain.py:{row.source.line} (")
        for title, text in (
            ("pass", "forward"),
            ("operator", row.operator or "convolution"),
            ("sizes", row.sizes),
            ("runs", f"{row.count} "),
            ("by", row.backend if row.ours else "XLA"),
        ):
            assert line[header.index(f"  {title} ") + 2 :].startswith(text)
    # The two that are alike share their notes.
    first, second, third = (line[header.index("notes") :].split() for line in body)
    assert first == second and first[:2] == ["a", "b"]
    letters = [line[0] for line in lines[8:]]
    assert lines[7] == "" and letters == list(string.ascii_lowercase[: len(letters)])
    assert {*first, *third} == {*letters} and not {"a", "b"} & {*third}
    assert lines[9] == "b  XLA has: convolution with a window of 3x3"
    assert not any(row.missing for row in found.rows)
    jax_convgrad.install()
    assert "install() is on; this package computes" in str(explain(f, X))
    assert str(explain(jnp.sin, X)).startswith("0 convolutions and resizes on ")
    assert str(explain(conv, X, W)).startswith("1 convolution or resize on ")


def test_dtypes_that_differ_have_a_column():
    found = explain(lambda x: (conv(x, W), conv(x.astype("bfloat16"), W.astype("bfloat16"))), X)
    headline, _, _, header, *body = str(found).splitlines()
    assert f"on {found.platform}, install()" in headline
    cells = [line[header.index("  dtype ") :].split()[0] for line in body[:2]]
    assert cells == [row.dtype for row in found.rows] == ["float32", "bfloat16"]


def test_symbolic_sizes():
    """There is a row for each, and a table of them, without rooflines."""
    batch, height = jax.export.symbolic_shape("b, h", constraints=["h >= 3"])

    def f(x: Any) -> Any:
        y = jax_convgrad.conv_fprop(x, jnp.ones((4, 3, 3, 3)))
        y = jax.lax.conv_general_dilated(y, jnp.ones((4, 4, 1, 1)), (1, 1), "VALID")
        return jax_convgrad.resize(y, (*y.shape[:3], 5), "linear", antialias=False)

    for shape in ((batch, 3, 8, 8), (batch, 3, height, 8)):
        explanation = jax_convgrad.explain(f, jax.ShapeDtypeStruct(shape, jnp.float32))
        assert [row.roofline for row in explanation.rows] == [None] * 3
        assert sum("bx" in line for line in str(explanation).splitlines()) == 3


def test_notes_have_as_many_letters_as_it_takes():
    def f(x: Any) -> Any:
        return [conv(x, jnp.ones((k, 1, 16, 16))) for k in range(1, 40)]

    text = str(explain(f, X))
    assert re.search(r"^[a-z][a-z]  XLA has: convolution with a window of 39x1$", text, re.M)


def test_rows_are_data():
    found = explain(jax.grad(lambda x: jnp.sum(conv(x, W) ** 2)), X)
    copied = json.loads(json.dumps(dataclasses.asdict(found)))
    assert copied["rows"][0]["sizes"] == "2x8x8, 16 to 16, k3 s1 p1"
    assert copied["rows"][0]["roofline"] == list(found.rows[0].roofline)
    assert copied["rows"][1]["source"] == list(found.rows[1].source)


def test_arguments():
    """Shapes will do, and functions that are jitted already, with static arguments too."""
    rows = explain(conv, X, W).rows
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (X, W)]
    assert explain(conv, *shapes).rows == rows
    assert explain(jax.jit(conv, static_argnums=2), *shapes, 2).rows[0].sizes.endswith("s2 p0/1")
    tree = {"x": X, "w": [W]}
    assert explain(lambda tree: conv(tree["x"], *tree["w"]), tree).rows[0].sizes == rows[0].sizes
    with pytest.raises(TypeError):
        explain(jax.jit(conv), "x", W)


# Models.


def flax_layers() -> Any:
    linen = pytest.importorskip("flax.linen")

    class Net(linen.Module):
        """Every kind of layer, a resize, and a loop."""

        @linen.compact
        def __call__(self, x: Any) -> Any:
            x = linen.Conv(16, (3, 3), padding="CIRCULAR", name="first")(x)
            x = linen.relu(linen.Conv(24, (3, 3), (2, 2), name="down")(x))
            x = linen.Conv(24, (3, 3), feature_group_count=24, name="depthwise")(x)
            x = linen.remat(linen.Conv)(24, (3, 3), kernel_dilation=(2, 2), name="dilated")(x)
            x = linen.ConvTranspose(16, (4, 4), (2, 2), name="up")(x)
            x = jax.image.resize(x, (*x.shape[:1], 16, 16, 16), "linear")
            return linen.Conv(3, (1, 1), name="last")(x)

    return Net()


def test_a_flax_model():
    model = flax_layers()
    x = np.ones((2, 8, 8, 12), np.float32)
    weights = model.init(jax.random.key(0), x)

    def loss(weights: Any, x: Any) -> Any:
        return jnp.mean(model.apply(weights, x) ** 2)

    @jax.jit
    def step(weights: Any, x: Any) -> Any:
        gradients = jax.grad(loss)(weights, x)
        return jax.tree.map(lambda w, g: w - g, weights, gradients)

    assert len(check(loss, weights, x)) == 7
    rows = check(step, weights, x)
    # JAX forgets who called a rematerialised layer, unless the equation is still inside it.
    lost = [row for row in rows if row.source.function != "Net.__call__"]
    assert [(row.scope, row.backward) for row in lost] in ([], [("Net/dilated", False)])
    names = {row.scope.rpartition("/")[2] for row in rows if row.operator != "resample"}
    assert names == {"first", "down", "depthwise", "dilated", "up", "last"}
    operators = {
        name: {
            row.operator for row in rows if row.used and f"/{name}" in row.scope and row.backward
        }
        for name in names
    }
    # The image has no gradient.
    assert operators["first"] == {"conv_wgrad"}
    assert operators["up"] == {"conv_wgrad", "conv_fprop"}
    assert operators["down"] == operators["depthwise"] == {"conv_wgrad", "conv_dgrad"}
    assert Counter(row.operator for row in rows)["resample"] == 2


@pytest.mark.parametrize("name", list(FLAX))
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_flax_layers(rank: int, name: str):
    linen = pytest.importorskip("flax.linen")
    layer = linen.Conv(OUTPUTS, (3,) * rank, **per_axis(FLAX[name], rank))
    check_layer(layer.apply, layer.init(jax.random.key(0), image(rank)), rank)


@pytest.mark.parametrize("padding", ["SAME", "VALID", "CIRCULAR"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_flax_transposed_layers(rank: int, padding: str):
    linen = pytest.importorskip("flax.linen")
    layer = linen.ConvTranspose(OUTPUTS, (4,) * rank, (2,) * rank, padding)
    check_layer(layer.apply, layer.init(jax.random.key(0), image(rank)), rank)


@pytest.mark.parametrize("layer", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_flax_nnx_layers(rank: int, layer: str):
    nnx = pytest.importorskip("flax.nnx")
    model = getattr(nnx, layer)(CHANNELS, OUTPUTS, (3,) * rank, (2,) * rank, rngs=nnx.Rngs(0))
    structure, weights = nnx.split(model)
    check_layer(lambda weights, x: nnx.merge(structure, weights)(x), weights, rank)


def image(rank: int) -> np.ndarray:
    return np.ones((2, *SIZES[:rank], CHANNELS), np.float32)


def check_layer(apply: Callable[..., Any], weights: Any, rank: int) -> None:
    """A layer and its gradients are one of each operator; every one is the handlers'."""

    def f(weights: Any, x: Any) -> Any:
        y, pullback = jax.vjp(apply, weights, x)
        return pullback(y)

    rows = check(f, weights, image(rank))
    assert Counter(row.operator for row in rows) == {
        "conv_fprop": 1,
        "conv_dgrad": 1,
        "conv_wgrad": 1,
    }
    assert len({row.sizes for row in rows}) == 1
    if jax.default_backend() == "cpu" and registry.require("cpu").reason is None:
        assert all(row.ours and row.backend == "onednn" for row in rows)


def test_rows_that_xla_keeps_say_too_where_that_was_measured(monkeypatch: pytest.MonkeyPatch):
    if jax.default_backend() != "cpu" or registry.cpu_module() is None:
        pytest.skip("the CPU's rules, which are measured on two classes")
    monkeypatch.setattr(devices, "device_class", lambda platform: "avx2")
    x, w = np.ones((8, 32, 32, 128), np.float32), np.ones((3, 3, 128, 8), np.float32)

    def own(x: Any, w: Any) -> jax.Array:
        return jax_convgrad.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC)

    for layer in (own, conv):
        (row,) = explain(layer, x, w).rows
        assert row.ours == (layer is own)
        assert row.reason.endswith(", this device is avx2)")

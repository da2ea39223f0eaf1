"""How often a program asks: a decision for each operator that is lowered, a geometry for each layer."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from support.meshes import DEVICES, make_mesh, put

import jax_convgrad
from jax_convgrad._src.conv.geometry import ConvGeometry
from jax_convgrad._src.dispatch import decide as decide_module
from jax_convgrad._src.runtime import registry

pytestmark = pytest.mark.usefixtures("uninstalled")

NHWC = ("NHWC", "HWIO", "NHWC")
X, W = (2 * DEVICES, 6, 5, 12), (4, 4, 12, 16)


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The problems that are decided, one after another, whoever asks."""
    original = decide_module.decide
    problems: list[Any] = []

    @functools.wraps(original)
    def counted(problem: Any, *rest: Any, **more: Any) -> Any:
        problems.append(problem)
        return original(problem, *rest, **more)

    holders = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("jax_convgrad") and getattr(module, "decide", None) is original
    ]
    assert len(holders) > 1, "nobody imports it by its name"
    for module in holders:
        monkeypatch.setattr(module, "decide", counted)
    return problems


@pytest.fixture
def geometries(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments with which geometries are made."""
    original = ConvGeometry.make
    made: list[Any] = []

    def counted(*arguments: Any, **more: Any) -> ConvGeometry:
        made.append(arguments)
        return original(*arguments, **more)

    monkeypatch.setattr(ConvGeometry, "make", staticmethod(counted))
    return made


def loss(layer: Callable[..., Any], *arrays: Any) -> Any:
    return jnp.sum(layer(*arrays) ** 2)


def gradients(layer: Callable[..., Any], count: int) -> Callable[..., Any]:
    """A new function each time, of which JAX remembers nothing."""
    both = jax.grad(functools.partial(loss, layer), tuple(range(count)))
    return lambda *arrays: both(*arrays)


# Each with its arrays' shapes, and how many operators its forward and backward pass are.
OURS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], int]] = {
    "convolution": (
        lambda x, w: jax_convgrad.conv_general_dilated(
            x, w, (2, 1), "SAME", dimension_numbers=NHWC
        ),
        (X, W),
        3,
    ),
    "conv_transpose": (
        lambda x, w: jax_convgrad.conv_transpose(x, w, (2, 2), "SAME"),
        (X, W),
        3,
    ),
    "resize": (lambda x: jax_convgrad.resize(x, (*x.shape[:1], 9, 7, 12), "cubic"), (X,), 2),
}
JAX_S: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], int]] = {
    "convolution": (
        lambda x, w: lax.conv_general_dilated(x, w, (2, 1), "SAME", dimension_numbers=NHWC),
        (X, W),
        3,
    ),
    "conv_transpose": (lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), (X, W), 3),
    "resize": (lambda x: jax.image.resize(x, (*x.shape[:1], 9, 7, 12), "cubic"), (X,), 2),
}


def arrays_for(shapes: tuple[tuple[int, ...], ...]) -> list[np.ndarray]:
    return [np.ones(shape, np.float32) for shape in shapes]


@pytest.mark.parametrize("name", OURS)
def test_a_layer_is_decided_once_an_operator(name: str, decisions: list[Any]):
    layer, shapes, count = OURS[name]
    f = gradients(layer, len(shapes))
    arrays = arrays_for(shapes)
    jax.make_jaxpr(f)(*arrays)
    assert not decisions, "tracing decides nothing"
    lowered = jax.jit(f).lower(*arrays)
    assert len(decisions) == len(set(decisions)) == count
    lowered.compile()
    assert len(decisions) == count, "compiling asks nobody again"


@pytest.mark.parametrize("name", JAX_S)
def test_with_install_it_is_too(name: str, decisions: list[Any]):
    layer, shapes, count = JAX_S[name]
    jax_convgrad.install()
    jax.jit(gradients(layer, len(shapes))).lower(*arrays_for(shapes)).compile()
    assert len(decisions) == len(set(decisions)) == count


def test_without_install_lax_asks_nobody(decisions: list[Any]):
    for layer, shapes, _ in JAX_S.values():
        jax.jit(gradients(layer, len(shapes))).lower(*arrays_for(shapes))
    assert not decisions


def test_a_problem_that_stays_with_jax_is_asked_about_once(decisions: list[Any]):
    """install() leaves it to JAX's rule: the answer is not asked for again on the way there."""
    jax_convgrad.install()
    layer = lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=NHWC)  # noqa: E731
    jax.jit(lambda x, w: layer(x, w)).lower(*arrays_for(((1, 5, 5, 1), (1, 1, 1, 1))))
    assert len(decisions) <= 1


@pytest.mark.devices(2)
@pytest.mark.parametrize("installed", [False, True], ids=["ours", "install"])
@pytest.mark.parametrize("name", OURS)
def test_a_program_for_many_devices_is_decided_once_an_operator(
    name: str, installed: bool, decisions: list[Any]
):
    """The whole problem is; its parts, which XLA asks for while it compiles, follow."""
    layer, shapes, count = (JAX_S if installed else OURS)[name]
    if installed:
        jax_convgrad.install()
    mesh = make_mesh(AxisType.Auto)
    first, *rest = arrays_for(shapes)
    split = [put(first, mesh, "data"), *(put(array, mesh) for array in rest)]
    f = jax.jit(gradients(layer, len(shapes)))
    f.lower(*split).compile()
    assert len(decisions) == len(set(decisions)) == count


@pytest.mark.parametrize("name", ["convolution", "conv_transpose"])
def test_a_layer_makes_one_geometry(name: str, geometries: list[Any]):
    """Its gradients, and all that lowers them, have the one that it made."""
    layer, shapes, _ = OURS[name]
    jax.jit(gradients(layer, len(shapes))).lower(*arrays_for(shapes))
    assert len(geometries) == 1


def test_what_subsampling_leaves_is_worked_out_once_an_operator(monkeypatch: pytest.MonkeyPatch):
    """It is in the decision: who decides and who emits have one geometry."""
    original = ConvGeometry.__init__
    made: list[Any] = []

    def counted(self: ConvGeometry, *arguments: Any, **more: Any) -> None:
        made.append(arguments)
        original(self, *arguments, **more)

    monkeypatch.setattr(ConvGeometry, "__init__", counted)
    layer = lambda x, w: jax_convgrad.conv_general_dilated(  # noqa: E731
        x, w, (2, 2), "VALID", rhs_dilation=(2, 2), dimension_numbers=NHWC
    )
    jax.jit(gradients(layer, 2)).lower(*arrays_for(((2, 12, 12, 3), (3, 3, 3, 5))))
    assert len(made) == 1 + 3, "the layer's, and that of each of its three operators"


@pytest.mark.parametrize("name", ["convolution", "conv_transpose"])
def test_an_equation_of_lax_makes_one_geometry(name: str, geometries: list[Any]):
    layer, shapes, count = JAX_S[name]
    jax_convgrad.install()
    jax.jit(gradients(layer, len(shapes))).lower(*arrays_for(shapes))
    assert len(geometries) == count


def backward(x: Any, w: Any, dy: Any) -> Any:
    """The three gradients of a layer with a window at every pixel."""
    groups = x.shape[-1] // w.shape[-2]
    return jax_convgrad.conv_backward(
        x, w, dy, padding="SAME", groups=groups, dimension_numbers=NHWC
    )


DENSE = ((2 * DEVICES, 9, 8, 16), (7, 7, 16, 16), (2 * DEVICES, 9, 8, 16))
DEPTHWISE = (DENSE[0], (7, 7, 1, 16), DENSE[2])


def test_a_backward_pass_and_each_of_its_parts_are_decided_once(decisions: list[Any]):
    jax.jit(lambda *arrays: backward(*arrays)).lower(*arrays_for(DENSE)).compile()
    assert [p.operator for p in decisions] == ["conv_backward", "conv_dgrad", "conv_wgrad"]


def test_a_backward_pass_in_one_call_is_decided_once(decisions: list[Any]):
    if jax.default_backend() != "cpu" or registry.cpu_module() is None:
        pytest.skip("the CPU's handlers compute it in one call")
    jax.jit(lambda *arrays: backward(*arrays)).lower(*arrays_for(DEPTHWISE)).compile()
    assert [p.operator for p in decisions] == ["conv_backward"]


@pytest.mark.devices(2)
def test_a_backward_pass_on_many_devices_is_decided_to_be_its_parts(decisions: list[Any]):
    """Each part has a sharding rule, the one call has none."""
    mesh = make_mesh(AxisType.Auto)
    x, w, dy = arrays_for(DEPTHWISE)
    arrays = put(x, mesh, "data"), put(w, mesh), put(dy, mesh, "data")
    jax.jit(lambda *arrays: backward(*arrays)).lower(*arrays).compile()
    assert [p.operator for p in decisions] == ["conv_backward", "conv_dgrad", "conv_wgrad"]

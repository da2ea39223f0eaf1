"""`explain` of a whole backward pass: one row where one call computes it, the rows of its parts elsewhere."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from support.meshes import DEVICES, make_mesh, put

import jax_convgrad
from jax_convgrad import explain
from jax_convgrad._src.dispatch.decide import decide
from jax_convgrad._src.dispatch.devices import Target
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.dispatch.problem import ConvBackwardProblem
from jax_convgrad._src.explain.roofline import backward_roofline
from jax_convgrad._src.runtime import registry

NHWC = ("NHWC", "HWIO", "NHWC")
X = np.random.default_rng(0).standard_normal((2 * DEVICES, 9, 8, 16)).astype(np.float32)
DEPTHWISE = np.random.default_rng(1).standard_normal((7, 7, 1, 16)).astype(np.float32)
DENSE = np.random.default_rng(2).standard_normal((3, 3, 16, 16)).astype(np.float32)

one_call = pytest.mark.skipif(
    jax.default_backend() != "cpu" or registry.cpu_module() is None,
    reason="the CPU's handlers compute a depthwise backward pass in one call",
)


def gradients(x: Any, w: Any, dy: Any, wanted: tuple[str, ...] = ("x", "w", "b")) -> Any:
    groups = x.shape[-1] // w.shape[-2]
    return jax_convgrad.conv_backward(
        x, w, dy, padding="SAME", groups=groups, dimension_numbers=NHWC, wanted=wanted
    )


@one_call
def test_one_call_is_one_row_with_the_decision_that_runs() -> None:
    (row,) = explain(gradients, X, DEPTHWISE, X).rows
    assert (row.primitive, row.operator) == ("conv_backward", "conv_backward")
    assert row.sizes == f"{X.shape[0]}x9x8, 16 to 16, k7 s1 p3 g16, dx dw db"
    assert row.ours and row.used and row.count == 1
    jaxpr = jax.make_jaxpr(gradients)(X, DEPTHWISE, X).jaxpr
    (equation,) = (e for e in jaxpr.eqns if e.primitive.name == "conv_backward")
    problem: ConvBackwardProblem = equation.params["problem"]
    decision = decide(problem, Target.of("cpu"))
    assert (row.backend, row.evidence) == (decision.backend, decision.evidence) and row.evidence
    assert row.reason.startswith(decision.reason)
    text = jax.jit(gradients).lower(X, DEPTHWISE, X).as_text()
    assert text.count("jax_convgrad_conv_backward") == 1 and "jax_convgrad_conv_dgrad" not in text
    # What lax would be given: two convolutions.
    assert row.xla.count("convolution with a window") == 2


@one_call
def test_the_roofline_reads_each_operand_once() -> None:
    (row,) = explain(gradients, X, DEPTHWISE, X).rows
    taps = sum(0 <= i + t - 3 < 9 for i in range(9) for t in range(7))
    taps *= sum(0 <= i + t - 3 < 8 for i in range(8) for t in range(7))
    products = X.shape[0] * 16 * taps
    assert row.roofline is not None
    assert row.roofline.bytes == 4 * (3 * X.size + 2 * DEPTHWISE.size + 16)
    assert row.roofline.operations == 2 * 2 * products + X.size
    jaxpr = jax.make_jaxpr(lambda *a: gradients(*a, wanted=("w", "b")))(X, DEPTHWISE, X).jaxpr
    (problem,) = (e.params["problem"] for e in jaxpr.eqns if e.primitive.name == "conv_backward")
    without_x = backward_roofline(problem)  # w is not read then
    assert without_x.bytes == 4 * (2 * X.size + DEPTHWISE.size + 16)
    assert without_x.operations == 2 * products + X.size


@one_call
def test_it_can_be_timed() -> None:
    (row,) = explain(gradients, X, DEPTHWISE, X, measure=True).rows
    assert row.seconds is not None and row.seconds > 0
    assert row.xla_seconds is not None and row.xla_seconds > 0


def test_parts_have_rows_of_their_own() -> None:
    rows = explain(gradients, X, DENSE, X).rows
    assert [row.operator for row in rows] == ["conv_dgrad", "conv_wgrad"]
    with override_backend("xla"):
        rows = explain(gradients, X, DEPTHWISE, X).rows
    assert [row.operator for row in rows] == ["conv_dgrad", "conv_wgrad"]


@pytest.mark.devices(2)
def test_it_is_in_parts_where_xla_divides_the_program() -> None:
    mesh = make_mesh(AxisType.Auto)
    arrays = put(X, mesh, "data"), put(DEPTHWISE, mesh), put(X, mesh, "data")
    rows = explain(gradients, *arrays).rows
    assert [row.operator for row in rows] == ["conv_dgrad", "conv_wgrad"]


@one_call
def test_a_call_of_which_nothing_is_used_says_so() -> None:
    def f(x: Any, w: Any, dy: Any) -> Any:
        _dx, dw, _ = gradients(x, w, dy)
        return dw

    (row,) = explain(f, X, DEPTHWISE, X).rows
    assert row.used and row.operator == "conv_wgrad", "dw is used, and dx is not computed"
    (row,) = explain(lambda *a: (gradients(*a), a[0])[1], X, DEPTHWISE, X).rows
    assert not row.used


@one_call
@pytest.mark.devices(4)
def test_axes_of_one_device_divide_nothing() -> None:
    mesh = jax.make_mesh((4, 1), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    spec = P("data")

    def f(x: Any, w: Any, dy: Any) -> Any:
        dx, dw, _ = gradients(x, w, dy)
        return dx + jnp.sum(dw)

    divided = jax.shard_map(
        f, mesh=mesh, in_specs=(spec, P(), spec), out_specs=spec, axis_names={"data"}
    )
    x = np.concatenate([X] * 4)
    text = jax.jit(divided).lower(x, DEPTHWISE, x).as_text()
    assert "jax_convgrad_conv_backward" in text and "jax_convgrad_conv_dgrad" not in text
    (row,) = explain(divided, x, DEPTHWISE, x).rows
    assert row.operator == "conv_backward"

"""A layer's tangent as one primitive: its transpose is one `conv_backward`, and every derivative is there.

Values are small integers and everything computed is a polynomial in them, so results are lax's, bit for bit.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify, jet
from support.layer_cases import equations
from support.programs import called

import jax_convgrad
from jax_convgrad._src.conv.tangent import conv_tangent_p
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.runtime import registry

NUMBERS = ("NWC", "WIO", "NWC")
KEYWORDS = dict(dimension_numbers=NUMBERS, feature_group_count=16)
LAYERS = {
    "ours": functools.partial(jax_convgrad.conv_general_dilated, **KEYWORDS),
    "lax": functools.partial(lax.conv_general_dilated, **KEYWORDS),
}


def layer(name: str, x: Any, w: Any, **keywords: Any) -> Any:
    return LAYERS[name](x, w, (1,), "SAME", **keywords)


def loss(name: str, x: Any, w: Any) -> Any:
    return jnp.sum(layer(name, x, w) * jnp.arange(16, dtype=x.dtype))


@pytest.fixture
def arrays(rng: np.random.Generator) -> list[Any]:
    """x, w and a tangent of each."""
    shapes = [(2, 20, 16), (5, 1, 16)] * 2
    return [jnp.asarray(rng.integers(-2, 3, shape), jnp.float32) for shape in shapes]


def operators(f: Any, *arguments: Any) -> Counter[str]:
    names = (equation.primitive.name for equation in equations(f, *arguments))
    return Counter(name for name in names if name.startswith("conv_"))


def tangent_of(arrays: list[Any]) -> Any:
    """The equation of the layer's tangent."""
    jvp = lambda *a: jax.jvp(functools.partial(layer, "ours"), a[:2], a[2:])  # noqa: E731
    (found,) = (e for e in equations(jvp, *arrays) if e.primitive is conv_tangent_p)
    return found


def gradients(name: str) -> Any:
    return jax.grad(functools.partial(loss, name), (0, 1))


# Each is a function of the layer's name and of x, w and a tangent of each.
PROGRAMS: dict[str, Any] = {
    "grad": lambda name, x, w, *_: gradients(name)(x, w),
    "jvp": lambda name, x, w, *dots: jax.jvp(functools.partial(layer, name), (x, w), dots),
    "jvp of a grad": lambda name, x, w, *dots: jax.jvp(gradients(name), (x, w), dots),
    "grad of a jvp": lambda name, x, w, *dots: jax.grad(
        lambda *a: jnp.sum(jax.jvp(functools.partial(layer, name), a[:2], a[2:])[1] ** 2),
        (0, 1, 2, 3),
    )(x, w, *dots),
    "grad of a grad": lambda name, x, w, *dots: jax.grad(
        lambda *a: sum(jnp.vdot(g, d) ** 2 for g, d in zip(gradients(name)(*a), dots, strict=True)),
        (0, 1),
    )(x, w),
    "vmap of a grad": lambda name, x, w, *_: jax.vmap(gradients(name), (0, None))(
        jnp.stack([x, -x]), w
    ),
    "grad of a vmap": lambda name, x, w, *_: jax.grad(
        lambda *a: jnp.sum(jax.vmap(functools.partial(loss, name), (None, 2))(*a) ** 2), (0, 1)
    )(x, jnp.stack([w, 2 * w], 2)),
    "vmap of a jvp": lambda name, x, w, *dots: jax.vmap(
        lambda x, w, w_dot: jax.jvp(functools.partial(layer, name), (x, w), (dots[0], w_dot))[1],
        (None, 0, 1),
    )(x, jnp.stack([w, -w]), jnp.stack([dots[1]] * 2, 1)),
    "linearize": lambda name, x, w, *dots: jax.linearize(functools.partial(layer, name), x, w)[1](
        *dots
    ),
    "scan": lambda name, x, w, *_: jax.grad(
        lambda x, w: jnp.sum(lax.scan(lambda c, _: (layer(name, c, w), None), x, length=2)[0]),
        (0, 1),
    )(x, w),
    "checkpoint": lambda name, x, w, *_: jax.grad(
        lambda x, w: jnp.sum(
            jax.checkpoint(
                lambda *a: layer(name, layer(name, *a), a[1]),
                policy=jax.checkpoint_policies.dots_saveable,
            )(x, w)
        ),
        (0, 1),
    )(x, w),
    "jet of a jvp": lambda name, x, w, *dots: jet.jet(
        lambda x, w: jax.jvp(functools.partial(layer, name), (x, w), dots)[1],
        (x, w),
        ([x, dots[0]], [w, dots[1]]),
    ),
    "jet of a grad": lambda name, x, w, *dots: jet.jet(
        lambda x, w: gradients(name)(x, w)[0], (x, w), ([dots[0], x], [dots[1], w])
    ),
    "transposed by hand": lambda name, x, w, *dots: jax.linear_transpose(
        lambda *tangents: jax.jvp(functools.partial(layer, name), (x, w), tangents)[1], *dots
    )(x),
    "transposed in one tangent": lambda name, x, w, *dots: jax.linear_transpose(
        lambda w_dot: jax.jvp(functools.partial(layer, name), (x, w), (jnp.zeros_like(x), w_dot))[
            1
        ],
        w,
    )(x),
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("is_jitted", [False, True], ids=["eager", "jit"])
def test_derivatives_are_those_of_lax(program: str, is_jitted: bool, arrays: list[Any]) -> None:
    results = []
    for name in LAYERS:
        f = functools.partial(PROGRAMS[program], name)
        results.append((jax.jit(f) if is_jitted else f)(*arrays))
    jax.tree.map(np.testing.assert_array_equal, *results)


def test_a_transposition_in_the_primals(arrays: list[Any]) -> None:
    """The primitive is linear in x and w together as well."""
    x, w, x_dot, w_dot = arrays
    problem = tangent_of(arrays).params["problem"]
    linear = lambda x, w: conv_tangent_p.bind(x, w, x_dot, w_dot, problem=problem)  # noqa: E731
    ct = linear(x, w)
    back = jax.linear_transpose(linear, x, w)(ct)
    expected = jax.vjp(functools.partial(layer, "lax"), x_dot, w_dot)[1](ct)
    # <tangent(x, w; x_dot, w_dot), ct> is the same sum with the pairs exchanged.
    jax.tree.map(np.testing.assert_array_equal, back, expected)


def test_a_tangent_of_another_shape_is_an_error(arrays: list[Any]) -> None:
    x, w, *_ = arrays
    problem = tangent_of(arrays).params["problem"]
    with pytest.raises(TypeError, match="conv_tangent: a tangent is float32"):
        conv_tangent_p.bind(x, w, w, w, problem=problem)


@pytest.mark.parametrize(
    ("argnums", "expected"),
    [(0, {"conv_dgrad": 1}), (1, {"conv_wgrad": 1}), ((0, 1), {"conv_backward": 1})],
)
def test_what_is_not_differentiated_costs_nothing(
    argnums: Any, expected: dict[str, int], arrays: list[Any]
) -> None:
    x, w, *_ = arrays
    found = operators(jax.grad(functools.partial(loss, "ours"), argnums), x, w)
    assert found == Counter(expected) + Counter(conv_fprop=1)


@pytest.mark.on_cpu
@pytest.mark.usefixtures("needs_cpu_handlers")
@pytest.mark.parametrize(("used", "operator"), [(0, "conv_dgrad"), (1, "conv_wgrad")])
def test_what_is_not_used_costs_nothing(used: int, operator: str, arrays: list[Any]) -> None:
    """Of both gradients in one program, by a pullback that is compiled, and in a loop."""
    x, w, *_ = arrays
    y, pullback = jax.vjp(functools.partial(layer, "ours"), x, w)

    def loop(x: Any, w: Any) -> Any:
        body = lambda total, _: (total + gradients("ours")(x, w)[used], None)  # noqa: E731
        return lax.scan(body, jnp.zeros_like((x, w)[used]), length=2)[0]

    programs = {
        "gradients": (lambda *a: gradients("ours")(*a)[used], (x, w)),
        "pullback": (lambda ct: pullback(ct)[used], (y,)),
        "loop": (loop, (x, w)),
    }
    for name, (f, arguments) in programs.items():
        text = jax.jit(f).lower(*arguments).compile().as_text()
        found = called(text)
        assert found[operator] == 1 and found["conv_backward"] == 0, (name, found)
        (rows,) = ([r for r in jax_convgrad.explain(f, *arguments).rows if r.backward],)
        assert {row.operator for row in rows if row.used} == {operator}, name


def test_a_bias_alone_needs_no_other_gradient(arrays: list[Any]) -> None:
    x, w, *_ = arrays
    f = functools.partial(
        jax_convgrad.conv_backward, groups=16, dimension_numbers=NUMBERS, padding="SAME"
    )
    y = layer("ours", x, w)
    dx, _, db = f(x, w, y)
    both = jax.jit(lambda *a: f(*a)[::2])(x, w, y)
    jax.tree.map(np.testing.assert_array_equal, both, (dx, db))
    np.testing.assert_array_equal(jax.jit(lambda *a: f(*a)[2])(x, w, y), db)


def test_dense_layers_keep_two_operators(rng: np.random.Generator) -> None:
    x = jnp.asarray(rng.integers(-2, 3, (2, 20, 16)), jnp.float32)
    w = jnp.asarray(rng.integers(-2, 3, (5, 16, 16)), jnp.float32)
    dense = functools.partial(
        jax_convgrad.conv_general_dilated,
        window_strides=(1,),
        padding="SAME",
        dimension_numbers=NUMBERS,
    )
    found = operators(jax.grad(lambda *a: jnp.sum(dense(*a)), (0, 1)), x, w)
    assert found == Counter(conv_fprop=1, conv_dgrad=1, conv_wgrad=1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_wider_result(dtype: str, arrays: list[Any]) -> None:
    """The cotangent is wider than the operands, and the gradients have the operands' dtype."""
    x, w = (a.astype(dtype) for a in arrays[:2])
    results = [
        jax.grad(
            lambda *a, name=name: jnp.sum(layer(name, *a, preferred_element_type=jnp.float32)),
            (0, 1),
        )(x, w)
        for name in LAYERS
    ]
    jax.tree.map(np.testing.assert_array_equal, *results)
    assert [g.dtype for g in results[0]] == [jnp.dtype(dtype)] * 2


def test_the_precision_reaches_the_gradients(arrays: list[Any]) -> None:
    x, w, *_ = arrays
    f = lambda *a: jnp.sum(layer("ours", *a, precision="highest"))  # noqa: E731
    (found,) = (
        e for e in equations(jax.grad(f, (0, 1)), x, w) if e.primitive.name == "conv_backward"
    )
    assert found.params["problem"].precision == (lax.Precision.HIGHEST,) * 2


def test_checkify_finds_a_nan(arrays: list[Any]) -> None:
    x, w, *dots = arrays
    f = checkify.checkify(
        jax.jit(lambda *a: jax.jvp(functools.partial(layer, "ours"), a[:2], a[2:])[1]),
        errors=checkify.nan_checks,
    )
    assert f(x, w, *dots)[0].get() is None
    error = f(x, w, dots[0].at[0, 3, 2].set(jnp.nan), dots[1])[0].get()
    assert error is not None and "conv_tangent" in error


@pytest.mark.on_cpu
@pytest.mark.usefixtures("needs_cpu_handlers")
def test_a_signal_s_gradients_are_one_call_where_that_is_decided(arrays: list[Any]) -> None:
    x, w, *_ = arrays
    with override_backend("native"):
        text = jax.jit(gradients("ours")).lower(x, w).as_text()
    assert text.count(f"@{registry.BACKWARD_TARGET}") == 1
    assert not any(f"@{registry.CONV_TARGETS[o]}" in text for o in ("conv_dgrad", "conv_wgrad"))

"""Run as a program: shows how this package behaves without some names of JAX.

    python degraded.py FEATURE NAME...
    python degraded.py attributes

hides the names, imports the package, checks that plain convolutions, gradients and resizes are right
without a warning, then uses the feature twice and checks that its results are right too, with one warning.
FEATURE is a key of compat's FEATURES, or "all". With "attributes" it hides each attribute of JAX's objects
that a feature reads, one after the other, and uses that feature.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

if __name__ == "__main__":  # a test imports this file, too
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from support.hidden_names import hidden, hide

NHWC = ("NHWC", "HWIO", "NHWC")
# Their names are looked up when the package registers its primitives.
AT_IMPORT = {"checkpoint_policies", "unused_results", "jet", "checkify"}


def arrays() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)

    def draw(shape: tuple[int, ...]) -> Any:
        return jnp.asarray(rng.integers(-2, 3, shape), np.float32)

    return draw((8, 6, 5, 12)), draw((3, 2, 12, 8))


def loss(convolve: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, w: jnp.sum(convolve(x, w, (2, 2), "SAME", dimension_numbers=NHWC) ** 2)


def fprop(cg: Any, x: Any, w: Any, **options: Any) -> Any:
    return cg.conv_fprop(x, w, dimension_numbers=NHWC, **options)


def gradients(convolve: Callable[..., Any]) -> Callable[..., Any]:
    return jax.grad(loss(convolve), (0, 1))


def same(got: Any, expected: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), got, expected)


def mesh(axis_type: Any = AxisType.Auto, **sizes: int) -> Any:
    sizes = sizes or {"data": 4}
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), (axis_type,) * len(sizes))


def check_plain(cg: Any) -> None:
    """One device, with jit and without: the results are right, and calls are used where they were before."""
    x, w = arrays()
    expected = gradients(lax.conv_general_dilated)(x, w)
    ours = gradients(cg.conv_general_dilated)
    same(ours(x, w), expected)
    same(jax.jit(ours)(x, w), expected)
    with jax.disable_jit():
        same(ours(x, w), expected)
    for precision in (None, "highest", lax.Precision.HIGH, ["highest", "high"]):

        def f(x: Any, w: Any, p: Any = precision) -> Any:
            return cg.conv_transpose(x, w, (2, 2), "SAME", precision=p)

        same(f(x, w), lax.conv_transpose(x, w, (2, 2), "SAME"))
    image = jnp.arange(16.0).reshape(1, 4, 4, 1)

    def f(resize: Any) -> Any:
        return jax.grad(lambda x: jnp.sum(resize(x, (1, 8, 8, 1), "linear") ** 2))(image)

    np.testing.assert_allclose(f(cg.resize), f(jax.image.resize), rtol=1e-6)


def check_install(cg: Any) -> None:
    x, w = arrays()
    f = jax.jit(gradients(lax.conv_general_dilated))

    def resize() -> Any:
        return jax.image.resize(x, (8, 12, 10, 12), "linear")

    expected, resized, original = f(x, w), resize(), jax.image.resize
    cg.install()
    assert jax.image.resize is not original
    same(f(x, w), expected)
    np.testing.assert_allclose(resize(), resized, rtol=1e-5, atol=1e-5)
    cg.uninstall()
    assert jax.image.resize is original
    assert cg.installed() == ()
    same(f(x, w), expected)


def check_sharded(cg: Any) -> None:
    x, w = arrays()
    expected = gradients(lax.conv_general_dilated)(x, w)
    grid = mesh()
    split = jax.device_put(x, NamedSharding(grid, P("data")))
    whole = jax.device_put(w, NamedSharding(grid, P()))
    f = jax.jit(gradients(cg.conv_general_dilated))
    compiled = f.lower(split, whole).compile()
    assert "all-gather" not in compiled.as_text()
    same(compiled(split, whole), expected)
    resized = jax.jit(lambda x: cg.resize(x, (8, 12, 10, 12), "linear"))
    np.testing.assert_allclose(resized(split), resized(x), rtol=1e-6, atol=1e-6)


def check_export(cg: Any) -> None:
    """JAX refuses its calls, or `export_checks` allows them; either way the numbers are right."""
    x, w = arrays()
    f = jax.jit(gradients(cg.conv_general_dilated))
    exported = jax.export.export(f, disabled_checks=cg.export_checks())(x, w)
    same(exported.call(x, w), gradients(lax.conv_general_dilated)(x, w))


def check_shard_map(cg: Any) -> None:
    """The gradient of replicated weights is summed over the devices, without being asked."""
    x, w = arrays()
    grid = mesh()
    for check_vma in (True, False):

        def step(x: Any, w: Any, check_vma: bool = check_vma) -> Any:
            dx, dw = gradients(cg.conv_general_dilated)(x, w)
            return dx, dw if check_vma else lax.psum(dw, "data")

        f = jax.shard_map(
            step,
            mesh=grid,
            in_specs=(P("data"), P()),
            out_specs=(P("data"), P()),
            check_vma=check_vma,
        )
        expected = gradients(lax.conv_general_dilated)(x, w)
        same(jax.jit(f)(x, w), expected)


def check_partial_shard_map(cg: Any) -> None:
    """A question of XLA's for a shard would end the process here."""
    x, w = arrays()
    grid = mesh(data=2, model=2)
    f = jax.jit(
        jax.shard_map(
            lambda x, w: gradients(cg.conv_general_dilated)(x, w),
            mesh=grid,
            in_specs=(P("data"), P()),
            out_specs=(P("data"), P()),
            axis_names={"data"},
        )
    )
    same(f(x, w), gradients(lax.conv_general_dilated)(x, w))


def check_policies(cg: Any) -> None:
    x, w = arrays()
    for policy in (None, jax.checkpoint_policies.dots_saveable):
        saved = jax.checkpoint(loss(cg.conv_general_dilated), policy=policy)
        same(jax.grad(saved, (0, 1))(x, w), gradients(lax.conv_general_dilated)(x, w))


def check_unused_gradient(cg: Any) -> None:
    x, w = arrays()

    def signal(cg_or_lax: Any, x: Any, w: Any) -> Any:
        x, w = x[:, :, 0], w[:, 0, :1].repeat(12, -1)
        numbers = ("NWC", "WIO", "NWC")
        f = cg_or_lax.conv_general_dilated
        y = f(x, w, (1,), "SAME", dimension_numbers=numbers, feature_group_count=12)
        return jnp.sum(y**2)

    for one in (0, 1):
        expected = jax.grad(functools.partial(signal, lax), (0, 1))(x, w)[one]
        gradient = jax.grad(functools.partial(signal, cg), (0, 1))
        same(jax.jit(lambda x, w, one=one, gradient=gradient: gradient(x, w)[one])(x, w), expected)


def check_jet(cg: Any) -> None:
    from jax.experimental import jet

    x, w = arrays()
    try:
        jet.jet(lambda x: fprop(cg, x, w), (x,), ((x,),))
    except (KeyError, NotImplementedError):
        return
    raise AssertionError("jet found a rule")


def check_checkify(cg: Any) -> None:
    from jax.experimental import checkify

    x, w = arrays()
    f = checkify.checkify(lambda x: fprop(cg, x, w), errors=checkify.nan_checks)
    same(f(x)[1], fprop(cg, x, w))


def check_ambiguous_sharding(cg: Any) -> None:
    grid = mesh(AxisType.Explicit)
    x, w = arrays()
    with jax.set_mesh(grid):
        x = jax.device_put(x, P(None, None, None, "data"))
        w = jax.device_put(w, P(None, None, "data"))
        try:
            jax.jit(lambda x, w: fprop(cg, x, w))(x, w)
        except Exception as error:
            assert type(error).__name__ == "ShardingTypeError", error
            assert "ambiguous" in str(error)
            return
    raise AssertionError("it was not ambiguous")


def check_symbolic(cg: Any) -> None:
    x, w = arrays()
    (n,) = jax.export.symbolic_shape("n")
    f = jax.jit(lambda x: fprop(cg, x, w, padding="VALID"))
    shape = jax.ShapeDtypeStruct((8, n, 5, 12), np.float32)
    exported = jax.export.export(f, disabled_checks=cg.export_checks())(shape)
    same(exported.call(x), f(x))


def check_disabled(cg: Any) -> None:
    """A function that is known before, inside a block and after it."""
    x, w = arrays()
    f = jax.jit(gradients(cg.conv_general_dilated))

    def program() -> str:
        return f.lower(x, w).as_text()

    results, text = f(x, w), program()
    with cg.disabled():
        assert "jax_convgrad_" not in program()
        same(f(x, w), results)
    assert program() == text
    same(f(x, w), results)


def check_explain(cg: Any) -> None:
    x, w = arrays()
    rows = cg.explain(jax.jit(gradients(lax.conv_general_dilated)), x, w).rows
    assert sorted(row.operator for row in rows) == ["conv_dgrad", "conv_fprop", "conv_wgrad"]
    image = jnp.ones((1, 4, 4, 1))
    (row,) = cg.explain(lambda x: jax.image.resize(x, (1, 8, 8, 1), "linear"), image).rows
    assert row.operator == "resample"
    # One that stays jax.image's own.
    cg.explain(lambda x: jax.image.resize(x, (4, 4), "nearest"), np.ones((2, 2), np.complex64))
    str(
        cg.explain(
            lambda x, w: lax.scan(
                lambda c, _: (c, loss(lax.conv_general_dilated)(x, w)), 0, None, 3
            ),
            x,
            w,
        )
    )


USES: dict[str, list[Callable[[Any], None]]] = {
    "custom_partitioning": [check_sharded],
    "lowering_context": [check_sharded, check_export, check_partial_shard_map],
    "lowering_rules": [check_install],
    "checkpoint_policies": [check_policies],
    "unused_results": [check_unused_gradient],
    "jet": [check_jet],
    "checkify": [check_checkify],
    "varying_axes": [check_shard_map],
    "sharding_errors": [check_ambiguous_sharding],
    "symbolic_sizes": [check_symbolic],
    "program_keys": [check_disabled],
    "traced_programs": [check_explain],
}


@contextlib.contextmanager
def warned(*features: str) -> Iterator[None]:
    """Inside there is one warning for each feature. It names the feature and a hidden name."""
    from jax_convgrad._src.compat.features import FEATURES, UnsupportedJaxWarning

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    texts = [str(w.message) for w in seen if issubclass(w.category, UnsupportedJaxWarning)]
    check_texts(texts, [FEATURES[name].title for name in features])


def check_texts(texts: list[str], titles: list[str]) -> None:
    assert len(texts) == len(titles), texts
    for title in titles:
        (text,) = (text for text in texts if title in text)
        assert f"jax {jax.__version__} has no " in text, text


def main(feature: str, paths: list[str]) -> None:
    for path in paths:
        hide(path)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        import jax_convgrad as cg

    from jax_convgrad._src.compat.features import FEATURES, UnsupportedJaxWarning

    features = list(FEATURES) if feature == "all" else [feature]
    texts = [str(w.message) for w in seen if issubclass(w.category, UnsupportedJaxWarning)]
    check_texts(texts, [FEATURES[name].title for name in features if name in AT_IMPORT])
    new = [name for name in features if name not in AT_IMPORT]
    if feature == "all":
        # Without knowing whether a program is sharded, the package does not ask for shards.
        new.remove("custom_partitioning")
    with warned(*new):
        # Each lowering asks for its context.
        with warned() if "lowering_context" not in new else contextlib.nullcontext():
            check_plain(cg)
        use_all(cg, features)
    with warned():
        use_all(cg, features)
        # Without one feature the others work as before.
        others = [] if feature == "all" else [*USES.keys() - {feature, "jet", "sharding_errors"}]
        use_all(cg, sorted(others))


def hide_each_attribute() -> None:
    import jax_convgrad as cg
    from jax_convgrad._src.compat.features import FEATURES

    for name, feature in FEATURES.items():
        for path in feature.attributes:
            print(path, flush=True)
            feature._has_warned = False
            with hidden(path):
                with warned(name):
                    use_all(cg, [name])
                with warned():
                    use_all(cg, [name])


def use_all(cg: Any, features: list[str]) -> None:
    for feature in features:
        for use in USES[feature]:
            use(cg)


if __name__ == "__main__":
    if sys.argv[1] == "attributes":
        hide_each_attribute()
    else:
        main(sys.argv[1], sys.argv[2:])

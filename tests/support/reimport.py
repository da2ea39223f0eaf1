"""Run as a program: imports the package anew while install() is on, and turns it off.

"reload" reloads install()'s own modules, "reload-all" every module in the order of their imports, "purge"
forgets and imports them.

With a second argument of 1 somebody has put a function around our `jax.image.resize` before.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


def main(way: str, wrapped: bool) -> None:
    import jax
    import jax.numpy as jnp
    from jax import lax

    import jax_convgrad

    originals = jax.image.resize, jax.image.scale_and_translate
    f = jax.jit(
        lambda x, w: lax.conv_transpose(
            x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
    )
    x, w = jnp.ones((1, 4, 4, 16)), jnp.ones((3, 3, 16, 16))

    def lowered() -> str:
        return f.trace(x, w).lower(lowering_platforms=("tpu", "cpu")).as_text()

    def check_images() -> None:
        for dtype in (jnp.float32, jnp.complex64):
            assert jax.image.resize(jnp.ones((4, 4), dtype), (8, 8), "linear").sum() == 64

    before, result = lowered(), f(x, w)
    jax_convgrad.install()
    ours = jax.image.resize
    if wrapped:
        jax.image.resize = around = lambda *args: ours(*args)
    if way != "purge":
        installs = ["install.jax_image", "install.lowering_rules", "install.switch"]
        names = [f"jax_convgrad._src.{name}" for name in installs]
        if way == "reload-all":
            names = [name for name in sys.modules if name.startswith("jax_convgrad.")]
        for name in names:
            importlib.reload(sys.modules[name])
        jax_convgrad = importlib.reload(jax_convgrad)
    else:
        for name in [n for n in sys.modules if n.split(".")[0] == "jax_convgrad"]:
            del sys.modules[name]
        jax_convgrad = importlib.import_module("jax_convgrad")
    check_images()
    assert jax_convgrad.installed() == ("cpu", "cuda")
    for again in (False, True):
        if again:
            jax_convgrad.install()
            assert jax_convgrad.installed() == ("cpu", "cuda")
            check_images()
            assert jnp.array_equal(f(x, w), result)
        jax_convgrad.uninstall()
        assert jax_convgrad.installed() == ()
        check_images()
        assert jax.image.scale_and_translate is originals[1]
        assert jax.image.resize is (around if wrapped else originals[0])
        assert lowered() == before
        assert jnp.array_equal(f(x, w), result)
    row: Any = jax_convgrad.explain(
        lambda x: jax.image.resize(x, (8,), "linear"), jnp.ones(4)
    ).rows[0]
    assert row.operator == "resample", row
    assert jax.image.resize is (around if wrapped else originals[0])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "1")

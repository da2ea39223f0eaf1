"""What a plan costs does not grow with the image, and one problem does not spoil the next.

The code that oneDNN generates for some layers grows with the innermost axis: 1.2 GB for one of 2**19 columns,
and none at all for 2**25. These programs run in processes of their own, which oneDNN tells what it may use.
"""

from __future__ import annotations

import os
import subprocess

import pytest

pytestmark = pytest.mark.usefixtures("needs_cpu_handlers")

PROLOGUE = """
import jax, jax.numpy as jnp, numpy as np
from jax_convgrad import conv_dgrad, conv_wgrad
from jax_convgrad._src.dispatch.override import override_backend

def resident():
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * 4096 / 2**20

def wgrad(x_shape, w_shape, groups=1, padding=0):
    sizes = [x - w + 1 + 2 * padding for x, w in zip(x_shape[2:], w_shape[2:])]
    x, dy = jnp.ones(x_shape), jnp.ones((x_shape[0], w_shape[0], *sizes))
    pairs = ((padding, padding),) * len(sizes)
    dw = conv_wgrad(x, dy, w_shape, groups=groups, padding=pairs)
    return np.asarray(dw), dy.size // w_shape[0]

override = override_backend("onednn")  # kept: one that is collected ends
override.__enter__()
"""

# MB that remain after a layer's first call, beside its arrays.
MEMORY = """
small = conv_dgrad(jnp.ones((1, 5, 4, 64)), jnp.ones((5, 3, 3, 3)), (1, 3, 4, 64), padding="SAME")
wgrad((1, 8, 64), (8, 4, 3), groups=2)
before = resident()
shape = (1, 3, 4, 2**18)
dy, w = jnp.ones((1, 5, 4, 2**18)), jnp.ones((5, 3, 3, 3))
dx = conv_dgrad(dy, w, shape, padding="SAME")
assert float(dx[0, 0, 2, 1000]) == 45, dx[0, 0, 2, 1000]
dw, pixels = wgrad((1, 8, 2**18), (8, 4, 3), groups=2)
assert (dw == pixels).all(), dw
del dx, dy
grown = resident() - before
assert grown < 200, grown
"""

# The same with padding in which whole windows lie.
PADDED = """
small = conv_dgrad(jnp.ones((1, 5, 4, 64)), jnp.ones((5, 3, 3, 3)), (1, 3, 4, 64), padding="SAME")
wgrad((1, 8, 64), (8, 4, 3), groups=2, padding=3)
before = resident()
shape = (1, 3, 4, 2**17)
dy, w = jnp.ones((1, 5, 4, 2**17 + 4)), jnp.ones((5, 3, 3, 3))
dx = conv_dgrad(dy, w, shape, padding=((1, 1), (3, 3)))
assert float(dx[0, 0, 2, 0]) == float(dx[0, 0, 2, 1000]) == 45, dx[0, 0, 2, :1001]
dw, _ = wgrad((1, 8, 2**18), (8, 4, 3), groups=2, padding=3)
assert (dw == 2**18).all(), dw
del dx, dy
grown = resident() - before
assert grown < 150, grown
"""

# A sum of 2**25 ones, for which there was no primitive, and then layers that have one.
AFTERWARDS = """
for x, w, groups in [
    ((1, 1, 2**25), (5, 1, 3), 1),
    ((1, 1, 64, 64), (5, 1, 3, 3), 1),
    ((1, 1, 8, 8, 16), (1, 1, 1, 1, 1), 1),
    ((2, 4, 31, 33), (4, 1, 3, 3), 4),
]:
    dw, pixels = wgrad(x, w, groups)
    np.testing.assert_allclose(dw, pixels, rtol=1e-6)
"""


@pytest.mark.parametrize(
    ("isa", "program"),
    [
        *[(isa, program) for program in (MEMORY, PADDED) for isa in ("AVX2", "ALL")],
        ("AVX2", AFTERWARDS),
    ],
    ids=["memory-AVX2", "memory-all", "padded-AVX2", "padded-all", "afterwards-AVX2"],
)
def test_long_images(isa: str, program: str, subprocess_python: list[str]) -> None:
    done = subprocess.run(
        [*subprocess_python, "-c", PROLOGUE + program],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": isa},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]

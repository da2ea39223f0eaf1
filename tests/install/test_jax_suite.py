"""JAX's own tests of convolutions and images, with install().

They are not part of this project. JAX_CONVGRAD_JAX_TESTS names a checkout of JAX of the version that is
installed; without one these are skipped. They need absl-py.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax import lax
from support.comparisons import relative_error

import jax_convgrad

pytestmark = pytest.mark.slow

# Each file with the tests of it that install() can change, and how many pass at least.
SUITES = {
    "lax_test.py": ("Conv", 20),
    "lax_autodiff_test.py": ("Conv", 20),
    "lax_vmap_test.py": ("Conv", 20),
    "image_test.py": ("", 20),
    "shape_poly_test.py": ("conv_general_dilated", 5),
}
# They compare float32 results of two programs to 1e-6: of 16-bit operands with those of wider ones, of an
# exported program with those of one that is not. Only one of the two is computed here, and each adds in an
# order of its own, on some processors the same (docs/numerics.md).
KNOWN = {
    "lax_test.py": ("testConvPreferredElement8",),
    "shape_poly_test.py": (
        "test_harness_conv_general_dilated_",
        "test_harness_conv_general_dilated_1d_stride_2_odd",
    ),
}
# Layers as those tests have them: images, weights, strides and padding.
ROUNDED_TO_MORE = {
    "preferred-element": ((3, 2, 9, 10), (3, 2, 4, 5), (1, 1), "VALID"),
    "symbolic": ((7, 3, 9, 10), (3, 3, 4, 5), (1, 2), "VALID"),
    "symbolic-1d": ((1, 16, 12), (16, 16, 4), (2,), "SAME"),
}


@pytest.fixture(scope="module")
def checkout() -> pathlib.Path:
    folder = os.environ.get("JAX_CONVGRAD_JAX_TESTS")
    if not folder:
        pytest.skip("JAX_CONVGRAD_JAX_TESTS names no checkout of JAX")
    if importlib.util.find_spec("absl") is None:
        pytest.fail("JAX's tests need absl-py")
    found = re.search(
        r'^_version = "(.*)"', (pathlib.Path(folder) / "jax/version.py").read_text(), re.M
    )
    assert found is not None and jax.__version__.startswith(found[1]), (
        f"the checkout is of JAX {found and found[1]}, installed is {jax.__version__}"
    )
    return pathlib.Path(folder).resolve()


def run(file: pathlib.Path, *options: str, installed: bool) -> tuple[set[str], int]:
    """The names of the tests that fail, and how many pass."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "pytest",
        "-q",
        "-rfE",
        "--tb=no",
        "-p",
        "no:cacheprovider",
    ]
    configuration = [
        "-c",
        os.devnull,
        "--rootdir",
        str(file.parent),
        "--confcutdir",
        str(file.parent),
    ]
    # The header says what is installed.
    plugins = ["-p", "support.reports_install", "-v"]
    done = subprocess.run(
        [*command, *configuration, *plugins, *options, str(file)],
        env={**os.environ, "JAX_CONVGRAD_INSTALL": str(int(installed))},
        cwd=file.parent,
        capture_output=True,
        text=True,
    )
    on = re.search(r"^install\(\) is on for: (.*)$", done.stdout, re.M)
    assert on is not None and ("cpu" in on[1]) == installed, (
        done.stdout[-2000:] + done.stderr[-2000:]
    )
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
    failed = set(re.findall(r"^(?:FAILED|ERROR) \S+::(\w+)", done.stdout, re.M))
    passed = re.search(r"(\d+) passed", done.stdout)
    return failed, int(passed[1]) if passed else 0


@pytest.mark.parametrize("name", SUITES)
def test_jax_s_own(name: str, checkout: pathlib.Path):
    """Whatever fails with install() fails without it, or is known."""
    file = checkout / "tests" / name
    tests, least = SUITES[name]
    failed, passed = run(file, "-k", tests, installed=True)
    assert passed >= least, f"{passed} tests passed: the names have changed"
    unknown = failed - set(KNOWN.get(name, ()))
    if unknown:
        without, _ = run(file, "-k", " or ".join(sorted(unknown)), installed=False)
        unknown -= without
    assert not unknown


@pytest.mark.parametrize("name", ROUNDED_TO_MORE)
def test_the_tolerance_of_known_ones_is_below_float32_s_rounding(
    name: str, rng: np.random.Generator
):
    """lax's results are further than that from float64, and ours are as near to it as lax's."""
    *shapes, strides, padding = ROUNDED_TO_MORE[name]
    layer = functools.partial(lax.conv_general_dilated, window_strides=strides, padding=padding)
    draws = [[rng.standard_normal(shape).astype(np.float32) for shape in shapes] for _ in range(20)]
    with jax.enable_x64(True):
        exact = [np.asarray(layer(*(array.astype(float) for array in draw))) for draw in draws]
    with jax.default_matmul_precision("highest"):
        theirs = [np.asarray(layer(*draw)) for draw in draws]
        with jax_convgrad.install():
            ours = [np.asarray(layer(*draw)) for draw in draws]
    assert not np.allclose(theirs, exact, rtol=1e-6, atol=1e-6)
    own, lax_s = (
        np.mean([relative_error(*pair) for pair in zip(results, exact, strict=True)])
        for results in (ours, theirs)
    )
    assert own <= 2 * lax_s, (own, lax_s)

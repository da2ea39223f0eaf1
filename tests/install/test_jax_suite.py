"""JAX's own tests of convolutions and images, with install().

They are not part of this project. JAX_CONVGRAD_JAX_TESTS names a checkout of JAX of the version that is
installed; without one these are skipped. They need absl-py.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import jax
import pytest

pytestmark = pytest.mark.slow

# Each file with the tests of it that install() can change.
SUITES = {
    "lax_test.py": "Conv",
    "lax_autodiff_test.py": "Conv",
    "lax_vmap_test.py": "Conv",
    "image_test.py": "",
}
# They compare float32 results of two programs to 1e-6. Each program rounds on its own; both are within the
# distance from float64 that lax's results have.
KNOWN = {"lax_test.py": ("testConvPreferredElement8",)}


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
    failed, passed = run(file, "-k", SUITES[name], installed=True)
    assert passed >= 20, f"{passed} tests passed: the names have changed"
    unknown = failed - set(KNOWN.get(name, ()))
    if unknown:
        without, _ = run(file, "-k", " or ".join(sorted(unknown)), installed=False)
        unknown -= without
    assert not unknown

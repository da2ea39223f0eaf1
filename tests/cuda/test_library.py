"""Which cuDNN is used: the one in the process, then PyPI's, then the system's; and from which version on.

And which driver is too old for the module.

Needs the CUDA module and no GPU: the libraries are fakes with the few functions that are looked up, and
the programs that open them are processes of their own. Skipped where the module is not built
(JAX_CONVGRAD_REQUIRE_CUDA=1 makes that a failure), and on a GPU, where JAX opens a cuDNN itself.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import jax
import pytest

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"

FAKE = """
#include <cstddef>
extern "C" {
#if DRIVER
int cuDriverGetVersion(int* version) { return *version = DRIVER, 0; }
#elif VERSION
std::size_t cudnnGetVersion() { return VERSION; }
int cudnnCreate(void**) { return 1; }  // a status that is not success
int cudnnDestroy(void*) { return 1; }
int cudnnSetStream(void*, void*) { return 1; }
const char* cudnnGetErrorString(int) { return "a fake"; }
#else
int another_library;
#endif
}
"""

# What `info` says at first, and once a convolution was prepared, which opens cuDNN before anything else.
PROGRAM = """
import ctypes, json, os, sys
loaded = sys.argv[1]
if loaded:
    ctypes.CDLL(loaded, mode=ctypes.RTLD_GLOBAL)

import jax, jax.numpy as jnp
import jax_convgrad
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.runtime import registry

said = lambda: jax_convgrad.info()["handlers"]["cuda"]
before = said()
if before["available"]:
    import ffi_caller
    x, w = jnp.ones((1, 4, 4, 8)), jnp.ones((3, 3, 8, 8))
    f = lambda x, w: jax_convgrad.conv_fprop(x, w, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    with override_backend("cudnn"):
        call = ffi_caller.recorded(f, x, w, platform="cuda")
    addresses = [4096] * 4  # nothing gets so far as to read them
    handler = registry.cuda_module().handlers()[call.target]
    try:
        ffi_caller.Call(handler, call, addresses).run(ffi_caller.INITIALIZE)
    except ffi_caller.HandlerError:
        pass  # there is no GPU
print(json.dumps({"before": before, "after": said()}))
"""

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., pathlib.Path]:
    """fakes(91900) is a cuDNN 9.19.0, fakes(0) another library of that name.

    fakes(12080, "libcuda.so.1", "DRIVER") is a driver that supports CUDA 12.8.
    """
    end = pytest.fail if os.environ.get("JAX_CONVGRAD_REQUIRE_CUDA") == "1" else pytest.skip
    if importlib.util.find_spec("jax_convgrad._src.runtime._cuda") is None:
        end("jax_convgrad._src.runtime._cuda is not built")
    if jax.default_backend() == "gpu":
        pytest.skip("JAX opens a cuDNN itself, so that no fake can be in the process")
    if shutil.which("g++") is None:
        end("g++ makes the fakes, and is not installed")
    root = tmp_path_factory.mktemp("cudnn")
    (root / "fake.cc").write_text(FAKE)

    def make(version: int, name: str = "libcudnn.so.9", macro: str = "VERSION") -> pathlib.Path:
        library = root / str(version) / name
        if not library.exists():
            library.parent.mkdir()
            command = ["g++", "-shared", "-fPIC", f"-Wl,-soname,{library.name}"]
            command += [f"-D{macro}={version}", "-o", str(library), str(root / "fake.cc")]
            subprocess.run(command, check=True)
        return library

    return make


@pytest.fixture
def run(fakes: Any, tmp_path: pathlib.Path, subprocess_python: list[str]) -> Run:
    """Runs PROGRAM where these versions are in the process, of PyPI and the system's."""

    def run(
        *,
        loaded: int | None = None,
        wheel: int | str | None = None,
        system: int | None = None,
        driver: int | None = None,
    ) -> dict[str, Any]:
        # In front of an installed wheel, which it hides.
        package = tmp_path / "nvidia"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").touch()
        if wheel is not None:
            library = package / "cudnn" / "lib" / "libcudnn.so.9"
            library.parent.mkdir(parents=True)
            (package / "cudnn" / "__init__.py").touch()
            library.write_bytes(
                wheel.encode() if isinstance(wheel, str) else fakes(wheel).read_bytes()
            )
        found = [fakes(system)] if system is not None else []
        found += [fakes(driver, "libcuda.so.1", "DRIVER")] if driver is not None else []
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(tmp_path), str(BENCHMARKS), os.environ.get("PYTHONPATH", "")]
            ),
            "LD_LIBRARY_PATH": os.pathsep.join(str(library.parent) for library in found),
            "JAX_PLATFORMS": "cpu",
            "CUDA_VISIBLE_DEVICES": "",
        }
        environment.pop("JAX_CONVGRAD_REQUIRE_CUDA", None)
        done = subprocess.run(
            [*subprocess_python, "-c", PROGRAM, "" if loaded is None else str(fakes(loaded))],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def version(said: dict[str, Any]) -> str:
    assert said["available"] and said["reason"] is None
    return said["versions"]["cudnn"]


def test_the_one_in_the_process_is_used_before_any_other(run: Run):
    found = run(loaded=91900, wheel=91500, system=91200)
    assert version(found["before"]) == version(found["after"]) == "9.19.0"


def test_pypis_is_used_before_the_systems(run: Run):
    """And asking which it is opens none."""
    found = run(wheel=91500, system=91200)
    assert version(found["before"]) == "not loaded yet"
    assert version(found["after"]) == "9.15.0"


@pytest.mark.parametrize("wheel", [None, "no library"], ids=["no wheel", "broken wheel"])
def test_the_systems_is_used_where_pypis_is_not_there(wheel: str | None, run: Run):
    found = run(wheel=wheel, system=91200)
    assert version(found["before"]) == "not loaded yet"
    assert version(found["after"]) == "9.12.0"


def test_the_oldest_that_serves(run: Run):
    assert version(run(loaded=91001)["before"]) == "9.10.1"


@pytest.mark.parametrize(("old", "text"), [(91000, "9.10.0"), (90000, "9.0.0")])
def test_an_older_one_in_the_process_is_refused(old: int, text: str, run: Run):
    """Also where a newer one could be opened: two in one process do not go together."""
    said = run(loaded=old, wheel=91900, system=91900)["before"]
    assert not said["available"]
    assert said["reason"] == (
        f"ImportError: the cuDNN in this process is {text}, expected 9.10.1 or newer "
        "(pip install -U nvidia-cudnn-cu13)"
    )


def test_an_older_one_that_was_opened_is_refused_and_info_says_so(run: Run):
    found = run(system=90000)
    assert version(found["before"]) == "not loaded yet"
    assert not found["after"]["available"]
    assert "the cuDNN in this process is 9.0.0, expected 9.10.1" in found["after"]["reason"]


def test_another_library_of_that_name_is_refused(run: Run):
    said = run(loaded=0)["before"]
    assert not said["available"]
    assert (
        "libcudnn.so.9 is not a cuDNN library: " in said["reason"]
        and "cudnnGetVersion" in said["reason"]
    )


def test_a_driver_older_than_the_runtime_is_named(run: Run):
    """It serves every runtime of its own major, and none of a newer one."""
    runtime = run()["before"]["versions"]["cuda runtime"]
    major = int(runtime.split(".")[0])
    said = run(driver=1000 * (major - 1) + 80)["before"]
    assert not said["available"]
    assert said["reason"].startswith(
        f"RuntimeError: the NVIDIA driver supports CUDA {major - 1}.8 at most, and this build has the "
        f"runtime of CUDA {runtime}. Update the driver"
    )
    assert '".[cuda12]"' in said["remedy"]
    assert run(driver=1000 * major)["before"]["available"]

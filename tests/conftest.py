"""Set-up shared by all tests: float64, eight virtual CPU devices, quick compilation, a generator per test."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import zlib
from collections.abc import Generator, Iterator
from typing import Any

# Read when the CPU backend starts, so it must be set before anything imports jax and uses it.
_DEVICES = "--xla_force_host_platform_device_count=8"
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}".strip()

# Thousands of small programs are compiled once and run once: without XLA's expensive passes the tests
# take half the time. What is tested lies in front of them and beside them; =0 runs them with the passes.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

# What this machine's user tuned is not what the tests expect.
os.environ["JAX_CONVGRAD_TUNING"] = "off"

# Programs that tests start import their helpers by the same names as the tests do.
_path = [str(pathlib.Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
os.environ["PYTHONPATH"] = os.pathsep.join(_path)

import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from support import matrix, torch_oracles  # noqa: E402

# Hooks of pytest's: what a crashed worker was doing.
from support.crashes import (  # noqa: E402
    pytest_configure,  # noqa: F401
    pytest_terminal_summary,  # noqa: F401
    pytest_unconfigure,  # noqa: F401
)

import jax_convgrad  # noqa: E402
from jax_convgrad._src.dispatch.override import override_backend  # noqa: E402
from jax_convgrad._src.runtime import registry  # noqa: E402

jax.config.update("jax_enable_x64", True)

# A failing test says what the case is by its name; these say what the arrays are.
np.set_printoptions(threshold=200, linewidth=120)


def pytest_report_header() -> list[str]:
    info = jax_convgrad.info()
    lines = ["jax_convgrad: " + ", ".join(f"{k} {v}" for k, v in info["versions"].items())]
    for platform, entry in info["handlers"].items():
        found = ", ".join(f"{k} {v}" for k, v in entry["versions"].items())
        what = f"{found}; {', '.join(entry['dtypes'])}" if entry["available"] else entry["reason"]
        lines.append(f"jax_convgrad handlers for {platform}: {what}")
    return lines


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Writes failures down as they come: a run that is stopped by a time limit has told them too."""
    path = os.environ.get("JAX_CONVGRAD_FAILURES")
    if path and report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(path, "a") as file:
            file.write(f"{report.nodeid} ({report.when})\n{report.longreprtext}\n\n")


def _requires_matrix() -> bool:
    return os.environ.get("JAX_CONVGRAD_REQUIRE_MATRIX") == "1"


def pytest_runtest_setup(item: pytest.Item) -> None:
    from support import meshes

    for mark in item.iter_markers("devices"):
        meshes.need_mesh(*mark.args)
    if item.get_closest_marker("pytorch") and not torch_oracles.HAS_TORCH:
        end = pytest.fail if os.environ.get("JAX_CONVGRAD_REQUIRE_PYTORCH") == "1" else pytest.skip
        end("PyTorch, the oracle, is not installed")
    row = item.get_closest_marker("matrix")
    if row is not None and _requires_matrix() and matrix.too_few(row.kwargs, meshes.DEVICES):
        pytest.skip(f"shown on {row.kwargs['devices']} devices, there are {meshes.DEVICES}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, pytest.TestReport]:
    """JAX_CONVGRAD_REQUIRE_MATRIX=1: a row of the matrix that is not shown is a failure."""
    from support import meshes

    report = yield
    row = item.get_closest_marker("matrix")
    if report.skipped and row is not None and _requires_matrix():
        if not matrix.too_few(row.kwargs, meshes.DEVICES):
            report.outcome = "failed"
            report.longrepr = f"the matrix's row {row.args[0]!r} was skipped: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, pytest.CollectReport]:
    """So is a file of such tests that is skipped as a whole."""
    report = yield
    if report.skipped and _requires_matrix():
        file = pathlib.PurePath(report.nodeid).with_suffix("")
        if "/".join(file.parts[-2:]) in {m.file for m in matrix.marks()}:
            report.outcome = "failed"
            report.longrepr = f"tests of the matrix were skipped: {report.longrepr}"
    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--backend", help="one backend for every problem that its handlers take")


@pytest.fixture(autouse=True, scope="session")
def _overridden_backend(request: pytest.FixtureRequest) -> Iterator[None]:
    backend = request.config.getoption("--backend")
    with override_backend(backend) if backend else contextlib.nullcontext():
        yield


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Seeded from the test's name: a test sees the same data alone, in any order, anywhere."""
    name = request.node.nodeid.rpartition("/")[2]
    return np.random.default_rng(zlib.crc32(name.encode()))


@pytest.fixture(autouse=True)
def _on_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tests of the CPU's handlers, and those marked on_cpu, run on the CPU beside a GPU too."""
    is_of_cpu = request.path.parent.name == "cpu" or request.node.get_closest_marker("on_cpu")
    if not is_of_cpu or jax.default_backend() == "cpu":
        yield
        return
    # Of all threads, and of the programs that a test starts.
    jax.config.update("jax_default_device", jax.devices("cpu")[0])
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("JAX_CONVGRAD_REQUIRE_CUDA", raising=False)
    yield
    jax.config.update("jax_default_device", None)


_TESTS_PER_CACHE = 100
_finished: list[None] = []


@pytest.fixture(autouse=True)
def _bounded_memory() -> Iterator[None]:
    """Drops compiled programs now and then: thousands of them cost gigabytes."""
    yield
    _finished.append(None)
    if len(_finished) % _TESTS_PER_CACHE == 0:
        jax.clear_caches()


@pytest.fixture
def uninstalled() -> Iterator[None]:
    """install() is off, before and after, and no backend is forced."""
    jax_convgrad.uninstall()
    with override_backend(None):
        yield
    jax_convgrad.uninstall()


@pytest.fixture
def installed() -> Iterator[None]:
    """install() is on meanwhile."""
    jax_convgrad.install()
    yield
    jax_convgrad.uninstall()


@pytest.fixture
def without_x64() -> Iterator[None]:
    """JAX's own default, in which a model's numbers are float32."""
    with jax.enable_x64(False):
        yield


@pytest.fixture(scope="session")
def cpu_handlers() -> bool:
    """Whether the compiled CPU module serves; JAX_CONVGRAD_REQUIRE_CPU=1 makes it an error if not."""
    return registry.require("cpu").reason is None


@pytest.fixture(scope="session")
def needs_cpu_handlers() -> None:
    """For what is said about the handlers' calls: without them there are none (see `cpu_handlers`)."""
    if (reason := registry.require("cpu").reason) is not None:
        pytest.skip(f"no CPU handlers: {reason}")


@pytest.fixture(scope="session")
def needs_cuda_handlers() -> None:
    """For what runs on a GPU alone. JAX_CONVGRAD_REQUIRE_CUDA=1 makes it a failure if there is none."""
    if jax.default_backend() == "gpu" and jax.devices()[0].platform == "gpu":
        reason = registry.require("cuda").reason
    else:
        reason = f"JAX runs on {jax.default_backend()}"
    if reason is not None:
        end = pytest.fail if os.environ.get("JAX_CONVGRAD_REQUIRE_CUDA") == "1" else pytest.skip
        end(f"no CUDA handlers: {reason}")


@pytest.fixture
def subprocess_python() -> list[str]:
    """The command that starts this interpreter anew."""
    return [sys.executable]

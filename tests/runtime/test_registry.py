"""Loading handlers: what is there is found, what is not is said, and nothing else breaks."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading
import types
import warnings

import jax
import pytest
from support import jax_internals

import jax_convgrad
from jax_convgrad import plans
from jax_convgrad._src.conv import arguments
from jax_convgrad._src.conv.geometry import ConvGeometry
from jax_convgrad._src.dispatch.decide import PLATFORMS, Decision, decide
from jax_convgrad._src.dispatch.devices import Target
from jax_convgrad._src.dispatch.problem import ConvOperator, ConvProblem
from jax_convgrad._src.dtypes import FLOAT_DTYPES
from jax_convgrad._src.runtime import registry


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("JAX_CONVGRAD_REQUIRE_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


# The library that the module needs cannot be opened: what the loader says of it must be shown.
WITHOUT_HANDLERS = """
import ctypes, warnings
import jax, jax.numpy as jnp, jax_convgrad
from jax_convgrad._src.runtime import registry
registry._import_{platform} = lambda: ctypes.CDLL("library-that-is-not-there.so.3")
"""
# On both platforms a handler's.
PROBLEM = (
    "jax_convgrad.conv_wgrad(jnp.ones((1, 2, 8)), jnp.ones((1, 16, 3)), (16, 2, 3), strides=2)"
)

per_platform = pytest.mark.parametrize(
    "platform",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=pytest.mark.skipif(jax.default_backend() != "gpu", reason="JAX runs on no GPU"),
        ),
    ],
)


def test_info_names_versions_and_handlers():
    info = jax_convgrad.info()
    assert {"python", "jax", "jaxlib", "numpy", "jax-convgrad"} <= set(info["versions"])
    assert info["versions"]["jax-convgrad"] == jax_convgrad.__version__
    cpu = info["handlers"]["cpu"]
    assert cpu["available"] == (cpu["reason"] is None)
    if cpu["available"]:
        conv, own = set(registry.CONV_TARGETS.values()), {*registry.TARGETS}
        assert conv <= set(cpu["targets"]) <= conv | own
        assert "float32" in cpu["dtypes"] and "onednn" in cpu["versions"]
        assert cpu["validated"] == {"onednn": "3.2"}


@pytest.mark.parametrize(
    ("loaded", "named"),
    [
        ("3.2.0", False),
        ("3.2.17", False),
        ("3.20.0", True),
        ("3.3.0", True),
        ("13.2.0", True),
        ("not loaded yet", False),
    ],
)
def test_a_library_of_another_version_is_named_once(
    loaded: str, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = registry.PlatformHandlers(
        versions=(("onednn", loaded),), validated=(("onednn", "3.2"),)
    )
    monkeypatch.setattr(registry, "_load", lambda platform: found)
    monkeypatch.setattr(registry, "_warned", set())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            registry.require("cpu")
            jax_convgrad.info()
    assert [w.category for w in caught] == [jax_convgrad.UnvalidatedLibraryWarning] * named
    assert all(f"onednn 3.2, but {loaded} is loaded" in str(w.message) for w in caught)


def test_importing_the_package_starts_no_backend_and_loads_no_handler():
    code = (
        f"import sys, jax_convgrad; {jax_internals.NO_BACKEND_HAS_STARTED};"
        "assert 'jax_convgrad._src.runtime._cpu' not in sys.modules"
    )
    result = run(code)
    assert result.returncode == 0, result.stderr


@per_platform
def test_without_the_module_programs_run_and_one_warning_says_why(platform: str):
    code = (
        WITHOUT_HANDLERS.format(platform=platform)
        + f"""
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        dw = {PROBLEM}
        dw2 = {PROBLEM.replace("8", "10").replace("16, 3", "16, 4")}
messages = [str(w.message) for w in caught if w.category is registry.MissingHandlersWarning]
assert len(messages) == 1, messages
assert "library-that-is-not-there.so.3" in messages[0], messages
assert float(dw[0, 0, 0]) == 3.0 and float(dw2[0, 0, 0]) == 4.0
reason = jax_convgrad.info()["handlers"]["{platform}"]["reason"]
assert "library-that-is-not-there.so.3" in reason
"""
    )
    result = run(code, JAX_PLATFORMS=platform, **{f"JAX_CONVGRAD_REQUIRE_{platform.upper()}": "0"})
    assert result.returncode == 0, result.stderr


@per_platform
def test_requiring_the_handlers_makes_their_absence_an_error(platform: str):
    code = WITHOUT_HANDLERS.format(platform=platform) + PROBLEM
    result = run(code, JAX_PLATFORMS=platform, **{f"JAX_CONVGRAD_REQUIRE_{platform.upper()}": "1"})
    assert result.returncode != 0
    assert f"RuntimeError: jax_convgrad has no handlers for {platform}" in result.stderr
    assert "library-that-is-not-there.so.3" in result.stderr


@per_platform
def test_what_is_missing_is_told_where_it_is_required(platform: str):
    code = WITHOUT_HANDLERS.format(platform=platform)
    code += f"""
assert "library-that-is-not-there.so.3" in jax_convgrad.info()["handlers"]["{platform}"]["reason"]
assert jax_convgrad.has_cuda() in (True, False) and "{platform}" in ("cpu", "cuda")
try:
    jax_convgrad.load_handlers("{platform}")
except RuntimeError as error:
    assert "there are no handlers for {platform}" in str(error), error
else:
    raise AssertionError("load_handlers found some")
"""
    result = run(code, JAX_PLATFORMS=platform, **{f"JAX_CONVGRAD_REQUIRE_{platform.upper()}": "1"})
    assert result.returncode == 0, result.stderr


def geometry(*, channels: int = 8, groups: int = 1) -> ConvGeometry:
    x_shape, w_shape = (2, channels, 9, 9), (8, channels // groups, 3, 3)
    config = arguments.make_config(
        "test",
        x_shape,
        w_shape,
        strides=1,
        padding="SAME",
        dilation=1,
        groups=groups,
        dimension_numbers=None,
    )
    return ConvGeometry.make("test", config, x_shape, w_shape)


def decided(platform: str | None, operator: ConvOperator, dtype: str) -> Decision:
    return decide(ConvProblem.make(operator, geometry(), dtype), Target.of(platform))


@pytest.fixture
def handlers_of_all_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stays away from them does so by the rules alone."""
    targets = frozenset(registry.TARGETS)
    found = registry.PlatformHandlers(targets, frozenset(map(str, FLOAT_DTYPES)))
    monkeypatch.setattr(registry, "require", lambda platform: found)


@pytest.mark.usefixtures("handlers_of_all_dtypes")
@pytest.mark.parametrize("operator", list(registry.CONV_TARGETS))
@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu", "rocm", None])
def test_decisions_are_total_and_say_why(operator: ConvOperator, platform: str | None):
    for dtype in FLOAT_DTYPES:
        decision = decided(platform, operator, dtype)
        assert decision.reason
        assert decision.backend in {*PLATFORMS, "xla", "xla_rewritten"}
        if decision.backend in PLATFORMS:
            assert PLATFORMS[decision.backend] == platform


@pytest.mark.usefixtures("handlers_of_all_dtypes")
def test_the_cpu_handlers_are_never_asked_for_what_onednn_lacks():
    for operator in registry.CONV_TARGETS:
        assert decided("cpu", operator, "float64").backend == "xla_rewritten"
        found = decided("cpu", operator, "float16")
        assert (found.backend, found.preparation.name) == ("onednn", "float32")


def test_handlers_serve_what_they_have_only():
    found = registry.PlatformHandlers(frozenset({"target"}), frozenset({"float32"}))
    assert found.serves("target", "float32")
    assert not found.serves("target", "bfloat16")
    assert not found.serves("other", "float32")


def test_threads_save_and_load_one_file(tmp_path: pathlib.Path) -> None:
    """A reader meets a whole file, through a link too."""
    (tmp_path / "link.json").symlink_to("plans.json")
    plans.save(tmp_path / "link.json")
    errors: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(25):
                plans.save(tmp_path / "link.json")
                plans.load(tmp_path / "plans.json")
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert (tmp_path / "link.json").is_symlink() and len(list(tmp_path.iterdir())) == 2
    plans.save(tmp_path / ("a" * 250 + ".json"))


def test_a_package_without_its_library_is_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """What `pip install --target` leaves out is listed in what it installed."""
    folder = tmp_path / "half-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: half\nVersion: 1.0\n")
    (folder / "RECORD").write_text("../../libhalf.so,,\nhalf/there.py,,\n")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "there.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert registry._installed_file("half", "there.py") == tmp_path / "half" / "there.py"
    with pytest.raises(ImportError, match="half is installed without its libhalf"):
        registry._installed_file("half", "libhalf.so")
    with pytest.raises(ImportError, match="the package none-such is not installed"):
        registry._installed_file("none-such", "libhalf.so")


@pytest.mark.parametrize(
    "newest, reason",
    [
        (
            (12, 8),
            r"driver supports CUDA 12\.8 at most, and this build has the runtime of CUDA 13\.0",
        ),
        ((13, 0), None),
        ((14, 1), None),
        (None, None),
    ],
)
def test_a_driver_older_than_the_runtime_is_named(newest, reason, monkeypatch) -> None:
    module = types.SimpleNamespace(versions=lambda: {"cuda runtime": "13.0"})
    monkeypatch.setattr(registry, "_newest_cuda_of_driver", lambda: newest)
    if reason is None:
        registry._check_driver(module)
    else:
        with pytest.raises(RuntimeError, match=reason):
            registry._check_driver(module)


def test_the_drivers_number_is_read(monkeypatch) -> None:
    def version(pointer) -> int:
        pointer._obj.value = 12080
        return 0

    library = types.SimpleNamespace(cuDriverGetVersion=version)
    monkeypatch.setattr(registry.ctypes, "CDLL", lambda name: library)
    assert registry._newest_cuda_of_driver() == (12, 8)


def test_a_vendored_onednn_is_used(monkeypatch, tmp_path) -> None:
    """The module of a release finds its own copy: no other package is asked for one."""
    (tmp_path / "libdnnl-0123abcd.so.3.2").touch()
    monkeypatch.setattr(registry, "_VENDORED_LIBRARIES", tmp_path)
    monkeypatch.setattr(registry, "_ONEDNN_DISTRIBUTION", "none-such")
    monkeypatch.setattr(registry, "_import_extension", lambda name: name)
    assert registry._import_cpu.__wrapped__() == "_cpu"

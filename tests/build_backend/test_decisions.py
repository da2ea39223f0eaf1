"""What the build backend decides, for each combination of a driver, a compiler and the user's word."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
import types

import pytest

ROOT = pathlib.Path(__file__).parents[2]
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}.65.06  Release Build\nGCC version: 12"


@pytest.fixture
def backend(monkeypatch, tmp_path):
    """The backend on a machine with neither a driver nor a compiler, beside a backend that records."""
    calls = []
    scikit_build = types.ModuleType("scikit_build_core.build")

    def build_wheel(folder, settings, metadata):
        calls.append(settings)
        return "wheel"

    for name in ("wheel", "editable", "sdist"):
        setattr(scikit_build, f"get_requires_for_build_{name}", lambda settings=None: ["ninja"])
        setattr(scikit_build, f"build_{name}", build_wheel)
    for name in ("wheel", "editable"):
        setattr(scikit_build, f"prepare_metadata_for_build_{name}", lambda *arguments: "metadata")
    package = types.ModuleType("scikit_build_core")
    package.build = scikit_build
    monkeypatch.setitem(sys.modules, "scikit_build_core", package)
    monkeypatch.setitem(sys.modules, "scikit_build_core.build", scikit_build)
    spec = importlib.util.spec_from_file_location(
        "convgrad_build", ROOT / "build_backend/convgrad_build.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.calls = calls
    monkeypatch.setattr(module, "DRIVER_FILE", tmp_path / "version")
    monkeypatch.setattr(module, "WSL_DRIVER", tmp_path / "libcuda.so.1")
    monkeypatch.setattr(module, "DEFAULT_TOOLKIT", tmp_path / "toolkit")
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in (module.VARIABLE, *module.TOOLKIT_VARIABLES):
        monkeypatch.setenv(name, "")  # so that what a build sets ends with the test
        monkeypatch.delenv(name)
    return module


def add_driver(backend, version=580):
    backend.DRIVER_FILE.write_text(OPEN.format(version))


def add_toolkit(root, version="12.6"):
    """A compiler that says its version in nvcc's words, or nothing."""
    (root / "bin").mkdir(parents=True)
    said = f"Cuda compilation tools, release {version}, V{version}.20" if version else ""
    (root / "bin/nvcc").write_text(f"#!/bin/sh\necho '{said}'\n")
    (root / "bin/nvcc").chmod(0o755)


def test_no_driver_builds_for_the_cpu_alone(backend, capsys):
    assert backend.get_requires_for_build_wheel() == ["ninja"]
    assert backend.build_wheel("folder", {"other": "kept"}) == "wheel"
    assert backend.calls == [{"other": "kept", backend.DEFINE: "OFF"}]
    assert capsys.readouterr().err.count("\n") == 1


def test_a_driver_without_a_compiler_brings_one(backend):
    add_driver(backend)
    for hook in (backend.get_requires_for_build_wheel, backend.get_requires_for_build_editable):
        assert hook() == ["ninja", *backend.HEADERS, *backend.TOOLKIT]
    assert "nvidia-cuda-nvcc==13.0.*" in backend.TOOLKIT


def test_the_driver_of_windows_is_a_driver(backend, monkeypatch):
    """WSL 2 has the library, and no /proc/driver/nvidia."""
    backend.WSL_DRIVER.touch()
    assert backend.get_requires_for_build_wheel() == ["ninja", *backend.HEADERS, *backend.TOOLKIT]
    monkeypatch.setenv(backend.VARIABLE, "0")
    assert backend.get_requires_for_build_wheel() == ["ninja"]


def test_the_library_of_wsl_is_where_the_page_says(backend):
    spec = importlib.util.spec_from_file_location("original", backend.__file__)
    original = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(original)
    assert f"`{original.WSL_DRIVER}`" in (ROOT / "docs/installation.md").read_text()


@pytest.mark.parametrize("place", ["path", "default", "CUDA_HOME", "CUDAToolkit_ROOT"])
def test_a_compiler_is_not_brought_twice(backend, place, monkeypatch, tmp_path):
    add_driver(backend)
    root = tmp_path / "toolkit" if place == "default" else tmp_path / "elsewhere"
    add_toolkit(root)
    if place == "path":
        monkeypatch.setenv("PATH", str(root / "bin"))
    elif place != "default":
        monkeypatch.setenv(place, str(root))
    assert backend.get_requires_for_build_wheel() == ["ninja", *backend.HEADERS]


def test_the_oldest_toolkit_is_that_of_cmake_and_of_the_pages(backend):
    oldest = backend.dotted(backend.min_toolkit())
    asked = (ROOT / "cpp/cuda/CMakeLists.txt").read_text()
    assert (
        f"find_package(CUDAToolkit {oldest})" in asked and f"toolkit of {oldest} or newer" in asked
    )
    page = (ROOT / "docs/installation.md").read_text()
    assert f"no CUDA toolkit of {oldest} or newer was found" in page
    assert f"install a CUDA 12 toolkit ({oldest} or newer" in page


@pytest.mark.parametrize(
    ("version", "counts"),
    [("9.2", False), ("12.5", False), ("12.6", True), ("12.10", True), ("13.0", True), ("", False)],
)
def test_a_compiler_counts_if_cmake_accepts_its_version(backend, version, counts, tmp_path):
    add_driver(backend)
    add_toolkit(tmp_path / "toolkit", version)
    brought = [] if counts else backend.TOOLKIT
    assert backend.get_requires_for_build_wheel() == ["ninja", *backend.HEADERS, *brought]


def test_a_compiler_that_does_not_run_counts_as_none(backend, tmp_path):
    add_driver(backend)
    add_toolkit(tmp_path / "toolkit")
    (tmp_path / "toolkit/bin/nvcc").chmod(0o644)
    assert backend.get_requires_for_build_wheel() == ["ninja", *backend.HEADERS, *backend.TOOLKIT]


def test_an_old_compiler_is_passed_over_for_a_newer_one(backend, monkeypatch, tmp_path, capsys):
    """CMake would stop at the old one, which stands in front."""
    add_driver(backend)
    add_toolkit(tmp_path / "old", "11.5")
    add_toolkit(tmp_path / "toolkit", "12.8")
    monkeypatch.setenv("PATH", str(tmp_path / "old/bin"))
    assert backend.get_requires_for_build_wheel() == ["ninja", *backend.HEADERS]
    backend.build_wheel("folder")
    assert backend.os.environ["CUDAToolkit_ROOT"] == str(tmp_path / "toolkit")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"{tmp_path}/old/bin/nvcc is of CUDA 11.5, and 12.6 or newer is needed" in said
    assert f"the compiler is {tmp_path}/toolkit/bin/nvcc" in said


def test_of_two_that_serve_the_one_in_path_is_used(backend, monkeypatch, tmp_path):
    """As CMake does, which does not read $CUDA_HOME; $CUDAToolkit_ROOT alone comes before it."""
    add_driver(backend)
    for name in ("asked", "path", "home"):
        add_toolkit(tmp_path / name, "13.0")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert backend.find_toolkit().nvcc == tmp_path / "home/bin/nvcc"
    monkeypatch.setenv("PATH", str(tmp_path / "path/bin"))
    assert backend.find_toolkit().nvcc == tmp_path / "path/bin/nvcc"
    monkeypatch.setenv("CUDAToolkit_ROOT", str(tmp_path / "asked"))
    assert backend.find_toolkit().nvcc == tmp_path / "asked/bin/nvcc"


def test_what_cmake_finds_by_itself_is_left_to_it(backend, monkeypatch, tmp_path):
    """A compiler in PATH may be a link or a script: its folder need not be a toolkit's."""
    add_driver(backend)
    add_toolkit(tmp_path / "new")
    monkeypatch.setenv("PATH", str(tmp_path / "new/bin"))
    backend.build_wheel("folder")
    assert "CUDAToolkit_ROOT" not in backend.os.environ


def test_an_old_compiler_is_named_once_and_pypis_is_used(backend, monkeypatch, tmp_path, capsys):
    add_driver(backend)
    add_toolkit(tmp_path / "toolkit", "11.5")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    add_toolkit(tmp_path / "nvidia/cu13", "13.0")
    (tmp_path / "nvidia/cu13/lib").mkdir()
    found = types.SimpleNamespace(submodule_search_locations=[str(tmp_path / "nvidia")])
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: found)
    backend.build_wheel("folder")
    assert backend.os.environ["CUDAToolkit_ROOT"] == str(tmp_path / "nvidia/cu13")
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.count("CUDA 11.5") == 1
    assert "the compiler is PyPI's" in said


def test_an_old_compiler_and_an_old_driver_are_both_named(backend, tmp_path):
    add_driver(backend, 535)
    add_toolkit(tmp_path / "toolkit", "11.5")
    with pytest.raises(RuntimeError, match=r"no nvcc that serves \(.*CUDA 11\.5.*not 535"):
        backend.get_requires_for_build_wheel()


def test_zero_leaves_it_out(backend, monkeypatch):
    add_driver(backend)
    monkeypatch.setenv(backend.VARIABLE, "0")
    assert backend.get_requires_for_build_wheel() == ["ninja"]
    backend.build_wheel("folder")
    assert backend.calls == [{backend.DEFINE: "OFF"}]


def test_one_forces_it(backend, monkeypatch, tmp_path, capsys):
    add_toolkit(tmp_path / "toolkit")
    monkeypatch.setenv(backend.VARIABLE, "1")
    assert backend.get_requires_for_build_wheel() == ["ninja", *backend.HEADERS]
    backend.build_wheel("folder")
    assert backend.calls == [{backend.DEFINE: "ON"}]
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "with the CUDA module, which takes minutes" in said


def test_the_setting_wins_over_the_variable(backend, monkeypatch):
    monkeypatch.setenv(backend.VARIABLE, "1")
    assert backend.get_requires_for_build_wheel({backend.DEFINE: "OFF"}) == ["ninja"]


def test_other_words_are_an_error(backend, monkeypatch):
    monkeypatch.setenv(backend.VARIABLE, "maybe")
    with pytest.raises(ValueError, match="JAX_CONVGRAD_CUDA must be 1 or 0, got 'maybe'"):
        backend.get_requires_for_build_wheel()


def test_a_driver_too_old_for_the_compiler_on_pypi_is_named(backend):
    add_driver(backend, 535)
    with pytest.raises(RuntimeError, match=r"580 or newer, not 535.*JAX_CONVGRAD_CUDA=0"):
        backend.get_requires_for_build_wheel()


def test_an_old_driver_is_no_matter_with_a_toolkit(backend, tmp_path):
    add_driver(backend, 535)
    add_toolkit(tmp_path / "toolkit")
    assert backend.get_requires_for_build_wheel() == ["ninja", *backend.HEADERS]


def test_a_driver_file_without_a_version_is_an_error(backend):
    backend.DRIVER_FILE.write_text("nothing")
    with pytest.raises(RuntimeError, match="to name the NVIDIA driver's version"):
        backend.get_requires_for_build_wheel()


def test_a_build_without_isolation_says_what_to_install(backend, monkeypatch):
    add_driver(backend)
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match=r"there is no nvcc\. Run: pip install"):
        backend.build_wheel("folder")
    assert backend.calls == []


def test_the_compiler_from_pypi_is_used(backend, monkeypatch, tmp_path):
    add_driver(backend)
    add_toolkit(tmp_path / "nvidia/cu13")
    (tmp_path / "nvidia/cu13/lib").mkdir()
    found = types.SimpleNamespace(submodule_search_locations=[str(tmp_path / "nvidia")])
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: found)
    monkeypatch.setenv("CUDAToolkit_ROOT", "")
    backend.build_wheel("folder")
    assert backend.os.environ["CUDAToolkit_ROOT"] == str(tmp_path / "nvidia/cu13")
    assert (tmp_path / "nvidia/cu13/lib/libcudart.so").is_symlink()
    assert backend.calls == [{backend.DEFINE: "ON"}]


def test_a_failed_build_says_how_to_go_on(backend, monkeypatch, tmp_path, capsys):
    add_driver(backend)
    add_toolkit(tmp_path / "toolkit")

    def fail(folder, settings, metadata):
        raise SystemExit(1)

    monkeypatch.setattr(backend.scikit_build, "build_wheel", fail)
    with pytest.raises(SystemExit):
        backend.build_wheel("folder")
    assert "JAX_CONVGRAD_CUDA=0 builds without CUDA handlers" in capsys.readouterr().err

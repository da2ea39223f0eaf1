"""scripts/check_wheel.py, which every release's wheel goes through, names each thing that a wheel lacks."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import subprocess
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]
NAME = "jax_convgrad-0.1.0-cp312-abi3-manylinux_2_28_x86_64.whl"
INFO = "jax_convgrad-0.1.0.dist-info"
FILES = {
    "the CPU module": "jax_convgrad/_src/runtime/_cpu.abi3.so",
    "the CUDA module": "jax_convgrad/_src/runtime/_cuda.abi3.so",
    "oneDNN": "jax_convgrad.libs/libdnnl-0123abcd.so.3.2",
    "OpenMP's runtime": "jax_convgrad.libs/libgomp-0123abcd.so.1.0.0",
    "the license": f"{INFO}/licenses/LICENSE",
    "the third-party notices": f"{INFO}/licenses/THIRD_PARTY_NOTICES",
}

needs_compiler = pytest.mark.skipif(
    not all(map(shutil.which, ("g++", "nm", "readelf"))), reason="needs g++ and binutils"
)


def load_checks():
    spec = importlib.util.spec_from_file_location("check_wheel", ROOT / "scripts/check_wheel.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check_wheel = load_checks()


def compile_module(folder: pathlib.Path, source: str, *options: str) -> bytes:
    (folder / "module.cc").write_text(source)
    command = ["g++", "-shared", "-fPIC", "module.cc", "-o", "module.so", *options]
    subprocess.run(command, cwd=folder, check=True)
    return (folder / "module.so").read_bytes()


def write_wheel(
    path: pathlib.Path,
    module: bytes,
    leave_out: str = "",
    metadata: str = "",
    **others: bytes,
):
    """A wheel whose every binary is ``module``, except ``others``: cpu, onednn, openmp."""
    modules = {
        "the CPU module": others.get("cpu", module),
        "the CUDA module": module,
        "oneDNN": others.get("onednn", module),
        "OpenMP's runtime": others.get("openmp", module),
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for what, name in FILES.items():
            if what != leave_out:
                wheel.writestr(name, modules.get(what, b""))
        wheel.writestr(f"{INFO}/METADATA", metadata)
    return path


GOOD = 'extern "C" int printf(const char*, ...); int f() { return printf("text"); }'


@needs_compiler
def test_a_whole_wheel_passes(tmp_path):
    wheel = write_wheel(tmp_path / NAME, compile_module(tmp_path, GOOD))
    assert check_wheel.problems_of_wheel(wheel) == []


@needs_compiler
@pytest.mark.parametrize("what", FILES)
def test_what_is_missing_is_named(what, tmp_path):
    wheel = write_wheel(tmp_path / NAME, compile_module(tmp_path, GOOD), leave_out=what)
    assert check_wheel.problems_of_wheel(wheel) == [f"{what} is not in the wheel"]


@needs_compiler
def test_a_second_onednn_and_a_bare_name_are_named(tmp_path):
    path = tmp_path / NAME.replace("manylinux_2_28", "linux")
    module = compile_module(tmp_path, GOOD)
    metadata = "Requires-Dist: onednn-cpu-gomp>=2023.2.0\n"
    wheel = write_wheel(path, module, metadata=metadata)
    assert len(check_wheel.problems_of_wheel(wheel)) == 2


@needs_compiler
def test_a_symbol_of_cuda_is_named(tmp_path):
    source = (
        'extern "C" int cudaGetDeviceCount(int*); int f() { return cudaGetDeviceCount(nullptr); }'
    )
    wheel = write_wheel(tmp_path / NAME, compile_module(tmp_path, source))
    expected = ["the CUDA module needs the symbol cudaGetDeviceCount"]
    assert check_wheel.problems_of_wheel(wheel) == expected


@needs_compiler
@pytest.mark.parametrize(
    ("binary", "what", "name"),
    [
        ("cpu", "the CPU module", "dnnl_version"),
        ("cpu", "the CPU module", "omp_get_max_threads"),
        ("onednn", "oneDNN", "GOMP_barrier"),
        ("onednn", "oneDNN", "_ZN4dnnl4impl10bfloat16_taSEf"),
        ("openmp", "OpenMP's runtime", "omp_get_max_threads"),
    ],
)
@pytest.mark.parametrize("defined", [False, True], ids=["needed", "defined"])
def test_a_name_that_another_copy_has_is_named(binary, what, name, defined, tmp_path):
    module = compile_module(tmp_path, GOOD)
    body = "{ return 0; }" if defined else f"; int f() {{ return {name}(); }}"
    other = compile_module(tmp_path, f'extern "C" int {name}() {body}')
    wheel = write_wheel(tmp_path / NAME, module, **{binary: other})
    expected = [f"{what} has a name that is not its own, {name}"]
    assert check_wheel.problems_of_wheel(wheel) == expected
    own = compile_module(tmp_path, f'extern "C" int jax_convgrad_{name}() {{ return 0; }}')
    wheel = write_wheel(tmp_path / NAME, module, **{binary: own})
    assert check_wheel.problems_of_wheel(wheel) == []


@needs_compiler
def test_names_of_versions_are_no_symbols(tmp_path):
    """libgomp's are GOMP_1.0 and so on."""
    (tmp_path / "versions").write_text("GOMP_1.0 { global: *; };")
    for name, expected in (
        ("jax_convgrad_GOMP_barrier", []),
        ("GOMP_barrier", ["OpenMP's runtime has a name that is not its own, GOMP_barrier"]),
    ):
        source = f'extern "C" int {name}() {{ return 0; }}'
        versioned = compile_module(tmp_path, source, "-Wl,--version-script=versions")
        wheel = write_wheel(tmp_path / NAME, compile_module(tmp_path, GOOD), openmp=versioned)
        assert check_wheel.problems_of_wheel(wheel) == expected


def test_a_library_of_cuda_is_named():
    dynamic = " 0x1 (NEEDED)  Shared library: [libcudart.so.12]\n 0x1 (NEEDED) Shared library: [libc.so.6]\n"
    expected = ["the CUDA module needs the library libcudart.so.12"]
    assert check_wheel.problems_of_symbols("", dynamic) == expected


@pytest.mark.skipif(
    "JAX_CONVGRAD_WHEEL" not in os.environ, reason="JAX_CONVGRAD_WHEEL names no wheel"
)
def test_the_wheel_is_whole():
    assert check_wheel.problems_of_wheel(pathlib.Path(os.environ["JAX_CONVGRAD_WHEEL"])) == []

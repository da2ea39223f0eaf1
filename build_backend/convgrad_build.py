"""The build backend: scikit-build-core, and the decision whether the CUDA module is built.

If this machine has an NVIDIA driver, the CUDA module is built without being asked for, and its compiler
comes from PyPI if there is no CUDA toolkit that is new enough. JAX_CONVGRAD_CUDA=0 leaves the
module out, JAX_CONVGRAD_CUDA=1 builds it even where there is no driver.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from scikit_build_core import build as scikit_build
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings = dict[str, Any] | None

VARIABLE = "JAX_CONVGRAD_CUDA"
DEFINE = f"cmake.define.{VARIABLE}"
# XLA's FFI headers of the oldest supported release, which every later one accepts, and cuDNN's headers.
HEADERS = ["jaxlib==0.10.0", "nvidia-cudnn-cu13>=9.10.1,<10"]
# nvcc is on PyPI from CUDA 13 on: the packages for CUDA 12 contain only ptxas.
TOOLKIT = [
    f"nvidia-{part}==13.0.*"
    for part in ("cuda-nvcc", "nvvm", "cuda-runtime", "cuda-crt", "cuda-cccl")
]
MIN_DRIVER = 580  # of CUDA 13
DRIVER_FILE = pathlib.Path("/proc/driver/nvidia/version")
WSL_DRIVER = pathlib.Path("/usr/lib/wsl/lib/libcuda.so.1")  # of Windows, which WSL 2 shows to Linux
TOOLKIT_VARIABLES = ("CUDAToolkit_ROOT", "CUDA_HOME", "CUDA_PATH")
DEFAULT_TOOLKIT = pathlib.Path("/usr/local/cuda")
# It alone has the number of the oldest toolkit.
CMAKE_FILE = pathlib.Path(__file__).parents[1] / "cpp/cuda/CMakeLists.txt"


class Toolkit(NamedTuple):
    """What was found of CUDA toolkits on this machine."""

    nvcc: pathlib.Path | None  # the compiler of the first that CMake accepts
    refused: str  # the compilers before it that CMake refuses, and why; empty if there are none


def driver() -> int | None:
    """The major version of Linux's NVIDIA driver; None where there is none, as in WSL 2."""
    try:
        text = DRIVER_FILE.read_text()
    except OSError:
        return None
    if (found := re.search(r"Kernel Module.*?\s(\d+)\.\d+", text)) is None:
        raise RuntimeError(
            f"expected {DRIVER_FILE} to name the NVIDIA driver's version, got {text!r}"
        )
    return int(found[1])


def has_driver() -> bool:
    """Whether this machine has an NVIDIA driver, of Linux or of the Windows around it."""
    return driver() is not None or WSL_DRIVER.exists()


def min_toolkit() -> tuple[int, int]:
    """The version of the oldest CUDA toolkit that CMake accepts."""
    text = CMAKE_FILE.read_text()
    if (found := re.search(r"find_package\(CUDAToolkit (\d+)\.(\d+)\b", text)) is None:
        raise RuntimeError(f"expected {CMAKE_FILE} to ask for a version of CUDAToolkit")
    return int(found[1]), int(found[2])


def find_toolkit() -> Toolkit:
    """The compiler of this machine's own that CMake is to use. One that is too old counts as none."""
    named = [os.environ.get(name) for name in TOOLKIT_VARIABLES]
    asked, *others = [pathlib.Path(root) / "bin/nvcc" if root else None for root in named]
    in_path = shutil.which("nvcc")
    candidates = [
        candidate
        for candidate in (
            asked,
            None if in_path is None else pathlib.Path(in_path),
            *others,
            DEFAULT_TOOLKIT / "bin/nvcc",
        )
        if candidate is not None
    ]
    refused: dict[pathlib.Path, str] = {}  # by what links lead to
    needed = f"and {dotted(min_toolkit())} or newer is needed"
    for nvcc in filter(pathlib.Path.exists, candidates):
        if nvcc.resolve() in refused:
            continue
        version = version_of(nvcc)
        if version is not None and version >= min_toolkit():
            return Toolkit(nvcc, "; ".join(refused.values()))
        refused[nvcc.resolve()] = (
            f"{nvcc} does not say its CUDA's version, {needed}"
            if version is None
            else f"{nvcc} is of CUDA {dotted(version)}, {needed}"
        )
    return Toolkit(None, "; ".join(refused.values()))


def version_of(nvcc: pathlib.Path) -> tuple[int, int] | None:
    """The version of the CUDA that a compiler belongs to; None where it does not run or does not say."""
    try:
        said = subprocess.run(
            [nvcc, "--version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"release (\d+)\.(\d+)", said.stdout)
    return (int(found[1]), int(found[2])) if found else None


def dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def no_nvcc(refused: str) -> str:
    """What is missing, in words."""
    return f"no nvcc that serves ({refused})" if refused else "no nvcc"


def wants_cuda(settings: Settings) -> bool:
    """Whether to build the CUDA module: the user's choice, else whether there is a driver."""
    for source, value in (
        (DEFINE, (settings or {}).get(DEFINE)),
        (VARIABLE, os.environ.get(VARIABLE)),
    ):
        if value is None:
            continue
        if str(value).lower() in ("1", "on", "true", "yes"):
            return True
        if str(value).lower() in ("0", "off", "false", "no"):
            return False
        raise ValueError(f"{source} must be 1 or 0, got {value!r}")
    return has_driver()


def cuda_requirements(settings: Settings) -> list[str]:
    """The packages that the CUDA module's build takes from PyPI on this machine.

    Raises:
      RuntimeError: the compiler on PyPI is too new for this machine's driver.
    """
    if not wants_cuda(settings):
        return []
    toolkit = find_toolkit()
    if toolkit.nvcc is not None:
        return HEADERS
    version = driver()
    if version is not None and version < MIN_DRIVER:
        raise RuntimeError(
            f"The CUDA module needs a compiler: this machine has {no_nvcc(toolkit.refused)}, and the one on "
            f"PyPI (CUDA 13) needs an NVIDIA driver of {MIN_DRIVER} or newer, not {version}. Update the "
            f"driver, or install a CUDA toolkit of {dotted(min_toolkit())} or newer, or set "
            f"{VARIABLE}=0 to build without CUDA."
        )
    return HEADERS + TOOLKIT


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    requirements = scikit_build.get_requires_for_build_wheel(config_settings)
    return [*requirements, *cuda_requirements(config_settings)]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    requirements = scikit_build.get_requires_for_build_editable(config_settings)
    return [*requirements, *cuda_requirements(config_settings)]


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    return build(scikit_build.build_wheel, wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    return build(scikit_build.build_editable, wheel_directory, config_settings, metadata_directory)


def build(
    builder: Callable[..., str],
    wheel_directory: str,
    config_settings: Settings,
    metadata_directory: str | None,
) -> str:
    """Builds with scikit-build-core, after printing what it builds."""
    cuda = wants_cuda(config_settings)
    settings = {**(config_settings or {}), DEFINE: "ON" if cuda else "OFF"}
    if not cuda:
        say("building without the CUDA module, which takes minutes")
        return builder(wheel_directory, settings, metadata_directory)
    toolkit = find_toolkit()
    if toolkit.nvcc is None:
        use_toolkit_from_pypi(toolkit.refused)
    elif toolkit.refused or str(toolkit.nvcc) != shutil.which("nvcc"):
        # CMake itself would take the first compiler that it meets, whatever its version.
        folder = toolkit.nvcc.parent
        os.environ["CUDAToolkit_ROOT"] = str(folder.parent if folder.name == "bin" else folder)
    note = ""
    if toolkit.refused:
        compiler = toolkit.nvcc or "PyPI's"
        note = f"; {toolkit.refused}: the compiler is {compiler}"
    say(f"building with the CUDA module, which takes minutes ({VARIABLE}=0 leaves it out){note}")
    try:
        return builder(wheel_directory, settings, metadata_directory)
    except BaseException:  # scikit-build-core ends the process
        say(
            f"the build with the CUDA module failed, see above; {VARIABLE}=0 builds without CUDA handlers"
        )
        raise


def use_toolkit_from_pypi(refused: str) -> None:
    """Points CMake to the compiler that `cuda_requirements` asked for.

    Args:
      refused: the machine's own compilers that do not count, and why.

    Raises:
      RuntimeError: the compiler is missing, as without build isolation.
    """
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        root = pathlib.Path(folder) / "cu13"
        if (root / "bin/nvcc").exists():
            # CMake looks for the name that only the toolkit's own packages have.
            link = root / "lib/libcudart.so"
            if not link.exists():
                link.symlink_to("libcudart.so.13")
            os.environ["CUDAToolkit_ROOT"] = str(root)
            return
    packages = " ".join(f'"{requirement}"' for requirement in TOOLKIT)
    raise RuntimeError(
        f"The CUDA module needs a compiler, and there is {no_nvcc(refused)}. Run: pip install {packages}, "
        f"or set {VARIABLE}=0 to build without CUDA."
    )


def say(text: str) -> None:
    """A line for the user. pip shows it with -v, and where the build fails."""
    print(f"jax_convgrad: {text}", file=sys.stderr, flush=True)

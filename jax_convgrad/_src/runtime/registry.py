"""Finds, loads and registers the compiled handlers, once and lazily.

A registration that is rejected before the backend starts stops JAX from starting at all, so nothing
happens at import: the first lowering (or `info()`) loads the module of its platform. What went wrong
is kept in the loader's own words and shown by `info()`; programs then run on the pure-JAX backends.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import platform as machine
import sys
import threading
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from jax_convgrad._src.dtypes import FLOAT_DTYPES

PACKAGE = "jax_convgrad._src.runtime"  # where the extension modules are
CONV_TARGETS = {name: f"jax_convgrad_{name}" for name in ("conv_fprop", "conv_dgrad", "conv_wgrad")}
RESAMPLE_TARGET = "jax_convgrad_resample"
# Exported programs know the handlers by these names, whatever the version that runs them.
TARGETS = (*CONV_TARGETS.values(), RESAMPLE_TARGET)

_DISTRIBUTION = "jax-convgrad"
_ONEDNN_DISTRIBUTION = "onednn-cpu-gomp"
_ONEDNN_LIBRARY = "libdnnl.so.3"
_CUDNN_LIBRARY = "libcudnn.so.9"
_lock = threading.RLock()
_warned: set[str] = set()


@dataclasses.dataclass(frozen=True)
class PlatformHandlers:
    """What one platform's compiled module offers, or why it offers nothing."""

    targets: frozenset[str] = frozenset()
    dtypes: frozenset[str] = frozenset()
    versions: tuple[tuple[str, str], ...] = ()
    validated: tuple[tuple[str, str], ...] = ()  # the major.minor that the errata were validated on
    reason: str | None = None
    broken: bool = False  # this machine should have them

    def serves(self, target: str, dtype: Any) -> bool:
        # ``dtypes`` are those of the convolution library; the resample kernels are the package's own.
        dtypes = FLOAT_DTYPES if target == RESAMPLE_TARGET else self.dtypes
        return target in self.targets and str(dtype) in dtypes


class MissingHandlersWarning(UserWarning):
    """The compiled module that this machine should have could not be used."""


class UnvalidatedLibraryWarning(UserWarning):
    """The oneDNN or cuDNN that was loaded is not of a version on which its errata were validated."""


def find(platform: str) -> PlatformHandlers:
    """What a platform ("cpu", "cuda", ...) has, or why nothing, loaded and registered at the first call."""
    with _lock:
        return _load(platform)


def require(platform: str) -> PlatformHandlers:
    """The same for a program that is to run on them: warns once where they are missing or broken.

    Raises:
      RuntimeError: the module cannot be used and JAX_CONVGRAD_REQUIRE_CPU=1 (or _CUDA) forbids
        going on without it.
    """
    with _lock:
        found = _load(platform)
        if found.broken and platform not in _warned:
            _warned.add(platform)
            warnings.warn(
                f"jax_convgrad runs without its {platform} handlers, on slower pure-JAX backends: "
                f"{found.reason}",
                MissingHandlersWarning,
                stacklevel=2,
            )
        _warn_if_unvalidated(_current(platform, found))
    if (
        found.reason is not None
        and os.environ.get(f"JAX_CONVGRAD_REQUIRE_{platform.upper()}") == "1"
    ):
        raise RuntimeError(f"jax_convgrad has no handlers for {platform}: {found.reason}")
    return found


def _current(platform: str, found: PlatformHandlers) -> PlatformHandlers:
    """``found`` with the version of cuDNN, which may have been loaded since, one that is too old too."""
    module = cuda_module() if platform == "cuda" and found.reason is None else None
    if module is None:
        return found
    try:
        return dataclasses.replace(found, versions=tuple(sorted(module.versions().items())))
    except ImportError as error:
        return PlatformHandlers(reason=f"{type(error).__name__}: {error}", broken=True)


def _warn_if_unvalidated(found: PlatformHandlers) -> None:
    """Names a library once that the errata were not validated on. One that is not loaded has no number."""
    loaded = dict(found.versions)
    for library, validated in found.validated:
        current = loaded.get(library, "")
        if not current[:1].isdigit() or current.split(".")[:2] == validated.split("."):
            continue
        if library not in _warned:
            _warned.add(library)
            warnings.warn(
                f"jax_convgrad was validated on {library} {validated}, and {current} is loaded: kernels "
                f"that are wrong in this version alone are not known. Install {library} {validated}, or "
                "compare gradients with another platform's.",
                UnvalidatedLibraryWarning,
                stacklevel=3,
            )


@functools.cache
def _load(platform: str) -> PlatformHandlers:
    if platform not in ("cpu", "cuda"):
        return PlatformHandlers(reason=f"this version has no handlers for {platform}")
    if platform == "cpu" and not (sys.platform == "linux" and machine.machine() == "x86_64"):
        return PlatformHandlers(reason=f"no oneDNN for {sys.platform} on {machine.machine()}")
    try:
        module = _import_cpu() if platform == "cpu" else _import_cuda()
        if platform == "cuda":
            _check_devices(module)
        return _register(module, platform)
    except Exception as error:  # whatever it was, a training step can go on without the handlers
        return PlatformHandlers(reason=f"{type(error).__name__}: {error}", broken=True)


def _check_devices(module: ModuleType) -> None:
    """Raises where a launch would fail for want of a kernel: programs run on any of JAX's devices."""
    for device, capability in enumerate(module.capabilities()):
        if capability < module.min_capability:
            have, need = (".".join(map(str, c)) for c in (capability, module.min_capability))
            raise RuntimeError(
                f"device {device} has compute capability {have}, and the kernels need {need} or "
                "newer (CUDA_VISIBLE_DEVICES hides devices)"
            )


def _register(module: ModuleType, platform: str) -> PlatformHandlers:
    versions = tuple(sorted(module.versions().items()))
    handlers = module.handlers()
    for target, handler in handlers.items():
        jax.ffi.register_ffi_target(
            target, handler, platform={"cuda": "CUDA"}.get(platform, platform)
        )
    validated = tuple(sorted(module.validated_versions().items()))
    return PlatformHandlers(
        frozenset(handlers), frozenset(module.supported_dtypes()), versions, validated
    )


def cuda_module() -> ModuleType | None:
    """The compiled CUDA module without registering its handlers, None where it cannot be imported."""
    with _lock:
        try:
            return _import_cuda()
        except Exception:  # `require` tells the reason
            return None


def cpu_module() -> ModuleType | None:
    """The compiled CPU module without registering its handlers, None where it cannot be imported."""
    with _lock:
        try:
            return _import_cpu()
        except Exception:  # `require` tells the reason
            return None


@functools.cache
def cuda_capabilities() -> tuple[tuple[int, int], ...]:
    """The compute capabilities of this machine's NVIDIA devices; empty without the module or a device."""
    module = cuda_module()
    try:
        return (
            ()
            if module is None
            else tuple((major, minor) for major, minor in module.capabilities())
        )
    except Exception:  # no driver, say; `handlers` tells why the module cannot be used
        return ()


@functools.cache
def _import_cuda() -> ModuleType:
    module = _import_extension("_cuda")
    # The copy that is in the process already is used before any other; this is the one that JAX would
    # load itself.
    library = _cudnn_library()
    if library is not None:
        module.set_cudnn_path(str(library))
    return module


def _cudnn_library() -> Path | None:
    try:
        spec = importlib.util.find_spec("nvidia.cudnn")
    except ModuleNotFoundError:
        return None
    for folder in (spec and spec.submodule_search_locations) or ():
        library = Path(folder) / "lib" / _CUDNN_LIBRARY
        if library.exists():
            return library
    return None


@functools.cache
def _import_cpu() -> ModuleType:
    # The module asks for libdnnl by its soname; an already loaded copy of that name is used, so no
    # path of the build machine needs to be written into it.
    ctypes.CDLL(str(_installed_file(_ONEDNN_DISTRIBUTION, _ONEDNN_LIBRARY)))
    return _import_extension("_cpu")


def _import_extension(name: str) -> ModuleType:
    """The package's extension module ``name``.

    A Python started in the repository's root imports the package from there, where no extension lies;
    the installed one serves then too.
    """
    qualified = f"{PACKAGE}.{name}"
    if importlib.util.find_spec(qualified) is not None:
        return importlib.import_module(qualified)
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        try:
            path = _installed_file(_DISTRIBUTION, f"{name}{suffix}")
        except ImportError:
            continue
        spec = importlib.util.spec_from_file_location(qualified, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    raise ImportError(f"the extension module {qualified} was not built into this installation")


def _installed_file(distribution: str, name: str) -> Path:
    """Where an installed distribution has its file of that name."""
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(f"the package {distribution} is not installed") from None
    for file in files:
        # What is listed need not be there; Python 3.11 lists it all the same.
        if file.name == name and (path := Path(str(file.locate()))).exists():
            return path
    raise ImportError(
        f"the package {distribution} is installed without its {name}, which `pip install --target` leaves out"
    )


@functools.cache
def version(distribution: str = _DISTRIBUTION) -> str:
    """The version of an installed distribution."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed as a package"


def describe() -> dict[str, Any]:
    """Versions, and for each platform which handlers are there or why they are not: `jax_convgrad.info`."""
    versions = {"python": machine.python_version()}
    versions |= {name: version(name) for name in (_DISTRIBUTION, "jax", "jaxlib", "numpy")}
    found = {name: _current(name, find(name)) for name in ("cpu", "cuda")}
    with _lock:
        for entry in found.values():
            _warn_if_unvalidated(entry)
    return {
        "versions": versions,
        "handlers": {
            platform: {
                "available": entry.reason is None,
                "targets": sorted(entry.targets),
                "dtypes": sorted(entry.dtypes),
                "versions": dict(entry.versions),
                "validated": dict(entry.validated),
                "reason": entry.reason,
            }
            for platform, entry in found.items()
        },
    }


def has_cuda() -> bool:
    """Whether the CUDA handlers are built, loadable and registered.

    Example:
      >>> import jax_convgrad
      >>> jax_convgrad.has_cuda() == jax_convgrad.info()["handlers"]["cuda"]["available"]
      True
    """
    return find("cuda").reason is None

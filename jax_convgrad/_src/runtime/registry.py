"""Finds, loads and registers the compiled handlers, once and lazily.

If a registration is rejected before the backend starts, JAX cannot start at all. Nothing therefore happens
at import: the first lowering (or `info()`) loads the module of its platform. A failure is kept in the
loader's own words and shown by `info()`; programs then run on the pure-JAX backends.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import logging
import platform as machine
import sys
import threading
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from jax_convgrad._src.dtypes import FLOAT_DTYPES
from jax_convgrad._src.runtime import environment, remedies

PACKAGE = "jax_convgrad._src.runtime"  # where the extension modules are
CONV_TARGETS = {name: f"jax_convgrad_{name}" for name in ("conv_fprop", "conv_dgrad", "conv_wgrad")}
BACKWARD_TARGET = "jax_convgrad_conv_backward"  # on the CPU only
RESAMPLE_TARGET = "jax_convgrad_resample"
# Exported programs know the handlers by these names, whatever the version that runs them.
TARGETS = (*CONV_TARGETS.values(), BACKWARD_TARGET, RESAMPLE_TARGET)

_DISTRIBUTION = "jax-convgrad"
_ONEDNN_DISTRIBUTION = "onednn-cpu-gomp"
_ONEDNN_LIBRARY = "libdnnl.so.3"
_CUDNN_LIBRARY = "libcudnn.so.9"
_VENDORED_LIBRARIES = Path(__file__).parents[3] / "jax_convgrad.libs"  # where auditwheel puts them
_log = logging.getLogger("jax_convgrad")
_lock = threading.RLock()
_warned: set[str] = set()


@dataclasses.dataclass(frozen=True)
class PlatformHandlers:
    """What one platform's compiled module offers, or the reason why it offers nothing."""

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
    """The oneDNN or cuDNN that was loaded has a version on which its errata were not validated."""


def find(platform: str) -> PlatformHandlers:
    """What a platform ("cpu", "cuda", ...) has, or why nothing; the first call loads and registers it."""
    with _lock:
        return _load(platform)


def require(platform: str) -> PlatformHandlers:
    """The same for a program that is to run on the handlers: says once if they are missing or broken.

    A warning says it, and the log at INFO.

    Raises:
      RuntimeError: the module cannot be used and JAX_CONVGRAD_REQUIRE_CPU=1 (or _CUDA) forbids
        going on without it.
    """
    with _lock:
        found = _load(platform)
        if found.broken and platform not in _warned:
            _warned.add(platform)
            message = (
                f"jax_convgrad runs without its {platform} handlers, on slower pure-JAX backends: "
                f"{remedies.with_command(platform, str(found.reason))}"
            )
            _log.info(message)
            warnings.warn(message, MissingHandlersWarning, stacklevel=2)
        _warn_if_unvalidated(_current(platform, found))
    if found.reason is not None and environment.is_required(platform):
        raise RuntimeError(
            f"jax_convgrad has no handlers for {platform}: {remedies.with_command(platform, found.reason)}"
        )
    return found


def check_required(platform: str | None) -> None:
    """Raises where JAX_CONVGRAD_REQUIRE_CUDA=1 and a program is lowered without the CUDA handlers.

    On CUDA it raises where they are missing, whatever the operator's backend; on other platforms it raises
    where JAX has no CUDA device. A program that a user puts on the CPU beside a GPU is accepted. It raises
    too where JAX_CONVGRAD_DISABLE=1 turns off what JAX_CONVGRAD_REQUIRE_CUDA=1 (or _CPU) asks for.

    Raises:
      RuntimeError: the handlers are missing, or turned off.
    """
    environment.check_switches()
    if not environment.is_required("cuda"):
        return
    if platform == "cuda":
        require("cuda")
    elif not _has_cuda_device():
        reason = f"JAX has no CUDA device and runs on {jax.default_backend().upper()}"
        raise RuntimeError(
            f"JAX_CONVGRAD_REQUIRE_CUDA=1, but {remedies.with_command('cuda', f'no CUDA device: {reason}')}"
        )


@functools.cache
def _has_cuda_device() -> bool:
    try:
        return bool(jax.devices("cuda"))
    except RuntimeError:
        return False


def _current(platform: str, found: PlatformHandlers) -> PlatformHandlers:
    """``found`` with the version of cuDNN, which may have been loaded since, and may be too old."""
    module = cuda_module() if platform == "cuda" and found.reason is None else None
    if module is None:
        return found
    try:
        return dataclasses.replace(found, versions=tuple(sorted(module.versions().items())))
    except ImportError as error:
        return PlatformHandlers(reason=f"{type(error).__name__}: {error}", broken=True)


# How users find out whether a version is right.
_OWN_CHECK = {"cudnn": "run `python -m jax_convgrad check-engines`, which looks for wrong ones"}


def _warn_if_unvalidated(found: PlatformHandlers) -> None:
    """Warns once if the errata were not validated on the loaded library's version. Not loaded: no version."""
    loaded = dict(found.versions)
    for library, validated in found.validated:
        current = loaded.get(library, "")
        if not current[:1].isdigit() or current.split(".")[:2] == validated.split("."):
            continue
        if library not in _warned:
            _warned.add(library)
            warnings.warn(
                f"jax_convgrad was validated on {library} {validated}, but {current} is loaded: kernels "
                f"that are wrong only in this version are not excluded. Install {library} {validated}, or "
                f"{_OWN_CHECK.get(library, 'compare gradients with those of another platform')}.",
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
            _check_driver(module)
            _check_devices(module)
        return _register(module, platform)
    except (
        Exception
    ) as error:  # whatever the error was, a training step can go on without the handlers
        return PlatformHandlers(reason=f"{type(error).__name__}: {error}", broken=True)


def _check_driver(module: ModuleType) -> None:
    """Raises if the module's runtime has a newer CUDA major version than the driver supports."""
    newest = _newest_cuda_of_driver()
    runtime = module.versions()["cuda runtime"]
    if newest is not None and newest[0] < int(runtime.split(".")[0]):
        raise RuntimeError(
            f"the NVIDIA driver supports CUDA {newest[0]}.{newest[1]} at most, and this build has the "
            f"runtime of CUDA {runtime}. Update the driver, or build with a toolkit of CUDA {newest[0]}"
        )


def _newest_cuda_of_driver() -> tuple[int, int] | None:
    """The newest CUDA that the driver supports; None where there is no driver."""
    number = ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    if driver.cuDriverGetVersion(ctypes.byref(number)) != 0:
        return None
    return number.value // 1000, number.value % 1000 // 10


def _check_devices(module: ModuleType) -> None:
    """Raises if a launch would fail for lack of a kernel: programs run on any of JAX's devices."""
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
        except Exception:  # `require` reports the reason
            return None


def cpu_module() -> ModuleType | None:
    """The compiled CPU module without registering its handlers, None where it cannot be imported."""
    with _lock:
        try:
            return _import_cpu()
        except Exception:  # `require` reports the reason
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
    except Exception:  # no driver, for example; `handlers` reports why the module cannot be used
        return ()


@functools.cache
def _import_cuda() -> ModuleType:
    module = _import_extension("_cuda")
    # A copy that the process has loaded already takes precedence; this is the copy that JAX would load
    # itself.
    library = cudnn_library()
    if library is not None:
        module.set_cudnn_path(str(library))
    return module


def cudnn_library() -> Path | None:
    """The copy of cuDNN that JAX loads, None where it does not come from a Python package."""
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
    # The module asks for libdnnl by its soname. A copy of that name that is loaded already is used, so no
    # path of the build machine needs to be written into the module. A release's module has its own copy,
    # which it asks for by another name.
    if not _VENDORED_LIBRARIES.is_dir():
        ctypes.CDLL(str(_installed_file(_ONEDNN_DISTRIBUTION, _ONEDNN_LIBRARY)))
    return _import_extension("_cpu")


def _import_extension(name: str) -> ModuleType:
    """The package's extension module ``name``.

    A Python started in the repository's root imports the package from there, where there is no extension
    module; the installed module is then used.
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
    """The path of a file of that name in an installed distribution."""
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(f"the package {distribution} is not installed") from None
    for file in files:
        # A file that is listed need not exist; Python 3.11 lists it anyway.
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
                "remedy": None
                if entry.reason is None
                else remedies.command(platform, entry.reason),
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

"""The devices that programs are lowered for, in the classes by which measurements are kept apart."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Sequence

from jax_convgrad._src.dispatch import unserved
from jax_convgrad._src.dispatch.features import IsThin
from jax_convgrad._src.dispatch.unserved import Unserved
from jax_convgrad._src.runtime import registry

# The classes of CUDA's compute capabilities. Each capability uses the measurements of its class. 8.7 (Orin)
# has the multiprocessors of 8.6; 10.3 is a later 10.0, 12.1 a later 12.0.
_CUDA_CLASSES = {
    (8, 0): "sm_80",
    (8, 6): "sm_86",
    (8, 7): "sm_86",
    (8, 9): "sm_89",
    (9, 0): "sm_90",
    (10, 0): "sm_100",
    (10, 3): "sm_100",
    (12, 0): "sm_120",
    (12, 1): "sm_120",
}
# From the most capable to the least: the processor's flag, and the class that it implies.
_CPU_CLASSES = (("amx_bf16", "amx"), ("avx512f", "avx512"), ("avx2", "avx2"))


@dataclasses.dataclass(frozen=True)
class Target:
    """The platform and the devices that an operator is lowered for.

    Attributes:
      platform: JAX's name, None where a program is lowered for no platform in particular.
      device_class: of this machine's devices, None where there are none or none that is known.
      custom_calls: whether the program may contain a call. It may not where XLA divides the program among
        devices and would gather the call's operands on each.
      partitioned: whether XLA divides the program among devices; asked for whole backward passes alone.
    """

    platform: str | None
    device_class: str | None = None
    custom_calls: bool = True
    partitioned: bool = False

    @classmethod
    def of(
        cls, platform: str | None, custom_calls: bool = True, partitioned: bool = False
    ) -> Target:
        """The target with the devices of ``platform`` that this process has."""
        return cls(platform, device_class(platform), custom_calls, partitioned)

    def serves(self, target: str, dtype: object) -> bool:
        """Whether the platform has a handler for an FFI target and a dtype.

        Warns once where the handlers are missing although they should be there.
        """
        return self.unserved(target, dtype) is None

    def unserved(self, target: str, dtype: object) -> Unserved | None:
        """Why no handler serves an FFI target and a dtype; None where one does. Warns as `serves`."""
        if self.platform is None:
            return Unserved("the program is lowered for no platform in particular")
        handlers = registry.require(self.platform)
        if handlers.serves(target, dtype):
            return None
        return unserved.why(self.platform, handlers, target, dtype)

    def thin_kernels(self) -> IsThin | None:
        """The CPU module's answer for its thin kernels; None without it, and on other platforms."""
        module = registry.cpu_module() if self.platform == "cpu" else None
        return None if module is None else module.is_thin


def device_class(platform: str | None) -> str | None:
    """The class of a platform's devices; that of the first, if there are several."""
    if platform == "cpu":
        return _cpu_class()
    if platform == "cuda":
        return cuda_class(registry.cuda_capabilities())
    return None


def cuda_class(capabilities: tuple[tuple[int, int], ...]) -> str | None:
    """The class of the first of several compute capabilities; None without any, or before 8.0.

    Capabilities that are newer than this table count as the newest of their major version, or of all.
    """
    if not capabilities or capabilities[0] < min(_CUDA_CLASSES):
        return None
    older = [known for known in _CUDA_CLASSES if known <= capabilities[0]]
    return _CUDA_CLASSES[max(older)]


@functools.cache
def _cpu_class() -> str | None:
    found = _class_of_flags(_cpu_flags())
    module = registry.cpu_module()
    # Some hypervisors report AMX and hide its tiles; oneDNN cannot use AMX there.
    if found == "amx" and module is not None and not module.describes_amx_tiles():
        return "avx512"
    return found


def has_bfloat16() -> bool:
    """Whether oneDNN has kernels for bfloat16 on this CPU. They need AVX-512."""
    return "bfloat16" in registry.require("cpu").dtypes


def multiplies_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16 on this CPU without widening it first."""
    module = registry.cpu_module()
    return module is not None and bool(module.multiplies_bfloat16())


def _class_of_flags(flags: Sequence[str]) -> str | None:
    return next((name for flag, name in _CPU_CLASSES if flag in flags), None)


def _cpu_flags() -> list[str]:
    """The processor's flags as Linux lists them; none on other systems."""
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        return []
    return next((line for line in text.splitlines() if line.startswith("flags")), "").split()

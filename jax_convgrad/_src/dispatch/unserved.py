"""Why no handler serves a problem, in words. Decisions, `explain` and `info` take theirs from here."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from jax_convgrad._src.runtime import remedies
from jax_convgrad._src.runtime.registry import RESAMPLE_TARGET, PlatformHandlers

CONV_DTYPES = ("float32", "bfloat16")  # of the CPU handlers, with AVX-512
_NEEDS_AVX512 = "needs AVX-512"


@dataclasses.dataclass(frozen=True)
class Unserved:
    """Why a platform's handlers do not serve a problem.

    Attributes:
      reason: in a few words, as one clause.
      missing: the full cause and the command that helps, where this machine should have the handlers and
        they are missing; None where they are there, or none exist for it.
    """

    reason: str
    missing: str | None = None


def why(platform: str, handlers: PlatformHandlers, target: str, dtype: Any) -> Unserved:
    """Why ``handlers``, those of ``platform``, do not serve an FFI target and a dtype.

    What no command changes comes first: the CPU handlers lack a dtype, built or not.
    """
    kind = platform.upper()
    if platform == "cpu" and target != RESAMPLE_TARGET and str(dtype) not in CONV_DTYPES:
        return Unserved("the CPU handlers compute convolutions in float32 and bfloat16 only")
    if handlers.broken:
        reason = f"the {kind} handlers are missing"
        return Unserved(
            reason, f"{reason}: {remedies.with_command(platform, str(handlers.reason))}"
        )
    if handlers.reason is not None:
        return Unserved(handlers.reason)
    if target not in handlers.targets:
        return Unserved(f"the {kind} handlers were built without {target}")
    if (platform, str(dtype)) == ("cpu", "bfloat16"):
        return Unserved(f"bfloat16 on a CPU {_NEEDS_AVX512}")
    return Unserved(f"the {kind} handlers do not take {dtype}")


def bfloat16_on_this_cpu() -> str:
    """What `info` says of bfloat16 where the CPU handlers do not serve it."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "")
    is_lower = limit.upper().startswith(("SSE", "AVX")) and not limit.upper().startswith("AVX512")
    hidden = f" (ONEDNN_MAX_CPU_ISA={limit} may hide it)" if is_lower else ""
    return f"{_NEEDS_AVX512}{hidden}; it is computed in float32"

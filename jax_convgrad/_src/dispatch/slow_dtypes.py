"""A warning about a dtype that works, but is far slower than users expect."""

from __future__ import annotations

import warnings
from typing import Any

from jax_convgrad._src.dispatch import devices
from jax_convgrad._src.dispatch.devices import Target

_warned: set[str] = set()


class SlowDtypeWarning(UserWarning):
    """This processor has no instructions for the dtype of a convolution."""


def warn_if_slow(dtype: Any, target: Target) -> None:
    """Warns once about bfloat16 on a CPU that is known to lack AVX-512."""
    if target.platform != "cpu" or str(dtype) != "bfloat16" or "bfloat16" in _warned:
        return
    if target.device_class == "avx2" or devices.is_older_x86(target.device_class):
        _warned.add("bfloat16")
        warnings.warn(
            "bfloat16 convolutions are about four times slower than float32 on this CPU, which has no "
            "AVX-512: cast images and weights with .astype(jnp.float32)",
            SlowDtypeWarning,
            stacklevel=2,
        )

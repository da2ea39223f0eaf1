"""The settings that a call on CUDA carries along: how its engine is to be chosen, and within what memory.

They are fixed where a call is lowered, so that a program keeps its engines (see `plans`). `plans` has the
functions that change them.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import jax
import numpy as np

from jax_convgrad import registry


@dataclasses.dataclass(frozen=True)
class Settings:
    """Of the whole process; what `plans` says of each holds."""

    search: str = "default"
    deterministic: bool = False
    workspace_limit: int | None = None


_lock = threading.Lock()
_current = Settings()
_carried = False  # by some call that was lowered since JAX's caches were cleared


def current() -> Settings:
    """Those of the next call that is lowered."""
    return _current


def call_attributes() -> dict[str, Any]:
    """The attributes of a call by which its engine is chosen."""
    global _carried
    with _lock:
        _carried = True
        settings = _current
    module = registry.cuda_module()
    return {
        "search": settings.search,
        "deterministic": np.bool_(settings.deterministic),
        "generation": np.int64(0 if module is None else module.generation()),
    }


def change(**changes: Any) -> None:
    """Settings for what is lowered from now on, and nothing left that was lowered with others."""
    global _current
    with _lock:
        changed = dataclasses.replace(_current, **changes)
        same = changed == _current
        _current = changed
    if not same:
        lower_anew()


def lower_anew() -> None:
    """Has functions under `jax.jit` lowered again, if any of them may have a call with its attributes."""
    global _carried
    with _lock:
        carried, _carried = _carried, False
    if carried:
        jax.clear_caches()

"""The settings that a call on CUDA carries along: how its engine is to be chosen, and within what memory.

They are fixed where a call is lowered, so that a program keeps its engines (see `plans`). `plans` has the
functions that change them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jax_convgrad._src.runtime import registry


@dataclasses.dataclass(frozen=True)
class Settings:
    """Of the whole process; what `plans` says of each holds."""

    search: str = "default"
    deterministic: bool = False
    workspace_limit: int | None = None
    # How often plans were cleared, which the CUDA module counts.
    generation: int = 0

    @property
    def attributes(self) -> dict[str, Any]:
        """Those of a call by which its engine is chosen; the limit is in the workspace's size."""
        return {
            "search": self.search,
            "deterministic": np.bool_(self.deterministic),
            "generation": np.int64(self.generation),
        }


_lock = threading.Lock()
_current = Settings()
_carried = False  # by some call that was lowered since JAX's caches were cleared
_held = threading.local()


def current() -> Settings:
    """Those of the next call that is lowered."""
    return _of_now(_current)


def carried() -> Settings:
    """The same, for a call that is being lowered."""
    global _carried
    with _lock:
        _carried = True
        settings = _current
    return _of_now(settings)


def _of_now(settings: Settings) -> Settings:
    held: Settings | None = getattr(_held, "settings", None)
    if held is not None:
        return held
    module = registry.cuda_module()
    return dataclasses.replace(settings, generation=0 if module is None else module.generation())


@contextlib.contextmanager
def held(settings: Settings) -> Iterator[None]:
    """These settings for all calls that this thread lowers inside, whatever is changed meanwhile."""
    previous, _held.settings = getattr(_held, "settings", None), settings
    try:
        yield
    finally:
        _held.settings = previous


def change(**changes: Any) -> None:
    """Settings for what is lowered from now on, and nothing left that was lowered with others."""
    global _current
    with _lock:
        changed = dataclasses.replace(_current, **changes)
        same = changed == _current
        _current = changed
    if not same:
        invalidate_jit_caches()


def invalidate_jit_caches() -> None:
    """Has functions under `jax.jit` lowered again, if any of them may have a call with its settings."""
    global _carried
    with _lock:
        was_carried, _carried = _carried, False
    if was_carried:
        jax.clear_caches()

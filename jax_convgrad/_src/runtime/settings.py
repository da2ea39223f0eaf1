"""The settings of a call on CUDA: how its engine is chosen, and how much memory it may use.

They are fixed where a call is lowered, so that a program keeps its engines (see `plans`). The functions in
`plans` change them for the whole process. An override holds in one context (`contextvars`): neither other
threads nor other asynchronous tasks see it.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jax_convgrad._src.runtime import environment, registry


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of the whole process; see the functions in `plans` for each."""

    search: str = "default"
    deterministic: bool = False
    workspace_limit: int | None = None
    # How often plans were cleared, which the CUDA module counts.
    generation: int = 0

    @property
    def attributes(self) -> dict[str, Any]:
        """The settings by which a call chooses its engine; the workspace's size has the memory limit."""
        return {
            "search": self.search,
            "deterministic": np.bool_(self.deterministic),
            "generation": np.int64(self.generation),
        }


_lock = threading.Lock()
_current = Settings()
_snapshot_taken = False  # set by a call that was lowered since JAX's caches were cleared
_override: contextvars.ContextVar[Settings | None] = contextvars.ContextVar(
    "jax_convgrad_settings", default=None
)


def current() -> Settings:
    """The settings of the next call that is lowered."""
    return _effective(_current)


def snapshot() -> Settings:
    """The same, for a call that is being lowered."""
    global _snapshot_taken
    with _lock:
        _snapshot_taken = True
        settings = _current
    return _effective(settings)


def _effective(settings: Settings) -> Settings:
    overriding = _override.get()
    if overriding is not None:
        return overriding
    module = registry.cuda_module()
    return dataclasses.replace(
        settings,
        deterministic=settings.deterministic or environment.xla_is_deterministic(),
        generation=0 if module is None else module.generation(),
    )


@contextlib.contextmanager
def override(settings: Settings) -> Iterator[None]:
    """Fixes these settings for all calls that this context lowers inside, whatever changes meanwhile."""
    token = _override.set(settings)
    try:
        yield
    finally:
        _override.reset(token)


def change(**changes: Any) -> None:
    """Changes the settings of what is lowered from now on, and drops what was lowered with others."""
    global _current
    with _lock:
        changed = dataclasses.replace(_current, **changes)
        same = changed == _current
        _current = changed
    if not same:
        invalidate_jit_caches()


def invalidate_jit_caches() -> None:
    """Makes JAX lower functions under `jax.jit` again, if any of them may have a call with its settings."""
    global _snapshot_taken
    with _lock:
        was_taken, _snapshot_taken = _snapshot_taken, False
    if was_taken:
        jax.clear_caches()

"""The keys under which JAX keeps what it has traced, lowered and compiled."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import jax

from jax_convgrad._src.compat.features import PROGRAM_KEYS


def _make_context() -> Any:
    names = PROGRAM_KEYS.look_up()
    return None if names is None else names.make_user_context(None)


# One more part of every key, made at import: JAX must not be in use by other threads meanwhile, and compiles
# what it had compiled before once more. A module that is reloaded keeps it, with the values of all threads.
_context: Any = globals().get("_context") or _make_context()


def key_programs(value: Hashable) -> None:
    """From here on this thread reuses only programs that were made under an equal ``value``; at first None.

    This holds for every cache of JAX: of traced, lowered and compiled functions, under `jax.jit` and without.
    Where JAX offers no such key, all programs are dropped instead.
    """
    if _context is not None:
        # Never left: with tasks of `asyncio`, the value that comes next need not be the one before.
        _context(value).__enter__()
        return
    PROGRAM_KEYS.resolve()  # warns
    jax.clear_caches()

"""Choices that go before the rules: one backend for every problem, or this package turned off.

A backend is chosen in a context (`contextvars`): another thread, or another task, decides as if there were
no choice. It is in no key of JAX's caches: programs that are compiled under an override are measured, and
tested, after its end. The package is turned off in a thread, and the keys of the caches say so: no program of
such a block is reused outside of it, nor the other way round.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Iterator

from jax_convgrad._src import compat
from jax_convgrad._src.dispatch.rules import BACKENDS, PREPARATIONS
from jax_convgrad._src.runtime import environment

_backend: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    "jax_convgrad_backend", default=None
)
_preparation: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    "jax_convgrad_preparation", default=None
)


class _OffBlocks(threading.local):
    """How many blocks of `package_off` are open in a thread.

    It is the thread's, as the keys of JAX's caches are: a program always matches its key. A task or a thread
    that runs in the context of a block need not be where that key holds.
    """

    count = 0


# A module that is reloaded keeps it, with the blocks that have not ended.
_off_blocks: _OffBlocks = globals().get("_off_blocks") or _OffBlocks()


@contextlib.contextmanager
def override_backend(name: str | None) -> Iterator[None]:
    """Sends every problem that is lowered inside to one backend, if that can compute it.

    A handler's backend does not apply to other platforms, nor to problems whose result is wider than the
    operands; "gemm" does not apply to windows that overlap. The rules decide these problems. None ends an
    override that an outer block made.

    What is compiled inside stays as it is, and JAX reuses it outside: each override needs jitted functions of
    its own.

    Raises:
      ValueError: there is no such backend.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax_convgrad import conv_transpose
      >>> up = jax.jit(lambda x, w: conv_transpose(x, w, (2, 2), "SAME"))
      >>> x, w = jnp.ones((1, 8, 8, 32)), jnp.ones((4, 4, 32, 16))
      >>> with override_backend("xla"):
      ...     "custom_call" in up.lower(x, w).as_text()
      False
    """
    if name is not None and name not in BACKENDS:
        raise ValueError(
            f"override_backend: expected one of {', '.join(sorted(BACKENDS))}, got {name!r}"
        )
    token = _backend.set(name)
    try:
        yield
    finally:
        _backend.reset(token)


def overridden_backend() -> str | None:
    """The backend that is chosen for every problem: "xla" where the package is off; None without a choice."""
    return "xla" if environment.is_disabled() or is_package_off() else _backend.get()


@contextlib.contextmanager
def override_preparation(name: str) -> Iterator[None]:
    """Prepares the operands of every handler's call that is lowered inside in one way.

    Only for measurements: a call that needs another preparation may be wrong with it, or fail.

    Raises:
      ValueError: there is no such preparation.
    """
    if name not in PREPARATIONS:
        raise ValueError(
            f"override_preparation: expected one of {', '.join(sorted(PREPARATIONS))}, got {name!r}"
        )
    token = _preparation.set(name)
    try:
        yield
    finally:
        _preparation.reset(token)


def overridden_preparation() -> str | None:
    """What `override_preparation` asks for, None without it."""
    return _preparation.get()


@contextlib.contextmanager
def package_off() -> Iterator[None]:
    """Leaves all that this thread lowers inside to XLA: see `jax_convgrad.disabled`."""
    _off_blocks.count += 1
    try:
        compat.key_programs("off")
        yield
    finally:
        _off_blocks.count -= 1
        compat.key_programs("off" if is_package_off() else None)


def is_package_off() -> bool:
    """Whether a block of `package_off` is open in this thread."""
    return _off_blocks.count > 0

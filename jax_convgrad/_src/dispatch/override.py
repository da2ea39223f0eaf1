"""Choices that go before the rules: one backend for every problem, or this package turned off.

A choice holds in the context that made it (`contextvars`): another thread, or another task, decides as if
there were none. JAX's caches do not know of contexts. Each of their keys holds whether the thread has turned
the package off, so that no program of such a block is reused outside of it. A backend is in no key: programs
that are compiled under an override are measured, and tested, after its end.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator

from jax_convgrad._src import compat
from jax_convgrad._src.dispatch.rules import BACKENDS, PREPARATIONS
from jax_convgrad._src.runtime import environment


@dataclasses.dataclass(frozen=True)
class _Choice:
    """What holds in a context.

    Attributes:
      backend: the one for every problem; None leaves it to the rules.
      preparation: of every handler's operands; None leaves it to the rules.
      is_off: `install` and its like are off.
    """

    backend: str | None = None
    preparation: str | None = None
    is_off: bool = False


_NONE = _Choice()
# A module that is reloaded keeps it, with the blocks that have not ended.
_choice: contextvars.ContextVar[_Choice] = globals().get("_choice") or contextvars.ContextVar(
    "jax_convgrad_choice", default=_NONE
)


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
    with _choosing(dataclasses.replace(_choice.get(), backend=name)):
        yield


@contextlib.contextmanager
def package_off() -> Iterator[None]:
    """Leaves all that is lowered inside to XLA: see `jax_convgrad.disabled`."""
    before = _choice.get()
    try:
        _turn(_Choice("xla", is_off=True))
        yield
    finally:
        _turn(before)


def _turn(choice: _Choice) -> None:
    _choice.set(choice)
    # The context's, whatever a task that ran in between has left in this thread.
    compat.key_programs("off" if choice.is_off else None)


@contextlib.contextmanager
def _choosing(choice: _Choice) -> Iterator[None]:
    token = _choice.set(choice)
    try:
        yield
    finally:
        _choice.reset(token)


def overridden_backend() -> str | None:
    """The backend that `override_backend` or JAX_CONVGRAD_DISABLE=1 asks for, None without them."""
    return "xla" if environment.is_disabled() else _choice.get().backend


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
    with _choosing(dataclasses.replace(_choice.get(), preparation=name)):
        yield


def overridden_preparation() -> str | None:
    """What `override_preparation` asks for, None without it."""
    return _choice.get().preparation


def is_package_off() -> bool:
    """Whether `package_off` holds, in which what is installed has no say."""
    return _choice.get().is_off

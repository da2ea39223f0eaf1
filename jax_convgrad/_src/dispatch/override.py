"""One backend for every problem, for tests and for the measurements that the rules cite.

An override holds in the context that entered it (`contextvars`): another thread, or another task, decides
as if there were none.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from jax_convgrad._src.dispatch.rules import BACKENDS, PREPARATIONS
from jax_convgrad._src.runtime import environment

_override: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    "jax_convgrad_backend", default=None
)
_preparation: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    "jax_convgrad_preparation", default=None
)


@contextlib.contextmanager
def override_backend(name: str | None) -> Iterator[None]:
    """Sends every problem that is lowered inside to one backend, if that can compute it.

    A handler's backend does not apply to other platforms, nor to problems whose result is wider than the
    operands; "gemm" does not apply to windows that overlap. The rules decide these problems. None ends an
    override that an outer block made.

    Raises:
      ValueError: there is no such backend.
    """
    if name is not None and name not in BACKENDS:
        raise ValueError(
            f"override_backend: expected one of {', '.join(sorted(BACKENDS))}, got {name!r}"
        )
    token = _override.set(name)
    try:
        yield
    finally:
        _override.reset(token)


def overridden_backend() -> str | None:
    """The backend that `override_backend` or JAX_CONVGRAD_DISABLE=1 asks for, None without them."""
    return "xla" if environment.is_disabled() else _override.get()


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

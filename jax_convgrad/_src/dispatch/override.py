"""One backend for every problem, for tests and for measuring what the rules cite.

An override holds in the context that entered it (`contextvars`): another thread, or another task, decides
as if there were none.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from jax_convgrad._src.dispatch.rules import BACKENDS

_override: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    "jax_convgrad_backend", default=None
)


@contextlib.contextmanager
def override_backend(name: str | None) -> Iterator[None]:
    """Every problem that is lowered inside goes to one backend, if that can compute it.

    A handler's backend leaves out other platforms, and problems whose result is wider than the operands;
    "gemm" leaves out windows that overlap. What is left out is decided by the rules. None ends an override
    that an outer block made.

    Raises:
      ValueError: there is no such backend.
    """
    if name is not None and name not in BACKENDS:
        raise ValueError(f"override_backend: {name!r} is none of {', '.join(sorted(BACKENDS))}")
    token = _override.set(name)
    try:
        yield
    finally:
        _override.reset(token)


def overridden_backend() -> str | None:
    """The backend that `override_backend` asks for, None outside of it."""
    return _override.get()

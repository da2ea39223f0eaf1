"""`jax.image.resize` and `jax.image.scale_and_translate`, computed by this package while they are redirected.

A wrapper takes the place of each function. It asks whether this package can compute a call; what it cannot is
for jax.image's own function to take or to refuse, in its own words: a program that ran before runs on. The
wrapper is in its place while `install` is on or while `explain` traces a program. It is passive where neither
holds, as inside `disabled`. What it knows it holds itself, so that a copy of this module that is imported
anew finds the wrappers of the one before and takes them away.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from jax_convgrad._src import compat
from jax_convgrad._src.dispatch.override import is_package_off
from jax_convgrad._src.dtypes import FLOAT_DTYPES
from jax_convgrad._src.resize.api import compute_resize, compute_scale_and_translate
from jax_convgrad._src.resize.arguments import (
    ARGUMENT_ERRORS,
    Steps,
    check_resize,
    check_scale_and_translate,
    make_steps,
)
from jax_convgrad._src.resize.bands import BandTooLargeError


class _State:
    """Who wants the wrappers.

    Attributes:
      installed: `install` is on.
      tracing: how many `redirected` contexts there are, in all threads.
      in_context: whether this context is one of them.
    """

    def __init__(self) -> None:
        self.installed = False
        self.tracing = 0
        self.in_context = contextvars.ContextVar("jax_convgrad_redirected", default=False)


_state = _State()
_lock = threading.RLock()


def install() -> None:
    """Redirects both functions, everywhere except inside `disabled`."""
    with _lock:
        if not _state.installed:
            _put_in()
            _state.installed = True


def uninstall() -> bool:
    """Undoes `install`, and says whether there was anything to undo.

    What somebody has put around a wrapper stays, with the wrapper passive in it.
    """
    with _lock:
        states = [_state, *(_state_of(getattr(jax.image, name)) for name in _PREPARE)]
        was_installed = any(state is not None and state.installed for state in states)
        _state.installed = False
        _take_out()
        return was_installed


@contextlib.contextmanager
def redirected() -> Iterator[None]:
    """Redirects both functions in this context, as `install` would."""
    with _lock:
        _put_in()
        _state.tracing += 1
    token = _state.in_context.set(True)
    try:
        yield
    finally:
        _state.in_context.reset(token)
        with _lock:
            _state.tracing -= 1
            _take_out()


def _put_in() -> None:
    for name, prepare in _PREPARE.items():
        function = getattr(jax.image, name)
        if _state_of(function) is not _state:
            setattr(jax.image, name, _wrap(_unwrapped(function), prepare))


def _take_out() -> None:
    if _state.installed or _state.tracing:
        return
    for name in _PREPARE:
        setattr(jax.image, name, _unwrapped(getattr(jax.image, name)))


def _unwrapped(function: Callable[..., Array]) -> Callable[..., Array]:
    """What our wrappers that nobody has put anything around stand in for."""
    while (state := _state_of(function)) is not None:
        if state is not _state:  # another copy of this module's: nobody else can turn it off
            state.installed = False
        function = function._jax_convgrad[2]  # type: ignore[attr-defined]
    return function


def _state_of(function: Any) -> Any:
    """The state of our wrapper, by whatever copy of this module; None for another function.

    `functools.wraps` copies attributes to what somebody puts around a wrapper, so a wrapper names itself.
    """
    wrapper, state, _ = getattr(function, "_jax_convgrad", (None, None, None))
    return state if wrapper is function else None


def _wrap(theirs: Callable[..., Array], prepare: Callable[..., Any]) -> Callable[..., Array]:
    state, signature = _state, inspect.signature(prepare)

    @functools.wraps(theirs)
    def wrapper(*args: Any, **kwargs: Any) -> Array:
        is_on = state.installed and not is_package_off()
        if not (is_on or state.in_context.get()):
            return theirs(*args, **kwargs)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # arguments that a newer JAX may have
            return theirs(*args, **kwargs)
        compute = prepare(*bound.args, **bound.kwargs)
        return theirs(*args, **kwargs) if compute is None else compute()

    wrapper._jax_convgrad = wrapper, state, theirs  # type: ignore[attr-defined]
    return wrapper


def _prepare_resize(
    image: ArrayLike,
    shape: Sequence[int],
    method: Any,
    antialias: bool = True,
    precision: Any = lax.Precision.HIGHEST,
) -> Callable[[], Array] | None:
    """What computes a call of `jax.image.resize`; None where this package cannot."""
    array = compat.as_array(image)
    if not _is_ours(array):
        return None
    try:
        arguments = check_resize("resize", array.shape, shape, method, antialias, precision)
    except ARGUMENT_ERRORS:
        return None
    steps = _make_steps(arguments.resized)
    return None if steps is None else lambda: compute_resize(array, arguments, steps)


def _prepare_scale_and_translate(
    image: ArrayLike,
    shape: Sequence[int],
    spatial_dims: Sequence[int],
    scale: ArrayLike,
    translation: ArrayLike,
    method: Any,
    antialias: bool = True,
    precision: Any = lax.Precision.HIGHEST,
) -> Callable[[], Array] | None:
    """What computes a call of `jax.image.scale_and_translate`; None where this package cannot."""
    array = compat.as_array(image)
    if not _is_ours(array):
        return None
    try:
        arguments = check_scale_and_translate(
            "scale_and_translate",
            array.shape,
            shape,
            spatial_dims,
            scale,
            translation,
            method,
            antialias,
            precision,
        )
    except ARGUMENT_ERRORS:
        return None
    steps = _make_steps(arguments.resized)
    return None if steps is None else lambda: compute_scale_and_translate(array, arguments, steps)


_PREPARE: dict[str, Callable[..., Callable[[], Array] | None]] = {
    "resize": _prepare_resize,
    "scale_and_translate": _prepare_scale_and_translate,
}


def _make_steps(resized: Any) -> Steps | None:
    try:
        return make_steps(resized)
    except BandTooLargeError:
        return None


def _is_ours(image: Array) -> bool:
    """Whether its dtype is one of the four, or is promoted to one, and its sizes are known."""
    if not all(isinstance(size, int) for size in image.shape):
        return False
    integral = jnp.issubdtype(image.dtype, jnp.integer) or image.dtype == jnp.bool_
    return integral or str(image.dtype) in FLOAT_DTYPES

"""What a thread is lowering at the moment."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class _Lowering(threading.local):
    """What a thread is lowering at the moment."""

    implementation = False
    operations_only = False


_lowering = _Lowering()


@contextlib.contextmanager
def lowering_implementation(only_operations: bool) -> Iterator[None]:
    """Marks what this thread lowers inside as emitted by one of this package's own lowering rules."""
    before = _lowering.implementation, _lowering.operations_only
    _lowering.implementation, _lowering.operations_only = True, only_operations
    try:
        yield
    finally:
        _lowering.implementation, _lowering.operations_only = before


def in_implementation() -> bool:
    """Whether one of this package's own lowering rules emitted what is being lowered."""
    return _lowering.implementation


def operations_only() -> bool:
    """Inside one of this package's own lowering rules: whether XLA partitions operations only."""
    return _lowering.operations_only


@contextlib.contextmanager
def jax_rules() -> Iterator[None]:
    """Keeps JAX's own rules for what this thread lowers inside, as if this package had emitted it."""
    before, _lowering.implementation = _lowering.implementation, True
    try:
        yield
    finally:
        _lowering.implementation = before

"""Hides names of JAX from this package only, as if JAX had renamed them."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def hidden(path: str) -> Iterator[None]:
    """Hides "module:Class.attribute" of the instances of a class for a while."""
    module_name, _, attribute = path.partition(":")
    *classes, attribute = attribute.split(".")
    owner = _class(importlib.import_module(module_name), classes)
    was = owner.__dict__.get("__getattribute__")
    _hide_in_class(owner, attribute)
    try:
        yield
    finally:
        if was is None:
            del owner.__getattribute__
        else:
            owner.__getattribute__ = was


def hide(path: str) -> None:
    """Hides "module:attribute", or "module:Class.attribute" of the instances of a class."""
    module_name, _, attribute = path.partition(":")
    owner: Any = importlib.import_module(module_name)
    *classes, attribute = attribute.split(".")
    if not classes:
        _hide_in_module(owner, attribute)
        return
    _hide_in_class(_class(owner, classes), attribute)


def _class(module: types.ModuleType, names: list[str]) -> Any:
    owner: Any = module
    for name in names:
        owner = getattr(owner, name)
    return owner


def _asked_by_the_package() -> bool:
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") == __name__:  # two may be hidden
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).startswith("jax_convgrad")


def _hide_in_module(module: types.ModuleType, attribute: str) -> None:
    getattr(module, attribute)  # there is something to hide
    base = type(module)

    class Hiding(base):  # type: ignore[misc, valid-type]
        def __getattribute__(self, name: str) -> Any:
            if name == attribute and _asked_by_the_package():
                raise AttributeError(f"{module.__name__} has no {name}: a test hides it")
            return super().__getattribute__(name)

    module.__class__ = Hiding


def _hide_in_class(cls: Any, attribute: str) -> None:
    inherited = cls.__getattribute__

    def getattribute(self: Any, name: str) -> Any:
        if name == attribute and _asked_by_the_package():
            raise AttributeError(f"{cls.__name__} has no {name}: a test hides it")
        return inherited(self, name)

    cls.__getattribute__ = getattribute

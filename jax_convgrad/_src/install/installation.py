"""What `install` returns: a context manager that undoes it."""

from __future__ import annotations

from collections.abc import Callable


class Installation:
    """`install` is on. As a context manager it undoes this one call at its first exit.

    Attributes:
      platforms: on which it is on.
    """

    def __init__(self, platforms: tuple[str, ...], undo: Callable[[], None]) -> None:
        self.platforms = platforms
        self._undo = undo

    def __enter__(self) -> Installation:
        return self

    def __exit__(self, *exc: object) -> None:
        undo, self._undo = self._undo, _nothing
        undo()

    def __repr__(self) -> str:
        if not self.platforms:
            return "install() is off"
        return f"install() is on for {', '.join(self.platforms)}"


def _nothing() -> None:
    """What is left to undo of a call that was undone."""

"""What decides in a run in the place of the rules, and what the search is offered beyond its own engines."""

from __future__ import annotations

import dataclasses
from typing import Any

from jax_convgrad import plans
from jax_convgrad._src.dispatch.rules import BACKENDS
from jax_convgrad._src.runtime import environment
from jax_convgrad.bench.cases import CaseError


@dataclasses.dataclass(frozen=True)
class Choice:
    """The backend of all operators, None for the rules', and the unmeasured engines of the search."""

    backend: str | None = None
    unmeasured_engines: tuple[str, ...] = ()

    @classmethod
    def make(cls, backend: str | None) -> Choice:
        """Of a run with ``--backend``, and with JAX_CONVGRAD_UNMEASURED_ENGINES as it is set.

        Raises:
          CaseError: there is no such backend, or no such engine.
        """
        if backend is not None and backend not in BACKENDS:
            raise CaseError(
                f"--backend takes one of {', '.join(sorted(BACKENDS))}, got {backend!r}"
            )
        try:
            return cls(backend, environment.unmeasured_engines())
        except ValueError as error:
            raise CaseError(str(error)) from None

    def describe(self) -> str:
        """The end of a line that says how something was measured; empty where nothing is unusual."""
        backend = f", backend {self.backend}" if self.backend else ""
        named = ", ".join(self.unmeasured_engines)
        return backend + (f", unmeasured engines {named}" if named else "")

    def engine_lines(self) -> list[str]:
        """The engine of each problem, where the search was offered unmeasured ones."""
        return [
            f"{plan['engine']} ({_microseconds(plan['microseconds'])}): {plan['problem']}"
            for plan in self._plans()
        ]

    def to_json(self) -> dict[str, Any]:
        """What `describe` says, and the plans with all engines that were tried; empty where it is."""
        data: dict[str, Any] = {"backend": self.backend} if self.backend else {}
        if self.unmeasured_engines:
            data |= {"unmeasured_engines": list(self.unmeasured_engines), "plans": self._plans()}
        return data

    def _plans(self) -> list[dict[str, Any]]:
        return plans.list() if self.unmeasured_engines else []


def _microseconds(time: float | None) -> str:
    return "not timed" if time is None else f"{time:.1f} us"

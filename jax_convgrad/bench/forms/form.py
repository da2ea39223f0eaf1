"""A form: a way to compute all passes of a layer."""

from __future__ import annotations

import abc

from jax_convgrad._src.timing.runner import Runner
from jax_convgrad.bench.case_files import AnyCase

PASSES = ("fprop", "dx", "dw", "dxdwdb", "ddxddw")
RESULTS = {
    "fprop": ("y",),
    "dx": ("dx",),
    "dw": ("dw",),
    "dxdwdb": ("dx", "dw", "db"),
    "ddxddw": ("ddx", "ddw"),
}
PASS_TITLES = {
    "fprop": "forward",
    "dx": "input gradient",
    "dw": "weight gradient",
    "dxdwdb": "backward",
    "ddxddw": "double backward",
}
# Their names on the command line. Results files have the keys.
PASS_WORDS = {title.replace(" ", "-"): key for key, title in PASS_TITLES.items()}


class Form(abc.ABC):
    """A way to compute all passes of a layer."""

    name: str

    def unavailable(self) -> str | None:
        """Why this form cannot run at all on this machine, or None."""
        return None

    def not_applicable(self, case: AnyCase) -> str | None:
        """Why this form cannot compute the case, or None."""
        return None

    @abc.abstractmethod
    def runners(
        self, case: AnyCase, pass_: str, layout: str, weights: str | None = None
    ) -> list[Runner]:
        """The runners to time. If there are several variants, the one that is faster in the warm-up is
        kept."""

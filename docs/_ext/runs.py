"""The committed measurements of single layers: what `python -m jax_convgrad bench --json` wrote."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import pathlib
import re
from collections.abc import Iterable
from typing import Any

from jax_convgrad.bench.case_files import parse_case
from jax_convgrad.bench.forms import present_name

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
BACKWARD = ("dx", "dw", "dxdwdb")


@dataclasses.dataclass(frozen=True)
class Pass:
    """One pass of one layer: seconds and errors by form, for the forms that were measured."""

    case: Any
    name: str
    seconds: dict[str, float]
    errors: dict[str, float]
    failed: tuple[str, ...]

    def ratio(self, peer: str) -> float | None:
        """The peer's time over this package's."""
        ours = self.seconds.get("ours")
        if peer == "best":
            other = min((s for f, s in self.seconds.items() if f != "ours"), default=None)
        else:
            other = self.seconds.get(peer)
        return None if ours is None or other is None else other / ours


@dataclasses.dataclass(frozen=True)
class Run:
    """One committed file."""

    name: str
    device: str
    platform: str
    versions: str
    passes: tuple[Pass, ...]

    @property
    def unit(self) -> tuple[str, float]:
        return ("ms", 1e3) if self.platform == "cpu" else ("µs", 1e6)

    def select(self, cases: str, passes: Iterable[str]) -> list[Pass]:
        wanted = {p for name in passes for p in (BACKWARD if name == "backward" else (name,))}
        pattern = re.compile(cases)
        found = [p for p in self.passes if p.name in wanted and pattern.search(p.case.label)]
        if not found:
            raise ValueError(
                f"benchmarks/{self.name} has no pass {wanted} of cases that match {cases!r}"
            )
        return found


@functools.cache
def load(name: str) -> Run:
    """A file under benchmarks/, as `python -m jax_convgrad bench --json` writes it."""
    content = json.loads((BENCHMARKS / name).read_text())
    grouped: dict[tuple[Any, str], list[dict[str, Any]]] = {}
    for result in content["results"]:
        grouped.setdefault((parse_case(result["case"]), result["pass"]), []).append(result)
    passes = tuple(
        Pass(
            case,
            pass_,
            {
                present_name(r["form"]): r["median_s"]
                for r in results
                if r["median_s"] and not r["failure"]
            },
            {present_name(r["form"]): r["error"] for r in results if r["error"] is not None},
            tuple(present_name(r["form"]) for r in results if r["failure"]),
        )
        for (case, pass_), results in grouped.items()
    )
    device, versions = content["device"], content["info"]["versions"]
    threads = f", {device['threads']} threads" if device["threads"] else ""
    order = f", weights {content['weights']}" if "weights" in content else ""
    return Run(
        name,
        f"{device['name']}{threads}",
        device["platform"],
        f"jax {versions['jax']}, PyTorch {content['torch']}; activations {content['layout']}{order}",
        passes,
    )


def geometric_mean(values: Iterable[float]) -> float:
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))


def number(value: float) -> str:
    """Three digits, no exponent."""
    digits = 0 if value <= 0 else 2 - math.floor(math.log10(value))
    return f"{value:.{max(0, min(digits, 4))}f}"

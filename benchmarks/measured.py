"""Files of measurements that the rules of jax_convgrad/_src/dispatch cite, and the cases in them.

A file has a header (where, when, by which command) and rows: the case, the pass, and the time by each backend
that was measured. A rule names a row as FILE#CASE#PASS.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Iterable
from typing import Any

from jax_convgrad._src.dispatch import devices, tables
from jax_convgrad._src.dispatch.rules import Rule
from jax_convgrad._src.runtime import registry
from jax_convgrad.bench import problems, provenance
from jax_convgrad.bench.case_files import AnyCase, parse_case


@dataclasses.dataclass(frozen=True)
class Layer:
    """A case of the benchmark under one of JAX's default precisions. ``name`` overrides the case's label."""

    case: AnyCase
    precision: str | None = None
    name: str | None = None

    @classmethod
    def parse(cls, entry: dict[str, Any], name: str | None = None) -> Layer:
        """From an entry of a case file, which may say "precision" too."""
        case = {key: value for key, value in entry.items() if key != "precision"}
        return cls(parse_case(case), entry.get("precision"), name)

    @property
    def label(self) -> str:
        if self.name is not None:
            return self.name
        return self.case.label + (f", {self.precision}" if self.precision else "")

    @property
    def passes(self) -> tuple[str, ...]:
        return tuple(p for p in ("fprop", "dx", "dw") if p in self.case.passes)

    def to_json(self) -> dict[str, Any]:
        precision = {"precision": self.precision} if self.precision else {}
        return self.case.to_json() | precision

    def problem(self, pass_: str) -> Any:
        return problems.problem_of(self.case, pass_, self.precision)

    def rule(self, platform: str, pass_: str) -> Rule:
        """The rule that decides on one of its operators."""
        module = registry.cpu_module() if platform == "cpu" else None
        features = problems.features_of(self.problem(pass_), module.is_thin if module else None)
        return tables.choose(platform, devices.device_class(platform), features)[0]


def load_layers(paths: Iterable[str | pathlib.Path]) -> list[Layer]:
    """The cases of some case files, each once."""
    layers: dict[str, Layer] = {}
    for path in paths:
        for entry in json.loads(pathlib.Path(path).read_text()):
            layer = Layer.parse(entry)
            layers.setdefault(layer.label, layer)
    return list(layers.values())


def header(platform: str, unit: str, **rest: Any) -> dict[str, Any]:
    """Of a file that this program writes."""
    found = provenance.provenance(provenance.load_average())
    return {
        "schema": 1,
        "command": " ".join(
            ["python", f"benchmarks/{pathlib.Path(sys.argv[0]).name}", *sys.argv[1:]]
        ),
        "commit": found["commit"],
        "date": found["date"],
        "device": found["device"],
        "device_class": devices.device_class(platform),
        "versions": found["info"]["versions"] | found["info"]["handlers"][platform]["versions"],
        "unit": unit,
        **rest,
    }


def write(path: str | pathlib.Path, head: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """One line a row, and never half a file."""
    lines = [json.dumps(key) + ": " + json.dumps(value) for key, value in head.items()]
    text = ",\n".join(json.dumps(row) for row in rows)
    temporary = pathlib.Path(f"{path}.{os.getpid()}")
    temporary.write_text("{\n" + ",\n".join(lines) + ',\n"rows": [\n' + text + "\n]\n}\n")
    temporary.replace(path)


def spread_over_rules(
    layers: Iterable[Layer], platform: str, per_rule: int
) -> list[tuple[Layer, str]]:
    """Layers and passes, of each rule's no more than so many, the first ones."""
    counts: dict[str, int] = {}
    chosen = []
    for layer in layers:
        for pass_ in layer.passes:
            rule = layer.rule(platform, pass_)
            key = f"{layer.case.kind == 'resize'} {rule.name}"
            counts[key] = counts.get(key, 0) + 1
            if counts[key] <= per_rule:
                chosen.append((layer, pass_))
    return chosen

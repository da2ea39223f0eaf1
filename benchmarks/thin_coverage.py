"""Which layers' operators the thin CUDA kernels serve, why they do not serve others, and what the rules say.

    python benchmarks/thin_coverage.py                                  # all case files
    python benchmarks/thin_coverage.py benchmarks/thin_cases.json --only stem

A row has a layer's pass, the backend that the rules of CUDA give it, and the thin kernels' plans, the first
choice first, or why there is none. float32 is multiplied as TF32. Only "cudnn" asks the search, which these
plans are offered to: behind "gemm" and "xla" they can be measured with `bench --backend cudnn`, and never run
otherwise. Layers without groups are looked at. Needs g++ and neither a GPU nor the CUDA toolkit.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import pathlib
import re
import subprocess
import tempfile
from typing import Any

import measured

from jax_convgrad._src.conv import emit_ffi
from jax_convgrad._src.conv.geometry import ConvGeometry
from jax_convgrad._src.conv.subsample import subsample
from jax_convgrad._src.conv.workspace import ALIGNMENT, workspace_size
from jax_convgrad._src.dispatch.decide import computed_geometry
from jax_convgrad._src.dispatch.problem import ConvProblem
from jax_convgrad.bench import case_files
from jax_convgrad.bench.resize_cases import ResizeCase

ROOT = pathlib.Path(__file__).resolve().parents[1]
CASES = [
    ROOT / "benchmarks" / "thin_cases.json",
    ROOT / "benchmarks" / "unseen_gpu_cases.json",
    case_files.PUBLISHED,
]
_KINDS = ("conv_fprop", "conv_dgrad", "conv_wgrad")
_TYPES = ("float16", "bfloat16", "float32")
# How a table says that the kernels are for other layers.
NOT_THIN = "not thin"


@dataclasses.dataclass(frozen=True)
class Row:
    """One operator of one layer."""

    case: str
    pass_: str
    backend: str
    rule: str
    plans: tuple[str, ...]  # of the thin kernels
    reasons: str  # why there is none

    def __str__(self) -> str:
        found = " ".join(self.plans) or f"- {self.reasons}"
        return f"{self.case:64} {self.pass_:5} {self.backend:5} {found}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", metavar="FILE", nargs="*", help="default: three case files")
    parser.add_argument("--only", metavar="REGEX", default="", help="cases whose label matches")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = build(pathlib.Path(folder))
        for path in arguments.cases or CASES:
            found = rows(path, arguments.only, program)
            print(f"\n{pathlib.Path(path).name}: {len(found)} operators without groups")
            print(*found, sep="\n")
            print(summary(found))


def build(folder: pathlib.Path) -> pathlib.Path:
    """thin_coverage.cc as a program."""
    program = folder / "thin_coverage"
    headers = ["-Itests/cpp/emulated_cuda", "-Icpp"]
    command = ["g++", "-std=c++17", "-Wno-unknown-pragmas", *headers, "-o", str(program)]
    subprocess.run([*command, "benchmarks/thin_coverage.cc"], cwd=ROOT, check=True)
    return program


def rows(path: str | pathlib.Path, only: str, program: pathlib.Path) -> list[Row]:
    """Every operator without groups of the cases in a file."""
    layers = [
        (layer, pass_)
        for layer in measured.load_layers([path])
        if not isinstance(layer.case, ResizeCase)
        and layer.case.dtype in ("bf16", "f16", "f32")
        and layer.case.groups == 1
        and re.search(only, layer.label)
        for pass_ in layer.passes
    ]
    problems = [layer.problem(pass_) for layer, pass_ in layers]
    lines = [line(problem, computed(problem)) for problem in problems]
    found = []
    for (layer, pass_), answer in zip(layers, answers(program, lines), strict=True):
        rule = layer.rule("cuda", pass_)
        served = not answer.startswith("- ")
        plans = tuple(answer.partition(";")[0].split()) if served else ()
        reasons = "" if served else answer.removeprefix("- ")
        found.append(Row(layer.label, pass_, rule.choice, rule.name, plans, reasons))
    return found


def answers(program: pathlib.Path, lines: list[str]) -> list[str]:
    """What thin_coverage.cc says to problems."""
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run([program], input=text, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def computed(problem: ConvProblem) -> ConvGeometry:
    """What the handler is called with for a problem."""
    smaller = subsample(problem.geometry.config, problem.geometry.x_shape)
    return computed_geometry(problem.geometry, smaller)


def line(problem: ConvProblem, geometry: ConvGeometry, workspace: int | None = None) -> str:
    """An operator on a geometry, as thin_coverage.cc reads it.

    ``workspace`` is the limit, None the package's own.
    """
    crop, config = emit_ffi.split_negative(geometry.config)
    in_spatial = [n + sum(pair) for n, pair in zip(geometry.in_spatial, crop, strict=True)]
    if workspace is None:
        arrays: dict[Any, Any] = {
            role: (geometry.shape_of(role), problem.dtype) for role in ("x", "w", "y")
        }
        size = workspace_size(config, arrays, True, None)
        workspace = int(size) - ALIGNMENT
    low = [pair[0] for pair in config.padding]
    axes = [
        (in_spatial, 1),
        (geometry.kernel, 1),
        (geometry.out_spatial, 1),
        (config.strides, 1),
        (low, 0),
        (config.dilation, 1),
    ]
    numbers = [
        _KINDS.index(problem.operator),
        _TYPES.index(str(problem.dtype)),
        geometry.batch,
        geometry.in_channels,
        geometry.out_channels,
        *(n for values, neutral in axes for n in _three(values, neutral)),
        workspace,
    ]
    return " ".join(map(str, numbers))


def _three(values: Any, neutral: int) -> list[int]:
    return [neutral] * (3 - len(values)) + list(values)


def summary(found: list[Row]) -> str:
    """How many operators are served, by backend of the rules, and why others are not."""
    thin = [row for row in found if row.reasons != NOT_THIN]
    served = [row for row in thin if row.plans]
    lines = [f"{len(thin)} are thin, {len(served)} of them are served"]
    backends = collections.Counter(row.backend for row in served)
    lines += [f"  {count:3} by rule on {backend}" for backend, count in backends.most_common()]
    reasons = collections.Counter(row.reasons for row in thin if not row.plans)
    lines += [f"  {count:3} not: {reason}" for reason, count in reasons.most_common()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

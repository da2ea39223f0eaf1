"""The results of a run: a table, Markdown and JSON."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from jax_convgrad._src.timing.method import Method
from jax_convgrad.bench.forms import PASS_TITLES, title
from jax_convgrad.bench.provenance import provenance
from jax_convgrad.bench.summary import BASE, best_peer, groups, ratio, summary, summary_lines
from jax_convgrad.bench.tables import aligned, page, time_cell, times, unit
from jax_convgrad.bench.timing import Result


def _cell(result: Result | None) -> str:
    if result is None or result.absent:
        return "-"
    if result.failure or result.median is None:
        return "failed"
    error = "nan" if result.error is None else f"{result.error:.0e}"
    return f"{time_cell(result.median, result.quartiles)} {error}"


def _compares(forms: Sequence[str]) -> bool:
    """Whether the table has columns of ratios."""
    return BASE in forms and len(forms) > 1


def rows(results: Sequence[Result], forms: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """The table: one row for each pass of each case."""
    compare = _compares(forms)
    head = ["case", "pass", *map(title, forms)]
    if compare:
        head += [f"vs {peer}" for peer in forms if peer == "lax"] + ["vs best"]
    body = []
    for (case, pass_), group in groups(results).items():
        row = [case.label, PASS_TITLES[pass_], *(_cell(group.get(form)) for form in forms)]
        if compare:
            if "lax" in forms:
                row.append(times(ratio(group, "lax")))
            best = best_peer(group)
            row.append(times(ratio(group, best.form)) if best else "-")
        body.append(row)
    return head, body


def legend(forms: Sequence[str]) -> str:
    """What the cells mean."""
    name, _ = unit()
    text = (
        f"Cells: median in {name}, spread between the quartiles in % of it, largest error against "
        "float64 relative to the largest value. The lax of a resize is jax.image."
    )
    if _compares(forms):
        lax = "lax or of " if "lax" in forms else ""
        text += f" The last columns: the time of {lax}the fastest other form, over {title(BASE)}'s."
    return text


def table(results: Sequence[Result], forms: Sequence[str]) -> str:
    """The table for a terminal."""
    return aligned(*rows(results, forms))


def markdown(results: Sequence[Result], forms: Sequence[str], where: str) -> str:
    """The same as a Markdown document. `where` describes the arrays' memory layout."""
    return page(
        "Benchmark", where, legend(forms), rows(results, forms), summary_lines(results, forms)
    )


def describe_run(layout: str, weights: str, backend: str | None) -> str:
    """The memory layout of the arrays that the JAX forms are given, and ``--backend`` if it was."""
    return f"activations {layout}, weights {weights}" + (f", backend {backend}" if backend else "")


def to_json(
    results: Sequence[Result],
    layout: str,
    weights: str,
    method: Method,
    load_before: float | None,
    backend: str | None,
) -> dict[str, Any]:
    """All measurements, with the details that are needed to judge them."""
    return {
        **provenance(load_before),
        **({"backend": backend} if backend else {}),
        "torch": getattr(sys.modules.get("torch"), "__version__", None),
        "layout": layout,
        "weights": weights,
        "method": dataclasses.asdict(method),
        "results": [
            {
                "case": result.case.to_json(),
                "pass": result.pass_,
                "form": result.form,
                "variant": result.variant,
                "median_s": result.median,
                "quartiles_s": result.quartiles,
                "samples_s": result.samples,
                "calls_per_sample": result.repeats,
                "calls_per_program": result.calls_per_program,
                "least_s": result.least_seconds,
                "rejected_s": result.rejected,
                "input_sets": result.input_sets,
                "host_bound_samples": result.host_bound_samples,
                "error": result.error,
                "error_batch": result.error_batch,
                "absent": result.absent,
                "failure": result.failure,
            }
            for result in results
        ],
        "summary": summary(results),
    }

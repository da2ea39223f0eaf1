"""Compares forms: ratios of times, their means, and where this package is slower."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jax_convgrad._src.timing.samples import Sampled
from jax_convgrad.bench.case_files import AnyCase
from jax_convgrad.bench.forms import PASS_TITLES, title
from jax_convgrad.bench.timing import Result

BASE = "ours"
# The threshold for "slower". Medians of one run vary by a few percent.
LIMITS = {"lax": 1.05, "torch": 1.10}

Group = dict[str, Result]  # form name -> result, of one pass of one case


def groups(results: Iterable[Result]) -> dict[tuple[AnyCase, str], Group]:
    """The results of each pass of each case together."""
    grouped: dict[tuple[AnyCase, str], Group] = {}
    for result in results:
        grouped.setdefault((result.case, result.pass_), {})[result.form] = result
    return grouped


def ratio(group: Mapping[str, Sampled], peer: str) -> float | None:
    """How many times slower than ours the peer is."""
    ours, other = group.get(BASE), group.get(peer)
    if ours is None or other is None or not ours.median or not other.median:
        return None
    return other.median / ours.median


def best_peer(group: Group) -> Result | None:
    """The fastest form that is not ours."""
    peers = [r for name, r in group.items() if name != BASE and r.median]
    return min(peers, key=lambda r: r.median or math.inf, default=None)


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """Geometric means, and the passes in which ours is slower."""
    grouped = groups(results)
    out: dict[str, Any] = {
        "passes": len(grouped),
        "geomean_over_ours": {},
        "slower_than": {},
        "failed": [f"{r.case.id} {r.pass_} {r.form}" for r in results if r.failure],
    }
    peers = [name for name in dict.fromkeys(r.form for r in results) if name != BASE]
    for peer in [*peers, "best"]:
        ratios = []
        for group in grouped.values():
            found = best_peer(group) if peer == "best" else group.get(peer)
            value = ratio(group, found.form) if found else None
            if value is not None:
                ratios.append(value)
        if ratios:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            out["geomean_over_ours"][peer] = {"ratio": mean, "passes": len(ratios)}
    for peer, limit in LIMITS.items():
        if any(ratio(group, peer) is not None for group in grouped.values()):
            out["slower_than"][peer] = {
                "by_more_than": limit - 1,
                "passes": [
                    f"{case.id} {pass_}: {times:.2f}"
                    for case, pass_, times in _slower_than(grouped, peer)
                ],
            }
    return out


def _slower_than(
    grouped: Mapping[tuple[AnyCase, str], Group], peer: str
) -> list[tuple[AnyCase, str, float]]:
    """The passes in which ours is slower than the peer by more than the limit, and how many times."""
    compared = ((case, pass_, ratio(group, peer)) for (case, pass_), group in grouped.items())
    return [
        (case, pass_, 1 / value)
        for case, pass_, value in compared
        if value is not None and value * LIMITS[peer] < 1
    ]


def summary_lines(results: Sequence[Result], forms: Sequence[str]) -> list[str]:
    """The summary in words."""
    found = summary(results)
    lines = []
    for peer, entry in found["geomean_over_ours"].items():
        what = "the best peer" if peer == "best" else peer
        lines.append(
            f"{what} / {title(BASE)}: {entry['ratio']:.2f} (geometric mean of {entry['passes']} passes)"
        )
    for peer, entry in found["slower_than"].items():
        slow = [
            f"{case.id} {PASS_TITLES[pass_]}: {times:.2f}"
            for case, pass_, times in _slower_than(groups(results), peer)
        ]
        lines.append(
            f"{title(BASE)} slower than {peer} by more than {entry['by_more_than']:.0%}: "
            f"{len(slow)} passes" + (f" ({'; '.join(slow)})" if slow else "")
        )
    for result in results:
        if result.failure:
            lines.append(
                f"{title(result.form)} failed on {result.case.id} {PASS_TITLES[result.pass_]}: "
                f"{result.failure}"
            )
        if result.host_bound:
            lines.append(
                f"{title(result.form)} on {result.case.id} {PASS_TITLES[result.pass_]}: the host was too "
                "slow to measure the device's time"
            )
    absent = {
        (r.form, r.absent) for r in results if r.absent and r.form == "torch" and "torch" in forms
    }
    lines += [f"{form} was not timed: {why}" for form, why in sorted(absent)]
    return lines

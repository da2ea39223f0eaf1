"""Runs seeds, one random problem each, and fails with what is wrong with all of them."""

from __future__ import annotations

from collections.abc import Callable

import jax


def chunks(first: int, count: int, size: int) -> list[range]:
    """``count`` seeds from ``first``, ``size`` to a test."""
    end = first + count
    return [range(begin, min(begin + size, end)) for begin in range(first, end, size)]


def check(run_seed: Callable[[int], str | None], seeds: range) -> None:
    """``run_seed`` says None of a problem that passes, else what is wrong and how to see it again."""
    failures = list(filter(None, map(run_seed, seeds)))
    # Compiled programs of one chunk are of no use to the next.
    jax.clear_caches()
    assert not failures, "\n".join([f"{len(failures)} of {len(seeds)} problems:", *failures])

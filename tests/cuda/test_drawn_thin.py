"""The random problems of tests/cuda/test_guarded.py for the thin kernels, on machines without a GPU."""

from __future__ import annotations

import collections
import os
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest
from support import benchmark_programs, drawn_thin, native
from support.drawn_convs import Call

import jax_convgrad
from jax_convgrad._src.dispatch.override import override_backend

CASES = int(os.environ.get("JAX_CONVGRAD_THIN_CASES", "200"))


def draws(count: int) -> list[tuple[Call, int]]:
    rngs = [np.random.default_rng(seed) for seed in range(count)]
    calls = [drawn_thin.draw(rng) for rng in rngs]
    return [(c, drawn_thin.workspace_limit(r, c)) for c, r in zip(calls, rngs, strict=True)]


@pytest.mark.cpp
@pytest.mark.slow
def test_every_problem_has_a_plan_and_every_plan_problems(tmp_path: pathlib.Path) -> None:
    """On an H100. No result is beyond float16."""
    native.need_compiler()
    coverage = benchmark_programs.load("thin_coverage")
    calls = draws(CASES)
    problems = [(drawn_thin.problem_of(call), limit) for call, limit in calls]
    lines = [coverage.line(problem, problem.geometry, limit) for problem, limit in problems]
    answers = coverage.answers(coverage.build(tmp_path), lines)
    counts: collections.Counter[str] = collections.Counter()
    for (call, _), answer in zip(calls, answers, strict=True):
        assert not answer.startswith("- "), f"{call}: {answer}"
        engines = {f"native_thin_{name}" for name in answer.partition(";")[0].split()}
        assert engines <= set(drawn_thin.ENGINES[call.operator]), f"{call}: {answer}"
        counts.update(engines)
        assert np.abs(call.expected).max() < 65504, call
    every = {engine for engines in drawn_thin.ENGINES.values() for engine in engines}
    assert set(counts) == every
    assert min(counts.values()) > CASES / 50, counts


@pytest.mark.parametrize("seed", range(12))
def test_what_is_expected_is_what_xla_computes(seed: int) -> None:
    """And a result with one element that is off by a unit in its last place is wrong."""
    call = drawn_thin.draw(np.random.default_rng(seed))
    problem = drawn_thin.problem_of(call)
    keywords = call.case.operator_keywords
    if call.operator == "conv_dgrad":
        keywords["x_shape"] = problem.result_shape
    if call.operator == "conv_wgrad":
        keywords["w_shape"] = problem.result_shape
    with override_backend("xla"):
        operands = [jnp.asarray(operand, jnp.float32) for operand in call.operands]
        got = getattr(jax_convgrad, call.operator)(*operands, **keywords)
    result = np.array(got).astype(call.operands[0].dtype)
    assert not (what := call.compare(result)), f"{call}: {what}"
    flat = result.reshape(-1).view(f"uint{8 * result.itemsize}")
    flat[np.random.default_rng(seed).integers(flat.size)] ^= 1
    assert call.compare(result).startswith("1 of ")

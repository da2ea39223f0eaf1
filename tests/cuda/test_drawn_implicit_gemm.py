"""The random problems of tests/cuda/test_guarded.py for implicit GEMM kernels, on machines without a GPU."""

from __future__ import annotations

import collections
import os
import pathlib
import re
import subprocess

import jax.numpy as jnp
import numpy as np
import pytest
from support import benchmark_programs, drawn_implicit_gemm, drawn_thin, native
from support.drawn_convs import Call

import jax_convgrad
from jax_convgrad._src.dispatch.override import override_backend

CASES = int(os.environ.get("JAX_CONVGRAD_GEMM_CASES", "200"))
# What plans' names begin with: a pass, and how blocks of warpgroups walk, or that warps multiply.
WALKS = {
    "conv_fprop": {"fprop_planes", "fprop_rows", "fprop_warp"},
    "conv_dgrad": {"dgrad_planes", "dgrad_rows", "dgrad_warp"},
    "conv_wgrad": {"wgrad_z", "wgrad_xy", "wgrad_x", "wgrad_y", "wgrad_warp"},
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """tests/cpp/implicit_gemm_answers.cc, which knows an H200."""
    return native.build(
        tmp_path_factory.mktemp("answers"),
        ["tests/cpp/implicit_gemm_answers.cc"],
        "-Wno-unknown-pragmas",
        "-Wno-psabi",
        "-DEMULATED_BULK_COPIES=1",
        headers=("tests/cpp/emulated_cuda", "cpp", "benchmarks"),
    )


@pytest.mark.cpp
@pytest.mark.slow
def test_every_problem_has_a_plan_and_every_walk_problems(program: pathlib.Path) -> None:
    """On an H200. No result is beyond float16. Long walks and short ones are among them."""
    rngs = [np.random.default_rng(seed) for seed in range(CASES)]
    calls = [drawn_implicit_gemm.draw(rng) for rng in rngs]
    line, lines = benchmark_programs.load("thin_coverage").line, []
    for rng, call in zip(rngs, calls, strict=True):
        problem = drawn_thin.problem_of(call)
        limit = drawn_implicit_gemm.workspace_limit(rng, call)
        lines.append(line(problem, problem.geometry, limit) + "\n")
        assert np.abs(call.expected).max() < 65504, call
    done = subprocess.run(
        [program], input="".join(lines), capture_output=True, text=True, check=True
    )
    counts: collections.Counter[str] = collections.Counter()
    wrap: collections.Counter[str] = collections.Counter()
    for call, answer in zip(calls, done.stdout.splitlines(), strict=True):
        assert answer != "-", call
        names, reusing, _ = answer.split("; ")
        walks = {"_".join(name.split("_")[:2]) for name in names.split()}
        assert walks <= WALKS[call.operator], f"{call}: {answer}"
        counts.update(walks)
        wrap[call.operator] += int(reusing) > 0
    assert set(counts) == set().union(*WALKS.values())
    assert min(counts.values()) > CASES / 50, counts
    # Of each operator, so many problems use slots of shared memory again.
    assert len(wrap) == 3 and min(wrap.values()) > CASES / 20, wrap
    assert sum(_is_short_walk(call) for call in calls) > CASES / 50


def _is_short_walk(call: Call) -> bool:
    kernel, planes = call.case.w[2], call.case.y[2]
    return len(call.case.w) == 5 and kernel > 1 and planes <= call.case.dilation[0]


@pytest.mark.cpp
@pytest.mark.slow
def test_problems_of_the_benchmark_use_slots_again(program: pathlib.Path) -> None:
    """Those that `implicit_gemm_kernels --random` draws, by the pass and by what multiplies."""
    answer = subprocess.run(
        [program, str(CASES), "1"], capture_output=True, text=True, check=True
    ).stdout
    found = re.findall(r"(\w+ by \w+): (\d+) served, (\d+) use slots again", answer)
    assert len(found) == 6, answer
    for _, served, reusing in found:
        assert int(served) > CASES / 50 and int(reusing) > CASES / 50, answer
    short_walks = re.search(r"^(\d+) short walks$", answer, re.MULTILINE)
    assert short_walks and int(short_walks[1]) > CASES / 50, answer


@pytest.mark.parametrize("seed", range(6))
def test_what_is_expected_is_what_xla_computes(seed: int) -> None:
    call = drawn_implicit_gemm.draw(np.random.default_rng(seed))
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

"""benchmarks/random_problems.py: how many problems it compares, and what it says of one that is wrong."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import jax
import pytest
from support import benchmark_programs

import jax_convgrad

random_problems = benchmark_programs.load("random_problems")
Kind = random_problems.Kind


@pytest.mark.parametrize("problems", [1, 99, 20_000])
def test_the_kinds_share_all_problems(problems: int):
    wanted = [t.wanted for t in random_problems.tallies(random_problems.KINDS, problems).values()]
    assert sum(wanted) == problems
    assert sum(kind.share for kind in random_problems.KINDS) == 100


@pytest.mark.parametrize("kind", random_problems.KINDS, ids=lambda kind: kind.name)
def test_every_kind_has_its_generator(kind: Kind):
    if kind.of_cpu and jax.default_backend() != "cpu":
        pytest.skip("its bounds have been checked on CPUs alone")
    outcomes = random_problems.run_chunk(kind, range(3))
    assert set(outcomes.values()) <= {random_problems.LEFT_OUT}


def test_what_is_wrong_or_left_out_is_told_from_what_passes(monkeypatch: pytest.MonkeyPatch):
    def run_seed(seed: int) -> str | None:
        assert "cpu" in str(jax_convgrad.installed())
        return {3: random_problems.LEFT_OUT, 5: "seed 5 is wrong"}.get(seed)

    module = types.ModuleType("generator_of_the_test")
    module.run_seed = run_seed  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    kind = Kind("of the test", module.__name__, 100, installed=True)
    found = random_problems.tallies([kind], 10)
    found[kind].add(range(10), random_problems.run_chunk(kind, range(10)))
    assert (found[kind].compared, found[kind].left_out) == (9, 1)
    text = random_problems.page(found, "command", 1.5)
    assert "of the test: 9 compared, 1 outside of their bounds, 1 left out" in text
    assert text.endswith("seed 5 is wrong\n")


def test_the_program_writes_what_it_found(tmp_path: Path):
    out = tmp_path / "out.txt"
    command = [sys.executable, str(benchmark_programs.FOLDER / "random_problems.py")]
    options = ["--problems", "20", "--first", "9", "--processes", "1", "--out", str(out)]
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = out.read_text().splitlines()
    assert lines[-1].startswith("all: 20 compared, 0 outside of their bounds")


def test_a_crash_is_no_pass():
    kind = Kind("of the test", "os", 100, installed=False, run="_exit")
    outcomes = random_problems.run_alone(kind, range(4))
    assert "crashes" in outcomes[0]
    assert [outcomes[seed] for seed in (1, 2, 3)] == [random_problems.LEFT_OUT] * 3

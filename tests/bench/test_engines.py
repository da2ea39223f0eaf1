"""`check-engines`: its problems and their definition; wrong engines are found and named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
from support import oracles

from jax_convgrad.__main__ import main
from jax_convgrad._src.runtime import plans, registry, remedies
from jax_convgrad.bench import engines

COMMAND = ["check-engines"]


@pytest.mark.parametrize("problem", engines.PROBLEMS, ids=lambda problem: problem.name)
def test_the_definition(problem: engines.Problem, rng: np.random.Generator) -> None:
    x, w, dy = (rng.integers(-9, 10, shape) for shape in (problem.x, problem.w, problem.y))
    y, dx, dw = engines.definition(problem, x, w, dy)
    first = lambda a: np.moveaxis(a, -1, 1)  # noqa: E731
    weights = lambda a: np.moveaxis(a, (-1, -2), (0, 1))  # noqa: E731
    keywords = {
        name: getattr(problem, name) for name in ("strides", "padding", "dilation", "groups")
    }
    exact = oracles.conv_fprop(first(x), weights(w), **keywords)
    np.testing.assert_array_equal(first(y), exact)
    exact = oracles.conv_dgrad(first(dy), weights(w), first(x).shape, **keywords)
    np.testing.assert_array_equal(first(dx), exact)
    exact = oracles.conv_wgrad(first(x), first(dy), weights(w).shape, **keywords)
    np.testing.assert_array_equal(weights(dw), exact)


@pytest.mark.parametrize("operator", engines.OPERATORS)
@pytest.mark.parametrize("problem", engines.PROBLEMS, ids=lambda problem: problem.name)
def test_what_differs_is_wrong(
    problem: engines.Problem, operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results of this machine's backends stand for those of engines."""
    monkeypatch.setattr(engines, "override_backend", lambda backend: _Nothing())

    def results(run: Callable[[], Any]) -> Iterator[tuple[str, Any]]:
        result = run()
        yield "right", result
        one_off = np.array(result)
        one_off.flat[-1] += 1 + np.abs(one_off).max()
        yield "one element", one_off
        yield "NaN", result * np.nan
        yield "none", "no engine takes it"

    monkeypatch.setattr(engines, "results_of_engines", results)
    rows = [*engines.check(problem, operator, "strict")]
    assert [(row.engine, row.is_wrong) for row in rows] == [
        ("right", False),
        ("one element", True),
        ("NaN", True),
        ("none", False),
    ]
    assert rows[0].error == 0.0
    assert str(rows[1]).startswith(f"wrong: {operator}, {problem.name}, strict: one element, error")


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class _Module:
    """Stands for the CUDA module: two engines run, one of them only if it is asked for, and one fails."""

    loaded = "first"

    def load_choices(self, choices: list[tuple[str, str]]) -> None:
        ((problem, self.loaded),) = choices
        assert problem == "p"

    def plans(self) -> list[dict[str, Any]]:
        tried = [{"engine": name, "failure": ""} for name in ("first", "second", "refuses")]
        tried += [{"engine": "fails", "failure": "NOT_SUPPORTED"}]
        used = "first" if self.loaded == "refuses" else self.loaded
        return [{"problem": "p", "engine": used, "tried": tried}]


def test_every_engine_that_runs_has_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    module = _Module()
    monkeypatch.setattr(registry, "cuda_module", lambda: module)
    monkeypatch.setattr(plans, "clear", lambda: None)
    found = [*engines.results_of_engines(lambda: f"of {module.loaded}")]
    assert found == [("first", "of first"), ("second", "of second")]


def test_no_engine_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "cuda_module", lambda: _Module())
    monkeypatch.setattr(plans, "clear", lambda: None)

    def run() -> None:
        raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: no engine")

    assert [*engines.results_of_engines(run)] == [("none", "UNIMPLEMENTED: no engine")]


def test_a_run_that_is_short_of_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    row = engines.Row("conv_fprop", "2-D", "float32", "eng1", 0.0)
    monkeypatch.setattr(engines, "check", lambda *problem: iter([row]))
    seen: list[engines.Row] = []
    rows, left = engines.run(1e9, seen.append)
    every = len(engines.PROBLEMS) * len(engines.OPERATORS) * len(engines.ARITHMETIC)
    assert (rows, left) == (seen, 0) and len(rows) == every
    assert engines.run(0.0, seen.append) == ([], every)


@pytest.mark.parametrize("error", [0.0, 0.5])
def test_the_exit_status_is_1_if_an_engine_is_wrong(
    error: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers = registry.PlatformHandlers(
        versions=(("cudnn", "9.21.0"),), validated=(("cudnn", "9.19"),)
    )
    monkeypatch.setattr(registry, "find", lambda platform: handlers)
    row = engines.Row("conv_wgrad", "2-D, groups", "bfloat16", "eng7", error)
    none = dataclasses.replace(row, engine="none", error="no engine takes it")

    def run(seconds: float, progress: Callable[[engines.Row], None]) -> tuple[list[Any], int]:
        assert plans.settings.current().search == "exhaustive"
        assert jax.numpy.asarray(np.zeros(1)).dtype == np.float64
        progress(row)
        return [row, none], 7

    monkeypatch.setattr(engines, "run", run)
    assert main(COMMAND) == int(error > 0)
    assert plans.settings.current().search == "default"
    out = capsys.readouterr().out
    assert "cuDNN 9.21.0; its errata were validated on 9.19" in out
    wrong = int(error > 0)
    assert f"1 engines run, {wrong} wrong; no time for 7 problems" in out
    assert ("wrong: conv_wgrad, 2-D, groups, bfloat16: eng7, error 5.0e-01" in out) == bool(wrong)
    assert ("install cuDNN 9.19" in out) == bool(wrong)


def test_without_cuda_handlers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers = registry.PlatformHandlers(reason="the CUDA module was not built")
    monkeypatch.setattr(registry, "find", lambda platform: handlers)
    assert main(COMMAND) == 2
    said = capsys.readouterr().err
    assert "no CUDA handlers: the CUDA module was not built. To fix this, run: " in said
    assert str(remedies.command("cuda", str(handlers.reason))) in said


@pytest.mark.slow
@pytest.mark.usefixtures("needs_cuda_handlers")
def test_on_this_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--seconds", "30", "--verbose"]) == 0
    out = capsys.readouterr().out
    assert " 0 engines run" not in out and "right: conv_" in out

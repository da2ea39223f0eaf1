"""The engines of the handlers on CUDA: `tune` saves what it found, and a program runs what was saved.

A stand-in for the compiled CUDA module records what it is given: no GPU is needed.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jax_convgrad import __main__ as command
from jax_convgrad import conv_fprop
from jax_convgrad._src import compat
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.runtime import registry
from jax_convgrad._src.tuning import measure, store
from jax_convgrad._src.tuning.program import problems_of
from jax_convgrad._src.tuning.store import Problem, Row, Table

X, W = jnp.ones((1, 4, 6, 6), jnp.float32), jnp.ones((4, 4, 3, 3), jnp.float32)
CASE = {"name": "a", "kind": "conv", "n": 1, "cin": 4, "sp": [6, 6], "cout": 4, "k": 3, "dt": "f32"}
PLAN = {"problem": "the newest problem, on a GPU", "engine": "eng7_k1=2"}
CHOICE = (PLAN["problem"], PLAN["engine"])
HERE = {"platform": "cuda", "device": "a GPU", "library": "cudnn 9.10.1", "package": "0.1"}


class Module:
    """The part of the CUDA module that has to do with plans."""

    def __init__(self) -> None:
        self.given: list[list[tuple[str, str]]] = []  # in each call of load_choices
        self.loaded: dict[str, str] = {}
        self.cleared = 0

    def load_choices(self, choices: list[tuple[str, str]]) -> None:
        self.given.append(list(choices))
        self.loaded |= dict(choices)

    def clear_plans(self) -> None:
        self.loaded.clear()
        self.cleared += 1

    def generation(self) -> int:
        return self.cleared

    def plans(self) -> list[dict[str, Any]]:
        """The most recently used first, as the module lists them."""
        older = {"problem": "an older problem", "engine": "eng1"}
        rest = {"microseconds": 1.5, "chosen_by": "exhaustive", "workspace_bytes": 0, "tried": []}
        return [PLAN | rest, older | rest]


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> Module:
    """A GPU and its handlers, as far as a program that is lowered can tell."""
    fake = Module()
    handlers = registry.PlatformHandlers(frozenset(registry.TARGETS), frozenset({"float32"}))
    monkeypatch.setattr(registry, "require", lambda platform: handlers)
    monkeypatch.setattr(registry, "cuda_module", lambda: fake)
    monkeypatch.setattr(registry, "cuda_capabilities", lambda: ())  # which the process remembers
    monkeypatch.setattr(registry, "check_required", lambda platform: None)
    for user in (store, measure):
        monkeypatch.setattr(user, "made_on", lambda platform: HERE)
    return fake


@pytest.fixture
def file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    path = tmp_path / "tuning.json"
    monkeypatch.setenv(store.VARIABLE, str(path))
    return path


def problem() -> Problem:
    with store.using(Table("no file")):
        (found,) = problems_of("cuda", conv_fprop, X, W)
    return found


def row(backend: str = "cudnn", plan: dict[str, str] | None = PLAN) -> Row:
    seconds = {"cudnn": 2e-3, "xla": 2e-3} | {backend: 1e-3}
    return measure.row_of(problem(), "cuda", seconds, plan)


def lowered() -> str:
    """A new process's program for CUDA, as far as it is prepared before it runs."""
    traced = jax.jit(lambda x, w: conv_fprop(x, w)).trace(X, W)
    with override_backend(None):
        return traced.lower(lowering_platforms=("cuda",)).as_text()


def timed(seconds: dict[str, float]) -> Callable[..., dict[str, float]]:
    return lambda functions, operands, method: {b: seconds[b] for b in functions if b in seconds}


@pytest.mark.parametrize(
    ("seconds", "plan"), [({"cudnn": 1.0, "xla": 2.0}, PLAN), ({"xla": 2.0}, None)]
)
def test_a_measurement_has_the_plan_that_was_run_last(
    seconds: dict[str, float], plan: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(measure, "compare", timed(seconds))
    assert measure.measure(problem(), "cuda") == (seconds, plan)


def test_a_saved_engine_is_the_one_that_a_program_runs(file: pathlib.Path, module: Module):
    store.write(Table(str(file), [row()]))
    assert json.loads(file.read_text())["rows"][0]["plan"] == PLAN
    assert module.given == [], "nothing has read the file"
    assert "jax_convgrad_conv_fprop" in lowered()
    assert module.given == [[CHOICE]], "the module has it before the program runs"
    jax.clear_caches()
    lowered()
    assert len(module.given) == 1, "a process loads them once"


def test_engines_of_another_device_are_not_loaded(file: pathlib.Path, module: Module):
    elsewhere = dataclasses.replace(row(), made_on=HERE | {"device": "another"})
    without = dataclasses.replace(row("xla", None), key="0")
    store.write(Table(str(file), [elsewhere, without]))
    lowered()
    assert module.given == []


def test_without_the_module_rows_decide_all_the_same(
    file: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    store.write(Table(str(file), [row("xla")]))
    monkeypatch.setattr(registry, "cuda_module", lambda: None)
    assert "jax_convgrad_conv_fprop" not in lowered()


@pytest.fixture
def tune(tmp_path: pathlib.Path, file: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """Runs the command on one layer, whose measurements ``measured`` makes."""
    cases = tmp_path / "cases.json"
    cases.write_text(json.dumps([CASE]))
    monkeypatch.setattr(compat, "platform", lambda: "cuda")

    def run(measured: Callable[..., Any], *options: str) -> int:
        monkeypatch.setattr(measure, "measure", measured)
        return command.main(["tune", "--cases", str(cases), *options])

    return run


def test_tune_saves_the_engines_and_a_program_loads_them(
    tune: Callable[..., int], file: pathlib.Path, module: Module
):
    measured = lambda *arguments: ({"cudnn": 1e-3, "xla": 2e-3}, PLAN)  # noqa: E731
    assert tune(measured) == 0
    assert [saved.plan for saved in store.read(file).rows] == [PLAN] * 3
    assert module.given == []
    lowered()
    assert module.given == [[CHOICE] * 3]


def test_tune_searches_for_engines_again(
    tune: Callable[..., int], file: pathlib.Path, module: Module
):
    """A loaded engine is taken whatever the search: a newer and faster one would never be found."""
    known = []

    def measured(engine: str) -> tuple[dict[str, float], dict[str, str]]:
        known.append(dict(module.loaded))
        return {"cudnn": 1e-3, "xla": 2e-3}, PLAN | {"engine": engine}

    for engine in (PLAN["engine"], "native_newer"):
        assert tune(lambda *arguments, engine=engine: measured(engine)) == 0
        plans = [saved.plan for saved in store.read(file).rows]
        assert plans == [PLAN | {"engine": engine}] * 3
    assert module.given == [[CHOICE] * 3], "the second run has read the engines of the first"
    assert known == [{}] * 6

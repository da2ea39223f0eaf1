"""Rows of a tuning file: they come before the shipped rules, hold for one device, and break loudly."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import threading
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

import jax_convgrad
from jax_convgrad import conv_fprop, resize
from jax_convgrad._src.dispatch.decide import decide
from jax_convgrad._src.dispatch.devices import Target
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.tuning import store
from jax_convgrad._src.tuning.measure import row_of
from jax_convgrad._src.tuning.program import problems_of
from jax_convgrad._src.tuning.store import Problem, Row, Table

X, W = jnp.ones((1, 3, 6, 6)), jnp.ones((4, 3, 3, 3))


def problem(**changes: object) -> Problem:
    (found,) = problems_of("cpu", lambda x, w: conv_fprop(x, w, **changes), X, W)
    return found


def row(found: Problem, backend: str) -> Row:
    others = {"onednn": 2e-3, "xla": 2e-3, "xla_rewritten": 2e-3, "native": 2e-3}
    return row_of(found, "cpu", others | {backend: 1e-3}, None)


def decided(found: Problem) -> str:
    return decide(found, Target.of("cpu")).backend


@pytest.fixture
def saved(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pathlib.Path]:
    """Writes rows to a file that this process then decides by."""

    def save(*rows: Row) -> pathlib.Path:
        path = tmp_path / "folder" / "tuning.json"
        store.write(Table(str(path), rows))
        monkeypatch.setenv(store.VARIABLE, str(path))
        return path

    return save


@pytest.mark.parametrize("backend", ["xla", "xla_rewritten"])
def test_a_row_wins_over_the_shipped_rules(backend: str, saved: Callable[..., pathlib.Path]):
    path = saved(row(problem(), backend))
    decision = decide(problem(), Target.of("cpu"))
    assert decision.backend == backend
    assert str(path) in decision.reason and "1e+03 us" in decision.reason
    assert decision.measured_on is None


def test_a_resize_too(saved: Callable[..., pathlib.Path]):
    image = jnp.ones((1, 8, 8, 2))
    (found,) = problems_of("cpu", lambda x: resize(x, (1, 16, 16, 2), "linear"), image)
    for backend in ("xla", "native"):
        with store.using(Table("a file", [row(found, backend)])):
            assert decided(found) in (backend, "xla")
    with store.using(Table("a file", [row(found, "xla")])):
        assert decided(found) == "xla"


def test_an_override_wins_over_a_row(saved: Callable[..., pathlib.Path]):
    saved(row(problem(), "xla"))
    with override_backend("xla_rewritten"):
        assert decided(problem()) == "xla_rewritten"


@pytest.mark.parametrize("change", [{"strides": 2}, {"padding": "SAME"}, {"precision": "highest"}])
def test_another_problem_is_left_to_the_rules(
    change: dict[str, object], saved: Callable[..., pathlib.Path]
):
    other, shipped = problem(**change), decided(problem(**change))
    wrong = "xla" if shipped != "xla" else "xla_rewritten"
    saved(row(problem(), wrong))
    assert store.key_of(other) != store.key_of(problem())
    assert decided(other) == shipped


def test_equal_problems_have_equal_keys():
    assert problem() == problem() and store.key_of(problem()) == store.key_of(problem())


@pytest.mark.parametrize("name", ["device", "library", "package"])
def test_rows_of_other_versions_are_ignored_with_one_warning(
    name: str, saved: Callable[..., pathlib.Path]
):
    shipped = decided(problem())
    mine = row(problem(), "xla" if shipped != "xla" else "xla_rewritten")
    saved(dataclasses.replace(mine, made_on={**mine.made_on, name: "another"}))
    with pytest.warns(
        jax_convgrad.StaleTuningWarning, match=f"{name} 'another', here.*tune` again"
    ):
        assert decided(problem()) == shipped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decided(problem()) == shipped


def test_a_new_row_replaces_the_old_and_what_other_versions_measured():
    mine = row(problem(), "xla")
    elsewhere = dataclasses.replace(mine, made_on={**mine.made_on, "device": "another"})
    stale = dataclasses.replace(mine, key="0", made_on={**mine.made_on, "package": "0.0"})
    new = row(problem(), "xla_rewritten")
    assert Table("a file", [mine, elsewhere, stale]).merged([new]).rows == (elsewhere, new)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"format": "else"}', json.dumps({"format": store.FORMAT, "rows": [{"key": "a"}]})],
)
def test_a_broken_file_is_an_error(text: str, saved: Callable[..., pathlib.Path]):
    path = saved()
    path.write_text(text)
    with pytest.raises(
        jax_convgrad.TuningFileError, match=r"tuning\.json cannot be used.*Delete it and run"
    ):
        jax.jit(lambda x, w: conv_fprop(x, w)).lower(X, W)


def test_a_row_of_no_backend_is_an_error(saved: Callable[..., pathlib.Path]):
    saved(dataclasses.replace(row(problem(), "xla"), backend="fast"))
    with pytest.raises(store.TuningFileError, match="'fast' is not a backend"):
        decided(problem())


def test_a_named_file_that_is_missing_is_an_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "none.json"))
    with pytest.raises(store.TuningFileError, match=r"none\.json, which does not exist"):
        decided(problem())


def test_install_does_not_read_the_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """A model that `tune` imports calls install() before `tune` has written the file."""
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "none.json"))
    with jax_convgrad.install("cpu") as installation:
        assert installation.platforms == ("cpu",)


def test_the_default_file_is_in_the_cache_folder(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(store.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert store.path() == tmp_path / "jax_convgrad" / "tuning.json"
    assert store.table_in_use() is not None, "a missing file is not an error"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert store.path() == pathlib.Path("~/.cache/jax_convgrad/tuning.json").expanduser()


def test_a_process_reads_the_file_once(
    saved: Callable[..., pathlib.Path], monkeypatch: pytest.MonkeyPatch
):
    saved(row(problem(), "xla"))
    reads = []
    original = store.read
    monkeypatch.setattr(store, "read", lambda path: reads.append(path) or original(path))
    found = problem()
    threads = [threading.Thread(target=decided, args=(found,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reads) == 1


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the row is one of the CPU")
def test_explain_and_info_say_so(saved: Callable[..., pathlib.Path]):
    path = saved(row(problem(), "xla_rewritten"))
    (found,) = jax_convgrad.explain(lambda x, w: conv_fprop(x, w), X, W).rows
    assert found.backend == "xla_rewritten" and str(path) in found.reason
    assert jax_convgrad.info()["handlers"]["cpu"]["tuned"] == f"1 problems by {path}"
    assert jax_convgrad.info()["handlers"]["cuda"]["tuned"] is None

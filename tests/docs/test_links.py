"""Paths of the repository that the pages name exist, and so do the pages that the README links."""

from __future__ import annotations

import pathlib
import re

import pytest

pytestmark = pytest.mark.docs

ROOT = pathlib.Path(__file__).parents[2]
PAGES = sorted(path for path in (ROOT / "docs").rglob("*.md"))
_PATH = re.compile(r"`((?:jax_convgrad|cpp|tests|benchmarks|docs|examples|scripts)/[\w./-]+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_paths_exist(page: pathlib.Path):
    named = {path.rstrip(".") for path in _PATH.findall(page.read_text())}
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_there_are_paths():
    assert sum(len(_PATH.findall(page.read_text())) for page in PAGES) > 30

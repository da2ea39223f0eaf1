"""The built site: its parts are there, and in a browser nothing is wider than the window.

Without a library that builds it, or without a browser, tests are skipped; JAX_CONVGRAD_REQUIRE_DOCS=1 makes
them fail.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
from support import browser

pytestmark = [pytest.mark.docs, pytest.mark.slow]

ROOT = pathlib.Path(__file__).parents[2]
NEEDED = ("sphinx", "myst_parser", "furo", "sphinx_copybutton", "matplotlib")
WIDE, NARROW = 1400, 500
REPOSITORY = "https://github.com/owner/name"


def _end(reason: str) -> None:
    end = pytest.fail if os.environ.get("JAX_CONVGRAD_REQUIRE_DOCS") == "1" else pytest.skip
    end(reason)


@pytest.fixture(scope="module")
def needs_browser() -> None:
    if browser.chromium() is None:
        _end("no Chromium is installed: pages are not looked at")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    for library in NEEDED:
        if importlib.util.find_spec(library) is None:
            _end(f"{library} is not installed: the site cannot be built")
    folder = tmp_path_factory.mktemp("site")
    # Of its own, because a build writes figures beside the pages.
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("_build"))
    for part in ("benchmarks", "cpp", "CHANGELOG.md"):
        (folder / part).symlink_to(ROOT / part)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name = f'[project]\nname = "{project["name"]}"\n'
    (folder / "pyproject.toml").write_text(f'{name}urls = {{ Repository = "{REPOSITORY}" }}\n')
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "docs", "html"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


def pages(site: pathlib.Path) -> list[str]:
    """The pages that were written; not Sphinx's own indices and searches."""
    documents = ROOT / "docs"
    return sorted(
        str(page.relative_to(documents).with_suffix(".html")) for page in documents.rglob("*.md")
    )


@pytest.fixture(scope="module")
def seen(needs_browser: None, site: pathlib.Path) -> list[browser.Seen]:
    return browser.look(site, pages(site), [WIDE, NARROW])


def test_no_page_is_wider_than_the_window(seen: list[browser.Seen]):
    wide = [(s.page, s.width) for s in seen if {"the page", "the list of headings"} & {*s.too_wide}]
    assert len(seen) > 30
    assert wide == []


def test_code_and_tables_fit_a_wide_window(seen: list[browser.Seen]):
    """What a program prints included. In a narrow window they may scroll, each by itself."""
    assert [(s.page, s.too_wide) for s in seen if s.width == WIDE and s.too_wide] == []


def test_the_browser_tells_what_is_too_wide(needs_browser: None, site: pathlib.Path):
    """The two tests above can fail."""
    text = '<h1>a</h1><article><pre style="overflow: auto">' + 400 * "w" + "</pre>"
    (site / "_wide.html").write_text(text + "</article>")
    (site / "_page.html").write_text('<h1>a</h1><p style="width: 3000px">b</p>')
    block, page = browser.look(site, ["_wide.html", "_page.html"], [WIDE])
    assert [found[:4] for found in block.too_wide] == ["PRE:"]
    assert page.too_wide == ("the page",)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_figures_suit_the_theme(needs_browser: None, site: pathlib.Path, theme: str):
    (found,) = browser.look(site, ["index.html"], [WIDE], dark=theme == "dark")
    assert found.images == (f"_images/steps_h100_models_{theme}.svg",)


def test_the_parts_of_a_page(site: pathlib.Path):
    index = (site / "index.html").read_text()
    for part in (
        "_static/logo.svg",
        "_static/copybutton.js",
        "installation.html",
        "changelog.html",
    ):
        assert part in index, part
    assert f"{REPOSITORY}/blob/main/docs/index.md" in index
    install = (site / "existing_models.html").read_text()
    assert "https://docs.jax.dev/en/latest/_autosummary/jax.image.resize.html" in install
    api = (site / "api.html").read_text()
    assert not re.search(r"as in (?:jax\.)?lax\.", re.sub(r"<[^>]+>", "", api))
    assert "0.1.0" in (site / "changelog.html").read_text()

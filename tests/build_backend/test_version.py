"""The version comes from git's tags, from the archive where there is no git, and else from the changelog."""

from __future__ import annotations

import importlib.util
import pathlib
import shutil
import subprocess
from types import ModuleType

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def provider() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "convgrad_version", ROOT / "build_backend/convgrad_version.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sources(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.3.0\n\nText.\n\n## 0.2.0\n")
    return tmp_path


def git(folder: pathlib.Path, *arguments: str) -> None:
    if shutil.which("git") is None:
        pytest.skip("git makes the repositories; without it the version is the changelog's")
    options = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *options, *arguments], cwd=folder, check=True, capture_output=True)


def commit(folder: pathlib.Path) -> None:
    git(folder, "commit", "--allow-empty", "-m", "text")


def test_before_the_first_tag(provider: ModuleType, sources: pathlib.Path):
    assert provider.version(sources) == "0.3.0.dev0"
    git(sources, "init")
    commit(sources)
    assert provider.version(sources) == "0.3.0.dev0"


def test_a_tag_and_the_commits_after_it(provider: ModuleType, sources: pathlib.Path):
    git(sources, "init")
    commit(sources)
    git(sources, "tag", "v1.2.9")
    assert provider.version(sources) == "1.2.9"
    git(sources, "tag", "nightly")
    commit(sources)
    commit(sources)
    git(sources, "tag", "vocoder")
    assert provider.version(sources) == "1.2.10.dev2"


def test_an_archive_keeps_its_version(provider: ModuleType, sources: pathlib.Path):
    (sources / "PKG-INFO").write_text("Metadata-Version: 2.2\nName: jax-convgrad\nVersion: 1.0.0\n")
    assert provider.version(sources) == "1.0.0"


def test_without_git(provider: ModuleType, sources: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    git(sources, "init")
    monkeypatch.setenv("PATH", "")
    assert provider.version(sources) == "0.3.0.dev0"


def test_a_changelog_without_an_entry_is_an_error(provider: ModuleType, sources: pathlib.Path):
    (sources / "CHANGELOG.md").write_text("# Changelog\n")
    with pytest.raises(RuntimeError, match="a heading such as"):
        provider.version(sources)


def test_only_the_version_is_asked_for(provider: ModuleType):
    with pytest.raises(RuntimeError, match="expected the field version"):
        provider.dynamic_metadata("readme", {})

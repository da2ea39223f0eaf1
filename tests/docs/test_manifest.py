"""Each measurement under benchmarks/ has one entry in the manifest, which agrees with the file itself."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
from typing import Any

import pytest
from support import manifest

pytestmark = pytest.mark.docs

ENTRIES = manifest.entries()
REQUIRED = {"files", "command", "commit", "device", "load"}
OPTIONAL = {"versions", "note"}
_HASH = re.compile(r"[0-9a-f]{7,40}")


def ident(entry: dict[str, Any]) -> str:
    return entry["files"][0]


def test_each_result_has_one_entry():
    named = [file for entry in ENTRIES for file in entry["files"]]
    assert sorted(named) == sorted(manifest.result_files())


def test_the_page_has_the_table():
    assert manifest.on_the_page() == manifest.table(), (
        "run: python tests/support/manifest.py --write"
    )


@pytest.mark.parametrize("entry", ENTRIES, ids=ident)
def test_an_entry_is_complete(entry: dict[str, Any]):
    assert set(entry) >= REQUIRED
    assert set(entry) <= REQUIRED | OPTIONAL
    assert all(entry.values()) or entry["load"] == 0
    assert isinstance(entry["load"], float | str)


@pytest.mark.parametrize("entry", ENTRIES, ids=ident)
def test_files_of_an_entry_differ_in_their_ending_alone(entry: dict[str, Any]):
    """The table names the first and the endings of the others."""
    assert len({pathlib.PurePath(file).with_suffix("") for file in entry["files"]}) == 1


@pytest.mark.parametrize("entry", ENTRIES, ids=ident)
def test_commits_are_hashes(entry: dict[str, Any]):
    for commit in manifest.listed(entry["commit"]):
        assert commit == manifest.UNKNOWN or _HASH.fullmatch(commit)


def test_commits_are_in_the_history():
    """Where the whole history is there, which an archive and a shallow clone lack."""
    shallow = git("rev-parse", "--is-shallow-repository")
    if shallow.returncode or shallow.stdout.strip() != "false":
        pytest.skip("needs git and the whole history")
    # scripts/gpu_run.sh names the commit of a tree that was copied without its history.
    copied = os.environ.get("COMMIT", "").partition(" ")[0]
    if copied and git("cat-file", "-e", copied).returncode:
        pytest.skip(f"the history here does not have {copied}")
    named = {commit for entry in ENTRIES for commit in manifest.listed(entry["commit"])}
    missing = [
        commit
        for commit in sorted(named - {manifest.UNKNOWN})
        if git("cat-file", "-e", f"{commit}^{{commit}}").returncode
    ]
    assert not missing


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What git says of this checkout; a failure where there is no git."""
    command = ["git", "-C", str(manifest.BENCHMARKS), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return subprocess.CompletedProcess(command, 127, "", "")


@pytest.mark.parametrize("entry", ENTRIES, ids=ident)
def test_versions_are_in_the_entry_or_in_the_files(entry: dict[str, Any]):
    texts = [
        (manifest.BENCHMARKS / file).read_text()
        for file in entry["files"]
        if not file.endswith(".png")
    ]
    in_files = any(re.search(r'\bjax(lib headers)?(": "| )\d+\.\d+', text) for text in texts)
    assert in_files != ("versions" in entry)


@pytest.mark.parametrize(
    "entry", [entry for entry in ENTRIES if ident(entry).endswith(".json")], ids=ident
)
def test_an_entry_says_what_its_json_says(entry: dict[str, Any]):
    """Commit, command, device and load, as far as the JSON file has them."""
    content = json.loads((manifest.BENCHMARKS / ident(entry)).read_text())
    found = content if isinstance(content, dict) else content[0]
    if commit := found.get("commit"):
        assert commit in manifest.listed(entry["commit"])
    if command := found.get("command"):
        assert entry["command"] == command
    device = found.get("device")
    if isinstance(device, str):
        assert device in entry["device"]
    elif device:
        assert device["name"] in entry["device"]
        load = device["load_before"]
        assert entry["load"] == (manifest.UNKNOWN if load is None else round(load, 2))

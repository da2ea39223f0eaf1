"""One word a concept: words that the project has given up stand nowhere but in the changelog and in records.

A record is what a program printed on a named commit, under benchmarks/: it keeps the words of its day.
"""

from __future__ import annotations

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = ("jax_convgrad", "cpp", "tests", "docs", "examples", "scripts", ".ci")
ENDINGS = {".py", ".cc", ".h", ".cu", ".cuh", ".inc", ".md", ".sh", ".toml", ".txt"}
# What is gone, and what says it now.
GIVEN_UP = {
    r"(?i)\broutes?\b": "backend",
    r"\bchoose_route\b": "decide",
    r"\bclassify\b": "match",
    r"\bUnread\b": "NoMatch",
    r"\bDivision\b(?! of)": "ShardingRule",
    r"(?i)few_channels|FewChannels|\bfew (input |output )?channels\b": "thin",
    r"wrong_(engines|kernels)|WrongEngines": "errata",
    r"\bk(Most|Least)[A-Z]\w*": "kMax, kMin",
    r"\bk(Patience|Glance|Hopeless)\b|\bThe(Plans|Pool)\b": "names that say what they are",
    r"\b(lower_anew|pointed_images|of_product)\b": "names that say what is done",
    r"conv_floor|resample_floor|double floor\b|the_floor_|[\"']floor[\"'], [\"']us": "roofline",
    r"(?i)\bper cent\b": "%, or percent without a figure",
    r"(?i)\binside of\b": "inside",
    r"(?i)\bat hand\b": "this machine's, or the installed one",
    r"\bdef (test_)?_?(carr(y|ied)|assign|spare|turned|moved|stated|held)(_|\()": "names that say what is "
    "returned or done",
}


def sources() -> list[pathlib.Path]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    found += [path for path in ROOT.iterdir() if path.name != "CHANGELOG.md"]
    found += [path for path in (ROOT / "benchmarks").glob("*") if path.suffix in ENDINGS]
    return [
        path
        for path in found
        if (path.suffix in ENDINGS or path.parent.name == ".ci")
        and path.is_file()
        and path != pathlib.Path(__file__)
        and not {"_generated", "_build", "__pycache__"} & set(path.parts)
    ]


def test_there_are_sources():
    names = {path.suffix for path in sources()}
    assert {".py", ".cc", ".cu", ".md", ".sh"} <= names


@pytest.mark.parametrize("word", list(GIVEN_UP))
def test_a_word_that_is_given_up_is_gone(word: str):
    pattern = re.compile(word)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in sources()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, f"say {GIVEN_UP[word]}: " + "\n".join(found)

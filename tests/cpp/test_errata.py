"""The errata of oneDNN and cuDNN: tables that forbid what is wrong and nothing beside it, with evidence."""

from __future__ import annotations

import pathlib
import re

import pytest
from support import native

pytestmark = pytest.mark.cpp

SOURCES = (
    "tests/cpp/errata_test.cc",
    "cpp/cpu/onednn/errata.cc",
    "cpp/cuda/cudnn/errata.cc",
    "cpp/ffi/conv.cc",
)


def test_errata(tmp_path: pathlib.Path) -> None:
    *evidence, last = native.run(native.build(tmp_path, SOURCES)).splitlines()
    assert last == "0 failures"
    assert len(evidence) == 20
    for text in evidence:
        path, what = text.split(": ", 1)
        shown = (native.ROOT / path).read_text()
        if path.endswith("test_handlers.py"):
            assert f'"{re.split("[ ;]", what)[0]}"' in shown, what

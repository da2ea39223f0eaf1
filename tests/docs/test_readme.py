"""Every Python block of the README runs, in order, in one namespace, as a reader would type them."""

from __future__ import annotations

import pathlib
import re

import pytest

pytestmark = pytest.mark.docs

README = pathlib.Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


def test_every_block_is_found():
    """A fence that is indented, or open, would hide a block from the test below."""
    fences = re.findall(r"^[ \t]*```[ \t]*(\w*)", README.read_text(), re.MULTILINE)
    opened, closed = fences[::2], fences[1::2]
    assert len(opened) == len(closed) and not any(closed)
    assert set(opened) <= {"bash", "python", "text"}
    assert opened.count("python") == len(BLOCKS) > 0


def test_blocks_run(capsys: pytest.CaptureFixture[str]):
    namespace: dict[str, object] = {"__name__": "readme"}
    for number, block in enumerate(BLOCKS, 1):
        exec(compile(block, f"README.md, Python block {number}", "exec"), namespace)

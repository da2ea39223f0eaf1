"""The README: its code runs, its numbers are the committed measurements', and it stays short."""

from __future__ import annotations

import re

import jax
import pytest
from support import readme

import jax_convgrad

pytestmark = pytest.mark.docs

TEXT = readme.README.read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
MAX_WORDS = 450
WRITE = "run: python tests/support/readme.py --write"


def test_every_block_is_found():
    """A fence that is indented, or open, would hide a block from the test below."""
    fences = re.findall(r"^[ \t]*```[ \t]*(\w*)", TEXT, re.MULTILINE)
    opened, closed = fences[::2], fences[1::2]
    assert len(opened) == len(closed) and not any(closed)
    assert set(opened) <= {"bash", "python", "text"}
    assert opened.count("python") == len(BLOCKS) > 0


def test_blocks_run():
    namespace: dict[str, object] = {"__name__": "readme"}
    installed = []
    try:
        for number, block in enumerate(BLOCKS, 1):
            exec(compile(block, f"README.md, Python block {number}", "exec"), namespace)
            installed.append(jax_convgrad.installed())
            jax_convgrad.uninstall()  # the text between says so
    finally:
        jax_convgrad.uninstall()
    assert installed == [("cpu", "cuda"), ()]


def test_explain_prints_what_the_readme_says(cpu_handlers: bool):
    if not cpu_handlers or jax.default_backend() != "cpu":
        pytest.skip("the README shows what explain() prints with the CPU handlers")
    found = readme.EXPLAINED.search(TEXT)
    assert found is not None
    with jax.enable_x64(False):
        assert readme.printed(found[1]) == found[2], WRITE


def test_the_numbers_are_those_of_the_measurements():
    assert readme.in_readme() == readme.measured(), WRITE


def test_another_measurement_is_another_text(monkeypatch: pytest.MonkeyPatch):
    """The test above compares what was measured, not a constant with itself."""
    load = readme.steps.load
    monkeypatch.setattr(readme, "GPU", "cpu/models.json")
    assert readme.in_readme() != readme.measured()
    assert load("cpu/models.json").device in readme.measured()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_chart_shows_the_measured_times(theme: str):
    drawn = (readme.DRAWINGS / f"{readme.CHART}_{theme}.svg").read_text()
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
    steps = readme.steps.load(readme.GPU)
    expected = [
        f"{readme.steps.milliseconds(row.seconds[form])} ms"
        for row in steps.rows
        for form in steps.forms
        if form in row.seconds
    ]
    assert [text for text in texts if text.endswith(" ms")] == expected, WRITE
    assert {row.model for row in steps.rows} <= set(texts)


def test_it_is_short():
    assert 200 < len(readme.words(TEXT)) <= MAX_WORDS


def test_what_is_prose():
    text = "A `b c`.\n\n| not | this |\n\n```python\nnor = this\n```\n<!-- nor\nthis --> [two words](x.md)\n"
    assert readme.words(text) == ["A", "`b", "c`.", "[two", "words"]


def test_links_lead_somewhere():
    targets = re.findall(r"\]\(([^)#]+)", TEXT) + re.findall(r'(?:src|srcset)="([^"]+)"', TEXT)
    assert len(targets) > 10
    assert [target for target in targets if not (readme.ROOT / target).exists()] == []

"""Every Python block of the pages under docs/ runs: a page's blocks in order, in one namespace.

A block whose first line is "# NVIDIA GPU only" is only compiled where there is no GPU. One whose first
line is "# NAME.py" is run as that file, so that what it prints names its own lines. A text block right
behind a Python block is what that block prints, with "..." for what differs from machine to machine.

Pages that need a library which is not installed are skipped; JAX_CONVGRAD_REQUIRE_DOCS=1 makes it an error.
"""

from __future__ import annotations

import ast
import dataclasses
import doctest
import importlib.util
import itertools
import os
import pathlib
import re
import shlex
import sys
from collections.abc import Iterator

import jax
import pytest

import jax_convgrad
from jax_convgrad._src.dispatch import devices, rules_cpu
from jax_convgrad._src.dispatch.override import override_backend

pytestmark = pytest.mark.docs

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
FENCE = re.compile(r"^```(python|text|bash)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
GPU_ONLY = "# NVIDIA GPU only"
OPTIONAL = {"flax", "equinox", "haiku", "keras", "optax", "torch"}


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block. ``line`` is that of its first line in the page; ``prints`` the text block behind it."""

    language: str
    text: str
    line: int
    prints: str | None

    @property
    def gpu_only(self) -> bool:
        return self.text.startswith(GPU_ONLY)

    @property
    def file(self) -> str | None:
        named = re.match(r"# (\w+\.py)\n", self.text)
        return named and named[1]


def blocks(page: str) -> list[Block]:
    text = (DOCS / page).read_text()
    found = list(FENCE.finditer(text))
    result = []
    for match, after in itertools.zip_longest(found, found[1:]):
        adjacent = after is not None and not text[match.end() : after.start()].strip()
        prints = after[2] if adjacent and after[1] == "text" and match[1] == "python" else None
        result.append(Block(match[1], match[2], text[: match.start(2)].count("\n") + 1, prints))
    return result


def python_blocks(page: str) -> list[Block]:
    return [block for block in blocks(page) if block.language == "python"]


def imports(block: Block) -> Iterator[str]:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


@pytest.fixture(autouse=True)
def as_a_reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """JAX's default of dtypes, the measured backends and CPU, `install` off before and after."""
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setattr(devices, "_cpu_class", lambda: rules_cpu.AMX.device_class)
    jax_convgrad.uninstall()
    with jax.enable_x64(False), override_backend(None):
        yield
    jax_convgrad.uninstall()
    jax_convgrad.set_deterministic(False)  # a page says how to turn it on


def test_there_are_pages():
    assert "index.md" in PAGES
    assert sum(len(python_blocks(page)) for page in PAGES) > 20


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)])
def test_blocks_run(page: str, cpu_handlers: bool, capsys: pytest.CaptureFixture[str]):
    found = python_blocks(page)
    for library in sorted({name for block in found for name in imports(block)} & OPTIONAL):
        if importlib.util.find_spec(library) is None:
            assert os.environ.get("JAX_CONVGRAD_REQUIRE_DOCS") != "1", f"{library} is not installed"
            pytest.skip(f"{library} is not installed")
    if "keras" in sys.modules:  # it numbers the layers of a whole process
        sys.modules["keras"].utils.clear_session()
    namespace: dict[str, object] = {"__name__": "__main__"}
    checker = doctest.OutputChecker()
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for block in found:
        # An error names the page's own line.
        before = "" if block.file else "\n" * (block.line - 1)
        code = compile(before + block.text, block.file or f"docs/{page}", "exec", dont_inherit=True)
        if block.gpu_only and jax.default_backend() != "gpu":
            continue
        capsys.readouterr()
        exec(code, namespace)
        printed = capsys.readouterr().out
        # Backends are printed as they are with the CPU's handlers.
        if block.prints is not None and cpu_handlers and jax.default_backend() == "cpu":
            example = doctest.Example(block.text, block.prints)
            if not checker.check_output(block.prints, printed, flags):
                pytest.fail(checker.output_difference(example, printed, flags))


def test_shell_commands_are_those_of_the_readmes():
    """Those are run by CI, or are the measurements' own; the pages name no others."""
    readmes = " ".join(
        " ".join((ROOT / name).read_text().split())
        for name in ("README.md", "benchmarks/README.md", "examples/README.md")
    )
    shells = [block for page in PAGES for block in blocks(page) if block.language == "bash"]
    assert shells
    for block in shells:
        for command in block.text.strip().splitlines():
            assert shlex.split(command) and command in readmes

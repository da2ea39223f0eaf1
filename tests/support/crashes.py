"""What a crashed worker's threads were doing. pytest-xdist says only that a worker is gone."""

from __future__ import annotations

import faulthandler
import os
import pathlib
import shutil
import tempfile

import pytest

_FOLDER = "JAX_CONVGRAD_CRASHES"


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Has each worker write its threads' stacks to a file of its own if it crashes."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        os.environ[_FOLDER] = tempfile.mkdtemp(prefix="crashes")
    elif _FOLDER in os.environ:
        # Open until the end, and after pytest's own plugin, which writes to the controller's stderr.
        faulthandler.enable(open(pathlib.Path(os.environ[_FOLDER]) / worker, "w"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Ends the report with these stacks."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    for path in sorted(pathlib.Path(os.environ[_FOLDER]).iterdir()):
        stacks = path.read_text()
        if stacks:
            terminalreporter.section(f"threads of {path.name} when it crashed")
            terminalreporter.write(stacks)


def pytest_unconfigure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(os.environ.pop(_FOLDER), ignore_errors=True)

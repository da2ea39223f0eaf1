"""The programs under benchmarks/, for tests of what is in them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "benchmarks"


def load(name: str) -> Any:
    """benchmarks/NAME.py as a module. It may import its neighbors."""
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))

"""Case files: JSON lists of layers, and those that ship with the package."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from jax_convgrad.bench.cases import Case, CaseError, parse_conv
from jax_convgrad.bench.resize_cases import ResizeCase, parse_resize

AnyCase = Case | ResizeCase
PUBLISHED = pathlib.Path(__file__).with_name("published.json")


def parse_case(entry: Any) -> AnyCase:
    """Checks one entry of a case file."""
    if not isinstance(entry, dict):
        raise CaseError(f"a case is an object with named sizes, got {entry!r}")
    return parse_resize(entry) if entry.get("kind") == "resize" else parse_conv(entry)


def load_cases(path: str | pathlib.Path) -> list[AnyCase]:
    """Reads a case file."""
    try:
        entries = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise CaseError(f"cannot read the case file {path}: {error.strerror or error}") from error
    except json.JSONDecodeError as error:
        raise CaseError(f"the case file {path} is not JSON: {error}") from error
    if not isinstance(entries, list):
        raise CaseError(f"the case file {path} must hold a list of cases")
    return [parse_case(entry) for entry in entries]


def published(which: str) -> list[AnyCase]:
    """The layers that ship with the package: `cpu`, `gpu` or `all` of them."""
    return [case for case in load_cases(PUBLISHED) if which == "all" or which in case.sets]

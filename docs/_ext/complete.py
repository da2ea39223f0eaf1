"""The build fails if a public name is missing from the API reference."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

PACKAGE = "jax_convgrad"
logger = logging.getLogger(__name__)


def public_names() -> Iterator[str]:
    """The full names in the package's `__all__`, and in that of each public module."""
    package = importlib.import_module(PACKAGE)
    for name in package.__all__:
        member = getattr(package, name)
        yield f"{PACKAGE}.{name}"
        if isinstance(member, ModuleType):
            for inner in member.__all__:
                # Settings that the package exports too have their entry there.
                if getattr(member, inner) is not getattr(package, inner, None):
                    yield f"{PACKAGE}.{name}.{inner}"


def check(app: Sphinx, env: BuildEnvironment) -> None:
    """Warns about every public name without an entry; -W turns that into an error."""
    described = env.domains["py"].data["objects"]
    for name in public_names():
        if name not in described:
            logger.warning("no entry for %s in the API reference", name)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""The build fails if a public name is missing from the API reference."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

PACKAGE = "jax_convgrad"
logger = logging.getLogger(__name__)


def public_names() -> Iterator[str]:
    """The full names of what users may call: the package's own and those of its public modules."""
    package = importlib.import_module(PACKAGE)
    for name in package.__all__:
        member = getattr(package, name)
        yield f"{PACKAGE}.{name}"
        if isinstance(member, ModuleType):
            for inner in _members(member):
                # What the package itself has too, settings of plans, has its entry there.
                if getattr(member, inner) is not getattr(package, inner, None):
                    yield f"{PACKAGE}.{name}.{inner}"


def _members(module: ModuleType) -> list[str]:
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, member in vars(module).items()
        if inspect.isfunction(member)
        and member.__module__ == module.__name__
        and not name.startswith("_")
    ]


def check(app: Sphinx, env: BuildEnvironment) -> None:
    """Warns of every public name without an entry; with -W that is an error."""
    described = env.domains["py"].data["objects"]
    for name in public_names():
        if name not in described:
            logger.warning("no entry for %s in the API reference", name)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

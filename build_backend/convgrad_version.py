"""The version: that of the git tag, `v1.2.3`. scikit-build-core asks for it.

Between tags it is the next one's development version: the third commit after v1.2.3 is 1.2.4.dev3. In a
source archive it is the archive's. Before the first tag, and where there is no git, it is a development
version of the changelog's newest entry.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
from collections.abc import Mapping
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent


def dynamic_metadata(field: str, settings: Mapping[str, Any] | None = None) -> str:
    """The interface of scikit-build-core's plugins."""
    if field != "version" or settings:
        raise RuntimeError(
            f"expected the field version and no settings, got {field} and {settings}"
        )
    return version(ROOT)


def version(root: pathlib.Path) -> str:
    """The version of the sources in ``root``.

    Raises:
      RuntimeError: the changelog has no entry.
    """
    archive = root / "PKG-INFO"
    if archive.exists() and (found := re.search(r"^Version: (.+)$", archive.read_text(), re.M)):
        return found[1]
    if (root / ".git").exists() and (described := describe(root)):
        return described
    found = re.search(r"^## (\d+\.\d+\.\d+)$", (root / "CHANGELOG.md").read_text(), re.M)
    if found is None:
        raise RuntimeError("expected CHANGELOG.md to have a heading such as '## 1.2.3'")
    return f"{found[1]}.dev0"


def describe(root: pathlib.Path) -> str | None:
    """The version that git's tags give; None if there is no tag, or no git."""
    command = ["git", "describe", "--tags", "--long", "--match", "v[0-9]*.[0-9]*.[0-9]*"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    except OSError:
        return None
    found = re.fullmatch(r"v(\d+\.\d+\.)(\d+)-(\d+)-g[0-9a-f]+", done.stdout.strip())
    if done.returncode != 0 or found is None:
        return None
    head, last, commits = found.groups()
    return f"{head}{last}" if commits == "0" else f"{head}{int(last) + 1}.dev{commits}"

"""The manifest of the measurements, and the table of benchmarks/README.md that is made from it.

benchmarks/manifest.json has one entry for each result: its files (a result may be a JSON file, its table
and its plot), the command, the commit, the device, the versions where the files do not say them, the load
average of the host when the run began (or what else is known about it), and a note. A command or commit is
a string or a list of them. What nobody wrote down at the time is "unknown".

    python tests/support/manifest.py            # prints the table
    python tests/support/manifest.py --write    # writes it into benchmarks/README.md
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
PAGE = BENCHMARKS / "README.md"
FOLDERS = ("cpu", "h100", "h200")
BEGIN, END = (
    "<!-- results: written by tests/support/manifest.py -->\n",
    "<!-- end of the results -->\n",
)
UNKNOWN = "unknown"
SHORT_HASH = 7


def entries() -> list[dict[str, Any]]:
    """The manifest's entries, in its order."""
    return json.loads((BENCHMARKS / "manifest.json").read_text())["results"]


def listed(value: str | list[str]) -> list[str]:
    """A command or commit as a list, whether there is one or several."""
    return [value] if isinstance(value, str) else value


def result_files() -> list[str]:
    """The paths of all committed results, relative to benchmarks/."""
    return [
        path.relative_to(BENCHMARKS).as_posix()
        for folder in FOLDERS
        for path in sorted((BENCHMARKS / folder).rglob("*"))
        if path.is_file()
    ]


def table() -> str:
    """The results in Markdown."""
    rows = [
        "| files | command | commit | device | load | note |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join(rows + [_row(entry) for entry in entries()]) + "\n"


def _row(entry: dict[str, Any]) -> str:
    device = entry["device"]
    if versions := entry.get("versions"):
        device += "; " + ", ".join(f"{name} {version}" for name, version in versions.items())
    cells = [
        _files(entry["files"]),
        ", ".join(_code(command) for command in listed(entry["command"])),
        ", ".join(commit[:SHORT_HASH] for commit in listed(entry["commit"])),
        device,
        str(entry["load"]),
        entry.get("note", ""),
    ]
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _files(files: list[str]) -> str:
    """The first file, and the endings of the others, which differ in that alone."""
    first, *rest = files
    return ", ".join([f"`{first}`", *(f"`{pathlib.PurePath(file).suffix}`" for file in rest)])


def _code(command: str) -> str:
    """A command line as code; what says in words where a result comes from as it is."""
    program = command.removeprefix("OMP_WAIT_POLICY=PASSIVE ").split()[0]
    return f"`{command}`" if program == "python" or "/" in program else command


def on_the_page() -> str:
    """The table that the page has now."""
    text = PAGE.read_text()
    return text[text.index(BEGIN) + len(BEGIN) : text.index(END)]


def write() -> None:
    text = PAGE.read_text()
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    PAGE.write_text(before + table() + after)


if __name__ == "__main__":
    write() if sys.argv[1:] == ["--write"] else print(table())

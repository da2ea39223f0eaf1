"""Includes go down, as the package's imports do (tests/test_imports.py)."""

from __future__ import annotations

import functools
import pathlib
import re

import pytest

CPP = pathlib.Path(__file__).parents[2] / "cpp"

# From the top to the ground, the files on each floor: those that a name is the start of, except what a longer
# name takes out. What lies in one folder may include each other, what lies in two of one floor may not.
FLOORS: dict[str, tuple[str, ...]] = {
    "entry points": ("cpu/", "cuda/"),
    "a library, and the choice of its engines": ("cpu/onednn/", "cuda/cudnn/"),
    "this project's kernels as engines": ("cuda/kernels/",),
    "kernels": (
        "cpu/kernels/direct",
        "cpu/kernels/depthwise/",
        "cpu/kernels/resample/",
        "cpu/kernels/thin/",
        "cuda/kernels/depthwise/",
        "cuda/kernels/dilated/",
        "cuda/kernels/implicit_gemm/",
        "cuda/kernels/resample/",
        "cuda/kernels/thin/",
        "cuda/kernels/transpose/",
    ),
    "what several kernels use": ("cpu/kernels/", "cuda/kernels/common/"),
    "problems": ("cpu/conv_problem", "cuda/conv_plan", "cuda/status"),
    "scratch memory and threads": ("cpu/runtime/",),
    "what both modules share": ("ffi/",),
}

SOURCES = {
    path.relative_to(CPP).as_posix(): path
    for path in sorted(CPP.rglob("*"))
    if path.suffix in (".cc", ".h", ".cu", ".cuh", ".inc")
}


@functools.cache
def _includes(source: str) -> tuple[str, ...]:
    """The project's own files that a file includes."""
    names = re.findall(r'^\s*#\s*include "([^"]+)"', SOURCES[source].read_text(), re.MULTILINE)
    return tuple(name for name in names if not name.startswith(("xla/ffi/", "oneapi/")))


def _place(source: str) -> tuple[int, str]:
    """Its floor, counted from the top, and the name in FLOORS that puts it there."""
    found = [
        (len(name), floor, name)
        for floor, names in enumerate(FLOORS.values())
        for name in names
        if source.startswith(name)
    ]
    assert found, f"{source} is on no floor: FLOORS in {pathlib.Path(__file__).name} must name it"
    _, floor, name = max(found)
    return floor, name


@pytest.mark.parametrize("source", SOURCES)
def test_no_include_goes_up(source: str):
    floors = list(FLOORS)
    floor, name = _place(source)
    for included in _includes(source):
        assert included in SOURCES, f"{source} includes {included}, which is not in cpp"
        below, other = _place(included)
        what = f"{source} ({floors[floor]}) includes {included} ({floors[below]})"
        assert below > floor or other == name, what
        # The platforms never see each other.
        platforms = {path.partition("/")[0] for path in (source, included)}
        assert platforms != {"cpu", "cuda"}, what


def test_no_circle():
    done: set[str] = set()

    def visit(source: str, path: tuple[str, ...]) -> None:
        assert source not in path, " -> ".join((*path, source))
        if source not in done:
            for name in _includes(source):
                visit(name, (*path, source))
            done.add(source)

    for source in SOURCES:
        visit(source, ())


def test_the_test_sees_what_it_looks_for(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    for name, included in {"ffi/a.h": "cuda/cudnn/b.h", "cuda/cudnn/b.h": "ffi/a.h"}.items():
        path = tmp_path / name.replace("/", "_")
        path.write_text(f'#include <vector>\n\n#include "{included}"\n')
        monkeypatch.setitem(SOURCES, name, path)
    assert _includes("ffi/a.h") == ("cuda/cudnn/b.h",)
    test_no_include_goes_up("cuda/cudnn/b.h")
    with pytest.raises(AssertionError, match=r"ffi/a\.h \(what both"):
        test_no_include_goes_up("ffi/a.h")
    with pytest.raises(AssertionError, match=r"ffi/a\.h -> cuda/cudnn/b\.h -> ffi/a\.h"):
        test_no_circle()

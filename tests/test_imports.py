"""Imports go down. FLOORS is the architecture: a module imports from its floor and those below, never above.

Imports inside functions count as well: they hide a circle, they do not undo it.
"""

from __future__ import annotations

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = "jax_convgrad"

# From the top to the ground, each with the modules on it. A name stands for the module and all that is inside
# it, except for what a longer name takes out.
FLOORS: dict[str, tuple[str, ...]] = {
    "the benchmark and the command line": ("bench", "__main__", "_src.commands"),
    "what users import": ("", "onednn", "onnx", "plans", "torch"),
    "whole programs, and other libraries' functions": (
        "_src.explain",
        "_src.install",
        "_src.interop",
        "_src.tuning",
    ),
    "layers and operators": (
        "_src.conv.api",
        "_src.conv.phases",
        "_src.resize.api",
    ),
    "primitives": (
        "_src.conv.backward",
        "_src.conv.tangent",
        "_src.conv.bias",
        "_src.conv.primitives",
        "_src.conv.batching",
        "_src.resize.primitives",
    ),
    "lowering, and how devices divide it": (
        "_src.conv.lowering",
        "_src.conv.sharding",
        "_src.resize.lowering",
        "_src.resize.sharding",
        "_src.sharding",
    ),
    "who computes what, and how it is written down": (
        "_src.dispatch",
        "_src.tuning.store",
        "_src.tuning.versions",
        "_src.conv.emit_backward",
        "_src.conv.emit_ffi",
        "_src.conv.emit_gemm",
        "_src.conv.emit_xla",
        "_src.conv.prepare",
        "_src.resize.emit_ffi",
        "_src.resize.emit_xla",
    ),
    "the compiled modules and their settings": ("_src.runtime", "_src.timing"),
    "geometry and bands": (
        "_src.conv.arguments",
        "_src.conv.arrays",
        "_src.conv.geometry",
        "_src.conv.layouts",
        "_src.conv.precision",
        "_src.conv.subsample",
        "_src.conv.workspace",
        "_src.resize.arguments",
        "_src.resize.bands",
        "_src.resize.filters",
    ),
    "shapes and dtypes": ("_src.dtypes", "_src.hints", "_src.shapes"),
    "JAX's names": ("_src.compat",),
}
# Folders without anything of their own in __init__.py.
FOLDERS = {"_src", *(f"_src.{name}" for name in ("conv", "resize", "tuning"))}


def _modules() -> dict[str, pathlib.Path]:
    """Every module of the package by its name below the package, "" for the package itself."""
    found = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = _modules()


@functools.cache
def _imports(module: str) -> tuple[tuple[str, int], ...]:
    """The package's modules that a module imports, with lines. Of `from a import b`, b if it is a module."""
    found = []
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: a relative import"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [
                name if name.removeprefix(f"{PACKAGE}.") in MODULES else node.module
                for name in whole
            ]
        else:
            continue
        for name in names:
            if name == PACKAGE or name.startswith(f"{PACKAGE}."):
                below = name.removeprefix(PACKAGE).removeprefix(".")
                # An attribute of a module that `import a.b` names is not one.
                assert below in MODULES, f"{module}:{node.lineno}: no module {name}"
                found.append((below, node.lineno))
    return tuple(dict.fromkeys(found))


def _inside(module: str, name: str) -> bool:
    return module == name or (name != "" and module.startswith(f"{name}."))


def _floor(module: str) -> int:
    """Counted from the top; the longest name that has the module inside decides."""
    found = [
        (len(name), floor)
        for floor, names in enumerate(FLOORS.values())
        for name in names
        if _inside(module, name)
    ]
    assert found, f"{module} is on no floor: FLOORS in {pathlib.Path(__file__).name} must name it"
    return max(found)[1]


def test_every_module_is_on_a_floor():
    for module in MODULES.keys() - FOLDERS:
        _floor(module)
    for folder in FOLDERS:
        assert not _imports(folder), f"{folder}/__init__.py imports"


@pytest.mark.parametrize("module", sorted(MODULES.keys() - FOLDERS), ids=lambda m: m or PACKAGE)
def test_no_import_goes_up(module: str):
    floors = list(FLOORS)
    up = [
        f"line {line} imports {name or PACKAGE} ({floors[_floor(name)]})"
        for name, line in _imports(module)
        if name not in FOLDERS and _floor(name) < _floor(module)
    ]
    assert not up, f"{module} ({floors[_floor(module)]}): " + "; ".join(up)


def test_contributing_lists_the_floors():
    """Line by line, with the paths of the modules."""
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("Imports only point down this list")[2]
    block = text.split("```")[1].removeprefix("text\n")
    listed: list[list[str]] = []
    for line in block.splitlines():
        if not line.startswith(" "):
            listed.append([])
            inside = "_src/" if "_src/: " in line else ""
        paths = re.findall(r"[\w/]+(?:/|\.py)(?=,|$)", line)
        listed[-1] += [inside + path for path in paths]

    def path(name: str) -> str:
        file = (name or "__init__").replace(".", "/")
        return f"{file}/" if (ROOT / PACKAGE / file).is_dir() else f"{file}.py"

    assert listed == [[path(name) for name in names] for names in FLOORS.values()]


def test_no_circle():
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        if module in path:
            circle = (*path[path.index(module) :], module)
            pytest.fail("a circle: " + " -> ".join(name or PACKAGE for name in circle))
        if module not in done:
            for name, _ in _imports(module):
                visit(name, (*path, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())


def test_the_benchmark_is_above_everything():
    """Who imports the package does not import the benchmark, nor the command line."""
    for module in MODULES:
        above = any(_inside(module, name) for name in ("bench", "__main__", "_src.commands"))
        if not above:
            assert not [name for name, _ in _imports(module) if _inside(name, "bench")], module


def test_private_names_of_jax_are_in_compat_alone():
    private = re.compile(r"\bjax\._src\b")
    for module, path in MODULES.items():
        if _inside(module, "_src.compat"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Attribute):
                names = [ast.unparse(node)]
            else:
                continue
            assert not any(map(private.search, names)), f"{module}:{node.lineno}: {names}"


def test_the_test_sees_what_it_looks_for(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """An import inside a function, of a module by its package, that goes up and closes a circle."""
    for name, text in {
        "_src.shapes": "def f():\n    from jax_convgrad._src.conv import api\n",
        "_src.conv.api": "import jax_convgrad._src.shapes\n",
    }.items():
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        monkeypatch.setitem(MODULES, name, path)
    _imports.cache_clear()
    try:
        assert _imports("_src.shapes") == (("_src.conv.api", 2),)
        with pytest.raises(AssertionError, match=r"line 2 imports _src\.conv\.api"):
            test_no_import_goes_up("_src.shapes")
        with pytest.raises(pytest.fail.Exception, match=r"_src\.shapes"):
            test_no_circle()
    finally:
        _imports.cache_clear()

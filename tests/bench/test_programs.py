"""Programs under benchmarks/, most of which only a GPU can run: what they use of the package is there."""

import ast
import importlib
import types

import pytest
from support import benchmark_programs

PROGRAMS = sorted(benchmark_programs.FOLDER.glob("*.py"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_programs_use_names_that_exist(program):
    tree = ast.parse(program.read_text())
    imported = {}  # the program's name for it -> a module of this package
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jax_convgrad"):
            origin = importlib.import_module(node.module)
            for alias in node.names:
                found = getattr(origin, alias.name, None)
                if found is None:  # a module that its package does not import
                    found = importlib.import_module(f"{node.module}.{alias.name}")
                imported[alias.asname or alias.name] = found
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("jax_convgrad"):
                    imported[alias.asname or "jax_convgrad"] = importlib.import_module(alias.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = imported.get(node.value.id)
            if isinstance(module, types.ModuleType):
                assert hasattr(module, node.attr), f"line {node.lineno}: {ast.unparse(node)}"

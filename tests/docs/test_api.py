"""The API page: each name on it can be imported, each public name is on it, and none hides a module."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pathlib
import re
import sys
from typing import Any

import pytest

import jax_convgrad

pytestmark = pytest.mark.docs

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "api.md"
BLOCK = re.compile(r"^```\{eval-rst\}\n(.*?)^```", re.DOTALL | re.MULTILINE)
DIRECTIVE = re.compile(r"^\.\. (auto\w+|(?:current)?module):: (\S+)\n((?:   .*\n)*)", re.MULTILINE)

PROSE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")
NAME = re.compile(r"(?<![\w/.])jax_convgrad(?:\.[A-Za-z_]\w*)+(?![\w{])")
# Names of files and folders, not of anything in Python.
FILES = {"jax_convgrad.libs"}


def names_on_the_page() -> dict[str, str]:
    """Full names with their directives; `automodule` with :members: has all of the module's `__all__`."""
    found: dict[str, str] = {}
    current = ""
    for block in BLOCK.findall(PAGE.read_text()):
        for directive, name, options in DIRECTIVE.findall(block):
            if directive in ("module", "currentmodule", "automodule"):
                current = name
                found.setdefault(name, "module")
                if ":members:" in options:
                    for member in importlib.import_module(name).__all__:
                        found[f"{name}.{member}"] = "member"
            else:
                full = name if name.startswith("jax_convgrad.") else f"{current}.{name}"
                assert full not in found, f"{full} is on the page twice"
                found[full] = directive
    return found


NAMES = names_on_the_page()


def resolve(name: str) -> Any:
    """By an import of the longest module, then by attributes: as a reader would."""
    module, *rest = name.split(".")
    value: Any = importlib.import_module(module)
    for part in rest:
        module = f"{module}.{part}"
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("name", NAMES)
def test_a_name_on_the_page_is_there_and_documented(name: str):
    value = resolve(name)
    assert (value.__doc__ or "").strip(), f"{name} has no docstring"
    kinds: dict[str, Any] = {
        "autoclass": lambda: isinstance(value, type),
        "autoexception": lambda: isinstance(value, type) and issubclass(value, BaseException),
        "autofunction": lambda: callable(value) and not isinstance(value, type),
    }
    directive = NAMES[name]
    assert kinds.get(directive, lambda: True)(), f"{directive} is not what {name} is"


@pytest.mark.parametrize("name", NAMES)
def test_no_argument_is_described_elsewhere(name: str):
    """A reader of one function need not open another's page, or another library's."""
    text = inspect.getdoc(resolve(name)) or ""
    assert not re.findall(r"^ .*\w: as (?:in|for) .*$", text, re.MULTILINE)
    assert not re.findall(r"as in `*(?:jax\.)?lax\..*", text)
    assert not re.findall(r"^ +[\w, ]+: .*(?:as for|as in|see) `conv\w*`", text, re.MULTILINE)


@pytest.mark.parametrize("module", ["", "onednn", "onnx", "plans", "torch"])
def test_every_public_name_is_on_the_page(module: str):
    full = f"jax_convgrad.{module}".rstrip(".")
    names = {f"{full}.{name}" for name in importlib.import_module(full).__all__}
    # The settings of engines are in plans and in the package; once is enough.
    alias = {name: f"jax_convgrad.{name.rpartition('.')[2]}" for name in names}
    missing = {name for name in names if name not in NAMES and alias[name] not in NAMES}
    assert not missing


def test_dir_lists_the_public_names_only():
    """Except the sub-packages that someone has imported, such as `jax_convgrad.bench`."""
    names = {name for name in dir(jax_convgrad) if not name.startswith("_")}
    imported = {name for name in names if f"jax_convgrad.{name}" in sys.modules}
    assert names - imported <= set(jax_convgrad.__all__) <= names


@pytest.mark.parametrize(
    "name", [n for n in jax_convgrad.__all__ if callable(resolve(f"jax_convgrad.{n}"))]
)
def test_no_function_hides_a_module(name: str):
    """Of `jax_convgrad.explain`, a function and a module, one would hide the other."""
    assert importlib.util.find_spec(f"jax_convgrad.{name}") is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"jax_convgrad.{name}")


def exists(name: str) -> bool:
    """Whether the parts of a name are attributes, fields or modules, each of the one before."""
    value: Any = jax_convgrad
    done = "jax_convgrad"
    for part in name.split(".")[1:]:
        done = f"{done}.{part}"
        if part in getattr(value, "__annotations__", {}):
            return True
        try:
            value = getattr(value, part)
        except AttributeError:
            try:
                value = importlib.import_module(done)
            except ImportError:
                return False
    return True


def test_names_in_prose_are_there():
    """In docstrings, comments and pages: what is called jax_convgrad.NAME can be imported."""
    package = pathlib.Path(jax_convgrad.__file__).parent
    pages = [*PAGE.parent.rglob("*.md"), *(PAGE.parents[1] / name for name in PROSE)]
    gone = [
        f"{path.name}: {name}"
        for path in [*package.rglob("*.py"), *pages]
        for name in sorted(set(NAME.findall(path.read_text())) - FILES)
        if not exists(name)
    ]
    assert not gone
    assert exists("jax_convgrad.plans.save") and not exists("jax_convgrad.onnx_resize")


def test_no_name_inside_hides_a_module():
    """The same for every sub-package: what its `__init__` binds is not also a module beside it."""
    for path in sorted(pathlib.Path(jax_convgrad.__file__).parent.rglob("__init__.py")):
        package = ".".join(
            path.relative_to(pathlib.Path(jax_convgrad.__file__).parents[1]).parent.parts
        )
        module = importlib.import_module(package)
        for beside in {p.stem for p in path.parent.glob("*.py")} - {"__init__", "__main__"}:
            value = getattr(module, beside, None)
            assert value is None or getattr(value, "__name__", None) == f"{package}.{beside}", (
                f"{package}.{beside} is {value}"
            )

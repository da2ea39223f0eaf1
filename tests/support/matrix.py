"""The site's matrix: JAX's transformations, the layers and platforms that support them, and their tests.

A test that shows a row is marked with it, `@pytest.mark.matrix("scan")`; a test of some layers names
them, `@pytest.mark.matrix("shard_map", "resize")`, and one that cannot run on a GPU says
`cuda=False`. One that shows nothing on a single device says how many it takes, `devices=2`; on a CPU
there are always eight, on GPUs as many as there are. The table is read off the marks, so it never claims
more than the tests show:

    python tests/support/matrix.py            # prints it
    python tests/support/matrix.py --write    # writes it into the page

Tests run on whatever device JAX has: scripts/gpu_run.sh runs these on a GPU. With
JAX_CONVGRAD_REQUIRE_MATRIX=1 a marked test that is skipped is a failure, except those that take more
devices than there are: these are skipped then, and otherwise run on what there is.
"""

from __future__ import annotations

import ast
import dataclasses
import pathlib
import sys
from typing import Any

TESTS = pathlib.Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "transformation_matrix.md"
BEGIN, END = "<!-- matrix: written by tests/support/matrix.py -->\n", "<!-- end of the matrix -->\n"

LAYERS = {
    "convolution": "convolution",
    "conv_transpose": "`conv_transpose`",
    "resize": "resize",
}

# In the order of the table, each with the text that the reader sees.
ROWS = {
    "grad, vjp": "`grad`, `vjp`",
    "jvp, jacfwd": "`jvp`, `jacfwd`",
    "jacrev": "`jacrev`",
    "linearize, linear_transpose": "`linearize`, `linear_transpose`",
    "hessian": "`hessian`",
    "Hessian-vector products": "Hessian-vector products, forward and reverse in any order",
    "derivatives of any order": "third derivatives",
    "gradient penalties, reverse over reverse": "gradient penalties (WGAN-GP, R1)",
    "vmap, every operand and axis": "`vmap`, every operand and axis",
    "vmap of gradients, every operand": "`vmap` of `grad`, every operand",
    "nested vmap": "nested `vmap`",
    "per-example gradients": "per-example gradients",
    "vmap of second derivatives": "`vmap` of second derivatives",
    "checkpoint and its policies": "`checkpoint` with its policies",
    "residuals are the operands": "only operands are kept for the backward pass",
    "scan": "`scan`",
    "while_loop, fori_loop": "`while_loop`, `fori_loop`",
    "cond": "`cond`",
    "donated buffers": "donated buffers are used again",
    "eval_shape": "`eval_shape`",
    "lower().compile()": "`lower().compile()` ahead of time",
    "disable_jit": "`disable_jit`",
    "debug_nans": "`debug_nans` names the layer",
    "named_scope": "`named_scope` in profiles",
    "export with a symbolic batch": "`export` with a symbolic batch size",
    "export for several platforms": "`export` for several platforms",
    "exported, run by another process": "an exported program in another process (with `flatbuffers`)",
    "export of sharded programs": "`export` of sharded programs",
    "persistent compilation cache": "the persistent compilation cache",
    "pmap": "`pmap`",
    "shard_map": "`shard_map`, replicated weights' gradients included",
    "jit of sharded arrays": "`jit` of sharded arrays",
    "jit of sharded arrays, divided": "sharded `jit`: no image is gathered, one sum per weight array",
    "sharding in types": "Explicit meshes",
}

# These rows mean nothing on one device.
SHARDED = frozenset(
    {
        "export of sharded programs",
        "pmap",
        "shard_map",
        "jit of sharded arrays",
        "jit of sharded arrays, divided",
        "sharding in types",
    }
)


@dataclasses.dataclass(frozen=True)
class Mark:
    """A test, the row that it shows, for which layers, whether on GPUs too, and on how many devices."""

    test: str  # "conv/test_scan.test_name": file and function
    row: str
    layers: tuple[str, ...]
    cuda: bool
    devices: int = 1

    @property
    def file(self) -> str:
        return self.test.partition(".")[0]


def too_few(options: dict[str, Any], devices: int) -> bool:
    """Whether a mark's options ask for more devices than there are."""
    return options.get("devices", 1) > devices


def marks() -> list[Mark]:
    """Every mark in the tests' files, in their order."""
    return [
        mark
        for path in sorted(TESTS.rglob("test_*.py"))
        for function in ast.parse(path.read_text()).body
        if isinstance(function, ast.FunctionDef)
        for decorator in function.decorator_list
        if (mark := _mark(path, function, decorator)) is not None
    ]


def _mark(path: pathlib.Path, function: ast.FunctionDef, decorator: ast.expr) -> Mark | None:
    if not (
        isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.matrix"
    ):
        return None
    row, *layers = (ast.literal_eval(argument) for argument in decorator.args)
    options = {keyword.arg: ast.literal_eval(keyword.value) for keyword in decorator.keywords}
    cuda, devices = options.get("cuda", True), options.get("devices", 1)
    file = path.relative_to(TESTS).with_suffix("").as_posix()
    return Mark(f"{file}.{function.name}", row, tuple(layers or LAYERS), cuda, devices)


def table(found: list[Mark]) -> str:
    """The matrix in Markdown."""
    names = LAYERS.values()
    lines = [
        "| | " + " | ".join(f"{name} CPU | CUDA" for name in names) + " | tests |",
        "|---|" + "---|" * (2 * len(LAYERS) + 1),
    ]
    for row, shown in ROWS.items():
        here = [mark for mark in found if mark.row == row]
        cells = []
        for layer in LAYERS:
            shows = [mark for mark in here if layer in mark.layers]
            cells += ["yes" if shows else "no"]
            devices = min((mark.devices for mark in shows if mark.cuda), default=0)
            cells += ["no" if devices == 0 else "yes" if devices == 1 else f"{devices} GPUs"]
        tests = ", ".join(f"`{mark.test}`" for mark in here)
        lines.append(f"| {shown} | {' | '.join(cells)} | {tests} |")
    return "\n".join(lines) + "\n"


def on_the_page() -> str:
    """The matrix that the page has now."""
    text = PAGE.read_text()
    return text[text.index(BEGIN) + len(BEGIN) : text.index(END)]


def write() -> None:
    text = PAGE.read_text()
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    PAGE.write_text(before + table(marks()) + after)


if __name__ == "__main__":
    write() if sys.argv[1:] == ["--write"] else print(table(marks()))

"""What a contributor is told about the tree in CONTRIBUTING.md is true.

    python tests/docs/test_contributing.py

writes the tree of folders and files into it. A new folder needs a line in JOBS.
"""

from __future__ import annotations

import pathlib
import re
import textwrap

import pytest

pytestmark = pytest.mark.docs

ROOT = pathlib.Path(__file__).parents[2]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
START = "<!-- tree: written by tests/docs/test_contributing.py -->\n"
END = "<!-- end of the tree -->"

JOBS = {
    "jax_convgrad": "what users import",
    "jax_convgrad/_src": "the inside: one folder a concept",
    "jax_convgrad/_src/commands": "the command line: one file a subcommand",
    "jax_convgrad/_src/compat": "private or moved JAX names, feature by feature",
    "jax_convgrad/_src/conv": "the convolution family: API, primitives, lowering, emitters",
    "jax_convgrad/_src/dispatch": "problems, devices, rules, and the decision about the backend",
    "jax_convgrad/_src/explain": "explain(): the convolutions and resizes of a program, as a table",
    "jax_convgrad/_src/install": "install(): matches equations of JAX, replaces lowering rules",
    "jax_convgrad/_src/interop": "adapters with the arguments of PyTorch, ONNX and oneDNN",
    "jax_convgrad/_src/resize": "resizes as banded matrices, with the file names of conv",
    "jax_convgrad/_src/runtime": "finds, loads, registers and configures the compiled handlers",
    "jax_convgrad/_src/sharding": "the solver that divides an operator among devices",
    "jax_convgrad/_src/timing": "how JAX functions are timed",
    "jax_convgrad/_src/tuning": "backends measured on the user's device, and the file of results",
    "jax_convgrad/bench": "the benchmark: python -m jax_convgrad bench",
    "jax_convgrad/bench/forms": "the contenders: this package, lax, rewritten lax, PyTorch",
    "cpp": "the compiled handlers",
    "cpp/cpu": "the CPU module: entry points of its handlers",
    "cpp/cpu/kernels": "CPU kernels of this project",
    "cpp/cpu/kernels/depthwise": "depthwise convolutions",
    "cpp/cpu/kernels/resample": "resizes",
    "cpp/cpu/kernels/thin": "thin convolutions",
    "cpp/cpu/onednn": "convolutions on oneDNN: plans, splitting, errata",
    "cpp/cpu/runtime": "scratch memory and work on XLA's thread pool",
    "cpp/cuda": "the CUDA module: entry points of its handlers",
    "cpp/cuda/cudnn": "convolutions on cuDNN: handles, plans, search, cache, errata",
    "cpp/cuda/kernels": "CUDA kernels of this project",
    "cpp/cuda/kernels/common": "what several kernels use",
    "cpp/cuda/kernels/depthwise": "depthwise convolutions",
    "cpp/cuda/kernels/dilated": "gradients of dilated convolutions on Hopper",
    "cpp/cuda/kernels/implicit_gemm": "convolutions of 8 to 64 channels",
    "cpp/cuda/kernels/implicit_gemm/warp": "by warps: strides, TF32, any device",
    "cpp/cuda/kernels/implicit_gemm/warpgroup": "by the warpgroups of Hopper",
    "cpp/cuda/kernels/resample": "resizes",
    "cpp/cuda/kernels/resample/modes": "which part of a line a thread owns, and how it reads x",
    "cpp/cuda/kernels/thin": "thin convolutions, and windows side by side, on tensor cores",
    "cpp/cuda/kernels/transpose": "weights into the other order in memory",
    "cpp/ffi": "what both modules share: attributes, the size check, errors, guards",
    "tests": "configuration; folders follow jax_convgrad/_src and cpp",
    "tests/bench": "the benchmark",
    "tests/build_backend": "the build's decisions, and the check of a release's wheel",
    "tests/compat": "each private JAX name, hidden in turn",
    "tests/conv": "layers and operators of the convolution family",
    "tests/cpp": "C++ without Python: kernels, fuzzing, failures",
    "tests/cpp/emulated_cuda": "CUDA's headers, emulated on the host",
    "tests/cpp/emulated_cuda/cuda": "",
    "tests/cpp/emulated_cuda/cuda/kernels": "",
    "tests/cpp/emulated_cuda/cuda/kernels/common": "tensor cores, emulated",
    "tests/cpp/emulated_cuda/cuda/kernels/resample": "the instructions of resizes, emulated",
    "tests/cpp/emulated_cudnn": "cuDNN's backend API, emulated",
    "tests/cpu": "the CPU handlers, past JAX",
    "tests/cuda": "the CUDA handlers, their library and what calls them",
    "tests/dispatch": "the decision and its rules",
    "tests/docs": "README, pages, docstrings",
    "tests/explain": "explain()",
    "tests/install": "install(), and the layers of Flax, Equinox, Haiku and Keras",
    "tests/interop": "the adapters, against the standards they speak",
    "tests/programs": "examples, training loops, gradient penalties",
    "tests/resize": "resizes and their bands",
    "tests/runtime": "loading, settings, export, memory, stress",
    "tests/sharding": "meshes of devices, and the site's matrix",
    "tests/support": "what tests share: cases, oracles, guards",
    "tests/transformations": "one contract for every function under every transformation",
    "tests/tuning": "tune and its file",
}
# A contributor's question, the path that answers it, and what a reader looks for in there.
ANSWERS = {
    "the shape rule of `conv_transpose`": (
        "jax_convgrad/_src/conv/arguments.py",
        "def transposed_padding(",
    ),
    "what decides the backend": ("jax_convgrad/_src/dispatch/decide.py", "def decide("),
    "the weight gradient's handler on CUDA": ("cpp/cuda/conv_handlers.cc", "ConvWgrad"),
    "the weight gradient's (wgrad) own kernels on CUDA": (
        "cpp/cuda/kernels/depthwise/wgrad.cuh",
        "__global__",
    ),
    "the sharding rule": ("jax_convgrad/_src/conv/sharding.py", "ShardingRule"),
    "the place for a new kernel": ("cpp/cuda/kernels/", None),
}
_PATH = re.compile(
    r"(?<![\w./-])(?:(?:jax_convgrad|cpp|tests|benchmarks|docs|examples|scripts|\.ci)/[\w./*-]*"
    r"|[A-Z]\w+\.(?:md|txt)|pyproject\.toml|\.clang-format)"
)


def files(folder: str) -> list[str]:
    """The files in a folder, without what a build or a run leaves there."""
    return sorted(
        path.name
        for path in (ROOT / folder).iterdir()
        if path.is_file() and path.suffix not in (".so", ".pyc") and path.name[0] != "."
    )


def folders() -> list[str]:
    """All folders that hold a file, themselves or further down."""
    found = set()
    for top in ("jax_convgrad", "cpp", "tests"):
        for path in (ROOT / top).rglob("*"):
            folder = path.parent.relative_to(ROOT)
            if path.is_file() and path.name in files(str(folder)):
                found |= {str(part) for part in (folder, *folder.parents)} - {"."}
    return sorted((folder for folder in found), key=lambda folder: _place(folder))


def _place(folder: str) -> tuple[int, str]:
    return ["jax_convgrad", "cpp", "tests"].index(folder.partition("/")[0]), folder


def listing() -> str:
    """The tree, as CONTRIBUTING.md has it."""
    lines = []
    for folder in folders():
        if not JOBS[folder]:  # others lie in it, and nothing else
            continue
        lines.append(f"{folder + '/':34}  {JOBS[folder]}")
        lines += textwrap.wrap(
            "  ".join(files(folder)),
            100,
            initial_indent="    ",
            subsequent_indent="    ",
            break_on_hyphens=False,
        )
    return "\n".join(["```text", *lines, "```", ""])


def test_every_folder_has_a_job():
    assert set(JOBS) == set(folders())


def test_the_page_has_the_tree():
    """`python tests/docs/test_contributing.py` writes it."""
    assert CONTRIBUTING.read_text().partition(START)[2].partition(END)[0] == listing()


@pytest.mark.parametrize("question", ANSWERS)
def test_one_path_answers_each_question(question: str):
    path, needle = ANSWERS[question]
    assert f"| {question} | `{path}` |" in CONTRIBUTING.read_text()
    assert (ROOT / path).is_dir() if needle is None else needle in (ROOT / path).read_text()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_paths_exist(page: str):
    text = (ROOT / page).read_text()
    prose = text.partition(START)[0] + text.partition(END)[2]
    paths = {match.rstrip(".") for match in _PATH.findall(prose)}
    assert len(paths) > 5
    assert [path for path in sorted(paths) if not list(ROOT.glob(path))] == []


def main() -> None:
    before, _, rest = CONTRIBUTING.read_text().partition(START)
    CONTRIBUTING.write_text(f"{before}{START}{listing()}{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()

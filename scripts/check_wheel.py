"""Checks that a release's wheel is whole: python scripts/check_wheel.py WHEEL.

Both modules, the libraries and the notices are in it, nothing is required from other packages for oneDNN, the
CPU module and its libraries have no name of oneDNN's or OpenMP's, which another copy in the process may have,
and the CUDA module needs nothing but libc, libstdc++, the loader and Python. Needs binutils (nm and readelf).
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

RUNTIME = r"jax_convgrad/_src/runtime/"
SUFFIX = r"\.(abi3|cpython-311-x86_64-linux-gnu)\.so"
CONTENTS = {
    "the CPU module": RUNTIME + "_cpu" + SUFFIX,
    "the CUDA module": RUNTIME + "_cuda" + SUFFIX,
    "oneDNN": r"jax_convgrad\.libs/libdnnl-[0-9a-f]+\.so[.0-9]*",
    "OpenMP's runtime": r"jax_convgrad\.libs/libgomp-[0-9a-f]+\.so[.0-9]*",
    "the license": r"jax_convgrad-[^/]+\.dist-info/licenses/LICENSE",
    "the third-party notices": r"jax_convgrad-[^/]+\.dist-info/licenses/THIRD_PARTY_NOTICES",
}
SYSTEM_LIBRARIES = re.compile(
    r"(libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s|ld-linux-x86-64)\.so\.\d+"
)
# What has no name of oneDNN's or OpenMP's runtime. In the wheel each of these begins with "jax_convgrad_".
# nm prints A for the names of libgomp's versions, which are no symbols.
RENAMED = ("the CPU module", "oneDNN", "OpenMP's runtime")
FOREIGN_NAME = re.compile(
    r" [B-Zu-w] ((?!jax_convgrad_)(?:\w*dnnl\w*|(?:GOMP|GOACC|goacc|acc|omp)_\w+))"
)
# As nm prints it: a weak symbol may stay undefined.
SYSTEM_SYMBOL = re.compile(
    r"\s*(w .*|U \S+@(GLIBC|GLIBCXX|CXXABI|GCC)_[\d.]+( \(\d+\))?|U _?Py\w+)"
)


def problems_of_wheel(path: pathlib.Path) -> list[str]:
    """What is wrong with the wheel, one sentence each."""
    problems = []
    with zipfile.ZipFile(path) as wheel, tempfile.TemporaryDirectory() as folder:
        names = wheel.namelist()
        for what, pattern in CONTENTS.items():
            if not any(re.fullmatch(pattern, name) for name in names):
                problems.append(f"{what} is not in the wheel")
        for name in names:
            if name.endswith(".dist-info/METADATA"):
                if b"Requires-Dist: onednn" in wheel.read(name):
                    problems.append("the wheel has oneDNN and requires a package with another copy")
            for what in RENAMED:
                if re.fullmatch(CONTENTS[what], name):
                    symbols = output("nm", "--dynamic", wheel.extract(name, folder))
                    if found := FOREIGN_NAME.search(symbols):
                        problems.append(f"{what} has a name that is not its own, {found[1]}")
            if re.fullmatch(CONTENTS["the CUDA module"], name):
                module = wheel.extract(name, folder)
                symbols = output("nm", "--dynamic", "--undefined-only", module)
                problems += problems_of_symbols(symbols, output("readelf", "--dynamic", module))
    if "manylinux" not in path.name:
        problems.append("the wheel's name says no manylinux policy")
    return problems


def problems_of_symbols(symbols: str, dynamic: str) -> list[str]:
    """What is wrong with the CUDA module, from what nm and readelf print of it."""
    problems = [
        f"the CUDA module needs the symbol {line.split()[-1]}"
        for line in symbols.splitlines()
        if not SYSTEM_SYMBOL.fullmatch(line)
    ]
    for library in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
        if not SYSTEM_LIBRARIES.fullmatch(library):
            problems.append(f"the CUDA module needs the library {library}")
    return problems


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    found = problems_of_wheel(pathlib.Path(sys.argv[1]))
    sys.exit("\n".join(found) or 0)

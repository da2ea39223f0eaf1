"""Runs tests with oneDNN's kernels for processors with fewer instructions than this one.

It has others for each set of instructions, and takes the set at its first call. This project's own kernels
ask the processor and stay as they are.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

PROCESSORS_WITH_LESS = ("AVX2", "AVX512_CORE")  # for ONEDNN_MAX_CPU_ISA


def passed_on(isa: str, file: str, names: str) -> int:
    """How many tests of a file, selected by pytest's expression, pass; none may fail."""
    root = pathlib.Path(__file__).parents[2]
    # -P: the package that is installed, not the folder of that name where this may have been started.
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    configuration = ["-c", str(root / "pyproject.toml"), "--rootdir", str(root)]
    done = subprocess.run(
        # --capture=sys lets messages through that are printed when the process is ended.
        [*command, *configuration, "-k", names, "--capture=sys"],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": isa},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    return int(passed[1]) if passed else 0

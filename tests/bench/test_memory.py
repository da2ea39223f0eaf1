"""Freed memory stays with the process: what is allocated again costs no page fault."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import numpy as np
from jax_convgrad._src.timing.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(2**24, np.uint8)  # written, and freed
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 20

before = faults()
assert keep_freed_memory()
faults()
print(before, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a parameter of glibc's")
def test_freed_memory_is_kept():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    _, after = map(float, done.stdout.split())
    assert after < 10  # of 4096 pages, or of 8 huge ones

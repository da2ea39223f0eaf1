"""What lies around the arrays and the scratch memory of the guarded tests shows what it is there for.

The handlers are right; here one is told that an array has a column more than it has.
"""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest
from support import native
from support.conv_cases import Case, in_layout
from support.conv_oracle import conv_oracle
from support.drawn_convs import Call
from support.ffi_host import HandlerError, Host
from support.guarded_memory import HostArray
from support.layouts import NWC

from jax_convgrad._src.runtime import registry

CASE = Case("told", (1, 16, 40), (16, 16, 3), padding=((0, 0),), layout=NWC)


class Fprop:
    """The handler's call for CASE. It is told of x and y of CASE's size, whatever they have."""

    def __init__(self, missing_of_x: int = 0, missing_of_y: int = 0, page: bool = False) -> None:
        rng = np.random.default_rng(0)
        data = [rng.integers(-3, 4, shape).astype(np.float64) for shape in (CASE.x, CASE.w, CASE.y)]
        y, *_ = conv_oracle(CASE, *data)
        x, w, y = in_layout(CASE, data[0], data[1], y)
        self.call = Call("conv_fprop", CASE, "float32", (x, w), y)
        self.told = x.shape, w.shape, y.shape
        x = x[:, : x.shape[1] - missing_of_x]
        y = y[:, : y.shape[1] - missing_of_y]
        self.arrays = [HostArray(a.shape, "float32", page) for a in (x, w, y)]
        self.arrays[0].fill(x)
        self.arrays[1].fill(w)

    def run(self) -> np.ndarray:
        x, w, y = (a.buffer._replace(shape=s) for a, s in zip(self.arrays, self.told, strict=True))
        handler = registry._import_cpu().handlers()[self.call.target]
        Host(threads=2).call(handler, [x, w], [y], self.call.attributes)
        return self.arrays[2].values

    def touched_outside(self) -> list[bool]:
        return [not array.is_untouched_outside() for array in self.arrays]


pytestmark = [pytest.mark.cpp, pytest.mark.usefixtures("needs_cpu_handlers")]


def test_what_is_right():
    fprop = Fprop()
    assert not fprop.call.compare(fprop.run())
    assert fprop.touched_outside() == [False, False, False]


def test_a_read_behind_an_array_gives_nan():
    fprop = Fprop(missing_of_x=1)
    y = fprop.run()
    assert np.isnan(y[:, -1]).all() and not np.isnan(y[:, :-1]).any()
    assert f"16 of {y.size} wrong, 16 of them NaN" in fprop.call.compare(y)


def test_a_write_behind_an_array_is_seen():
    fprop = Fprop(missing_of_y=1)
    fprop.run()
    assert fprop.touched_outside() == [False, False, True]


def test_what_is_not_written_is_nan():
    assert np.isnan(Fprop().arrays[2].values).all()


@pytest.mark.parametrize("missing", ["x", "y", "nothing"])
def test_a_page_behind_an_array_ends_the_process(missing: str):
    done = subprocess.run([sys.executable, __file__, missing], capture_output=True, text=True)
    ended = done.returncode == -signal.SIGSEGV or "AddressSanitizer: SEGV" in done.stderr
    assert ended == (missing != "nothing"), done.stderr
    assert ("it ran" in done.stdout) == (missing == "nothing"), done.stderr


def test_an_error_of_a_handler_is_raised():
    fprop = Fprop()
    fprop.told = (fprop.told[0], fprop.told[1], (1, 40, 16))
    with pytest.raises(HandlerError, match=r"y .*40"):
        fprop.run()


@pytest.fixture(scope="module")
def scratch_program(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    sources = ["tests/cpp/guarded_scratch_test.cc", "cpp/cpu/runtime/guarded_scratch.cc"]
    return native.build(tmp_path_factory.mktemp("scratch"), sources)


@pytest.mark.parametrize(
    "offset,said",
    [(0, ""), (99, ""), (-1, "a write in front of"), (100, "a write behind")],
)
def test_a_write_outside_of_scratch_memory_ends_the_process(
    offset: int, said: str, scratch_program: pathlib.Path
):
    done = subprocess.run([scratch_program, str(offset)], capture_output=True, text=True)
    assert done.returncode == (-signal.SIGABRT if said else 0), done.stdout + done.stderr
    assert f"{said} scratch memory of 100 bytes" in done.stderr if said else not done.stderr


if __name__ == "__main__":
    missing = sys.argv[1]
    Fprop(int(missing == "x"), int(missing == "y"), page=True).run()
    print("it ran")

"""benchmarks/accuracy.py, and layers whose results lost digits: at most twice the error of lax."""

from __future__ import annotations

from typing import Any

import pytest
from support import benchmark_programs

from jax_convgrad.bench.case_files import load_cases

accuracy = benchmark_programs.load("accuracy")

# One for each kernel that sums many pixels, and the images of it that show a loss.
LAYERS = {
    "gray": 8,
    "rgb_rgb": 1,
    "depthwise8": 1,
    "depthwise_k1": 1,
    "audio": 1,
    "audio_depthwise": 1,
}
# Whose forward passes and input gradients are sums of thousands of products, and images that do. lax's error
# depends on the processor: these have room for that.
WIDE_LAYERS = {"dense512": 1, "dense64_k7": 1, "groups2_of_256": 1, "up_wide": 1}


@pytest.mark.usefixtures("needs_cpu_handlers")
@pytest.mark.parametrize("name", LAYERS)
def test_weight_gradients_keep_their_digits(name: str) -> None:
    (case,) = (case for case in load_cases(accuracy.CASES) if case.name == name)
    (row,) = accuracy.rows(case.with_batch(LAYERS[name]), seed=1, passes=("dw",))
    assert row.ratio <= accuracy.BOUND, row


@pytest.mark.usefixtures("needs_cpu_handlers")
@pytest.mark.parametrize("name", WIDE_LAYERS)
def test_long_sums_keep_their_digits(name: str) -> None:
    (case,) = (case for case in load_cases(accuracy.CASES) if case.name == name)
    small = case.with_batch(WIDE_LAYERS[name])
    for row in accuracy.rows(small, seed=1, passes=("fprop", "dx")):
        assert row.ratio <= accuracy.BOUND, row


def test_there_are_enough_layers() -> None:
    cases = load_cases(accuracy.CASES)
    assert len({case.name for case in cases}) == len(cases) >= 60
    assert max(accuracy.products(case, "dw") for case in cases) >= 2**26


def test_an_error_beyond_the_bound_is_an_error(capsys: Any) -> None:
    only = ["--only", "few_pixels", "--passes", "fprop", "dw"]
    assert accuracy.main(only) == 0
    assert accuracy.main([*only, "--bound", "0.01"]) == 1
    assert "2 beyond 0.01 times" in capsys.readouterr().out

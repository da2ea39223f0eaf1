"""Peak memory of a backward pass: no more than the arrays it reads and writes plus 64 MB.

Each case runs in a process of its own. The handlers read channels-last only; where the layer is
not, the arrays that XLA writes to convert it are counted too, and so are those in float32 where a
processor does not multiply bfloat16.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

MEGABYTE = 2**20
ALLOWED = 64 * MEGABYTE

NHWC = ("NHWC", "HWIO", "NHWC")
NCHW = ("NCHW", "OIHW", "NCHW")
NDHWC = ("NDHWC", "DHWIO", "NDHWC")


@dataclasses.dataclass(frozen=True)
class Backward:
    """dX and dW of a layer. ``x`` and ``w`` are shapes in ``layout``."""

    layer: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    strides: tuple[int, ...]
    layout: tuple[str, str, str]
    groups: int = 1
    dtype: str = "float32"
    padding: str | tuple[tuple[int, int], ...] = "SAME"


CASES = {
    "conv-transpose-k4s2": Backward(
        "conv_transpose", (8, 32, 32, 128), (4, 4, 128, 64), (2, 2), NHWC
    ),
    "dense-3x3": Backward("conv", (8, 56, 56, 64), (3, 3, 64, 64), (1, 1), NHWC),
    "dense-3x3-large-batch": Backward("conv", (64, 56, 56, 64), (3, 3, 64, 64), (1, 1), NHWC),
    "stride2": Backward("conv", (16, 112, 112, 64), (3, 3, 64, 128), (2, 2), NHWC),
    "large-weights": Backward("conv", (4, 16, 16, 512), (4, 4, 512, 1024), (2, 2), NHWC),
    "conv-transpose-67-megabytes-of-weights": Backward(
        "conv_transpose", (4, 8, 8, 1024), (4, 4, 1024, 1024), (2, 2), NHWC
    ),
    "56-megabytes-of-weights": Backward("conv", (2, 8, 8, 1024), (3, 3, 1024, 1536), (1, 1), NHWC),
    "151-megabytes-of-weights": Backward("conv", (8, 8, 8, 2048), (3, 3, 2048, 2048), (1, 1), NHWC),
    "large-weights-and-arrays": Backward(
        "conv", (32, 32, 32, 512), (4, 4, 512, 1024), (2, 2), NHWC
    ),
    "grouped-large-weights": Backward(
        "conv", (4, 8, 8, 4096), (3, 3, 1024, 4096), (1, 1), NHWC, groups=4
    ),
    "bfloat16-large-weights": Backward(
        "conv", (4, 8, 8, 2048), (3, 3, 2048, 2048), (1, 1), NHWC, dtype="bfloat16"
    ),
    "grouped": Backward("conv", (16, 56, 56, 128), (3, 3, 4, 128), (1, 1), NHWC, groups=32),
    "depthwise": Backward("conv", (32, 56, 56, 128), (3, 3, 1, 128), (1, 1), NHWC, groups=128),
    "3d": Backward("conv", (2, 16, 64, 64, 32), (3, 3, 3, 32, 32), (1, 1, 1), NDHWC),
    "channels-first": Backward("conv", (32, 64, 56, 56), (64, 64, 3, 3), (1, 1), NCHW),
    "bfloat16": Backward("conv", (64, 56, 56, 64), (3, 3, 64, 64), (1, 1), NHWC, dtype="bfloat16"),
    "valid-stride2-unread-row": Backward(
        "conv", (32, 57, 58, 64), (3, 3, 64, 64), (2, 2), NHWC, padding="VALID"
    ),
    # x with its padding would have 4 GB.
    "windows-far-apart": Backward(
        "conv", (1, 1, 1, 4), (2, 2, 4, 4), (2**14,) * 2, NHWC, padding=((0, 2**14 - 1),) * 2
    ),
    # Not far enough apart to be taken without a padded copy, which would have 368 MB.
    "taps-beside-the-image": Backward(
        "conv", (1, 1, 1, 256), (2, 2, 256, 4), (600,) * 2, NHWC, padding=((0, 599),) * 2
    ),
}


def resident(field: str) -> int:
    """Bytes of this process in memory: VmRSS now, VmHWM at most since `forget_peak`."""
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def backward_of(case: Backward) -> tuple[Any, Callable[..., Any]]:
    """The jitted backward pass, and the layer."""
    import jax

    import jax_convgrad

    def layer(x: Any, w: Any) -> Any:
        if case.layer == "conv_transpose":
            return jax_convgrad.conv_transpose(
                x,
                w,
                case.strides,
                case.padding,
                dimension_numbers=case.layout,
                feature_group_count=case.groups,
            )
        return jax_convgrad.conv_general_dilated(
            x,
            w,
            case.strides,
            case.padding,
            dimension_numbers=case.layout,
            feature_group_count=case.groups,
        )

    return jax.jit(lambda x, w, dy: jax.vjp(layer, x, w)[1](dy)), layer


def measure(case: Backward) -> dict[str, int]:
    """Growth of the process from before the operands are made to the peak of the backward pass.

    The program is compiled before, and a tiny one of its kind has run, so that libraries and
    threads are not counted; working memory is. The operands are made in place: an allocator keeps
    what is freed, and temporary copies of them would hide the arrays that come after.
    """
    import jax
    import jax.numpy as jnp

    def prepare(case: Backward) -> tuple[Any, list[Any]]:
        backward, layer = backward_of(case)
        x = jax.ShapeDtypeStruct(case.x, case.dtype)
        w = jax.ShapeDtypeStruct(case.w, case.dtype)
        shapes = [x, w, jax.eval_shape(layer, x, w)]
        return backward.lower(*shapes).compile(), shapes

    def make(shapes: list[Any]) -> list[Any]:
        return jax.block_until_ready([jnp.ones(s.shape, s.dtype) for s in shapes])

    tiny = dataclasses.replace(case, x=(2,) * len(case.x), w=(2,) * len(case.w), groups=1)
    program, shapes = prepare(tiny)
    jax.block_until_ready(program(*make(shapes)))
    program, shapes = prepare(case)
    before = resident("VmRSS")
    arrays = make(shapes)
    forget_peak()
    results = jax.block_until_ready(program(*arrays))
    growth = resident("VmHWM") - before
    count = lambda a: math.prod(a.shape) * a.dtype.itemsize  # noqa: E731
    return {
        "growth": growth,
        "read": sum(map(count, arrays)),
        "written": sum(map(count, results)),
        "x": count(arrays[0]),
        "dy": count(arrays[2]),
    }


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("name", list(CASES))
def test_peak_memory_of_a_backward_pass(name: str, cpu_handlers: bool):
    if not cpu_handlers:
        pytest.skip("the pure-JAX backends take the memory that XLA takes")
    from jax_convgrad._src.dispatch.devices import multiplies_bfloat16

    result = subprocess.run(
        [sys.executable, __file__, name],
        env={k: v for k, v in os.environ.items() if k != "JAX_CONVGRAD_REQUIRE_CUDA"}
        # Optimizations save memory.
        | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    seen = json.loads(result.stdout.splitlines()[-1])
    arrays = seen["read"] + seen["written"]
    # Else memory that was free before has been used again, and the measurement is blind.
    assert seen["growth"] >= 0.9 * arrays, seen
    allowed = arrays + ALLOWED
    if CASES[name].dtype == "bfloat16" and not multiplies_bfloat16():
        allowed += 2 * arrays  # each once more in float32
    if CASES[name].layout == NCHW:
        # XLA writes x, dy and dx once more, channels-last: arrays that the calls read and write.
        allowed += 2 * seen["x"] + seen["dy"]
    show = {key: f"{value / MEGABYTE:.1f} MB" for key, value in seen.items()}
    assert seen["growth"] <= allowed, f"{show}, allowed growth {allowed / MEGABYTE:.1f} MB"


if __name__ == "__main__":
    print(json.dumps(measure(CASES[sys.argv[1]])))

"""One call for a whole backward pass against its parts, on the CPU: depthwise layers of named networks.

    python benchmarks/backward_cpu.py --json benchmarks/cpu/backward.json

Both forms compute dx, dw and db of channels-last arrays under `jax.jit`. Rounds alternate between the forms,
and between which comes first; a row has the median of each in milliseconds.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import measured
import numpy as np

from jax_convgrad import conv_backward
from jax_convgrad._src.dispatch.devices import multiplies_bfloat16
from jax_convgrad._src.dispatch.override import override_backend

# Name, batch, image, channels, kernel, stride, padding.
LAYERS: list[tuple[str, int, tuple[int, ...], int, tuple[int, ...], int, Any]] = [
    ("MobileNet 112x112, 32, k3", 8, (112, 112), 32, (3, 3), 1, "SAME"),
    ("MobileNet 112x112, 64, k3 s2", 8, (112, 112), 64, (3, 3), 2, "SAME"),
    ("MobileNet 56x56, 128, k3", 8, (56, 56), 128, (3, 3), 1, "SAME"),
    ("MobileNet 56x56, 128, k3 s2", 8, (56, 56), 128, (3, 3), 2, "SAME"),
    ("MobileNet 28x28, 256, k3", 8, (28, 28), 256, (3, 3), 1, "SAME"),
    ("MobileNet 14x14, 512, k3", 8, (14, 14), 512, (3, 3), 1, "SAME"),
    ("MobileNet 7x7, 1024, k3", 8, (7, 7), 1024, (3, 3), 1, "SAME"),
    ("MobileNetV2 56x56, 144, k3", 8, (56, 56), 144, (3, 3), 1, "SAME"),
    ("EfficientNet 28x28, 240, k5", 8, (28, 28), 240, (5, 5), 1, "SAME"),
    ("EfficientNet 14x14, 672, k5 s2", 8, (14, 14), 672, (5, 5), 2, "SAME"),
    ("ConvNeXt 56x56, 96, k7", 4, (56, 56), 96, (7, 7), 1, "SAME"),
    ("ConvNeXt 28x28, 192, k7", 4, (28, 28), 192, (7, 7), 1, "SAME"),
    ("ConvNeXt 14x14, 384, k7", 8, (14, 14), 384, (7, 7), 1, "SAME"),
    ("ConvNeXt 7x7, 768, k7", 8, (7, 7), 768, (7, 7), 1, "SAME"),
    ("Conformer 1-D 400, 256, k31", 8, (400,), 256, (31,), 1, "SAME"),
    ("Mamba 1-D 1024, 768, k4", 4, (1024,), 768, (4,), 1, ((3, 0),)),
    ("thin 56x56, 8, k3", 8, (56, 56), 8, (3, 3), 1, "SAME"),
    ("tiny 8x8, 16, k3", 1, (8, 8), 16, (3, 3), 1, "SAME"),
    ("3-D 16x16x16, 32, k3", 2, (16, 16, 16), 32, (3, 3, 3), 1, "SAME"),
]
SECONDS = 0.02  # of one sample
FORMS = ("native", "parts")


def made(layer: Any, dtype: str, wanted: tuple[str, ...]) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """The two compiled forms of a layer, and their operands."""
    _, batch, image, channels, kernel, stride, padding = layer
    axes = "DHW"[-len(image) :]
    keywords = dict(
        strides=stride,
        padding=padding,
        groups=channels,
        dimension_numbers=(f"N{axes}C", f"{axes}IO", f"N{axes}C"),
        wanted=wanted,
    )
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((batch, *image, channels)), dtype)
    w = jnp.asarray(rng.standard_normal((*kernel, 1, channels)), dtype)
    out = [-(-n // stride) for n in image]
    dy = jnp.asarray(rng.standard_normal((batch, *out, channels)), dtype)
    forms = {}
    for form in FORMS:
        with override_backend(form):
            f = jax.jit(functools.partial(conv_backward, **keywords))
            forms[form] = f.lower(x, w, dy).compile()
    return forms, (x, w, dy)


def seconds_of(f: Callable[..., Any], operands: Any, calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        result = f(*operands)
    jax.block_until_ready(result)
    return (time.perf_counter() - begin) / calls


def measure(layer: Any, dtype: str, wanted: tuple[str, ...], rounds: int) -> dict[str, Any]:
    forms, operands = made(layer, dtype, wanted)
    once = max(min(seconds_of(f, operands, 1) for _ in range(3)) for f in forms.values())
    calls = max(1, int(SECONDS / once))
    samples: dict[str, list[float]] = {form: [] for form in FORMS}
    for round_ in range(rounds):
        for form in FORMS[:: 1 if round_ % 2 else -1]:
            samples[form].append(seconds_of(forms[form], operands, calls))
    name, batch, image, channels, kernel, stride, padding = layer
    return {
        "case": f"{name}, {dtype}, d{' d'.join(wanted)}",
        "pass": "backward",
        "layer": {
            "x": [batch, *image, channels],
            "kernel": kernel,
            "stride": stride,
            "padding": padding,
            "dtype": dtype,
            "wanted": wanted,
            "multiplies_bfloat16": multiplies_bfloat16(),
        },
        **{form: round(statistics.median(samples[form]) * 1e3, 4) for form in FORMS},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="layers whose names have this in them")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    arguments = parser.parse_args()
    head, rows = measured.header("cpu", "ms"), []
    for dtype in arguments.dtypes.split(","):
        for layer in LAYERS:
            if arguments.only not in layer[0]:
                continue
            for wanted in (("x", "w", "b"), ("x", "w")):
                row = measure(layer, dtype, wanted, arguments.rounds)
                rows.append(row)
                gain = row["parts"] / row["native"]
                shown = "  ".join(f"{form} {row[form]:8.3f} ms" for form in FORMS)
                print(f"{row['case']:52} {shown}  {gain:5.2f}x", flush=True)
    if arguments.json:
        measured.write(arguments.json, head, rows)


if __name__ == "__main__":
    main()

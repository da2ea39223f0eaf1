"""Times the pure-JAX forms of a resample along one axis: the measurement behind `emit_xla.form`.

    python benchmarks/survey_resample.py [--rounds N] [--only REGEX]

Prints one Markdown row per band and position of the axis: microseconds of each form (median of the
rounds, the forms in turn), "-" where a form does not exist, and which one the rule selects.
"""

from __future__ import annotations

import argparse
import functools
import re
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_convgrad._src.resize import emit_xla
from jax_convgrad._src.resize.bands import Band, Rule, make_band

FORMS = ("gather", "slices", "dense")
# Name, input and output size, rule. Each runs forwards and as its transpose.
BANDS = [
    ("linear 2x", 64, 128, Rule("linear")),
    ("linear 65 to 513", 65, 513, Rule("linear")),
    ("linear 75 to 187", 75, 187, Rule("linear")),
    ("linear 4096 to 8192", 4096, 8192, Rule("linear")),
    ("nearest 2x", 64, 128, Rule("nearest")),
    ("cubic 4x", 128, 512, Rule("cubic")),
    ("lanczos3 512 to 224", 512, 224, Rule("lanczos3", True)),
    ("linear 512 to 224", 512, 224, Rule("linear", True)),
    ("area 512 to 64", 512, 64, Rule("area")),
]
# Elements inside the axis: rows of channels, colors, nothing.
INNER = (64, 3, 1)
OUTPUTS = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="a regular expression")
    arguments = parser.parse_args()
    platform = jax.default_backend().replace("gpu", "cuda")
    print(f"{platform}, jax {jax.__version__}, float32, about {OUTPUTS} outputs, microseconds\n")
    print("| band | inner | taps |", *(f"{name} |" for name in FORMS), "rule |")
    print("|" + " --- |" * (4 + len(FORMS)))
    for name, n, m, rule in BANDS:
        forward = make_band(n, m, rule)
        for label, band in ((name, forward), (f"{name}, transpose", forward.transpose)):
            if not re.search(arguments.only, label):
                continue
            for inner in INNER:
                outer = max(1, OUTPUTS // (inner * band.out_size))
                x = jnp.asarray(
                    np.random.default_rng(0).standard_normal((outer, band.size, inner)), "float32"
                )
                times = _times(x, band, arguments.rounds)
                cells = (f"{times[form]:.0f}" if form in times else "-" for form in FORMS)
                chosen = emit_xla.form(platform, x.shape, band, 1)
                print(
                    f"| {label} | {inner} | {band.taps} |",
                    *(f"{c} |" for c in cells),
                    f"{chosen} |",
                )


def _times(x: jax.Array, band: Band, rounds: int) -> dict[str, float]:
    programs: dict[str, Any] = {}
    samples: dict[str, list[float]] = {}
    for form in FORMS:
        function = jax.jit(functools.partial(emit_xla.apply, band=band, axis=1, name=form))
        try:
            jax.block_until_ready(function(x))
        except ValueError:  # no simple ratio of sizes
            continue
        programs[form], samples[form] = function, []
    for _ in range(rounds):
        for form, function in programs.items():
            jax.block_until_ready(function(x))
            started = time.perf_counter()
            jax.block_until_ready(function(x))
            samples[form].append(time.perf_counter() - started)
    return {form: 1e6 * statistics.median(values) for form, values in samples.items()}


if __name__ == "__main__":
    main()

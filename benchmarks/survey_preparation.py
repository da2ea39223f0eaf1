"""Times handlers' calls by what is done to their operands beforehand: what `rules_preparation` cites.

    JAX_PLATFORMS=cpu python benchmarks/survey_preparation.py --json benchmarks/cpu/preparations.json
    python benchmarks/survey_preparation.py --json benchmarks/h100/preparations.json
    python benchmarks/survey_preparation.py --only "32 to 32|64 to 64, k3|16 to 16"

Each operator is called on channels-last arrays, weights in the order kernel, input channel, output channel,
by each preparation that is right for it. Microseconds a call, measured as `python -m jax_convgrad bench`
does; the time of the preparation is in it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import measured
import numpy as np

import jax_convgrad
from jax_convgrad._src.dispatch.devices import multiplies_bfloat16
from jax_convgrad._src.dispatch.override import override_backend, override_preparation
from jax_convgrad._src.runtime import registry
from jax_convgrad._src.timing.compare import Operands, compare
from jax_convgrad._src.timing.method import Method
from jax_convgrad.bench.cases import DTYPES

FUNCTIONS: dict[str, Any] = {
    "fprop": jax_convgrad.conv_fprop,
    "dx": jax_convgrad.conv_dgrad,
    "dw": jax_convgrad.conv_wgrad,
}
BACKENDS = {"cpu": "onednn", "gpu": "cudnn"}


class Layer(NamedTuple):
    """A convolution of which some operators are timed.

    Attributes:
      name: which one.
      passes: the operators: "fprop", "dx", "dw".
      x: batch, spatial sizes, channels.
      kernel: its sizes.
      out_channels: of y.
      padding: "SAME", whose odd element is at the end, or a pair an axis.
      stride: along every axis.
      groups: `feature_group_count`.
      dilation: of the window, along every axis.
    """

    name: str
    passes: tuple[str, ...]
    x: tuple[int, ...]
    kernel: tuple[int, ...]
    out_channels: int
    padding: Any = "SAME"
    stride: int = 1
    groups: int = 1
    dilation: int = 1

    def to_json(self, dtype: str, precision: str | None) -> dict[str, Any]:
        rest = {"dtype": dtype, "precision": precision}
        return {**self._asdict(), **rest, "multiplies_bfloat16": multiplies_bfloat16()}


# Layers, dtypes, lax's precision, and the preparations that are right for them, by platform.
Group = tuple[list[Layer], list[str], str | None, tuple[str, ...]]
_FORWARD, _DX, _DW, _ALL = ("fprop",), ("dx",), ("dw",), ("fprop", "dx", "dw")
GROUPS: dict[str, list[Group]] = {
    "cpu": [
        (
            [
                Layer("3 to 64, k3", _FORWARD, (8, 56, 56, 3), (3, 3), 64),
                Layer("64 to 3, k3", _DX, (8, 56, 56, 64), (3, 3), 3),
                Layer("stem 3 to 64, k7 s2", _FORWARD, (4, 224, 224, 3), (7, 7), 64, stride=2),
                Layer("9 to 32, k3", _FORWARD, (8, 28, 28, 9), (3, 3), 32),
                Layer("32 to 9, k3", _DX, (8, 28, 28, 32), (3, 3), 9),
                Layer("65 to 64, k3", _FORWARD, (8, 28, 28, 65), (3, 3), 64),
                Layer("64 to 65, k3", _DX, (8, 28, 28, 64), (3, 3), 65),
                Layer("1-D 1 to 64, k15", _FORWARD, (8, 4000, 1), (15,), 64),
                Layer("1-D 64 to 1, k15", _DX, (8, 4000, 64), (15,), 1),
                Layer("4 groups of 3 to 16, k3", _FORWARD, (8, 64, 64, 12), (3, 3), 64, groups=4),
                Layer("4 groups of 16 to 3, k3", _DX, (8, 64, 64, 64), (3, 3), 12, groups=4),
                Layer("3-D 1 to 32, k3", _FORWARD, (2, 24, 24, 24, 1), (3, 3, 3), 32),
                Layer("depthwise 24, k3 s2", _DX, (8, 56, 56, 24), (3, 3), 24, groups=24, stride=2),
                Layer("depthwise 64, k3 s2", _DX, (8, 56, 56, 64), (3, 3), 64, groups=64, stride=2),
                Layer("depthwise 96, k3 s2", _DX, (8, 56, 56, 96), (3, 3), 96, groups=96, stride=2),
                Layer(
                    "depthwise 240, k5 s2", _DX, (4, 28, 28, 240), (5, 5), 240, groups=240, stride=2
                ),
            ],
            ["bf16"],
            None,
            ("zero_channel", "float32"),
        ),
        (
            [
                Layer("64 to 64, k3", _ALL, (8, 56, 56, 64), (3, 3), 64),
                Layer("128 to 256, k3 s2", _ALL, (4, 28, 28, 128), (3, 3), 256, stride=2),
                Layer("64 to 256, k1", _ALL, (4, 56, 56, 64), (1, 1), 256),
                Layer("4 to 32, k3", _ALL, (8, 56, 56, 4), (3, 3), 32),
                Layer("3 to 64, k7 s2", _DW, (4, 224, 224, 3), (7, 7), 64, stride=2),
                Layer("1-D 64 to 64, k3", _ALL, (8, 4000, 64), (3,), 64),
                Layer("3-D 16 to 16, k3", _ALL, (2, 24, 24, 24, 16), (3, 3, 3), 16),
                Layer("32 groups, 128 to 128, k3", _ALL, (4, 56, 56, 128), (3, 3), 128, groups=32),
                Layer("depthwise 96, k7", _ALL, (4, 56, 56, 96), (7, 7), 96, groups=96),
                Layer("depthwise 128, k3", _ALL, (4, 56, 56, 128), (3, 3), 128, groups=128),
                Layer(
                    "depthwise 96, k3 s2",
                    ("fprop", "dw"),
                    (8, 56, 56, 96),
                    (3, 3),
                    96,
                    groups=96,
                    stride=2,
                ),
                Layer("depthwise 32, k3", _ALL, (8, 112, 112, 32), (3, 3), 32, groups=32),
                Layer("depthwise 240, k5", _ALL, (4, 28, 28, 240), (5, 5), 240, groups=240),
                Layer(
                    "depthwise 672, k5 s2",
                    ("fprop", "dw"),
                    (4, 14, 14, 672),
                    (5, 5),
                    672,
                    groups=672,
                    stride=2,
                ),
                Layer("depthwise 32 to 64, k3", _DW, (8, 56, 56, 32), (3, 3), 64, groups=32),
                Layer(
                    "depthwise 24 to 96, k5 s2",
                    _DW,
                    (8, 56, 56, 24),
                    (5, 5),
                    96,
                    groups=24,
                    stride=2,
                ),
                Layer("1-D depthwise 64 to 128, k9", _DW, (4, 4000, 64), (9,), 128, groups=64),
                Layer("1-D depthwise 64, k5", _ALL, (4, 4000, 64), (5,), 64, groups=64),
                Layer("1-D depthwise 256, k31", _ALL, (4, 400, 256), (31,), 256, groups=256),
                Layer("1-D depthwise 64, k5 s2", _DX, (4, 4000, 64), (5,), 64, groups=64, stride=2),
                Layer("3-D depthwise 32, k3", _ALL, (2, 16, 16, 16, 32), (3, 3, 3), 32, groups=32),
                Layer(
                    "depthwise 128, k3 d2", _DX, (4, 56, 56, 128), (3, 3), 128, "SAME", 1, 128, 2
                ),
            ],
            ["bf16"],
            None,
            ("none", "float32"),
        ),
    ],
    "gpu": [
        (
            [
                Layer("128 to 128, k3 s2", _DW, (16, 56, 56, 128), (3, 3), 128, stride=2),
                Layer("64 to 64, k4", _DW, (16, 32, 32, 64), (4, 4), 64),
                Layer("1-D 64 to 64, k3, causal", _DW, (8, 2048, 64), (3,), 64, ((2, 0),)),
                Layer("3-D 32 to 32, k3 s2", _DW, (2, 16, 32, 32, 32), (3, 3, 3), 32, stride=2),
            ],
            ["f32", "f64"],
            "highest",
            ("even_padding", "none"),
        ),
        (
            [
                Layer(
                    "stem 3 to 64, k7 s2",
                    ("fprop", "dx", "dw"),
                    (32, 224, 224, 3),
                    (7, 7),
                    64,
                    stride=2,
                ),
                Layer("3 to 32, k3 s2", ("fprop", "dw"), (32, 224, 224, 3), (3, 3), 32, stride=2),
                Layer("64 to 3, k3", ("fprop", "dx", "dw"), (8, 256, 256, 64), (3, 3), 3),
                Layer("256 to 4, k3", ("fprop", "dx", "dw"), (16, 64, 64, 256), (3, 3), 4),
                Layer("1-D 1 to 32, k7", ("fprop", "dw"), (8, 24000, 1), (7,), 32),
                Layer(
                    "patches 3 to 768, k16",
                    ("fprop", "dw"),
                    (32, 224, 224, 3),
                    (16, 16),
                    768,
                    "VALID",
                    16,
                ),
            ],
            ["bf16"],
            None,
            ("xio_weights", "none"),
        ),
        (
            [
                Layer(
                    "stem 3 to 64, k7 s2", ("fprop", "dw"), (32, 224, 224, 3), (7, 7), 64, stride=2
                ),
                Layer("64 to 3, k3", ("fprop", "dx", "dw"), (8, 256, 256, 64), (3, 3), 3),
            ],
            ["f32"],
            None,
            ("xio_weights", "none"),
        ),
        (
            [
                Layer("32 to 32, k3", _ALL, (16, 64, 64, 32), (3, 3), 32),
                Layer("64 to 64, k3", _ALL, (16, 96, 96, 64), (3, 3), 64),
                Layer("1-D 32 to 32, k11", _ALL, (16, 8192, 32), (11,), 32),
                Layer("3-D 16 to 16, k3", _ALL, (2, 48, 48, 48, 16), (3, 3, 3), 16),
            ],
            ["bf16", "f32"],
            None,
            ("xio_weights", "none"),
        ),
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="OUT", help="write all figures as JSON")
    parser.add_argument("--only", metavar="REGEX", default="", help="layers whose name matches")
    parser.add_argument("--rounds", type=int, default=9, help="default: %(default)s")
    arguments = parser.parse_args()
    platform = jax.default_backend()
    if (reason := registry.require({"gpu": "cuda"}.get(platform, platform)).reason) is not None:
        raise SystemExit(f"there are no handlers to measure: {reason}")
    head = measured.header({"gpu": "cuda"}.get(platform, platform), "us")
    rows = []
    for layers, dtypes, precision, preparations in GROUPS[platform]:
        for layer in layers:
            if not re.search(arguments.only, layer.name):
                continue
            for dtype in dtypes:
                for pass_ in layer.passes:
                    times = survey(layer, pass_, dtype, precision, preparations, arguments.rounds)
                    rows.append(
                        {
                            "case": f"{layer.name}, {dtype}",
                            "pass": pass_,
                            "layer": layer.to_json(dtype, precision),
                            **times,
                        }
                    )
                    print(f"{rows[-1]['case']:40} {pass_:5} {json.dumps(times)}", flush=True)
                    if arguments.json:
                        measured.write(arguments.json, head, rows)


def survey(
    layer: Layer,
    pass_: str,
    dtype: str,
    precision: str | None,
    preparations: tuple[str, ...],
    rounds: int,
) -> dict[str, float]:
    """Microseconds of one operator by each preparation."""
    axes = "DHW"[3 - len(layer.kernel) :]
    keywords = {
        "strides": layer.stride,
        "padding": layer.padding,
        "dilation": layer.dilation,
        "groups": layer.groups,
        "dimension_numbers": (f"N{axes}C", f"{axes}IO", f"N{axes}C"),
        "precision": precision,
    }
    weights = (*layer.kernel, layer.x[-1] // layer.groups, layer.out_channels)
    with jax.enable_x64(dtype == "f64"):
        rng = np.random.default_rng(0)

        def drawn(shape: tuple[int, ...]) -> jax.Array:
            return jnp.asarray(rng.standard_normal(shape), DTYPES[dtype])

        forward: Any = functools.partial(FUNCTIONS["fprop"], **keywords)
        y = jax.eval_shape(forward, drawn(layer.x), drawn(weights)).shape
        shapes = {"fprop": (layer.x, weights), "dx": (y, weights), "dw": (layer.x, y)}[pass_]
        result: dict[str, Any] = {
            "fprop": {},
            "dx": {"x_shape": layer.x},
            "dw": {"w_shape": weights},
        }[pass_]
        function = functools.partial(FUNCTIONS[pass_], **keywords, **result)

        @contextlib.contextmanager
        def prepared_by(name: str) -> Any:
            with override_backend(BACKENDS[jax.default_backend()]), override_preparation(name):
                yield

        found = compare(
            {p: (jax.jit(_new(function)), functools.partial(prepared_by, p)) for p in preparations},
            Operands(tuple(map(drawn, shapes))),
            Method(rounds=rounds),
        )
    return {name: float(f"{1e6 * seconds:.4g}") for name, seconds in found.items()}


def _new(function: Any) -> Any:
    """A function of its own, which JAX has not lowered yet."""
    return lambda *arrays: function(*arrays)


if __name__ == "__main__":
    main()

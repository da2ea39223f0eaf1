"""Looks for random layers that this package computes slower than lax.

    python benchmarks/fuzz_speed.py --layers 1000 --seed 1 --json OUT.json
    python benchmarks/fuzz_speed.py --dtypes bfloat16,float16 --seconds 600

Convolutions and transposed convolutions, many of them odd, forward, dX and dW each by itself: by lax,
by this package's own layer ("own") and by lax under install() ("install"), in turns, on JAX's default
device. A figure is the least of several samples. What is slower than lax by more than --slower is measured
again, with many more samples, and printed if it still is; the end of its line runs the layer alone.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import functools
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import jax
import jax.numpy as jnp
import measured
import numpy as np
from jax import lax

import jax_convgrad
from jax_convgrad._src.dtypes import FLOAT_DTYPES
from jax_convgrad._src.timing.compare import Operands, load, prepare, take_turns
from jax_convgrad._src.timing.method import Method
from jax_convgrad._src.timing.runner import Runner, chained, jax_gpu
from jax_convgrad.bench import drawn

PASSES = ("forward", "dx", "dw")
# Fewer products are a matter of overhead, more take too long with the slowest forms.
PRODUCTS = 3e5, 3e8
ELEMENTS = 2**25  # of an array, at most
# A form that is known to be slower by so much is not sampled: lax takes seconds for some gradients.
QUICK = Method(
    rounds=5, sample_seconds=2e-3, pause_seconds=1e-3, form_seconds=1.0, hopeless_ratio=4.0
)
LONG = Method(rounds=31, sample_seconds=5e-3, pause_seconds=1e-3, form_seconds=10.0)
DTYPES = "float32,bfloat16,float16"


@dataclasses.dataclass(frozen=True)
class Layer:
    """Arguments of `lax.conv_general_dilated`."""

    dtype: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    keywords: dict[str, Any]

    @property
    def y(self) -> tuple[int, ...]:
        return tuple(
            jax.eval_shape(self.by(lax.conv_general_dilated), *self.structs(self.x, self.w)).shape
        )

    def by(self, layer: Callable[..., Any]) -> Callable[..., Any]:
        return functools.partial(layer, **self.keywords)

    def structs(self, *shapes: tuple[int, ...]) -> list[jax.ShapeDtypeStruct]:
        return [jax.ShapeDtypeStruct(shape, self.dtype) for shape in shapes]

    def __str__(self) -> str:
        rest = [f"{name}={value}" for name, value in self.keywords.items() if name != "precision"]
        return f"x {self.x} w {self.w} {' '.join(rest)}"


def draw(seed: int, index: int, dtypes: list[str]) -> Layer:
    """Layer ``index`` of a seed, whatever the others are."""
    rng = np.random.default_rng([seed, index])
    while True:
        layer = _draw(rng, str(rng.choice(dtypes)))
        y = layer.y
        rank, (low, high) = len(y) - 2, PRODUCTS
        spatial = layer.keywords["dimension_numbers"].out_spec[2:]
        products = layer.x[layer.keywords["dimension_numbers"].lhs_spec[0]] * math.prod(layer.w)
        products *= math.prod(y[axis] for axis in spatial)
        # With a dilated input most of the windows meet zeros: count the elements.
        products //= math.prod(layer.keywords.get("lhs_dilation", (1,) * rank))
        if low <= products <= high and max(math.prod(s) for s in (layer.x, layer.w, y)) <= ELEMENTS:
            return layer


def _draw(rng: np.random.Generator, dtype: str) -> Layer:
    conv = drawn.draw(rng, drawn.LARGE, 8)
    rank = len(conv.strides)
    letters = "DHW"[-rank:]
    names = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    if rng.random() < 0.4:
        names = (f"NC{letters}", f"OI{letters}", f"NC{letters}")
    numbers = lax.conv_dimension_numbers(conv.x, conv.w, names)
    keywords: dict[str, Any] = {
        "window_strides": conv.strides,
        "padding": conv.padding,
        "rhs_dilation": conv.dilation,
        "feature_group_count": conv.groups,
        "dimension_numbers": numbers,
    }
    kind = rng.random()
    if kind < 0.2:  # transposed: the strides are the input's dilation
        keywords |= {"window_strides": (1,) * rank, "lhs_dilation": conv.strides}
    elif kind < 0.27:
        keywords["lhs_dilation"] = tuple(int(n) for n in rng.integers(1, 4, rank))
    x, w = _ordered(conv.x, numbers.lhs_spec), _ordered(conv.w, numbers.rhs_spec)
    return Layer(dtype, x, w, keywords)


def _ordered(shape: Sequence[int], spec: Sequence[int]) -> tuple[int, ...]:
    """A shape in canonical order, in the order of ``spec``."""
    result = [0] * len(shape)
    for axis, size in zip(spec, shape, strict=True):
        result[axis] = size
    return tuple(result)


def survey(
    layer: Layer, method: Method, passes: tuple[str, ...] = PASSES
) -> dict[str, dict[str, float]]:
    """By pass and form, the milliseconds of a call."""
    with jax.enable_x64(layer.dtype == "float64"):
        return {pass_: _survey(layer, pass_, method) for pass_ in passes}


def _survey(layer: Layer, pass_: str, method: Method) -> dict[str, float]:
    rng = np.random.default_rng(0)
    shapes = {"x": layer.x, "w": layer.w, "ct": layer.y}
    names = {"forward": ("x", "w"), "dx": ("ct", "w"), "dw": ("x", "ct")}[pass_]
    operands = Operands(
        tuple(jnp.asarray(rng.standard_normal(shapes[name]), layer.dtype) for name in names)
    )
    forms = {"lax": lax.conv_general_dilated, "own": jax_convgrad.conv_general_dilated}
    functions = {name: _function(layer, form, pass_) for name, form in forms.items()}
    contestants = {
        name: prepare(_runner(function), operands, method) for name, function in functions.items()
    }
    with jax_convgrad.install():
        # Not the same function object, which JAX has traced already.
        function = _function(layer, lax.conv_general_dilated, pass_)
        contestants["install"] = prepare(_runner(function), operands, method)
    seconds = take_turns(contestants, method, min)
    return {name: float(f"{1e3 * s:.4g}") for name, s in seconds.items()}


def _function(layer: Layer, form: Callable[..., Any], pass_: str) -> Callable[..., Any]:
    run = layer.by(form)
    x, w = layer.structs(layer.x, layer.w)
    if pass_ == "dx":
        return lambda ct, w: jax.linear_transpose(lambda x: run(x, w), x)(ct)[0]
    if pass_ == "dw":
        return lambda x, ct: jax.linear_transpose(lambda w: run(x, w), w)(ct)[0]
    return lambda x, w: run(x, w)


def _runner(function: Callable[..., Any]) -> Runner:
    """Its programs outlive the end of install(), which drops those of `jax.jit`."""
    call, batch = Kept(function), Kept(chained(function))
    return Runner(
        load,
        lambda arrays: call(*arrays),
        jax.block_until_ready,
        lambda out: {},
        copy=lambda arrays: tuple(map(jnp.copy, arrays)),
        batch=lambda sets: batch(tuple(sets)),
        gpu=jax_gpu() if jax.default_backend() == "gpu" else None,
    )


class Kept:
    """A function compiled once for each number of operands; ``programs`` has what was made."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.programs: dict[int, Any] = {}

    def __call__(self, *operands: Any) -> Any:
        count = len(jax.tree.leaves(operands))
        if count not in self.programs:
            self.programs[count] = jax.jit(self.function).lower(*operands).compile()
        return self.programs[count](*operands)


def slower(times: dict[str, float], limit: float) -> dict[str, float]:
    """The forms of ours that are slower than lax by more than ``limit``, and by how much."""
    ratios = {form: times[form] / times["lax"] for form in ("own", "install")}
    return {form: ratio for form, ratio in ratios.items() if ratio > limit}


def rows_of(
    layer: Layer, limit: float, measure: Callable[..., dict[str, dict[str, float]]] = survey
) -> Iterator[dict[str, Any]]:
    """One row a pass: the times, and "slower" where the second, longer round confirms the first."""
    for pass_, times in measure(layer, QUICK).items():
        row: dict[str, Any] = {"pass": pass_, **times}
        if slower(times, limit):
            again = measure(layer, LONG, (pass_,))[pass_]
            confirmed = slower(again, limit).keys() & slower(times, limit).keys()
            row |= again
            row["slower"] = {f: round(slower(again, limit)[f], 2) for f in sorted(confirmed)}
        yield row


def measure_layer(layer: Layer, limit: float) -> list[dict[str, Any]]:
    return list(rows_of(layer, limit))


def line(row: dict[str, Any], layer: Layer, repeat: str) -> str:
    """What is said of a row that is slower."""
    ratios = "  ".join(f"{form} {ratio:.2f}x" for form, ratio in row["slower"].items())
    times = " ".join(f"{form} {row[form]:.4g}" for form in ("lax", "own", "install"))
    return f"{ratios}  {row['pass']} {layer.dtype}  {times} ms  {layer}  # {repeat}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first layer")
    parser.add_argument("--seconds", type=float, help="stop after so long, amid a layer too")
    parser.add_argument("--dtypes", default=DTYPES, type=_dtypes, help=f"default: {DTYPES}")
    parser.add_argument("--slower", type=float, default=1.3, help="than lax, to be printed")
    parser.add_argument("--json", metavar="OUT")
    arguments = parser.parse_args(argv)
    worker = _make_worker()
    platform = worker.submit(_platform).result()
    head = worker.submit(measured.header, platform, "ms").result()
    started = time.monotonic()
    rows: list[dict[str, Any]] = []
    for index in range(arguments.first, arguments.first + arguments.layers):
        left = arguments.seconds and arguments.seconds - (time.monotonic() - started)
        if left is not None and left <= 0:
            break
        layer = draw(arguments.seed, index, arguments.dtypes.split(","))
        repeat = (
            f"python benchmarks/fuzz_speed.py --seed {arguments.seed} --first {index} --layers 1 "
            f"--dtypes {arguments.dtypes}"
        )
        try:
            found = worker.submit(measure_layer, layer, arguments.slower).result(left)
        except TimeoutError:
            # lax needs minutes for some gradients, and nothing can be told to stop waiting for XLA.
            for process in multiprocessing.active_children():
                process.kill()
            found = [{"failure": "the time was over"}]
        except BrokenProcessPool:
            found, worker = [{"failure": "the process crashed"}], _make_worker()
        except Exception as error:
            found = [{"failure": f"{type(error).__name__}: {error}"[:300]}]
        for row in found:
            rows.append({"layer": index, "dtype": layer.dtype, "sizes": str(layer)} | row)
            if row.get("slower"):
                print(line(row, layer, repeat), flush=True)
            if "failure" in row:
                print(f"failed: {row['failure']}  {layer.dtype} {layer}  # {repeat}", flush=True)
        if arguments.json:
            measured.write(arguments.json, head, rows)
    worker.shutdown()
    print(summary(rows, arguments.slower))
    return 0


def summary(rows: list[dict[str, Any]], limit: float) -> str:
    timed = [row for row in rows if "lax" in row]
    layers = len({row["layer"] for row in rows})
    if not timed:
        return f"{layers} layers, nothing timed"
    means = ", ".join(
        f"{form} {math.exp(np.mean([math.log(row[form] / row['lax']) for row in timed])):.3f}"
        for form in ("own", "install")
    )
    count = sum(bool(row.get("slower")) for row in rows)
    return (
        f"{layers} layers, {len(timed)} passes, {count} slower than {limit}x; geometric mean of time / "
        f"lax's: {means}"
    )


def _dtypes(text: str) -> str:
    if unknown := set(text.split(",")) - {*FLOAT_DTYPES}:
        raise argparse.ArgumentTypeError(
            f"not among {', '.join(FLOAT_DTYPES)}: {', '.join(unknown)}"
        )
    return text


def _platform() -> str:
    return {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())


def _make_worker() -> concurrent.futures.ProcessPoolExecutor:
    return concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


if __name__ == "__main__":
    raise SystemExit(main())

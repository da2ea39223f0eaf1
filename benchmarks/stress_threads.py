"""Eight threads and four streams run different layers at once, for a minute.

    python benchmarks/stress_threads.py --seconds 60 --markdown OUT.md

Every thread alternates between two kinds of call.

* A jitted layer with its gradients, through JAX: twelve layers in the four dtypes, with every problem forced
  onto the handlers. JAX has one compute stream per device, which the threads share.
* The handlers themselves, prepared and executed as XLA would do it (`ffi_caller.py`), on one of this
  program's four streams. JAX cannot do that: two threads feed each of the four streams, in addition to
  JAX's own stream. The threads have their own arrays and workspaces, and share what the handlers share:
  the plans and the pool of cuDNN handles.

All plans are cleared before the threads start, so that the threads search at the same time in their first
calls; then the minute begins. After every call all bytes of the results are compared with those that a
single thread got before, which are compared with float64 first. Only deterministic engines are used, because
bits are compared.

Thirty times the threads stop, with nothing running on the device, and the program reads the memory in use
according to the device and to JAX's allocator, and the resident memory of the process. Growth from the
first third of the readings to the last is a leak. On a CPU the same runs without streams.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import itertools
import json
import pathlib
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import ffi_caller
import jax
import jax.numpy as jnp
import numpy as np
from layers import arrays_of, passes
from stress_layers import CASES, resident_bytes

import jax_convgrad
from jax_convgrad import plans
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.runtime import registry, settings
from jax_convgrad._src.timing import cuda_driver
from jax_convgrad.bench import float64
from jax_convgrad.bench.cases import DTYPES, Case, dimension_numbers

READINGS = 30
RESULTS = ("y", "dx", "dw")
# Differences between readings that are no leak: the driver allocates 2 MiB at a time, and the
# host's allocator keeps a heap for each thread that grows by up to 1 MiB at a time.
DEVICE_SLACK, HOST_SLACK = 2 * 2**20, 8 * 2**20


def check(case: Case, name: str, got: Any, truth: np.ndarray) -> None:
    """Against float64, with twice the roundoff of the operands' format: TF32's for float32."""
    limit = {"f32": 2.0**-10, "f64": float(jnp.finfo("float64").eps) * case.macs**0.5}
    allowed = limit.get(case.dtype) or float(jnp.finfo(DTYPES[case.dtype]).eps)
    difference = np.asarray(got).astype(np.float64) - truth
    error = float(np.linalg.norm(difference) / np.linalg.norm(truth))
    if not error <= allowed:
        sys.exit(
            f"stress_threads: {case.label} {name} alone: error {error:.3g}, limit {allowed:.3g}"
        )


class Layer:
    """A jitted layer with its gradients. Any thread may run it."""

    def __init__(self, case: Case, seed: int) -> None:
        self.name = f"jit {case.id}"
        arrays = arrays_of(case, seed)
        self._run = jax.jit(passes(case))
        self._arrays = jax.block_until_ready([jnp.asarray(a) for a in arrays])
        truth = float64.passes(case, *arrays)
        for key, got in zip(RESULTS, self._run(*self._arrays), strict=True):
            check(case, key, got, truth[key])
        self.expected = self.bits()

    def bits(self) -> list[bytes]:
        return [np.asarray(result).tobytes() for result in self._run(*self._arrays)]


class Memory:
    """Arrays on the device of the handlers, filled and read on a stream."""

    def __init__(self, platform: str, stream: int | None) -> None:
        self._cuda, self._stream = platform == "cuda", stream
        self._host: dict[int, np.ndarray] = {}

    def place(self, array: np.ndarray) -> int:
        """The address of a copy."""
        if self._cuda:
            address = cuda_driver.allocate(max(array.nbytes, 1))
            cuda_driver.copy_to_device(address, array)
        else:
            copy = np.array(array, order="C")
            address = copy.ctypes.data
            self._host[address] = copy
        return address

    def spoil(self, address: int, array: np.ndarray) -> None:
        """Fills the results with NaN, which no result has."""
        if self._cuda:
            assert self._stream is not None
            cuda_driver.fill(address, 0xFF, array.nbytes, self._stream)
        else:
            self._host[address].view(np.uint8)[...] = 0xFF

    def read(self, address: int, like: np.ndarray) -> np.ndarray:
        if not self._cuda:
            return self._host[address].copy()
        assert self._stream is not None
        out = np.empty_like(like)
        cuda_driver.copy_to_host(out, address, self._stream)
        return out


class Direct:
    """The three handlers of a plain convolution, on one stream, for one thread."""

    def __init__(self, case: Case, seed: int, platform: str, stream: int | None) -> None:
        self.name = f"handlers {case.id}"
        arrays = dict(zip(("x", "w", "dy"), arrays_of(case, seed), strict=True))
        truth = float64.passes(case, *arrays.values())
        keywords: dict[str, Any] = {
            "strides": case.stride,
            "padding": [(p, p) for p in case.padding],
            "dilation": case.dilation,
            "groups": case.groups,
            "dimension_numbers": dimension_numbers(case.ndim, "NHWC"),
        }
        maps = {
            "x w": lambda x, w: jax_convgrad.conv_fprop(x, w, **keywords),
            "dy w": lambda dy, w: jax_convgrad.conv_dgrad(dy, w, case.x_shape, **keywords),
            "x dy": lambda x, dy: jax_convgrad.conv_wgrad(x, dy, case.w_shape, **keywords),
        }
        registry.require(platform)
        module = registry.cuda_module() if platform == "cuda" else registry._import_cpu()
        assert module is not None
        self._memory = Memory(platform, stream)
        self._made: list[Any] = []
        self._results = []
        for names, f in maps.items():
            operands = [arrays[name] for name in names.split()]
            call = ffi_caller.recorded(f, *operands, platform=platform)
            addresses = [
                self._memory.place(array.to_memory(operand))
                for array, operand in zip(call.operands, operands, strict=True)
            ]
            result, *others = (
                np.empty([a.shape[axis] for axis in a.order], jnp.dtype(a.dtype))
                for a in call.results
            )
            addresses += [self._memory.place(array) for array in (result, *others)]
            self._made.append((module.handlers()[call.target], call, addresses, stream))
            self._results.append((addresses[2], result, call.results[0]))
        self.lower()
        for key, got in zip(RESULTS, self.results(), strict=True):
            check(case, key, got, truth[key])
        self.expected = self.bits()

    def lower(self) -> None:
        """The calls as they are lowered now, after plans were cleared."""
        self._calls = []
        for stages, call, addresses, stream in self._made:
            attributes = dict(call.attributes)
            if "generation" in attributes:
                attributes |= settings.current().attributes
            call = dataclasses.replace(call, attributes=attributes)
            self._calls.append(ffi_caller.Call(stages, call, addresses, stream))

    def results(self) -> list[np.ndarray]:
        for address, like, _ in self._results:
            self._memory.spoil(address, like)
        for call in self._calls:
            call.run(ffi_caller.INITIALIZE)
        for call in self._calls:
            call.run(ffi_caller.EXECUTE)
        return [
            array.from_memory(self._memory.read(address, like))
            for address, like, array in self._results
        ]

    def bits(self) -> list[bytes]:
        return [result.tobytes() for result in self.results()]


@dataclasses.dataclass
class Reading:
    """Bytes in use while nothing runs."""

    seconds: float
    calls: int
    device: int
    arrays: int
    host: int


class Run:
    """The threads and their results."""

    def __init__(self, platform: str, jobs: list[list[Any]], seconds: float) -> None:
        self.readings: list[Reading] = []
        self.failures: list[str] = []
        self.calls: list[dict[str, int]] = [{} for _ in jobs]
        self._platform, self._jobs, self._seconds = platform, jobs, seconds
        # A thread that does not arrive within two minutes hangs, and breaks the barrier.
        self._halt = threading.Barrier(len(jobs), self._read, timeout=120 + seconds / READINGS)
        self._begin = threading.Barrier(len(jobs), self._start, timeout=300)

    def __call__(self) -> None:
        threads = [
            threading.Thread(target=self._work, args=(i,), daemon=True)
            for i in range(len(self._jobs))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self._seconds + 600)
        if any(thread.is_alive() for thread in threads):
            self.failures.append("a thread hangs")

    def _work(self, index: int) -> None:
        try:
            if self._platform == "cuda":
                cuda_driver.use()
            counts = self.calls[index]

            def check(job: Any) -> None:
                wrong = job.bits() != job.expected
                counts[job.name] = counts.get(job.name, 0) + 1
                if wrong:
                    self.failures.append(f"thread {index}: {job.name}: other bits")

            # All at once, and before the first memory reading: they search, and JAX compiles.
            for job in self._jobs[index]:
                check(job)
            self._begin.wait()
            jobs = itertools.cycle(self._jobs[index])
            for reading in range(1, READINGS + 1):
                until = self._started + self._seconds * reading / READINGS
                while True:
                    check(next(jobs))
                    if time.monotonic() >= until:
                        break
                self._halt.wait()
        except BaseException as error:
            self.failures.append(f"thread {index}: {type(error).__name__}: {str(error)[:500]}")
            self._begin.abort()
            self._halt.abort()

    def _start(self) -> None:
        self._started = time.monotonic()

    def _read(self) -> None:
        gc.collect()
        statistics_of = jax.devices()[0].memory_stats() or {}
        device = 0
        if self._platform == "cuda":
            free, total = cuda_driver.memory()
            device = total - free
        self.readings.append(
            Reading(
                time.monotonic() - self._started,
                sum(sum(counts.values()) for counts in self.calls),
                device,
                statistics_of.get("bytes_in_use", 0),
                resident_bytes(),
            )
        )


def growth(readings: Sequence[Reading], field: str) -> float:
    """Bytes by which a field grew from each third of the readings to the next; the smaller of the two.

    The median represents a third.
    """
    third = len(readings) // 3
    first, second, last = (
        statistics.median(getattr(reading, field) for reading in part)
        for part in (readings[:third], readings[third:-third], readings[-third:])
    )
    return min(second - first, last - second)


def report(run: Run, arguments: argparse.Namespace, platform: str, streams: int) -> str:
    """Markdown; ends with the verdict."""
    first, last = run.readings[0], run.readings[-1]
    calls = sum(sum(counts.values()) for counts in run.calls)
    jitted = sum(n for counts in run.calls for name, n in counts.items() if name.startswith("jit"))
    lines = [
        "# Threads and streams",
        "",
        f"`python benchmarks/stress_threads.py --seconds {arguments.seconds:g}` on "
        f"{jax.devices()[0].device_kind}, jax {jax.__version__}: {len(run.calls)} threads, {streams} "
        f"streams beside JAX's own, {last.seconds:.0f} s, {calls} calls: {jitted} layers with their "
        f"gradients through JAX and {calls - jitted} times three handlers on those streams, every "
        "result compared bit for bit.",
        "",
        f"Failures: {len(run.failures)}",
        "",
        "| bytes in use | first reading | last reading | growth from each third to the next, at least |",
        "|---|---|---|---|",
    ]
    for field, name in (
        ("device", "device, all processes"),
        ("arrays", "JAX's allocator"),
        ("host", "process, resident"),
    ):
        grown = growth(run.readings, field)
        lines.append(f"| {name} | {getattr(first, field)} | {getattr(last, field)} | {grown:.0f} |")
    plans_used = plans.list()
    lines += ["", f"Plans in use at the end: {len(plans_used)}", ""]
    lines += [f"* {failure}" for failure in run.failures[:20]]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--markdown", metavar="OUT", type=pathlib.Path)
    parser.add_argument(
        "--json", metavar="OUT", type=pathlib.Path, help="write all readings as JSON"
    )
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    platform = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
    if (reason := registry.require(platform).reason) is not None:
        sys.exit(f"stress_threads: {reason}")
    dtypes = registry.require(platform).dtypes
    cases = [case for case in CASES if DTYPES[case.dtype] in dtypes]
    streams: list[int | None] = [None]
    if platform == "cuda":
        cuda_driver.use()
        streams = [cuda_driver.create_stream() for _ in range(arguments.streams)]
    jax_convgrad.set_deterministic(True)
    with override_backend("cudnn" if platform == "cuda" else "onednn"):
        layers = [Layer(case, seed) for seed, case in enumerate(cases)]
        plain = [case for case in cases if not case.transposed]
        jobs: list[list[Any]] = []
        for i in range(arguments.threads):
            own: list[Any] = []
            for j, layer in enumerate(layers[i % len(layers) :] + layers[: i % len(layers)]):
                case = plain[(i + j) % len(plain)]
                known = next((job for job in own if job.name == f"handlers {case.id}"), None)
                own += [layer, known or Direct(case, i, platform, streams[i % len(streams)])]
            jobs.append(own)
        plans.clear()
        for own in jobs:
            for job in own:
                if isinstance(job, Direct):
                    job.lower()
        run = Run(platform, jobs, arguments.seconds)
        run()
    if len(run.readings) == READINGS:
        limits = {"device": DEVICE_SLACK, "arrays": 0, "host": HOST_SLACK}
        run.failures += [
            f"leak: {field} grew by {growth(run.readings, field):.0f} bytes"
            for field, limit in limits.items()
            if growth(run.readings, field) > limit
        ]
    text = report(run, arguments, platform, len(streams) if platform == "cuda" else 0)
    verdict = "passed" if not run.failures and len(run.readings) == READINGS else "FAILED"
    text += f"\nVerdict: {verdict}\n"
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)
    if arguments.json:
        content = {
            "readings": [dataclasses.asdict(reading) for reading in run.readings],
            "calls": run.calls,
            "failures": run.failures,
        }
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    sys.exit(verdict != "passed")


if __name__ == "__main__":
    main()

"""The host time of one call of a convolution handler, without its kernels.

    python benchmarks/handler_host_time.py cpu --module NEW=PATH/_cpu.so [--module OLD=...] --json OUT
    python benchmarks/handler_host_time.py cuda --module NEW=PATH/_cuda.so [--module OLD=...] --json OUT

Each module is a build of the package's extension, named by its commit. The builds are measured
in one process, in turns, so that an old and a new one see the same machine. Nothing else of the package
is used, and of JAX only its headers: `ffi_caller.cc` calls the handlers through XLA's C API, in one
thread.

CPU: in the case "no kernel" every window reads only padding. The handlers then write zeros without a
kernel, so its time is what a call costs outside of a kernel. Each other case runs the smallest possible
kernel, and its time includes that kernel. CUDA: the time until Execute returns, without waiting for the
stream. This includes the host work of the CUDA runtime and cuDNN for launching one kernel. ``--cudnn`` opens
another libcudnn, such as tests/cpp/fake_cudnn.cc built as a library, which does nothing: then only the
handler's own time and its calls of the CUDA runtime remain.

"empty handler" returns at once: it shows the cost of the measurement itself.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import ffi_caller
import numpy as np

RUNS = {"cpu": 500, "cuda": 100}  # in each measurement: a stream takes about a thousand launches
WORKSPACE = 1 << 20
ROLES = {"fprop": ("x", "w", "y"), "dgrad": ("y", "w", "x"), "wgrad": ("x", "y", "w")}
ITEMSIZE = {"float32": 4, "bfloat16": 2, "uint8": 1}


@dataclasses.dataclass(frozen=True)
class Case:
    """A two-dimensional convolution; shapes in canonical order."""

    name: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    padding: int = 1
    groups: int = 1
    dtype: str = "float32"
    stride: int = 1

    def shape(self, role: str) -> tuple[int, ...]:
        if role != "y":
            return self.x if role == "x" else self.w
        sizes = zip(self.x[2:], self.w[2:], strict=True)
        return (
            self.x[0],
            self.w[0],
            *((n + 2 * self.padding - k) // self.stride + 1 for n, k in sizes),
        )

    def call(self, operator: str, platform: str) -> ffi_caller.Recorded:
        def array(role: str) -> ffi_caller.Array:
            # Channels last in memory.
            return ffi_caller.Array(self.shape(role), self.dtype, (0, 2, 3, 1))

        roles = ROLES[operator]
        results = [array(roles[2])]
        spec = np.arange(4)
        attributes: dict[str, Any] = {
            "strides": np.full(2, self.stride),
            "padding_low": np.full(2, self.padding),
            "padding_high": np.full(2, self.padding),
            "dilation": np.ones(2, np.int64),
            "groups": np.int64(self.groups),
            "x_spec": spec,
            "w_spec": spec,
            "y_spec": spec,
        }
        if platform == "cuda":
            results.append(ffi_caller.Array((WORKSPACE,), "uint8", (0,)))
            attributes |= {"allow_tf32": np.bool_(True), "deterministic": np.bool_(False)}
            attributes |= {"search": "heuristic", "generation": np.int64(0), "weights": "OXI"}
        target = f"jax_convgrad_conv_{operator}"
        return ffi_caller.Recorded(target, tuple(map(array, roles[:2])), tuple(results), attributes)


CASES = {
    "cpu": (
        # One row of input far away from every window's taps.
        Case("no kernel", (1, 16, 1, 1), (16, 16, 1, 1), padding=2, stride=5),
        Case("direct", (1, 1, 2, 2), (1, 1, 1, 1), padding=0),
        Case("thin", (1, 4, 4, 4), (4, 4, 3, 3)),
        Case("depthwise", (1, 16, 2, 2), (16, 1, 3, 3), groups=16),
        Case("oneDNN", (1, 128, 1, 1), (128, 128, 1, 1), padding=0),
    ),
    "cuda": (
        Case("cuDNN", (1, 16, 8, 8), (16, 16, 3, 3), dtype="bfloat16"),
        Case("own depthwise", (1, 32, 8, 8), (32, 1, 3, 3), groups=32, dtype="bfloat16"),
    ),
}


class Memory:
    """Arrays of one platform, zeros, kept until the end; and how to wait for the device."""

    def __init__(self, platform: str) -> None:
        self._kept: list[np.ndarray] = []
        self.stream: int | None = None
        if platform == "cpu":
            self._driver: ctypes.CDLL | None = None
            return
        self._driver = driver = ctypes.CDLL("libcuda.so.1")
        context, stream = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(driver.cuInit(0))
        self._check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        self._check(driver.cuCtxSetCurrent(context))
        self._check(driver.cuStreamCreate(ctypes.byref(stream), 1))
        self.stream = stream.value

    @staticmethod
    def _check(status: int) -> None:
        if status != 0:
            raise RuntimeError(f"CUDA's driver: error {status}")

    def address(self, array: ffi_caller.Array) -> int:
        count = max(1, int(np.prod(array.shape))) * ITEMSIZE[array.dtype]
        if self._driver is None:
            self._kept.append(np.zeros(count + 64, np.uint8))
            return self._kept[-1].ctypes.data + -self._kept[-1].ctypes.data % 64
        address = ctypes.c_uint64()
        self._check(self._driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(count)))
        self._check(self._driver.cuMemsetD8_v2(address, 0, ctypes.c_size_t(count)))
        return address.value

    def wait(self) -> None:
        if self._driver is not None:
            self._check(self._driver.cuStreamSynchronize(ctypes.c_void_p(self.stream)))

    def device(self) -> str:
        if self._driver is None:
            lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
            return next(line.split(":")[1].strip() for line in lines if "model name" in line)
        name = ctypes.create_string_buffer(256)
        self._check(self._driver.cuDeviceGetName(name, 256, 0))
        return name.value.decode()


def load(platform: str, path: str) -> ModuleType:
    name = f"_{platform}"
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def installed(distribution: str, name: str) -> str | None:
    """Where an installed distribution has its file of that name."""
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((str(file.locate()) for file in files if file.name == name), None)


def prepare(platform: str, cudnn: str | None) -> Callable[[ModuleType], None]:
    """Loads what the modules need; the result tells a module of it."""
    if platform == "cpu":
        if (library := installed("onednn-cpu-gomp", "libdnnl.so.3")) is not None:
            ctypes.CDLL(library)
        return lambda module: None
    candidates = [cudnn] if cudnn is not None else ["nvidia-cudnn-cu13", "nvidia-cudnn-cu12"]
    paths = [name if cudnn else installed(name, "libcudnn.so.9") for name in candidates]
    path = next((path for path in paths if path), None)
    return lambda module: module.set_cudnn_path(path) if path else None


def measure(
    platform: str, modules: dict[str, ModuleType], memory: Memory, rounds: int
) -> list[dict[str, Any]]:
    calls: dict[tuple[str, str, str, str], tuple[ffi_caller.Call, int]] = {}
    stages = {"execute": ffi_caller.EXECUTE}
    if platform == "cuda":
        stages["initialize"] = ffi_caller.INITIALIZE
    for case in CASES[platform]:
        for operator in ROLES:
            described = case.call(operator, platform)
            addresses = [memory.address(a) for a in (*described.operands, *described.results)]
            for label, module in modules.items():
                handler = module.handlers()[described.target]
                call = ffi_caller.Call(handler, described, addresses, memory.stream)
                call.run(ffi_caller.INITIALIZE)
                call.run()
                for stage, number in stages.items():
                    calls[case.name, operator, stage, label] = call, number
    times: dict[tuple[str, str, str, str], list[float]] = {key: [] for key in calls}
    empty: list[float] = []
    any_call = next(iter(calls.values()))[0]
    for _ in range(rounds):
        empty.append(1e6 * any_call.empty_seconds(RUNS[platform]))
        for key, (call, number) in calls.items():
            memory.wait()
            times[key].append(1e6 * call.seconds(RUNS[platform], number))
    rows: list[dict[str, Any]] = [{"case": "empty handler", "microseconds": summary(empty)}]
    for key in calls:
        case_name, operator, stage, label = key
        row = {"case": case_name, "operator": operator, "stage": stage, "module": label}
        rows.append({**row, "microseconds": summary(times[key])})
    return rows


def summary(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "minimum": round(min(values), 3),
        "maximum": round(max(values), 3),
    }


def commit() -> str:
    command = ["git", "-C", str(pathlib.Path(__file__).parent), "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("platform", choices=["cpu", "cuda"])
    parser.add_argument("--module", action="append", required=True, metavar="COMMIT=PATH")
    parser.add_argument("--cudnn", help="the libcudnn.so.9 to open")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()

    memory = Memory(arguments.platform)
    tell = prepare(arguments.platform, arguments.cudnn)
    modules = {}
    for entry in arguments.module:
        label, path = entry.split("=", 1)
        modules[label] = load(arguments.platform, str(pathlib.Path(path).resolve()))
        tell(modules[label])
    rows = measure(arguments.platform, modules, memory, arguments.rounds)
    versions = {label: dict(module.versions()) for label, module in modules.items()}
    result = {
        "command": " ".join(["python", "benchmarks/handler_host_time.py", *sys.argv[1:]]),
        "commit": commit(),
        "device": memory.device(),
        "python": sys.version.split()[0],
        "jaxlib headers": importlib.metadata.version("jaxlib"),
        "versions": versions,
        "runs": RUNS[arguments.platform],
        "rounds": arguments.rounds,
        "rows": rows,
    }
    for row in rows:
        times = row["microseconds"]
        names = [row.get(k, "") for k in ("case", "operator", "stage", "module")]
        print(
            f"{names[0]:14} {names[1]:6} {names[2]:11} {names[3]:12} "
            f"median {times['median']:8.3f} us, minimum {times['minimum']:8.3f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

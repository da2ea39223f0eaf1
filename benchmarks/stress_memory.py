"""Layers on a device whose memory is nearly full.

    python benchmarks/stress_memory.py --seconds 200 --markdown OUT.md

Each line of the report is a separate process, which

1. puts a layer's arrays on the device and compiles the forward pass and both gradients;
2. takes the device's memory as other programs would (cuMemAlloc), except for a given remainder;
3. runs the program, in which the handlers first search for engines: the result must be right, or the
   error must say RESOURCE_EXHAUSTED and how many bytes were available or needed;
4. gives the memory back and runs again: the result must be right, and the operands untouched.

The remainders: "plenty" is room for everything, as a control. "no scratch" has room for the program (results
and workspaces) but not for the arrays on which engines are timed, so the program must run. "half" has
room for half of what the program needs, "nothing" for a megabyte. "no workspace" lowers the program
under `set_workspace_limit(0)` and has room for that: it runs on engines that need none, or says what
would suffice. "compiled late" takes the memory before the compilation, and leaves room for it.
Lines that name plain lax do the same with lax, for comparison. XLA's memory pool is off, so that its
allocations are the device's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

MEBIBYTE = 2**20
TIMEOUT = 120
# What the driver needs while a program runs: loaded kernels, a captured graph.
ROOM = 96 * MEBIBYTE


def _up(
    dtype: str, n: int, cin: int, size: int, cout: int, k: int, s: int, p: int
) -> dict[str, Any]:
    sizes = {"n": n, "cin": cin, "sp": [size, size], "cout": cout, "k": k, "s": s, "p": p}
    return {"kind": "convt", "dt": dtype, **sizes}


# Engines need memory for copies in another order, copies with more channels, and partial sums. In each
# case the arrays on which engines would be timed are larger than ROOM.
LAYERS = {
    "convt f64": _up("f64", 32, 128, 32, 64, 4, 2, 1),
    "convt 21 channels bf16": _up("bf16", 8, 21, 64, 21, 16, 8, 4),
    "convt bf16": _up("bf16", 32, 128, 64, 64, 4, 2, 1),
}


@dataclasses.dataclass(frozen=True)
class Trial:
    layer: str
    rest: str
    layers: str = "ours"


TRIALS = [
    *(
        Trial(layer, rest)
        for rest in (
            "no scratch",
            "half",
            "no workspace",
            "nothing",
            "compiled late",
            "plenty",
        )
        for layer in LAYERS
    ),
    *(Trial("convt bf16", rest, "lax") for rest in ("half", "nothing")),
]


def case_of(layer: str) -> Any:
    from jax_convgrad.bench.case_files import parse_case

    return parse_case({"name": layer.replace(" ", "_"), **LAYERS[layer]})


def write_truth(layer: str, path: str) -> None:
    """The right results, computed once for all trials of a layer."""
    from layers import arrays_of

    from jax_convgrad.bench import float64

    case = case_of(layer)
    truth = float64.passes(case, *arrays_of(case, 1))
    np.savez(path, y=truth["y"], dx=truth["dx"], dw=truth["dw"])


# --- One trial ------------------------------------------------------------------------------------


class Filler:
    """Takes device memory until a given remainder is free, and gives it back."""

    def __init__(self) -> None:
        from jax_convgrad._src.timing import cuda_driver

        self._driver = cuda_driver
        self._taken: list[int] = []
        cuda_driver.use()

    def take(self, rest: int) -> int:
        """Returns the number of free bytes afterwards."""
        size = 2**40
        while size >= MEBIBYTE:
            room = self._driver.memory()[0] - rest
            size = min(size, room // MEBIBYTE * MEBIBYTE)
            if size < MEBIBYTE:
                break
            try:
                self._taken.append(self._driver.allocate(size))
            except self._driver.CudaError:
                size //= 2
        return self._driver.memory()[0]

    def give_back(self) -> None:
        while self._taken:
            self._driver.free(self._taken.pop())


def attempt(trial: Trial, truth_path: str) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    from layers import arrays_of, passes

    import jax_convgrad
    from jax_convgrad import plans
    from jax_convgrad._src.dispatch.override import override_backend
    from jax_convgrad.bench.cases import DTYPES

    jax.config.update("jax_enable_x64", True)
    case = case_of(trial.layer)
    arrays = arrays_of(case, 1)
    eps = {"f64": 1e-12}.get(case.dtype) or float(jnp.finfo(DTYPES[case.dtype]).eps)
    with np.load(truth_path) as file:
        truth = {key: file[key] for key in file.files}
    x, w, dy = jax.block_until_ready([jnp.asarray(array) for array in arrays])
    # Starts the library, as any program does.
    jax.block_until_ready(jnp.dot(w.reshape(-1, w.shape[-1]).T, w.reshape(-1, w.shape[-1])))
    run = passes(case, jax.lax if trial.layers == "lax" else jax_convgrad)
    if trial.rest == "no workspace":
        jax_convgrad.set_workspace_limit(0)

    def compile_() -> Any:
        with override_backend("cudnn" if jax.default_backend() == "gpu" else None):
            return jax.jit(run).lower(x, w, dy).compile()

    def outcome_of(program: Any) -> str:
        try:
            results = [np.asarray(result).astype(np.float64) for result in program(x, w, dy)]
        except Exception as error:
            return describe(error)
        for key, got in zip(truth, results, strict=True):
            difference = np.linalg.norm(got - truth[key]) / np.linalg.norm(truth[key])
            if not difference <= eps:
                return f"WRONG {key}: error {difference:.3g}"
        return "right"

    program = compile_()
    sizes = program.memory_analysis()
    found: dict[str, Any] = {"needs": sizes.output_size_in_bytes + sizes.temp_size_in_bytes}
    rests = {
        "plenty": 40 * 2**30,
        "no scratch": found["needs"] + ROOM,
        "no workspace": found["needs"] + ROOM,
        "half": found["needs"] // 2,
        "nothing": MEBIBYTE,
        "compiled late": found["needs"] + 4 * ROOM,
    }
    if trial.rest == "compiled late":
        program = None
        jax.clear_caches()
    filler = Filler() if jax.default_backend() == "gpu" else None
    if filler is not None:
        found["free"] = filler.take(rests[trial.rest])
    try:
        program = compile_() if program is None else program
        found["outcome"] = outcome_of(program)
    except Exception as error:
        found["outcome"] = describe(error)
    found["plans"] = [
        {key: plan[key] for key in ("engine", "workspace_bytes", "chosen_by", "note")}
        for plan in plans.list()
    ]
    if filler is not None:
        filler.give_back()
    found["afterwards"] = outcome_of(compile_() if program is None else program)
    same = all(
        np.asarray(a).tobytes() == b.tobytes() for a, b in zip((x, w, dy), arrays, strict=True)
    )
    found["operands"] = "untouched" if same else "CHANGED"
    return found


def describe(error: Exception) -> str:
    text = " ".join(str(error).split())
    sized = re.search(r"\d+(\.\d+)?\s?([KMGT]i?B|bytes|B\b)", text)
    kind = "exhausted" if "RESOURCE_EXHAUSTED" in text and sized else "other error"
    return f"{kind}: {type(error).__name__}: {text[:400]}"


# --- All of them ----------------------------------------------------------------------------------


def in_process(trial: Trial, truth_path: str) -> dict[str, Any]:
    command = [
        sys.executable,
        __file__,
        "--trial",
        json.dumps(dataclasses.asdict(trial)),
        truth_path,
    ]
    environment = os.environ | {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "XLA_PYTHON_CLIENT_ALLOCATOR": "platform",
    }
    started = time.monotonic()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return {"outcome": f"HANGS: no end within {TIMEOUT} s"}
    if done.returncode != 0:
        last = " ".join(done.stderr.strip().splitlines()[-3:])
        return {"outcome": f"DIES: exit status {done.returncode}: {last[-400:]}"}
    found = json.loads(done.stdout.splitlines()[-1])
    return found | {"seconds": time.monotonic() - started}


def fault(trial: Trial, found: dict[str, Any]) -> str | None:
    """What is wrong with the result of a trial, None if nothing is."""
    outcome = found["outcome"]
    kind = outcome.partition(":")[0]
    if kind not in ("right", "exhausted"):
        return outcome
    if trial.rest in ("plenty", "no scratch") and kind != "right":
        return f"there was room for the program: {outcome}"
    if found["afterwards"] != "right":
        return f"afterwards: {found['afterwards']}"
    return None if found["operands"] == "untouched" else "the operands changed"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="start no trial after this many seconds"
    )
    parser.add_argument("--markdown", metavar="OUT", type=pathlib.Path)
    parser.add_argument("--json", metavar="OUT", type=pathlib.Path)
    parser.add_argument("--trial", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.trial:
        print(json.dumps(attempt(Trial(**json.loads(arguments.trial[0])), arguments.trial[1])))
        return
    started = time.monotonic()
    rows, faults, left_out = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        truths: dict[str, str] = {}
        for trial in TRIALS:
            if time.monotonic() - started > arguments.seconds:
                left_out += 1
                continue
            if trial.layer not in truths:
                truths[trial.layer] = f"{folder}/{len(truths)}.npz"
                write_truth(trial.layer, truths[trial.layer])
            found = in_process(trial, truths[trial.layer])
            rows.append(dataclasses.asdict(trial) | found)
            wrong = fault(trial, found)
            if wrong is not None and trial.layers == "ours":
                faults.append(f"{trial.layer}, {trial.rest}: {wrong}")
            print(trial, "fault" if wrong else "fine", found, flush=True)
    text = report(rows, faults, left_out)
    print("\n" + text)
    if arguments.markdown:
        arguments.markdown.write_text(text)
    if arguments.json:
        arguments.json.write_text(json.dumps({"trials": rows, "faults": faults}, indent=1) + "\n")
    sys.exit(bool(faults))


def report(rows: list[dict[str, Any]], faults: list[str], left_out: int) -> str:
    lines = [
        "# With the device's memory nearly full",
        "",
        "`python benchmarks/stress_memory.py`: see there what the columns mean. Sizes in MiB.",
        "",
        "| layer | layers of | rest | program needs | free | outcome | engines chosen by | afterwards |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        used = row.get("plans", [])
        chosen = "; ".join(
            f"{plan['chosen_by']}{' (' + plan['note'] + ')' if plan['note'] else ''}"
            for plan in used
        )
        sizes = [f"{row[key] / MEBIBYTE:.0f}" if key in row else "-" for key in ("needs", "free")]
        cells = [row["layer"], row["layers"], row["rest"], *sizes, row["outcome"], chosen or "-"]
        cells.append(row.get("afterwards", "-"))
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    lines += ["", f"Faults: {len(faults)}; trials left out for lack of time: {left_out}", ""]
    lines += [f"* {text}" for text in faults]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

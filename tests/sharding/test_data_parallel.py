"""The training examples on several devices and in several processes: what they compute on one device."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.meshes import need_devices

EXAMPLES = Path(__file__).parents[2] / "examples"


@dataclasses.dataclass(frozen=True)
class Example:
    """A program, what makes it small, and what its files are called."""

    program: str
    small: tuple[str, ...]
    losses: str
    summary: str


SUPERRES = Example(
    "train_superres.py",
    ("--steps", "8", "--patch", "8", "--width", "8", "--blocks", "1"),
    "losses.json",
    "summary.json",
)
# Few steps: each network learns from the other.
GAN = Example(
    "train_gan.py", ("--steps", "3", "--size", "8", "--width", "8"), "gan_losses.json", "gan.json"
)
PATIENCE = 300  # seconds
# A mean of some thousand numbers in float32, added up in another order, and what eight steps of Adam
# make of it: it divides by the gradients' size, small ones included.
ROUNDING = 1e-5


def start(
    command: list[str],
    out: Path,
    *arguments: str,
    example: Example = SUPERRES,
    devices: int = 1,
    **variables: str,
) -> subprocess.Popen[str]:
    """An example as a program of its own, which sees so many virtual CPU devices."""
    environment = {k: v for k, v in os.environ.items() if k != "JAX_ENABLE_X64"}
    environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    environment["PYTHONFAULTHANDLER"] = "1"
    environment |= {"JAX_PLATFORMS": "cpu", "JAX_CONVGRAD_REQUIRE_CUDA": "0", **variables}
    return subprocess.Popen(
        [
            *(*command, str(EXAMPLES / example.program)),
            *("--layers", "ours", "--rounds", "1", "--batch", "8", *example.small),
            *(*arguments, "--out", str(out)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


def finish(*programs: subprocess.Popen[str]) -> list[str]:
    """What they printed. None is left running, whatever happens."""
    try:
        printed = [program.communicate(timeout=PATIENCE)[0] for program in programs]
    finally:
        for program in programs:
            program.kill()
    failures = [
        f"program {index} ended with {program.returncode}:\n{text[-4000:]}"
        for index, (program, text) in enumerate(zip(programs, printed, strict=True))
        if program.returncode
    ]
    if failures:
        pytest.fail("\n".join(failures))
    return printed


def needs_packages() -> None:
    for module in ("sklearn", "matplotlib", "tqdm"):
        pytest.importorskip(module)


def losses(out: Path, example: Example = SUPERRES) -> np.ndarray:
    """Of each step; a row for each loss where there are several."""
    found = json.loads((out / example.losses).read_text())
    return np.array(list(found.values()) if isinstance(found, dict) else found)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Example], np.ndarray]:
    """The losses on one device."""

    @functools.cache
    def run(example: Example) -> np.ndarray:
        needs_packages()
        out = tmp_path_factory.mktemp("alone")
        finish(start([sys.executable], out, example=example))
        return losses(out, example)

    return run


def test_devices_of_one_process(alone: Any, tmp_path: Path, subprocess_python: list[str]) -> None:
    expected = alone(SUPERRES)
    (printed,) = finish(start(subprocess_python, tmp_path, "--devices", "4", devices=4))
    assert "4 devices of 1 process" in printed
    np.testing.assert_allclose(losses(tmp_path), expected, rtol=ROUNDING)
    assert len(set(expected)) == len(expected) == 8
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["devices"], summary["processes"]) == (4, 1)


def of_options(address: str, process: int) -> tuple[list[str], dict[str, str]]:
    """Arguments and variables of one of two processes that are told where to meet."""
    return ["--coordinator", address, "--processes", "2", "--process", str(process)], {}


def of_launcher(address: str, process: int) -> tuple[list[str], dict[str, str]]:
    """The same, when something that JAX knows has started them: here as Open MPI does it."""
    return ["--distributed"], {
        "OMPI_MCA_orte_hnp_uri": "1.0;tcp://127.0.0.1:1",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_RANK": str(process),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(process),
        "JAX_COORDINATOR_ADDRESS": address,
    }


@pytest.mark.parametrize(
    ("example", "meeting"),
    [(SUPERRES, of_launcher), (GAN, of_options)],
    ids=["superres-of_launcher", "gan-of_options"],
)
def test_two_processes(
    example: Example, meeting: Any, alone: Any, tmp_path: Path, subprocess_python: list[str]
) -> None:
    """Two devices each: sums within a process and between processes."""
    expected = alone(example)
    assert expected.shape[-1] == int(example.small[1]) and np.isfinite(expected).all()
    outs = [tmp_path / "0", tmp_path / "1"]

    def run() -> list[str]:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{found.getsockname()[1]}"
        programs = []
        for index, out in enumerate(outs):
            arguments, variables = meeting(address, index)
            command = [*arguments, "--devices", "2"]
            programs.append(
                start(subprocess_python, out, *command, example=example, devices=2, **variables)
            )
        return finish(*programs)

    try:
        printed = run()
    except pytest.fail.Exception as failure:
        # Seen once, with jax 0.12.0.1, and never in 450 tries to see it again: process 0, which JAX's
        # processes meet at, aborts after process 1 has left. A second time in a row is a failure.
        if f"ended with {-signal.SIGABRT}" not in str(failure):
            raise
        warnings.warn(f"a second try, since {failure}", stacklevel=1)
        printed = run()
    np.testing.assert_allclose(losses(outs[0], example), expected, rtol=ROUNDING)
    summary = json.loads((outs[0] / example.summary).read_text())
    assert (summary["devices"], summary["processes"]) == (4, 2)
    # One process speaks for both.
    assert "4 devices of 2 processes" in printed[0] and "parameters" not in printed[1]
    assert not outs[1].exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--devices", "3"), "--devices must be between 1 and 2"),
        (("--devices", "2", "--batch", "7"), "--batch must divide among 2 devices, got 7"),
        (("--process", "0"), "--coordinator, --processes and --process go together"),
    ],
    ids=["too many", "does not divide", "incomplete"],
)
def test_what_makes_no_sense_is_refused(
    arguments: tuple[str, ...], text: str, tmp_path: Path, subprocess_python: list[str]
) -> None:
    needs_packages()
    program = start(subprocess_python, tmp_path / "out", *arguments, devices=2)
    assert text in program.communicate(timeout=PATIENCE)[0]
    assert program.returncode == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("layers", ["ours", "lax"])
@pytest.mark.parametrize("devices", [2, 4, 8])
def test_a_step_in_float64(
    devices: int, layers: str, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """Losses, gradients and parameters of some steps: in float64 nothing but rounding can differ."""
    need_devices(devices)
    needs_packages()
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import train_superres
    import training
    from data_parallel import DataParallel

    model = train_superres.make_model(training.LAYERS[layers], "plain", "conv_transpose", 1)
    params = train_superres.init_params(rng, "plain", "conv_transpose", 1, 4)
    params = {name: jnp.asarray(value, jnp.float64) for name, value in params.items()}
    batches = [(rng.random((8, 6, 6, 3)), rng.random((8, 12, 12, 3))) for _ in range(5)]

    def run(count: int) -> tuple[list[float], Any]:
        parallel = DataParallel(count)
        step = parallel.jit(train_superres.make_step(model, 2e-3, 100))
        state, found = parallel.replicate(training.init_adam(params)), []
        for batch in batches:
            low, high = parallel.divide(*batch)
            assert {shard.data.shape[0] for shard in low.addressable_shards} == {8 // count}
            state, loss = step(state, low, high)
            found.append(float(loss))
        assert all(len(leaf.sharding.device_set) == count for leaf in jax.tree.leaves(state))
        assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(state))
        return found, jax.device_get(state)

    (expected_losses, expected), (found_losses, found) = run(1), run(devices)
    np.testing.assert_allclose(found_losses, expected_losses, rtol=1e-12)
    for part in ("params", "mean", "square"):
        for name, value in getattr(expected, part).items():
            scale = np.abs(value).max()
            difference = np.abs(getattr(found, part)[name] - value).max()
            assert difference <= 1e-10 * scale, (part, name)

"""The training examples, run as a user runs them, for a few steps."""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(command: list[str], example: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    # The example must not depend on what the tests set up for themselves.
    ours = ("XLA_FLAGS", "JAX_ENABLE_X64", "JAX_DISABLE_MOST_OPTIMIZATIONS")
    environment = {k: v for k, v in os.environ.items() if k not in ours}
    # In TF32, which is a GPU's default, two right gradients differ by a thousandth.
    environment["JAX_DEFAULT_MATMUL_PRECISION"] = "highest"
    return subprocess.run(
        [*command, str(EXAMPLES / example), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=False,
    )


def picture_size(path: Path) -> tuple[int, ...]:
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", header[16:24])


@pytest.mark.parametrize("variant", [(), ("--body", "depthwise"), ("--up", "resize")], ids=" ".join)
def test_superres_trains_and_reports(
    variant: tuple[str, ...], tmp_path: Path, subprocess_python: list[str]
) -> None:
    for module in ("sklearn", "matplotlib", "tqdm"):
        pytest.importorskip(module)
    out = tmp_path / "run"
    small = ["--steps", "24", "--batch", "4", "--patch", "12", "--width", "8", "--blocks", "1"]
    done = run(
        subprocess_python, "train_superres.py", "--quick", *small, *variant, "--out", str(out)
    )
    assert done.returncode == 0, done.stderr
    assert "training:" in done.stderr and "loss " in done.stderr  # the progress bar
    assert "held-out PSNR: bicubic" in done.stdout
    lines = done.stdout.splitlines()
    # What is trained, and then at once how fast.
    assert "parameters" in lines[0] and "x as fast as lax" in lines[1]

    summary = json.loads((out / "summary.json").read_text())
    # Against bicubic on the same patches, because some patches are harder than others.
    first = summary["loss_first"] / summary["bicubic_loss_first"]
    last = summary["loss_last"] / summary["bicubic_loss_last"]
    assert last < first
    figures = [v for v in summary.values() if isinstance(v, float)]
    figures += summary["step_seconds"].values()
    assert all(math.isfinite(value) for value in figures)
    assert set(summary["step_seconds"]) == {"jax_convgrad", "lax"}
    # The two compute the same step.
    assert summary["gradient_difference"] < 1e-4
    assert 20 < summary["psnr_bicubic"] < 35

    assert picture_size(out / "superres.png") == (1050, 1520)
    assert picture_size(out / "superres_losses.png") == (800, 420)


def test_superres_gives_the_same_result_for_the_same_seed(
    tmp_path: Path, subprocess_python: list[str]
) -> None:
    for module in ("sklearn", "matplotlib", "tqdm"):
        pytest.importorskip(module)
    small = ["--steps", "3", "--batch", "2", "--patch", "8", "--width", "4", "--blocks", "1"]
    small.append("--deterministic")
    summaries = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        done = run(
            subprocess_python,
            "train_superres.py",
            *(*small, "--rounds", "1", "--layers", "ours", "--out", str(folder)),
        )
        assert done.returncode == 0, done.stderr
        summary = json.loads((folder / "summary.json").read_text())
        summaries.append({k: summary[k] for k in ("loss_first", "loss_last", "psnr_model")})
    assert summaries[0] == summaries[1]


def test_gan_trains_and_reports(tmp_path: Path, subprocess_python: list[str]) -> None:
    for module in ("sklearn", "matplotlib", "tqdm"):
        pytest.importorskip(module)
    small = ["--steps", "400", "--batch", "16", "--size", "8", "--width", "16", "--rounds", "2"]
    done = run(subprocess_python, "train_gan.py", *small, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "training:" in done.stderr and "r1 " in done.stderr  # the progress bar
    assert "squared MMD (maximum mean discrepancy) from held-out digits: " in done.stdout
    assert "x as fast as lax" in done.stdout.splitlines()[1]

    summary = json.loads((tmp_path / "gan.json").read_text())
    figures = [v for v in summary.values() if isinstance(v, float)]
    assert all(math.isfinite(value) for value in figures)
    assert set(summary["step_seconds"]) == {"jax_convgrad", "lax"}
    assert summary["gradient_difference"] < 1e-4
    # It learns; and the estimate is unbiased, so that for two sets of real digits it is about zero.
    assert summary["distance_last"] < summary["distance_first"] / 4
    assert abs(summary["distance_real"]) < summary["distance_first"] / 20
    history = json.loads((tmp_path / "gan_losses.json").read_text())
    assert set(history) == {"discriminator", "generator", "r1", "path"}
    assert all(
        len(values) == 400 and all(map(math.isfinite, values)) for values in history.values()
    )

    # Ten rows: before, eight moments, and held-out digits.
    assert picture_size(tmp_path / "gan.png") == (1000, 62 * 10 + 60)
    assert picture_size(tmp_path / "gan_losses.png") == (800, 420)

"""Where, when and with which versions something was measured."""

from __future__ import annotations

import datetime
import os
import pathlib
import platform
import subprocess
import sys
from typing import Any

import jax

from jax_convgrad._src.timing.processors import cpu_model, cpu_threads

SCHEMA = 4


def device_name() -> str:
    """The device's name; for a CPU the processor's, which JAX does not know."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        kind: str = device.device_kind
        return kind
    return cpu_model()


def describe_device() -> str:
    """One line: the device and what ran on it."""
    where = device_name()
    if jax.default_backend() == "cpu":
        where += f", {cpu_threads()} threads"
    versions = [f"jax {jax.__version__}"]
    if "torch" in sys.modules:
        versions.append(f"torch {sys.modules['torch'].__version__}")
    text = f"{where}; {', '.join(versions)}; Python {platform.python_version()}"
    found = commit()
    if found is None:
        return text
    return f"{text}; commit {found[:12]}{'-dirty' if found.endswith('-dirty') else ''}"


def load_average() -> float | None:
    """How many programs wanted a processor during the last minute, where the system reports it."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def commit() -> str | None:
    """The value of JAX_CONVGRAD_COMMIT, or the commit of the checkout that the package is in.

    The latter with `-dirty` if files differ from it.
    """
    if said := os.environ.get("JAX_CONVGRAD_COMMIT"):
        return said
    folder = pathlib.Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def provenance(load_before: float | None) -> dict[str, Any]:
    """Where, when and with which versions something was measured."""
    import jax_convgrad

    return {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "device": {
            "platform": jax.default_backend(),
            "name": device_name(),
            "threads": cpu_threads() if jax.default_backend() == "cpu" else None,
            "load_before": load_before,
        },
        "info": jax_convgrad.info(),
    }

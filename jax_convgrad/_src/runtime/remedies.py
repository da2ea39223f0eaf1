"""The command that repairs missing handlers. Every message about them ends with it."""

from __future__ import annotations

import contextlib
import importlib.metadata

# MAJOR stands for CUDA's major version, that of the installed jaxlib.
_BUILD = {
    "cpu": 'pip install --force-reinstall --no-deps "."  # in a checkout of jax_convgrad',
    "cuda": 'JAX_CONVGRAD_CUDA=1 pip install ".[cudaMAJOR]"  # in a checkout of jax_convgrad',
}
_WHEEL = "pip install --force-reinstall --no-deps jax_convgrad-*.whl  # the wheel file"
# A part of the loader's message, and the command for it: the first that is found.
_COMMANDS = (
    ("libgomp.so", "apt install libgomp1"),
    # auditwheel puts a hash into the names of a wheel's own copies, which no other package has.
    ("libgomp-", _WHEEL),
    ("libdnnl-", _WHEEL),
    ("onednn-cpu-gomp", "pip install --force-reinstall onednn-cpu-gomp"),
    ("libdnnl", "pip install --force-reinstall onednn-cpu-gomp"),
    (
        "the NVIDIA driver supports",
        'JAX_CONVGRAD_CUDA=1 pip install ".[cuda12]"  # in a checkout, with a CUDA 12 toolkit',
    ),
    ("cudnn", "pip install --upgrade nvidia-cudnn-cuMAJOR"),
    ("compute capability", "export CUDA_VISIBLE_DEVICES=...  # the newer devices alone"),
    ("no CUDA device", 'pip install --upgrade "jax[cudaMAJOR]" && nvidia-smi'),
)


def command(platform: str, reason: str) -> str | None:
    """The command to type where a platform's handlers are missing for ``reason``; None where none helps."""
    if platform not in _BUILD or reason.startswith("no oneDNN for"):
        return None
    found = next((text for word, text in _COMMANDS if word in reason), _BUILD[platform])
    return found.replace("MAJOR", _cuda_major())


def _cuda_major() -> str:
    """The CUDA that JAX's plugin was built for; the newest that JAX offers where there is no plugin."""
    for major in ("13", "12"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version(f"jax-cuda{major}-plugin")
            return major
    return "13"


def with_command(platform: str, reason: str) -> str:
    """``reason``, followed by the command that repairs it."""
    text = command(platform, reason)
    return reason if text is None else f"{reason}. To fix this, run: {text}"

"""The command that repairs missing handlers. Every message about them ends with it."""

from __future__ import annotations

_BUILD = {
    "cpu": 'pip install --force-reinstall --no-deps "."  # in a checkout of jax_convgrad',
    "cuda": 'JAX_CONVGRAD_CUDA=1 pip install ".[cuda13]"  # in a checkout of jax_convgrad',
}
# A part of the loader's message, and the command for it.
_COMMANDS = (
    ("onednn-cpu-gomp", "pip install --force-reinstall onednn-cpu-gomp"),
    ("libdnnl", "pip install --force-reinstall onednn-cpu-gomp"),
    (
        "the NVIDIA driver supports",
        'JAX_CONVGRAD_CUDA=1 pip install ".[cuda12]"  # in a checkout, with a CUDA 12 toolkit',
    ),
    ("cudnn", "pip install --upgrade nvidia-cudnn-cu13"),
    ("compute capability", "export CUDA_VISIBLE_DEVICES=...  # the newer devices alone"),
    ("no CUDA device", 'pip install --upgrade "jax[cuda13]" && nvidia-smi'),
)


def command(platform: str, reason: str) -> str | None:
    """The command to type where a platform's handlers are missing for ``reason``; None where none helps."""
    if platform not in _BUILD or reason.startswith("no oneDNN for"):
        return None
    return next((text for word, text in _COMMANDS if word in reason), _BUILD[platform])


def mended(platform: str, reason: str) -> str:
    """``reason``, followed by the command that repairs it."""
    text = command(platform, reason)
    return reason if text is None else f"{reason}. To mend it: {text}"

"""The environment variables that users set. An unknown value is an error, so that no typo passes silently."""

from __future__ import annotations

import os
import pathlib

_ON = ("1", "true")
_OFF = ("", "0", "false")
# JAX calls NVIDIA's devices by both names.
ALIASES = {"gpu": "cuda"}
PLATFORMS = ("cpu", "cuda")

_DETERMINISTIC = ("xla_gpu_deterministic_ops", "xla_gpu_exclude_nondeterministic_ops")


def flag(name: str) -> bool:
    """Whether an on-or-off variable is on.

    Raises:
      ValueError: its value is neither.
    """
    value = os.environ.get(name, "")
    if value.lower() in _ON:
        return True
    if value.lower() in _OFF:
        return False
    raise ValueError(f"{name} must be 1, true, 0 or false, got {value!r}")


def is_disabled() -> bool:
    """Whether JAX_CONVGRAD_DISABLE turns the package off."""
    return flag("JAX_CONVGRAD_DISABLE")


def is_required(platform: str) -> bool:
    """Whether JAX_CONVGRAD_REQUIRE_CPU or _CUDA makes missing handlers an error."""
    return flag(f"JAX_CONVGRAD_REQUIRE_{platform.upper()}")


def check_values() -> None:
    """Raises where a switch has an unknown value. Asked at import, so that no program runs for an hour first.

    Raises:
      ValueError: one has.
    """
    is_disabled()
    for platform in PLATFORMS:
        is_required(platform)
    platforms_to_install()


def check_switches() -> None:
    """Raises where the package is turned off and its handlers are required: one of the two is a mistake.

    Raises:
      RuntimeError: both are set.
      ValueError: one has an unknown value.
    """
    required = [platform for platform in PLATFORMS if is_required(platform)]
    if is_disabled() and required:
        platform = required[0]
        name = f"JAX_CONVGRAD_REQUIRE_{platform.upper()}"
        raise RuntimeError(
            f"{name}=1, but JAX_CONVGRAD_DISABLE=1 turns the {platform} handlers off. To fix this, run: "
            f"unset JAX_CONVGRAD_DISABLE  # or, to run on XLA alone, {name}"
        )


def platforms_to_install() -> tuple[str, ...]:
    """The platforms that JAX_CONVGRAD_INSTALL names: all for 1 and true, none for 0, false and unset.

    Raises:
      ValueError: another value.
    """
    value = os.environ.get("JAX_CONVGRAD_INSTALL", "")
    if value.lower() in _OFF:
        return ()
    if value.lower() in _ON:
        return PLATFORMS
    names = [name.strip().lower() for name in value.split(",")]
    names = [ALIASES.get(name, name) for name in names]
    if not set(names) <= set(PLATFORMS):
        raise ValueError(
            f"JAX_CONVGRAD_INSTALL must be 1, true, 0, false, cpu, cuda or gpu, got {value!r}"
        )
    return tuple(dict.fromkeys(names))


def xla_is_deterministic() -> bool:
    """Whether XLA_FLAGS asks for deterministic operations on GPUs.

    The rules are XLA's: a flag without a value is on, the last flag of a name counts, and a text that does
    not start with a dash names a file of flags.
    """
    text = os.environ.get("XLA_FLAGS", "").strip()
    if text and not text.startswith("-"):
        try:
            text = pathlib.Path(text).read_text()
        except OSError:  # XLA itself says so
            return False
    values = {}
    for word in text.split():
        name, _, value = word.lstrip("-").partition("=")
        values[name] = value.lower() in ("", *_ON)
    return any(values.get(name, False) for name in _DETERMINISTIC)

"""What `jax_convgrad.info` says: versions, handlers, and on what devices the rules were measured."""

from __future__ import annotations

from typing import Any

from jax_convgrad._src.dispatch.devices import device_class
from jax_convgrad._src.dispatch.tables import measured_on
from jax_convgrad._src.runtime import registry
from jax_convgrad._src.tuning import store


def info() -> dict[str, Any]:
    """Versions, and for each platform which handlers are there or why they are not.

    Returns:
      A dict with "versions" (package name to version, plus "python") and "handlers" (platform to a
      dict with "available", "targets", "dtypes", "versions", "validated" (the versions of its
      libraries, major.minor, on which their errata were validated), "reason", None where available,
      "device_class" (of this machine's devices, None where there are none or none that is known),
      "rules_measured_on" (the classes of devices whose measurements choose the backends here) and
      "tuned" (how many problems the tuning file decides here, and which file; None without any).

    Example:
      >>> import jax_convgrad
      >>> sorted(jax_convgrad.info())
      ['handlers', 'versions']
    """
    found = registry.describe()
    tuned = store.table_in_use()
    for platform, entry in found["handlers"].items():
        here = device_class(platform)
        entry["device_class"] = here
        entry["rules_measured_on"] = ", ".join(measured_on(platform, here))
        rows = {} if tuned is None else tuned.current(platform)
        entry["tuned"] = f"{len(rows)} problems by {tuned.path}" if tuned and rows else None
    return found

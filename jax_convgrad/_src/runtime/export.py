"""What an exported program (`jax.export`) needs in order to run in another process.

An exported program refers to this package's handlers by name. The process that exports must therefore
confirm that this is intended, and the process that runs the program must have registered the handlers.
"""

from __future__ import annotations

from jax import export

from jax_convgrad._src import compat
from jax_convgrad._src.runtime import registry, remedies


def export_checks() -> list[export.DisabledSafetyCheck]:
    """The ``disabled_checks`` with which `jax.export.export` takes programs that call the handlers.

    JAX refuses custom calls that it does not know, because only the package that they belong to can promise
    what they will mean later. This package's calls keep their meaning from version to version; a call that
    had to change would get a new name.

    Returns:
      One `jax.export.DisabledSafetyCheck` for each of the package's call targets, all platforms' alike.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax import export
      >>> from jax_convgrad import conv_transpose, export_checks
      >>> up = jax.jit(lambda x, w: conv_transpose(x, w, (2, 2), "SAME"))
      >>> x = jax.ShapeDtypeStruct(export.symbolic_shape("batch, 8, 8, 6"), jnp.float32)
      >>> w = jax.ShapeDtypeStruct((4, 4, 6, 3), jnp.float32)
      >>> exported = export.export(up, disabled_checks=export_checks())(x, w)
      >>> exported.call(jnp.ones((5, 8, 8, 6)), jnp.ones(w.shape)).shape
      (5, 16, 16, 3)
    """
    return [export.DisabledSafetyCheck.custom_call(target) for target in registry.TARGETS]


def load_handlers(platform: str | None = None) -> None:
    """Registers the handlers of a platform now, for programs that this process only runs.

    A program that is lowered here registers them by itself. A program that comes out of `jax.export` is not
    lowered here: without this call it ends in XLA's ``No FFI handler registered for jax_convgrad_...``.

    Args:
      platform: "cpu" or "cuda"; None is the platform that JAX runs on.

    Raises:
      RuntimeError: the platform has no handlers here; the text says why.

    Example:
      >>> import jax_convgrad
      >>> if jax_convgrad.info()["handlers"]["cpu"]["available"]:
      ...     jax_convgrad.load_handlers("cpu")
      >>> jax_convgrad.load_handlers("tpu")
      Traceback (most recent call last):
        ...
      RuntimeError: load_handlers: there are no handlers for tpu: this version has no handlers for tpu
    """
    platform = platform or compat.platform()
    reason = registry.find(platform).reason
    if reason is not None:
        raise RuntimeError(
            f"load_handlers: there are no handlers for {platform}: {remedies.with_command(platform, reason)}"
        )

"""`install` and what undoes it: one line for existing programs.

It replaces the rule by which `lax.conv_general_dilated` is lowered (`lowering_rules`) and jax.image's
functions (`jax_image`).
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import threading
from collections.abc import Iterator, Sequence

import jax

from jax_convgrad._src.dispatch.override import is_package_off, package_off
from jax_convgrad._src.install import jax_image, lowering_rules
from jax_convgrad._src.install.installation import Installation
from jax_convgrad._src.install.lowering_rules import LoweringRule
from jax_convgrad._src.runtime import environment

PLATFORMS = environment.PLATFORMS

_log = logging.getLogger("jax_convgrad")
_lock = threading.RLock()


class _State:
    """What has been asked for, of which what is on follows: blocks of several threads may end in any order.

    Attributes:
      rules: the rules that this copy of the module has installed, by platform.
      calls: how often `install` was called for which platforms.
      generation: of the calls: what came before an `uninstall` cannot be undone again.
      is_stale: whether compiled programs may be of another state: a change of it was interrupted.
    """

    def __init__(self) -> None:
        self.rules: dict[str, LoweringRule] = {}
        self.calls: collections.Counter[tuple[str, ...]] = collections.Counter()
        self.generation = 0
        self.is_stale = False

    def rule(self, platform: str) -> LoweringRule | None:
        """The installed rule, unless another copy of this module has turned it off."""
        rule = self.rules.get(platform)
        return rule if rule is not None and rule.is_on else None


# A module that is reloaded keeps it, with the blocks that have not ended.
_state: _State = globals().get("_state") or _State()


def install(platforms: str | Sequence[str] | None = None) -> Installation:
    """Gives convolutions and resizes of existing programs the fast backward passes of this package.

    From here on this package computes every `jax.lax.conv_general_dilated`, whichever library calls it, and
    every gradient of one, on the ``platforms`` where that is faster; values, derivatives of any order and
    mode, ``vmap``, ``precision`` and ``preferred_element_type`` are as before. It also computes
    `jax.image.resize` and `jax.image.scale_and_translate`, on all platforms.

    Programs that were compiled before are dropped (`jax.clear_caches`) and compiled anew when they are
    called; what ``lower().compile()`` has returned stays as it is. In programs that are divided among
    several devices, by ``jit`` of sharded arrays or by `jax.shard_map`, this package computes each device's
    part. Exported programs (`jax.export`) hold XLA's convolutions.

    Calling it again changes nothing, or adds platforms. ``JAX_CONVGRAD_INSTALL=1`` in the environment calls
    it when the package is imported; with ``JAX_CONVGRAD_DISABLE=1`` it does nothing. `uninstall` undoes all
    calls. The end of a ``with`` block undoes this one, and leaves on what other calls ask for.

    Args:
      platforms: "cpu", "cuda" (or "gpu") or several; None means both.

    Returns:
      A context manager. Ignore it if you call `install` once, at the start.

    Raises:
      TypeError: ``platforms`` is neither names nor None.
      ValueError: another platform, or a switch of the environment with an unknown value.
      RuntimeError: ``JAX_CONVGRAD_DISABLE=1`` and ``JAX_CONVGRAD_REQUIRE_CPU=1`` (or ``_CUDA``) contradict.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import jax_convgrad
      >>> jax_convgrad.install()
      install() is on for cpu, cuda
      >>> x, w = jnp.ones((1, 8, 8, 6)), jnp.ones((4, 4, 6, 3))
      >>> jax.grad(lambda w: jax.lax.conv_transpose(x, w, (2, 2), "SAME").sum())(w).shape
      (4, 4, 6, 3)
      >>> jax_convgrad.uninstall()
      >>> with jax_convgrad.install("cpu"):
      ...     jax_convgrad.installed()
      ('cpu',)
    """
    chosen = _names(platforms)
    environment.check_switches()
    if environment.is_disabled():
        _log.info("install() does nothing: JAX_CONVGRAD_DISABLE=1")
        return Installation((), lambda: None)
    with _lock:
        _adopt()
        _state.calls[chosen] += 1
        undo = functools.partial(_undo, chosen, _state.generation)
        changed = _apply()
        on = installed()
    if is_package_off():
        _log.info("install(): takes effect in this thread when disabled() ends")
    elif changed:
        _log.info(
            "install(): convolutions and resizes run in jax_convgrad on %s where that is faster; compiled "
            "programs were dropped",
            ", ".join(on),
        )
    else:
        _log.info("install(): on already for %s, nothing changed", ", ".join(on) or "no platform")
    return Installation(on, undo)


def _names(platforms: str | Sequence[str] | None) -> tuple[str, ...]:
    """The platforms that a caller of `install` means."""
    if platforms is None:
        return PLATFORMS
    known = "cpu, cuda or gpu"
    try:
        names = (platforms,) if isinstance(platforms, str) else tuple(platforms)
    except TypeError:
        raise TypeError(
            f"install: platforms must be names out of {known}, or None for all, got {platforms!r}"
        ) from None
    for name in names:
        if name not in (*PLATFORMS, *environment.ALIASES):
            raise ValueError(f"install: platforms must be among {known}, got {name!r}")
    return tuple(environment.ALIASES.get(name, name) for name in names)


def _undo(platforms: tuple[str, ...], generation: int) -> None:
    """Undoes one call of `install`, unless `uninstall` has."""
    with _lock:
        if generation == _state.generation and _state.calls[platforms]:
            _state.calls[platforms] -= 1
            _turn_off()


def _turn_off() -> None:
    """Turns off what no call asks for any more, and says so."""
    if _apply():
        on = f"on for {', '.join(_on())} alone" if _on() else "off"
        _log.info("uninstall(): install() is %s; compiled programs were dropped", on)


def _adopt() -> bool:
    """Takes over what another copy of this module has installed, as a call of this one's; is there any?"""
    found = [p for p in PLATFORMS if _state.rule(p) is None and lowering_rules.find(p) is not None]
    if found:
        _state.calls[tuple(found)] += 1
    return bool(found)


def _apply() -> bool:
    """Turns on what the calls ask for, and nothing else; says whether that changed anything."""
    asked = {name for platforms, count in _state.calls.items() if count for name in platforms}
    wanted = [p for p in PLATFORMS if p in asked]
    changed = _state.is_stale
    # Until programs are dropped: an interrupt may come at any line.
    _state.is_stale = True
    for platform in PLATFORMS:
        rule, found = _state.rule(platform), lowering_rules.find(platform)
        if platform in wanted:
            is_right = rule is not None
        else:
            is_right = rule is None and found is None
        if is_right:
            continue
        changed = True
        _state.rules.pop(platform, None)
        lowering_rules.take_out(rule)
        lowering_rules.take_out(lowering_rules.find(platform))
        if platform in wanted:
            _state.rules[platform] = made = lowering_rules.make(platform)
            lowering_rules.put_in(made)
    if wanted:
        jax_image.install()
    elif jax_image.uninstall():
        changed = True
    if changed:
        jax.clear_caches()
    _state.is_stale = False
    return changed


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Turns the package off inside a ``with`` block, as ``JAX_CONVGRAD_DISABLE=1`` does for a process.

    Programs that are compiled inside hold XLA's operations: JAX's own convolutions and resizes, whatever
    `install` was called for, and XLA's form of the package's own layers. The block is for its own thread.
    Other threads notice nothing. Tasks of ``asyncio`` that run in the thread while a block awaits are inside
    it, too.

    A function under ``jax.jit`` may be called inside and outside. JAX compiles it once for each and keeps
    both programs. A block that the function itself opens has no effect on its convolutions, which are
    compiled later.

    Example:
      >>> import jax_convgrad
      >>> with jax_convgrad.install(), jax_convgrad.disabled():
      ...     jax_convgrad.installed()
      ()
    """
    with _lock:
        if _adopt():  # what another copy of this module has installed does not ask this one
            _apply()
    _log.info("disabled(): XLA computes everything in this thread until the block ends")
    with package_off():
        yield


def uninstall() -> None:
    """Undoes `install` on all platforms. Programs compiled with it are dropped as `install` does.

    A rule or a function that something else has replaced since is left as it is.

    Example:
      >>> import jax_convgrad
      >>> jax_convgrad.install("cpu")
      install() is on for cpu
      >>> jax_convgrad.uninstall()
      >>> jax_convgrad.installed()
      ()
    """
    with _lock:
        _state.calls.clear()
        _state.generation += 1
        _turn_off()


def installed() -> tuple[str, ...]:
    """The platforms on which `install` is on; none inside `disabled`.

    Example:
      >>> import jax_convgrad
      >>> jax_convgrad.installed()
      ()
    """
    return () if is_package_off() else _on()


def _on() -> tuple[str, ...]:
    """The platforms on which `install` is on in this process."""
    with _lock:
        return tuple(p for p in PLATFORMS if _state.rule(p) or lowering_rules.find(p))


def install_from_environment() -> None:
    """Calls `install` for the platforms that JAX_CONVGRAD_INSTALL names, if any. The import does this.

    Raises:
      ValueError: a switch of the environment has an unknown value, whether `install` reads it or not.
    """
    environment.check_values()
    if platforms := environment.platforms_to_install():
        install(platforms)

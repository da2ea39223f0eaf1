"""One line for existing programs: lax's convolutions and jax.image's resizes run here.

`install` replaces the rule by which `lax.conv_general_dilated` is lowered. Differentiation, batching and
everything else stay JAX's own and emit the same operation, so the gradients of every layer that is built
on it come by here too: `match` says which operator of the family each one is, `decide` who computes it.

NOTE [Who keeps JAX's rule]. We fall back to JAX's own lowering rule where
(a) `match` finds no operator of the family in the equation;
(b) the dtype is none of the four;
(c) XLA is chosen, and lax has the equation in the form that XLA would be given;
(d) one of this package's own lowering rules emits the equation;
(e) the program is for `jax.export`: it would hold a call that only this package answers;
(f) XLA divides the program among devices inside a `shard_map` over other axes of the mesh: it would gather a
call's operands on every device. Elsewhere XLA asks this package for what each device computes;
(g) it is lowered inside `disabled`.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jax_convgrad._src import compat
from jax_convgrad._src.conv import primitives
from jax_convgrad._src.dispatch.decide import (
    WITHOUT_CUSTOM_CALLS,
    XLA,
    XLA_REWRITTEN,
    Decision,
    decide,
)
from jax_convgrad._src.dispatch.devices import Target
from jax_convgrad._src.dispatch.override import is_package_off, package_off
from jax_convgrad._src.dispatch.problem import ConvProblem
from jax_convgrad._src.dtypes import FLOAT_DTYPES
from jax_convgrad._src.install import jax_image
from jax_convgrad._src.install.installation import Installation
from jax_convgrad._src.install.match import Match, NoMatch, match
from jax_convgrad._src.runtime import environment

PLATFORMS = environment.PLATFORMS

_log = logging.getLogger("jax_convgrad")
_lock = threading.RLock()


class _Rule:
    """This package's rule for one platform, which knows the rule that it replaced.

    What is installed is read from the rules that JAX has, not remembered beside them: a copy of this module
    that is imported anew finds what the one before has installed.
    """

    def __init__(self, platform: str, replaced: Any) -> None:
        self.platform = platform
        self.replaced = replaced
        self.is_on = True

    def __call__(self, ctx: Any, lhs: Any, rhs: Any, **params: Any) -> Any:
        if not self.is_on:  # somebody has put a rule of theirs around this one
            return self.replaced(ctx, lhs, rhs, **params)
        return _lower(self.platform, self.replaced, ctx, lhs, rhs, **params)


class _State:
    """What has been asked for, of which what is on follows: blocks of several threads may end in any order.

    Attributes:
      rules: the rules that this copy of the module has installed, by platform.
      calls: how often `install` was called for which platforms.
      generation: of the calls: what came before an `uninstall` cannot be undone again.
      is_stale: whether compiled programs may be of another state: a change of it was interrupted.
    """

    def __init__(self) -> None:
        self.rules: dict[str, _Rule] = {}
        self.calls: collections.Counter[tuple[str, ...]] = collections.Counter()
        self.generation = 0
        self.is_stale = False

    def rule(self, platform: str) -> _Rule | None:
        """The installed rule, unless another copy of this module has turned it off."""
        rule = self.rules.get(platform)
        return rule if rule is not None and rule.is_on else None


# A module that is reloaded keeps it, with the blocks that have not ended.
_state: _State = globals().get("_state") or _State()


def _find(platform: str) -> Any:
    """This package's rule where it is JAX's now, whichever copy of this module has made it."""
    rule = compat.lowering_rule(lax.conv_general_dilated_p, platform)
    kind = type(rule)
    same = (kind.__module__, kind.__qualname__) == (_Rule.__module__, _Rule.__qualname__)
    return rule if same else None


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
    found = [p for p in PLATFORMS if _state.rule(p) is None and _find(p) is not None]
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
        rule, found = _state.rule(platform), _find(platform)
        if platform in wanted:
            is_right = rule is not None
        else:
            is_right = rule is None and found is None
        if is_right:
            continue
        changed = True
        _state.rules.pop(platform, None)
        _take_out(rule)
        _take_out(_find(platform))
        if platform in wanted:
            _put_in(platform)
    if wanted:
        jax_image.install()
    elif jax_image.uninstall():
        changed = True
    if changed:
        jax.clear_caches()
    _state.is_stale = False
    return changed


def _put_in(platform: str) -> None:
    replaced = compat.lowering_rule(lax.conv_general_dilated_p, platform)
    _state.rules[platform] = rule = _Rule(platform, replaced)
    if replaced is not None:  # readable, so there is something to fall back to
        compat.register_lowering(lax.conv_general_dilated_p, rule, platform=platform)


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


def _take_out(rule: Any) -> None:
    """Puts back what our rule has replaced, unless something else has replaced it since."""
    while rule is not None:
        rule.is_on = False
        if _find(rule.platform) is not rule:
            return
        compat.register_lowering(lax.conv_general_dilated_p, rule.replaced, platform=rule.platform)
        rule = _find(rule.platform)


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
        return tuple(p for p in PLATFORMS if _state.rule(p) or _find(p))


def install_from_environment() -> None:
    """Calls `install` for the platforms that JAX_CONVGRAD_INSTALL names, if any. The import does this.

    Raises:
      ValueError: a switch of the environment has an unknown value, whether `install` reads it or not.
    """
    environment.check_values()
    if platforms := environment.platforms_to_install():
        install(platforms)


# Lowering.


def _lower(platform: str, theirs: Any, ctx: Any, lhs: Any, rhs: Any, **params: Any) -> Any:
    """The rule for one platform; ``theirs`` is the one that it replaced."""
    if is_package_off() or compat.in_implementation() or compat.is_export(ctx):
        return theirs(ctx, lhs, rhs, **params)
    (lhs_aval, rhs_aval), (out_aval,) = ctx.avals_in, ctx.avals_out
    found = decide_equation(
        platform,
        lhs_aval,
        rhs_aval,
        out_aval,
        params,
        custom_calls=not compat.is_partitioned_without_custom_calls(ctx),
    )
    if not found.replaced:
        _log.debug("a convolution on %s stays with JAX's own rule: %s", platform, found.reason)
        return theirs(ctx, lhs, rhs, **params)
    return compat.lower_fun(found.compute)(ctx, lhs, rhs)


@dataclasses.dataclass(frozen=True)
class EquationDecision:
    """What becomes of one of lax's convolutions.

    Attributes:
      replaced: whether it is computed here; if not, JAX's own rule is called.
      reason: why.
      match: which operator it is; None where it is none.
      decision: who computes that operator; None as ``match``.
    """

    replaced: bool
    reason: str
    match: Match | None = None
    decision: Decision | None = None

    def compute(self, lhs: Array, rhs: Array) -> Array:
        """The equation's result by this package."""
        assert self.match is not None and self.decision is not None
        problem = self.decision.problem
        assert isinstance(problem, ConvProblem)
        bind = functools.partial(primitives.bind, problem, decision=self.decision)
        return self.match.apply(lhs, rhs, bind)


def decide_equation(
    platform: str,
    lhs: Any,
    rhs: Any,
    out: Any,
    params: dict[str, Any],
    custom_calls: bool = True,
) -> EquationDecision:
    """What `install` makes of an equation with these abstract values and parameters.

    ``custom_calls``: whether a call may be in the program, see `Target`.
    """
    if not _has_our_dtypes(lhs.dtype, rhs.dtype, out.dtype):
        if jnp.issubdtype(out.dtype, jnp.complexfloating):
            parts = f"JAX takes {out.dtype} apart into real convolutions, each decided by itself"
            return EquationDecision(False, parts)
        types = f"{lhs.dtype} and {rhs.dtype} to {out.dtype}"
        return EquationDecision(False, f"{types} is not for this package")
    found = match(
        lhs.shape,
        rhs.shape,
        out.shape,
        window_strides=params["window_strides"],
        padding=params["padding"],
        lhs_dilation=params["lhs_dilation"],
        rhs_dilation=params["rhs_dilation"],
        dimension_numbers=params["dimension_numbers"],
        feature_group_count=params["feature_group_count"],
        batch_group_count=params["batch_group_count"],
    )
    if isinstance(found, NoMatch):
        return EquationDecision(False, found.reason)
    # The equation's precision is resolved: JAX's default is not asked for again.
    problem = ConvProblem(
        found.operator,
        found.geometry,
        np.dtype(lhs.dtype),
        np.dtype(out.dtype),
        params["precision"],
    )
    decision = decide(problem, Target.of(platform, custom_calls))
    if not custom_calls:
        return EquationDecision(False, WITHOUT_CUSTOM_CALLS, found, decision)
    return EquationDecision(not _is_lax_form(found, decision), decision.reason, found, decision)


def _is_lax_form(found: Match, decision: Decision) -> bool:
    """Whether lax has the equation already in the form in which the decision's backend would compute it.

    Not where it has the operator's operands the other way round: it dilates its lhs then, or has a window as
    large as an image, where the backends' own forms do not.
    """
    if decision.subsample is not None or found.swapped:
        return False
    if decision.backend == XLA:
        return True
    # The rewritten form has weight gradients in feature groups, lax in groups of the batch.
    ungrouped = found.operator != "conv_wgrad" or found.geometry.config.groups == 1
    return decision.backend == XLA_REWRITTEN and ungrouped


def _has_our_dtypes(lhs: Any, rhs: Any, out: Any) -> bool:
    if lhs != rhs or str(lhs) not in FLOAT_DTYPES or str(out) not in FLOAT_DTYPES:
        return False
    as_wide: bool = out == lhs or jnp.dtype(out).itemsize > jnp.dtype(lhs).itemsize
    return as_wide

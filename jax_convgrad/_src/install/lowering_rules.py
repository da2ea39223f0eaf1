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
call's operands on every device. Elsewhere XLA asks this package for what each device computes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.interpreters import mlir
from jax.typing import ArrayLike

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
from jax_convgrad._src.dispatch.problem import ConvProblem
from jax_convgrad._src.dtypes import FLOAT_DTYPES
from jax_convgrad._src.install.match import Match, NoMatch, match
from jax_convgrad._src.resize.api import resize, scale_and_translate

PLATFORMS = ("cpu", "cuda")

_lock = threading.RLock()
# Per platform: our rule and the one that it replaced.
_rules: dict[str, tuple[Any, Any]] = {}
# The functions of jax.image that ours stand in for; `uninstall` puts them back. They are kept after it:
# somebody may hold ours.
_images: dict[str, Callable[..., Array]] = {}


def install(platforms: str | Sequence[str] | None = None) -> None:
    """Gives convolutions and resizes of existing programs the fast backward passes of this package.

    From here on every `jax.lax.conv_general_dilated`, by whatever library it was called, and every
    gradient of one, is computed by this package on the ``platforms`` where that is faster; values,
    derivatives of any order and mode, ``vmap``, ``precision`` and ``preferred_element_type`` are as
    before. So are `jax.image.resize` and `jax.image.scale_and_translate`, on all platforms.

    Programs that were compiled before are dropped (`jax.clear_caches`) and compiled anew when they are
    called; what ``lower().compile()`` has returned stays as it is. In programs that are divided among
    several devices, ``jit`` of sharded arrays or `jax.shard_map`, each device computes its part so. Exported
    programs (`jax.export`) hold XLA's convolutions.

    Calling it again changes nothing, or adds platforms. ``JAX_CONVGRAD_INSTALL=1`` in the environment calls
    it when the package is imported. `uninstall` undoes it.

    Args:
      platforms: "cpu", "cuda" or several; None means both.

    Raises:
      ValueError: another platform.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import jax_convgrad
      >>> jax_convgrad.install()
      >>> x, w = jnp.ones((1, 8, 8, 6)), jnp.ones((4, 4, 6, 3))
      >>> jax.grad(lambda w: jax.lax.conv_transpose(x, w, (2, 2), "SAME").sum())(w).shape
      (4, 4, 6, 3)
      >>> jax_convgrad.uninstall()
    """
    chosen = PLATFORMS if platforms is None else platforms
    chosen = (chosen,) if isinstance(chosen, str) else tuple(chosen)
    for platform in chosen:
        if platform not in PLATFORMS:
            raise ValueError(
                f"install: platforms must be among {', '.join(PLATFORMS)}, got {platform!r}"
            )
    with _lock:
        new = [platform for platform in chosen if platform not in _rules]
        first = bool(new) and not _rules
        for platform in new:
            theirs = compat.lowering_rule(lax.conv_general_dilated_p, platform)
            ours = functools.partial(_lower, platform, theirs)
            mlir.register_lowering(lax.conv_general_dilated_p, ours, platform=platform)
            _rules[platform] = ours, theirs
        for name, function in _REPLACEMENTS.items():
            theirs = getattr(jax.image, name)
            if first and theirs is not function:
                switch, behind = _switches.get(name, (None, None))
                _images[name] = behind if theirs is switch else theirs
                setattr(jax.image, name, function)
        if new:
            jax.clear_caches()


def uninstall() -> None:
    """Undoes `install` on all platforms. Programs compiled with it are dropped as `install` does.

    A rule or a function that something else has replaced since is left as it is.

    Example:
      >>> import jax_convgrad
      >>> jax_convgrad.install("cpu")
      >>> jax_convgrad.uninstall()
      >>> jax_convgrad.installed()
      ()
    """
    with _lock:
        if not _rules:
            return
        for platform, (ours, theirs) in _rules.items():
            if compat.lowering_rule(lax.conv_general_dilated_p, platform) is ours:
                mlir.register_lowering(lax.conv_general_dilated_p, theirs, platform=platform)
        for name, function in _images.items():
            if getattr(jax.image, name) is _REPLACEMENTS[name]:
                # The switch that other threads may be looking through stays until the last has.
                switch, _ = _switches.get(name, (function, None))
                setattr(jax.image, name, switch)
        _rules.clear()
        jax.clear_caches()


@contextlib.contextmanager
def pointed_images() -> Iterator[None]:
    """jax.image's functions are this package's for this thread, as `install` would have them."""
    _switch_images(1)
    before, _thread.pointed = _thread.pointed, True
    try:
        yield
    finally:
        _thread.pointed = before
        _switch_images(-1)


class _Thread(threading.local):
    pointed = False
    behind: frozenset[str] = frozenset()  # functions of jax.image that ours have called


_thread = _Thread()
# While any thread is in `pointed_images`: how many are, and per name our switch and what it stands in for.
_pointing = 0
_switches: dict[str, tuple[Any, Any]] = {}


def _switch_images(change: int) -> None:
    """Puts the switches in for the first thread that asks, and takes them out with the last."""
    global _pointing
    with _lock:
        _pointing += change
        for name, ours in _REPLACEMENTS.items():
            if name in _switches and _pointing == 0:
                switch, theirs = _switches.pop(name)
                if getattr(jax.image, name) is switch:
                    setattr(jax.image, name, theirs)
            elif name not in _switches and _pointing > 0 and getattr(jax.image, name) is not ours:
                theirs = getattr(jax.image, name)
                if not _rules:
                    _images[name] = theirs
                _switches[name] = _make_switch(theirs, ours), theirs
                setattr(jax.image, name, _switches[name][0])


def _make_switch(theirs: Callable[..., Array], ours: Callable[..., Array]) -> Callable[..., Array]:
    @functools.wraps(theirs)
    def switch(*args: Any, **kwargs: Any) -> Array:
        return (ours if _thread.pointed else theirs)(*args, **kwargs)

    return switch


def installed() -> tuple[str, ...]:
    """The platforms on which `install` is on.

    Example:
      >>> import jax_convgrad
      >>> jax_convgrad.installed()
      ()
    """
    with _lock:
        return tuple(sorted(_rules))


def install_from_environment() -> None:
    """Calls `install` if JAX_CONVGRAD_INSTALL=1."""
    if os.environ.get("JAX_CONVGRAD_INSTALL") == "1":
        install()


# Lowering.


def _lower(platform: str, theirs: Any, ctx: Any, lhs: Any, rhs: Any, **params: Any) -> Any:
    """The rule for one platform; ``theirs`` is the one that it replaced."""
    if compat.in_implementation() or compat.is_export(ctx):
        return theirs(ctx, lhs, rhs, **params)
    found = decide_equation(
        platform,
        *ctx.avals_in,
        *ctx.avals_out,
        params,
        custom_calls=not compat.divides_operations_only(ctx),
    )
    if not found.replaced:
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
    return out == lhs or jnp.dtype(out).itemsize > jnp.dtype(lhs).itemsize


# jax.image. What ours refuse is for its own functions to take or to refuse, in their own words: a program
# that ran before runs on.


def _resize(
    image: ArrayLike,
    shape: Sequence[int],
    method: Any,
    antialias: bool = True,
    precision: Any = lax.Precision.HIGHEST,
) -> Array:
    """`jax.image.resize` while `jax_convgrad.install` is on."""
    arguments = (image, shape, method, antialias, precision)
    if _is_our_image(image):
        with contextlib.suppress(TypeError, ValueError):
            return resize(*arguments)
    return _call_behind("resize", *arguments)


def _scale_and_translate(
    image: ArrayLike,
    shape: Sequence[int],
    spatial_dims: Sequence[int],
    scale: ArrayLike,
    translation: ArrayLike,
    method: Any,
    antialias: bool = True,
    precision: Any = lax.Precision.HIGHEST,
) -> Array:
    """`jax.image.scale_and_translate` while `jax_convgrad.install` is on."""
    arguments = (image, shape, spatial_dims, scale, translation, method, antialias, precision)
    if _is_our_image(image):
        with contextlib.suppress(TypeError, ValueError):
            return scale_and_translate(*arguments)
    return _call_behind("scale_and_translate", *arguments)


def _call_behind(name: str, *arguments: Any) -> Array:
    """What ours stands in for; JAX's own where that has been put around ours and has come back to it."""
    function = _ORIGINALS[name] if name in _thread.behind else _images[name]
    before, _thread.behind = _thread.behind, _thread.behind | {name}
    try:
        return function(*arguments)
    finally:
        _thread.behind = before


def _is_our_image(image: ArrayLike) -> bool:
    """Whether its dtype is one of the four, or is promoted to one, and its sizes are known."""
    image = compat.as_array(image)
    if not all(isinstance(size, int) for size in image.shape):
        return False
    integral = jnp.issubdtype(image.dtype, jnp.integer) or image.dtype == jnp.bool_
    return integral or str(image.dtype) in FLOAT_DTYPES


_REPLACEMENTS: dict[str, Callable[..., Array]] = {
    "resize": _resize,
    "scale_and_translate": _scale_and_translate,
}
_ORIGINALS = {name: getattr(jax.image, name) for name in _REPLACEMENTS}

"""One line for existing programs: lax's convolutions and jax.image's resizes run here.

`install` replaces the rule by which `lax.conv_general_dilated` is lowered. Differentiation, batching and
all else stay JAX's own and emit the same operation, so the gradients of every layer that is built on it
come by here too: `classify` says which member of the family each one is, `routes` who computes it.

NOTE [Who keeps JAX's rule]. What `classify` cannot read; other dtypes than the four; a problem whose route
is XLA and which lax has emitted in the form that the route would have; what one of this package's own rules
emits; programs for `jax.export`, which would hold a call that only this package answers; and what XLA
divides among devices inside a `shard_map` over other axes of the mesh, where it would gather the operands of
a call on every device. Elsewhere it asks `partition` for each device's part.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jax_convgrad._src import compat
from jax_convgrad._src.conv import primitives
from jax_convgrad._src.conv.geometry import ConvConfig
from jax_convgrad._src.conv.precision import stated
from jax_convgrad._src.conv.primitives import Plan
from jax_convgrad._src.dispatch import routes
from jax_convgrad._src.dispatch.routes import Route
from jax_convgrad._src.dtypes import FLOAT_DTYPES
from jax_convgrad._src.install import jax_image
from jax_convgrad._src.install.match import Reading, Unread, classify
from jax_convgrad._src.shapes import Shape

PLATFORMS = ("cpu", "cuda")

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


# The rules that this copy of the module has installed.
_rules: dict[str, _Rule] = {}


def _find(platform: str) -> Any:
    """This package's rule where it is JAX's now, whichever copy of this module has made it."""
    rule = compat.lowering_rule(lax.conv_general_dilated_p, platform)
    kind = type(rule)
    same = (kind.__module__, kind.__qualname__) == (_Rule.__module__, _Rule.__qualname__)
    return rule if same else None


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
        if chosen:
            jax_image.install()
        new = [platform for platform in chosen if _rules.get(platform) is None]
        for platform in new:
            _take_out(_find(platform))
            replaced = compat.lowering_rule(lax.conv_general_dilated_p, platform)
            _rules[platform] = _Rule(platform, replaced)
            if replaced is not None:  # readable, so there is something to fall back to
                compat.register_lowering(
                    lax.conv_general_dilated_p, _rules[platform], platform=platform
                )
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
        rules = [*_rules.values(), *map(_find, PLATFORMS)]
        _rules.clear()
        for rule in rules:
            _take_out(rule)
        if jax_image.uninstall() or any(rules):
            jax.clear_caches()


def _take_out(rule: Any) -> None:
    """Puts back what our rule has replaced, unless something else has replaced it since."""
    while rule is not None:
        rule.is_on = False
        if _find(rule.platform) is not rule:
            return
        compat.register_lowering(lax.conv_general_dilated_p, rule.replaced, platform=rule.platform)
        rule = _find(rule.platform)


def installed() -> tuple[str, ...]:
    """The platforms on which `install` is on.

    Example:
      >>> import jax_convgrad
      >>> jax_convgrad.installed()
      ()
    """
    with _lock:
        return tuple(p for p in PLATFORMS if p in _rules or _find(p) is not None)


def install_from_environment() -> None:
    """Calls `install` if JAX_CONVGRAD_INSTALL=1."""
    if os.environ.get("JAX_CONVGRAD_INSTALL") == "1":
        install()


# Lowering.


def _lower(platform: str, theirs: Any, ctx: Any, lhs: Any, rhs: Any, **params: Any) -> Any:
    """The rule for one platform; ``theirs`` is the one that it replaced."""
    if compat.in_implementation() or compat.is_export(ctx):
        return theirs(ctx, lhs, rhs, **params)
    decision = decide(
        platform,
        *ctx.avals_in,
        *ctx.avals_out,
        params,
        operations_only=compat.is_partitioned_without_custom_calls(ctx),
    )
    if not decision.replaced:
        return theirs(ctx, lhs, rhs, **params)
    rule = compat.lower_fun(
        functools.partial(
            compute,
            reading=decision.reading,
            precision=params["precision"],
            result_dtype=ctx.avals_out[0].dtype,
        )
    )
    return rule(ctx, lhs, rhs)


@dataclasses.dataclass(frozen=True)
class Decision:
    """What becomes of one equation.

    Attributes:
      replaced: whether it is computed here; if not, JAX's own rule is called.
      route: who computes it, and why.
      reading: what it is, None where it could not be read.
      plan: what its reading comes to; None as ``reading``.
    """

    replaced: bool
    route: Route
    reading: Reading | None = None
    plan: Plan | None = None


def decide(
    platform: str,
    lhs: Any,
    rhs: Any,
    out: Any,
    params: dict[str, Any],
    operations_only: bool = False,
) -> Decision:
    """What `install` makes of an equation with these abstract values and parameters.

    ``operations_only``: XLA divides the program among devices, and cannot divide a call there.
    """
    if not _has_our_dtypes(lhs.dtype, rhs.dtype, out.dtype):
        if jnp.issubdtype(out.dtype, jnp.complexfloating):
            parts = f"JAX takes {out.dtype} apart into real convolutions, each judged by itself"
            return Decision(False, Route("xla", parts))
        types = f"{lhs.dtype} and {rhs.dtype} to {out.dtype}"
        return Decision(False, Route("xla", f"{types} is not for this package"))
    reading = classify(
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
    if isinstance(reading, Unread):
        return Decision(False, Route("xla", reading.reason))
    plan = primitives.plan(
        platform,
        reading.operator,
        reading.config,
        reading.x_shape,
        reading.w_shape,
        lhs.dtype,
        out.dtype,
        params["precision"],
        operations_only=False,
    )
    if operations_only:
        return Decision(False, routes.OPERATIONS_ONLY, reading, plan)
    kept = not plan.smaller and routes.is_lax_form(
        plan.route.name, reading.operator, plan.geometry, reading.swapped
    )
    return Decision(not kept, plan.route, reading, plan)


def _has_our_dtypes(lhs: Any, rhs: Any, out: Any) -> bool:
    if lhs != rhs or str(lhs) not in FLOAT_DTYPES or str(out) not in FLOAT_DTYPES:
        return False
    return out == lhs or jnp.dtype(out).itemsize > jnp.dtype(lhs).itemsize


def compute(
    lhs: Array, rhs: Array, *, reading: Reading, precision: Any, result_dtype: Any
) -> Array:
    """An equation's result by this package."""

    def run(
        operator: str, first: Array, second: Array, config: ConvConfig, shape: Shape | None
    ) -> Array:
        bind = getattr(primitives, operator)
        shapes = () if shape is None else (shape,)
        return bind(first, second, *shapes, config, stated(precision), result_dtype)

    return reading.apply(lhs, rhs, run)

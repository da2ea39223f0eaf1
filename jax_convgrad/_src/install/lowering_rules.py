"""The rule by which `lax.conv_general_dilated` is lowered while `install` is on.

Differentiation, batching and everything else stay JAX's own and emit the same operation, so the gradients of
every layer that is built on it come by here too: `match` says which operator of the family each one is,
`decide_equation` who computes it.

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

import logging
from typing import Any

from jax import lax

from jax_convgrad._src import compat
from jax_convgrad._src.dispatch.override import is_package_off
from jax_convgrad._src.install.equation import decide_equation

_log = logging.getLogger("jax_convgrad")


class LoweringRule:
    """This package's rule for one platform, which knows the rule that it replaces.

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


def find(platform: str) -> Any:
    """This package's rule if JAX uses it now, from whichever copy of this module; None otherwise."""
    rule = compat.lowering_rule(lax.conv_general_dilated_p, platform)
    kind = type(rule)
    same = (kind.__module__, kind.__qualname__) == (
        LoweringRule.__module__,
        LoweringRule.__qualname__,
    )
    return rule if same else None


def make(platform: str) -> LoweringRule:
    """This package's rule in the place of the one that JAX has now. `put_in` makes it JAX's."""
    return LoweringRule(platform, compat.lowering_rule(lax.conv_general_dilated_p, platform))


def put_in(rule: LoweringRule) -> None:
    """Makes it JAX's rule."""
    if rule.replaced is not None:  # readable, so there is something to fall back to
        compat.register_lowering(lax.conv_general_dilated_p, rule, platform=rule.platform)


def take_out(rule: Any) -> None:
    """Puts back what our rule has replaced, unless something else has replaced it since."""
    while rule is not None:
        rule.is_on = False
        if find(rule.platform) is not rule:
            return
        compat.register_lowering(lax.conv_general_dilated_p, rule.replaced, platform=rule.platform)
        rule = find(rule.platform)

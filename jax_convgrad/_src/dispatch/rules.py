"""Rules as data: conditions on a problem, what is chosen for it, and the measurements behind the choice.

A rule's evidence names measurements as FILE#CASE#PASS: a file of results under benchmarks/, a case in it,
and which of the case's passes. tests/dispatch/test_rules.py checks every one: the case is in the rule's
domain, and no other choice that was measured is faster by more than the margin of a tie.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from jax_convgrad._src.dispatch.features import (
    BackwardFeatures,
    ConvFeatures,
    PreparationFeatures,
    ResampleFeatures,
)

# The backends that a rule can choose. "parts" is that of a backward pass in several calls. The decision adds
# "zeros", where there is nothing to compute.
BACKENDS = frozenset({"onednn", "cudnn", "gemm", "xla", "xla_rewritten", "native", "parts"})

# What can be done to a handler's operands before its call. "zero_channel" appends a channel of zeros to those
# that are summed over, "float32" widens the operands, "even_padding" pads x by what one side of an axis has
# more than the other, "xio_weights" passes weights in the order in which they lie (NOTE [Order of weights],
# conv/layouts.py).
PREPARATIONS = frozenset({"none", "zero_channel", "float32", "even_padding", "xio_weights"})

Features = ConvFeatures | BackwardFeatures | PreparationFeatures | ResampleFeatures


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both included; None means no bound."""

    low: int | None = None
    high: int | None = None

    def __contains__(self, value: int | None) -> bool:
        if value is None:
            return False
        return (self.low is None or self.low <= value) and (self.high is None or value <= self.high)


@dataclasses.dataclass(frozen=True)
class NoneOf:
    """All values except these."""

    values: frozenset[Any]

    def __contains__(self, value: Any) -> bool:
        return value not in self.values


def at_least(low: int) -> Range:
    return Range(low=low)


def at_most(high: int) -> Range:
    return Range(high=high)


def between(low: int, high: int) -> Range:
    return Range(low, high)


def none_of(*values: Any) -> NoneOf:
    return NoneOf(frozenset(values))


# From a feature's name to the value that it must have, to a set that must hold it, or to one of the above.
Conditions = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Rule:
    """One row of a table.

    Attributes:
      name: of the row, unique in its table.
      when: all of these hold; of several mappings, all of one.
      choice: one of `BACKENDS`, or in a table of preparations one of `PREPARATIONS`.
      reason: why, in one sentence without figures.
      evidence: the measurements behind it. Empty where the reason is something that cannot be done at all
        otherwise, or where nothing is done.
      against: measured cases for which the rule chooses what is slower.
      device_class: of the devices that the evidence was measured on; None means the table's.
    """

    name: str
    when: Conditions | tuple[Conditions, ...]
    choice: str
    reason: str
    evidence: tuple[str, ...]
    against: tuple[str, ...] = ()
    device_class: str | None = None

    @property
    def alternatives(self) -> tuple[Conditions, ...]:
        return self.when if isinstance(self.when, tuple) else (self.when,)

    def holds(self, features: Features) -> bool:
        return any(
            all(_meets(getattr(features, name), condition) for name, condition in every.items())
            for every in self.alternatives
        )

    @property
    def is_catch_all(self) -> bool:
        return any(not every for every in self.alternatives)


@dataclasses.dataclass(frozen=True, eq=False)
class RuleTable:
    """The rules of one platform for one kind of problem, first to last, and what they were measured on.

    Raises:
      ValueError: a rule names an unknown feature, or a condition that no value can meet; it chooses what is
        no backend, or no preparation; two rules have the same name; the last rule does not hold for every
        problem, or an earlier one does.
    """

    device_class: str
    features: type[Features]
    rules: tuple[Rule, ...]

    def __post_init__(self) -> None:
        types_of = typing.get_type_hints(self.features)
        names = [rule.name for rule in self.rules]
        if len(set(names)) < len(names):
            raise ValueError(f"several rules have one name: {sorted(names)}")
        prepares = self.features is PreparationFeatures
        for rule in self.rules:
            if rule.choice not in (PREPARATIONS if prepares else BACKENDS):
                kind = "preparation" if prepares else "backend"
                raise ValueError(f"rule {rule.name!r}: {rule.choice!r} is not a {kind}")
            for name, condition in (
                (n, c) for every in rule.alternatives for n, c in every.items()
            ):
                if name not in types_of:
                    raise ValueError(f"rule {rule.name!r}: there is no feature {name!r}")
                if not _fits(condition, types_of[name]):
                    raise ValueError(
                        f"rule {rule.name!r}: {name} = {condition!r} is not a condition on {types_of[name]}"
                    )
        if [rule.is_catch_all for rule in self.rules] != [False] * (len(names) - 1) + [True]:
            raise ValueError("the last rule, and no other, must hold for every problem")

    def choose(self, features: Features) -> Rule:
        """The first rule that holds."""
        return next(rule for rule in self.rules if rule.holds(features))

    def rule(self, name: str) -> Rule:
        """The rule with that name."""
        return next(rule for rule in self.rules if rule.name == name)


def _meets(value: Any, condition: Any) -> bool:
    if isinstance(condition, Range | NoneOf | frozenset | set):
        return value in condition
    return bool(value == condition)


def _fits(condition: Any, kind: Any) -> bool:
    """Whether a condition can hold for some value of a type, and fail for another."""
    kinds = [typing.get_origin(k) or k for k in typing.get_args(kind) or (kind,)]
    if isinstance(condition, Range):
        return int in kinds
    if isinstance(condition, NoneOf):
        return _fits(condition.values, kind)
    if isinstance(condition, frozenset | set):
        return bool(condition) and all(type(value) in kinds for value in condition)
    return type(condition) in kinds

"""All tables of rules, and the choice of the table for a device."""

from __future__ import annotations

from jax_convgrad._src.dispatch import (
    rules_backward,
    rules_cpu,
    rules_cuda,
    rules_preparation,
    rules_resample,
)
from jax_convgrad._src.dispatch.features import (
    BackwardFeatures,
    ConvFeatures,
    PreparationFeatures,
    ResampleFeatures,
)
from jax_convgrad._src.dispatch.rules import Features, Rule, RuleTable

# By kind of problem and platform. The first table serves the classes of devices without a table of their
# own.
TABLES: dict[type[Features], dict[str, tuple[RuleTable, ...]]] = {
    ConvFeatures: {"cpu": (rules_cpu.AMX,), "cuda": (rules_cuda.SM_90,)},
    BackwardFeatures: {"cpu": (rules_backward.AVX512,)},
    PreparationFeatures: {
        "cpu": (rules_preparation.AVX512,),
        "cuda": (rules_preparation.SM_90,),
    },
    ResampleFeatures: {"cpu": (rules_resample.AMX,), "cuda": (rules_resample.SM_90,)},
}


def choose(platform: str, device_class: str | None, features: Features) -> tuple[Rule, str]:
    """The rule for a problem on a platform's devices, and the class of devices that the rule was measured on.

    Raises:
      KeyError: there are no rules for the platform.
    """
    table = table_for(platform, device_class, type(features))
    rule = table.choose(features)
    return rule, rule.device_class or table.device_class


def measured_on(platform: str, device_class: str | None) -> tuple[str, ...]:
    """The classes of devices whose measurements choose the backends on a class, of all kinds of problems."""
    found: dict[str, None] = {}
    for kind, by_platform in TABLES.items():
        if platform in by_platform:
            table = table_for(platform, device_class, kind)
            found[table.device_class] = None
            found |= dict.fromkeys(r.device_class for r in table.rules if r.device_class)
    return tuple(found)


def table_for(platform: str, device_class: str | None, kind: type[Features]) -> RuleTable:
    """The table of a class of devices; its platform's first where the class has none of its own."""
    tables = TABLES[kind][platform]
    return next((t for t in tables if t.device_class == device_class), tables[0])

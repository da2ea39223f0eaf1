"""Which resamples the platform's own kernel computes: one pass over memory for all axes."""

from __future__ import annotations

from jax_convgrad._src.dispatch.features import ResampleFeatures
from jax_convgrad._src.dispatch.rules import Rule, RuleTable

AMX = RuleTable(
    "amx",
    ResampleFeatures,
    (
        Rule(
            name="copies",
            when={"copies": True},
            backend="xla",
            reason="XLA:CPU copies elements faster than the kernel sums them",
            evidence=(),
        ),
        Rule(
            name="sums",
            when={},
            backend="native",
            reason="the kernel passes over memory once for all axes",
            evidence=(),
        ),
    ),
)

SM_90 = RuleTable(
    "sm_90",
    ResampleFeatures,
    (
        Rule(
            name="copies that grow, float32",
            when={"copies": True, "grows": True, "dtype": "float32"},
            backend="xla",
            reason="XLA copies float32 elements as fast as the kernel, and fuses the copy",
            evidence=(),
        ),
        Rule(
            name="sums and other copies",
            when={},
            backend="native",
            reason="the kernel passes over memory once for all axes",
            evidence=(),
        ),
    ),
)

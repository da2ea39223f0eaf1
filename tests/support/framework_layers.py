"""Convolution layers as Flax and other libraries spell them."""

from __future__ import annotations

from typing import Any

RANKS = (1, 2, 3)
SIZES = (7, 6, 5)
CHANNELS, OUTPUTS = 12, 24  # more channels than the few that the rules leave to XLA

# Keywords of a convolution, by what they test.
FLAX: dict[str, dict[str, Any]] = {
    "same": {"padding": "SAME"},
    "strided": {"padding": "SAME", "strides": 2},
    "valid": {"padding": "VALID", "strides": 2},
    "dilated": {"padding": "SAME", "kernel_dilation": 2},
    "grouped": {"padding": 1, "feature_group_count": 3},
    "depthwise": {"padding": "SAME", "feature_group_count": CHANNELS},
    "circular": {"padding": "CIRCULAR"},
}


def per_axis(keywords: dict[str, Any], rank: int) -> dict[str, Any]:
    names = ("strides", "kernel_dilation")
    return {k: (v,) * rank if k in names else v for k, v in keywords.items()}

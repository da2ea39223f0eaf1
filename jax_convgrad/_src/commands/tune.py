"""`jax-convgrad tune`: measures every backend of layers, and uses the results in later decisions."""

from __future__ import annotations

from jax_convgrad.bench.tune import add_arguments
from jax_convgrad.bench.tune import main as run

HELP = "measure every backend of layers on this device, and use the results in later decisions"

__all__ = ["HELP", "add_arguments", "run"]

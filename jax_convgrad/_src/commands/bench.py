"""`jax-convgrad bench`: times layers, or a training step on several devices."""

from __future__ import annotations

from jax_convgrad.bench.cli import add_arguments
from jax_convgrad.bench.cli import main as run

HELP = "time convolution layers on the present device"

__all__ = ["HELP", "add_arguments", "run"]

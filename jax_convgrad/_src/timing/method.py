"""The settings of a run, the same for everything that is timed."""

from __future__ import annotations

import dataclasses
import math

from jax_convgrad._src.timing.device import DeviceMethod


@dataclasses.dataclass(frozen=True)
class Method:
    """The settings of a run."""

    rounds: int = 9
    min_rounds: int = 3
    sample_seconds: float = 0.010
    pause_seconds: float = 0.005
    # A form this slow stops after min_rounds samples: lax takes seconds for some gradients.
    form_seconds: float = 4.0
    # If a function is this many times slower than the fastest, `compare` reports its first estimate.
    hopeless_ratio: float = math.inf
    max_repeats: int = 1000
    max_input_sets: int = 16
    max_input_bytes: int = 512 * 2**20
    seed: int = 0
    # Sample length and copies of the inputs on a GPU.
    device: DeviceMethod = dataclasses.field(default_factory=DeviceMethod)

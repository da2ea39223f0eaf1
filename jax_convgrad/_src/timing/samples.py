"""The figures reported for samples: the median, and the quartiles as its spread."""

from __future__ import annotations

import statistics

import numpy as np


class Sampled:
    """A mixin for classes with ``samples``, in seconds."""

    samples: list[float]

    @property
    def median(self) -> float | None:
        """The median of the samples."""
        return statistics.median(self.samples) if self.samples else None

    @property
    def quartiles(self) -> tuple[float, float] | None:
        """The first and the third quartile of the samples."""
        if not self.samples:
            return None
        low, high = np.percentile(self.samples, (25, 75))
        return float(low), float(high)

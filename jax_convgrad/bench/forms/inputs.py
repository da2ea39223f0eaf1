"""The operands of all passes of one case: random numbers, made on all cores."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_convgrad.bench.case_files import AnyCase
from jax_convgrad.bench.cases import DTYPES


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The operands of all passes of one case."""

    x: np.ndarray
    w: np.ndarray
    dy: np.ndarray

    @classmethod
    def random(cls, case: AnyCase, rng: np.random.Generator) -> Inputs:
        """Standard normal numbers, rounded to the case's dtype."""
        dtype = jnp.dtype(DTYPES[case.dtype])
        return cls(
            *(
                _standard_normal(rng, shape, dtype)
                for shape in (case.x_shape, case.w_shape, case.y_shape)
            )
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all three."""
        return self.x.nbytes + self.w.nbytes + self.dy.nbytes


def _standard_normal(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> np.ndarray:
    """Random numbers, made on all cores, and the same on any number of them."""
    wide = np.empty(shape, np.float64 if dtype == np.float64 else np.float32)
    flat = wide.reshape(-1)
    parts = [flat[i : i + 2**20] for i in range(0, flat.size, 2**20)]

    def draw(rng: np.random.Generator, part: np.ndarray) -> None:
        rng.standard_normal(dtype=part.dtype, out=part)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(draw, rng.spawn(len(parts)), parts))
    # NumPy rounds to bfloat16 on one core, and slowly.
    return wide if wide.dtype == dtype else np.array(jnp.asarray(wide).astype(dtype))

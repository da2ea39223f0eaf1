"""What `explain` says of one convolution or resize."""

from __future__ import annotations

import dataclasses

from jax_convgrad._src.explain.roofline import Roofline
from jax_convgrad._src.explain.walk import SourceLine


@dataclasses.dataclass(frozen=True)
class ExplanationRow:
    """One convolution or resize of a program.

    Attributes:
      source: the line it comes from, of the program's own files if one is among the callers.
      scope: the `jax.named_scope` names around it; modules of Flax and Haiku set them.
      backward: whether it is part of a backward pass.
      within: the loops and branches around it, outermost first.
      count: how often one call of the function runs it; None inside a ``while_loop``.
      used: whether anything depends on its result. XLA drops what nothing depends on.
      primitive: the equation's name in the jaxpr.
      operator: "conv_fprop", "conv_dgrad", "conv_wgrad" or "resample"; "resize" for a `jax.image.resize`
        that `jax_convgrad.install` does not reach; None for a convolution that is none of the three.
      sizes: of the convolution x -> y that the operator belongs to, or of a resize's image and result.
      dtype, result_dtype: of operands and result.
      ours: whether this package computes it with `jax_convgrad.install` on.
      backend: who: "onednn", "cudnn", "native", or plain JAX: "xla", "xla_rewritten" (a form that XLA is
        faster at), "gemm" (a matrix product), "zeros".
      reason: why.
      evidence: the measurements behind it, as FILE#CASE#PASS under the repository's benchmarks/.
      measured_on: the class of devices that they were made on ("sm_90", "avx512", ...); None where the
        reason is none of speed.
      xla: what XLA has without this package.
      roofline: bytes and operations that it cannot do without; None where the equation was not read or
        sizes are symbolic.
      roofline_seconds: what the memory needs for the bytes; None where its speed is not known (CPUs).
      seconds: measured time of this package, by its backend, or by its handler where XLA keeps the
        equation. None where it was not measured.
      xla_seconds: measured time without this package.
    """

    source: SourceLine
    scope: str
    backward: bool
    within: tuple[str, ...]
    count: int | None
    used: bool
    primitive: str
    operator: str | None
    sizes: str
    dtype: str
    result_dtype: str
    ours: bool
    backend: str
    reason: str
    evidence: tuple[str, ...]
    measured_on: str | None
    xla: str
    roofline: Roofline | None
    roofline_seconds: float | None
    seconds: float | None = None
    xla_seconds: float | None = None

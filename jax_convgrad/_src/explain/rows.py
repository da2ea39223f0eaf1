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
      operator: "conv_fprop", "conv_dgrad", "conv_wgrad" or "resample"; "conv_backward" for a whole backward
        pass that one call computes; "resize" for a `jax.image.resize` that `jax_convgrad.install` does not
        reach; None for a convolution that is none of the three.
      sizes: of the convolution x -> y that the operator belongs to, or of a resize's image and result.
      dtype: of the operands.
      result_dtype: of the result, or results.
      ours: whether this package computes it when `jax_convgrad.install` is on.
      backend: what computes it: "onednn", "cudnn", "native", or plain JAX: "xla", "xla_rewritten" (a form
        that XLA runs faster), "gemm" (a matrix product), "zeros".
      reason: why that backend.
      evidence: the measurements behind it, as FILE#CASE#PASS under the repository's benchmarks/.
      measured_on: the class of devices that they were made on ("sm_90", "avx512", ...); None where
        the reason is not speed.
      preparation: what is done to the operands of a handler's call: "none", "zero_channel" (one more
        channel, of zeros), "float32" (they are widened), "even_padding" (the extra padding on one side is
        written out) or "xio_weights" (weights are read in the order in which they lie).
      preparation_evidence: the measurements behind that.
      missing: where the reason is that this machine's handlers are missing: the full cause, and the command
        that helps. None otherwise.
      xla: what XLA would run without this package.
      roofline: bytes and operations that the pass cannot do without; None where the equation matches no
        operator or sizes are symbolic.
      roofline_seconds: the time that the memory needs for these bytes; None where its speed is not known
        (CPUs).
      gain: how many times faster than XLA it is expected to be, as similar problems were that were measured
        on devices of this platform; 1 where XLA keeps it. None where nothing near enough was measured, or
        where XLA divides it among devices. It is an expectation, and no measurement of this row.
      gain_spread: the factor by which it may be off: within it were four in five measured problems of this
        kind, each predicted from the others. 1 where the problem itself was measured, or XLA keeps it.
      gain_evidence: these measurements, nearest first, as FILE#CASE#PASS. Where the pass is "dxdwdb" the
        gradients of the layer were measured together.
      gain_measured_on: the classes of devices that they were made on.
      expected_xla_seconds: the time of XLA on such devices, from the same measurements. It weighs the rows
        in the gain of the whole program.
      seconds: measured time with this package: of its backend, or of its handler where XLA keeps the
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
    preparation: str
    preparation_evidence: tuple[str, ...]
    xla: str
    roofline: Roofline | None
    roofline_seconds: float | None
    gain: float | None = None
    gain_spread: float | None = None
    gain_evidence: tuple[str, ...] = ()
    gain_measured_on: tuple[str, ...] = ()
    expected_xla_seconds: float | None = None
    seconds: float | None = None
    xla_seconds: float | None = None
    missing: str | None = None

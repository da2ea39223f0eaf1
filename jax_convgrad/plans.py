"""The engine that computes each problem on CUDA: list the choices, save them, load them, clear them.

An engine is one of cuDNN's or a kernel of this project: "native_depthwise" for one filter per channel,
which uses no TF32; several whose names begin with ``native_thin_``, such as "native_thin_image", for thin
layers in 16 bits and, where TF32 is allowed, in float32, and for windows side by side in 16 bits; several
whose names begin with ``native_implicit_gemm_``, such as "native_implicit_gemm_fprop_planes_16x16", for
layers of 8 to 64 channels without groups, in the same types; and, on Hopper devices, "native_dilated" for
the gradients of dense dilated convolutions with stride 1 in float32, where TF32 is allowed. All of these
kernels are deterministic.

The handlers choose an engine when a program runs for the first time, before its first kernel. Settings hold
for the whole process, and for programs that are lowered after the setting was made. A program keeps its
settings and its engines, because XLA updates a captured CUDA graph in place when arrays have moved, and
that fails with another engine's kernels. A changed setting therefore clears JAX's caches: functions under
`jax.jit` are compiled again at their next call, while programs that were compiled, lowered or exported
before stay as they are. All functions may be called from several threads. Without the CUDA module there
are no plans, and settings change nothing.
"""

from jax_convgrad._src.runtime.plans import (
    clear,
    list,
    load,
    save,
    set_algorithm_search,
    set_deterministic,
    set_workspace_limit,
    workspace_limit,
)

__all__ = [
    "clear",
    "list",
    "load",
    "save",
    "set_algorithm_search",
    "set_deterministic",
    "set_workspace_limit",
    "workspace_limit",
]

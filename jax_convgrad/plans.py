"""Which engine does which problem on CUDA: how it is chosen, what was chosen, and keeping it.

The engines are cuDNN's and this project's own kernels where they serve a problem, first in their order
where they are likely to be the fastest: "native_depthwise" for one filter per channel, which uses no
TF32, and on Hopper devices "native_dilated" for the gradients of dense dilated convolutions with stride 1
in float32, where TF32 is allowed. Both are deterministic.

The handlers choose when a program runs for the first time, before its first kernel. Settings hold for
the whole process and for what is lowered after they were made; a program carries those that it was
lowered with, and keeps its engines. (It must: what XLA captured into a CUDA graph it updates in place
when arrays have moved, and a kernel whose thread blocks form clusters of another size than the one it
takes the place of then fails.) So where a setting is changed, JAX's caches are cleared: functions under
`jax.jit` are compiled anew at their next call, and programs that were compiled, lowered or exported
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

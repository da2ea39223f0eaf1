"""PyTorch itself, where it is installed: its functions' values and gradients as numpy arrays."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import numpy as np

from jax_convgrad._src.runtime import registry

HAS_TORCH = importlib.util.find_spec("torch") is not None

# Where a hypervisor reports AMX and hides its tiles, PyTorch's oneDNN ends the process in strided bfloat16
# gradients (NOTE [Tiles that are not described] in cpp/cpu/onednn/errata.cc). It reads this when it is first
# used; the package's own oneDNN runs the same kernels there with it and without.
_module = registry.cpu_module() if HAS_TORCH else None
if _module is not None and not _module.describes_amx_tiles():
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# Norm-wise, for float64 results of which both sides round every sum: 64 units in the last place.
TIGHT = 64 * float(np.finfo(np.float64).eps)


def functional(name: str) -> Any:
    """PyTorch's function of that name; on one thread, which leaves the others to JAX."""
    import torch

    torch.set_num_threads(1)
    return getattr(torch.nn.functional, name)


def tensors(dtype: str, *arrays: Any) -> list[Any]:
    import torch

    kind = getattr(torch, dtype)
    return [torch.tensor(np.asarray(array, np.float64)).to(kind) for array in arrays]


def value_and_gradients(f: Any, dtype: str, dy: Any, *arrays: Any) -> list[np.ndarray]:
    """f(*arrays) and its gradients for all of them, computed in ``dtype``, as float64."""
    dy, *operands = tensors(dtype, dy, *arrays)
    for operand in operands:
        operand.requires_grad_()
    y = f(*operands)
    assert y.shape == dy.shape, f"PyTorch gives {tuple(y.shape)}, not {tuple(dy.shape)}"
    y.backward(dy)
    return [t.detach().double().numpy() for t in (y, *(operand.grad for operand in operands))]

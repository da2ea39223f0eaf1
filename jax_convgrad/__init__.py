"""Fast backward passes of convolution and transposed convolution for JAX."""

from jax_convgrad import onednn, onnx, plans
from jax_convgrad.conv import (
    conv_dgrad,
    conv_fprop,
    conv_general_dilated,
    conv_transpose,
    conv_wgrad,
)
from jax_convgrad.plans import set_algorithm_search, set_deterministic, set_workspace_limit
from jax_convgrad.registry import has_cuda, info

__all__ = [
    "conv_dgrad",
    "conv_fprop",
    "conv_general_dilated",
    "conv_transpose",
    "conv_wgrad",
    "has_cuda",
    "info",
    "onednn",
    "onnx",
    "plans",
    "set_algorithm_search",
    "set_deterministic",
    "set_workspace_limit",
]

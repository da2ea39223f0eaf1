"""Fast backward passes of convolution, transposed convolution and resize for JAX."""

from jax_convgrad import onednn, onnx, plans, registry, torch
from jax_convgrad.conv import (
    conv_dgrad,
    conv_fprop,
    conv_general_dilated,
    conv_transpose,
    conv_wgrad,
)
from jax_convgrad.explain import explain
from jax_convgrad.exports import export_checks, load_handlers
from jax_convgrad.install import install, install_from_environment, installed, uninstall
from jax_convgrad.plans import set_algorithm_search, set_deterministic, set_workspace_limit
from jax_convgrad.registry import has_cuda, info
from jax_convgrad.resize import resample, resample_transpose, resize, scale_and_translate

__all__ = [
    "conv_dgrad",
    "conv_fprop",
    "conv_general_dilated",
    "conv_transpose",
    "conv_wgrad",
    "explain",
    "export_checks",
    "has_cuda",
    "info",
    "install",
    "installed",
    "load_handlers",
    "onednn",
    "onnx",
    "plans",
    "resample",
    "resample_transpose",
    "resize",
    "scale_and_translate",
    "set_algorithm_search",
    "set_deterministic",
    "set_workspace_limit",
    "torch",
    "uninstall",
]

__version__ = registry.version()

install_from_environment()

"""Fast backward passes of convolution, transposed convolution and resize for JAX."""

from jax_convgrad import onednn, onnx, plans, torch
from jax_convgrad._src.compat import UnsupportedJaxWarning
from jax_convgrad._src.conv.api import (
    conv_backward,
    conv_dgrad,
    conv_fprop,
    conv_general_dilated,
    conv_transpose,
    conv_wgrad,
)
from jax_convgrad._src.dispatch.info import info
from jax_convgrad._src.explain.program import Explanation, explain
from jax_convgrad._src.explain.roofline import Roofline
from jax_convgrad._src.explain.rows import ExplanationRow
from jax_convgrad._src.explain.walk import SourceLine
from jax_convgrad._src.install.installation import Installation
from jax_convgrad._src.install.switch import (
    disabled,
    install,
    installed,
    uninstall,
)
from jax_convgrad._src.install.switch import (
    install_from_environment as _install_from_environment,
)
from jax_convgrad._src.resize.api import (
    resample,
    resample_transpose,
    resize,
    scale_and_translate,
)
from jax_convgrad._src.runtime.export import export_checks, load_handlers
from jax_convgrad._src.runtime.plans import (
    set_algorithm_search,
    set_deterministic,
    set_workspace_limit,
)
from jax_convgrad._src.runtime.registry import (
    MissingHandlersWarning,
    UnvalidatedLibraryWarning,
    has_cuda,
)
from jax_convgrad._src.runtime.registry import version as _version
from jax_convgrad._src.tuning.store import StaleTuningWarning, TuningFileError

__all__ = [
    "Explanation",
    "ExplanationRow",
    "Installation",
    "MissingHandlersWarning",
    "Roofline",
    "SourceLine",
    "StaleTuningWarning",
    "TuningFileError",
    "UnsupportedJaxWarning",
    "UnvalidatedLibraryWarning",
    "conv_backward",
    "conv_dgrad",
    "conv_fprop",
    "conv_general_dilated",
    "conv_transpose",
    "conv_wgrad",
    "disabled",
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

__version__ = _version()

_install_from_environment()

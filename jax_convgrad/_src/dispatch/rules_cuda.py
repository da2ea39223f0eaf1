"""Who computes a convolution on CUDA, as one H100 says (benchmarks/h100/backends.json).

Where cuDNN and XLA's program for the same operator tie, the rule says XLA, which fuses; except where other
layers of the rule gain, and where there is nothing to fuse.
"""

from __future__ import annotations

from jax_convgrad._src.dispatch.features import ConvFeatures
from jax_convgrad._src.dispatch.rules import Rule, RuleTable, at_least, at_most

_HALF = {"float16", "bfloat16"}
# Strided layers with one group that cuDNN has float64 engines for.
_DOUBLE = {
    "dtype": "float64",
    "is_strided": True,
    "is_dense": True,
    "is_dilated": False,
    "is_cropped": False,
}
_DEPTHWISE = {"is_depthwise": True, "multiplier": 1}
_GROUPED = {"is_dense": False}


def _product(**rest: object) -> tuple[dict[str, object], ...]:
    """Windows that do not overlap, in a dtype whose matrix products run on tensor cores."""
    windows = {"has_nonoverlapping_windows": True, **rest}
    return {"dtype": _HALF, **windows}, {"dtype": "float32", "allows_tf32": True, **windows}


SM_90 = RuleTable(
    "sm_90",
    ConvFeatures,
    (
        Rule(
            name="wider result",
            when={"widens": True},
            backend="xla",
            reason="the handlers' results have the dtype of their operands",
            evidence=(),
        ),
        Rule(
            name="beyond memory",
            when={"is_beyond_memory": True},
            backend="cudnn",
            reason="XLA's forms hold arrays with the padding and the zeros, which no memory does",
            evidence=(),
        ),
        Rule(
            name="symbolic channels",
            when={"known_channels": False},
            backend="cudnn",
            reason="a handler serves channels and windows of every size",
            evidence=(),
        ),
        Rule(
            name="patches of thin images",
            when=_product(in_channels=at_most(4)),
            backend="gemm",
            reason="a matrix product of patches is faster than a convolution of so few input channels",
            evidence=(),
        ),
        Rule(
            name="dX of large patches",
            when=_product(operator="conv_dgrad", taps=at_least(16)),
            backend="gemm",
            reason="a matrix product writes each patch of dX once",
            evidence=(),
        ),
        Rule(
            name="depthwise 3x3 forward, strided",
            when={
                **_DEPTHWISE,
                "operator": "conv_fprop",
                "kernel": (3, 3),
                "is_strided": True,
                "is_dilated": False,
            },
            backend="xla",
            reason="XLA calls the same kernel of cuDNN, and fuses",
            evidence=(),
        ),
        Rule(
            name="depthwise 7x7 dW, 16 bits",
            when={
                **_DEPTHWISE,
                "operator": "conv_wgrad",
                "dtype": _HALF,
                "kernel": (7, 7),
                "is_strided": False,
                "is_dilated": False,
            },
            backend="xla",
            reason="XLA calls the same kernel of cuDNN, and fuses",
            evidence=(),
        ),
        Rule(
            name="depthwise",
            when=_DEPTHWISE,
            backend="cudnn",
            reason="XLA has no fast kernel for one filter a channel, this project has",
            evidence=(),
        ),
        Rule(
            name="float64 forward, 3-D",
            when={**_DOUBLE, "operator": "conv_fprop", "spatial_rank": 3},
            backend="cudnn",
            reason="XLA transposes 3-D arrays",
            evidence=(),
        ),
        Rule(
            name="float64 dW",
            when={**_DOUBLE, "operator": "conv_wgrad"},
            backend="xla",
            reason="cuDNN's float64 engines change formats at each call, XLA only where it must",
            evidence=(),
        ),
        Rule(
            name="float64 dX",
            when={**_DOUBLE, "operator": "conv_dgrad"},
            backend="xla",
            reason="cuDNN has no fast float64 engine where the sides' padding differs, and ties elsewhere",
            evidence=(),
        ),
        Rule(
            name="float64 forward",
            when={**_DOUBLE, "operator": "conv_fprop"},
            backend="xla",
            reason="XLA shares changes of format between a layer's operators",
            evidence=(),
        ),
        Rule(
            name="3-D",
            when={"spatial_rank": 3},
            backend="cudnn",
            reason="XLA transposes 3-D arrays",
            evidence=(),
        ),
        Rule(
            name="dilated forward, 2-D",
            when={
                "operator": "conv_fprop",
                "is_dilated": True,
                "is_strided": False,
                "spatial_rank": 2,
            },
            backend="xla",
            reason="times tie, and XLA fuses",
            evidence=(),
        ),
        Rule(
            name="dilated dX, 1-D",
            when={
                "operator": "conv_dgrad",
                "is_dilated": True,
                "is_strided": False,
                "spatial_rank": 1,
            },
            backend="xla",
            reason="XLA's engine for the dX of dilated sequences is the faster one",
            evidence=(),
        ),
        Rule(
            name="dilated",
            when={"is_dilated": True},
            backend="cudnn",
            reason="XLA computes gradients of dilated kernels with windows as large as dy",
            evidence=(),
        ),
        Rule(
            name="cropped dW",
            when={"operator": "conv_wgrad", "is_cropped": True},
            backend="cudnn",
            reason="XLA computes cropped weight gradients with a window as large as dy",
            evidence=(),
        ),
        Rule(
            name="grouped, unstrided",
            when={**_GROUPED, "is_strided": False},
            backend="xla",
            reason="times tie or XLA's engines are faster, and XLA fuses",
            evidence=(),
        ),
        Rule(
            name="grouped float64 forward and dW, strided",
            when={
                **_GROUPED,
                "dtype": "float64",
                "operator": {"conv_fprop", "conv_wgrad"},
            },
            backend="xla",
            reason="cuDNN's float64 engines change formats at each call, XLA only where it must",
            evidence=(),
        ),
        Rule(
            name="grouped forward, strided",
            when={**_GROUPED, "operator": "conv_fprop"},
            backend="cudnn",
            reason="the search finds a faster engine for strided groups than XLA takes",
            evidence=(),
        ),
        Rule(
            name="grouped float64 dX, strided",
            when={**_GROUPED, "dtype": "float64"},
            backend="cudnn",
            reason="XLA inserts the zeros of the strides",
            evidence=(),
        ),
        Rule(
            name="grouped float32 dX, strided, few groups",
            when={
                **_GROUPED,
                "dtype": "float32",
                "operator": "conv_dgrad",
                "groups": at_most(8),
            },
            backend="cudnn",
            reason="the search finds a faster engine for few groups than XLA takes",
            evidence=(),
        ),
        Rule(
            name="grouped float32 gradients, strided",
            when={**_GROUPED, "dtype": "float32"},
            backend="xla",
            reason="XLA's tuning finds engines for many groups that cuDNN's heuristics do not offer",
            evidence=(),
        ),
        Rule(
            name="grouped dX in 16 bits, strided, few groups",
            when={**_GROUPED, "operator": "conv_dgrad", "groups": at_most(8)},
            backend="xla",
            reason="XLA's engine for few wide groups in 16 bits is the faster one",
            evidence=(),
        ),
        Rule(
            name="grouped gradients in 16 bits, strided",
            when=_GROUPED,
            backend="cudnn",
            reason="the search finds a faster engine for strided groups than XLA takes",
            evidence=(),
        ),
        Rule(
            name="dense forward, unstrided",
            when={"operator": "conv_fprop", "is_strided": False},
            backend="xla",
            reason="times tie, and XLA adds the bias and takes the ReLU in the same kernel",
            evidence=(),
        ),
        Rule(
            name="dense gradients without TF32, unstrided",
            when={"dtype": "float32", "allows_tf32": False, "is_strided": False},
            backend="xla",
            reason="XLA may take engines that transform (Winograd), which the handlers' search leaves out",
            evidence=(),
        ),
        Rule(
            name="dense float64 and odd gradients, unstrided",
            when=(
                {"dtype": "float64", "is_strided": False},
                {"dtype": _HALF, "has_odd_channels": True, "is_strided": False},
            ),
            backend="xla",
            reason="times tie, and XLA fuses",
            evidence=(),
        ),
        Rule(
            name="dense gradients, unstrided",
            when={"is_strided": False},
            backend="cudnn",
            reason="times tie, and XLA's command buffers hold the handlers' calls but none of its own",
            evidence=(),
        ),
        Rule(
            name="dense dX, strided",
            when={"operator": "conv_dgrad"},
            backend="cudnn",
            reason="XLA inserts the zeros of the strides",
            evidence=(),
        ),
        Rule(
            name="dense in 16 bits with odd channels, strided",
            when={"dtype": _HALF, "has_odd_channels": True},
            backend="xla",
            reason="XLA fills up odd channels once for all operators of a layer",
            evidence=(),
        ),
        Rule(
            name="dense forward, strided, even padding",
            when={"operator": "conv_fprop", "has_uneven_padding": False},
            backend="xla",
            reason="times tie, and XLA fuses",
            evidence=(),
        ),
        Rule(
            name="dense forward, strided, uneven padding",
            when={"operator": "conv_fprop"},
            backend="cudnn",
            reason="XLA pads in a pass of its own where the two sides differ",
            evidence=(),
        ),
        Rule(
            name="dense dW, strided",
            when={},
            backend="cudnn",
            reason="the search finds a faster engine for strided weight gradients than XLA takes",
            evidence=(),
        ),
    ),
)

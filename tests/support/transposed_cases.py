"""Named transposed convolutions, each with the equivalent convolution in lax's terms."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
from jax import lax
from support.conv_cases import Case
from support.layouts import NDHWC, NHWC, NWC, Pairs, Shape, from_layout, to_layout


@dataclasses.dataclass(frozen=True)
class TransposedCase:
    """A transposed convolution. ``w`` is (output channels, input channels / groups, kernel).

    ``pairs`` are those of the dilated input, written out by hand for every kind of padding
    argument; None where ``padding`` are those pairs already. ``layout`` None means NHWC, HWIO, NHWC.
    """

    id: str
    x: Shape
    w: Shape
    strides: Shape
    padding: str | Pairs
    pairs: Pairs | None = None
    dilation: Shape = ()
    groups: int = 1
    layout: Any = None
    transpose_kernel: bool = False
    use_consistent_padding: bool = False
    output_padding: int | Shape = 0
    output_shape: Shape | None = None

    @functools.cached_property
    def conv(self) -> Case:
        """The same map in lax's terms: a convolution of an input dilated by the strides."""
        layout = self.layout or {1: NWC, 2: NHWC, 3: NDHWC}[len(self.x) - 2]
        pairs = self.padding if self.pairs is None else self.pairs
        return Case(
            self.id, self.x, self.w, (), pairs, self.dilation, self.groups, layout, self.strides
        )

    @property
    def keywords(self) -> dict[str, Any]:
        return {
            "strides": self.strides,
            "padding": self.padding,
            "rhs_dilation": self.dilation or None,
            "dimension_numbers": self.layout,
            "transpose_kernel": self.transpose_kernel,
            "use_consistent_padding": self.use_consistent_padding,
            "feature_group_count": self.groups,
            "output_padding": self.output_padding,
            "output_shape": self.output_shape,
        }

    @property
    def reverses_weights(self) -> bool:
        """Whether the convolution underneath, y -> x, has them reversed, and is what is computed."""
        grows = any(y > x for y, x in zip(self.conv.y[2:], self.x[2:], strict=True))
        return not self.transpose_kernel and (max(self.strides) > 1 or grows)

    @property
    def is_lax(self) -> bool:
        """Whether lax.conv_transpose has all of the arguments (it has no SAME_LOWER either)."""
        return (
            self.groups == 1
            and self.output_padding == 0
            and self.output_shape is None
            and self.padding != "SAME_LOWER"
        )

    @property
    def lax_keywords(self) -> dict[str, Any]:
        own = ("feature_group_count", "output_padding", "output_shape")
        return {name: value for name, value in self.keywords.items() if name not in own}

    def passed_weights(self, w: np.ndarray) -> np.ndarray:
        """The rhs that acts as ``w``: with transpose_kernel reversed, and O and I swapped."""
        if self.transpose_kernel:
            w = np.flip(np.swapaxes(w, 0, 1), tuple(range(2, w.ndim)))
        return to_layout(w, self.conv.numbers.rhs_spec)

    def canonical_weights(self, rhs: Any) -> np.ndarray:
        """The inverse of `passed_weights`."""
        w = from_layout(rhs, self.conv.numbers.rhs_spec)
        if self.transpose_kernel:
            w = np.swapaxes(np.flip(w, tuple(range(2, w.ndim))), 0, 1)
        return w


def _t(
    id: str, x: Shape, w: Shape, strides: Shape, padding: Any, pairs: Any = None, **rest: Any
) -> TransposedCase:
    return TransposedCase(id, x, w, strides, padding, pairs, **rest)


TRANSPOSED_CASES = [
    # lax: SAME pads the dilated input by k + s - 2 in all, the larger half first, at most k - 1.
    _t("same-k4s2", (2, 3, 4, 5), (4, 3, 4, 4), (2, 2), "SAME", ((2, 2), (2, 2))),
    _t("same-k3s2", (2, 3, 4, 5), (4, 3, 3, 3), (2, 2), "SAME", ((2, 1), (2, 1))),
    _t("same-k2s3", (2, 3, 3, 4), (4, 3, 2, 2), (3, 3), "SAME", ((1, 2), (1, 2))),
    _t("same-lower-k3s2", (2, 3, 4, 5), (4, 3, 3, 3), (2, 2), "SAME_LOWER", ((1, 2), (1, 2))),
    _t("same-stride1", (2, 3, 5, 4), (4, 3, 3, 3), (1, 1), "SAME", ((1, 1), (1, 1))),
    _t("valid-stride1", (2, 3, 5, 4), (4, 3, 3, 2), (1, 1), "VALID", ((2, 2), (1, 1))),
    _t(
        "pairs-stride1-smaller",
        (2, 4, 6, 7),
        (6, 2, 3, 2),
        (1, 1),
        ((1, 0), (-1, 1)),
        dilation=(2, 1),
        groups=2,
        layout=("NCHW", "IOHW", "NCHW"),
    ),
    _t(
        "same-dilated",
        (2, 3, 4, 5),
        (4, 3, 3, 2),
        (2, 2),
        "SAME",
        ((3, 2), (2, 1)),
        dilation=(2, 2),
    ),
    _t("valid-k4s2", (2, 3, 4, 5), (4, 3, 4, 4), (2, 2), "VALID", ((3, 3), (3, 3))),
    _t("valid-k2s2", (2, 3, 4, 5), (4, 3, 2, 2), (2, 2), "VALID", ((1, 1), (1, 1))),
    _t(
        "valid-kernel-smaller-than-stride",
        (1, 3, 3, 2),
        (4, 3, 2, 1),
        (4, 3),
        "VALID",
        ((1, 3), (0, 2)),
    ),
    _t(
        "valid-dilated",
        (1, 3, 3, 4),
        (4, 3, 3, 2),
        (2, 1),
        "VALID",
        ((4, 4), (3, 3)),
        dilation=(2, 3),
    ),
    _t("pairs", (2, 3, 4, 5), (4, 3, 3, 3), (2, 2), ((1, 2), (0, 3))),
    _t("pairs-crop", (2, 3, 5, 6), (4, 3, 2, 3), (2, 2), ((-1, 0), (1, -2))),
    _t("pairs-larger-than-the-kernel", (1, 3, 2, 3), (4, 3, 2, 2), (2, 3), ((4, 0), (2, 5))),
    _t("pairs-unread-inputs", (1, 3, 5, 6), (4, 3, 2, 2), (3, 2), ((-3, -2), (0, -4))),
    _t(
        "consistent-pairs",  # k - 1 - p of the convolution underneath
        (2, 3, 4, 5),
        (4, 3, 4, 3),
        (2, 2),
        ((1, 1), (0, 2)),
        ((2, 2), (2, 0)),
        use_consistent_padding=True,
    ),
    _t(
        "consistent-pairs-dilated",
        (1, 3, 4, 5),
        (4, 3, 3, 2),
        (3, 2),
        ((1, 0), (2, 1)),
        ((3, 4), (1, 2)),
        dilation=(2, 3),
        use_consistent_padding=True,
    ),
    _t(
        "consistent-same",
        (2, 3, 4, 5),
        (4, 3, 3, 3),
        (2, 2),
        "SAME",
        ((2, 1), (2, 1)),
        use_consistent_padding=True,
    ),
    _t(
        "transpose-kernel",
        (2, 3, 4, 5),
        (5, 3, 3, 4),
        (2, 2),
        "SAME",
        ((2, 1), (2, 2)),
        transpose_kernel=True,
    ),
    _t(
        "transpose-kernel-nchw",
        (2, 3, 4, 5),
        (5, 3, 3, 4),
        (2, 1),
        ((1, 1), (2, 0)),
        transpose_kernel=True,
        layout=("NCHW", "OIHW", "NCHW"),
    ),
    _t(
        "transpose-kernel-groups",
        (2, 4, 4, 5),
        (6, 2, 3, 2),
        (2, 2),
        ((2, 1), (1, 1)),
        groups=2,
        transpose_kernel=True,
    ),
    _t("groups2", (2, 4, 4, 5), (6, 2, 3, 3), (2, 2), "SAME", ((2, 1), (2, 1)), groups=2),
    _t(
        "groups3-nchw",
        (2, 6, 4, 3),
        (9, 2, 2, 3),
        (2, 3),
        "VALID",
        ((1, 1), (2, 2)),
        groups=3,
        layout=("NCHW", "IOHW", "NCHW"),
    ),
    _t("depthwise", (2, 5, 4, 3), (5, 1, 4, 4), (2, 2), "SAME", ((2, 2), (2, 2)), groups=5),
    _t(
        "depthwise-multiplier2",
        (1, 3, 4, 5),
        (6, 1, 3, 3),
        (2, 2),
        "SAME",
        ((2, 1), (2, 1)),
        groups=3,
    ),
    _t(
        "output-padding",
        (2, 3, 4, 5),
        (4, 3, 3, 3),
        (2, 2),
        ((1, 1), (1, 1)),
        ((1, 2), (1, 2)),
        output_padding=1,
    ),
    _t(
        "output-padding-per-axis",
        (2, 3, 4, 5),
        (4, 3, 3, 3),
        (2, 3),
        ((1, 1), (1, 1)),
        ((1, 1), (1, 3)),
        output_padding=(0, 2),
    ),
    _t(
        "output-padding-same",
        (1, 3, 4, 5),
        (4, 3, 3, 3),
        (2, 2),
        "SAME",
        ((2, 2), (2, 2)),
        output_padding=1,
    ),
    _t(
        "output-padding-at-least-the-stride",
        (1, 3, 4, 5),
        (4, 3, 3, 2),
        (1, 2),
        ((2, 2), (1, 1)),
        ((2, 5), (1, 4)),
        dilation=(4, 5),
        output_padding=(3, 3),
    ),
    _t(
        "output-padding-groups",
        (1, 4, 3, 4),
        (4, 2, 4, 4),
        (3, 3),
        "VALID",
        ((3, 5), (3, 5)),
        groups=2,
        output_padding=2,
    ),
    # 4 inputs, k 3, s 2: the full result has 9; SAME cuts evenly, the odd one at the high side.
    _t(
        "output-shape-same",
        (2, 3, 4, 4),
        (4, 3, 3, 3),
        (2, 2),
        "SAME",
        ((2, 1), (1, 1)),
        output_shape=(8, 7),
    ),
    _t(
        "output-shape-same-lower",
        (2, 3, 4, 4),
        (4, 3, 3, 3),
        (2, 2),
        "SAME_LOWER",
        ((1, 2), (1, 1)),
        output_shape=(8, 7),
    ),
    _t(
        "output-shape-same-beyond-full",
        (1, 3, 4, 4),
        (4, 3, 3, 3),
        (2, 2),
        "SAME",
        ((2, 3), (2, 2)),
        output_shape=(10, 9),
    ),
    _t(
        "output-shape-valid",
        (1, 3, 4, 4),
        (4, 3, 3, 3),
        (2, 2),
        "VALID",
        ((2, 2), (2, 3)),
        output_shape=(9, 10),
    ),
    _t(
        "output-shape-pairs",
        (1, 3, 4, 4),
        (4, 3, 3, 3),
        (2, 3),
        ((1, 1), (1, 1)),
        ((1, 2), (1, 3)),
        output_shape=(8, 12),
    ),
    _t("odd-channels", (2, 7, 3, 4), (11, 7, 3, 3), (2, 2), "SAME", ((2, 1), (2, 1))),
    _t("kernel-equals-stride", (1, 5, 3, 4), (3, 5, 4, 3), (4, 3), "SAME", ((3, 3), (2, 2))),
    _t("batch1-one-pixel", (1, 6, 1, 1), (4, 6, 4, 4), (1, 1), "VALID", ((3, 3), (3, 3))),
    _t("1d", (2, 3, 6), (4, 3, 5), (3,), "SAME", ((3, 3),)),
    _t(
        "1d-groups-output-padding",
        (2, 4, 5),
        (6, 2, 3),
        (2,),
        ((1, 1),),
        ((1, 2),),
        groups=2,
        output_padding=1,
    ),
    _t("3d", (1, 3, 2, 3, 2), (4, 3, 2, 3, 4), (2, 2, 2), "SAME", ((1, 1), (2, 1), (2, 2))),
    _t(
        "3d-ncdhw",
        (1, 3, 2, 3, 2),
        (4, 3, 2, 2, 2),
        (2, 1, 3),
        "VALID",
        ((1, 1), (1, 1), (1, 2)),
        layout=("NCDHW", "OIDHW", "NCDHW"),
    ),
    _t(
        "layout-tuples",
        (2, 3, 4, 5),
        (4, 3, 3, 2),
        (2, 1),
        ((1, 2), (0, 1)),
        layout=lax.ConvDimensionNumbers((3, 0, 2, 1), (1, 3, 0, 2), (2, 1, 3, 0)),
    ),
    _t("batch0", (0, 3, 4, 5), (4, 3, 3, 3), (2, 2), "SAME", ((2, 1), (2, 1))),
    _t("spatial0", (2, 3, 0, 5), (4, 3, 3, 3), (2, 2), ((3, 2), (2, 1))),
    _t("output0", (2, 3, 1, 5), (4, 3, 3, 3), (2, 2), ((1, 0), (1, 1))),
    _t("channels0", (2, 0, 4, 5), (4, 0, 3, 3), (2, 2), "SAME", ((2, 1), (2, 1))),
]

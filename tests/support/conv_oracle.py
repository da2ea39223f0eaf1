"""The result of a convolution and its gradients by definition."""

from __future__ import annotations

import numpy as np
from support import oracles
from support.conv_cases import Case


def conv_oracle(case: Case, x: np.ndarray, w: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, ...]:
    """(y, dx, dw) of ``case`` by definition, canonical order; zero sizes included.

    In the arrays' own dtype: float64, or long double.

    The zeros of lhs_dilation are really inserted, and every group of the batch is a convolution of
    its own with its share of the output channels.
    """
    steps = (slice(None), slice(None), *(slice(None, None, d) for d in case.lhs_dilation))
    spread = np.zeros(case.dilated_x, x.dtype)
    spread[steps] = x
    y, dspread, dw = (np.zeros(s, x.dtype) for s in (case.y, case.dilated_x, case.w))
    batch, outputs = case.y[0], case.w[0] // case.batch_groups
    for g in range(case.batch_groups):
        n, o = slice(g * batch, (g + 1) * batch), slice(g * outputs, (g + 1) * outputs)
        y[:, o] = oracles.conv_fprop(spread[n], w[o], **case.geometry)
        dspread[n] = oracles.conv_dgrad(dy[:, o], w[o], spread[n].shape, **case.geometry)
        dw[o] = oracles.conv_wgrad(spread[n], dy[:, o], w[o].shape, **case.geometry)
    return y, dspread[steps], dw

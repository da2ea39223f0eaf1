"""The convolution family by definition, in float64 numpy. Shares nothing with the package.

Canonical order throughout: x (N, C, spatial...), w (O, C/groups,
kernel...), y (N, O, spatial...), with one stride, one (low, high) pair and one dilation per spatial
axis. A loop over the kernel's taps; each tap is one matrix product per group. Arrays of numpy's long
double are computed in that, so that there is a truth for float64 results too.
"""

from __future__ import annotations

import itertools

import numpy as np


def out_size(size, kernel, stride, pair, dilation):
    return max((size + sum(pair) - (kernel - 1) * dilation - 1) // stride + 1, 0)


def conv_fprop(x, w, *, strides, padding, dilation, groups):
    x, w = _wide(x), _wide(w)
    y_shape = (x.shape[0], w.shape[0], *_out_spatial(x, w.shape, strides, padding, dilation))
    y = np.zeros(y_shape, x.dtype)
    for tap, rows, window in _taps(x.shape, w.shape, y.shape, strides, padding, dilation):
        for g in range(groups):
            i, o = _channels(w.shape, groups, g)
            image, weights = x[(slice(None), i, *rows)], w[(o, slice(None), *tap)]
            product = np.tensordot(weights, image, (1, 1))
            y[(slice(None), o, *window)] += product.swapaxes(0, 1)
    return y


def conv_dgrad(dy, w, x_shape, *, strides, padding, dilation, groups):
    dy, w = _wide(dy), _wide(w)
    dx = np.zeros(x_shape, dy.dtype)
    for tap, rows, window in _taps(x_shape, w.shape, dy.shape, strides, padding, dilation):
        for g in range(groups):
            i, o = _channels(w.shape, groups, g)
            gradient, weights = dy[(slice(None), o, *window)], w[(o, slice(None), *tap)]
            product = np.tensordot(weights, gradient, (0, 1))
            dx[(slice(None), i, *rows)] += product.swapaxes(0, 1)
    return dx


def conv_wgrad(x, dy, w_shape, *, strides, padding, dilation, groups):
    x, dy = _wide(x), _wide(dy)
    dw = np.zeros(w_shape, x.dtype)
    for tap, rows, window in _taps(x.shape, w_shape, dy.shape, strides, padding, dilation):
        for g in range(groups):
            i, o = _channels(w_shape, groups, g)
            image, gradient = x[(slice(None), i, *rows)], dy[(slice(None), o, *window)]
            all_but_channels = (0, *range(2, x.ndim))
            dw[(o, slice(None), *tap)] += np.tensordot(
                gradient, image, (all_but_channels, all_but_channels)
            )
    return dw


def _wide(array):
    array = np.asarray(array)
    return array if array.dtype == np.longdouble else array.astype(np.float64)


def _out_spatial(x, w_shape, strides, padding, dilation):
    return tuple(map(out_size, x.shape[2:], w_shape[2:], strides, padding, dilation))


def _channels(w_shape, groups, g):
    out = w_shape[0] // groups
    return slice(g * w_shape[1], (g + 1) * w_shape[1]), slice(g * out, (g + 1) * out)


def _taps(x_shape, w_shape, y_shape, strides, padding, dilation):
    """For each tap: its index, and the slices of x and y that it connects (those inside x only)."""
    for tap in itertools.product(*map(range, w_shape[2:])):
        rows, window = [], []
        axes = zip(tap, x_shape[2:], y_shape[2:], strides, padding, dilation, strict=True)
        for k, size, out, stride, (low, _), d in axes:
            offset = k * d - low
            first = max(0, -(offset // stride))
            last = min(out - 1, (size - 1 - offset) // stride)
            if last < first:
                break
            start = first * stride + offset
            rows.append(slice(start, start + (last - first) * stride + 1, stride))
            window.append(slice(first, last + 1))
        else:
            yield tap, tuple(rows), tuple(window)

"""The right answer: every pass of a layer in float64, with NumPy alone.

One matrix product for each tap of the kernel. It shares nothing with the programs that are timed, and BLAS
makes it fast enough for full-sized layers (XLA's own float64 convolution on a CPU is a plain loop). The
tests compare it with lax.
"""

from __future__ import annotations

import concurrent.futures
import functools
import itertools
import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from jax_convgrad.bench import resize_float64
from jax_convgrad.bench.case_files import AnyCase
from jax_convgrad.bench.cases import Case
from jax_convgrad.bench.resize_cases import ResizeCase

Array = npt.NDArray[np.float64]

# Multiply-adds that take about two seconds on two cores. Larger layers are checked on a smaller batch.
MAX_MACS = 20_000_000_000


def affordable_batch(case: AnyCase) -> int:
    """The largest batch size at which the reference stays within MAX_MACS, at least 1."""
    return max(1, min(case.n, MAX_MACS // max(1, case.macs // case.n)))


def passes(case: AnyCase, x: Array, w: Array, dy: Array) -> dict[str, Array]:
    """The output and all gradients, channels last, weights as (spatial, in / groups, out)."""
    if isinstance(case, ResizeCase):
        return resize_float64.passes(case, x, dy)
    x, w, dy = (np.asarray(a, np.float64) for a in (x, w, dy))
    # The small products of groups are faster image by image, on all cores. BLAS uses all cores for a large
    # one.
    parts = 1 if case.groups == 1 else len(x)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        images = zip(np.array_split(x, parts), np.array_split(dy, parts), strict=True)
        found = list(pool.map(lambda image: _of_images(case, image[0], w, image[1]), images))
    y, dx = (np.concatenate([part[key] for part in found]) for key in ("y", "dx"))
    dw = functools.reduce(np.add, (part["dw"] for part in found))
    return {"y": y, "dx": dx, "dw": dw, "db": dy.sum(axis=tuple(range(dy.ndim - 1)))}


def second_order(case: Case, x: Array, w: Array, dy: Array) -> dict[str, Array]:
    """Gradients, with respect to x and w, of half the squared norm of the pull-back of r = y - dy.

    That pull-back, A^T r with y = A x, is the input gradient of |y - dy|^2 / 2.
    """
    r = passes(case, x, w, dy)["y"] - np.asarray(dy, np.float64)
    slope = passes(case, x, w, r)["dx"]
    direct = passes(case, slope, w, r)
    through_y = passes(case, x, w, direct["y"])
    return {"ddx": through_y["dx"], "ddw": direct["dw"] + through_y["dw"]}


def _of_images(case: Case, x: Array, w: Array, dy: Array) -> dict[str, Array]:
    y, dx, dw = np.zeros(dy.shape), np.zeros(x.shape), np.zeros(w.shape)
    groups = case.groups
    for tap, near, far in _taps(case):
        # `near` selects the elements of the input, and `far` those of the output, that this tap connects. A
        # JAX transposed convolution does not reverse its kernel: see _taps.
        w_tap = _group_weights(w[tap], groups)
        x_rows, dy_rows = _group_rows(x[near], groups), _group_rows(dy[far], groups)
        y[far] += _ungroup_rows(x_rows @ w_tap, y[far].shape)
        dx[near] += _ungroup_rows(dy_rows @ w_tap.transpose(0, 2, 1), dx[near].shape)
        dw[tap] += _ungroup_weights(x_rows.transpose(0, 2, 1) @ dy_rows)
    return {"y": y, "dx": dx, "dw": dw}


def _taps(case: Case) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]]:
    """For each kernel element: the slices of the layer's input and output that it connects.

    With i an index of the strided side and o one of the dense side, tap t connects o = i * s - p +
    t * d. The dense side is the input of a convolution and the output of a transposed one.
    lax.conv_transpose applies its kernel as lax.conv does, to the dilated input, so its element e
    is the tap k - 1 - e of the convolution whose adjoint it is.
    """
    strided = case.spatial if case.transposed else case.out_spatial
    dense = case.out_spatial if case.transposed else case.spatial
    for tap in itertools.product(*map(range, case.kernel)):
        few, many = [slice(None)], [slice(None)]
        for axis, t in enumerate(tap):
            s = case.stride[axis]
            offset = t * case.dilation[axis] - case.padding[axis]
            first = max(0, -(offset // s))
            last = min(strided[axis] - 1, (dense[axis] - 1 - offset) // s)
            if last < first:
                break
            few.append(slice(first, last + 1))
            many.append(slice(first * s + offset, last * s + offset + 1, s))
        else:
            if case.transposed:
                element = tuple(k - 1 - t for k, t in zip(case.kernel, tap, strict=True))
                yield element, tuple(few), tuple(many)
            else:
                yield tap, tuple(many), tuple(few)


def _group_rows(a: Array, groups: int) -> Array:
    """(n, spatial, c) to (groups, rows, c / groups)."""
    return a.reshape(-1, groups, a.shape[-1] // groups).transpose(1, 0, 2)


def _ungroup_rows(a: Array, shape: tuple[int, ...]) -> Array:
    return a.transpose(1, 0, 2).reshape(shape)


def _group_weights(w: Array, groups: int) -> Array:
    """(in / groups, out) to (groups, in / groups, out / groups)."""
    return w.reshape(w.shape[0], groups, -1).transpose(1, 0, 2)


def _ungroup_weights(w: Array) -> Array:
    return w.transpose(1, 0, 2).reshape(w.shape[1], -1)


def weight_gradient(case: Case, x: Array, dy: Array) -> Array:
    """That gradient of `passes` alone, of an image at a time: for many pixels."""
    dw = np.zeros(case.w_shape)
    for image in range(case.n):
        rows, gradients = (np.asarray(a[image : image + 1], np.float64) for a in (x, dy))
        for tap, near, far in _taps(case):
            x_rows = _group_rows(rows[near], case.groups)
            dw[tap] += _ungroup_weights(
                x_rows.transpose(0, 2, 1) @ _group_rows(gradients[far], case.groups)
            )
    return dw

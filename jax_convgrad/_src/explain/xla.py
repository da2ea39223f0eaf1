"""What XLA is given where this package does nothing: as a function to run and as a sentence.

What is said beyond the equation's own parameters was measured by this project, see benchmarks/cpu.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jax_convgrad._src.conv import emit_xla
from jax_convgrad._src.conv.bias import bias_gradient
from jax_convgrad._src.dispatch.problem import ConvBackwardProblem, ConvProblem
from jax_convgrad._src.explain.roofline import windows_inside
from jax_convgrad._src.resize.bands import Band
from jax_convgrad._src.shapes import Shape

GATHER, PRODUCTS = "gather", "products"
_BATCH_GROUPS_ON_CPU = "XLA:CPU runs it 20 to 400 times slower than feature groups"


def lax_form(problem: ConvProblem) -> Callable[[Array, Array], Array]:
    """One of this package's primitives as lax writes it."""
    return lambda first, second: emit_xla.emit(problem, first, second, rewritten=False)


def backward_form(problem: ConvBackwardProblem) -> Callable[[Array, Array, Array], list[Array]]:
    """A whole backward pass as lax writes it: a convolution for dx, another for dw, a sum for db."""

    def compute(x: Array, w: Array, dy: Array) -> list[Array]:
        gradients = {
            "x": lambda: lax_form(problem.dgrad)(dy, w),
            "w": lambda: lax_form(problem.wgrad)(x, dy),
            "b": lambda: bias_gradient(dy, problem.bias_axis, problem.result_dtype),
        }
        return [gradients[gradient]() for gradient in problem.wanted]

    return compute


def describe_lax_form(platform: str, form: Callable[..., Any], operands: Sequence[Any]) -> str:
    """The convolution in a form."""
    equations = jax.make_jaxpr(form)(*operands).jaxpr.eqns
    (equation,) = (e for e in equations if e.primitive is lax.conv_general_dilated_p)
    return describe_convolution(platform, equation)


def describe_convolution(platform: str, equation: Any) -> str:
    """An equation of `lax.conv_general_dilated` as XLA sees it."""
    params = equation.params
    lhs, rhs, out = (v.aval.shape for v in (*equation.invars, *equation.outvars))
    numbers = params["dimension_numbers"]
    window = [rhs[axis] for axis in numbers.rhs_spec[2:]]
    image = [lhs[axis] for axis in numbers.lhs_spec[2:]]
    parts = [f"convolution with a window of {times(window)}"]
    if any(d > 1 for d in params["rhs_dilation"]):
        parts[0] += f" dilated by {times(params['rhs_dilation'])}"
    if any(d > 1 for d in params["lhs_dilation"]):
        parts.append(_zeros(params, image, window, [out[a] for a in numbers.out_spec[2:]]))
    if any(min(pair) < 0 for pair in params["padding"]):
        parts.append("cropped")
    if params["feature_group_count"] > 1:
        parts.append(f"{params['feature_group_count']} groups")
    if params["batch_group_count"] > 1:
        groups = f"batch_group_count {params['batch_group_count']}"
        parts.append(f"{groups} ({_BATCH_GROUPS_ON_CPU})" if platform == "cpu" else groups)
    return ", ".join(parts)


def _zeros(
    params: dict[str, Any], image: Sequence[int], window: Sequence[int], out: Sequence[int]
) -> str:
    """How many more products there are for the zeros between the input's elements."""
    share = 1.0
    rows = zip(
        image,
        window,
        out,
        params["lhs_dilation"],
        params["rhs_dilation"],
        params["window_strides"],
        params["padding"],
        strict=True,
    )
    for n, k, m, spread, dilation, stride, (low, _) in rows:
        offsets = np.arange(k) * dilation - low
        first, last = windows_inside((n - 1) * spread + 1, m, stride, offsets)
        inside = np.maximum(last - first + 1, 0)
        # Of the windows in which a tap lies inside, every period-th has it on an element.
        period, meets = spread // math.gcd(stride, spread), 0
        for start in range(period):
            every = np.maximum((last - start) // period - (first - 1 - start) // period, 0)
            meets += every[(inside > 0) & ((start * stride + offsets) % spread == 0)].sum()
        share *= inside.sum() / max(1, meets)
    return f"its input dilated by {times(params['lhs_dilation'])}: {share:.3g} times the products"


def image_form(bands: Sequence[Band], axes: Sequence[int]) -> Callable[[Array], Array]:
    """A resample as `jax.image` computes the same: rows are picked, or matrices multiplied."""
    if _picks(bands):
        return lambda x: _pick(x, bands, axes)
    return lambda x: _multiply(x, bands, axes)


def describe_image_form(bands: Sequence[Band], axes: Sequence[int]) -> str:
    """What `image_form` does."""
    operation = image_operation(bands)
    if operation != PRODUCTS:
        return f"jax.image: a {operation} for each axis"
    sizes = " and ".join(f"{band.out_size}x{band.size}" for band in bands)
    return f"jax.image: {operation} with dense matrices, {sizes}"


def image_operation(bands: Sequence[Band]) -> str:
    """By which `image_form` computes the resample."""
    if all(band.is_selection for band in bands):
        return GATHER
    return "scatter-add" if _picks(bands) else PRODUCTS


def _picks(bands: Sequence[Band]) -> bool:
    """Whether the resize, forwards or backwards, is "nearest"."""
    return all(band.is_selection for band in bands) or all(
        band.transpose.is_selection for band in bands
    )


def _pick(x: Array, bands: Sequence[Band], axes: Sequence[int]) -> Array:
    for band, axis in zip(bands, axes, strict=True):
        if band.is_selection:
            x = jnp.take(x, band.start, axis, mode="clip")
            continue
        shape: Shape = (*x.shape[:axis], band.out_size, *x.shape[axis + 1 :])
        where = (slice(None),) * axis + (band.transpose.start,)
        x = jnp.zeros(shape, x.dtype).at[where].add(x, mode="promise_in_bounds")
    return x


def _multiply(x: Array, bands: Sequence[Band], axes: Sequence[int]) -> Array:
    """One einsum over all axes, as in jax.image."""
    letters = list(range(x.ndim))
    result, factors = list(letters), []
    for number, (band, axis) in enumerate(zip(bands, axes, strict=True)):
        result[axis] = x.ndim + number
        factors += [jnp.asarray(band.dense(), x.dtype), [result[axis], axis]]
    return jnp.einsum(x, letters, *factors, result, precision=lax.Precision.HIGHEST)


def times(sizes: Sequence[int]) -> str:
    """Sizes in a row, 3x3."""
    return "x".join(map(str, sizes)) or "1"

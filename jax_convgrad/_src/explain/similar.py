"""What makes two problems alike to those who compute them: the kind, which is equal or not, and the sizes.

A kind names the program that XLA would be given as well as the operator. XLA runs the weight gradient of
a strided convolution and that of a transposed one, which are one operator of this package, at speeds that
differ a hundredfold: the first has a dilated window, the second a dilated input and its operands exchanged.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from jax_convgrad._src.conv.emit_xla import has_rewritten_form
from jax_convgrad._src.conv.geometry import ConvGeometry
from jax_convgrad._src.conv.precision import allows_tf32
from jax_convgrad._src.conv.subsample import subsample
from jax_convgrad._src.dispatch.decide import XLA, XLA_REWRITTEN
from jax_convgrad._src.dispatch.problem import ConvProblem, ResampleProblem
from jax_convgrad._src.explain import walk, xla
from jax_convgrad._src.explain.roofline import conv_roofline, resample_roofline
from jax_convgrad._src.install.match import Match

EXCHANGED = "exchanged operands"


@dataclasses.dataclass(frozen=True)
class Sketch:
    """A problem as a table of measurements knows it.

    Attributes:
      kind: the operator, its dtype, its groups, and the form that XLA has. Times of different kinds say
        nothing of each other.
      sizes: base-2 logarithms; the differences are how far apart two problems of a kind are.
      work: what the time of two problems of a kind is about proportional to.
    """

    kind: str
    sizes: tuple[float, ...]
    work: int


def sketch_of_equation(equation: Any, found: Match, kernel_reversed: bool) -> Sketch | None:
    """The sketch of a convolution of lax; None where the table has nothing like it."""
    lhs, rhs = (variable.aval for variable in equation.invars)
    out = equation.outvars[0].aval
    if not lhs.dtype == rhs.dtype == out.dtype:
        return None
    form = _form(equation, kernel_reversed, found.swapped)
    return _sketch(found.operator, found.geometry, lhs.dtype, equation.params["precision"], form)


@functools.lru_cache(maxsize=1024)
def sketch_of_problem(problem: ConvProblem | ResampleProblem) -> Sketch | None:
    """Of one of this package's own operators, which XLA would be given as `emit_xla` writes it."""
    if isinstance(problem, ResampleProblem):
        return _sketch_of_resample(problem)
    if problem.geometry.is_empty or problem.dtype != problem.result_dtype:
        return None
    shapes = [problem.geometry.shape_of(role) for role in problem.operand_roles]
    operands = [jax.ShapeDtypeStruct(shape, problem.dtype) for shape in shapes]
    (found,) = walk.find(
        jax.make_jaxpr(xla.lax_form(problem))(*operands).jaxpr,
        lambda equation, _: equation.primitive is lax.conv_general_dilated_p,
    )
    form = _form(found.equation, found.kernel_reversed, swapped=False)
    return _sketch(problem.operator, problem.geometry, problem.dtype, problem.precision, form)


def is_xla_form(problem: ConvProblem | ResampleProblem, backend: str) -> bool:
    """Whether a backend gives XLA what it would be given for one of this package's own operators anyway."""
    if isinstance(problem, ResampleProblem):
        return backend == XLA and xla.image_operation(problem.bands) == xla.GATHER
    geometry = problem.geometry
    if subsample(geometry.config, geometry.x_shape) is not None:
        return False
    if backend == XLA_REWRITTEN:
        return not has_rewritten_form(problem.operator, geometry)
    return backend == XLA


def _sketch(
    operator: str, geometry: ConvGeometry, dtype: Any, precision: Any, form: Sequence[str]
) -> Sketch | None:
    config = geometry.config
    numbers = config.dimension_numbers
    if geometry.is_empty:
        return None
    last = geometry.spatial_rank + 1
    if numbers.lhs_spec[1] != last or numbers.out_spec[1] != last:
        return None  # channels first: nothing was measured
    groups, batch = config.groups, geometry.batch
    grouping = "dense"
    if groups > 1:
        one_each = groups == geometry.in_channels == geometry.out_channels
        grouping = "depthwise" if one_each else "grouped"
    pixels = math.prod(geometry.out_spatial)
    inside, outside = geometry.in_channels // groups, geometry.out_channels // groups
    counts = (
        batch,
        pixels,
        groups,
        inside,
        outside,
        math.prod(geometry.kernel),
        math.prod(config.strides),
    )
    kind = [operator, str(dtype), f"{geometry.spatial_rank}-D", grouping]
    if str(dtype) == "float32" and not allows_tf32(precision):
        kind.append("without TF32")
    if math.prod(geometry.kernel) == 1:
        kind.append("1x1")  # a matrix product to everyone
    work = conv_roofline(operator, geometry, dtype.itemsize, dtype.itemsize)
    return Sketch(_kind(kind, form), _logarithms(counts), work.operations)


def _form(equation: Any, kernel_reversed: bool, swapped: bool) -> list[str]:
    """What of XLA's program decides how fast XLA is."""
    params = equation.params
    numbers = params["dimension_numbers"]
    lhs, rhs = (variable.aval.shape for variable in equation.invars)
    image, window = (
        math.prod(shape[axis] for axis in spec[2:])
        for shape, spec in ((lhs, numbers.lhs_spec), (rhs, numbers.rhs_spec))
    )
    facts = {
        "strided": any(s > 1 for s in params["window_strides"]),
        "dilated input": any(d > 1 for d in params["lhs_dilation"]),
        "dilated window": any(d > 1 for d in params["rhs_dilation"]),
        "batch groups": params["batch_group_count"] > 1,
        "cropped": any(min(pair) < 0 for pair in params["padding"]),
        # XLA exchanges the two then.
        "window above image": window > image,
        # XLA:GPU takes a convolution with a dilated input for an input gradient only behind a reversal.
        "reversed window": kernel_reversed,
        EXCHANGED: swapped,
    }
    return [name for name, holds in facts.items() if holds]


def _sketch_of_resample(problem: ResampleProblem) -> Sketch | None:
    if problem.is_empty:
        return None
    bands, axes = problem.bands, problem.axes
    form = [xla.image_operation(bands)]
    if problem.axes[-1] == len(problem.shape) - 1:
        form.append("channels first")
    images = math.prod(n for axis, n in enumerate(problem.shape) if axis not in axes)
    before, after, taps = (
        math.prod(getattr(band, name) for band in bands) for name in ("size", "out_size", "taps")
    )
    bound = resample_roofline(problem.shape, bands, axes, problem.dtype.itemsize)
    kind = ["resample", str(problem.dtype), f"{len(bands)}-D"]
    return Sketch(_kind(kind, form), _logarithms((images, before, after, taps)), bound.bytes)


def _kind(what: Sequence[str], form: Sequence[str]) -> str:
    return f"{' '.join(what)}; {', '.join(form) or 'plain'}"


def _logarithms(counts: Sequence[int]) -> tuple[float, ...]:
    return tuple(round(math.log2(count), 2) for count in counts)

"""`explain`: a function's convolutions and resizes, one row each."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jax_convgrad._src import compat
from jax_convgrad._src.dispatch.devices import device_class
from jax_convgrad._src.explain import equations, gain, roofline, table, walk
from jax_convgrad._src.explain.equations import Equation
from jax_convgrad._src.explain.rows import ExplanationRow
from jax_convgrad._src.explain.walk import Found
from jax_convgrad._src.install import jax_image
from jax_convgrad._src.install.switch import installed
from jax_convgrad._src.timing.compare import Operands, compare
from jax_convgrad._src.timing.method import Method


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The rows of a program, in its order; as text a table.

    Attributes:
      platform: the one that the program runs on.
      installed: whether `jax_convgrad.install` was on for it. If not, ``ours`` of a row says what would be.
      rows: one for each convolution and resize.
      device_class: of this machine's devices; None where it is not known.
    """

    platform: str
    installed: bool
    rows: tuple[ExplanationRow, ...]
    device_class: str | None = None

    @property
    def gain(self) -> float | None:
        """How many times faster than XLA the rows are expected to be together; None where none is known.

        Rows count by the time that XLA is expected to need for them. What is not a convolution or a resize
        does not count, nor does a row whose gain or time is not known: `gain_rows` says how many do.
        """
        return gain.of_program(self.rows)

    @property
    def gain_range(self) -> tuple[float, float] | None:
        """The gain if each row gained as little, and as much, as its ``gain_spread`` allows."""
        low, high = (gain.of_program(self.rows, direction) for direction in (-1, 1))
        return None if low is None or high is None else (low, high)

    @property
    def gain_rows(self) -> tuple[int, int]:
        """How many rows ``gain`` knows, of how many that anything depends on."""
        return gain.rows_known(self.rows)

    def __str__(self) -> str:
        return table.render(self.platform, self.device_class, self.installed, self.rows)


def explain(fn: Callable[..., Any], *args: Any, measure: bool = False) -> Explanation:
    """The convolutions and resizes of a function, what computes each of them, and why.

    The function is traced as `jax.jit` traces it, not run. Every `jax.lax.conv_general_dilated` in its
    program gives a row, in loops, branches, ``remat``, ``shard_map`` and gradients too, so does every
    convolution of this package's layers and operators and every resize. With `install` off the rows say
    what it would do. The gain of a row is an expectation from similar problems that were measured, and
    None where there are none near enough.

    Not seen are `jax.image.scale_and_translate` where it was imported by name before `install` (a
    `jax.image.resize` imported so has a row), or where its scale is traced, and "nearest" of integers,
    which is a gather of JAX's on either side. A program that is divided
    among devices is known by the shardings of its arguments and by those that it names.

    Args:
      fn: a function, jitted or not, by `jax.jit`, Flax's ``nnx.jit`` or Equinox's ``filter_jit``. What an
        ``nnx`` step writes into its objects counts as its result.
      *args: its arguments: arrays, pytrees and modules; `jax.ShapeDtypeStruct` will do for an array. Unless
        ``fn`` is `jax.jit`'s, leaves that are not arrays (numbers, functions) are constants.
      measure: also time each row alone, on random data on the default device, by this package and by
        XLA, a second or two for each different one. Rows of a program that is divided among devices
        are not timed, nor are those that fail, with a warning.

    Returns:
      An `Explanation`: ``rows`` is data, ``str()`` a table.

    Raises:
      TypeError: ``fn`` is not a function, as in ``explain(f(x))``, or it does not take these arguments.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import jax_convgrad
      >>> x, w = jnp.ones((1, 8, 8, 32)), jnp.ones((4, 4, 32, 16))
      >>> def loss(w):
      ...     y = jax.lax.conv_transpose(x, w, (2, 2), "SAME")
      ...     return jnp.mean(jax.image.resize(y, (1, 32, 32, 16), "linear") ** 2)
      >>> found = jax_convgrad.explain(jax.value_and_grad(loss), w)
      >>> for row in found.rows:
      ...     print(row.operator, row.sizes, row.backward)
      conv_dgrad 1x16x16, 16 to 32, k4 s2 p1 False
      resample 1x16x16x16 to 1x32x32x16, 2x2 taps False
      resample 1x32x32x16 to 1x16x16x16, 4x4 taps True
      conv_wgrad 1x16x16, 16 to 32, k4 s2 p1 True
      >>> found.rows[3].xla
      'convolution with a window of 16x16, its input dilated by 2x2: 3.74 times the products'
      >>> print(found)
      4 convolutions and resizes on ..., install() is off; with it this package computes ...
    """
    _check(fn, args)
    platform = compat.platform()
    here = device_class(platform)
    is_installed = platform in installed()
    with contextlib.ExitStack() as stack:
        if not is_installed:
            stack.enter_context(compat.separate_traces())
            stack.enter_context(jax_image.redirected())
        jaxpr, shardings = compat.trace(fn, *args)
    shardings += [
        leaf.sharding
        for leaf in jax.tree.leaves(args)
        if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)
        and not isinstance(leaf, jax.core.Tracer)
    ]
    rows, measured = [], {}
    for found in walk.find(jaxpr, functools.partial(equations.is_described, platform), shardings):
        asked = equations.describe(platform, found)
        seconds: dict[str, float] = {}
        if measure and asked.timed:
            key = _key(found)
            if key not in measured:
                measured[key] = _measure(asked)
            seconds = measured[key]
        expected = gain.expect(
            platform, here, asked.sketch, None if asked.kept else asked.backend.name
        )
        rows.append(_row(found, asked, expected, seconds))
    return Explanation(platform, is_installed, tuple(rows), here)


def _check(fn: Any, args: tuple[Any, ...]) -> None:
    if not callable(fn):
        kind = type(fn).__name__
        raise TypeError(
            f"explain: expected a function and its arguments, got a value of type {kind}; pass the function "
            "and do not call it: explain(f, x), not explain(f(x))"
        )
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some callables have none
        return
    try:
        signature.bind(*args)
    except TypeError as error:
        name = getattr(fn, "__name__", type(fn).__name__)
        raise TypeError(
            f"explain: {name}{signature} cannot be called with {len(args)} arguments ({error}); pass its "
            f"arguments behind it, as in explain({name}, x)"
        ) from None


def _row(
    found: Found, asked: Equation, expected: gain.Expected, seconds: dict[str, float]
) -> ExplanationRow:
    bound = asked.roofline
    return ExplanationRow(
        source=found.source,
        scope=found.scope,
        backward=found.backward,
        within=found.within,
        count=found.count,
        used=found.used,
        primitive=found.equation.primitive.name,
        operator=asked.operator,
        sizes=asked.sizes,
        dtype=str(asked.operands[0].dtype),
        result_dtype=str(asked.result.dtype),
        ours=asked.ours,
        backend=asked.backend.name,
        reason=asked.backend.reason,
        evidence=asked.backend.evidence,
        measured_on=asked.backend.measured_on,
        preparation=asked.backend.preparation,
        preparation_evidence=asked.backend.preparation_evidence,
        xla=asked.xla,
        roofline=bound,
        roofline_seconds=None if bound is None else bound.seconds(roofline.device_memory()),
        gain=expected.gain,
        gain_spread=expected.spread,
        gain_evidence=expected.evidence,
        gain_measured_on=expected.measured_on,
        expected_xla_seconds=expected.xla_seconds,
        seconds=seconds.get("ours"),
        xla_seconds=seconds.get("xla"),
        missing=asked.backend.missing,
    )


def _key(found: Found) -> Any:
    """Equal for equations that compute the same."""
    equation = found.equation
    operands = tuple((v.aval.shape, str(v.aval.dtype)) for v in equation.invars)
    return equation.primitive, operands, tuple(sorted(equation.params.items()))


def _measure(asked: Equation) -> dict[str, float]:
    keys = jax.random.split(jax.random.key(0), len(asked.operands))
    arrays = tuple(
        jax.random.normal(key, operand.shape, jnp.float32).astype(operand.dtype)
        for key, operand in zip(keys, asked.operands, strict=True)
    )
    method = Method(rounds=5, form_seconds=1.0)
    try:
        return compare(asked.timed, Operands(arrays), method)
    except jax.errors.JaxRuntimeError as error:  # the other rows are none the worse
        reason = str(error).strip().partition("\n")[0]
        warnings.warn(f"explain: {asked.sizes} could not be timed: {reason}", stacklevel=3)
        return {}

"""Measures one problem by every backend that computes it, and makes the row that follows."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from jax_convgrad._src.conv.primitives import PRIMITIVES
from jax_convgrad._src.conv.subsample import subsample
from jax_convgrad._src.dispatch.decide import (
    GEMM,
    HANDLER_BACKENDS,
    NATIVE,
    XLA,
    XLA_REWRITTEN,
    computed_geometry,
    decide,
)
from jax_convgrad._src.dispatch.devices import Target
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.dispatch.problem import ConvProblem, ResampleProblem
from jax_convgrad._src.resize.primitives import resample_p
from jax_convgrad._src.runtime import plans, registry, settings
from jax_convgrad._src.timing.compare import Operands, compare
from jax_convgrad._src.timing.method import Method
from jax_convgrad._src.tuning.store import Problem, Row, key_of
from jax_convgrad._src.tuning.versions import made_on

METHOD = Method(rounds=7, form_seconds=0.5, hopeless_ratio=3.0)
# How backends are timed once more that are within that factor of the fastest.
CLOSE = 1.25
LONGER = dataclasses.replace(METHOD, rounds=3 * METHOD.rounds, form_seconds=3.0)
# A smaller difference is noise, and changes no decision. What ties today may be as far apart again tomorrow
# (h100/tune.txt: 2.7%), and --check allows 5%.
TIE = 1.02


def sizes_of(problem: Problem) -> str:
    """The problem in one line."""
    if isinstance(problem, ResampleProblem):
        shapes = ("x".join(map(str, s)) for s in (problem.shape, problem.result_shape))
        return f"resample {' to '.join(shapes)}, {problem.dtype}"
    return f"{problem.operator} {problem.geometry}, {problem.dtype}"


def backends_of(problem: Problem, platform: str) -> tuple[str, ...]:
    """The backends that compute a problem on a platform's devices."""
    target = Target.of(platform)
    if isinstance(problem, ResampleProblem):
        has_kernel = target.serves(registry.RESAMPLE_TARGET, problem.dtype)
        return (NATIVE, XLA) if has_kernel else (XLA,)
    found = [XLA, XLA_REWRITTEN]
    if problem.dtype == problem.result_dtype and target.serves(
        registry.CONV_TARGETS[problem.operator], problem.dtype
    ):
        found.insert(0, HANDLER_BACKENDS[platform])
    geometry = problem.geometry
    smaller = subsample(geometry.config, geometry.x_shape)
    if computed_geometry(geometry, smaller).has_nonoverlapping_windows:
        found.append(GEMM)
    return tuple(found)


def measure(
    problem: Problem, platform: str, method: Method = METHOD, longer: Method = LONGER
) -> tuple[dict[str, float], dict[str, str] | None]:
    """Seconds of a call by each backend, and cuDNN's plan where that is one of them.

    A backend with handlers counts with the best engine that an exhaustive search finds. A backend that
    fails is left out. Those that come close to the fastest are timed a second time, by ``longer``.

    Raises:
      JaxRuntimeError: every backend fails.
    """
    backends = backends_of(problem, platform)
    with jax.enable_x64(str(problem.dtype) == "float64"):
        operands = _operands(problem)
        timed = {b: (_call(problem), functools.partial(_behind, b)) for b in backends}
        try:
            seconds = compare(timed, operands, method)
        except jax.errors.JaxRuntimeError:  # one of them fails: find out which
            seconds = {}
            for backend, entry in timed.items():
                with contextlib.suppress(jax.errors.JaxRuntimeError):
                    seconds |= compare({backend: entry}, operands, method)
            if not seconds:
                raise
        close = [b for b, s in seconds.items() if s <= CLOSE * min(seconds.values())]
        if len(close) > 1:
            seconds |= compare({b: timed[b] for b in close}, operands, longer)
    plan = None
    if "cudnn" in seconds and (chosen := plans.list()):
        plan = {key: str(chosen[0][key]) for key in ("problem", "engine")}
    return seconds, plan


def row_of(
    problem: Problem,
    platform: str,
    seconds: dict[str, float],
    plan: dict[str, str] | None,
    before: str | None = None,
) -> Row:
    """The row of a measurement: the fastest backend, or the one ``before`` if they tie.

    Raises:
      ValueError: the problem has symbolic sizes, or this machine has no device of the platform.
    """
    key, here = key_of(problem), made_on(platform)
    if key is None or here is None:
        raise ValueError(f"{sizes_of(problem)} cannot be measured on {platform}")
    backend = min(seconds, key=seconds.__getitem__)
    if before in seconds and seconds[before] <= TIE * seconds[backend]:
        backend = before
    return Row(key, sizes_of(problem), here, backend, seconds, plan)


def decided(problem: Problem, platform: str) -> str:
    """The backend that computes the problem at present."""
    return decide(problem, Target.of(platform)).backend


def _operands(problem: Problem) -> Operands:
    if isinstance(problem, ResampleProblem):
        shapes = [problem.shape]
    else:
        shapes = [problem.geometry.shape_of(role) for role in problem.operand_roles]
    keys = jax.random.split(jax.random.key(0), len(shapes))
    arrays = (
        jax.random.normal(key, shape, jnp.float32).astype(problem.dtype)
        for key, shape in zip(keys, shapes, strict=True)
    )
    return Operands(tuple(arrays))


def _call(problem: Problem) -> Callable[..., Any]:
    """A new function, which JAX has not cached."""
    if isinstance(problem, ConvProblem):
        primitive = PRIMITIVES[problem.operator]
        return lambda first, second: primitive.bind(first, second, problem=problem, decision=None)
    return lambda x: resample_p.bind(x, problem=problem)


@contextlib.contextmanager
def _behind(backend: str) -> Iterator[None]:
    """Puts what is compiled inside on a backend; on cuDNN, on the fastest of all engines."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(override_backend(backend))
        if backend == "cudnn":
            exhaustive = dataclasses.replace(settings.current(), search="exhaustive")
            stack.enter_context(settings.override(exhaustive))
        yield

"""Compiled programs as text: the calls that they contain."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax


def called(text: str) -> Counter[str]:
    """The package's calls in a compiled program, and XLA's convolutions."""
    ours = re.findall(r'custom_call_target="jax_convgrad_(\w+)"', text)
    return Counter(ours) + Counter(re.findall(r" (convolution)\(", text))


def compiled(f: Callable[..., Any], *arguments: Any) -> str:
    return jax.jit(f).lower(*arguments).compile().as_text()


def without_metadata(text: str) -> str:
    """A compiled program without the lines of the test that it came from."""
    text = re.sub(
        r"^(FileNames|FunctionNames|FileLocations|StackFrames)\n(\d.*\n)*", "", text, flags=re.M
    )
    return re.sub(r",? metadata=\{[^}]*\}", "", text)


KINDS = {"conv_general_dilated", "conv_fprop", "conv_dgrad", "conv_wgrad", "resample"}


def equations_of(f: Callable[..., Any], *arguments: Any) -> Counter[str]:
    """Convolutions and resamples of a traced program, by name, including inner programs."""
    found: Counter[str] = Counter()

    def visit(value: Any) -> None:
        # Newer versions of JAX have made the two one.
        if isinstance(value, jax.extend.core.ClosedJaxpr | jax.extend.core.Jaxpr):
            for equation in value.eqns:
                found.update({equation.primitive.name} & KINDS)
                for parameter in equation.params.values():
                    visit(parameter)
        elif isinstance(value, tuple | list):
            for entry in value:
                visit(entry)

    visit(jax.make_jaxpr(f)(*arguments))
    return found

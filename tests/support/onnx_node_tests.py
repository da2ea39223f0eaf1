"""The node tests that come with the installed onnx package."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest


def attributes(node: Any) -> dict[str, Any]:
    """A node's attributes by name."""
    package = pytest.importorskip("onnx")
    values = {a.name: package.helper.get_attribute_value(a) for a in node.attribute}
    return {k: v.decode() if isinstance(v, bytes) else v for k, v in values.items()}


def of(*operators: str) -> Iterator[tuple[str, Any, list[np.ndarray], np.ndarray]]:
    """(name, node, inputs, output) of each test whose first node is one of the operators."""
    for case in _all():
        (node, *_) = case.model.graph.node
        if node.op_type in operators:
            ((inputs, (output,)),) = case.data_sets
            yield case.name, node, list(inputs), output


@functools.cache
def _all() -> Any:
    pytest.importorskip("onnx")
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the data of other operators overflows on purpose
        return collect_testcases(None)

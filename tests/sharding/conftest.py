"""What is divided is computed twice: by the platform's handlers, and in pure JAX."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jax_convgrad._src import compat
from jax_convgrad._src.dispatch.decide import PLATFORMS
from jax_convgrad._src.dispatch.override import override_backend
from jax_convgrad._src.runtime import registry


@pytest.fixture(params=["handlers", "rewritten"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Once by the platform's handlers, once in pure JAX."""
    platform = compat.platform()
    name = {platform: name for name, platform in PLATFORMS.items()}.get(platform)
    if request.param == "handlers":
        if name is None or not registry.require(platform).targets:
            pytest.skip(f"no handlers for {platform}")
        with override_backend(name):
            yield request.param
    else:
        with override_backend("xla_rewritten"):
            yield request.param

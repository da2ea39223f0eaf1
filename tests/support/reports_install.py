"""A plugin for pytest that imports the package, so that JAX_CONVGRAD_INSTALL acts, and reports the effect."""

from __future__ import annotations

import jax_convgrad


def pytest_report_header() -> str:
    return f"install() is on for: {' '.join(jax_convgrad.installed()) or 'nothing'}"

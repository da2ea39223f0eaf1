"""Sphinx's configuration: MyST pages, the API from docstrings, figures from committed measurements."""

from __future__ import annotations

import pathlib
import sys

import jax_convgrad  # noqa: F401  (fails here, once, if it is not installed)

sys.path.insert(0, str(pathlib.Path(__file__).parent / "_ext"))

project = "jax_convgrad"
author = "the jax_convgrad authors"
copyright = "the jax_convgrad authors, Apache-2.0"
html_title = "jax_convgrad"
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["tables.css"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "complete",
    "figures",
    "measurements",
]
exclude_patterns = ["_build", "_ext", "_generated"]

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

# Docstrings describe the arguments in words; signatures stay short enough to read.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_use_rtype = False

# A name in single backticks is a Python object and must exist. Other projects' names cannot be checked here.
default_role = "py:obj"
nitpick_ignore_regex = [(r"py:.*", r"(jax|lax|numpy|torch)(\..*)?")]

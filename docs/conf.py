"""Sphinx's configuration: MyST pages, the API from docstrings, figures from committed measurements."""

from __future__ import annotations

import pathlib
import sys
import tomllib

from jax_convgrad import __version__

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "jax_convgrad"
author = "the jax_convgrad authors"
copyright = "the jax_convgrad authors, Apache-2.0"
# Run from a checkout that is not installed, there is none.
release = version = __version__ if __version__[0].isdigit() else ""
html_title = f"jax_convgrad {release}".strip()
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"

# The green of this package's bars in every chart, a lighter one on dark pages.
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1b7837", "color-brand-content": "#1b7837"},
    "dark_css_variables": {"color-brand-primary": "#7fd598", "color-brand-content": "#7fd598"},
}
# The repository's address has one place, pyproject.toml. Pages link to it as soon as it is there.
_urls = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"].get("urls", {})
if repository := _urls.get("Repository"):
    html_theme_options |= {
        "source_repository": repository,
        "source_branch": "main",
        "source_directory": "docs/",
    }

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
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
autosummary_generate = False
napoleon_use_rtype = False
# The fields of a class are a list, and not entries of the table of contents.
napoleon_use_ivar = True
toc_object_entries_show_parents = "hide"

# What a reader types has a button that copies it; what a program prints has none.
copybutton_selector = ", ".join(
    f"div.highlight-{language} pre" for language in ("python", "bash", "sh", "default", "pycon")
)
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

# Names of JAX lead to its documentation. The file lists those that the pages use: a build needs no network.
intersphinx_mapping = {"jax": ("https://docs.jax.dev/en/latest/", "jax_names.inv")}

# A name in single backticks is a Python object and must exist. These projects' names are not checked here.
default_role = "py:obj"
nitpick_ignore_regex = [(r"py:.*", r"(lax|numpy|torch)(\..*)?")]

"""The documentation site: `make docs`. The pages of the reference are made from the package."""

# ruff: noqa: INP001 (a configuration, no module)

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "python"), str(HERE.parent / "tools")]

import reference  # noqa: E402

import tensordict  # noqa: E402

reference.write(HERE / "reference")

project = "tensordict-rs"
author = "the tensordict-rs developers"
copyright = f"2026, {author}"
release = tensordict.__version__
html_title = f"tensordict-rs {release}"
html_theme = "furo"
html_theme_options = {"navigation_with_keys": True}

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build", "dev"]
# The documents are read in the repository, too, where their links lead to files.
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

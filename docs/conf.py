"""The documentation site: `make docs`. The pages of the reference are made from the package."""

# ruff: noqa: INP001 (a configuration, no module)

import re
import sys
import tomllib
import zlib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "python"), str(HERE.parent / "tools")]

import reference  # noqa: E402
from docutils import nodes  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402

import tensordict  # noqa: E402

reference.write(HERE / "reference")

PROJECT = tomllib.loads((HERE.parent / "pyproject.toml").read_text("utf-8"))["project"]
REPOSITORY = PROJECT.get("urls", {}).get("Repository", "")

project = "tensordict-rs"
author = "the tensordict-rs developers"
copyright = f"2026, {author}"
release = tensordict.__version__
html_title = f"tensordict-rs {release}"
html_theme = "furo"
html_theme_options = {"navigation_with_keys": True}
html_favicon = "static/icon.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_search_scorer = str(HERE / "static" / "search.js")
KEYWORDS = dict(
    re.findall(
        r'^  "(.+)": "(.+)",$',
        Path(html_search_scorer).read_text("utf-8"),
        re.MULTILINE,
    )
)

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "dev"]
# The documents are read in the repository, too, where their links lead to files.
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]
autodoc_typehints = "none"
autodoc_mock_imports = ["accelerate", "lightning", "transformers"]
autodoc_member_order = "bysource"
autosummary_generate = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
# Tables list the methods of a page, so the navigation beside it has its headings alone.
toc_object_entries = False
# The button copies the commands of an example, without prompts and output.
copybutton_prompt_text = r">>> |\.\.\. ?|\$ "
copybutton_prompt_is_regexp = True
copybutton_copy_empty_lines = False


def show_public_bases(
    _app: Sphinx, _name: str, obj: type, _options: Any, bases: list[Any]
) -> None:
    """Replace private base classes by their public bases."""
    bases[:] = reference.public_bases(obj, reference.public())


def end_blocks(_app: Sphinx, doctree: nodes.document) -> None:
    """Remove the empty line at the end of examples, which doctest needs."""
    for block in doctree.findall(nodes.literal_block):
        text = block.astext().rstrip()
        if text != block.astext():
            block.rawsource = text
            block.children = [nodes.Text(text)]


def add_keywords(app: Sphinx, doctree: nodes.document) -> None:
    """Add the words of the questions that a page answers, which `search.js` lists."""
    words = KEYWORDS.get(app.env.docname)
    if words:
        # A question such as "how can I save" has "can", which a search looks for, too.
        keywords = ",".join([*words.split(), "can"])
        doctree.insert(0, nodes.meta(name="keywords", content=keywords))


def link_repository(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Lead links to files outside of the site to the repository, or to copies of them.

    The address of the repository is in `pyproject.toml`. Without it, the site has copies.
    """
    page = HERE / f"{docname}.md"

    def replaced(match: re.Match[str]) -> str:
        file = (page.parent / match[1]).resolve()
        inside = file.is_relative_to(HERE) and not file.is_relative_to(HERE / "dev")
        if inside or not file.is_file():
            return match[0]
        if REPOSITORY:
            return f"]({REPOSITORY}/blob/main/{file.relative_to(HERE.parent)})"
        return f"](<path:{match[1]}>)"

    source[0] = re.sub(r"\]\(([\w./]+)\)", replaced, source[0])
    if docname == "differences":  # The pages of its topics stand below it.
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\ndifferences/*\n```\n"


def find_methods(app: Sphinx, env: Any, node: Any, contnode: Any) -> Any:
    """Lead references to methods of the base classes to the page of TensorDict."""
    target = node.get("reftarget", "")
    owner, _, method = target.rpartition(".")
    if node.get("refdomain") != "py" or not owner.endswith(
        ("TensorDictBase", "TensorCollection")
    ):
        return None
    return env.domains["py"].resolve_xref(
        env,
        node["refdoc"],
        app.builder,
        "meth",
        f"tensordict.TensorDict.{method}",
        node,
        contnode,
    )


def setup(app: Sphinx) -> None:
    """Register what changes pages while they are built."""
    # Pages that another version of these handlers read are read again.
    texts = Path(__file__).read_bytes() + Path(html_search_scorer).read_bytes()
    app.add_config_value("handlers", zlib.crc32(texts), "env")
    app.connect("autodoc-process-bases", show_public_bases)
    app.connect("doctree-read", end_blocks)
    app.connect("doctree-read", add_keywords)
    app.connect("source-read", link_repository)
    app.connect("missing-reference", find_methods)

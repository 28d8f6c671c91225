"""Write a save as a page for a browser: a tree with shapes, sizes and small previews."""

from __future__ import annotations

import pathlib
import tempfile
import webbrowser
from typing import TYPE_CHECKING

from tensordict.cli import common

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``tensordict show``."""
    parser.add_argument("path", help=common.PATH)
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="write the page to this file, and open no browser",
    )
    parser.add_argument(
        "--histograms", action="store_true", help="draw histograms of values"
    )
    parser.add_argument(
        "--no-images", action="store_true", help="draw no previews of images"
    )
    common.add_loading(parser)


@common.reporting_errors
def run(arguments: argparse.Namespace) -> int:
    """Write the page, and open it in a browser unless ``--output`` is given."""
    from tensordict.ops.notebook import html_page

    text = html_page(
        common.load_save(arguments.path, arguments),
        arguments.path,
        images=not arguments.no_images,
        histograms=arguments.histograms,
        reads_stores=True,
    )
    if arguments.output is not None:
        pathlib.Path(arguments.output).write_text(text, encoding="utf-8")
        print(arguments.output)
        return 0
    with tempfile.NamedTemporaryFile(
        "w", suffix=".html", prefix="tensordict-", delete=False, encoding="utf-8"
    ) as file:
        file.write(text)
    print(file.name)
    webbrowser.open(pathlib.Path(file.name).as_uri())
    return 0

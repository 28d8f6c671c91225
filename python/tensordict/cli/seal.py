"""Add checksums to a finished dataset, so that ``verify`` can check its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict.cli import common

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``tensordict seal``."""
    parser.add_argument("path", help="the directory of a save, or an archive")
    common.add_threads(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


@common.reporting_errors
def run(arguments: argparse.Namespace) -> int:
    """Add the checksums, and print their number."""
    from tensordict.storage import checksums

    count = checksums.seal(
        arguments.path, arguments.threads, pbar=common.has_bar(arguments)
    )
    if arguments.json:
        common.print_json({"path": arguments.path, "files": count})
    else:
        print(f"{arguments.path}: added checksums of {count} files")
    return 0

"""Copy a save, a folder of steps, or any files between two places."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict.cli import common, places
from tensordict.ops.display import readable

if TYPE_CHECKING:
    import argparse

MSG_THERE = "{} exists already; --force replaces it."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``tensordict cp``."""
    parser.add_argument("source", help="a path, or a URL of an object store")
    parser.add_argument("target", help="a path or URL for the copy")
    parser.add_argument(
        "--force", action="store_true", help="replace an existing target"
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


@common.reporting_errors
def run(arguments: argparse.Namespace) -> int:
    """Copy the source, and print the number of bytes."""
    from tensordict.storage.future import with_bar
    from tensordict.storage.remote import copying
    from tensordict.storage.remote.publishing import Uploads

    source = places.place_or_path(arguments.source, arguments)
    target = places.place_or_path(arguments.target, arguments)
    if not arguments.force and copying.exists(target):
        raise FileExistsError(17, MSG_THERE.format(target))
    progress = Uploads()

    def work() -> None:
        copying.copy(source, target, progress)

    if common.has_bar(arguments):
        with_bar(work, progress, "copying")
    else:
        work()
    if arguments.json:
        found = {"source": str(source), "target": str(target)}
        common.print_json({**found, "num_bytes": progress.done})
    else:
        print(f"{target}: {readable(progress.done)} moved")
    return 0

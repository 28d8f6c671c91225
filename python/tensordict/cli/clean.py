"""Remove what writers that were killed have left in an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict.cli import common, places
from tensordict.ops.display import readable

if TYPE_CHECKING:
    import argparse

MSG_HERE = (
    "{} is on this machine, where the next save to it removes what others have left."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``tensordict clean``."""
    parser.add_argument("place", help="the URL of a save, or of a folder of them")
    parser.add_argument(
        "--older-than",
        metavar="HOURS",
        type=float,
        default=24.0,
        help="take a writer of another machine for gone after so many hours; default: 24",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be removed"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


@common.reporting_errors
def run(arguments: argparse.Namespace) -> int:
    """Remove the leftovers of saves that are not there, and say which they were."""
    from pathlib import Path

    from tensordict.storage.remote.leftovers import find_leftovers, remove_leftovers

    place = places.place_or_path(arguments.place, arguments)
    if isinstance(place, Path):
        raise ValueError(MSG_HERE.format(place))
    found = find_leftovers(place, arguments.older_than)
    if not arguments.dry_run:
        remove_leftovers(place, found)
    if arguments.json:
        shown = [each._asdict() for each in found]
        common.print_json({"removed": not arguments.dry_run, "leftovers": shown})
        return 0
    for each in found:
        count = len(each.objects)
        size = readable(each.num_bytes)
        print(f"{place / each.name}: {each.reason}, {count} objects, {size}")
    if not found:
        print(f"{place}: nothing is left over")
    elif arguments.dry_run:
        print("Nothing was removed: run it without --dry-run.")
    return 0

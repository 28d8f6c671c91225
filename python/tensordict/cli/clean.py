"""Remove objects that killed writers left in an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict.cli import common, places
from tensordict.ops.display import readable

if TYPE_CHECKING:
    import argparse

MSG_HERE = "{} is on this machine, where the next save to it removes leftovers: clean is for URLs."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``tensordict clean``."""
    parser.add_argument("place", help="the URL of a save, or of a folder of them")
    parser.add_argument(
        "--older-than",
        metavar="HOURS",
        type=float,
        default=24.0,
        help="hours after which a writer on another machine counts as ended; default: 24. "
        "A writer that runs on this machine never does",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be removed"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


@common.reporting_errors
def run(arguments: argparse.Namespace) -> int:
    """Remove the leftovers of unfinished saves, and list them."""
    from pathlib import Path

    from tensordict.storage.remote.leftovers import find_leftovers, remove_leftovers

    place = places.place_or_path(arguments.place, arguments)
    if isinstance(place, Path):
        raise ValueError(MSG_HERE.format(place))
    found = find_leftovers(place, arguments.older_than)
    if not arguments.dry_run:
        remove_leftovers(place, found)
    if arguments.json:
        shown = [leftover._asdict() for leftover in found]
        common.print_json({"removed": not arguments.dry_run, "leftovers": shown})
        return 0
    for leftover in found:
        count = len(leftover.objects)
        size = readable(leftover.num_bytes)
        print(f"{place / leftover.name}: {leftover.reason}, {count} objects, {size}")
    if not found:
        print(f"{place}: no leftovers")
    elif arguments.dry_run:
        print("Nothing was removed: run again without --dry-run.")
    return 0

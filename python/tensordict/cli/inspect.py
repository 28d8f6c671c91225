"""List the content of a save: keys, shapes, dtypes, bytes, layout. Reads no tensor."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, Final

from tensordict.cli import common
from tensordict.ops.display import readable

if TYPE_CHECKING:
    from tensordict.storage.inspect import Entry, Survey

BAR_WIDTH: Final = 16
BAR_PARTS: Final = " ▏▎▍▌▋▊▉█"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``tensordict inspect``."""
    parser.add_argument("path", help=common.PATH)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--bars",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="draw each tensor's share of the bytes; default: on a terminal",
    )


@common.reporting_errors
def run(arguments: argparse.Namespace) -> int:
    """Print the list; return 1 if an entry is damaged."""
    from tensordict.checkpoint.tools import is_checkpoint
    from tensordict.cli import sources
    from tensordict.storage.inspect import survey

    if is_checkpoint(arguments.path):
        from tensordict.cli import checkpoints

        return checkpoints.inspect(arguments)
    is_of_others = sources.is_of_others(arguments.path)
    found = (sources.survey if is_of_others else survey)(arguments.path)
    if arguments.json:
        common.print_json(as_data(found))
    else:
        bars = sys.stdout.isatty() if arguments.bars is None else arguments.bars
        for line in lines(found, bars=bars):
            print(line)
    return 1 if found.problems else 0


def as_data(found: Survey) -> dict[str, Any]:
    """Return the list as plain data."""
    return {
        "path": found.path,
        "layout": found.layout,
        "num_bytes": found.num_bytes,
        "entries": [
            {
                name: value
                for name, value in entry._asdict().items()
                if value is not None
            }
            for entry in found.entries
        ],
    }


def lines(found: Survey, *, bars: bool = False) -> list[str]:
    """Return the list as lines of a tree.

    Args:
        found: the content of the save.
        bars: whether to draw each tensor's share of all bytes after its size.
    """
    tensors = sum(entry.kind == "tensor" for entry in found.entries)
    size = readable(found.num_bytes)
    head = f"{found.path}: {found.layout}, {tensors} tensors, {size}"
    total = found.num_bytes if bars else 0
    return [head, *(_line(entry, total) for entry in found.entries)]


def _bar(share: float) -> str:
    """Return a bar for a share between 0 and 1, in eighths of a character."""
    eighths = round(8 * BAR_WIDTH * share)
    rest = BAR_PARTS[eighths % 8] if eighths % 8 else ""
    return f" {BAR_PARTS[8] * (eighths // 8)}{rest}" if eighths else ""


def _line(entry: Entry, total: int) -> str:
    indent = "  " * len(entry.key)
    name = entry.key[-1] if entry.key else "."
    problem = f"  !! {entry.problem}" if entry.problem else ""
    if entry.kind == "tensor":
        shape = list(entry.shape or [])
        size = readable(entry.num_bytes)
        note = f" ({entry.note})" if entry.note else ""
        bar = _bar(entry.num_bytes / total) if total else ""
        return f"{indent}{name}: {entry.dtype}{shape} {size}{bar}{note}{problem}"
    if entry.kind == "value":
        return f"{indent}{name} = {entry.note}{problem}"
    size_text = "" if entry.shape is None else f" {entry.shape}"
    note = f" {entry.note}" if entry.note else ""
    return f"{indent}{name}/{note}{size_text}{problem}"

"""List what a save holds: keys, shapes, dtypes, bytes, layout. Reads no tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.cli import common

if TYPE_CHECKING:
    import argparse

    from tensordict.storage.inspect import Entry, Survey


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``tensordict inspect``."""
    parser.add_argument("path", help="a save of any layout, or anybody's safetensors")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


@common.reporting_errors
def run(arguments: argparse.Namespace) -> int:
    """Print the list; the status is 1 where an entry is damaged."""
    from tensordict.checkpoint.tools import is_checkpoint
    from tensordict.storage.inspect import survey

    if is_checkpoint(arguments.path):
        from tensordict.cli import checkpoints

        return checkpoints.inspect(arguments)
    found = survey(arguments.path)
    if arguments.json:
        common.print_json(as_data(found))
    else:
        for line in lines(found):
            print(line)
    return 1 if found.problems else 0


def as_data(found: Survey) -> dict[str, Any]:
    """The list as plain data."""
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


def lines(found: Survey) -> list[str]:
    """The list as a tree of lines."""
    tensors = sum(entry.kind == "tensor" for entry in found.entries)
    size = common.readable(found.num_bytes)
    head = f"{found.path}: {found.layout}, {tensors} tensors, {size}"
    return [head, *(_line(entry) for entry in found.entries)]


def _line(entry: Entry) -> str:
    indent = "  " * len(entry.key)
    name = entry.key[-1] if entry.key else "."
    problem = f"  !! {entry.problem}" if entry.problem else ""
    if entry.kind == "tensor":
        shape = list(entry.shape or [])
        size = common.readable(entry.num_bytes)
        note = f" ({entry.note})" if entry.note else ""
        return f"{indent}{name}: {entry.dtype}{shape} {size}{note}{problem}"
    if entry.kind == "value":
        return f"{indent}{name} = {entry.note}{problem}"
    size_text = "" if entry.shape is None else f" {entry.shape}"
    note = f" {entry.note}" if entry.note else ""
    return f"{indent}{name}/{note}{size_text}{problem}"

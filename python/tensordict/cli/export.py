"""Write a step, or another program's checkpoint, as a directory for other programs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tensordict.cli import common
from tensordict.ops.display import readable

if TYPE_CHECKING:
    import argparse

__all__ = ["add_arguments", "convert"]

MSG_SHARDS = "--shards is for safetensors files: use --max-shard-size."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``--layout huggingface`` and ``--layout dcp``."""
    parser.add_argument(
        "--item",
        action="append",
        help="for the layouts huggingface and dcp: the item of the checkpoint to write "
        "(default: model); repeatable for dcp, which keeps each item under its name",
    )


def convert(arguments: argparse.Namespace) -> int:
    """Write the directory, and print a summary.

    Raises:
        ValueError: the source or an option does not fit.
    """
    from tensordict.checkpoint import tools
    from tensordict.checkpoint.export import Export
    from tensordict.storage.locations import local

    if arguments.shards is not None:
        raise ValueError(MSG_SHARDS)
    items = arguments.item or ["model"]
    how = Export(
        items[0] if len(items) == 1 else items,
        arguments.layout,
        arguments.max_shard_size,
        arguments.threads,
        arguments.durable,
        arguments.force,
    ).checked()
    target = Path(local(arguments.target)).absolute()
    if os.path.lexists(target) and not arguments.force:
        raise FileExistsError(17, common.MSG_THERE, arguments.target)
    tools.export(arguments.source, target, how)
    num_bytes = sum(each.stat().st_size for each in target.iterdir())
    if arguments.json:
        common.print_json(
            {
                "source": arguments.source,
                "target": arguments.target,
                "layout": arguments.layout,
                "num_bytes": num_bytes,
            }
        )
    else:
        size = readable(num_bytes)
        print(f"{arguments.source} -> {arguments.target} ({arguments.layout}, {size})")
    return 0

"""Save again in another layout. Tensors are streamed from the files of the source."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tensordict.cli import common

if TYPE_CHECKING:
    import argparse

LAYOUTS = ("tree", "archive", "safetensors", "consolidated")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``tensordict convert``."""
    parser.add_argument("source", help="a save of any layout, or anybody's safetensors")
    parser.add_argument("target", help="where to; the suffix chooses the layout")
    parser.add_argument(
        "--layout",
        choices=LAYOUTS,
        help="default: .safetensors and .tdz by suffix, else a directory",
    )
    parser.add_argument("--force", action="store_true", help="replace what is there")
    parser.add_argument(
        "--max-shard-size",
        help="safetensors in files of, say, 5GB; replaces a single file",
    )
    parser.add_argument(
        "--shards",
        type=int,
        help="safetensors in so many files; replaces a single file",
    )
    common.add_threads(parser)
    parser.add_argument(
        "--durable", action="store_true", help="wait until it is on the disk"
    )
    parser.add_argument("--no-checks", action="store_true", help="keep no checksums")
    parser.add_argument(
        "--no-verify",
        action="store_true",
        help="do not compare the source with its checksums before: a damage is copied",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    common.add_loading(parser)


@common.reporting_errors
def run(arguments: argparse.Namespace) -> int:
    """Load and verify the source, save it, and say what was written."""
    from tensordict.storage.checksums import DAMAGED, verify
    from tensordict.storage.inspect import survey
    from tensordict.storage.layouts.safetensors import index_of, is_index_name

    target = arguments.target
    layout = arguments.layout or _layout_of_name(target)
    is_sharded = arguments.max_shard_size is not None or arguments.shards is not None
    if is_index_name(target) and layout != "safetensors":
        raise ValueError(f"{target} is a name of safetensors files, not of a {layout}.")
    if is_sharded and layout != "safetensors":
        raise ValueError(f"only safetensors have shards, and {target} is a {layout}.")
    # What is at `model.safetensors` may be shards, of which the index is one more file.
    there = [
        name for name in (target, index_of(target)) if name and os.path.exists(name)
    ]
    if there and not arguments.force:
        raise FileExistsError(17, "It exists already; --force replaces it", there[0])
    source = common.load_save(arguments.source, arguments)
    if not arguments.no_verify:
        # The checksums of the target would say of damaged bytes that they are good.
        damages = verify(arguments.source, arguments.threads).lines(DAMAGED)
        if damages:
            raise RuntimeError("\n".join(damages))
    _save(source, target, layout, arguments)
    found = survey(target)
    if arguments.json:
        common.print_json(
            {
                "source": arguments.source,
                "target": target,
                "layout": layout,
                "num_bytes": found.num_bytes,
            }
        )
    else:
        size = common.readable(found.num_bytes)
        print(f"{arguments.source} -> {target} ({layout}, {size})")
    return 0


def _layout_of_name(target: str) -> str:
    from tensordict.storage.layouts.safetensors import is_index_name

    if is_index_name(target):
        return "safetensors"
    suffix = os.path.splitext(target)[1]
    return {".safetensors": "safetensors", ".tdz": "archive"}.get(suffix, "tree")


def _save(source: Any, target: str, layout: str, arguments: argparse.Namespace) -> None:
    from tensordict import to_safetensors

    has_checks = not arguments.no_checks
    has_bar = common.has_bar(arguments)
    if layout == "safetensors":
        to_safetensors(
            source,
            target,
            max_shard_size=arguments.max_shard_size,
            shards=arguments.shards,
            num_threads=arguments.threads,
            durable=arguments.durable,
            checks=has_checks,
            pbar=has_bar,
        )
    elif layout == "consolidated":
        source.consolidate(
            target, durable=arguments.durable, checks=has_checks, pbar=has_bar
        )
    else:
        source.memmap(
            target,
            copy_existing=True,
            num_threads=arguments.threads,
            archive=layout == "archive",
            durable=arguments.durable,
            checks=has_checks,
            pbar=has_bar,
        )

"""Save again in another layout; tensors are streamed from the source's files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tensordict.cli import common, export
from tensordict.ops.display import readable
from tensordict.storage import layouts

if TYPE_CHECKING:
    import argparse

    from tensordict.primitives.protocol import CollectionProtocol
    from tensordict.storage.inspect import Survey
    from tensordict.storage.layouts.interface import Layout


EXPORTS = ("huggingface", "dcp")
"""The formats of other programs in which steps can be written."""

MSG_ITEM = "--item needs --layout huggingface or --layout dcp."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``tensordict convert``."""
    parser.add_argument(
        "source",
        help=f"{common.PATH}, a file of torch.save (.pt, .bin), or a directory of "
        "torch.distributed.checkpoint",
    )
    parser.add_argument(
        "target",
        help="the path to write; its suffix chooses the layout, and a name such as step-100 makes "
        "a step of a checkpointer",
    )
    parser.add_argument(
        "--layout",
        choices=[*(layout.name for layout in layouts.LAYOUTS), *EXPORTS],
        help="default: .safetensors and .tdz by suffix, else a directory; huggingface "
        "and dcp write a step of a checkpointer as a directory",
    )
    export.add_arguments(parser)
    parser.add_argument(
        "--force", action="store_true", help="replace an existing target"
    )
    parser.add_argument(
        "--max-shard-size",
        help="divide safetensors into files of at most this size, such as 5GB",
    )
    parser.add_argument(
        "--shards",
        type=int,
        help="divide safetensors into this number of files",
    )
    common.add_threads(parser)
    parser.add_argument(
        "--durable", action="store_true", help="wait until the files are on the disk"
    )
    parser.add_argument("--no-checks", action="store_true", help="write no checksums")
    parser.add_argument(
        "--no-verify",
        action="store_true",
        help="do not check the source first: damage would be copied",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    common.add_loading(parser)


@common.reporting_errors
def run(arguments: argparse.Namespace) -> int:
    """Load and verify the source, save it, and print a summary."""
    from tensordict.checkpoint.steps import step_number
    from tensordict.cli import checkpoints
    from tensordict.storage.layouts.safetensors import index_of, is_index_name

    if arguments.layout in EXPORTS:
        return export.convert(arguments)
    if arguments.item:
        raise ValueError(MSG_ITEM)
    target = arguments.target
    if arguments.layout is None and step_number(os.path.basename(target)) is not None:
        return checkpoints.convert(arguments)
    layout = (
        layouts.of_name(arguments.layout)
        if arguments.layout
        else layouts.by_suffix(target)
    )
    is_safetensors = layout is layouts.SAFETENSORS
    is_sharded = arguments.max_shard_size is not None or arguments.shards is not None
    if is_index_name(target) and not is_safetensors:
        msg = f"{target} is a name for safetensors files, not for a {layout.name}."
        raise ValueError(msg)
    if is_sharded and not is_safetensors:
        msg = f"--shards and --max-shard-size need safetensors, but {target} is a {layout.name}."
        raise ValueError(msg)
    # A sharded save at `model.safetensors` also has an index file.
    there = [
        name for name in (target, index_of(target)) if name and os.path.exists(name)
    ]
    if there and not arguments.force:
        raise FileExistsError(17, common.MSG_THERE, there[0])
    found = _convert(target, layout, arguments)
    if arguments.json:
        common.print_json(
            {
                "source": arguments.source,
                "target": target,
                "layout": layout.name,
                "num_bytes": found.num_bytes,
            }
        )
    else:
        size = readable(found.num_bytes)
        print(f"{arguments.source} -> {target} ({layout.name}, {size})")
    return 0


def _convert(target: str, layout: Layout, arguments: argparse.Namespace) -> Survey:
    """Save the source at the target, and return a survey of the new save."""
    from tensordict.checkpoint import tools
    from tensordict.checkpoint.foreign import is_foreign
    from tensordict.cli import checkpoints
    from tensordict.cli.sources import is_of_others
    from tensordict.storage.checksums import DAMAGED, verify
    from tensordict.storage.inspect import survey

    path = arguments.source
    source_is_foreign = is_foreign(path)
    if source_is_foreign and os.path.isdir(path):
        with tools.directory_on_disk(path, target) as source:
            _save(source, target, layout, arguments)
        return survey(target)
    source = common.load_save(path, arguments)
    if tools.is_checkpoint(path) and not arguments.no_verify:
        checkpoints.refuse_damaged(arguments)
    elif not (arguments.no_verify or source_is_foreign or is_of_others(path)):
        # Otherwise the target's checksums would declare damaged bytes as good.
        damages = verify(path, arguments.threads).lines(DAMAGED)
        if damages:
            raise RuntimeError("\n".join(damages))
    _save(source, target, layout, arguments)
    return survey(target)


def _save(
    source: CollectionProtocol,
    target: str,
    layout: Layout,
    arguments: argparse.Namespace,
) -> None:
    from tensordict.storage.layouts.safetensors import is_index_name

    shards = arguments.shards
    if is_index_name(target) and shards is None and arguments.max_shard_size is None:
        shards = 1
    options = layouts.SaveOptions(
        copy_existing=True,
        num_threads=arguments.threads,
        durable=arguments.durable,
        pbar=common.has_bar(arguments),
        checks=not arguments.no_checks,
        max_shard_size=arguments.max_shard_size,
        shards=shards,
    )
    layout.save(source, target, options)

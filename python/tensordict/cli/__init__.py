"""The command line, ``tensordict`` or ``python -m tensordict``: a module a subcommand.

A module of a subcommand has ``add_arguments(parser)`` and ``run(arguments)``, which
returns the exit status. Nothing here runs at ``import tensordict``.

Exit statuses that scripts can rely on: 0 where all is well, 1 where what was looked for
is not (damage, a difference, a conflict), 2 where the command could not do its work
(wrong arguments, no such file, no such class), 3 where ``verify`` finds files that were
modified since they were saved, 130 where it was interrupted: then nothing has changed,
141 where nobody reads its output on, as in ``tensordict inspect save | head``.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import TYPE_CHECKING, Final

import tensordict

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COMMANDS", "main", "parser"]

# The exit status that shells report of a program that SIGINT has ended.
INTERRUPTED: Final = 130
# And of one that SIGPIPE has ended.
CLOSED_PIPE: Final = 141

# Each command with its module and what it does.
COMMANDS: Final = {
    "inspect": ("cli.inspect", "list what a save holds, without reading its tensors"),
    "show": ("cli.show", "open a save in a browser, as a tree with small previews"),
    "verify": (
        "cli.verify",
        "check a save: compare its bytes with the checksums it keeps",
    ),
    "seal": ("cli.seal", "take the checksums of a finished dataset, for verify"),
    "convert": ("cli.convert", "save again in another layout"),
    "diff": ("cli.diff", "compare two saves: keys, metadata, values"),
    "cp": ("cli.cp", "copy a save or a folder of steps between two places"),
    "clean": (
        "cli.clean",
        "remove what writers that were killed have left in an object store",
    ),
    "doctor": (
        "cli.doctor",
        "show versions, limits of the machine, and whether this package is whole",
    ),
    "demo": (
        "cli.demo",
        "save, load and check a real model, then fill and read a dataset on disk",
    ),
}


def parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """Build the parser, with the arguments of the command ``chosen``.

    Only the module of that command is imported, so that ``doctor`` answers where the
    others cannot be imported.
    """
    result = argparse.ArgumentParser(prog="tensordict")
    version = f"%(prog)s {tensordict.__version__}"
    result.add_argument("--version", action="version", version=version)
    commands = result.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module_name, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name == chosen:
            module = importlib.import_module(f"tensordict.{module_name}")
            module.add_arguments(command)
            if name not in ("doctor", "demo"):
                from tensordict.cli import places

                places.add_options(command)
            command.set_defaults(run=module.run)
    return result


def _run(arguments: argparse.Namespace) -> int:
    if hasattr(arguments, "option"):
        from tensordict.cli import places

        return places.run_here(arguments)
    return arguments.run(arguments)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` and return its exit status.

    Args:
        argv: the arguments after the program's name; those of the process by default.

    Raises:
        SystemExit: the arguments are wrong, or help was asked for.
    """
    argv = sys.argv[1:] if argv is None else argv
    # The options of the program itself end it, so otherwise a command comes first.
    arguments = parser(argv[0] if argv else None).parse_args(argv)
    try:
        status = _run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write(f"tensordict {arguments.command}: interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes the output once more when it ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return CLOSED_PIPE
    return status

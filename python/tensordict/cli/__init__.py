"""The command line, ``tensordict`` or ``python -m tensordict``: a module a command.

The module of a command contains ``add_arguments(parser)`` and ``run(arguments)``, which
returns the exit status. ``import tensordict`` imports none of these modules.

Scripts can rely on the exit statuses:

- 0: success;
- 1: a negative result: damage, a difference, a conflict;
- 2: the command could not run: wrong arguments, a missing file, an unknown class;
- 3: ``verify`` found files that were modified after the save;
- 130: the command was interrupted, and has changed nothing;
- 141: the reader of the output has closed it, as in ``tensordict inspect save | head``.
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

# The exit status that shells report for a program that SIGINT ended.
INTERRUPTED: Final = 130
# The exit status for a program that SIGPIPE ended.
CLOSED_PIPE: Final = 141

# The module and the summary of each command.
COMMANDS: Final = {
    "inspect": (
        "cli.inspect",
        "list the content of a save, without reading its tensors",
    ),
    "show": ("cli.show", "open a save in a browser, as a tree with small previews"),
    "verify": (
        "cli.verify",
        "check a save: compare its bytes with its checksums",
    ),
    "seal": ("cli.seal", "add checksums to a finished dataset, for verify"),
    "convert": ("cli.convert", "save again in another layout"),
    "diff": ("cli.diff", "compare two saves: keys, metadata, values"),
    "cp": ("cli.cp", "copy a save or a folder of steps between two places"),
    "clean": (
        "cli.clean",
        "remove objects that killed writers left in an object store",
    ),
    "doctor": (
        "cli.doctor",
        "show versions, limits of the machine, and whether the installation is intact",
    ),
    "demo": (
        "cli.demo",
        "save, load and check a real model, then fill and read a dataset on disk",
    ),
}


def parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """Build the parser, with the arguments of the command ``chosen``.

    Only the module of this command is imported, so that ``doctor`` works even if other
    modules cannot be imported.
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
    """Run the command line ``argv``, and return its exit status.

    Args:
        argv: the arguments after the program's name. Default: the arguments of this
            process.

    Raises:
        SystemExit: the arguments are wrong, or ask for help.
    """
    argv = sys.argv[1:] if argv is None else argv
    # Options of the program itself exit, so the first argument is a command otherwise.
    arguments = parser(argv[0] if argv else None).parse_args(argv)
    try:
        status = _run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write(f"tensordict {arguments.command}: interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes the output again at exit, which must not fail.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return CLOSED_PIPE
    return status

"""Functions that several commands share."""

from __future__ import annotations

import functools
import importlib
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

__all__ = [
    "add_loading",
    "add_threads",
    "has_bar",
    "load_save",
    "print_json",
    "reporting_errors",
]

FAILED = 2
PATH = (
    "a save of any layout, a checkpoint, a safetensors file or a folder of them, HDF5, "
    "Zarr, Parquet, CSV, JSON, or a Hugging Face or MosaicML dataset"
)
MSG_THERE = "It exists already; --force replaces it"
MSG_IMPORT = "--import MODULE imports the module that defines it."


def reporting_errors(
    run: Callable[[argparse.Namespace], int],
) -> Callable[[argparse.Namespace], int]:
    """Make a command print an error as one line, and return the exit status for it.

    With ``--json``, the output is an object with the text as ``error``.
    """

    @functools.wraps(run)
    def reported(arguments: argparse.Namespace) -> int:
        try:
            return run(arguments)
        except BrokenPipeError:  # The reader closed the output; `main` handles it.
            raise
        except (
            OSError,
            RuntimeError,
            ValueError,
            KeyError,
            TypeError,
            ImportError,
        ) as error:
            text = error.args[0] if isinstance(error, KeyError) else error
            sys.stderr.write(f"tensordict {arguments.command}: {text}\n")
            if getattr(arguments, "json", False):
                print_json({"error": str(text)})
            return FAILED

    return reported


def add_loading(parser: argparse.ArgumentParser) -> None:
    """Declare the options of commands that load saves."""
    parser.add_argument(
        "--import",
        dest="modules",
        metavar="MODULE",
        action="append",
        default=[],
        help="import a module that defines classes of the save (repeatable)",
    )
    parser.add_argument(
        "--allow-pickle",
        action="store_true",
        help="load pickled values, which can run any code: only for files you trust",
    )


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Declare the options of commands that read or write a whole save."""
    parser.add_argument(
        "--threads",
        type=int,
        default=0,
        help="native threads; default: the number of cores, at most 8",
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")


def has_bar(arguments: argparse.Namespace) -> bool:
    """Return whether to show a progress bar: on a terminal, without ``--quiet``."""
    return not arguments.quiet and sys.stderr.isatty()


def load_save(path: str, arguments: argparse.Namespace) -> Any:
    """Load a save of any layout, a checkpoint, or another format that the library reads.

    Files of saves are memory-mapped read-only.
    """
    from tensordict import load

    opened = getattr(arguments, "opened", {}).get(path)
    if opened is not None:
        return opened
    for module in arguments.modules:
        importlib.import_module(module)
    from tensordict.checkpoint import foreign, tools
    from tensordict.cli import sources

    if sources.is_of_others(path):
        return sources.read(path)
    if tools.is_checkpoint(path) or foreign.is_foreign(path):
        return tools.load(path)
    try:
        return load(path, mode="r", allow_pickle=arguments.allow_pickle)
    except RuntimeError as error:
        # On the command line, the remedy is an option.
        if "Could not find the class" in str(error):
            stable, _, _ = str(error).partition(" Import the module")
            raise RuntimeError(f"{stable} {MSG_IMPORT}") from error
        raise


def print_json(found: object) -> None:
    """Print an object as JSON."""
    print(json.dumps(found, indent=2))

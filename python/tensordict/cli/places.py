"""Commands on places in object stores: what is there is brought here for them."""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensordict.cli import common

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

__all__ = ["add_options", "options_of", "place_or_path", "run_here"]

SOURCES = ("path", "source", "first", "second")
"""The arguments of commands that are read; ``target`` is written."""

HEADS = ("inspect",)
"""The commands that need no values of tensors."""

IN_PLACE = ("diff",)
"""The commands that read saves of dense tensordicts in the store, a piece at a time."""

MSG_OPTION = "--option is key=value, such as aws_region=eu-central-1, got {!r}."
MSG_SEAL = "seal writes checksums into a save, and objects are not written to: seal it here and copy it."
MSG_THERE = "There is something at {} already; --force replaces it."


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the option of commands that take URLs."""
    parser.add_argument(
        "--option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="an option of the object store of a URL, such as aws_region=eu-central-1 "
        "(repeatable); the environment has the others",
    )


def options_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the options of the object store.

    Raises:
        ValueError: one is not ``key=value``.
    """
    found = {}
    for option in arguments.option:
        key, sign, value = option.partition("=")
        if not sign or not key:
            raise ValueError(MSG_OPTION.format(option))
        found[key] = value
    return found


def place_or_path(path: str, arguments: argparse.Namespace) -> Any:
    """Return the place of a URL, and the path of anything else."""
    from tensordict.storage.locations import local
    from tensordict.storage.remote import is_remote, place_of

    if is_remote(path):
        return place_of(path, options_of(arguments) or None)
    return Path(local(path))


def run_here(arguments: argparse.Namespace) -> int:
    """Run a command whose arguments may be URLs, on what they lead to."""
    from tensordict.storage.remote import is_remote

    given = {
        name: value
        for name in (*SOURCES, "target")
        if (value := getattr(arguments, name, None)) is not None and is_remote(value)
    }
    if not given or arguments.command == "cp":
        return arguments.run(arguments)
    arguments.given = given
    return _run_on_copies(arguments)


@common.reporting_errors
def _run_on_copies(arguments: argparse.Namespace) -> int:
    from tensordict.storage.remote import copying

    if arguments.command == "seal":
        raise ValueError(MSG_SEAL)
    given: dict[str, str] = arguments.given
    places = {name: place_or_path(url, arguments) for name, url in given.items()}
    target = places.pop("target", None)
    if arguments.command == "verify":
        from tensordict.checkpoint.tools import verify_place
        from tensordict.cli import checkpoints

        problems = verify_place(places["path"], arguments.threads)
        if problems is not None:
            return checkpoints.show_problems(arguments, problems, {})
    if target is not None and not arguments.force and copying.exists(target):
        raise FileExistsError(17, MSG_THERE.format(target))
    with tempfile.TemporaryDirectory(prefix="tensordict-") as folder:
        names = {}
        for name, place in places.items():
            if arguments.command in IN_PLACE:
                opened = _open(place, arguments)
                if opened is not None:
                    arguments.opened = {
                        **getattr(arguments, "opened", {}),
                        given[name]: opened,
                    }
                    continue
            near = Path(folder) / name
            near.mkdir()
            heads = arguments.command in HEADS
            path = copying.bring(place, near, heads=heads)
            names[str(path)] = given[name]
            setattr(arguments, name, str(path))
        if target is not None:
            made = Path(folder) / "target" / target.name
            made.parent.mkdir()
            names[str(made)] = given["target"]
            arguments.target = str(made)
        with _renamed(names):
            status: int = arguments.run(arguments)
        if target is not None and status == 0:
            copying.send_all(made, target)
    return status


def _open(place: Any, arguments: argparse.Namespace) -> Any:
    """Return the save at a place as a collection of remote tensors.

    Returns:
        None if it is no save of dense tensordicts, or cannot be loaded: a copy says why.
    """
    from tensordict import load
    from tensordict.containers.remote.collection import is_dense

    try:
        found = load(place, mode="r", allow_pickle=arguments.allow_pickle)
    except (OSError, RuntimeError, ValueError, KeyError):
        return None
    return found if is_dense(found) else None


class _Renaming(io.TextIOBase):
    """Writes text on, with URLs in the place of the paths of what was brought here."""

    def __init__(self, stream: Any, names: dict[str, str]) -> None:
        self._stream = stream
        self._names = names

    def write(self, text: str) -> int:
        """Write a text."""
        for path, url in self._names.items():
            text = text.replace(path, url)
        self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Have all of it written."""
        self._stream.flush()

    def isatty(self) -> bool:
        """Return whether somebody sees it."""
        return bool(self._stream.isatty())


@contextlib.contextmanager
def _renamed(names: dict[str, str]) -> Iterator[None]:
    out, err = _Renaming(sys.stdout, names), _Renaming(sys.stderr, names)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield

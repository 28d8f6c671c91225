"""Run commands on URLs of object stores: objects are downloaded for the command."""

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
"""The arguments that commands read; they write to ``target``."""

HEADS = ("inspect",)
"""The commands that need no values of tensors."""

IN_PLACE = ("diff", "show")
"""The commands that read saves of dense tensordicts directly in the store."""

MSG_OPTION = "--option must be key=value, such as aws_region=eu-central-1, got {!r}."
MSG_SEAL = "seal writes checksums into a save, but objects cannot be changed: seal it here and copy it."
MSG_THERE = "{} exists already; --force replaces it."


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the option of commands that take URLs."""
    parser.add_argument(
        "--option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="an option of the object store of a URL, such as aws_region=eu-central-1 "
        "(repeatable); other options come from the environment",
    )


def options_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the options of the object store.

    Raises:
        ValueError: an option is not ``key=value``.
    """
    found = {}
    for option in arguments.option:
        key, sign, value = option.partition("=")
        if not sign or not key:
            raise ValueError(MSG_OPTION.format(option))
        found[key] = value
    return found


def place_or_path(path: str, arguments: argparse.Namespace) -> Any:
    """Return the place of a URL, or the path of anything else."""
    from tensordict.storage.locations import local
    from tensordict.storage.remote import is_remote, place_of
    from tensordict.storage.remote.copied import followed_steps

    if is_remote(path):
        return place_of(path, options_of(arguments) or None)
    here = Path(local(path))
    return followed_steps(here) or here


def run_here(arguments: argparse.Namespace) -> int:
    """Run a command; if arguments are URLs, run it on downloaded copies."""
    from tensordict.storage.remote import is_remote
    from tensordict.storage.remote.copied import followed_steps

    given = {
        name: value
        for name in (*SOURCES, "target")
        if (value := getattr(arguments, name, None)) is not None
        and (is_remote(value) or (name != "target" and followed_steps(value)))
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
        verified = None if arguments.deep else _verify_tree(places["path"], arguments)
        if verified is not None:
            return verified
    if target is not None and not arguments.force and copying.exists(target):
        raise FileExistsError(17, MSG_THERE.format(target))
    with tempfile.TemporaryDirectory(prefix="tensordict-") as folder:
        names = {}
        for name, place in places.items():
            # A histogram is of values from all of a leaf.
            if arguments.command in IN_PLACE and not vars(arguments).get("histograms"):
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
            # The shards of a save lie beside its name.
            names[str(near)] = str(place.parent)
            setattr(arguments, name, str(path))
        if target is not None:
            local_target = Path(folder) / "target" / target.name
            local_target.parent.mkdir()
            names[str(local_target)] = given["target"]
            arguments.target = str(local_target)
        with _renamed(names):
            status: int = arguments.run(arguments)
        if target is not None and status == 0:
            copying.send_all(local_target, target)
    return status


def _verify_tree(place: Any, arguments: argparse.Namespace) -> int | None:
    """Verify a directory save in a store, without a copy on this machine.

    Returns:
        The exit status; None for other saves.
    """
    from collections import Counter

    from tensordict.cli import verify
    from tensordict.storage.inspect import survey
    from tensordict.storage.layouts.interface import DAMAGED
    from tensordict.storage.remote.outline import outlined
    from tensordict.storage.remote.verifying import verify_outlined

    if not place.exists("meta.json"):
        return None
    with contextlib.ExitStack() as stack:
        try:
            outline = stack.enter_context(outlined(place))
        except (FileNotFoundError, RuntimeError, ValueError):
            # The comparison of a copy tells which file is damaged.
            return None
        found = survey(outline.path)
        problems, outcomes = list(found.problems), Counter[str]()
        report = None if problems else verify_outlined(outline)
        if report is not None:
            outcomes = Counter(finding.outcome for finding in report.findings)
            problems = report.lines(DAMAGED)
        elif not problems:
            outcomes = Counter(unchecked=1)
        with _renamed({str(outline.path): str(place)}):
            verify.show(arguments, found, problems, [], outcomes)
    return verify.DAMAGED if problems else 0


def _open(place: Any, arguments: argparse.Namespace) -> Any:
    """Return the save at a place as a collection of remote tensors.

    Returns:
        None if it is not a save of dense tensordicts, or cannot be loaded. The command
        then runs on a copy, and reports the error.
    """
    from tensordict import load
    from tensordict.containers.remote.collection import is_dense

    try:
        found = load(place, mode="r", allow_pickle=arguments.allow_pickle)
    except (OSError, RuntimeError, ValueError, KeyError):
        return None
    return found if is_dense(found) else None


class _Renaming(io.TextIOBase):
    """A text stream that replaces the paths of downloaded copies by their URLs."""

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
        """Flush the stream."""
        self._stream.flush()

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        return bool(self._stream.isatty())


@contextlib.contextmanager
def _renamed(names: dict[str, str]) -> Iterator[None]:
    out, err = _Renaming(sys.stdout, names), _Renaming(sys.stderr, names)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield

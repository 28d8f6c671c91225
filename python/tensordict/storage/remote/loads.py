"""Load a save of an object store: remote, or a copy of it on this machine."""

from __future__ import annotations

import os
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tensordict.primitives import classes
from tensordict.storage.remote.cache import cache_of
from tensordict.storage.remote.fetching import download_object
from tensordict.storage.remote.outline import outlined
from tensordict.storage.remote.place import place_of
from tensordict.storage.remote.publishing import in_threads
from tensordict.storage.remote.saved_times import set_times
from tensordict.storage.take_loaded import load_into

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict.storage.layouts import LoadOptions
    from tensordict.storage.remote.outline import Outline
    from tensordict.storage.remote.place import Place

__all__ = ["RemoteOptions", "load_place"]

MSG_THERE: Final = (
    "{path} is there already: give download= a path that is not, or delete it, or load that "
    "copy with load_memmap({path!r})."
)
MSG_DOWNLOAD: Final = "download is True, False or a path, got {!r}."


class RemoteOptions(NamedTuple):
    """The arguments of a load that are for object stores."""

    storage_options: Any = None
    cache_dir: Any = None
    cache_limit: int | None = None
    download: Any = None
    read_limit: int | None = None


def load_place(
    prefix: Any,
    options: LoadOptions,
    out: Any,
    remote: RemoteOptions,
    load_local: Callable[[str], Any],
) -> Any:
    """Load the save at a URL.

    Args:
        prefix: the URL, a store of ``obstore``, or a place.
        options: the arguments of the load.
        out: a collection that takes the entries; None for a new one.
        remote: the arguments for object stores.
        load_local: loads a copy on this machine, with the same arguments.
    """
    place = place_of(prefix, remote.storage_options)
    if remote.download not in (None, False):
        return load_local(_downloaded(place, remote))
    cache = None
    if remote.cache_dir is not None:
        cache = cache_of(remote.cache_dir, remote.cache_limit)
    loaded = classes.load_remote(
        place, options, cache=cache, read_limit=remote.read_limit
    )
    if out is None:
        return loaded
    if options.has_values:
        loaded = loaded.to_tensordict()
    return load_into(out, loaded)


def _downloaded(place: Place, remote: RemoteOptions) -> str:
    """Copy a save to this machine, and return its path.

    Raises:
        FileExistsError: there is something at the path.
        TypeError: ``download`` is no path.
    """
    given = remote.download
    if given is True:
        folder = remote.cache_dir or tempfile.gettempdir()
        name = f"tensordict-download-{uuid.uuid4().hex[:12]}"
        target = Path(folder) / name / (place.name or "data")
    elif isinstance(given, (str, os.PathLike)):
        target = Path(os.path.abspath(given))
    else:
        raise TypeError(MSG_DOWNLOAD.format(given))
    if os.path.lexists(target):
        raise FileExistsError(17, MSG_THERE.format(path=str(target)))
    target.parent.mkdir(parents=True, exist_ok=True)
    # The folder is beside the target, whose place one of its files or it takes in one step.
    with outlined(place, near=target.parent) as outline:
        _fill(outline)
        is_file = outline.path.is_file() and len(outline.objects) == 1
        set_times(outline.folder)
        for name in outline.objects:
            if not name.endswith(".memmap"):
                set_times(outline.folder / name)
        if is_file:
            outline.path.rename(target)
            return str(target)
        outline.folder.rename(target)
        is_below = outline.path != outline.folder
        return str(target / outline.path.name if is_below else target)


def _fill(outline: Outline) -> None:
    """Download the objects of an outline into its files."""
    calls = []
    for name, source in outline.objects.items():
        calls.append((source.without_cache(), outline.folder / name))
    in_threads(download_object, calls)
    for name, source in outline.others.items():
        try:
            download_object(source.without_cache(), outline.folder / name)
        except FileNotFoundError:
            (outline.folder / name).unlink()

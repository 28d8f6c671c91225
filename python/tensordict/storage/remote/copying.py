"""Copy saves between places: stores, and folders of this machine."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tensordict.storage.remote.fetching import (
    download_file,
    download_folder,
    fetch_head,
)
from tensordict.storage.remote.manifests import SWITCH
from tensordict.storage.remote.publishing import (
    OWN,
    Uploads,
    in_threads,
    upload_file,
    upload_folder,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensordict.storage.remote.place import Place

__all__ = ["bring", "copy", "exists", "send", "send_all"]

INDEX: Final = ".index.json"

MSG_NOTHING: Final = "There is nothing at {}: check the path, and that it was written."
MSG_THERE: Final = "There is something at {} already; --force replaces it."


def exists(place: Place | Path) -> bool:
    """Return whether there is a save, a file, or a folder with anything."""
    if isinstance(place, Path):
        return place.is_file() or (place.is_dir() and any(place.iterdir()))
    return (
        (bool(place.root) and place.exists())
        or place.exists(SWITCH)
        or (place.parent.exists(f"{place.name}{INDEX}"))
    )


def copy(source: Place | Path, target: Place | Path, progress: Uploads) -> None:
    """Copy a save, a folder or a file; saves appear complete, or not at all.

    Args:
        source: a save of any layout, a folder of steps, or any other file or folder.
        target: the place of the copy.
        progress: is told how far it is.

    Raises:
        FileNotFoundError: there is nothing to copy.
        OSError: a place cannot be read or written.
    """
    if isinstance(source, Path):
        if not source.exists():
            raise FileNotFoundError(2, MSG_NOTHING.format(source))
        if isinstance(target, Path):
            _copy_here(source, target)
        else:
            send(source, target, progress)
        return
    near = target.parent if isinstance(target, Path) else None
    if near is not None:
        near.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tensordict-", dir=near) as folder:
        brought = bring(source, Path(folder), progress)
        if isinstance(target, Path):
            _take_the_place_of(brought, target)
        else:
            send(brought, target, progress)


def _copy_here(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tensordict-", dir=target.parent) as near:
        made = Path(near) / target.name
        if source.is_dir():
            shutil.copytree(source, made, symlinks=True)
        else:
            shutil.copy2(source, made)
        _take_the_place_of(made, target)


def _take_the_place_of(made: Path, target: Path) -> None:
    if target.is_dir() and not target.is_symlink():
        target.rename(made.with_name(".old"))
    os.rename(made, target)


def bring(
    place: Place, folder: Path, progress: Uploads | None = None, *, heads: bool = False
) -> Path:
    """Download a save, a folder or an object into a local folder.

    Args:
        place: a save, a folder of them, or any object or folder of objects.
        folder: the folder, in which it gets the name that it has there.
        progress: is told how far it is.
        heads: whether of large files of tensors only the beginnings come, and the rest is
            a hole: enough to know what a save holds.

    Returns:
        Its path.

    Raises:
        FileNotFoundError: there is nothing.
        OSError: the store cannot be read.
    """
    target = folder / (place.name or "save")
    if place.exists(SWITCH):
        download_folder(place, target, progress, heads=heads)
    elif place.root and place.exists():
        if heads and place.name.endswith(".safetensors"):
            fetch_head(place, target)
        else:
            download_file(place, target, progress)
    elif place.root and place.parent.exists(f"{place.name}{INDEX}"):
        _bring_shards(place, target, progress)
    else:
        _bring_folder(place, target, progress, heads=heads)
    return target


def _bring_shards(place: Place, target: Path, progress: Uploads | None) -> None:
    """Download the index of a safetensors save, and its shards."""
    parent = place.parent
    content = parent.get(f"{place.name}{INDEX}")
    shards = sorted(set(json.loads(content)["weight_map"].values()))
    calls = [(parent / name, target.with_name(name), progress) for name in shards]
    in_threads(download_file, calls)
    target.with_name(f"{target.name}{INDEX}").write_bytes(content)


def _bring_folder(
    place: Place, target: Path, progress: Uploads | None, *, heads: bool
) -> None:
    """Download a folder of steps, of saves, or of any objects."""
    sizes = {found.name: found.size for found in place.list()}
    if not sizes:
        raise FileNotFoundError(2, MSG_NOTHING.format(place))
    saves = _topmost(sizes)
    # Folders with objects of a writer, and no save: it was killed, or the save is deleted.
    left = {
        name.rpartition(f"/{OWN}")[0]
        for name in sizes
        if f"/{OWN}" in name and not _is_below(name, saves)
    }
    plain = [
        name
        for name in sizes
        if not _is_below(name, {*saves, *left}) and not name.startswith(OWN)
    ]
    for name in sorted(saves):
        download_folder(place / name, target / name, progress, heads=heads)
    in_threads(
        download_file, [(place / name, target / name, progress) for name in plain]
    )


def _topmost(names: Iterable[str]) -> set[str]:
    """The folders of saves that are in no other save."""
    found: set[str] = set()
    switches = (name for name in names if name.endswith(f"/{SWITCH}"))
    for name in sorted(switches, key=lambda name: name.count("/")):
        if not _is_below(name, found):
            found.add(name.removesuffix(f"/{SWITCH}"))
    return found


def _is_below(name: str, folders: Iterable[str]) -> bool:
    return any(name.startswith(f"{folder}/") for folder in folders)


def send(path: Path, place: Place, progress: Uploads | None = None) -> None:
    """Upload a local file or folder.

    Each save is there whole, or not at all.

    Raises:
        OSError: the store cannot be written to, or another writer was faster.
    """
    progress = progress or Uploads()
    if path.is_file():
        progress.total += path.stat().st_size
        upload_file(place, path)
        progress.add(path.stat().st_size)
        return
    if (path / SWITCH).is_file():
        upload_folder(path, place, progress=progress)
        return
    files = {
        name: each
        for name, each in _files(path).items()
        if not name.startswith((".tdtmp", ".parts-", ".uploads-", OWN))
    }
    saves = _topmost(files)
    for name in sorted(saves):
        upload_folder(path / name, place / name, progress=progress)
    plain = [
        (place, each, name)
        for name, each in files.items()
        if not _is_below(name, saves)
    ]
    # The index refers to the other files.
    plain.sort(key=lambda call: call[2].endswith(INDEX))
    progress.total += sum(call[1].stat().st_size for call in plain)
    indices = sum(call[2].endswith(INDEX) for call in plain)
    in_threads(upload_file, plain[: len(plain) - indices])
    in_threads(upload_file, plain[len(plain) - indices :])
    progress.add(sum(call[1].stat().st_size for call in plain))


def send_all(path: Path, place: Place) -> None:
    """Upload the output of a command: a file, a folder, or shards beside the path."""
    if path.exists():
        send(path, place)
    else:
        send(path.parent, place.parent)


def _files(folder: Path) -> dict[str, Path]:
    from tensordict.storage.remote.publishing import files_below

    return files_below(folder)

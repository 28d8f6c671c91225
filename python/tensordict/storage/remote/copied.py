"""Copies of saves in a folder of this machine, with the objects as a store keeps them.

``aws s3 sync`` or ``cp -r`` copies the objects of a save one by one. If the save has a manifest,
the copy has the manifest and the objects, and no file has the name that a layout looks for. Such
a copy is read as a store: the folder that contains it is the store.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tensordict.storage.remote.manifests import MANIFEST, SWITCH

if TYPE_CHECKING:
    from tensordict.storage.remote.place import Place

__all__ = ["MSG_COPY", "followed", "followed_steps", "is_copied"]

MSG_COPY: Final = (
    "{path} contains a save as an object store keeps it: meta.json is a manifest of the "
    "objects in {path}/.tensordict-*. This call needs the files of a local save: make them with "
    "`tensordict cp {path} NEW_FOLDER`."
)

_HEAD: Final = b'{"' + MANIFEST.encode() + b'"'


def is_copied(path: Any) -> bool:
    """Return whether a folder contains a save with a manifest.

    Examples:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> is_copied(folder)
        False
        >>> _ = (folder / "meta.json").write_text('{"tensordict.objects":1}')
        >>> is_copied(folder)
        True
    """
    try:
        # A pipe in the place of the file must not stop the call.
        with open(os.path.join(path, SWITCH), "rb", opener=_open_at_once) as file:
            return file.read(len(_HEAD)) == _HEAD
    except (OSError, TypeError, ValueError):
        return False


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def followed(path: Any) -> Place | None:
    """Return the place of a copied save in a folder; None for all other paths.

    Raises:
        ImportError: ``obstore`` is not installed.
    """
    return _place_of(path) if is_copied(path) else None


def followed_steps(path: Any) -> Place | None:
    """Return the place of a folder with copied steps, or of a copied save.

    Raises:
        ImportError: ``obstore`` is not installed.
    """
    if is_copied(path):
        return _place_of(path)
    try:
        children = [entry.path for entry in os.scandir(path) if entry.is_dir()]
    except (OSError, TypeError, ValueError):
        return None
    return _place_of(path) if any(map(is_copied, children)) else None


def _place_of(path: Any) -> Place:
    from tensordict.storage.remote.options import obstore
    from tensordict.storage.remote.place import Place

    folder = Path(os.path.realpath(path))
    # Manifests of steps and parts lead to objects up to two folders above.
    parents = list(folder.parents)
    top = parents[min(1, len(parents) - 1)]
    store = obstore(path).store.LocalStore(str(top))
    return Place(str(path), folder.relative_to(top).as_posix(), {}, None, store)

"""Saves that are a file, as :meth:`save` and :meth:`load` see them.

Safetensors files are chosen by their suffix when saving. When loading, a file is looked
into: what it is called does not matter.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tensordict import _rust
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage.checksums import check_loaded, check_undamaged
from tensordict.storage.layouts import consolidated, safetensors
from tensordict.storage.paths import subpath_parts

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["is_chosen", "layout_of", "load", "save"]

MSG_INDEX = (
    "{} would be the index of a safetensors save in several files, which to_safetensors "
    "writes: to_safetensors(td, '….safetensors', shards=4)."
)


def is_chosen(prefix: Any, archive: bool | None) -> bool:
    """Whether a save is to be a safetensors file: by the suffix of its name.

    Raises:
        ValueError: the name is that of the index of several.
    """
    if not archive and safetensors.is_index_name(prefix):
        raise ValueError(MSG_INDEX.format(prefix))
    return not archive and str(prefix).endswith(safetensors.SUFFIX)


def save(td: Any, path: str | Path, options: Any, progress: _rust.SaveProgress) -> Any:
    """Save to a safetensors file: a locked container over it.

    Raises:
        RuntimeError: the file exists and was not to.
    """
    if not options.existsok and (
        os.path.exists(path) or safetensors.index_of(path) is not None
    ):
        raise RuntimeError(f"The file {path} already exists.")
    return safetensors.save_mapped(td, path, options.how, progress).lock_()


def layout_of(path: str | Path) -> str | None:
    """``safetensors`` or ``consolidated``; None for a directory, an archive, nothing."""
    if safetensors.index_of(path) is not None:
        return "safetensors"
    if not os.path.isfile(path):
        return None
    if _rust.is_safetensors(path):
        return "safetensors"
    return "consolidated" if _rust.is_consolidated(path) else None


def load(
    path: str | Path,
    layout: str,
    options: Any,
    subpath: Any,
    verify: bool,
    is_copied: bool = False,
) -> Any:
    """Make a container from a file; of ``subpath`` only what is nested there.

    Where ``is_copied``, the values go into other memory.

    Raises:
        ValueError: there is no collection at ``subpath``.
    """
    if verify:
        check_loaded(path, options.num_threads, subpath)
    elif is_copied or options.is_moved:
        check_undamaged(path, options.num_threads, subpath)
    if layout == "safetensors":
        mode = options.mode or "r"
        loaded = safetensors.load(path, None, mode, options.requested)
    else:
        loaded = consolidated.load(path, options.requested, options.mode)
    if subpath is not None:
        loaded = _below(loaded, subpath, path)
    if options.device is not None:
        loaded = loaded.to(options.device)
    return loaded


def _below(loaded: Any, subpath: Any, path: str | Path) -> Any:
    """The nested collection at a key, given as a tuple or with slashes."""
    below = loaded
    for part in subpath_parts(subpath):
        if part:
            below = _entry(below, part)
            if not isinstance(below, CollectionProtocol):
                raise ValueError(
                    f"No tensordict found under subpath {subpath!r} of {path}."
                )
    return below


def _entry(td: Any, key: str) -> Any:
    """An entry; a member of a lazy stack is at its number, as in a directory."""
    members = td.__dict__.get("tensordicts")
    if members is not None and key.isdecimal() and int(key) < len(members):
        return members[int(key)]
    return td._get_entry(key, None)

"""Changes of a save in place: entries are added, files are opened again.

Several processes may change a save at once, each through its own collection over the directory. A
process that rewrites the metadata of a level locks the level (:class:`_rust.LockedLevel`), so that
no entry is lost.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tensordict import _rust
from tensordict.primitives import registry
from tensordict.primitives.common import MSG_BATCH_MISMATCH
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage.layouts import SaveOptions, load, save
from tensordict.storage.layouts.directory import CPU, saved_dense
from tensordict.storage.take_loaded import check_fit, mark_mapped
from tensordict.storage.tensors.mapped import MemoryMappedTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tensordict.containers.collection import TensorCollection

__all__ = ["Adding", "add_leaf_file", "refresh", "shape_fields_dense"]

MSG_CANNOT = "Cannot call `{}` on a {}. Only a memory-mapped TensorDict supports it."
MSG_IS_TENSOR = (
    "{!r} object has no attribute 'keys': the entry {!r} is a tensor, so it cannot contain "
    "the key {!r}."
)

MSG_NOT_MAPPED = (
    "Cannot refresh a TensorDict that is not memory mapped or has no path associated."
)
MSG_PRESENT = (
    "The key {} already exists within the target tensordict. Delete that entry before "
    "overwriting it."
)
MSG_SHAPE_TAKEN = (
    "The sizes of the nested tensor {0!r} need the file of the entry '{0}.shape': rename one "
    "of the two entries."
)
MSG_ADDED = (
    "The key {} already exists within the directory of the target tensordict, as {}: another "
    "tensordict over this directory has added it. Call memmap_refresh_() to load it."
)


# Opening again ------------------------------------------------------------------------


def refresh(td: Any, allow_pickle: bool | None = None) -> Any:
    """Load the files of a memory-mapped collection again; keep its nested collections.

    The collection keeps its batch sizes and names, and those that were set since the metadata was
    written are written now. Rows that were appended since are loaded.
    """
    if not td._is_memmap or td._memmap_prefix is None:
        raise RuntimeError(MSG_NOT_MAPPED)
    loaded = load(type(td), td._memmap_prefix, allow_pickle=allow_pickle)
    written = [(level, level._shape_fields()) for level in _levels(loaded)]
    before_growing: list[tuple[Any, torch.Size]] = []
    try:
        _give_shape(td, loaded, before_growing)
        check_fit(td, loaded)
    except BaseException:
        for level, size in before_growing:
            level._batch_size = size
        raise
    # The metadata of inner levels is written first. The collection changes last, so that
    # an error leaves it as it was.
    for level, before in reversed(written):
        changes = dict(level._shape_fields().items() - before.items())
        if changes:
            with _rust.LockedLevel(
                os.path.abspath(level._memmap_prefix)
            ) as locked_level:
                locked_level.set_fields(list(changes.items()))
    refreshed = td._take_loaded(loaded)
    mark_mapped(refreshed)
    return refreshed


def _levels(loaded: CollectionProtocol) -> Iterator[Any]:
    """Yield a loaded collection and its nested collections that have a directory."""
    if loaded._memmap_prefix is not None and not loaded._is_non_tensor:
        yield loaded
        for child in loaded._children():
            yield from _levels(child)


def _give_shape(
    td: Any, loaded: Any, before_growing: list[tuple[Any, torch.Size]]
) -> None:
    """Set the batch sizes and names of ``td`` on the collection loaded for it.

    If the files have more rows by now, ``td`` takes the batch size of the files instead. Its
    old batch size is added to ``before_growing``.
    """
    if loaded._is_non_tensor or type(td) is not type(loaded):
        return
    if not td._shape_fields():
        return
    if _has_grown(td.batch_size, loaded.batch_size):
        before_growing.append((td, td.batch_size))
        td._batch_size = loaded.batch_size
    if loaded.batch_size != td.batch_size:
        loaded.batch_size = td.batch_size
    if loaded.names != td.names:
        loaded.names = td.names
    others = loaded._entries()
    for key, present in list(td._entries().items()):
        value = others.get(key)
        if isinstance(present, CollectionProtocol) and isinstance(
            value, CollectionProtocol
        ):
            _give_shape(present, value, before_growing)


def _has_grown(size: torch.Size, loaded: torch.Size) -> bool:
    """Return whether the loaded batch size has more rows, and is the same otherwise."""
    return (
        len(size) == len(loaded) > 0 and size[0] < loaded[0] and size[1:] == loaded[1:]
    )


def shape_fields_dense(td: Any) -> dict[str, str | None]:
    """Return the shape and names of a dense collection for the metadata, as JSON."""
    names = td._td_dim_names
    has_names = names is not None and any(name is not None for name in names)
    return {
        "shape": json.dumps(list(td._batch_size)),
        "_names": json.dumps(list(names)) if has_names else None,
    }


# Adding an entry ----------------------------------------------------------------------


class Adding(NamedTuple):
    """The way in which a leaf is added."""

    method: str
    """The name of the method that the caller called."""
    robust_key: bool | None
    """Whether keys are escaped in file names."""
    values: torch.Tensor | None = None
    """The values to write if the directory contains the leaf already."""
    keeps_file: bool = False
    """Whether an existing file is the file of the leaf."""
    table: torch.Tensor | None = None
    """The table of sizes of a nested tensor: int64 ``[N, dims]``."""


def add_leaf_file(
    td: Any,
    key: tuple[str, ...],
    shape: torch.Size,
    dtype: torch.dtype,
    make: Callable[[str | None], Any],
    how: Adding,
) -> Any:
    """Add a leaf to a memory-mapped collection and to its directory.

    If another collection has added a leaf of this shape and dtype to the directory, both
    share its file.

    Args:
        td: the collection. It may be locked.
        key: the key of the leaf.
        shape: the shape of the leaf, which must begin with the batch size.
        dtype: the dtype of the leaf.
        make: a function that creates the leaf over the file that is its argument. The
            argument is ``None`` if the collection has no directory.
        how: the way in which the leaf is added.

    Raises:
        RuntimeError: the collection is not memory-mapped, or contains the key; the
            directory contains the key with another shape or dtype; or the shape does not
            begin with the batch size.
        AttributeError: a part of the key leads to a tensor.
    """
    first, rest = key[0], key[1:]
    td = td._level_to_grow(first, how.method)
    if not td._is_memmap:
        raise RuntimeError(
            "Can only make a memmap tensor within a memory-mapped tensordict."
        )
    present = td._get_entry(first, None)
    if rest:
        if present is None:
            present = _add_child(td, first, how.robust_key)
        if not isinstance(present, CollectionProtocol):
            shown = type(present).__name__
            raise AttributeError(MSG_IS_TENSOR.format(shown, first, rest[0]))
        return add_leaf_file(present, rest, shape, dtype, make, how)
    if present is not None:
        raise RuntimeError(MSG_PRESENT.format(first))
    _check_batch(td, first, torch.Size(shape))
    prefix = td._memmap_prefix
    if prefix is None:
        leaf = make(None)
    else:
        directory = os.path.abspath(prefix)
        name = _rust.escape_key(first) if how.robust_key is not False else first
        file = os.path.join(directory, f"{name}.memmap")
        with _rust.LockedLevel(directory) as level:
            saved = level.entry(first)
            is_same = how.table is None and saved == (str(dtype), list(shape), False)
            if saved is not None and not is_same:
                raise RuntimeError(MSG_ADDED.format(first, _described(saved)))
            # The leaf fits the present batch size, which may differ from the saved one.
            level.set_fields(list(td._shape_fields().items()))
            if saved is None:
                leaf = _new_leaf(level, first, file, make, how)
            elif how.keeps_file or not _is_regular(file):
                leaf = make(file)
            else:
                leaf = MemoryMappedTensor.from_filename(file, dtype, shape)
                if how.values is not None:
                    torch.Tensor.copy_(leaf, how.values)
    td._tensordict[first] = leaf
    return leaf


def _new_leaf(
    level: Any,
    key: str,
    file: str,
    make: Callable[[str | None], Any],
    how: Adding,
) -> Any:
    """Create a leaf that the directory does not contain yet."""
    table = how.table
    if table is not None and level.entry(f"{key}.shape") is not None:
        raise RuntimeError(MSG_SHAPE_TAKEN.format(key))
    stem, dot, end = key.rpartition(".")
    if dot and end == "shape" and _is_nested_leaf(level.entry(stem)):
        raise RuntimeError(MSG_SHAPE_TAKEN.format(stem))
    if _is_regular(file) and not how.keeps_file:
        # The file of a removed entry. Processes that have mapped it keep its bytes.
        os.unlink(file)
    leaf = make(file)
    if table is not None and leaf._filename is not None:
        sizes = file.removesuffix(".memmap") + ".shape.memmap"
        _rust.write_file(sizes, table.contiguous(), str(table.dtype), list(table.shape))
        level.add_leaf(key, str(leaf.dtype), list(table.shape), True)
    elif leaf._filename is not None or not leaf.numel():
        level.add_leaf(key, str(leaf.dtype), list(leaf.shape))
    return leaf


def _is_regular(file: str) -> bool:
    return os.path.lexists(file) and stat.S_ISREG(os.lstat(file).st_mode)


def _is_nested_leaf(saved: object) -> bool:
    return isinstance(saved, tuple) and saved[2]


def _described(saved: Any) -> str:
    """Return the description of an entry of the metadata for a message."""
    if isinstance(saved, str):
        return f"a {saved}"
    dtype, shape, is_nested = saved
    if is_nested:
        return f"a nested tensor of {shape[0]} components and dtype {dtype}"
    return f"a tensor of shape {tuple(shape)} and dtype {dtype}"


def _check_batch(td: CollectionProtocol, key: str, shape: torch.Size) -> None:
    batch_size = td.batch_size
    if shape[: len(batch_size)] != batch_size:
        raise RuntimeError(MSG_BATCH_MISMATCH.format(batch_size, shape, key))


def _add_child(td: TensorCollection, key: str, robust_key: bool | None) -> Any:
    """Add a nested collection to ``td`` and to its directory.

    If the directory contains a collection under this key, it is loaded. Otherwise the new
    collection is empty.
    """
    root = registry.dense_root()
    names = td._td_dim_names
    child: Any = _rust.new(root, {}, td._batch_size, CPU, names and list(names))
    prefix = td._memmap_prefix
    if prefix is None:
        child = saved_dense(child, _rust.SavedTensors([]), None, True)
    else:
        name = _rust.escape_key(key) if robust_key is not False else key
        place = Path(prefix) / name
        with _rust.LockedLevel(os.path.abspath(prefix)) as level:
            saved = level.entry(key)
            if saved is not None and not isinstance(saved, str):
                raise RuntimeError(MSG_ADDED.format(key, _described(saved)))
            level.set_fields(list(td._shape_fields().items()))
            if saved is None:
                save(child, place, SaveOptions(archive=False, inplace=True))
                level.add_child(key, root.__name__)
            else:
                child = load(None, place, robust_key=robust_key)
                _check_batch(td, key, child.batch_size)
                mark_mapped(child)
    td._tensordict[key] = child
    return child

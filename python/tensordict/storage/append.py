"""Changing a save in place: entries that are added to it, files that are opened again.

Several processes may do so at once, each with a collection of its own over the same
directory. Whoever reads the metadata of a level to write it again holds the level
meanwhile (:class:`_rust.LockedLevel`), so that no entry is lost.
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
    "{!r} object has no attribute 'keys': the entry {!r} is a tensor, and {!r} cannot be "
    "in it."
)

MSG_NOT_MAPPED = (
    "Cannot refresh a TensorDict that is not memory mapped or has no path associated."
)
MSG_PRESENT = (
    "The key {} already exists within the target tensordict. Delete that entry before "
    "overwriting it."
)
MSG_SHAPE_TAKEN = (
    "The sizes of the nested tensor {0!r} are kept in the file that the entry '{0}.shape' "
    "has: rename one of the two."
)
MSG_ADDED = (
    "The key {} already exists within the directory of the target tensordict, as {}: it "
    "was added through another one. Open the files again with memmap_refresh_()."
)


# Opening again ------------------------------------------------------------------------


def refresh(td: Any, allow_pickle: bool | None = None) -> Any:
    """Load the files of a memory-mapped collection again, nested ones kept.

    The batch sizes and names are those of the collection, and the metadata gets those
    that were set since it was written. Rows that were appended since are there, too.
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
    # The innermost first, and all before anything of the collection changes.
    for level, before in reversed(written):
        changes = dict(level._shape_fields().items() - before.items())
        if changes:
            with _rust.LockedLevel(os.path.abspath(level._memmap_prefix)) as held:
                held.set_fields(list(changes.items()))
    taken = td._take_loaded(loaded)
    mark_mapped(taken)
    return taken


def _levels(loaded: CollectionProtocol) -> Iterator[Any]:
    """A collection that was loaded, and those below it, that have a directory."""
    if loaded._memmap_prefix is not None and not loaded._is_non_tensor:
        yield loaded
        for child in loaded._children():
            yield from _levels(child)


def _give_shape(
    td: Any, loaded: Any, before_growing: list[tuple[Any, torch.Size]]
) -> None:
    """Give what was loaded the batch sizes and names of the collections it is for.

    A collection whose files have more rows by now takes the batch size of those; what
    it had is added to ``before_growing``.
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
    """Return whether a batch size is another one with more rows."""
    return (
        len(size) == len(loaded) > 0 and size[0] < loaded[0] and size[1:] == loaded[1:]
    )


def shape_fields_dense(td: Any) -> dict[str, str | None]:
    """Describe the shape of a dense collection for the metadata, as JSON."""
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
    """The method that the caller called."""
    robust_key: bool | None
    """True if keys are escaped to file names."""
    values: torch.Tensor | None = None
    """The values that are written into a leaf that is there already."""
    keeps_file: bool = False
    """True if a file that is there is that of the leaf."""
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

    A leaf of this shape and dtype that another collection added to the directory is
    shared with that one.

    Args:
        td: the collection, locked as it is.
        key: where to.
        shape: the shape of the leaf, which must begin with the batch size.
        dtype: its dtype.
        make: makes the leaf, given the file to make, None where there is no directory.
        how: how it is added.
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
            known = level.entry(first)
            is_same = how.table is None and known == (str(dtype), list(shape), False)
            if known is not None and not is_same:
                raise RuntimeError(MSG_ADDED.format(first, _said(known)))
            # The leaf need not fit the batch size that was saved.
            level.set_fields(list(td._shape_fields().items()))
            if known is None:
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
    """A leaf that the directory does not have yet."""
    table = how.table
    if table is not None and level.entry(f"{key}.shape") is not None:
        raise RuntimeError(MSG_SHAPE_TAKEN.format(key))
    stem, dot, end = key.rpartition(".")
    if dot and end == "shape" and _is_nested_leaf(level.entry(stem)):
        raise RuntimeError(MSG_SHAPE_TAKEN.format(stem))
    if _is_regular(file) and not how.keeps_file:
        # The file of a removed entry: readers that have it mapped keep it.
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


def _is_nested_leaf(known: object) -> bool:
    return isinstance(known, tuple) and known[2]


def _said(known: Any) -> str:
    """An entry of the metadata in words."""
    if isinstance(known, str):
        return f"a {known}"
    dtype, shape, is_nested = known
    if is_nested:
        return f"a nested tensor of {shape[0]} components and dtype {dtype}"
    return f"a tensor of shape {tuple(shape)} and dtype {dtype}"


def _check_batch(td: CollectionProtocol, key: str, shape: torch.Size) -> None:
    batch_size = td.batch_size
    if shape[: len(batch_size)] != batch_size:
        raise RuntimeError(MSG_BATCH_MISMATCH.format(batch_size, shape, key))


def _add_child(td: TensorCollection, key: str, robust_key: bool | None) -> Any:
    """A nested collection, in ``td`` and in its directory.

    That of the directory, where there is one; else one without entries.
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
            known = level.entry(key)
            if known is not None and not isinstance(known, str):
                raise RuntimeError(MSG_ADDED.format(key, _said(known)))
            level.set_fields(list(td._shape_fields().items()))
            if known is None:
                save(child, place, SaveOptions(archive=False, inplace=True))
                level.add_child(key, root.__name__)
            else:
                child = load(None, place, robust_key=robust_key)
                _check_batch(td, key, child.batch_size)
                mark_mapped(child)
    td._tensordict[key] = child
    return child

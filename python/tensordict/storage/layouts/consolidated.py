"""Consolidated collections: all leaves in one buffer, which may be a file.

The file has three parts, as in tensordict 0.15: the bytes of the leaves, each padded to a multiple
of 8; JSON with the place of each leaf; and the length of the JSON, 8 bytes, little-endian. Between
the first two parts there may be remarks (:mod:`tensordict.storage.extra_metadata`). tensordict 0.15
ignores them, because it finds the JSON from the end.

The instance dictionary of a consolidated collection holds ``_consolidated``: the buffer, the
description in the JSON, and for a file its name. This state is valid only while the leaves are in
the buffer. :func:`state_of` checks that each time.

Each class of collection defines these methods:

``_describe(rows)``
    returns its level of the description. ``rows`` yields the place of each leaf.
``_described_child(name)``
    returns the collection that a nested level describes.
``_from_description(level, source, path)``, a class method
    returns the collection of a level. ``source`` holds the leaves.
``_put_leaves(leaves)``
    replaces its leaves by leaves from an iterator.
``_consolidated_home()``
    returns the collection that holds the state of the buffer: itself, or the collection that it
    wraps.
"""

from __future__ import annotations

import copy
import json
import operator
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from tensordict import _rust
from tensordict.primitives.common import mark_device
from tensordict.primitives.errors import locked_error
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage import extra_metadata
from tensordict.storage.buffer import (
    ALIGNMENT,
    VALUES,
    Row,
    Rows,
    joined,
    lay_out,
    parts_of,
    problem_of_row,
    split_name,
    views,
)
from tensordict.storage.describing import (
    RESERVED,
    as_plain,
    is_same,
    keyed_rows,
    note_locks,
    problem_of,
    refresh,
    root_level,
    with_modules,
    without_modules,
)
from tensordict.storage.future import in_background, with_bar
from tensordict.storage.layouts.interface import Entry, NativeLayout, short
from tensordict.storage.leaves import (
    MSG_CONSOLIDATED,
    naming_the_entry,
    refuse_special,
)
from tensordict.storage.locations import local
from tensordict.storage.paths import nested_at
from tensordict.storage.remote.place import is_remote
from tensordict.storage.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict.containers.collection import TensorCollection
    from tensordict.storage.layouts import LoadOptions, SaveOptions

__all__ = [
    "ConsolidatedLayout",
    "Described",
    "consolidate",
    "described",
    "load",
    "marked",
    "moved",
    "put_leaves",
    "rebuild",
    "state_of",
]

MSG_CHANGED = (
    "An entry was added, replaced or removed while consolidate(inplace=True) ran. The "
    "tensordict is unchanged: call consolidate again."
)

MSG_DEVICE = "device and filename are mutually exclusive arguments."


class ConsolidatedLayout(NativeLayout):
    """One file that holds the buffer of all leaves."""

    name = "consolidated"

    def matches(self, path: str | Path) -> bool:
        """Return whether the path is a consolidated file."""
        return os.path.isfile(path) and _rust.is_consolidated(path)

    def save(self, td: CollectionProtocol, path: Any, options: SaveOptions) -> Any:
        """Write to a file; return a locked collection over the file."""
        later, threads = options.return_early, options.num_threads
        durable, checks, bar = options.durable, options.checks, options.pbar
        return consolidate(
            td,
            Options(
                path,
                threads,
                return_early=later,
                durable=durable,
                checks=checks,
                pbar=bar,
            ),
        )

    def load(self, path: str | Path, options: LoadOptions, out: object = None) -> Any:
        """Load a collection over the mapped file."""
        self.check_before(path, options, out)
        return nested_at(load(path, options.requested, options.mode), path, options)

    def inspect(self, path: str) -> Iterator[Entry]:
        """Yield the entries of the description."""
        data_bytes, _, text = _rust.read_consolidated(path)
        yield from _entries(json.loads(text), (), data_bytes)


# Consolidating ------------------------------------------------------------------------


class Options(NamedTuple):
    """The arguments of :meth:`consolidate`."""

    filename: Path | str | None
    num_threads: int = 0
    device: torch.device | str | None = None
    non_blocking: bool = False
    inplace: bool = False
    return_early: bool = False
    use_buffer: bool = False
    share_memory: bool = False
    pin_memory: bool = False
    durable: bool = False
    checks: bool = True
    pbar: bool = False


def consolidate(td: CollectionProtocol, options: Options) -> Any:
    """See :meth:`tensordict.TensorDictBase.consolidate`."""
    device = None if options.device is None else torch.device(options.device)
    if options.filename is not None and device is not None and device.type != "cpu":
        raise RuntimeError(MSG_DEVICE)
    state = state_of(td)
    if state is not None and _is_same_place(state, options.filename):
        return td
    if options.inplace and td.is_locked:
        raise locked_error(td)
    if is_remote(options.filename):
        from tensordict.storage.remote.saving import save_consolidated

        return save_consolidated(td, options)
    if options.filename is not None:
        # Resolve the path now: the working directory may change before the file is written.
        path = os.path.abspath(local(options.filename))
        options = options._replace(filename=path)
    progress = _rust.SaveProgress()
    # Describe the collection now: later changes of its entries must not reach the save.
    source = described(td, inplace=options.inplace)

    def work() -> Any:
        return _consolidate(td, source, options, progress)

    is_threaded = operator.index(options.num_threads) > 1
    if options.return_early and is_threaded:
        return in_background(td, work, progress)
    return with_bar(work, progress) if options.pbar else work()


def _is_same_place(state: dict[str, Any], filename: Path | str | None) -> bool:
    """Return whether a consolidated collection is in this file already."""
    if filename is None:
        return True
    return (
        state.get("filename") == Path(os.path.abspath(filename))
        and _file_id(filename) == state["file_id"]
    )


class Described(NamedTuple):
    """The description of a collection before it is consolidated."""

    leaves: list[torch.Tensor]
    rows: Rows
    result: Any
    """A collection of the result's class. It may differ from the source's: a view becomes a plain
    collection."""
    level: dict[str, Any]
    with_modules: dict[str, Any]


def described(td: Any, *, inplace: bool = False) -> Described:
    """Describe a collection, before anything is copied.

    Args:
        td: the collection.
        inplace: whether the collection itself is consolidated. Otherwise a new one is.
    """
    refuse_special(td, MSG_CONSOLIDATED)
    leaves = _rust.leaves(td)
    with naming_the_entry(td):
        rows = lay_out(leaves)
    result = td if inplace else _rust.rebuild(td, leaves, True, False)
    level = root_level(result, result._describe(iter(rows.rows)))
    note_locks(level, td)
    return Described(leaves, rows, result, level, with_modules(level, td))


def _consolidate(
    td: Any, source: Described, options: Options, progress: _rust.SaveProgress
) -> Any:
    rows, result, description = source.rows, source.result, source.level
    state: dict[str, Any] = {}
    if options.filename is None or options.use_buffer:
        with naming_the_entry(td):
            storage, copies = _filled(rows, td, options)
        if options.filename is not None:
            copied = rows._replace(parts=copies)
            _write(result, description, copied, options, progress)
    else:
        with naming_the_entry(td):
            mapped = _write(result, description, rows, options, progress)
        storage = mapped[: rows.num_bytes]
        copies = views(storage, rows)
    state = {"storage": storage, "metadata": source.with_modules}
    if options.filename is not None:
        path = Path(os.path.abspath(options.filename))
        state |= {"filename": path, "file_id": _file_id(path)}
    leaves = joined(rows, copies)
    if options.inplace:
        present = _rust.leaves(td)
        if len(present) != len(source.leaves) or any(
            map(operator.is_not, present, source.leaves)
        ):
            raise RuntimeError(MSG_CHANGED)
        td._put_leaves(iter(leaves))
    else:
        result = _rust.rebuild(result, leaves, True, False)
        _set_device(result, options)
    result.lock_()
    result._consolidated_home().__dict__["_consolidated"] = state
    return result


def put_leaves(td: CollectionProtocol, leaves: Iterator[torch.Tensor]) -> None:
    """Replace the leaves of a dense collection, in their order."""
    for key, value in list(td._entries().items()):
        if isinstance(value, CollectionProtocol):
            cast("Any", value)._put_leaves(leaves)
        else:
            td._set_entry(key, next(leaves))


def _set_device(td: CollectionProtocol, options: Options) -> None:
    """Set the device of a new collection: the CPU for a file, or the requested device."""
    if options.filename is not None:
        device = torch.device("cpu")
    elif options.device is not None and td.device is not None:
        device = torch.device(options.device)
    else:
        return
    for collection in _rust.containers(td):
        if collection._is_dense:
            collection._device = device


def _filled(
    rows: Rows, td: TensorCollection, options: Options
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return a buffer with the values of the leaves, and the tensors over the buffer."""
    storage = _new_buffer(rows, options)
    copies = views(storage, rows)
    with torch.no_grad():
        padded = [
            row[3] // ALIGNMENT - 1 for group in rows.rows for _, row in group if row[4]
        ]
        if padded and storage.device.type != "meta":
            words = storage.view(torch.int64)
            words.index_fill_(0, torch.tensor(padded, device=words.device), 0)
        if copies:
            torch._foreach_copy_(copies, rows.parts, options.non_blocking)
    is_from_device = any(part.device.type not in ("cpu", "meta") for part in rows.parts)
    if options.non_blocking and is_from_device and storage.device.type == "cpu":
        td._sync_all()
    return storage, copies


def _new_buffer(rows: Rows, options: Options) -> torch.Tensor:
    if options.share_memory:
        shared = torch.UntypedStorage._new_shared(rows.num_bytes)
        return torch.empty(0, dtype=torch.uint8).set_(shared)
    device = options.device
    if device is None:
        devices = {part.device for part in rows.parts}
        device = devices.pop() if len(devices) == 1 else torch.device("cpu")
        if options.filename is not None:
            device = torch.device("cpu")
    return torch.empty(
        rows.num_bytes,
        dtype=torch.uint8,
        device=device,
        pin_memory=options.pin_memory,
    )


# The file -----------------------------------------------------------------------------


def _write(
    td: CollectionProtocol,
    description: dict[str, Any],
    rows: Rows,
    options: Options,
    progress: _rust.SaveProgress,
) -> torch.Tensor:
    """Write the file in one step; return its bytes, mapped."""
    notes = extra_metadata.Remarks()
    plain = as_plain(td, description, (), notes)
    text = json.dumps(plain)
    keyed = zip(keyed_rows(description, ()), rows.parts, strict=True)
    return _rust.write_consolidated(
        os.fspath(options.filename),  # type: ignore[arg-type]
        [(row[2], part, key) for (key, row), part in keyed],
        (rows.num_bytes, notes.to_text(), text),
        (options.durable, options.checks),
        progress,
    )


def load(
    filename: Path | str, requested: type | None = None, mode: str | None = None
) -> Any:
    """Load the collection of a consolidated file, over the mapped file.

    Args:
        filename: the file.
        requested: the class whose method the caller called.
        mode: ``"r+"`` lets writes reach the file. Otherwise writes stay in this process, as
            in tensordict 0.15.

    Raises:
        FileNotFoundError: the file does not exist.
        RuntimeError: the file is damaged. The message names the entry.
        ValueError: the description is not JSON.
    """
    if is_remote(filename):
        from tensordict.storage import layouts

        return layouts.load(requested, filename, mode=mode)
    mapped, data_bytes, noted, text = _rust.map_consolidated(
        os.fspath(local(filename)), mode
    )
    try:
        description = json.loads(text)
        notes = extra_metadata.Remarks(json.loads(noted or "{}"))
    except json.JSONDecodeError as error:
        message = f"'{filename}' is not a consolidated file, or was cut: {error.msg}"
        raise json.JSONDecodeError(message, error.doc, error.pos) from None
    source = Source(mapped[:data_bytes], notes, filename, requested)
    loaded = source.collection(description, ())
    return marked(loaded, source.storage, description)


def moved(
    td: CollectionProtocol, device: torch.device, non_blocking: bool | None
) -> TensorCollection | None:
    """Copy a consolidated collection to a device in one copy; return None if not consolidated."""
    state = state_of(td)
    if state is None:
        return None
    storage = state["storage"].to(device, non_blocking=bool(non_blocking))
    description = without_modules(state["metadata"])
    result = rebuild(copy.deepcopy(description), storage)
    mark_device(result, device)
    _order_as(result, td)
    if td.is_locked:
        result.lock_()
    return result


def _order_as(copied: Any, source: CollectionProtocol) -> None:
    """Put the entries of dense collections in the order of ``source``."""
    if source._lazy_stack() is not None:
        # Go through the members: their entries may differ in shape and cannot be stacked.
        members = zip(copied._children(), source._children(), strict=True)
        for copied_member, source_member in members:
            _order_as(copied_member, source_member)
        return
    for key, value in source._entries().items():
        if isinstance(value, CollectionProtocol):
            _order_as(copied._get_entry(key, None), value)
    if copied._is_dense:
        entries = copied._tensordict
        copied._tensordict = {key: entries[key] for key in source._entries()}


# Consolidating ------------------------------------------------------------------------


def rebuild(description: dict[str, Any], storage: torch.Tensor) -> TensorCollection:
    """Return the collection of a description over a buffer. Pickles call this function."""
    loaded = Source(storage).collection(description, ())
    return marked(loaded, storage, description)


def marked(
    td: TensorCollection, storage: torch.Tensor, description: dict[str, Any]
) -> TensorCollection:
    """Mark a collection as consolidated in a buffer, and return it."""
    state = {"storage": storage, "metadata": description}
    td._consolidated_home().__dict__["_consolidated"] = state
    return td


def state_of(td: Any) -> dict[str, Any] | None:
    """Return the state of the buffer of a consolidated collection; None for other collections.

    The collection is no longer consolidated if a leaf or a nested collection was replaced,
    added, removed or renamed since.
    """
    state = td._consolidated_home()._consolidated
    if state is None:
        return None
    storage = state["storage"]
    memory = storage.untyped_storage()._cdata
    places = _places(td, memory, storage.storage_offset())
    fresh = root_level(td, td._describe(places))
    if not is_same(fresh, state["metadata"]):
        return None
    refresh(state["metadata"], fresh)
    return state


def _places(
    td: CollectionProtocol, memory: int, offset: int
) -> Iterator[list[tuple[str, Row]]]:
    """Yield the row of each leaf, with whether the leaf is in the buffer."""
    for leaf in _rust.leaves(td):
        rows = []
        for prefix, part, *more in parts_of(leaf):
            is_there = (
                part.untyped_storage()._cdata == memory and part.is_contiguous()
            ) or not part.numel()
            start = part.storage_offset() * part.element_size() - offset
            row = str(part.dtype), list(part.shape), start, is_there, *more
            rows.append((prefix, row))
        yield rows


def _file_id(filename: Path | str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(filename)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_size


# Inspecting ---------------------------------------------------------------------------


def _entries(level: Any, key: tuple[str, ...], data_bytes: int) -> Iterator[Entry]:
    problem = problem_of(level)
    if problem:
        yield Entry(key, "collection", problem=problem)
        return
    size = level["cls_metadata"].get("batch_size")
    yield Entry(key, "collection", shape=size, note=str(level["cls"]))
    for name, row in level["leaves"].items():
        kind, _, own_key = split_name(name)
        inner = (*key, own_key.removeprefix("\0").removeprefix(VALUES))
        if name.startswith("<NJT_") and not name.startswith(VALUES):
            continue
        problem = problem_of_row(row, data_bytes)
        if problem:
            yield Entry(inner, "tensor", problem=problem)
            continue
        dtype, shape, start, stop, pad = row[:5]
        note = "jagged" if name.startswith(VALUES) else kind
        dtype = dtype.removeprefix("torch.")
        yield Entry(inner, "tensor", dtype, shape, stop - pad - start, note)
    for name, value in level["non_tensors"].items():
        if isinstance(value, list) and value:
            yield Entry((*key, name), "value", note=short(value[0]))
        else:
            problem = f"{value!r} does not describe a value"
            yield Entry((*key, name), "value", problem=problem)
    for name, child in level.items():
        if name not in RESERVED:
            inner = (*key, name.removeprefix("\0"))
            yield from _entries(child, inner, data_bytes)

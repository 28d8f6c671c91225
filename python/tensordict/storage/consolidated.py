"""Consolidated containers: all leaves in one buffer, which may be a file.

The file has three parts, as in the published release: the bytes of the leaves, each
padded to a multiple of 8; JSON that says which leaf lies where; and the length of that
JSON, 8 bytes, little-endian. Between the first two lies a part of ours, which readers
that look for the JSON from the end pass over: see :mod:`tensordict.storage.remarks`.

A consolidated container knows it by ``_consolidated`` in its instance dictionary: the
buffer, the description that the JSON holds, and for a file its name. That holds only
as long as the leaves are still those in the buffer, which is looked up and not
remembered: see :func:`state_of`.

A container takes part with these methods:

``_describe(rows)``
    its level of the description; ``rows`` gives the place of each leaf;
``_described_child(name)``
    the container that a nested level of its level is of;
``_from_description(level, source, path)``, a class method
    the container of a level, whose leaves ``source`` has;
``_put_leaves(leaves)``
    takes new leaves from an iterator in the place of its own;
``_consolidated_home()``
    the container that knows of the buffer: itself, unless it is around another.
"""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from tensordict import _rust
from tensordict.interop.twins import MSG_LOCKED
from tensordict.protocol import CollectionProtocol
from tensordict.storage import registry, remarks
from tensordict.storage.future import in_background, with_bar
from tensordict.storage.leaves import MSG_CONSOLIDATED, prepare, refuse_unbatched

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "Source",
    "Value",
    "consolidate",
    "dense_from_description",
    "describe_dense",
    "load",
    "moved",
    "rebuild",
    "state_of",
]

ALIGNMENT = 8
RESERVED = frozenset({"cls", "non_tensors", "leaves", "cls_metadata"})

VALUES, LENGTHS, OFFSETS = "<NJT_VALUES>", "<NJT_LENGTHS>", "<NJT_OFFSETS>"

MSG_DEVICE = "device and filename are mutually exclusive arguments."
MSG_NESTED = (
    "NST is not supported, please use layout=torch.jagged when building the nested "
    "tensor."
)
MSG_JSON = (
    "Failed to convert the metadata to json: the entry {key} holds a value of type "
    "{type} that JSON cannot hold. Remove it, or save to a directory."
)

Row = tuple[Any, ...]
"""``(dtype, shape, start, stop, padding)``; of the offsets of a jagged tensor, too,
which dim is ragged."""


# Where the leaves lie -----------------------------------------------------------------


class Rows(NamedTuple):
    """The leaves of a container, in its order, with their places in the buffer."""

    rows: list[list[tuple[str, Row]]]
    """For each leaf its parts: their prefix of the key, and the place. Mostly one."""
    parts: list[torch.Tensor]
    """The tensors to be copied, one for each row."""
    num_bytes: int


def lay_out(leaves: list[torch.Tensor]) -> Rows:
    """Give each leaf its place.

    Raises:
        NotImplementedError: a nested tensor that is not jagged, or a quantized one.
        RuntimeError: a sparse tensor.
    """
    rows: list[list[tuple[str, Row]]] = []
    parts: list[torch.Tensor] = []
    start = 0
    # A view as complex128 needs a place at a multiple of its own size.
    last: tuple[int, int] | None = None
    for leaf in leaves:
        mine = []
        for prefix, part, *more in _parts_of(leaf):
            item_size = part.element_size()
            if start % item_size and last is not None:
                shift = item_size - start % item_size
                group, place = last
                before, (dtype, shape, begin, stop, pad, *rest) = rows[group][place]
                rows[group][place] = (
                    before,
                    (dtype, shape, begin, stop + shift, pad + shift, *rest),
                )
                start += shift
            num_bytes = part.numel() * item_size
            pad = -num_bytes % ALIGNMENT
            stop = start + num_bytes + pad
            shape = list(part.shape)
            mine.append((prefix, (str(part.dtype), shape, start, stop, pad, *more)))
            parts.append(part)
            if not rows or rows[-1] is not mine:
                rows.append(mine)
            last = len(rows) - 1, len(mine) - 1
            start = stop
    return Rows(rows, parts, start)


def _parts_of(tensor: torch.Tensor) -> list[tuple[Any, ...]]:
    leaf: Any = tensor.detach()
    if not leaf.is_nested:
        if leaf.layout != torch.strided or leaf.is_quantized:
            prepare(leaf)  # which says why it cannot be saved
        return [("", leaf)]
    if leaf.layout != torch.jagged:
        raise NotImplementedError(MSG_NESTED)
    found: list[tuple[Any, ...]] = [(VALUES, leaf.values())]
    lengths = leaf.lengths()
    if lengths is not None:
        found.append((LENGTHS, lengths))
    found.append((OFFSETS, leaf.offsets(), leaf._ragged_idx))
    return found


def _views(storage: torch.Tensor, rows: Rows) -> list[torch.Tensor]:
    """A tensor over the place of each row."""
    return [view_of(storage, row) for group in rows.rows for _, row in group]


def view_of(storage: torch.Tensor, row: Row) -> torch.Tensor:
    """The tensor at a place of the buffer, which it shares."""
    dtype, shape, start, stop, pad = row[:5]
    flat = storage[start : stop - pad].view(
        getattr(torch, dtype.removeprefix("torch."))
    )
    return flat.view(shape)


def _joined(rows: Rows, views: list[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves over the buffer: jagged ones of their parts."""
    parts = iter(views)
    leaves = []
    for group in rows.rows:
        first = next(parts)
        if group[0][0]:
            rest = {prefix: next(parts) for prefix, _ in group[1:]}
            first = jagged(first, rest[OFFSETS], rest.get(LENGTHS), group[-1][1][5])
        leaves.append(first)
    return leaves


def jagged(
    values: torch.Tensor,
    offsets: torch.Tensor,
    lengths: torch.Tensor | None,
    ragged_dim: int,
) -> torch.Tensor:
    """A jagged tensor over its parts, which it shares."""
    return torch.nested.nested_tensor_from_jagged(
        values, offsets, lengths, jagged_dim=ragged_dim
    )


# Consolidating ------------------------------------------------------------------------


class Options(NamedTuple):
    """The arguments of :meth:`consolidate`."""

    filename: Path | str | None
    num_threads: int
    device: torch.device | str | None
    non_blocking: bool
    inplace: bool
    return_early: bool
    use_buffer: bool
    share_memory: bool
    pin_memory: bool
    durable: bool
    checks: bool
    pbar: bool


def consolidate(td: Any, options: Options) -> Any:
    """See :meth:`tensordict.TensorDictBase.consolidate`."""
    device = None if options.device is None else torch.device(options.device)
    if options.filename is not None and device is not None and device.type != "cpu":
        raise RuntimeError(MSG_DEVICE)
    state = state_of(td)
    if state is not None and _is_same_place(state, options.filename):
        return td
    if options.inplace and td.is_locked:
        raise RuntimeError(MSG_LOCKED)
    progress = _rust.SaveProgress()

    def work() -> Any:
        return _consolidate(td, options, progress)

    if options.return_early and options.num_threads > 1:
        return in_background(work, progress)
    return with_bar(work, progress) if options.pbar else work()


def _is_same_place(state: dict[str, Any], filename: Path | str | None) -> bool:
    """Whether a consolidated container is where it is asked to be already."""
    if filename is None:
        return True
    return (
        state.get("filename") == Path(os.path.abspath(filename))
        and _file_id(filename) == state["file_id"]
    )


def _consolidate(td: Any, options: Options, progress: _rust.SaveProgress) -> Any:
    refuse_unbatched(td, MSG_CONSOLIDATED)
    leaves = _rust.leaves(td)
    rows = lay_out(leaves)
    # The result is described, whose class need not be that of the source: a view of
    # a container becomes a container.
    result = td if options.inplace else _rust.rebuild(td, leaves, True, False)
    description = _root_level(result, result._describe(iter(rows.rows)))
    _note_locks(description, td)
    state: dict[str, Any] = {}
    if options.filename is None or options.use_buffer:
        storage = _filled(rows, td, options)
        if options.filename is not None:
            copied = rows._replace(parts=_views(storage, rows))
            _write(result, description, copied, options, progress)
    else:
        mapped = _write(result, description, rows, options, progress)
        storage = mapped[: rows.num_bytes]
    state = {"storage": storage, "metadata": description}
    if options.filename is not None:
        path = Path(os.path.abspath(options.filename))
        state |= {"filename": path, "file_id": _file_id(path)}
    leaves = _joined(rows, _views(storage, rows))
    if options.inplace:
        td._put_leaves(iter(leaves))
    else:
        result = _rust.rebuild(td, leaves, True, False)
        _set_device(result, options)
    result.lock_()
    result._consolidated_home().__dict__["_consolidated"] = state
    return result


def _root_level(td: Any, described: Any) -> dict[str, Any]:
    """The level of the root: of a value alone, one that has it as its only entry."""
    if not isinstance(described, Value):
        return described
    return {
        "cls": type(td).__name__,
        "non_tensors": {"data": described},
        "leaves": {},
        "cls_metadata": {"is_locked": False},
    }


def _note_locks(level: dict[str, Any], td: Any) -> None:
    """Note which containers of the source are locked."""
    level["cls_metadata"]["is_locked"] = bool(td.is_locked)
    for name, child in level.items():
        if name not in RESERVED:
            _note_locks(child, td._described_child(_key(name)))


def _keyed(level: dict[str, Any], path: tuple[str, ...]) -> list[tuple[str, Row]]:
    """The rows of a description in their order, each with its key for messages."""
    found = [
        (_shown((*path, _key(name))), row) for name, row in level["leaves"].items()
    ]
    for name, child in level.items():
        if name not in RESERVED:
            found += _keyed(child, (*path, _key(name)))
    return sorted(found, key=lambda row: row[1][2:4])


def put_leaves(td: Any, leaves: Iterator[torch.Tensor]) -> None:
    """Replace the leaves of a dense container, in their order."""
    for key, value in list(td._entries().items()):
        if isinstance(value, CollectionProtocol):
            cast("Any", value)._put_leaves(leaves)
        else:
            td._set_entry(key, next(leaves))


def _set_device(td: Any, options: Options) -> None:
    """The device of what was made: a file is on the CPU, a buffer where it was asked."""
    if options.filename is not None:
        device = torch.device("cpu")
    elif options.device is not None and td.device is not None:
        device = torch.device(options.device)
    else:
        return
    for container in _rust.containers(td):
        if container._is_dense:
            container._device = device


def _filled(rows: Rows, td: Any, options: Options) -> torch.Tensor:
    """A buffer with the values of the leaves."""
    storage = _new_buffer(rows, options)
    with torch.no_grad():
        padded = [
            row[3] // ALIGNMENT - 1 for group in rows.rows for _, row in group if row[4]
        ]
        if padded and storage.device.type != "meta":
            words = storage.view(torch.int64)
            words.index_fill_(0, torch.tensor(padded, device=words.device), 0)
        views = _views(storage, rows)
        if views:
            torch._foreach_copy_(views, rows.parts, options.non_blocking)
    is_from_device = any(part.device.type not in ("cpu", "meta") for part in rows.parts)
    if options.non_blocking and is_from_device and storage.device.type == "cpu":
        td._sync_all()
    return storage


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


# Names in the description: nested collections lie beside the fields of their level, and
# the parts of jagged tensors beside other leaves. A key that reads like one of those is
# marked.


def _child_name(key: str) -> str:
    return f"\0{key}" if key in RESERVED or key.startswith("\0") else key


def _leaf_name(key: str) -> str:
    return f"\0{key}" if key.startswith(("\0", VALUES, LENGTHS, OFFSETS)) else key


def _key(name: str) -> str:
    return name.removeprefix("\0")


class Value(tuple[Any, list[int], "str | None"]):
    """What a level has of a value that is no tensor: with its batch size and device."""

    __slots__ = ()


def is_special(cls: type) -> bool:
    """Whether a class is one that a program made of the dense containers' class."""
    return cls is not registry.dense_root() and registry.is_dense_class(cls)


# Describing ---------------------------------------------------------------------------


def describe_dense(td: Any, rows: Iterator[list[tuple[str, Row]]]) -> dict[str, Any]:
    """The level of a dense container."""
    leaves: dict[str, Row] = {}
    children: dict[str, Any] = {}
    non_tensors: dict[str, Any] = {}
    for key, value in td._entries().items():
        if not isinstance(value, CollectionProtocol):
            for prefix, row in next(rows):
                leaves[prefix + _leaf_name(key)] = row
            continue
        level = cast("Any", value)._describe(rows)
        if isinstance(level, Value):
            non_tensors[key] = level
        else:
            children[_child_name(key)] = level
    cls = type(td)
    device = td.device
    return {
        "cls": cls if is_special(cls) else "TensorDict",
        "non_tensors": non_tensors,
        "leaves": leaves,
        "cls_metadata": {
            "device": None if device is None else str(device),
            "names": list(td.names),
            "batch_size": list(td.batch_size),
            "is_locked": False,
        },
        **children,
    }


# The file -----------------------------------------------------------------------------


def _write(
    td: Any,
    description: dict[str, Any],
    rows: Rows,
    options: Options,
    progress: _rust.SaveProgress,
) -> torch.Tensor:
    """Write the file in one step: the bytes of it, mapped."""
    notes = remarks.Remarks()
    text = json.dumps(_as_plain(td, description, (), notes))
    keyed = zip(_keyed(description, ()), rows.parts, strict=True)
    return _rust.write_consolidated(
        os.fspath(options.filename),  # type: ignore[arg-type]
        [(row[2], part, key) for (key, row), part in keyed],
        rows.num_bytes,
        notes.to_text(),
        text,
        options.durable,
        options.checks,
        progress,
    )


def _as_plain(
    td: Any, level: dict[str, Any], path: tuple[str, ...], notes: remarks.Remarks
) -> dict[str, Any]:
    """A level of a description as JSON holds it; what it cannot hold goes to ``notes``."""
    non_tensors = {}
    for name, (value, *rest) in level["non_tensors"].items():
        inner = (*path, name)
        kind = type(td._described_child(name)).__name__
        non_tensors[name] = [notes.value(value, inner, kind, MSG_JSON), *rest]
    fields = {
        "cls": notes.class_name(level["cls"], path),
        "non_tensors": non_tensors,
        "leaves": level["leaves"],
        "cls_metadata": level["cls_metadata"],
    }
    children = [name for name in level if name not in RESERVED]
    for name in children:
        key = _key(name)
        child = td._described_child(key)
        fields[name] = _as_plain(child, level[name], (*path, key), notes)
    if "batch_size" in level["cls_metadata"]:
        entries = list(td._entries())
        others = [*non_tensors, *map(_key, children)]
        tensors = [key for key in entries if key not in others]
        notes.order(entries, [*tensors, *others], path)
    return fields


def load(filename: Path | str, requested: type | None = None) -> Any:
    """The container that a consolidated file holds, over the mapped file.

    Args:
        filename: the file.
        requested: the class that the caller loads.

    Raises:
        FileNotFoundError: there is no such file.
        RuntimeError: it is damaged: the message names the entry.
        ValueError: its description is no JSON.
    """
    data_bytes, noted, text = _rust.read_consolidated(os.fspath(filename))
    try:
        description = json.loads(text)
        notes = remarks.Remarks(json.loads(noted or "{}"))
    except json.JSONDecodeError as error:
        message = f"'{filename}' is no consolidated file: {error.msg}"
        raise json.JSONDecodeError(message, error.doc, error.pos) from None
    # As published, stores into what is loaded stay in this process.
    file = _rust.map_file(os.fspath(filename), "uint8", [data_bytes], "r")
    source = Source(file.as_subclass(torch.Tensor), notes, filename, requested)
    loaded = source.container(description, ())
    return _mark(loaded, source.storage, description)


class Source:
    """Where a description's leaves come from, each checked before it is made.

    Args:
        storage: the buffer.
        notes: what the description itself could not hold.
        filename: the file, for messages.
        requested: the class that the caller loads.
    """

    def __init__(
        self,
        storage: torch.Tensor,
        notes: remarks.Remarks | None = None,
        filename: Path | str | None = None,
        requested: type | None = None,
    ) -> None:
        self.storage = storage
        self.notes = notes or remarks.Remarks()
        self.filename = filename
        self.requested = requested
        self._is_aligned = storage.storage_offset() % 16 == 0

    def container(self, level: Any, path: tuple[str, ...]) -> Any:
        """The container of a level."""
        if not isinstance(level, dict) or not level.keys() >= RESERVED:
            raise self._damaged(path, "its level has no fields")
        cls = level["cls"]
        if isinstance(cls, str):
            cls = self.notes.find_class(path, cls, self.requested, self.filename)
        try:
            return cls._from_description(level, self, path)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._damaged(
                path, f"its level makes no sense ({error!r})"
            ) from error

    def inner(self, level: dict[str, Any], path: tuple[str, ...]) -> Any:
        """The container inside a tensorclass: that of its level, were it alone."""
        name = "LazyStackedTensorDict" if "stack_dim" in level["cls_metadata"] else None
        cls: Any = registry.dense_root()
        if name is not None:
            cls = registry.find_class(None, f"tensordict:{name}", None, "")
        return cls._from_description(level, self, path)

    def leaves(self, level: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        """The leaves of a level."""
        found: dict[str, torch.Tensor] = {}
        rows = iter(level["leaves"].items())
        for key, row in rows:
            name = key.removeprefix(VALUES)
            value = self.leaf(row, (*path, _key(name)))
            if name == key:
                found[_key(name)] = value
                continue
            # The parts of a jagged tensor follow one another.
            key = _key(name)
            parts: dict[str, Any] = {}
            while OFFSETS not in parts:
                part, row = next(rows, ("", None))
                prefix = part.removesuffix(name)
                if prefix not in (LENGTHS, OFFSETS):
                    raise self._damaged(
                        (*path, key), "its jagged tensor has no offsets"
                    )
                parts[prefix] = self.leaf(row, (*path, key))
            ragged_dim = row[5] if len(row) > 5 else 1
            found[key] = jagged(value, parts[OFFSETS], parts.get(LENGTHS), ragged_dim)
        return found

    def value(self, found: Any, path: tuple[str, ...]) -> Any:
        """The container of a value that is no tensor."""
        data, batch_size, device = found
        data = self.notes.noted_value(data, path)
        text = f"tensordict:{self.notes.noted_kind(path)}"
        cls = registry.find_class(None, text, None, self.filename or "")
        device = None if device is None else torch.device(device)
        return cls._of([data], 0, torch.Size(batch_size), device)

    def leaf(self, row: Any, path: tuple[str, ...]) -> torch.Tensor:
        """The tensor of a row, once it was checked."""
        try:
            dtype, shape, start, stop, pad = row[:5]
            if dtype.removeprefix("torch.") not in DTYPES:
                raise self._damaged(path, f"{dtype} is not a dtype that can be loaded")
            item_size = getattr(torch, dtype.removeprefix("torch.")).itemsize
            num_bytes = item_size
            for size in shape:
                num_bytes *= size
            is_sound = (
                all(type(size) is int and size >= 0 for size in shape)
                and 0 <= start <= stop - pad <= stop
                and stop - pad - start == num_bytes
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise self._damaged(path, f"no leaf is described by {row!r}") from error
        if not is_sound:
            raise self._damaged(path, f"no leaf is described by {row!r}")
        if stop - pad > len(self.storage):
            raise self._damaged(
                path,
                f"its bytes end at {stop - pad}, and the data at {len(self.storage)}: "
                "it was cut",
            )
        if start % item_size:
            # Written by somebody who aligns less: there is no view of it.
            flat = self.storage[start : stop - pad].clone()
            return flat.view(getattr(torch, dtype.removeprefix("torch."))).view(shape)
        return view_of(self.storage, row)

    def _damaged(self, path: tuple[str, ...], reason: str) -> RuntimeError:
        of = f"'{self.filename}'" if self.filename is not None else "the metadata"
        entry = f"the entry {_shown(path)}: " if path else ""
        return RuntimeError(f"{of} is damaged: {entry}{reason}.")


def _shown(path: tuple[str, ...]) -> str:
    return repr(path[0] if len(path) == 1 else path)


_NAMES = """\
bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64
complex32 complex64 complex128 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz
float8_e8m0fnu float4_e2m1fn_x2"""
DTYPES = frozenset(name for name in _NAMES.split() if hasattr(torch, name))


def dense_from_description(
    cls: Any, level: dict[str, Any], source: Source, path: tuple[str, ...]
) -> Any:
    """The dense container of a level."""
    fields = level["cls_metadata"]
    entries: dict[str, Any] = source.leaves(level, path)
    for key, found in level["non_tensors"].items():
        entries[key] = source.value(found, (*path, key))
    for name, child in level.items():
        if name not in RESERVED:
            entries[_key(name)] = source.container(child, (*path, _key(name)))
    names = fields["names"]
    if names is not None and all(name is None for name in names):
        names = None
    device = fields["device"]
    size = torch.Size(fields["batch_size"])
    for key, value in entries.items():
        if value.shape[: len(size)] != size:
            raise source._damaged(
                (*path, key), f"its shape {value.shape} does not begin with {size}"
            )
    device = None if device is None else torch.device(device)
    entries = source.notes.ordered(entries, path)
    td = _rust.new(cls, entries, size, device, names and list(names))
    return locked_as(td, fields)


def locked_as(td: Any, fields: dict[str, Any]) -> Any:
    """A container that was made, locked if its level says so."""
    if fields.get("is_locked"):
        td.lock_()
    return td


def members_of(
    level: dict[str, Any], source: Source, path: tuple[str, ...]
) -> list[Any]:
    """The members of the level of a stack, in their order."""
    found = {
        key: source.value(value, (*path, key))
        for key, value in level["non_tensors"].items()
    }
    for name, child in level.items():
        if name not in RESERVED:
            found[_key(name)] = source.container(child, (*path, _key(name)))
    return [found[str(number)] for number in range(len(found))]


def describe_stack(
    name: str, members: list[Any], dim: int, dim_name: str | None, rows: Any
) -> dict[str, Any]:
    """The level of a stack: its members by number."""
    level: dict[str, Any] = {
        "cls": name,
        "non_tensors": {},
        "leaves": {},
        "cls_metadata": {
            "stack_dim": dim,
            "stack_dim_name": dim_name,
            "is_locked": False,
        },
    }
    for number, member in enumerate(members):
        described = member._describe(rows)
        is_value = isinstance(described, Value)
        place = level["non_tensors"] if is_value else level
        place[str(number)] = described
    return level


def moved(td: Any, device: torch.device, non_blocking: bool | None) -> Any:
    """A consolidated container on another device, in one copy; None for any other."""
    state = state_of(td)
    if state is None:
        return None
    storage = state["storage"].to(device, non_blocking=bool(non_blocking))
    result = rebuild(copy.deepcopy(state["metadata"]), storage)
    for container in _rust.containers(result):
        if container._is_dense:
            container._device = device
    if td.is_locked:
        result.lock_()
    return result


# What is consolidated -----------------------------------------------------------------


def rebuild(description: dict[str, Any], storage: torch.Tensor) -> Any:
    """The container of a description over a buffer: what pickles call."""
    loaded = Source(storage).container(description, ())
    return _mark(loaded, storage, description)


def _mark(td: Any, storage: torch.Tensor, description: dict[str, Any]) -> Any:
    """Let a container know of its buffer."""
    state = {"storage": storage, "metadata": description}
    td._consolidated_home().__dict__["_consolidated"] = state
    return td


def state_of(td: Any) -> dict[str, Any] | None:
    """What is known of the buffer of a consolidated container; None for any other.

    A leaf or a nested container that was replaced, added, removed or renamed since ends
    it, whoever did it.
    """
    state = td._consolidated_home()._consolidated
    if state is None:
        return None
    storage = state["storage"]
    memory = storage.untyped_storage()._cdata
    places = _places(td, memory, storage.storage_offset())
    fresh = _root_level(td, td._describe(places))
    if not _is_same(fresh, state["metadata"]):
        return None
    _refresh(state["metadata"], fresh)
    return state


def _places(td: Any, memory: int, offset: int) -> Iterator[list[tuple[str, Row]]]:
    """For each leaf where it lies in the buffer, None for one that lies elsewhere."""
    for leaf in _rust.leaves(td):
        found = []
        for prefix, part, *more in _parts_of(leaf):
            is_there = (
                part.untyped_storage()._cdata == memory and part.is_contiguous()
            ) or not part.numel()
            start = part.storage_offset() * part.element_size() - offset
            found.append(
                (prefix, (str(part.dtype), list(part.shape), start, is_there, *more))
            )
        yield found


def _is_same(fresh: dict[str, Any], known: dict[str, Any]) -> bool:
    """Whether the leaves are those of the description, and in their places."""
    if fresh.keys() != known.keys():
        return False
    for key, value in fresh.items():
        other = known[key]
        if key == "leaves":
            if list(value) != list(other):
                return False
            for name, (dtype, shape, start, is_there, *_) in value.items():
                row = other[name]
                if not is_there or [dtype, shape] != [row[0], list(row[1])]:
                    return False
                if start != row[2] and row[3] - row[4] > row[2]:
                    return False
        elif key == "non_tensors":
            if list(value) != list(other):
                return False
        elif key not in RESERVED and not _is_same(value, other):
            return False
    return True


def _refresh(known: dict[str, Any], fresh: dict[str, Any]) -> None:
    """Take over what may change while the leaves stay: names, sizes, values."""
    is_locked = known["cls_metadata"].get("is_locked", False)
    known["cls"] = fresh["cls"]
    known["non_tensors"] = fresh["non_tensors"]
    known["cls_metadata"] = {**fresh["cls_metadata"], "is_locked": is_locked}
    for key, child in known.items():
        if key not in RESERVED:
            _refresh(child, fresh[key])


def _file_id(filename: Path | str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(filename)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_size

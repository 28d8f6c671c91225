"""Safetensors files: saves that other libraries read, and files of other libraries as collections.

The names of tensors are the keys, joined by dots. Names cannot hold batch sizes, names of
dimensions, classes and non-tensor data. These are JSON in the entry ``tensordict`` of the file's
``__metadata__``, in the form of tensordict 0.15: a *level* for each collection. The JSON has
further fields that tensordict 0.15 ignores:

- ``stack_dim_name`` of a lazy stack, which tensordict 0.15 loses;
- ``subclass``, the texts of a class of dense collections;
- ``kind`` and ``value`` of an entry, for values that are not plain JSON.

:mod:`tensordict.storage.safetensors_levels` converts collections to levels and back.

Shards are files beside an index, as in Hugging Face: ``model-00001-of-00004.safetensors`` and
``model.safetensors.index.json``.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from tensordict import _rust
from tensordict.primitives import registry
from tensordict.primitives.errors import KeyMessageError
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage.devices import (
    DeviceReader,
    Pieced,
    PieceReader,
    is_elsewhere,
)
from tensordict.storage.future import now_or_later, of_now, with_bar
from tensordict.storage.layouts.interface import Entry, NativeLayout, Report, short
from tensordict.storage.leaves import (
    MSG_MEMORY_MAPPED,
    naming_the_entry,
    refuse_special,
)
from tensordict.storage.locations import local
from tensordict.storage.paths import nested_at
from tensordict.storage.remote.place import is_remote, place_of
from tensordict.storage.safetensors_levels import Reader, Stacked, Writer, count_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tensordict.storage.layouts import LoadOptions, SaveOptions
    from tensordict.storage.safetensors_levels import Leaf

__all__ = [
    "SafetensorsLayout",
    "balanced",
    "from_safetensors",
    "in_shards",
    "index_of",
    "is_index_name",
    "load",
    "planned",
    "to_safetensors",
]

ENTRY = "tensordict"
GENERATION = "tensordict.save"
VERSION = 1
SUFFIX = ".safetensors"
INDEX_SUFFIX = ".index.json"

MSG_VERSION = (
    "Cannot load {}: its tensordict metadata has version {}, but this version of "
    "tensordict reads only version 1."
)


MSG_INDEX = (
    "{} is the name of the index of a safetensors save in several files. To write several "
    "files, call to_safetensors(td, '….safetensors', shards=4)."
)

MSG_DIRECTORY = (
    "from_safetensors expects one index or one file in the directory {}, but found {}: pass "
    "the file, or the index of the files."
)

_LONGEST_HEADER = 100_000_000  # the limit of the format


class SafetensorsLayout(NativeLayout):
    """A safetensors file, also of another library, or an index with its files."""

    name = "safetensors"
    suffixes: ClassVar[tuple[str, ...]] = (SUFFIX, SUFFIX + INDEX_SUFFIX)

    def matches(self, path: str | Path) -> bool:
        """Return whether the path is such a file, or the name of a save with an index."""
        return index_of(path) is not None or (
            os.path.isfile(path) and _rust.is_safetensors(path)
        )

    def was_cut_off(self, path: str | Path) -> bool:
        """Return whether the file begins with the length and ``{`` of a JSON header."""
        with open(path, "rb") as file:
            start = file.read(9)
        length = int.from_bytes(start[:8], "little")
        return start[8:] == b"{" and length <= _LONGEST_HEADER

    def save(self, td: CollectionProtocol, path: Any, options: SaveOptions) -> Any:
        """Write one file and return a locked collection over it; or write shards and load them.

        Raises:
            ValueError: the name is the name of an index, but shards are not asked for.
            RuntimeError: the file exists, but ``existsok`` is false.
        """
        shards = options.max_shard_size, options.shards
        if shards == (None, None):
            if is_index_name(path):
                raise ValueError(MSG_INDEX.format(path))
            refuse_special(td, MSG_MEMORY_MAPPED)
        path = td._memmap_prefix if path is None else path
        target = _without_index(os.path.abspath(path))
        progress = _rust.SaveProgress()
        source = of_now(td, options)

        def work() -> Any:
            if not options.existsok and (
                os.path.exists(target) or index_of(target) is not None
            ):
                raise RuntimeError(f"The file {target} already exists.")
            if shards == (None, None):
                return _save_mapped(source, target, options.how, progress).lock_()
            _write(source, target, shards, options.how, progress, maps=False)
            return load(target).lock_()

        return now_or_later(td, work, options, progress)

    def load(self, path: str | Path, options: LoadOptions, out: object = None) -> Any:
        """Load a collection over the mapped files."""
        self.check_before(path, options, out)
        loaded = load(path, None, options.mode or "r", options.requested)
        return nested_at(loaded, path, options)

    def inspect(self, path: str) -> Iterator[Entry]:
        """Yield the tensors, and the entries that the description of a save names."""
        return _entries(path)

    def verify(
        self,
        path: str | Path,
        num_threads: int,
        deep: bool,
        progress: _rust.SaveProgress,
        part: list[str] | None = None,
    ) -> Report:
        """Check the file, or the files of the index with this name."""
        place = index_of(path) or path
        return super().verify(place, num_threads, deep, progress, part)


# Writing ------------------------------------------------------------------------------


def to_safetensors(
    data: object,
    path: str | Path,
    *,
    max_shard_size: int | str | None = None,
    shards: int | None = None,
    num_threads: int = 0,
    durable: bool = False,
    checks: bool = True,
    pbar: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Save a collection as one safetensors file, or as several files with an index.

    The names of the tensors are their keys, joined by dots, so that other libraries can
    read them. Each file appears complete under its name, the index last. The call needs a
    few MiB of memory for tensors that are not contiguous or on another device.

    Args:
        data: the collection.
        path: the file. With shards, ``model.safetensors`` stands for
            ``model-00001-of-0000N.safetensors`` and ``model.safetensors.index.json``.
            The name of the index is accepted as well: without ``shards`` and
            ``max_shard_size`` it means one shard. A save in shards replaces a single
            file of the same name, and a single file replaces shards.
        max_shard_size: the most bytes of tensors in one file: a number, or a text such
            as ``"5GB"``. A larger tensor gets its own file.
        shards: the number of files. All have about the same size.
        num_threads: the most files to write at a time. The default is the number of
            cores that this process may use, at most 8.
        durable: whether to wait until the save is on the disk.
        checks: whether to store checksums. See :func:`tensordict.storage.verify`.
        pbar: whether to show a progress bar.
        storage_options: the options of the object store, if ``path`` is a URL.

    Raises:
        ValueError: two keys have the same name when their parts are joined.
        TypeError: a tensor is not dense, or its dtype is unknown to the format; or JSON
            cannot hold a value.
        OSError: the file cannot be written.

    Examples:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
        >>> td = TensorDict(layer={"weight": torch.ones(2, 3), "bias": torch.zeros(2)})
        >>> to_safetensors(td, path)
        >>> from_safetensors(path)["layer", "bias"]
        tensor([0., 0.])
        >>> to_safetensors(td, path, shards=2)
        >>> sorted(os.listdir(os.path.dirname(path)))  # doctest: +NORMALIZE_WHITESPACE
        ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors',
         'model.safetensors.index.json']
        >>> from_safetensors(path)["layer", "weight"].sum()
        tensor(6.)
    """
    if is_remote(path):
        from tensordict.storage.remote.saving import save_safetensors

        place, limits = place_of(path, storage_options), (max_shard_size, shards)
        save_safetensors(data, place, limits, pbar=pbar)
        return
    path = local(path)
    if is_index_name(path):
        path = _without_index(os.fspath(path))
        shards = 1 if shards is None and max_shard_size is None else shards
    progress = _rust.SaveProgress()

    def work() -> None:
        limits, how = (max_shard_size, shards), (num_threads, durable, checks)
        _write(data, path, limits, how, progress, maps=False)

    if pbar:
        with_bar(work, progress)
    else:
        work()


def _save_mapped(
    data: object,
    path: str | Path,
    how: tuple[int, bool, bool],
    progress: _rust.SaveProgress,
) -> Any:
    """Save to one file; return a collection over the written bytes.

    Loading the file by its name could load another save that has replaced it since.
    """
    ((texts, tensors),) = _write(data, path, (None, None), how, progress, maps=True)
    return _described(dict(texts)[ENTRY], tensors, path, None)


def _write(
    data: Any,
    path: str | Path,
    limits: tuple[int | str | None, int | None],
    how: tuple[int, bool, bool],
    progress: _rust.SaveProgress,
    *,
    maps: bool,
) -> list[tuple[list[tuple[str, str]], dict[str, torch.Tensor]]]:
    """Save in one or several files; with ``maps``, return the texts and tensors of each."""
    if not isinstance(data, CollectionProtocol) and not hasattr(data, "batch_size"):
        raise AttributeError(
            f"{type(data).__name__!r} object has no attribute 'batch_size'"
        )
    max_shard_size, shards = limits
    writer = Writer()
    level = data._to_level(writer, ())
    text = json.dumps({"version": VERSION, "root": level})
    path = os.path.abspath(path)
    parts = in_shards(writer.tensors, max_shard_size, shards)
    index_path = path + INDEX_SUFFIX
    is_single = max_shard_size is None and shards is None
    if is_single:
        files: list[Any] = [(path, None, planned(writer.tensors), [(ENTRY, text)])]
        index = None
    else:
        generation = os.urandom(8).hex()
        usual, unique = _shard_names(path, len(parts), generation)
        metadata = [("format", "pt"), (GENERATION, generation)]
        files = [
            (name, other, planned(part), metadata)
            for name, other, part in zip(usual, unique, parts, strict=True)
        ]
        index = (
            index_path,
            _index_text(usual, parts, text, generation),
            _index_text(unique, parts, text, generation),
        )
    stale = index_path if os.path.exists(index_path) else None
    with naming_the_entry(data):
        written = _rust.write_safetensors(files, index, stale, how, progress, maps)
    if not is_single and os.path.isfile(path):
        # An older save in one file: `load` would prefer it to the index.
        os.unlink(path)
    return written


def planned(
    tensors: dict[str, Leaf],
) -> list[tuple[str, tuple[Sequence[Any], int], str, list[int], int]]:
    """Return the tensors of a file as arguments of the native writer."""
    return [
        (name, _parts(leaf), str(leaf.dtype), list(leaf.shape), leaf.element_size())
        for name, leaf in tensors.items()
    ]


def _parts(
    leaf: Leaf | Pieced,
) -> tuple[Sequence[torch.Tensor | DeviceReader], int]:
    """Return the tensors that are written as one tensor, and the chunks of each."""
    if isinstance(leaf, Pieced):
        return [PieceReader(leaf)], 1
    if isinstance(leaf, Stacked):
        devices = {part.device for part in leaf.parts}
        if len(devices) > 1:
            return [part.cpu() for part in leaf.parts], leaf.num_chunks
        if is_elsewhere(leaf.parts[0]):
            return [DeviceReader(leaf.parts, leaf.dim)], 1
        return leaf.parts, leaf.num_chunks
    return [leaf], 1


def _shard_names(path: str, count: int, generation: str) -> tuple[list[str], list[str]]:
    """Return the usual names of the shards, and names that contain ``generation``.

    Replacing the index is the one step from the old save to the new one, so shards of the old save
    are not overwritten: if a usual name is taken, the new shards get the other names.
    """
    stem = path.removesuffix(SUFFIX)
    numbers = [f"{number + 1:05}-of-{count:05}{SUFFIX}" for number in range(count)]
    usual = [f"{stem}-{number}" for number in numbers]
    return usual, [f"{stem}-{generation}-{number}" for number in numbers]


def _index_text(
    names: list[str],
    parts: list[dict[str, Leaf]],
    text: str,
    generation: str,
) -> str:
    weight_map = {
        tensor: os.path.basename(name)
        for name, part in zip(names, parts, strict=True)
        for tensor in part
    }
    total = sum(count_bytes(leaf) for part in parts for leaf in part.values())
    metadata = {"total_size": total, ENTRY: text, GENERATION: generation}
    return json.dumps({"metadata": metadata, "weight_map": weight_map}, indent=2) + "\n"


MSG_SHARD_SIZE = (
    "max_shard_size must be a number of bytes, or a text such as '5GB', got {!r}."
)

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def _bytes_of(size: int | str) -> int:
    """Return the number of bytes of ``"5GB"``, ``"500MiB"`` or a number."""
    if not isinstance(size, int):
        found = re.fullmatch(
            r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", str(size).upper()
        )
        if found is None or found[2] not in _UNITS:
            raise ValueError(MSG_SHARD_SIZE.format(size))
        size = int(float(found[1]) * _UNITS[found[2]])
    if size < 1:
        raise ValueError(f"max_shard_size must be at least one byte, got {size}.")
    return size


def in_shards(
    tensors: dict[str, Leaf],
    max_shard_size: int | str | None,
    count: int | None,
) -> list[dict[str, Leaf]]:
    """Return the tensors of each file."""
    if max_shard_size is not None and count is not None:
        raise ValueError("Pass max_shard_size or shards, not both.")
    if count is not None:
        if count < 1:
            raise ValueError(f"shards must be at least 1, got {count}.")
        return balanced(tensors, min(count, max(1, len(tensors))))
    if max_shard_size is None:
        return [tensors]
    limit = _bytes_of(max_shard_size)
    parts: list[dict[str, Leaf]] = [{}]
    filled = 0
    for name, leaf in tensors.items():
        size = count_bytes(leaf)
        if parts[-1] and filled + size > limit:
            parts.append({})
            filled = 0
        parts[-1][name] = leaf
        filled += size
    return parts


def balanced(tensors: dict[str, Leaf], count: int) -> list[dict[str, Leaf]]:
    """Divide the tensors into parts of about the same size, the largest tensors first."""
    filled = [(0, number) for number in range(count)]
    place: dict[str, int] = {}
    for name in sorted(tensors, key=lambda name: -count_bytes(tensors[name])):
        size, number = min(filled)
        filled[number] = size + max(1, count_bytes(tensors[name])), number
        place[name] = number
    parts: list[dict[str, Leaf]] = [{} for _ in range(count)]
    for name, leaf in tensors.items():
        parts[place[name]][name] = leaf
    return parts


# Reading ------------------------------------------------------------------------------


def from_safetensors(path: str | Path, *, device: object = None) -> Any:
    """Load a safetensors file, also of another library, or an index with its files.

    A file of :func:`to_safetensors` loads as the collection that was saved. The tensors of
    another file are nested by the dots in their names, in a tensordict without batch
    dimensions. Files are mapped: the system reads bytes when they are used, and writes to
    the tensors stay in this process.

    Args:
        path: the file; the index; the path of a save in shards without the end
            ``.index.json``; or a directory with one of these, such as a model of Hugging
            Face.
        device: the device to copy the tensors to. On the CPU they stay mapped.

    Raises:
        FileNotFoundError: the file, or a file that the index names, does not exist.
        RuntimeError: a file is damaged, or belongs to another save than its index.
        ValueError: the file has a newer version, or tensors that its metadata does not
            describe; or a directory does not contain exactly one index or file.
        KeyError: the name of a tensor in a file of another library is the beginning of
            another tensor's name.

    Examples:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "file.safetensors")
        >>> to_safetensors(TensorDict({"a": torch.arange(3)}, [3], names=["t"]), path)
        >>> from_safetensors(path).names
        ['t']
    """
    if is_remote(path):
        from tensordict.storage import layouts

        place: Any = device
        return layouts.load(None, path, place)
    return load(_in_directory(os.fspath(local(path))), device)


def is_index_name(path: str | Path) -> bool:
    """Return whether a path is the name of an index."""
    return str(path).endswith(SUFFIX + INDEX_SUFFIX)


def _without_index(path: str) -> str:
    """Return the path of a save in shards, without the end of the index's name."""
    return path.removesuffix(INDEX_SUFFIX) if is_index_name(path) else path


def index_of(path: str | Path) -> str | None:
    """Return the index of a save in shards; None if the path is a single file."""
    path = os.fspath(path)
    if path.endswith(INDEX_SUFFIX):
        return path
    if not os.path.exists(path) and os.path.exists(path + INDEX_SUFFIX):
        return path + INDEX_SUFFIX
    return None


def _in_directory(path: str) -> str:
    """Return the index or the file in a directory, for example of a Hugging Face model.

    Raises:
        ValueError: the directory contains none, or several files without an index.
    """
    if not os.path.isdir(path):
        return path
    names = sorted(name for name in os.listdir(path) if is_index_name(name))
    names = names or sorted(name for name in os.listdir(path) if name.endswith(SUFFIX))
    if len(names) != 1:
        raise ValueError(MSG_DIRECTORY.format(path, names or "none"))
    return os.path.join(path, names[0])


def load(
    path: str | Path,
    device: object = None,
    mode: str | None = "r",
    requested: type | None = None,
) -> Any:
    """Load as :func:`from_safetensors` does, with the mode of :meth:`load_memmap`."""
    index = index_of(path)
    if index is None:
        texts, tensors = _rust.read_safetensors(os.fspath(path), mode)
        text = dict(texts).get(ENTRY)
    else:
        tensors, text = _read_shards(index, mode)
    if text is None:
        loaded = _nested(tensors, path)
    else:
        loaded = _described(text, tensors, path, requested)
    if device is not None:
        loaded = loaded.to(device)
    return loaded


_MAX_ATTEMPTS = 100
"""The most attempts to read shards that other processes replace meanwhile."""


def _read_shards(
    index: str, mode: str | None
) -> tuple[dict[str, torch.Tensor], str | None]:
    """Return the tensors of one save, even if others replace it meanwhile."""
    for _ in range(_MAX_ATTEMPTS):
        named = _rust.read_safetensors_index(index)
        try:
            return _read_named(index, named, mode)
        except (OSError, RuntimeError):
            if _rust.read_safetensors_index(index) == named:
                raise
    return _read_named(index, _rust.read_safetensors_index(index), mode)


def _read_named(
    index: str, named: tuple[list[tuple[Any, list[str]]], str], mode: str | None
) -> tuple[dict[str, torch.Tensor], str | None]:
    files, text = named
    metadata = json.loads(text) or {}
    generation = metadata.get(GENERATION)
    tensors: dict[str, torch.Tensor] = {}
    for file, names in files:
        texts, found = _rust.read_safetensors(file, mode)
        if generation is not None and dict(texts).get(GENERATION) != generation:
            raise RuntimeError(
                f"'{os.fspath(file)}' belongs to another save than its index '{index}': a "
                "save was interrupted. Save again."
            )
        for name in names:
            if name not in found:
                raise RuntimeError(
                    f"'{os.fspath(file)}' is damaged: the entry {name!r} is missing, but "
                    f"the index '{index}' names it."
                )
            tensors[name] = found[name]
    return tensors, metadata.get(ENTRY)


def _nested(tensors: dict[str, torch.Tensor], path: str | Path) -> Any:
    """Nest the tensors of another library's file by the dots in their names."""
    cls = registry.dense_root()
    root: dict[str, Any] = {}
    for name, tensor in tensors.items():
        *parents, last = name.split(".")
        level = root
        for parent in parents:
            level = level.setdefault(parent, {})
            if isinstance(level, torch.Tensor):
                raise KeyMessageError(_msg_present(name, parent, path))
        if last in level:
            raise KeyMessageError(_msg_present(name, last, path))
        level[last] = tensor
    return _of_dicts(cls, root)


def _msg_present(name: str, key: str, path: str | Path) -> str:
    return (
        f"The entry {key} is already present in tensordict: the tensor {name!r} of "
        f"'{path}' and another cannot both be nested by the dots in their names."
    )


def _of_dicts(cls: type, level: dict[str, Any]) -> Any:
    entries = {
        key: _of_dicts(cls, value) if isinstance(value, dict) else value
        for key, value in level.items()
    }
    return _rust.new(cls, entries, torch.Size([]), None, None)


def _described(
    text: str,
    tensors: dict[str, torch.Tensor],
    path: str | Path,
    requested: type | None,
) -> Any:
    reader = Reader(tensors, path, requested)
    try:
        description = json.loads(text)
        version = description["version"]
        root = description["root"]
    except (ValueError, TypeError, KeyError) as error:
        raise RuntimeError(
            f"'{path}' is damaged: its tensordict metadata is invalid ({error!r})."
        ) from error
    if version != VERSION:
        raise ValueError(MSG_VERSION.format(path, version))
    loaded = reader.collection(root, ())
    undescribed = sorted(tensors.keys() - reader.taken)
    if undescribed:
        raise ValueError(
            f"The tensors {undescribed} of {path} are not in its tensordict metadata."
        )
    return loaded


def description_of(path: str | Path) -> str | None:
    """Return the JSON that describes the collections; None if another library wrote the file."""
    index = index_of(path)
    if index is None:
        return dict(_rust.safetensors_header(os.fspath(path))[0]).get(ENTRY)
    metadata = json.loads(_rust.read_safetensors_index(index)[1]) or {}
    return metadata.get(ENTRY)


def tensors_of(path: str | Path) -> Iterator[tuple[str, str, list[int], int]]:
    """Yield the name, dtype, shape and bytes of every tensor, without reading the tensors."""
    index = index_of(path)
    files = (
        [path]
        if index is None
        else [f for f, _ in _rust.read_safetensors_index(index)[0]]
    )
    for file in files:
        for name, dtype, shape, _, num_bytes in _rust.safetensors_header(file)[1]:
            yield name, dtype, shape, num_bytes


# Inspecting ---------------------------------------------------------------------------


def _entries(path: str) -> Iterator[Entry]:
    notes, sizes, values = _described_entries(path)

    def collection(key: tuple[str, ...], note: str) -> Entry:
        return Entry(key, "collection", shape=sizes.get(key), note=notes.get(key, note))

    yield collection((), "safetensors of others")
    seen: set[tuple[str, ...]] = {()}
    for name, dtype, shape, num_bytes in tensors_of(path):
        key = tuple(name.split("."))
        for depth in range(1, len(key)):
            if key[:depth] not in seen:
                seen.add(key[:depth])
                yield collection(key[:depth], "")
        yield Entry(key, "tensor", dtype, shape, num_bytes)
    for key, value in values.items():
        yield Entry(key, "value", note=short(value))


def _described_entries(
    path: str,
) -> tuple[
    dict[tuple[str, ...], str], dict[tuple[str, ...], Any], dict[tuple[str, ...], Any]
]:
    """Read the classes, sizes and values of collections in a safetensors file."""
    text = description_of(path)
    notes: dict[tuple[str, ...], str] = {}
    sizes: dict[tuple[str, ...], Any] = {}
    values: dict[tuple[str, ...], Any] = {}
    if text is None:
        return notes, sizes, values

    def visit(level: object, key: tuple[str, ...]) -> None:
        if not isinstance(level, dict):
            return
        cls = level.get("class") or (level.get("subclass") or ["", "TensorDict"])[1]
        name = str(cls).removesuffix("'>").rpartition(".")[2]
        notes[key] = "LazyStackedTensorDict" if "stack_dim" in level else name
        sizes[key] = level.get("batch_size")
        for entry_key, entry in level.get("keys", {}).items():
            if "td" in entry:
                visit(entry["td"], (*key, entry_key))
            elif "non_tensor" in entry:
                values[(*key, entry_key)] = entry["non_tensor"]

    visit(json.loads(text).get("root"), ())
    return notes, sizes, values

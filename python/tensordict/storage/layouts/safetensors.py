"""Safetensors files: what other libraries read, and files of others as containers.

The names of tensors are the keys, joined by dots. What names cannot say (batch sizes,
names of dims, classes, values that are no tensors) is JSON in the entry ``tensordict``
of the file's ``__metadata__``, as tensordict 0.15 writes it: a *level* for each
container. Fields of ours in it, which tensordict 0.15 passes over:

- ``stack_dim_name`` of a lazy stack, whose name tensordict 0.15 loses;
- ``subclass``, the texts of a class of dense containers;
- ``kind`` and ``value`` of an entry, for values that are no plain JSON.

A container takes part with two methods:

``_to_level(writer, path)``
    its level, with the names that ``writer`` gives its tensors;
``_from_level(level, reader, path)``, a class method
    the container of a level; ``reader`` has the tensors.

Shards are files beside an index, as Hugging Face has them:
``model-00001-of-00004.safetensors`` and ``model.safetensors.index.json``.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from tensordict import _rust
from tensordict.primitives import registry
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.primitives.unbatched import UnbatchedTensor
from tensordict.storage import extra_metadata
from tensordict.storage.devices import DeviceReader, is_elsewhere
from tensordict.storage.future import with_bar
from tensordict.storage.leaves import naming_the_entry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = [
    "Reader",
    "Writer",
    "dense_from_level",
    "dense_to_level",
    "from_safetensors",
    "index_of",
    "is_index_name",
    "load",
    "save_mapped",
    "to_safetensors",
]

ENTRY = "tensordict"
GENERATION = "tensordict.save"
VERSION = 1
SUFFIX = ".safetensors"
INDEX_SUFFIX = ".index.json"

MSG_VALUE = (
    "Cannot save the non-tensor value at {path} as safetensors: {type} is not a JSON "
    "value (str, int, float, bool, None, list or dict)."
)
MSG_DENSE = (
    "Cannot save the tensor at {path} as safetensors: only dense tensors are supported, "
    "got layout {layout}."
)
MSG_COLLISION = "Two keys of the tensordict have the safetensors name {!r}."
MAX_LEVELS = 180
"""How deep collections may be nested: the description has three levels of JSON for each,
and making them from it takes four calls."""

MSG_LEVELS = (
    f"Collections are nested more than {MAX_LEVELS} times in one another, which cannot "
    "be saved as safetensors. A directory takes them."
)
MSG_ALONE = (
    "Cannot save a non-tensor value as safetensors: put it in a tensordict first."
)
MSG_VERSION = (
    "Cannot load {}: its tensordict metadata has version {}, and this version of "
    "tensordict reads version 1."
)


# Writing ------------------------------------------------------------------------------


def to_safetensors(
    data: Any,
    path: str | Path,
    *,
    max_shard_size: int | str | None = None,
    shards: int | None = None,
    num_threads: int = 0,
    durable: bool = False,
    checks: bool = True,
    pbar: bool = False,
) -> None:
    """Save a collection as a safetensors file, or as several with an index.

    The tensors are named by their keys, joined by dots, so that other libraries read
    them. The files appear in one step each, the index last. Peak memory: nothing beyond
    the collection, but for a few MiB of tensors with gaps and of other devices.

    Args:
        data: the collection.
        path: the file. With shards, ``model.safetensors`` stands for
            ``model-00001-of-0000N.safetensors`` and ``model.safetensors.index.json``;
            the latter may be given, too, and without other wishes has one shard.
            A save in shards replaces a single file of that name, and the other way
            round.
        max_shard_size: the most bytes of tensors in one file: a number, or a text such
            as ``"5GB"``. A tensor that is larger has a file of its own.
        shards: how many files, of about the same size each.
        num_threads: the most files that are written at a time. Default: the cores that
            this process may use, at most 8.
        durable: whether the save is on the disk when this returns.
        checks: whether sums are kept. See :func:`tensordict.storage.verify`.
        pbar: whether a progress bar is shown.

    Raises:
        ValueError: two keys have one name when they are joined.
        TypeError: a tensor that is not dense, or of a dtype that the format does not
            have; a value that JSON cannot hold.
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
    if is_index_name(path):
        path = os.fspath(path).removesuffix(INDEX_SUFFIX)
        shards = 1 if shards is None and max_shard_size is None else shards
    progress = _rust.SaveProgress()

    def work() -> None:
        limits, how = (max_shard_size, shards), (num_threads, durable, checks)
        _write(data, path, limits, how, progress, maps=False)

    if pbar:
        with_bar(work, progress)
    else:
        work()


def save_mapped(
    data: Any,
    path: str | Path,
    how: tuple[int, bool, bool],
    progress: _rust.SaveProgress,
) -> Any:
    """Save to one file: a container over what was written.

    By its name the file could be that of another save already.
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
    """Save in one file or several; where ``maps``, texts and tensors of each."""
    if not isinstance(data, CollectionProtocol) and not hasattr(data, "batch_size"):
        raise AttributeError(
            f"{type(data).__name__!r} object has no attribute 'batch_size'"
        )
    max_shard_size, shards = limits
    writer = Writer()
    level = data._to_level(writer, ())
    text = json.dumps({"version": VERSION, "root": level})
    path = os.path.abspath(path)
    parts = _shards(writer.tensors, max_shard_size, shards)
    index_path = path + INDEX_SUFFIX
    is_single = max_shard_size is None and shards is None
    if is_single:
        files: list[Any] = [(path, None, _planned(writer.tensors), [(ENTRY, text)])]
        index = None
    else:
        generation = os.urandom(8).hex()
        usual, own = _shard_names(path, len(parts), generation)
        metadata = [("format", "pt"), (GENERATION, generation)]
        files = [
            (name, other, _planned(part), metadata)
            for name, other, part in zip(usual, own, parts, strict=True)
        ]
        index = (
            index_path,
            _index_text(usual, parts, text, generation),
            _index_text(own, parts, text, generation),
        )
    stale = index_path if os.path.exists(index_path) else None
    with naming_the_entry(data):
        written = _rust.write_safetensors(files, index, stale, *how, progress, maps)
    if not is_single and os.path.isfile(path):
        # An older save in one file, which would be loaded before the index.
        os.unlink(path)
    return written


def _planned(
    tensors: dict[str, Leaf],
) -> list[tuple[str, tuple[Sequence[Any], int], str, list[int], int]]:
    return [
        (name, _parts(leaf), str(leaf.dtype), list(leaf.shape), leaf.element_size())
        for name, leaf in tensors.items()
    ]


def _parts(leaf: Leaf) -> tuple[Sequence[torch.Tensor | DeviceReader], int]:
    """The tensors that are written as one, and in how many chunks each."""
    if isinstance(leaf, Stacked):
        devices = {part.device for part in leaf.parts}
        if len(devices) > 1:
            return [part.cpu() for part in leaf.parts], leaf.num_chunks
        if is_elsewhere(leaf.parts[0]):
            return [DeviceReader(leaf.parts, leaf.dim)], 1
        return leaf.parts, leaf.num_chunks
    return [leaf], 1


def _shard_names(path: str, count: int, generation: str) -> tuple[list[str], list[str]]:
    """The files of the shards: those with the usual names, and with names of their own.

    The index names its shards, so replacing it is the one step from the old save to the
    new. Shards that are there are therefore not written over: where one of the usual
    names is taken, the new ones have the text of the save in theirs.
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
    total = sum(_num_bytes(leaf) for part in parts for leaf in part.values())
    metadata = {"total_size": total, ENTRY: text, GENERATION: generation}
    return json.dumps({"metadata": metadata, "weight_map": weight_map}, indent=2) + "\n"


def _num_bytes(leaf: Leaf) -> int:
    return leaf.numel() * leaf.element_size()


MSG_SHARD_SIZE = (
    "max_shard_size is a number of bytes or a text such as '5GB', got {!r}."
)

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def _bytes_of(size: int | str) -> int:
    """The bytes that ``"5GB"`` or ``"500MiB"`` or a number stands for."""
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


def _shards(
    tensors: dict[str, Leaf],
    max_shard_size: int | str | None,
    count: int | None,
) -> list[dict[str, Leaf]]:
    """The tensors of each file."""
    if max_shard_size is not None and count is not None:
        raise ValueError("Give max_shard_size or shards, not both.")
    if count is not None:
        if count < 1:
            raise ValueError(f"shards must be at least 1, got {count}.")
        return _balanced(tensors, min(count, max(1, len(tensors))))
    if max_shard_size is None:
        return [tensors]
    limit = _bytes_of(max_shard_size)
    parts: list[dict[str, Leaf]] = [{}]
    filled = 0
    for name, leaf in tensors.items():
        size = _num_bytes(leaf)
        if parts[-1] and filled + size > limit:
            parts.append({})
            filled = 0
        parts[-1][name] = leaf
        filled += size
    return parts


def _balanced(tensors: dict[str, Leaf], count: int) -> list[dict[str, Leaf]]:
    """As many parts of about the same size: the largest tensors are given out first."""
    filled = [(0, number) for number in range(count)]
    place: dict[str, int] = {}
    for name in sorted(tensors, key=lambda name: -_num_bytes(tensors[name])):
        size, number = min(filled)
        filled[number] = size + max(1, _num_bytes(tensors[name])), number
        place[name] = number
    parts: list[dict[str, Leaf]] = [{} for _ in range(count)]
    for name, leaf in tensors.items():
        parts[place[name]][name] = leaf
    return parts


class Stacked:
    """Tensors of the members of a lazy stack, which are joined as they are written.

    Args:
        parts: the tensors, of one shape.
        dim: where the dim of the stack is.
        like: what has the dtype and the shape of the stack.
    """

    def __init__(self, parts: list[torch.Tensor], dim: int, like: Leaf) -> None:
        self.parts: list[torch.Tensor] = [
            part.to(like.dtype).resolve_conj().resolve_neg().contiguous()
            for part in parts
        ]
        self.dim = dim
        self.shape: torch.Size = like.shape
        self.dtype: torch.dtype = like.dtype
        self._item_bytes: int = like.element_size()

    @property
    def num_chunks(self) -> int:
        """How many chunks of each tensor lie in the stack one by one."""
        return self.shape[: self.dim].numel()

    def numel(self) -> int:
        """How many items the stack has."""
        return self.shape.numel()

    def element_size(self) -> int:
        """The bytes of an item."""
        return self._item_bytes


Leaf: TypeAlias = "torch.Tensor | Stacked"


class Writer:
    """Collects the tensors of a save under their names.

    Args:
        streams: whether small stacks are not gathered either.
    """

    def __init__(self, *, streams: bool = False) -> None:
        self.tensors: dict[str, Leaf] = {}
        self.streams = streams

    def tensor(self, value: torch.Tensor, path: tuple[str, ...]) -> dict[str, Any]:
        """The entry of a tensor, which is taken under its name.

        Raises:
            TypeError: it is not dense.
            ValueError: another tensor has the name.
        """
        if value.is_nested or value.layout != torch.strided or value.is_quantized:
            layout = (
                f"{value.layout} (nested)" if value.is_nested else str(value.layout)
            )
            if value.is_quantized:
                layout += " (quantized)"
            raise TypeError(MSG_DENSE.format(path=path, layout=layout))
        name = ".".join(path)
        if isinstance(value, UnbatchedTensor):
            self.take(name, value._data.detach())
            return {"tensor": name, "unbatched": True}
        self.take(name, value.detach())
        return {"tensor": name}

    def take(self, name: str, leaf: Leaf) -> None:
        """Take a leaf under a name of the format.

        Raises:
            ValueError: another leaf or the format itself has the name.
        """
        if name in self.tensors:
            raise ValueError(MSG_COLLISION.format(name))
        if name == "__metadata__":
            raise ValueError(
                "A tensor cannot have the safetensors name '__metadata__', which is that "
                "of a field of the format."
            )
        self.tensors[name] = leaf

    def value(self, value: Any, path: tuple[str, ...], kind: str) -> dict[str, Any]:
        """The entry of a value that is no tensor, of the class ``kind``."""
        try:
            plain, is_same = extra_metadata.as_plain(value)
        except TypeError:
            shown = type(value).__name__
            raise TypeError(MSG_VALUE.format(path=path, type=shown)) from None
        entry: dict[str, Any] = {"non_tensor": plain}
        if not is_same:
            entry["value"] = extra_metadata.tagged(value)
        if kind != "NonTensorData":
            entry["kind"] = kind
        return entry

    def entries(self, values: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        """The entries of a level.

        Raises:
            RuntimeError: it is nested too deep.
        """
        if len(path) > MAX_LEVELS:
            raise RuntimeError(MSG_LEVELS)
        found = {}
        for key, value in values.items():
            inner = (*path, key)
            if not isinstance(value, CollectionProtocol):
                found[key] = self.tensor(value, inner)
                continue
            level: Any = value
            found[key] = level._to_entry(self, inner)
        return found


def dense_to_level(td: Any, writer: Writer, path: tuple[str, ...]) -> dict[str, Any]:
    """The level of a dense container."""
    level: dict[str, Any] = {
        "batch_size": list(td.batch_size),
        "names": list(td.names) if td._has_names() else None,
    }
    cls = type(td)
    if cls is not registry.dense_root() and registry.is_dense_class(cls):
        level["subclass"] = [registry.class_text(cls), registry.type_text(cls)]
    level["keys"] = writer.entries(td._entries(), path)
    return level


MSG_RAGGED = (
    "A safetensors file has no ragged entries: save to a directory or to an archive "
    "(`.tdz`), or pad them."
)
STREAMED_FROM = 16 << 20
"""Stacks of fewer bytes are gathered in memory, which is faster."""


def stack_to_level(stack: Any, writer: Writer, path: tuple[str, ...]) -> dict[str, Any]:
    """The level of a lazy stack, as that of the container of its stacked entries.

    Those of large stacks are joined as they are written.
    """
    found = _parts_of_members(stack, writer, path)
    if found is None:
        level: dict[str, Any] = _as_dense(stack)._to_level(writer, path)
        return level
    # Where everything goes, and what cannot be stacked, is told by tensors without values.
    empty = Writer()
    level = _as_dense(stack.to("meta"))._to_level(empty, path)
    for name, like in empty.tensors.items():
        parts = found[name]
        if like.numel() == 0:
            writer.take(name, torch.empty(like.shape, dtype=like.dtype))
        elif len(parts) == 1:
            writer.take(name, parts[0].reshape(like.shape))
        else:
            writer.take(name, Stacked(parts, stack.stack_dim, like))
    return level


def _as_dense(stack: Any) -> Any:
    """A lazy stack with its entries stacked.

    Raises:
        RuntimeError: an entry is ragged, which the format cannot hold.
    """
    try:
        return stack._as_dense()
    except RuntimeError as error:
        error.args = (f"{error} {MSG_RAGGED}",)
        raise


def _parts_of_members(
    stack: Any, writer: Writer, path: tuple[str, ...]
) -> dict[str, list[torch.Tensor]] | None:
    """The tensors of each member of a stack, by name; None where it is gathered.

    One of leaves that are not simply stacked is, and a stack of stacks unless both are
    stacked in front.
    """
    leaves = list(_rust.leaves(stack))
    num_bytes = 0
    for leaf in leaves:
        if isinstance(leaf, UnbatchedTensor) or leaf.is_nested or leaf.is_sparse:
            return None
        num_bytes += _num_bytes(leaf)
    if num_bytes < STREAMED_FROM and not writer.streams:
        return None
    found: dict[str, list[torch.Tensor]] = {}
    for member in stack.tensordicts:
        inner = Writer(streams=True)
        member._to_level(inner, path)
        for name, leaf in inner.tensors.items():
            if not isinstance(leaf, Stacked):
                found.setdefault(name, []).append(leaf)
            elif leaf.dim == stack.stack_dim == 0:
                found.setdefault(name, []).extend(leaf.parts)
            else:
                return None
    return found


# Reading ------------------------------------------------------------------------------


def from_safetensors(path: str | Path, *, device: Any = None) -> Any:
    """Load a safetensors file of anybody, or an index with its files.

    A file of :func:`to_safetensors` gives the collection that was saved. Of any other
    file the tensors are nested by the dots in their names, in a collection without batch
    dims. Files are mapped: bytes come from the disk when they are used, and stores into
    the tensors stay in this process.

    Args:
        path: the file; or the index, or the name without it that was saved to.
        device: where to copy the tensors. On the CPU they stay mapped.

    Raises:
        FileNotFoundError: there is no such file, or one that the index names is missing.
        RuntimeError: a file is damaged, or of another save than its index.
        ValueError: it is of a newer version, or has tensors that it does not describe.
        KeyError: a name of a foreign file runs through that of another tensor.

    Examples:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "file.safetensors")
        >>> to_safetensors(TensorDict({"a": torch.arange(3)}, [3], names=["t"]), path)
        >>> from_safetensors(path).names
        ['t']
    """
    return load(path, device)


def is_index_name(path: str | Path) -> bool:
    """Whether a name is that of the index of a save in several files."""
    return str(path).endswith(SUFFIX + INDEX_SUFFIX)


def index_of(path: str | Path) -> str | None:
    """The index that a name stands for; None where it is a file of its own."""
    path = os.fspath(path)
    if path.endswith(INDEX_SUFFIX):
        return path
    if not os.path.exists(path) and os.path.exists(path + INDEX_SUFFIX):
        return path + INDEX_SUFFIX
    return None


def load(
    path: str | Path,
    device: Any = None,
    mode: str | None = "r",
    requested: type | None = None,
) -> Any:
    """:func:`from_safetensors`, with the mode of :meth:`load_memmap`."""
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
"""How often shards that are replaced while they are read are read again."""


def _read_shards(
    index: str, mode: str | None
) -> tuple[dict[str, torch.Tensor], str | None]:
    """The tensors of one save, also where others take its place meanwhile."""
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
                f"'{os.fspath(file)}' is of another save than its index '{index}': a "
                "save was interrupted. Save again."
            )
        for name in names:
            if name not in found:
                raise RuntimeError(
                    f"'{os.fspath(file)}' is damaged: the entry {name!r}, which the index "
                    f"'{index}' puts there, is missing."
                )
            tensors[name] = found[name]
    return tensors, metadata.get(ENTRY)


def _nested(tensors: dict[str, torch.Tensor], path: str | Path) -> Any:
    """The tensors of a foreign file, nested by the dots in their names."""
    cls = registry.dense_root()
    root: dict[str, Any] = {}
    for name, tensor in tensors.items():
        *parents, last = name.split(".")
        level = root
        for parent in parents:
            level = level.setdefault(parent, {})
            if isinstance(level, torch.Tensor):
                raise KeyError(_msg_present(name, parent, path))
        if last in level:
            raise KeyError(_msg_present(name, last, path))
        level[last] = tensor
    return _of_dicts(cls, root)


def _msg_present(name: str, key: str, path: str | Path) -> str:
    return (
        f"The entry {key} is already present in tensordict: the tensor {name!r} of "
        f"'{path}' and another cannot both be nested by the dots in their names."
    )


def _of_dicts(cls: Any, level: dict[str, Any]) -> Any:
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
            f"'{path}' is damaged: its tensordict metadata makes no sense ({error!r})."
        ) from error
    if version != VERSION:
        raise ValueError(MSG_VERSION.format(path, version))
    loaded = reader.container(root, ())
    left = sorted(tensors.keys() - reader.taken)
    if left:
        raise ValueError(
            f"The tensors {left} of {path} are not in its tensordict metadata."
        )
    return loaded


class Reader:
    """Gives the tensors of a file to the containers of its levels.

    Args:
        tensors: the tensors by name.
        path: the file, for messages.
        requested: the class that the caller loads.
    """

    def __init__(
        self,
        tensors: dict[str, torch.Tensor],
        path: str | Path,
        requested: type | None = None,
    ) -> None:
        self.tensors = tensors
        self.path = path
        self.requested = requested
        self.taken: set[str] = set()

    def container(
        self, level: Any, path: tuple[str, ...], is_part: bool = False
    ) -> Any:
        """The container of a level; ``is_part`` where it is part of a lazy stack."""
        try:
            return self._class(level, is_part)._from_level(level, self, path, is_part)
        except (AttributeError, TypeError, KeyError, IndexError) as error:
            raise self.damaged(path, f"its level makes no sense ({error!r})") from error

    def _class(self, level: dict[str, Any], is_part: bool) -> Any:
        if "class" not in level and "stack_dim" in level and not is_part:
            text = "tensordict:LazyStackedTensorDict"
            return registry.find_class(None, text, None, self.path)
        if "subclass" in level:
            class_text, type_text = level["subclass"]
            return registry.find_class(self.requested, class_text, type_text, self.path)
        if "class" not in level:
            return registry.dense_root()
        text = level["class"]
        try:
            return registry.find_class(self.requested, None, text, self.path)
        except RuntimeError:
            raise RuntimeError(
                f"Could not find the tensorclass {text} saved in {self.path}. Import the "
                "module that defines it before you load the file."
            ) from None

    def entries(
        self, level: dict[str, Any], path: tuple[str, ...], is_part: bool = False
    ) -> dict[str, Any]:
        """The entries of a level."""
        size = torch.Size(level["batch_size"])
        found: dict[str, Any] = {}
        for key, entry in level["keys"].items():
            inner = (*path, key)
            if "td" in entry:
                value = self.container(entry["td"], inner, is_part)
            elif "tensor" in entry:
                value = self._tensor(entry["tensor"], inner)
                if entry.get("unbatched"):
                    found[key] = UnbatchedTensor(value, size)
                    continue
            else:
                value = self._value(entry, size)
            if value.shape[: len(size)] != size:
                raise self.damaged(
                    inner, f"its shape {value.shape} does not begin with {size}"
                )
            found[key] = value
        return found

    def _tensor(self, name: str, path: tuple[str, ...]) -> torch.Tensor:
        if name not in self.tensors:
            raise self.damaged(path, f"the file has no tensor {name!r}")
        self.taken.add(name)
        return self.tensors[name]

    def _value(self, entry: dict[str, Any], size: torch.Size) -> Any:
        data = entry["non_tensor"]
        if "value" in entry:
            data = extra_metadata.untagged(entry["value"])
        text = f"tensordict:{entry.get('kind', 'NonTensorData')}"
        cls: Any = registry.find_class(None, text, None, self.path)
        return cls._of([data], 0, size)

    def damaged(self, path: tuple[str, ...], reason: str) -> RuntimeError:
        """The error that names file and entry."""
        shown = repr(path[0] if len(path) == 1 else path)
        of = f"the entry {shown}: " if path else ""
        return RuntimeError(f"'{self.path}' is damaged: {of}{reason}.")


def dense_from_level(
    cls: Any,
    level: dict[str, Any],
    reader: Reader,
    path: tuple[str, ...],
    is_part: bool,
) -> Any:
    """The dense container of a level."""
    names = level.get("names")
    entries = reader.entries(level, path, is_part)
    size = torch.Size(level["batch_size"])
    if names is not None and (len(names) != len(size) or not any(names)):
        names = None
    return _rust.new(cls, entries, size, None, names and list(names))


def description_of(path: str | Path) -> str | None:
    """The text that describes the containers; None in a file of others."""
    index = index_of(path)
    if index is None:
        return dict(_rust.safetensors_header(os.fspath(path))[0]).get(ENTRY)
    metadata = json.loads(_rust.read_safetensors_index(index)[1]) or {}
    text: str | None = metadata.get(ENTRY)
    return text


def tensors_of(path: str | Path) -> Iterator[tuple[str, str, list[int], int]]:
    """Name, dtype, shape and bytes of every tensor, without reading one."""
    index = index_of(path)
    files = (
        [path]
        if index is None
        else [f for f, _ in _rust.read_safetensors_index(index)[0]]
    )
    for file in files:
        for name, dtype, shape, _, num_bytes in _rust.safetensors_header(file)[1]:
            yield name, dtype, shape, num_bytes

"""Relate the rows of a collection to the columns of a directory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from tensordict.primitives import registry, special
from tensordict.primitives.checks import inside, is_tensorclass
from tensordict.primitives.special import is_shared
from tensordict.storage.growing.text import empty_shape
from tensordict.storage.leaves import MSG_DTYPE as MSG_FILE_DTYPE
from tensordict.storage.leaves import has_file_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict.primitives.protocol import CollectionProtocol

__all__ = [
    "Level",
    "Ragged",
    "Values",
    "bytes_of",
    "level_of_members",
    "level_of_rows",
    "refuse_dtypes",
    "rows_of",
]

MSG_SHARED = "All rows share the entry {!r}, so that none can be added to it."
MSG_KEYS = (
    "Rows must have the same keys, and one has {}, another {}{}. Give each row a value "
    "for every key."
)
MSG_MEMBER_NESTED = (
    "The entry {!r} of a row is a nested tensor: each row has one tensor a key."
)
MSG_DTYPE = "The rows of the entry {!r} are of the dtypes {} and {}."
MSG_DIMS = "The rows of the entry {!r} have {} and {} dims, which must be equally many."
MSG_KINDS = (
    "The entry {!r} is a {} in one row and a {} in another{}. Numbers, and lists of numbers "
    "of equal lengths, are tensors; None, texts and uneven lists are values. Convert them, "
    "or make a NonTensorData of each."
)
MSG_BATCH = "Rows have {} and {} batch dims{}, which must be equally many."


@dataclass
class Ragged:
    """Rows that are tensors of different shapes."""

    values: torch.Tensor
    """The items of all rows, one after the other."""
    table: torch.Tensor
    """The shape of each row: int64 ``[N, dims]``."""

    def __len__(self) -> int:
        return len(self.table)


@dataclass
class Values:
    """Rows that are no tensors."""

    items: list[Any]
    is_one: bool = False
    """True if it is one value for all rows."""

    def __len__(self) -> int:
        return len(self.items)


@dataclass
class Level:
    """The rows of a collection, or of one that is nested in it."""

    cls: type
    batch_size: torch.Size | None
    """The batch dims behind the first, where they are the same in all rows."""
    num_dims: int
    """The number of those dims."""
    entries: dict[str, Any] = field(default_factory=dict)
    """By key: a tensor ``[N, ...]``, :class:`Ragged`, :class:`Values`, or a level."""
    names: list[str | None] | None = None

    @property
    def is_wrapped(self) -> bool:
        """Return whether entries are one directory deeper, as in a tensorclass."""
        return is_tensorclass(self.cls)


def level_of_rows(td: Any, key: tuple[str, ...] = ()) -> Level:
    """The level of a collection whose first batch dim is that of the rows."""
    if is_tensorclass(td):
        level = level_of_rows(td._tensordict, key)
        level.cls = type(td)
        return level
    if not td._is_dense and hasattr(td, "stack_dim"):
        if not td.stack_dim:
            known: Level | None = td._as_level() if hasattr(td, "_as_level") else None
            if known is not None:
                return known
            members = td.tensordicts
            return level_of_members(members, key) if members else _hollow(td)
        td = td.contiguous()
    size, names = td.batch_size, td._td_dim_names
    level = Level(type(td), size[1:], len(size) - 1, {}, names and list(names))
    for name, value in td._entries().items():
        path = (*key, name)
        if is_shared(value):
            raise NotImplementedError(MSG_SHARED.format(_shown(path)))
        level.entries[name] = rows_of(value, path)
    return level


def rows_of(value: Any, key: tuple[str, ...] = ()) -> Any:
    """The rows of an entry whose first dim is that of the rows."""
    if isinstance(value, torch.Tensor):
        return _tensor_rows(value)
    if value._is_non_tensor:
        return _value_rows(value, value.batch_size[0])
    return level_of_rows(value, key)


def level_of_members(members: Sequence[Any], key: tuple[str, ...] = ()) -> Level:
    """The level of collections of which each is a row.

    Raises:
        ValueError: they do not fit together.
    """
    first = members[0]
    sizes = {member.batch_size for member in members}
    counts = sorted({len(size) for size in sizes})
    if len(counts) > 1:
        at = f" at {_shown(key)!r}" if key else ""
        raise ValueError(MSG_BATCH.format(counts[0], counts[-1], at))
    size = next(iter(sizes)) if len(sizes) == 1 else None
    level = Level(type(first), size, counts[0])
    names = first._td_dim_names
    if names is not None:
        level.names = [None, *names]
    is_one = len(set(map(type, members))) == 1 and inside(first) is first
    inner = members if is_one else [inside(member) for member in members]
    entries = [member._entries() for member in inner]
    keys = entries[0].keys()
    for other in entries:
        if other.keys() != keys:
            at = f" at {_shown(key)!r}" if key else ""
            raise ValueError(MSG_KEYS.format(list(keys), list(other), at))
    for name in keys:
        values = [each[name] for each in entries]
        level.entries[name] = _joined(values, (*key, name))
    return level


def _hollow(td: CollectionProtocol) -> Level:
    """The level of a stack without members, of which no entries are known."""
    size = td.batch_size[1:]
    return Level(registry.dense_root(), size, len(size))


def _shown(path: tuple[str, ...]) -> Any:
    return path[0] if len(path) == 1 else path


def refuse_dtypes(level: Level, key: tuple[str, ...] = ()) -> None:
    """Raise where an entry has a dtype that the metadata has no word for.

    Raises:
        NotImplementedError: it names the entry.
    """
    for name, data in level.entries.items():
        path = (*key, name)
        if isinstance(data, Level):
            refuse_dtypes(data, path)
            continue
        values = data.values if isinstance(data, Ragged) else data
        if isinstance(values, torch.Tensor) and not has_file_dtype(values):
            text = MSG_FILE_DTYPE.format(values.dtype)
            raise NotImplementedError(f"{text} (the entry {_shown(path)!r})")


def _tensor_rows(value: Any) -> Any:
    if not value.is_nested:
        return value
    if value.layout is torch.jagged and value._ragged_idx == 1:
        offsets = value.offsets()
        if value.lengths() is None and int(offsets[0]) == 0:
            values = value.values()
            sizes = torch.tensor(values.shape[1:], dtype=torch.int64)
            lengths = offsets.diff()[:, None].cpu().long()
            table = torch.cat([lengths, sizes.expand(len(lengths), -1)], 1)
            return Ragged(values.detach()[: int(offsets[-1])].reshape(-1), table)
    parts = list(value.unbind())
    if not parts:
        size = value._nested_tensor_size() if value.layout is torch.strided else None
        dims = 1 if size is None or size.ndim < 2 else size.shape[1]
        empty = torch.zeros(0, dims, dtype=torch.int64)
        return Ragged(torch.zeros(0, dtype=value.dtype), empty)
    return _ragged(parts)


def _value_rows(value: Any, count: int) -> Values:
    if value._is_one:
        return Values([value.data] * count, is_one=True)
    return Values(value.tolist())


def _joined(values: list[Any], path: tuple[str, ...]) -> Any:
    """The rows of an entry: a value for each row."""
    first = values[0]
    if type(first) is torch.Tensor and len(values) == 1 and special.rows(first) is None:
        return first.detach()[None]
    if all(map(_is_plain, map(type, values))):
        return _joined_tensors(values, path)
    kind = _kind(first)
    if any(_kind(value) != kind for value in values):
        values = _with_empty_tensors(values, path)
        first, kind = values[0], "tensor"
    if kind == "value":
        return Values([value.tolist() for value in values])
    if kind == "collection":
        return level_of_members(values, path)
    for value in values:
        if is_shared(value):
            raise NotImplementedError(MSG_SHARED.format(_shown(path)))
    return _joined_tensors(values, path)


def _is_plain(kind: type) -> bool:
    return kind is torch.Tensor


def _joined_tensors(values: list[torch.Tensor], path: tuple[str, ...]) -> Any:
    """The rows of an entry of tensors.

    Raises:
        ValueError: they do not fit together.
    """
    first = values[0]
    if any(special.rows(value) is not None for value in values):
        raise ValueError(MSG_MEMBER_NESTED.format(_shown(path)))
    for dtype in {value.dtype for value in values} - {first.dtype}:
        raise ValueError(MSG_DTYPE.format(_shown(path), first.dtype, dtype))
    shapes = [value.shape for value in values]
    if shapes.count(first.shape) == len(shapes):
        return first.detach()[None] if len(values) == 1 else _plain_stack(values)
    for num_dims in set(map(len, shapes)) - {first.ndim}:
        raise ValueError(MSG_DIMS.format(_shown(path), first.ndim, num_dims))
    return _ragged(values)


def _with_empty_tensors(values: list[Any], path: tuple[str, ...]) -> list[Any]:
    """The tensors of some rows, with empty ones for the empty lists of others.

    Raises:
        ValueError: a row has something else.
    """
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    made: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            made.append(value)
            continue
        is_value = bool(value._is_non_tensor)
        item = value.tolist() if is_value else None
        if not tensors or not tensors[0].ndim or empty_shape(item) != [0]:
            kinds = sorted({_kind(each) for each in values})
            shown = f" ({item!r:.80})" if is_value else ""
            text = MSG_KINDS.format(_shown(path), *kinds[-2:], shown)
            raise ValueError(text)
        made.append(tensors[0].new_empty(0, *tensors[0].shape[1:]))
    return made


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "tensor"
    return "value" if value._is_non_tensor else "collection"


def _plain_stack(values: list[torch.Tensor]) -> torch.Tensor:
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        return torch.stack(values)


def _ragged(parts: list[torch.Tensor]) -> Ragged:
    table = torch.tensor([tuple(part.shape) for part in parts], dtype=torch.int64)
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        values = torch._utils._flatten_dense_tensors(parts)
    return Ragged(values, table.reshape(len(parts), parts[0].ndim))


def bytes_of(tensor: torch.Tensor) -> Any:
    """The bytes of a tensor, row-major, without a copy where it has no gaps."""
    if not tensor.numel():
        return b""
    if type(tensor) is torch.Tensor and tensor.is_contiguous():
        try:
            return tensor.numpy()
        except (RuntimeError, TypeError):
            # The tensor has a gradient or another device, is conjugated, or has a dtype of
            # torch's own.
            pass
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        plain = tensor.detach()
        if plain.device.type != "cpu":
            plain = plain.cpu()
        if plain.is_conj() or plain.is_neg():
            plain = plain.resolve_conj().resolve_neg()
        plain = plain.contiguous().as_subclass(torch.Tensor)
        return plain.reshape(-1).view(torch.uint8).numpy()

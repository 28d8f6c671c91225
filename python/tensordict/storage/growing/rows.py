"""Conversion of collections to the rows of columns."""

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

PLACE = "a dataset that grows by rows"

MSG_SHARED = (
    "All rows share the unbatched entry {!r}, so rows cannot be added to it. Store it as a "
    "tensor with one row for each row of the tensordict."
)
MSG_KEYS = (
    "Rows must have the same keys, but one has {}, another {}{}. Give each row a value "
    "for every key."
)
MSG_MEMBER_NESTED = (
    "The entry {!r} of a row is a nested tensor, but a row holds one tensor for each key. "
    "Split the nested tensor into rows, or pad it."
)
MSG_DTYPE = (
    "The rows of the entry {!r} have the dtypes {} and {}. Convert them to one dtype."
)
MSG_DIMS = (
    "The rows of the entry {!r} have {} and {} dimensions. Rows may differ in their sizes, "
    "but not in the number of their dimensions."
)
MSG_KINDS = (
    "The entry {!r} is a {} in one row and a {} in another{}. Numbers, and lists of numbers "
    "of equal lengths, are tensors; None, strings and ragged lists are values. Convert "
    "them, or wrap each in NonTensorData."
)
MSG_BATCH = "Rows have {} and {} batch dimensions{}, but need the same number."


@dataclass
class Ragged:
    """Rows that are tensors of different shapes: ragged rows."""

    values: torch.Tensor
    """The items of all rows, one row after the other."""
    table: torch.Tensor
    """The shape of each row: int64 ``[N, dims]``."""

    def __len__(self) -> int:
        return len(self.table)


@dataclass
class Values:
    """Rows of non-tensor data."""

    items: list[Any]
    is_one: bool = False
    """Whether all rows share one value."""

    def __len__(self) -> int:
        return len(self.items)


@dataclass
class Level:
    """The rows of a collection, or of a nested collection."""

    cls: type
    batch_size: torch.Size | None
    """The batch size of a row; None if it differs from row to row."""
    num_dims: int
    """The number of batch dimensions of a row."""
    entries: dict[str, Any] = field(default_factory=dict)
    """By key: a tensor ``[N, ...]``, :class:`Ragged`, :class:`Values`, or a level."""
    names: list[str | None] | None = None

    @property
    def is_wrapped(self) -> bool:
        """Whether the entries are one directory deeper, as in a tensorclass."""
        return is_tensorclass(self.cls)


def level_of_rows(td: Any, key: tuple[str, ...] = ()) -> Level:
    """Return the level of a collection whose first batch dimension is the row."""
    if is_tensorclass(td):
        level = level_of_rows(td._tensordict, key)
        level.cls = type(td)
        return level
    if not td._is_dense and hasattr(td, "stack_dim"):
        if not td.stack_dim:
            level_of_columns: Level | None = (
                td._as_level() if hasattr(td, "_as_level") else None
            )
            if level_of_columns is not None:
                return level_of_columns
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
    """Return the rows of an entry whose first dimension is the row."""
    if isinstance(value, torch.Tensor):
        special.check_plain(value, _shown(key), PLACE)
        return _tensor_rows(value)
    if value._is_non_tensor:
        return _value_rows(value, value.batch_size[0])
    return level_of_rows(value, key)


def level_of_members(members: Sequence[Any], key: tuple[str, ...] = ()) -> Level:
    """Return the level of collections that are one row each.

    Raises:
        ValueError: the rows do not fit together.
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
    is_unwrapped = len(set(map(type, members))) == 1 and inside(first) is first
    inner = members if is_unwrapped else [inside(member) for member in members]
    entries = [member._entries() for member in inner]
    keys = entries[0].keys()
    for other in entries:
        if other.keys() != keys:
            at = f" at {_shown(key)!r}" if key else ""
            raise ValueError(MSG_KEYS.format(list(keys), list(other), at))
    for name in keys:
        values = [row[name] for row in entries]
        level.entries[name] = _joined(values, (*key, name))
    return level


def _hollow(td: CollectionProtocol) -> Level:
    """Return the level of a stack without members, which has no entries."""
    size = td.batch_size[1:]
    return Level(registry.dense_root(), size, len(size))


def _shown(path: tuple[str, ...]) -> Any:
    return path[0] if len(path) == 1 else path


def refuse_dtypes(level: Level, key: tuple[str, ...] = ()) -> None:
    """Raise if files cannot hold the dtype of an entry.

    Raises:
        NotImplementedError: the message names the entry.
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
    """Return the rows of an entry from one value for each row."""
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
        special.check_plain(value, _shown(path), PLACE)
    return _joined_tensors(values, path)


def _is_plain(kind: type) -> bool:
    return kind is torch.Tensor


def _joined_tensors(
    values: list[torch.Tensor], path: tuple[str, ...]
) -> torch.Tensor | Ragged:
    """Return the rows of an entry from one tensor for each row.

    Raises:
        ValueError: the tensors do not fit together.
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
    """Replace empty lists with empty tensors, in an entry whose other rows are tensors.

    Raises:
        ValueError: a row holds something else.
    """
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    rows: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            rows.append(value)
            continue
        is_value = _kind(value) == "value"
        item = value.tolist() if is_value else None
        if not tensors or not tensors[0].ndim or empty_shape(item) != [0]:
            kinds = sorted({_kind(row) for row in values})
            shown = f" ({item!r:.80})" if is_value else ""
            text = MSG_KINDS.format(_shown(path), *kinds[-2:], shown)
            raise ValueError(text)
        rows.append(tensors[0].new_empty(0, *tensors[0].shape[1:]))
    return rows


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
    """Return the bytes of a tensor in row-major order: a view if it is contiguous."""
    if not tensor.numel():
        return b""
    if type(tensor) is torch.Tensor and tensor.is_contiguous():
        try:
            return tensor.numpy()
        except (RuntimeError, TypeError):
            # The tensor requires grad, is on another device or conjugated, or NumPy lacks
            # its dtype.
            pass
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        plain = tensor.detach()
        if plain.device.type != "cpu":
            plain = plain.cpu()
        if plain.is_conj() or plain.is_neg():
            plain = plain.resolve_conj().resolve_neg()
        plain = plain.contiguous().as_subclass(torch.Tensor)
        return plain.reshape(-1).view(torch.uint8).numpy()

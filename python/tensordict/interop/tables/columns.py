"""Column names as keys, and tensordicts made of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tensordict import _rust
from tensordict.containers.dense import TensorDict
from tensordict.containers.lazy import LazyStackedTensorDict
from tensordict.interop.tables.rules import Path, Rules, mask_path
from tensordict.ops.python_values import size_arguments, warn_batch_dims_ignored
from tensordict.primitives.checks import is_branch, is_tensorclass
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.primitives.special import check_plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "Asked",
    "as_entries",
    "check_tensor",
    "collection",
    "flat_columns",
    "nested_of",
    "refuse_exclusive_keys",
    "rows_of",
    "rules_of",
    "values_of",
]

MSG_NESTED = (
    "Nested TensorDict at key {!r} requires a separator parameter to flatten to DataFrame "
    "columns. Use {}(separator='.')."
)
MSG_EXCLUSIVE = (
    "{} got a lazy stack in which only some members have {}, but a table has all columns "
    "in every row. Select the common keys, or set the missing entries."
)
MSG_TWICE = (
    "{} got several columns of the names {}: rename them, because keys are unique."
)
MSG_CONFLICT = (
    "Key conflict: {!r} is both a leaf and a prefix in column names. Rename the column, "
    "or pass another separator."
)
MSG_MASK_IS_COLUMN = (
    "nulls='mask' writes the masks under the key {!r}, which is a column of the table. "
    "Pass another mask_key."
)
MSG_ONE_DIM = (
    "{} needs a tensordict with one batch dimension, got the batch size {}. Call "
    "td.reshape(-1) first to flatten it, or set its batch size to that of the rows."
)
MSG_ROWS = (
    "The entry {!r} of shape {} has no value for each of the {} rows of the table: exclude "
    "it with td.exclude(...)."
)
MSG_LAYOUT = (
    "The entry {!r} of dtype {} has the layout {}, which tables cannot hold. Convert it, "
    "for example with .to_dense() or .dequantize()."
)
MSG_NON_TENSOR = (
    "{} works on tensordicts and tensorclasses, but {} is non-tensor data. Set it as an "
    "entry of a tensordict first."
)


class Asked(NamedTuple):
    """The arguments of a method that reads a table."""

    method: str
    auto_batch_size: bool = False
    batch_dims: int | None = None
    device: Any = None
    batch_size: Sequence[int] | None = None
    separator: str | None = None
    dtype: torch.dtype | None = None
    nulls: str | None = None
    mask_key: Any = None


def rules_of(asked: Asked, kind: str = "") -> Rules:
    """Check the arguments before anything is read.

    Raises:
        TypeError: an argument has a wrong type, or two arguments exclude each other.
        ValueError: an argument has a wrong value.
    """
    separator = asked.separator
    if separator is not None and not isinstance(separator, str):
        msg = f"separator must be str or None, not {type(separator).__name__}"
        raise TypeError(msg)
    if separator == "":
        msg = "empty separator: pass a text such as '.', or None to keep the names."
        raise ValueError(msg)
    if asked.dtype is not None and not isinstance(asked.dtype, torch.dtype):
        msg = f"dtype must be a torch.dtype or None, got {asked.dtype!r}."
        raise TypeError(msg)
    mask_path(asked.method, asked.nulls, asked.mask_key)
    _sizes_of(asked)
    return Rules(asked.nulls, asked.dtype, kind)


def _sizes_of(asked: Asked) -> dict[str, Any]:
    sizes = (asked.auto_batch_size, asked.batch_dims, asked.batch_size)
    return size_arguments(asked.method, *sizes)


def as_entries(asked: Asked, names: Sequence[Any]) -> list[Path]:
    """Return the key of each column.

    Raises:
        ValueError: two columns have one name, or the key of one is a prefix of another.
    """
    texts = [str(name) for name in names]
    if len(set(texts)) < len(texts):
        twice = sorted({name for name in texts if texts.count(name) > 1})
        raise ValueError(MSG_TWICE.format(asked.method, twice))
    if asked.separator is None:
        return [(name,) for name in texts]
    paths = [tuple(name.split(asked.separator)) for name in texts]
    leaves = set(paths)
    for path in paths:
        for depth in range(1, len(path)):
            if path[:depth] in leaves:
                name = asked.separator.join(path[:depth])
                raise ValueError(MSG_CONFLICT.format(name))
    return paths


def collection(
    cls: Any, asked: Asked, entries: dict[Path, Any], masks: object, rows: int
) -> Any:
    """Make a tensordict of columns.

    Args:
        cls: the class whose method was called.
        asked: the arguments of the caller.
        entries: the value of each column.
        masks: the masks that :class:`Rules` collected.
        rows: the number of rows, which is the default batch size.
    """
    if cls._is_non_tensor:
        raise TypeError(MSG_NON_TENSOR.format(asked.method, cls.__name__))
    if asked.nulls == "mask":
        entries = {**entries, **_placed(asked, entries, masks)}
    nested: dict[str, Any] = {}
    for path, value in entries.items():
        level = nested
        for key in path[:-1]:
            level = level.setdefault(key, {})
        level[path[-1]] = value
    options = _sizes_of(asked)
    if not options:
        options = {"batch_size": torch.Size([rows])}
    result: Any = TensorDict.from_dict(nested, device=asked.device, **options)
    if asked.batch_dims is not None and not asked.auto_batch_size:
        dims: dict[str, Any] = {"auto_batch_size": True, "batch_dims": asked.batch_dims}
        if TensorDict.from_dict(nested, **dims).batch_size != result.batch_size:
            warn_batch_dims_ignored(
                asked.method, asked.batch_dims, False, asked.batch_size
            )
    return cls._from_plain(result, nested)


def _placed(asked: Asked, entries: Any, masks: Any) -> dict[Path, Any]:
    """Return the masks under their keys.

    Raises:
        ValueError: a column has the key of the masks.
    """
    place = mask_path(asked.method, asked.nulls, asked.mask_key)
    if place[0] in {path[0] for path in entries}:
        raise ValueError(MSG_MASK_IS_COLUMN.format(place[0]))
    return {place + path: mask for path, mask in masks.items()}


def flat_columns(
    method: str,
    td: CollectionProtocol,
    separator: str | None,
    *,
    is_narrow: bool = False,
) -> dict[str, Any]:
    """Return the entries of a tensordict by the names of their columns.

    Args:
        method: the name of the called method, for errors.
        td: the tensordict.
        separator: the text between the parts of nested keys.
        is_narrow: whether a cell holds one value. A nested tensorclass with larger
            entries is then one column of objects.

    Raises:
        ValueError: there are nested entries and no separator, two entries get one name,
            or the members of a lazy stack differ in keys.
        TypeError: ``td`` is non-tensor data.
    """
    if td._is_non_tensor:
        raise TypeError(MSG_NON_TENSOR.format(method, type(td).__name__))
    result: dict[str, Any] = {}
    try:
        columns = list(_walk(method, td, separator, (), is_narrow))
    except RuntimeError:
        # Members differ in the shape of a leaf.
        if is_narrow or not isinstance(td, LazyStackedTensorDict):
            raise
        jagged = td.densify(layout=torch.jagged)
        columns = list(_walk(method, jagged, separator, (), is_narrow))
    for name, value in columns:
        if name in result:
            raise ValueError(MSG_TWICE.format(method, [name]))
        if isinstance(value, torch.Tensor):
            check_tensor(name, value, td.batch_size[0] if td.batch_dims else None)
        result[name] = value
    return result


def check_tensor(name: str, value: torch.Tensor, rows: int | None) -> None:
    """Raise an error for a tensor that cannot be a column.

    Raises:
        ValueError: the tensor does not have one value for each row.
        TypeError: the tensor is sparse or quantized, or a special entry, whose kind no
            table keeps.
    """
    if value.is_nested:
        return
    if value.layout is not torch.strided or value.is_quantized:
        layout = "quantized" if value.is_quantized else value.layout
        raise TypeError(MSG_LAYOUT.format(name, value.dtype, layout))
    if rows is not None and value.shape[:1] != (rows,):
        raise ValueError(MSG_ROWS.format(name, value.shape, rows))
    check_plain(value, name, "a table")


def _walk(
    method: str,
    td: CollectionProtocol,
    separator: str | None,
    path: Path,
    is_narrow: bool,
) -> Iterator[tuple[str, Any]]:
    refuse_exclusive_keys(method, td)
    for key, value in td.items():
        is_leaf = not is_branch(value)
        if (
            not is_leaf
            and separator is not None
            and not (is_narrow and is_tensorclass(value) and not _is_flat(value))
        ):
            yield from _walk(method, value, separator, (*path, key), is_narrow)
        elif is_leaf or is_tensorclass(value):
            yield (separator or "").join((*path, key)), value
        else:
            raise ValueError(MSG_NESTED.format(key, method))


def _is_flat(value: Any) -> bool:
    """Return whether all leaves of a tensorclass have one value for each row."""
    leaves = list(value.values(True, True))
    return bool(leaves) and all(leaf.ndim == 1 for leaf in leaves)


def refuse_exclusive_keys(method: str, td: Any) -> None:
    """Raise an error for a lazy stack whose members differ in keys.

    Raises:
        ValueError: only some members have a key.
    """
    if not td._is_dense and getattr(td, "_has_exclusive_keys", False):
        every: set[str] = set().union(*(member.keys() for member in td.tensordicts))
        keys = sorted(every - set(td.keys()))
        raise ValueError(MSG_EXCLUSIVE.format(method, keys))


def nested_of(fields: dict[str, Any], rows: int) -> TensorDict:
    """Make a nested tensordict of the fields of a column."""
    return _rust.new(TensorDict, fields, torch.Size([rows]), None, None)


def rows_of(method: str, td: CollectionProtocol, columns: dict[str, Any]) -> int:
    """Return the number of rows of the table of a tensordict.

    Raises:
        ValueError: ``td`` has more than one batch dim, or none and its entries differ
            in length.
    """
    if td.batch_dims > 1:
        raise ValueError(MSG_ONE_DIM.format(method, td.batch_size))
    if td.batch_dims:
        return int(td.batch_size[0])
    sizes = {
        int(value.shape[0])
        for value in columns.values()
        if len(getattr(value, "shape", ()))
    }
    if not sizes:
        msg = (
            f"If using all scalar values, you must pass an index: {method} got a batch "
            "size of [], and there is no dim for the rows. Call td.unsqueeze(0) first."
        )
        raise ValueError(msg)
    scalars = [
        key
        for key, value in columns.items()
        if isinstance(value, torch.Tensor) and not value.ndim
    ]
    if len(sizes) > 1 or scalars:
        msg = (
            f"All arrays must be of the same length: {method} got a batch size of [], and "
            f"entries of the lengths {sorted(sizes)}. Set the batch size to the rows."
        )
        raise ValueError(msg)
    return sizes.pop()


def values_of(entry: object, rows: int) -> list[Any]:
    """Return the Python value of each row of an entry that is no tensor."""
    if not isinstance(entry, CollectionProtocol):
        return [entry] * rows
    value: Any = entry
    if not value._is_non_tensor:
        return list(value.unbind(0))
    if value.batch_dims == 1:
        return list(value._flat())
    if value.batch_dims:
        return list(value.tolist())
    return [value.data] * rows

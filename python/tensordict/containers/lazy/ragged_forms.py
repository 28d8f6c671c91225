"""Batches of rows that differ in shape: stacked, padded or jagged, and their masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust
from tensordict.containers.dense import TensorDict
from tensordict.containers.lazy.formats import as_nested, as_padded
from tensordict.containers.lazy.ragged_column import covered_dims
from tensordict.containers.lazy.stack import LazyStackedTensorDict
from tensordict.primitives import special
from tensordict.primitives.checks import inside, is_branch, is_tensorclass
from tensordict.primitives.errors import KeyMessageError
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["in_form", "is_stack_of_rows", "ragged_entries", "row_shapes"]

Path = tuple[str, ...]

MSG_ROWS_OF_STACKS = (
    "The rows of the entry {!r} are lazy stacks whose members differ in shape. They cannot "
    "be read with ragged={!r}; pass ragged='stack'."
)
MSG_STACK_DIM = (
    "Rows are along the first batch dim, but this is a lazy stack along dim {}, whose rows "
    "do not differ in shape. Index it without ragged=, or make it dense with contiguous()."
)
MSG_NO_TENSOR = "The entry {!r} does not exist or has no tensors, so it has no mask."
MSG_DIMS = "The rows of the entry {!r} have {} and {} dims, so they have no mask."


def in_form(rows: CollectionProtocol, ragged: str, padding: float) -> Any:
    """Make a batch of rows that may differ in shape.

    Args:
        rows: a lazy stack along its first dim, a dense collection, or a tensorclass
            around one of these.
        ragged: ``"stack"``, ``"padded"`` or ``"jagged"``.
        padding: the value of the padding for ``"padded"``.

    Raises:
        ValueError: a row is a lazy stack whose members differ in shape.
    """
    if is_tensorclass(rows):
        cls: Any = type(rows)
        return cls._from_tensordict(in_form(inside(rows), ragged, padding))
    if not isinstance(rows, LazyStackedTensorDict):
        if ragged != "stack":
            return _dense_in_form(rows, ragged, padding)
        names = rows._td_dim_names
        name = None if names is None else names[0]
        return LazyStackedTensorDict._of(list(rows.unbind(0)), 0, name)
    if ragged == "stack":
        return rows
    if ragged == "jagged":
        return rows.densify(layout=torch.jagged)
    entries: dict[str, Any] = {}
    for key in rows._common_keys():
        value = rows._sample_entry(key)
        if isinstance(value, torch.Tensor):
            how = {"as_padded_tensor": True, "padding_value": padding}
            entries[key] = rows.get(key, **how)
        elif not isinstance(value, CollectionProtocol):
            raise ValueError(MSG_ROWS_OF_STACKS.format(key, ragged))
        elif value._is_non_tensor:
            entries[key] = rows._get_entry(key, None)
        else:
            entries[key] = in_form(rows._get_entry(key, None), ragged, padding)
    size = torch.Size([len(rows.tensordicts)])
    return _rust.new(TensorDict, entries, size, rows.device, None)


def _dense_in_form(rows: CollectionProtocol, ragged: str, padding: float) -> Any:
    """Convert the nested tensors of a tensordict.

    Return other collections unchanged.
    """
    if not isinstance(rows, TensorDict):
        return rows
    entries = dict(rows._tensordict)
    for key, value in rows._tensordict.items():
        if is_branch(value):
            entries[key] = in_form(value, ragged, padding)
            continue
        parts = special.rows(value)
        if parts is None:
            continue
        if ragged == "padded":
            parts = parts or [value.values().new_empty([0])]
            padded = as_padded(parts, padding, "right")
            entries[key] = padded[: value.size(0)]
        elif value.layout is not torch.jagged:
            entries[key] = as_nested(parts, torch.jagged)
    if all(value is rows._tensordict[key] for key, value in entries.items()):
        return rows
    return rows._with_entries(entries)


def is_stack_of_rows(td: CollectionProtocol) -> bool:
    """Return whether the members of a collection are its rows.

    Raises:
        ValueError: the collection is a lazy stack along another dim.
    """
    if not isinstance(td, LazyStackedTensorDict):
        return False
    if td.stack_dim:
        raise ValueError(MSG_STACK_DIM.format(td.stack_dim))
    return True


# Shapes of rows -----------------------------------------------------------------------


def ragged_entries(td: CollectionProtocol) -> dict[Path, int]:
    """Map the path of each entry whose rows differ in shape to the ndim of its mask.

    A mask has the dims of a row up to the last dim in which rows of ``td`` differ. All
    rows of ``td`` count, not only the rows of a batch.
    """
    return dict(_ragged_entries(td, ()))


def _ragged_entries(td: CollectionProtocol, path: Path) -> Iterator[tuple[Path, int]]:
    td = inside(td)
    columns = getattr(td, "_unmade_columns", None)
    if columns is not None:
        yield from columns.ragged_entries(path)
        return
    is_stack = isinstance(td, LazyStackedTensorDict)
    for key in td._sample_entries():
        value = td._sample_entry(key)
        if is_branch(value):
            below = td._get_entry(key, None)
            yield from _ragged_entries(below, (*path, key))
        elif isinstance(value, torch.Tensor) and (is_stack or value.is_nested):
            dims = covered_dims(_shapes(td, key, None))
            if dims:
                yield (*path, key), dims


def row_shapes(
    td: CollectionProtocol, path: Path, places: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the shapes of all or some rows of an entry: int64 ``[rows, dims]``.

    Raises:
        KeyError: the entry does not exist, or has no tensors.
        ValueError: rows differ in their numbers of dims.
    """
    td = inside(td)
    columns = getattr(td, "_unmade_columns", None)
    rows: range = getattr(td, "_rows", range(0))
    value = td._sample_entry(path[0]) if path[0] in td.keys() else None  # noqa: SIM118
    if isinstance(value, torch.Tensor) == (len(path) > 1) or value is None:
        raise KeyMessageError(MSG_NO_TENSOR.format(path if len(path) > 1 else path[0]))
    if len(path) > 1:
        return row_shapes(td._get_entry(path[0], None), path[1:], places)
    if columns is not None:
        return columns.row_shapes(path[0], rows, places)
    return _shapes(td, path[0], places)


def _shapes(
    td: CollectionProtocol, key: str, places: torch.Tensor | None
) -> torch.Tensor:
    if isinstance(td, LazyStackedTensorDict):
        members = td.tensordicts
        if places is not None:
            members = [members[at] for at in places.tolist()]
        rows = [member._get_entry(key, None) for member in members]
    else:
        value = td._get_entry(key, None)
        parts = special.rows(value)
        if parts is None:
            count = len(value) if places is None else len(places)
            sizes = torch.tensor(value.shape[1:], dtype=torch.int64)
            return sizes.expand(count, -1)
        rows = parts
        if places is not None:
            rows = [rows[at] for at in places.tolist()]
    shapes = [tuple(row.shape) for row in rows]
    counts = sorted(set(map(len, shapes))) or [0]
    if len(counts) > 1:
        raise ValueError(MSG_DIMS.format(key, counts[0], counts[-1]))
    return torch.tensor(shapes, dtype=torch.int64).view(len(shapes), counts[0])

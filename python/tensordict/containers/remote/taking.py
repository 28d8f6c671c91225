"""Read rows of all entries of a collection at once, or all of them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from tensordict import _rust
from tensordict.containers.dense import TensorDict
from tensordict.containers.lazy.column_stack import ColumnStack
from tensordict.containers.lazy.columns import Columns
from tensordict.containers.lazy.ragged_column import RaggedColumn
from tensordict.containers.lazy.stack import LazyStackedTensorDict
from tensordict.containers.nontensor.cells import EncodedCells
from tensordict.containers.view import _SubTensorDict
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage.remote.reading import read_all
from tensordict.storage.remote.tensor import RemoteTensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict.storage.remote.segments import Segments

    _Rows = np.ndarray[Any, Any]

__all__ = ["RemoteCells", "memory_for", "remote_leaves", "take", "take_into"]


class RemoteCells(EncodedCells):
    """Cells with their bytes in an object. A pickle or copy reads no bytes."""

    is_elsewhere: ClassVar[bool] = True

    def __reduce_ex__(self, protocol: Any) -> Any:
        return RemoteCells, (self.column, self.rows)


def take(template: Any, rows: _Rows | None = None) -> Any:
    """Read rows along the first batch dim; None for all of them.

    All requests of a call are made at once.

    Args:
        template: a collection whose leaves are remote.
        rows: their numbers.

    Returns:
        A collection of the kind of ``template``, in memory.
    """
    plans: list[Segments] = []
    made = _taken(template, rows, plans)
    read_all(plans)
    return made


def memory_for(template: Any) -> Any:
    """Return memory for a row of nested tensordicts of remote tensors; else None."""
    if type(template) is not TensorDict:
        return None
    entries: dict[str, Any] = {}
    for key, value in template._tensordict.items():
        if isinstance(value, RemoteTensor):
            made = torch.empty((1, *value.shape[1:]), dtype=value.dtype)
        else:
            made = memory_for(value)
        if made is None:
            return None
        entries[key] = made
    size = torch.Size([1, *template._batch_size[1:]])
    names = template._td_dim_names
    names = None if names is None else list(names)
    return _rust.new(TensorDict, entries, size, template._device, names)


def take_into(template: Any, rows: _Rows, out: Any) -> None:
    """Read rows into a collection with the keys of the template.

    Args:
        template: nested tensordicts with nothing but remote tensors.
        rows: their numbers, not negative.
        out: contiguous tensors, in the order of the template's.
    """
    pairs = zip(_rust.leaves(template), _rust.leaves(out), strict=True)
    read_all([leaf.plan(rows, place)[1] for leaf, place in pairs])


def _taken(value: Any, rows: _Rows | None, plans: list[Segments]) -> Any:
    if isinstance(value, RemoteTensor):
        out, segments = value.plan_all() if rows is None else value.plan(rows)
        plans.append(segments)
        return out
    if isinstance(value, torch.Tensor):
        return value.clone() if rows is None else value[torch.from_numpy(rows)]
    if not isinstance(value, CollectionProtocol):
        return value
    if value._is_non_tensor:
        return _values(value, rows, plans)
    if isinstance(value, ColumnStack):
        columns = _columns(value._columns, rows, plans)
        return ColumnStack.of_columns(columns)
    if isinstance(value, LazyStackedTensorDict):
        return _stack(value, rows, plans)
    if isinstance(value, _SubTensorDict):
        part = type(value)(_taken(value._source, None, plans), value.idx)
        read_all(plans)
        plans.clear()
        return part if rows is None else part[torch.from_numpy(rows)]
    if not value._is_dense:
        inner = _taken(value._tensordict, rows, plans)
        return type(value)._from_tensordict(inner)  # type: ignore[attr-defined]
    size = value._batch_size
    if rows is not None:
        size = torch.Size([len(rows), *size[1:]])
    entries = {
        key: _taken(item, rows, plans) for key, item in value._tensordict.items()
    }
    names = value._td_dim_names
    names = None if names is None else list(names)
    return _rust.new(type(value), entries, size, value._device, names)


def _values(value: Any, rows: _Rows | None, plans: list[Segments]) -> Any:
    cells = getattr(value, "_cells", None)
    if not isinstance(cells, RemoteCells) or value._layout is not None:
        return value.clone() if rows is None else value[torch.from_numpy(rows)]
    places = np.arange(cells.rows.start, cells.rows.stop, cells.rows.step)
    places = places if rows is None else places[rows]
    column = _ragged(cells.column, places, plans)
    made: Any = EncodedCells(column, range(len(places)))
    return type(value)._of_cells(made, torch.Size([len(places)]), value.device)


def _stack(value: Any, rows: _Rows | None, plans: list[Segments]) -> Any:
    members = value.tensordicts
    if rows is None:
        taken = [_taken(member, None, plans) for member in members]
    elif value.stack_dim == 0:
        known: dict[int, Any] = {}
        for row in rows.tolist():
            if row not in known:
                known[row] = _taken(members[row], None, plans)
        if not known:
            return value[:0]
        taken = [known[row] for row in rows.tolist()]
        seen: set[int] = set()
        for at, row in enumerate(rows.tolist()):
            if row in seen:
                # A row that is asked for twice is two rows, which share their memory.
                taken[at] = taken[at].clone(False)
            seen.add(row)
    else:
        taken = [_taken(member, rows, plans) for member in members]
    return LazyStackedTensorDict._of(taken, value.stack_dim, value._td_dim_name)


def _columns(columns: Columns, rows: _Rows | None, plans: list[Segments]) -> Columns:
    places = np.arange(columns.num_rows) if rows is None else rows
    entries: dict[str, Any] = {}
    for key, column in columns.entries.items():
        if isinstance(column, Columns):
            entries[key] = _columns(column, rows, plans)
        elif isinstance(column, RaggedColumn):
            entries[key] = _ragged(column, places, plans)
        else:
            entries[key] = _taken(column, rows, plans)
    return dataclasses.replace(columns, entries=entries, num_rows=len(places))


def _ragged(column: RaggedColumn, places: _Rows, plans: list[Segments]) -> RaggedColumn:
    table = column.table[torch.from_numpy(places)]
    values: Any = column.values
    if isinstance(values, RemoteTensor):
        starts, stops = column.starts[places], column.starts[places + 1]
        values, segments = values.plan_runs(starts, stops)
        plans.append(segments)
        return RaggedColumn(values, table, column.encoding)
    taken = column.taken(places)  # type: ignore[arg-type]
    return RaggedColumn(taken.values, taken.table, column.encoding)


def remote_leaves(value: Any) -> Iterator[RemoteTensor]:
    """Give the tensors of a collection that are in a store."""
    if isinstance(value, RemoteTensor):
        yield value
    elif isinstance(value, Columns):
        for column in value.entries.values():
            yield from remote_leaves(column)
    elif isinstance(value, RaggedColumn):
        yield from remote_leaves(value.values)
    elif isinstance(value, CollectionProtocol) and value._is_non_tensor:
        cells = getattr(value, "_cells", None)
        if isinstance(cells, RemoteCells):
            yield from remote_leaves(cells.column)
    elif isinstance(value, ColumnStack):
        yield from remote_leaves(value._columns)
    elif isinstance(value, LazyStackedTensorDict):
        for member in value.tensordicts:
            yield from remote_leaves(member)
    elif isinstance(value, _SubTensorDict):
        yield from remote_leaves(value._source)
    elif isinstance(value, CollectionProtocol):
        inner: Any = value if value._is_dense else value._tensordict
        if inner is not value:
            yield from remote_leaves(inner)
            return
        for item in inner._tensordict.values():
            yield from remote_leaves(item)

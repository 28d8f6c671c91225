"""Make a batch of the items of all rows at one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tensordict import NonTensorStack, TensorDict
from tensordict.data.streams.reading import MISSING
from tensordict.data.streams.structure import ARRAY, OTHER, TENSOR, flatten, unflatten

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tensordict._rust import Lanes


@dataclass(frozen=True)
class Columns:
    """The items of several rows, divided into their parts.

    Attributes:
        rows: the numbers of the rows.
        structure: the structure of each item.
        tensors: each tensor of an item, stacked over the rows: ``[N, *F]``.
        others: the other values, by row.
    """

    rows: tuple[int, ...]
    structure: Any
    tensors: list[Tensor]
    others: list[list[Any]]

    def items(self) -> list[Any]:
        """Return the item of each row; its tensors are views."""
        parts = [tensor.unbind(0) for tensor in self.tensors]
        if self.structure == TENSOR:
            return list(parts[0])
        return [
            unflatten(
                self.structure, iter([part[n] for part in parts]), iter(self.others[n])
            )
            for n in range(len(self.rows))
        ]


def fill_rows(items: Sequence[Any], padding_mode: str, fill_value: object) -> list[Any]:
    """Return the items of all rows, with rows without an item padded or left out."""
    if not any(item is MISSING for item in items):
        return list(items)
    if padding_mode in ("none", "pack"):
        return [item for item in items if item is not MISSING]
    example = next(item for item in items if item is not MISSING)
    return [padding(example, fill_value) if item is MISSING else item for item in items]


def padding(like: Any, fill_value: Any) -> Any:
    """Return an item for padding: ``fill_value``, or zeros in the structure of ``like``."""
    is_number = isinstance(fill_value, int | float | complex)
    if fill_value is not None and not is_number:
        return fill_value
    number = 0 if fill_value is None else fill_value
    tensors: list[Tensor] = []
    others: list[Any] = []
    structure = flatten(like, tensors, others)
    return unflatten(
        structure,
        iter([torch.full_like(tensor, number) for tensor in tensors]),
        iter([_other_padding(value, number) for value in others]),
    )


def _other_padding(like: Any, number: Any) -> Any:
    if isinstance(like, bool | int | float | complex):
        return type(like)(number)
    if isinstance(like, Tensor):
        return torch.full_like(like, number)
    if isinstance(like, str | bytes):
        return type(like)()
    return None


def columns_of(items: Sequence[Any], rows: Sequence[int]) -> Columns:
    """Stack the parts of items of equal structure."""
    structure, parts, others = _taken_apart(items)
    columns = []
    for number, tensors in enumerate(parts):
        shapes = {tensor.shape for tensor in tensors}
        if len(shapes) > 1:
            raise ValueError(
                f"The items of one step have tensors of different shapes: "
                f"{sorted(tuple(shape) for shape in shapes)} (tensor {number} of each item). "
                "Pass a collate_fn, or padding_mode='pack' for nested tensors."
            )
        columns.append(torch.stack(tensors))
    return Columns(tuple(rows), structure, columns, others)


def packed_columns(items: Sequence[Any], rows: Sequence[int]) -> Columns:
    """Stack the parts like :func:`columns_of`, as nested tensors if shapes differ."""
    structure, parts, others = _taken_apart(items)
    columns = [
        torch.stack(tensors)
        if len({tensor.shape for tensor in tensors}) == 1
        else torch.nested.nested_tensor(tensors, layout=torch.jagged)
        for tensors in parts
    ]
    return Columns(tuple(rows), structure, columns, others)


def _taken_apart(
    items: Sequence[Any],
) -> tuple[Any, list[tuple[Tensor, ...]], list[list[Any]]]:
    tensors_of_rows: list[list[Tensor]] = []
    others_of_rows: list[list[Any]] = []
    structures = []
    for item in items:
        tensors: list[Tensor] = []
        others: list[Any] = []
        structures.append(flatten(item, tensors, others))
        tensors_of_rows.append(tensors)
        others_of_rows.append(others)
    for structure in structures:
        if structure != structures[0]:
            raise ValueError(
                "The items of one step have different keys or types and cannot be stacked: "
                "pass a collate_fn."
            )
    return structures[0], list(zip(*tensors_of_rows, strict=True)), others_of_rows


def entries_of(columns: Columns) -> Any:
    """Return the columns in the structure of the items: a tensor, or nested tensordicts."""
    others = [list(values) for values in zip(*columns.others, strict=True)]
    batch_size = [len(columns.rows)]
    return _entries(columns.structure, iter(columns.tensors), iter(others), batch_size)


def _entries(
    structure: Any,
    tensors: Iterator[Tensor],
    others: Iterator[list[Any]],
    batch_size: list[int],
) -> Tensor | NonTensorStack | TensorDict:
    if structure in (TENSOR, ARRAY):
        return next(tensors)
    if structure == OTHER:
        return _column_of(next(others))
    kind = structure[0]
    own_batch_size = list(structure[2]) if kind is TensorDict else []
    if kind is dict or kind is TensorDict:
        keys = structure[1]
        parts = structure[3:] if kind is TensorDict else structure[2:]
    else:
        parts = structure[1:]
        keys = [str(number) for number in range(len(parts))]
    values = [_entries(part, tensors, others, batch_size) for part in parts]
    return TensorDict(
        dict(zip(keys, values, strict=True)), batch_size=batch_size + own_batch_size
    )


def _column_of(values: list[Any]) -> Tensor | NonTensorStack:
    if all(isinstance(value, bool | int | float | complex) for value in values):
        return torch.tensor(values)
    if all(isinstance(value, Tensor) for value in values):
        return torch.stack(values)
    return NonTensorStack(*values)


class RowNotes:
    """A source of the entries about rows: ``reset``, ``valid``, ``stream_id``, ``step``."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._changed_at: int | None = None
        self._streams = self._valid = self._starts = torch.empty(0)

    def at(self, step: int) -> dict[str, Tensor]:
        """Return the entries of all rows at a step."""
        changed_at = self._lanes.changed_at(step)
        if changed_at != self._changed_at:
            streams, valid, starts = self._lanes.seats(step)
            self._streams = torch.tensor(streams)
            self._valid = torch.tensor(valid)
            self._starts = torch.tensor(starts)
            self._is_idle = self._streams < 0
            self._has_idle = min(streams) < 0
            self._changed_at = changed_at
        count = step - self._starts
        reset = count == 0
        if self._has_idle:
            count.masked_fill_(self._is_idle, 0)
            reset.masked_fill_(self._is_idle, value=False)
        return {
            "reset": reset,
            "valid": self._valid.clone(),
            "stream_id": self._streams.clone(),
            "step": count,
        }


def collection_of(columns: Columns, notes: dict[str, Tensor]) -> TensorDict:
    """Return one tensordict of the items' entries and the entries about rows."""
    entries = entries_of(columns)
    if len(columns.rows) != len(notes["valid"]):
        row_numbers = torch.tensor(columns.rows)
        notes = {key: note[row_numbers] for key, note in notes.items()}
        notes["row"] = row_numbers
    batch_size = [len(columns.rows)]
    if columns.structure in (TENSOR, ARRAY, OTHER) or (
        columns.structure[0] not in (dict, TensorDict)
    ):
        return TensorDict({"data": entries, **notes}, batch_size=batch_size)
    for key in notes:
        if key in entries.keys():  # noqa: SIM118 - a collection is not a dict
            raise ValueError(
                f"The items have an entry {key!r}, but the batch uses this key itself: "
                "rename the entry, or pass a collate_fn."
            )
    result = TensorDict(dict(entries.items()), batch_size=batch_size)
    return result.update(notes)

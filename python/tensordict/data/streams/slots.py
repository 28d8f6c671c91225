"""Slots of shared memory, through which a worker hands over the items of steps.

A worker has a segment, an unnamed file with one slot for each step that it may be
ahead. A slot contains the tensors of one step's items, and a header: a pickle that
describes the layout. If the items have equal structure, each column is contiguous. If a
step does not fit into a slot, the worker continues in a larger segment.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import pickle
import tempfile
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tensordict.data.streams.batches import Columns
from tensordict.data.streams.reading import MISSING
from tensordict.data.streams.structure import TENSOR, flatten, unflatten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_ALIGNMENT = 64
_FIRST_SIZE = 1 << 12
# The bytes of a segment if the number of slots is not given.
_BUDGET = 16 << 20
# The most bytes of slots that are copied together. Their batches share a storage.
_MAX_ALIKE_BYTES = 32 << 10
MIN_SLOTS = 4
MAX_SLOTS = 64


class Segment:
    """The memory of several slots, in an unnamed file."""

    def __init__(self, descriptor: int, slot_bytes: int, num_slots: int) -> None:
        self.slot_bytes = slot_bytes
        self.num_slots = num_slots
        self.memory: mmap.mmap = mmap.mmap(descriptor, slot_bytes * num_slots)
        self._views: dict[Any, list[Tensor]] = {}
        self._flat_by_dtype: dict[torch.dtype, Tensor] = {}

    def write_bytes(self, slot: int, offset: int, data: bytes) -> None:
        """Write bytes into a slot."""
        start = slot * self.slot_bytes + offset
        self.memory[start : start + len(data)] = data

    def read_bytes(self, slot: int, offset: int, length: int) -> bytes:
        """Return bytes of a slot."""
        start = slot * self.slot_bytes + offset
        return self.memory[start : start + length]

    def tensors(self, slot: int, specs: Sequence[Any]) -> list[Tensor]:
        """Return views of a slot, one for each ``(dtype, shape, offset)``."""
        key = (slot, specs)
        views = self._views.get(key)
        if views is None:
            if len(self._views) > 256:  # the items have ever new shapes
                self._views.clear()
            views = [self._view(slot, *spec) for spec in specs]
            self._views[key] = views
        return views

    def tensors_of_slots(
        self, slot: int, count: int, specs: Sequence[Any]
    ) -> list[Tensor]:
        """Return views of neighbouring slots, stacked along dim 0, one for each spec."""
        stacked = []
        for dtype, shape, offset in specs:
            if 0 in shape:
                stacked.append(torch.empty((count, *shape), dtype=dtype))
                continue
            flat = self._flat_by_dtype.get(dtype)
            if flat is None:
                flat = self._flat_by_dtype[dtype] = torch.frombuffer(
                    self.memory, dtype=dtype
                )
            start, step = slot * self.slot_bytes + offset, self.slot_bytes
            size = dtype.itemsize
            numbers = flat.as_strided(
                (count, math.prod(shape)), (step // size, 1), start // size
            )
            stacked.append(numbers.view(count, *shape))
        return stacked

    def _view(
        self, slot: int, dtype: torch.dtype, shape: tuple[int, ...], offset: int
    ) -> Tensor:
        count = 1
        for size in shape:
            count *= size
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        start = slot * self.slot_bytes + offset
        flat = torch.frombuffer(self.memory, dtype=dtype, count=count, offset=start)
        return flat.view(shape)


def create_file(num_bytes: int) -> int:
    """Return the descriptor of an unnamed file whose disk space is reserved."""
    places = ["/dev/shm", None] if os.path.isdir("/dev/shm") else [None]  # noqa: S108,PTH112
    for place in places:
        with tempfile.TemporaryFile(dir=place) as file:
            try:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, num_bytes)
                else:
                    file.truncate(num_bytes)
            except OSError:
                # Shared memory may be small, as in many containers. Then the disk is
                # used.
                if place is None:
                    raise
                continue
            return os.dup(file.fileno())
    raise AssertionError  # the last place returned or raised


class SlotWriter:
    """A writer of one worker's items into slots.

    Args:
        num_slots: the number of slots of a segment; None for as many as fit a budget.
        announce: a function that is called for each new segment, with a descriptor, the
            size of a slot and the number of slots.
    """

    def __init__(
        self, num_slots: int | None, announce: Callable[[int, int, int], None]
    ) -> None:
        self._fixed = num_slots
        self.num_slots: int = 8 if num_slots is None else num_slots
        self._announce = announce
        self._segment: Segment | None = None
        self._last: Any = None
        # The layout of the last step, if it was one plain tensor for each row.
        self._alike: Any = None

    def write(
        self, step: int, consumed: int, rows: Sequence[int], items: Sequence[Any]
    ) -> int:
        """Write the items of a step; return the size of the header, 0 if it is unchanged.

        The header is at the end of the slot. The slots of steps before ``consumed`` are
        free.
        """
        if self._write_alike(step, items):
            return 0
        present = [
            (row, item)
            for row, item in zip(rows, items, strict=True)
            if item is not MISSING
        ]
        tensors_of_rows: list[list[Tensor]] = []
        others_of_rows: list[list[Any]] = []
        structures = []
        specs_of_rows = []
        for _, item in present:
            tensors: list[Tensor] = []
            others: list[Any] = []
            structures.append(flatten(item, tensors, others))
            tensors_of_rows.append(tensors)
            others_of_rows.append(others)
            specs_of_rows.append(
                [(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]
            )
        is_uniform = all(
            structure == structures[0] and specs == specs_of_rows[0]
            for structure, specs in zip(structures, specs_of_rows, strict=True)
        )
        chosen = tuple(row for row, _ in present)
        if is_uniform and present:
            shapes = [
                (dtype, (len(present), *shape)) for dtype, shape in specs_of_rows[0]
            ]
        else:
            shapes = [spec for specs in specs_of_rows for spec in specs]
        placed, size = _placed(shapes)
        if is_uniform and present:
            head = (True, chosen, structures[0], placed)
        else:
            head = (False, chosen, structures, placed)
        has_others = any(others_of_rows)
        if has_others or head != self._last or self._segment is None:
            header = pickle.dumps((head, others_of_rows), pickle.HIGHEST_PROTOCOL)
        else:
            header = b""
        self._last = None if has_others else head
        is_plain = is_uniform and len(present) == len(rows) and structures[0] == TENSOR
        self._alike = (*specs_of_rows[0][0], placed) if is_plain else None
        segment = self._fitting(size + len(header), step - consumed + 1)
        slot = step % segment.num_slots
        with torch.no_grad():
            views = segment.tensors(slot, placed)
            if is_uniform:
                columns = zip(*tensors_of_rows, strict=True)
                for view, column in zip(views, columns, strict=True):
                    torch.stack(column, out=view)
            else:
                flat = [tensor for tensors in tensors_of_rows for tensor in tensors]
                for view, tensor in zip(views, flat, strict=True):
                    view.copy_(tensor)
        if header:
            segment.write_bytes(slot, segment.slot_bytes - len(header), header)
        return len(header)

    def _write_alike(self, step: int, items: Sequence[Any]) -> bool:
        """Write a step of plain tensors, if it has the layout of the last step."""
        alike, segment = self._alike, self._segment
        if alike is None or segment is None:
            return False
        dtype, shape, placed = alike
        for item in items:
            if (
                type(item) is not Tensor
                or item.dtype is not dtype
                or item.shape != shape
            ):
                return False
        view = segment.tensors(step % segment.num_slots, placed)[0]
        try:
            with torch.no_grad():
                torch.stack(items, out=view)  # type: ignore[arg-type]
        except RuntimeError:
            return False  # sparse, or on another device, which `write` handles
        return True

    def _fitting(self, num_bytes: int, num_outstanding: int) -> Segment:
        segment = self._segment
        if segment is None or segment.slot_bytes < num_bytes:
            size = max(_FIRST_SIZE, num_bytes + num_bytes // 8)
            size = -(-size // _ALIGNMENT) * _ALIGNMENT
            count = self._fixed or min(MAX_SLOTS, max(MIN_SLOTS, _BUDGET // size))
            count = max(count, num_outstanding)
            descriptor = create_file(size * count)
            try:
                segment = Segment(descriptor, size, count)
                self._announce(descriptor, size, count)
            finally:
                os.close(descriptor)
            self._segment = segment
            self.num_slots = count
        return segment


def _placed(shapes: Sequence[Any]) -> tuple[tuple[Any, ...], int]:
    """Return the layout of tensors in a slot, and the number of bytes."""
    offset = 0
    placed = []
    for dtype, shape in shapes:
        placed.append((dtype, shape, offset))
        count = dtype.itemsize
        for size in shape:
            count *= size
        offset += -(-count // _ALIGNMENT) * _ALIGNMENT
    return tuple(placed), offset


class SlotReader:
    """A reader of one worker's slots."""

    def __init__(self) -> None:
        self._segments: dict[int, Segment] = {}
        self._next_segment = 0
        self._last: Any = None

    def add_segment(self, descriptor: int, slot_bytes: int, num_slots: int) -> None:
        """Map a segment that the worker announced, and close the descriptor."""
        try:
            segment = Segment(descriptor, slot_bytes, num_slots)
        finally:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._segments[self._next_segment] = segment
        self._next_segment += 1

    def read(self, step: int, segment_number: int, header_size: int) -> Any:
        """Return a step: :class:`Columns` of views, or rows and copied items."""
        if len(self._segments) > 1:
            for number in [n for n in self._segments if n < segment_number]:
                del self._segments[number]
        segment = self._segments[segment_number]
        slot = step % segment.num_slots
        if header_size:
            start = segment.slot_bytes - header_size
            self._last = pickle.loads(  # noqa: S301 - from our own worker
                segment.read_bytes(slot, start, header_size)
            )
        (is_uniform, rows, structure, placed), others = self._last
        views = segment.tensors(slot, placed)
        if is_uniform and rows:
            return Columns(rows, structure, views, others)
        copies = iter([view.clone() for view in views])
        items = [
            unflatten(row_structure, copies, iter(values))
            for row_structure, values in zip(structure, others, strict=True)
        ]
        return rows, items

    def num_alike(self, step: int, segment_number: int) -> int:
        """Return how many steps may be read together, if their layouts are equal."""
        segment = self._segments.get(segment_number)
        if segment is None or self._last is None:
            return 0
        (is_uniform, rows, _, placed), _ = self._last
        if not (is_uniform and rows and placed):
            return 0
        sizes = [math.prod(shape) * dtype.itemsize for dtype, shape, _ in placed]
        return min(
            _MAX_ALIKE_BYTES // max(1, sum(sizes)),
            segment.num_slots - step % segment.num_slots,
        )

    def read_alike(self, step: int, count: int, segment_number: int) -> Columns:
        """Return several steps with the layout of the last one, stacked along dim 0."""
        segment = self._segments[segment_number]
        (_, rows, structure, placed), _ = self._last
        views = segment.tensors_of_slots(step % segment.num_slots, count, placed)
        return Columns(rows, structure, views, [])


class Lent:
    """The items of a step as views of slots, which workers will overwrite.

    Args:
        parts: the columns of each worker.
    """

    def __init__(self, parts: Sequence[Columns]) -> None:
        self._parts = parts
        self._num_uses = self._count()

    def items(self) -> list[Any]:
        """Return the item of each row."""
        return [item for part in self._parts for item in part.items()]

    def is_held(self) -> bool:
        """Return whether a tensor or an array still views the slots."""
        return self._count() != self._num_uses

    def _count(self) -> list[int]:
        return num_uses(tensor for part in self._parts for tensor in part.tensors)


def num_uses(tensors: Iterable[Tensor]) -> list[int]:
    """Return, for each tensor, how many tensors and arrays use its memory."""
    return [
        torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
        for tensor in tensors
    ]


def side_by_side(parts: Sequence[Any], num_rows: int) -> Lent | None:
    """Return the items of all workers for a step as views, if their layouts are equal."""
    if not _are_alike(parts) or sum(len(part.rows) for part in parts) != num_rows:
        return None
    return Lent(parts)


def _are_alike(parts: Sequence[Any]) -> bool:
    first = parts[0]
    return all(
        isinstance(part, Columns)
        and part.structure == first.structure
        and all(
            a.dtype == b.dtype and a.shape[1:] == b.shape[1:]
            for a, b in zip(part.tensors, first.tensors, strict=True)
        )
        for part in parts
    )


def joined_steps(parts: Sequence[Columns], count: int) -> list[Columns]:
    """Join the items of all workers for several steps of equal layout, as copies."""
    first = parts[0]
    rows = tuple(row for part in parts for row in part.rows)
    columns = [
        torch.cat(column, 1).unbind(0)
        for column in zip(*[part.tensors for part in parts], strict=True)
    ]
    return [
        Columns(rows, first.structure, [column[step] for column in columns], [])
        for step in range(count)
    ]


def joined(parts: Sequence[Any], num_rows: int) -> list[Any] | Columns:
    """Join the items of all workers for one step, as copies."""
    filled = [part for part in parts if isinstance(part, Columns) or part[0]]
    if _are_alike(filled):
        return Columns(
            tuple(row for part in filled for row in part.rows),
            filled[0].structure,
            [
                torch.cat(column)
                for column in zip(*[part.tensors for part in filled], strict=True)
            ],
            [values for part in filled for values in part.others],
        )
    items: list[Any] = [MISSING] * num_rows
    for part in filled:
        if isinstance(part, Columns):
            copied = Columns(
                part.rows,
                part.structure,
                [tensor.clone() for tensor in part.tensors],
                part.others,
            )
            rows, values = part.rows, copied.items()
        else:
            rows, values = part
        for row, item in zip(rows, values, strict=True):
            items[row] = item
    return items

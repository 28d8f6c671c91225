"""Slots of shared memory: how a worker hands over the items of a step.

A worker owns a segment, a file without a name, with one slot for each step that it may be
ahead. A slot has the tensors of the items of one step, those of one column one after the
other where the items are alike, and a header: a pickle that says what lies where. A step that
does not fit makes the worker go on in a larger segment.
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
# The bytes of a segment for which nobody says how many slots it has.
_BUDGET = 16 << 20
# The bytes of the slots that are copied together. Batches of them share a storage.
_MAX_ALIKE_BYTES = 32 << 10
MIN_SLOTS = 4
MAX_SLOTS = 64


class Segment:
    """Memory of several slots, which a file without a name has."""

    def __init__(self, descriptor: int, slot_bytes: int, num_slots: int) -> None:
        self.slot_bytes = slot_bytes
        self.num_slots = num_slots
        self.memory: mmap.mmap = mmap.mmap(descriptor, slot_bytes * num_slots)
        self._views: dict[Any, list[Tensor]] = {}
        self._whole: dict[torch.dtype, Tensor] = {}

    def write_bytes(self, slot: int, offset: int, data: bytes) -> None:
        """Put bytes into a slot."""
        start = slot * self.slot_bytes + offset
        self.memory[start : start + len(data)] = data

    def read_bytes(self, slot: int, offset: int, length: int) -> bytes:
        """Take bytes from a slot."""
        start = slot * self.slot_bytes + offset
        return self.memory[start : start + length]

    def tensors(self, slot: int, specs: Sequence[Any]) -> list[Tensor]:
        """Views of a slot: one for each ``(dtype, shape, offset)``."""
        key = (slot, specs)
        views = self._views.get(key)
        if views is None:
            if len(self._views) > 256:  # items whose shapes change all the time
                self._views.clear()
            views = [self._view(slot, *spec) for spec in specs]
            self._views[key] = views
        return views

    def tensors_of_slots(
        self, slot: int, count: int, specs: Sequence[Any]
    ) -> list[Tensor]:
        """Views of neighbouring slots, which have the dim 0: one for each spec."""
        found = []
        for dtype, shape, offset in specs:
            if 0 in shape:
                found.append(torch.empty((count, *shape), dtype=dtype))
                continue
            whole = self._whole.get(dtype)
            if whole is None:
                whole = self._whole[dtype] = torch.frombuffer(self.memory, dtype=dtype)
            start, step = slot * self.slot_bytes + offset, self.slot_bytes
            size = dtype.itemsize
            numbers = whole.as_strided(
                (count, math.prod(shape)), (step // size, 1), start // size
            )
            found.append(numbers.view(count, *shape))
        return found

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
    """The descriptor of a file without a name that has its space for certain."""
    places = ["/dev/shm", None] if os.path.isdir("/dev/shm") else [None]  # noqa: S108,PTH112
    for place in places:
        with tempfile.TemporaryFile(dir=place) as file:
            try:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, num_bytes)
                else:
                    file.truncate(num_bytes)
            except OSError:
                # A shared memory that is small, as in many containers: use the disk.
                if place is None:
                    raise
                continue
            return os.dup(file.fileno())
    raise AssertionError  # the last place returned or raised


class SlotWriter:
    """Writes the items of one worker into slots.

    Args:
        num_slots: how many slots a segment has, or None for what fits a budget.
        announce: is called with a descriptor, the size of a slot and the number of slots
            when there is a segment.
    """

    def __init__(
        self, num_slots: int | None, announce: Callable[[int, int, int], None]
    ) -> None:
        self._fixed = num_slots
        self.num_slots: int = 8 if num_slots is None else num_slots
        self._announce = announce
        self._segment: Segment | None = None
        self._last: Any = None
        # The last step, if it was a plain tensor of each row.
        self._alike: Any = None

    def write(
        self, step: int, consumed: int, rows: Sequence[int], items: Sequence[Any]
    ) -> int:
        """Write the items of a step, and return the size of the header: 0 as before.

        The header lies at the end of the slot. Slots of steps before ``consumed`` are free.
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
        """Write a step of plain tensors of all rows that is like the last one."""
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
            return False  # sparse, or on another device: the general way knows
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
    """Lay out the tensors in a slot, and count the bytes of all."""
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
    """Reads the slots of one worker."""

    def __init__(self) -> None:
        self._segments: dict[int, Segment] = {}
        self._next_segment = 0
        self._last: Any = None

    def add_segment(self, descriptor: int, slot_bytes: int, num_slots: int) -> None:
        """Take over a segment that the worker announced. The descriptor is closed."""
        try:
            segment = Segment(descriptor, slot_bytes, num_slots)
        finally:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._segments[self._next_segment] = segment
        self._next_segment += 1

    def read(self, step: int, segment_number: int, header_size: int) -> Any:
        """Return a step of a slot: :class:`Columns` of views, or rows and own items."""
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
            unflatten(one, copies, iter(values))
            for one, values in zip(structure, others, strict=True)
        ]
        return rows, items

    def num_alike(self, step: int, segment_number: int) -> int:
        """Count the steps that may be read together, if they are as the last one."""
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
        """Return steps that are as the last one that was read, with the steps as dim 0."""
        segment = self._segments[segment_number]
        (_, rows, structure, placed), _ = self._last
        views = segment.tensors_of_slots(step % segment.num_slots, count, placed)
        return Columns(rows, structure, views, [])


class Lent:
    """The items of a step as views of slots, which are written to again after it.

    Args:
        parts: what each worker has.
    """

    def __init__(self, parts: Sequence[Columns]) -> None:
        self._parts = parts
        self._num_uses = self._count()

    def items(self) -> list[Any]:
        """The item of each row."""
        return [item for part in self._parts for item in part.items()]

    def is_held(self) -> bool:
        """Tell whether somebody still has a view: a tensor or an array."""
        return self._count() != self._num_uses

    def _count(self) -> list[int]:
        return num_uses(tensor for part in self._parts for tensor in part.tensors)


def num_uses(tensors: Iterable[Tensor]) -> list[int]:
    """Count the tensors, and arrays over such, that see the memory of each tensor."""
    return [
        torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
        for tensor in tensors
    ]


def side_by_side(parts: Sequence[Any], num_rows: int) -> Lent | None:
    """Return the items of all workers for a step as they are, if they are alike."""
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
    """Copy the items of all workers for several steps that are alike."""
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
    """Copy the items of all workers for a step."""
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

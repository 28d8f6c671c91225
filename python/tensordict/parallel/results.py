"""The results of chunks, joined to the result of a call.

If all results have the same keys, dtypes and shapes, workers write them straight into one block
of shared memory, and this block is the result of the call. :class:`Layout` holds the place of
each leaf in the block. Other results are sent, and joined by :func:`torch.cat` or
:func:`torch.stack`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from tensordict.parallel.transport import dumps, loads, map_memory
from tensordict.primitives import classes
from tensordict.primitives.checks import is_tensorclass
from tensordict.storage.out_of_band import is_plain
from tensordict.storage.tensors.mapped import MemoryMappedTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict.parallel.chunks import ChunkPlan
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["Layout", "Target", "Written", "join", "values", "write_out"]

_ALIGNMENT = 64


class _Leaf(NamedTuple):
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int


class Layout(NamedTuple):
    """The structure of results, and the places of their leaves in the shared block."""

    signature: Any
    leaves: list[_Leaf]
    start: int
    size: int
    files: list[str] | None = None
    """The files of the leaves, if the leaves are in files instead of the block."""

    @classmethod
    def of(
        cls, result: CollectionProtocol, plan: ChunkPlan, chunk: int
    ) -> Layout | None:
        """Return the layout for results like this one, ``None`` if they must be sent."""
        flat = flatten(result, plan, chunk)
        if flat is None:
            return None
        signature, tensors = flat
        leaves = []
        size = 0
        for tensor in tensors:
            shape = list(tensor.shape)
            if plan.drops_dim:
                shape.insert(plan.dim, plan.num_rows)
            else:
                shape[plan.dim] = plan.num_rows
            leaves.append(_Leaf(tensor.dtype, tuple(shape), size))
            size += tensor.element_size() * _product(shape)
            size = -(-size // _ALIGNMENT) * _ALIGNMENT
        return cls(signature, leaves, 0, size)

    def publish(self, fd: int) -> tuple[Layout, int]:
        """Write the layout to the file of the block, and make room for the leaves.

        Returns:
            tuple: the layout, and the number of bytes that it takes at the start of the file.
        """
        # The pickled layout holds the start of the leaves, which follow it in the file.
        start = -(-(len(dumps(self)) + 64) // 4096) * 4096
        layout = self._replace(start=start)
        content = dumps(layout)
        os.ftruncate(fd, start + (0 if self.files else self.size))
        os.pwrite(fd, content, 0)
        return layout, len(content)


def flatten(
    result: CollectionProtocol, plan: ChunkPlan, chunk: int
) -> tuple[Any, list[torch.Tensor]] | None:
    """Return the structure of a result, without its number of rows, and its tensors.

    Returns:
        ``None`` if the result is not a dense tensordict or tensorclass of plain tensors, or if
        its number of rows differs from its chunk's.
    """
    tensors: list[torch.Tensor] = []
    signature = _flatten(result, plan, tensors)
    if signature is None or not tensors:
        return None
    if not plan.drops_dim:
        start, stop = plan.rows(chunk)
        batch_size = result.batch_size
        if len(batch_size) <= plan.dim or batch_size[plan.dim] != stop - start:
            return None
    return signature, tensors


def _flatten(
    result: Any, plan: ChunkPlan, tensors: list[torch.Tensor]
) -> tuple[Any, Any] | tuple[Any, Any, Any, Any] | None:
    if is_tensorclass(type(result)) and not result._non_tensordict:
        inner = _flatten(result._tensordict, plan, tensors)
        return None if inner is None else (type(result), inner)
    if type(result) is not classes.TensorDict:
        return None
    state = result.__dict__
    at, drops = plan.dim, plan.drops_dim
    batch = list(result._batch_size)
    if not drops:
        if len(batch) <= at:
            return None
        batch[at] = -1
    elif len(batch) < at:
        return None
    entries: list[Any] = []
    for key, value in list(state["_tensordict"].items()):
        if isinstance(value, torch.Tensor):
            is_mapped = type(value) is MemoryMappedTensor
            if not is_mapped and (
                type(value) is not torch.Tensor or not is_plain(value)
            ):
                return None
            shape = list(value.shape)
            if not drops:
                shape[at] = -1
            entries.append((key, value.dtype, shape))
            tensors.append(value)
        else:
            nested = _flatten(value, plan, tensors)
            if nested is None:
                return None
            entries.append((key, nested))
    return batch, state["_device"], state["_td_dim_names"], entries


class Target:
    """The shared block, as the leaves of the result of the whole call."""

    def __init__(self, layout: Layout, fd: int, plan: ChunkPlan) -> None:
        self._layout = layout
        self._plan = plan
        memory = map_memory(fd)
        self.leaves: list[torch.Tensor] = []
        files: Sequence[str | None] = layout.files or [None] * len(layout.leaves)
        for leaf, file in zip(layout.leaves, files, strict=True):
            count = _product(leaf.shape)
            if count == 0:
                tensor = torch.empty(leaf.shape, dtype=leaf.dtype)
            elif file is not None:
                tensor = torch.from_file(
                    file, shared=True, size=count, dtype=leaf.dtype
                ).view(leaf.shape)
            else:
                tensor = torch.frombuffer(
                    memory,
                    dtype=leaf.dtype,
                    count=count,
                    offset=layout.start + leaf.offset,
                ).view(leaf.shape)
            self.leaves.append(tensor)
        self._rows: _Rows | None = None
        if plan.drops_dim:
            self._rows = _Rows.of(layout.signature, iter(self.leaves), plan.dim)

    @classmethod
    def read(cls, fd: int, length: int, plan: ChunkPlan) -> Target:
        """Open the block, whose first ``length`` bytes are the layout."""
        return cls(loads(os.pread(fd, length, 0)), fd, plan)

    def write(self, result: CollectionProtocol, chunk: int) -> bool:
        """Write the result of a chunk to its rows; return whether it fits."""
        if self._rows is not None and self._rows.write(result, chunk):
            return True
        flat = flatten(result, self._plan, chunk)
        if flat is None or flat[0] != self._layout.signature:
            return False
        dim = self._plan.dim
        start, stop = self._plan.rows(chunk)
        for leaf, tensor in zip(self.leaves, flat[1], strict=True):
            if self._plan.drops_dim:
                leaf.select(dim, start).copy_(tensor)
            else:
                leaf.narrow(dim, start, stop - start).copy_(tensor)
        return True

    def full_result(self) -> Any:
        """Return the result of all chunks, over the memory of the block."""
        return self._of_leaves(self.leaves, self._plan.num_rows)

    def result_of(self, chunk: int) -> Any:
        """Return the result of one chunk, over the memory of the block."""
        dim = self._plan.dim
        start, stop = self._plan.rows(chunk)
        if self._plan.drops_dim:
            rows = [leaf.select(dim, start) for leaf in self.leaves]
            return self._of_leaves(rows, None)
        views = [leaf.narrow(dim, start, stop - start) for leaf in self.leaves]
        return self._of_leaves(views, stop - start)

    def _of_leaves(self, leaves: list[torch.Tensor], rows: int | None) -> Any:
        return self._build(self._layout.signature, iter(leaves), rows)

    def _build(self, signature: Any, leaves: Any, rows: int | None) -> Any:
        if len(signature) == 2:
            cls, inner = signature
            return cls._from_tensordict(self._build(inner, leaves, rows))
        batch, device, names, entries = signature
        batch = list(batch)
        names = list(names) if names else None
        at = self._plan.dim
        if not self._plan.drops_dim:
            batch[at] = rows
        elif rows is not None:
            batch.insert(at, rows)
            if names:
                names.insert(at, None)
        source = {
            entry[0]: next(leaves)
            if len(entry) == 3
            else self._build(entry[1], leaves, rows)
            for entry in entries
        }
        return classes.TensorDict(source, batch_size=batch, device=device, names=names)


class _Rows:
    """The block as NumPy arrays of rows. NumPy assigns a row in a fifth of torch's time.

    Args:
        signature: the structure of a result.
        entries: for each entry its key, the NumPy array of its rows, and the dtype and shape of
            one row. For a nested tensordict: its key, its :class:`_Rows`, and twice ``None``.
    """

    __slots__ = ("_batch_size", "_device", "_entries", "_names")

    def __init__(self, signature: Any, entries: list[Any]) -> None:
        self._batch_size = torch.Size(signature[0])
        self._device, self._names = signature[1:3]
        self._entries = entries

    @classmethod
    def of(cls, signature: Any, leaves: Any, at: int) -> _Rows | None:
        """Return the arrays of a layout, ``None`` if torch has to write the rows."""
        if len(signature) == 2:
            # The general way, `Target.write`, checks the fields of a tensorclass.
            return None
        entries: list[Any] = []
        for entry in signature[3]:
            if len(entry) == 2:
                nested = cls.of(entry[1], leaves, at)
                if nested is None:
                    return None
                entries.append((entry[0], nested, None, None))
                continue
            leaf = next(leaves)
            try:
                rows = np.moveaxis(leaf.numpy(), at, 0)
            except TypeError:  # NumPy lacks the dtype
                return None
            entries.append((entry[0], rows, entry[1], torch.Size(entry[2])))
        return cls(signature, entries)

    def write(self, result: object, row: int) -> bool:
        """Write a result to its row; return whether its structure is the expected one."""
        if type(result) is not classes.TensorDict:
            return False
        state = result.__dict__
        entries = state["_tensordict"]
        if (
            state["_batch_size"] != self._batch_size
            or state["_device"] != self._device
            or state["_td_dim_names"] != self._names
            or len(entries) != len(self._entries)
        ):
            return False
        try:
            for (wanted, rows, dtype, shape), (key, value) in zip(
                self._entries, entries.items(), strict=True
            ):
                if key != wanted:
                    return False
                if dtype is None:
                    if not rows.write(value, row):
                        return False
                elif (
                    type(value) is torch.Tensor
                    and value.dtype is dtype
                    and value.shape == shape
                ):
                    rows[row] = value.numpy()
                else:
                    return False
        except (RuntimeError, TypeError):
            # NumPy cannot read this tensor: it is on another device, for example.
            return False
        return True


class Written(NamedTuple):
    """A reference to a result in the shared block."""

    target: Target
    chunk: int

    def value(self) -> Any:
        """Return the result, over the memory of the block."""
        return self.target.result_of(self.chunk)


def values(results: list[Any]) -> list[Any]:
    """Return the results, with references to the shared block resolved."""
    return [r.value() if type(r) is Written else r for r in results]


def join(results: list[Any], plan: ChunkPlan) -> Any:
    """Join the results of the chunks to one result, ``None`` if no chunk has a result."""
    if results and all(type(result) is Written for result in results):
        return results[0].target.full_result()
    results = values(results)
    results = [result for result in results if result is not None]
    if not results:
        return None
    if not plan.drops_dim:
        return torch.cat(results, plan.dim)
    return classes.LazyStackedTensorDict.maybe_dense_stack(results, plan.dim)


def write_out(out: Any, results: list[Any], plan: ChunkPlan) -> None:
    """Write the results of the chunks, in their order, to the rows of ``out``.

    A result takes as many rows as it has. A chunk without a result leaves its rows unchanged.
    """
    row = 0
    for chunk, result in enumerate(values(results)):
        start, stop = plan.rows(chunk)
        count = stop - start
        if result is not None:
            if plan.drops_dim:
                update = result.unsqueeze(plan.dim)
            else:
                update = result
                count = result.shape[plan.dim]
            plan.place(out, row, row + count).update_(update)
        row += count


def _product(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count

"""The bytes of an entry at an index of the batch dims."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict.containers.store.encoding import bytes_of, tensor_of_bytes

if TYPE_CHECKING:
    from tensordict.containers.store.encoding import Meta

__all__ = ["Rows"]

_WASTE = 4
"""The most bytes that one larger piece may read, as a multiple of the bytes needed."""


class Rows:
    """The rows that an index selects from the batch dims, in the order of the result.

    A row is the part of an entry at one position of the batch dims. The bytes of a row
    are contiguous on the server.

    Args:
        batch_size: the batch size ``[*B]`` that is indexed.
        index: the index.

    Attributes:
        shape: the batch size of the result.
        numbers: the row numbers, flat.
        runs: runs of consecutive rows: pairs of first row and count.

    Raises:
        IndexError: the index exceeds the batch dims, or is out of range.
    """

    def __init__(self, batch_size: torch.Size, index: Any) -> None:
        all_numbers = torch.arange(batch_size.numel()).reshape(batch_size)
        chosen = all_numbers[index]
        self.shape: torch.Size = chosen.shape
        self.numbers: torch.Tensor = chosen.reshape(-1)
        self.count: int = self.numbers.numel()
        self.runs: list[tuple[int, int]] = _runs(self.numbers)

    def pieces(self, row_bytes: int) -> list[tuple[int, int]]:
        """Return the pieces of an entry to read: pairs of first byte and byte count.

        One larger piece is read if it is not much larger than the rows.
        """
        if not self.count or not row_bytes:
            return []
        first, last = self._bounds()
        if len(self.runs) > 1 and last + 1 - first <= _WASTE * self.count:
            return [(first * row_bytes, (last + 1 - first) * row_bytes)]
        return [(start * row_bytes, count * row_bytes) for start, count in self.runs]

    def _bounds(self) -> tuple[int, int]:
        return int(self.numbers.min()), int(self.numbers.max())

    def read(
        self, path: str, data: bytes | None, meta: Meta, ndim: int, device: Any
    ) -> torch.Tensor:
        """Make the tensor ``[*rows, *F]`` from the bytes of :meth:`pieces`."""
        shape: Any = meta.shape
        dtype: Any = meta.dtype
        features = shape[ndim:]
        row_bytes = torch.Size(features).numel() * dtype.itemsize
        first = self._bounds()[0] if self.count else 0
        pieces = self.pieces(row_bytes)
        is_wider = len(pieces) == 1 and len(self.runs) > 1
        rows_read = sum(count for _, count in pieces) // row_bytes if row_bytes else 0
        count = rows_read if is_wider else self.count
        tensor = tensor_of_bytes(path, data or b"", [count, *features], dtype, None)
        if is_wider:
            tensor = tensor[self.numbers - first]
        tensor = tensor.reshape([*self.shape, *features])
        return tensor if device is None else tensor.to(device)

    def written(
        self, path: str, value: torch.Tensor, meta: Meta, ndim: int
    ) -> list[tuple[str, int, Any]]:
        """Return the pieces of a tensor ``[*rows, *F]``: path, first byte, bytes."""
        shape: Any = meta.shape
        dtype: Any = meta.dtype
        data = bytes_of(value.to(dtype))
        row_bytes = torch.Size(shape[ndim:]).numel() * dtype.itemsize
        if not row_bytes:
            return []
        pieces = []
        done = 0
        for first, count in self.runs:
            end = done + count * row_bytes
            pieces.append((path, first * row_bytes, data[done:end]))
            done = end
        return pieces


def _runs(numbers: torch.Tensor) -> list[tuple[int, int]]:
    if not numbers.numel():
        return []
    breaks = (numbers[1:] - numbers[:-1] != 1).nonzero().flatten() + 1
    ends = [0, *breaks.tolist(), numbers.numel()]
    firsts = numbers[torch.tensor(ends[:-1])].tolist()
    return [
        (first, end - start)
        for first, start, end in zip(firsts, ends[:-1], ends[1:], strict=True)
    ]

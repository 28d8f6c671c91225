"""Values of tensors of other devices, copied while others are written.

A save does not bring such tensors to the CPU before it writes them, which would take the
memory of all of them at once. It reads each one piece by piece as it writes: a piece is
on its way while the piece before is written, and the first one of the next tensor while
the last ones of this tensor are. So a thread that writes has at most three pieces in
memory, four where the next file is one of another directory.

From CUDA pieces come through pinned memory, on a stream of their own; from other devices,
and of tensors that are of a class of their own, a thread copies them. Those are one piece.
"""

from __future__ import annotations

import math
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from tensordict import _rust

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["DeviceReader", "PieceReader", "Pieced", "is_elsewhere", "settle"]

PIECE_BYTES = 4 << 20
"""The number of bytes that are copied at once: enough for the speed of the bus."""


def is_elsewhere(tensor: torch.Tensor) -> bool:
    """Return whether the values are those of another device than the CPU."""
    is_fake = isinstance(tensor, FakeTensor)
    return tensor.device.type not in ("cpu", "meta") and not is_fake


def settle(td: CollectionProtocol) -> None:
    """Wait until what was begun with the leaves is done: before another thread saves them.

    Work that was given to a stream of CUDA is done in the order of that stream, and the
    other thread has another one.
    """
    if not torch.cuda.is_available():
        return
    for device in {leaf.device for leaf in _rust.leaves(td)}:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()


class DeviceReader:
    """The bytes of a tensor of another device, or of a stack of such tensors.

    Args:
        tensors: the tensor; or those of a stack, of one shape, dtype and device.
        dim: along which dim they are stacked. Of one tensor it says nothing.
    """

    def __init__(self, tensors: list[torch.Tensor], dim: int = 0) -> None:
        self._tensors = [tensor.detach() for tensor in tensors]
        self._dim = dim
        self.num_bytes: int = sum(
            tensor.numel() * tensor.element_size() for tensor in self._tensors
        )
        self._stream: Any = None
        self._lock = threading.Lock()
        self._begun: _Pieces | None = None
        self._is_read = False
        device = tensors[0].device
        if device.type == "cuda" and torch.cuda.is_available() and self._is_plain():
            # Work begun on these values comes before the copy.
            self._stream = torch.cuda.Stream(device)
            self._stream.wait_stream(torch.cuda.current_stream(device))

    def _is_plain(self) -> bool:
        return all(type(tensor) is torch.Tensor for tensor in self._tensors)

    def begin(self) -> None:
        """Begin to copy, unless that is done already."""
        with self._lock:
            if self._begun is None and not self._is_read:
                self._begun = self._opened()

    def pieces(self) -> _Pieces:
        """The bytes from the first on."""
        with self._lock:
            begun, self._begun = self._begun, None
            self._is_read = True
        return begun or self._opened()

    def _opened(self) -> _Pieces:
        if self._stream is not None:
            return _Pieces(self._parts(), self._copied_by_stream)
        return _Pieces(self._parts(), lambda part, _: _ThreadCopy(part))

    def _parts(self) -> Iterator[torch.Tensor]:
        if not self._is_plain():
            # Such a tensor may not know every view.
            yield from self._tensors if self._dim == 0 else [self._stacked()]
            return
        yield from stacked_parts(self._tensors, self._dim)

    def _stacked(self) -> torch.Tensor:
        return torch.stack(self._tensors, self._dim)

    def _copied_by_stream(
        self, part: torch.Tensor, buffer: torch.Tensor | None
    ) -> _Copy:
        with torch.cuda.stream(self._stream):
            # Here and not in the copy, which would do it on the CPU without waiting.
            values = _bytes_of(part)
            if buffer is None or buffer.numel() < values.numel():
                buffer = torch.empty(
                    values.numel(), dtype=torch.uint8, device="cpu", pin_memory=True
                )
            buffer[: values.numel()].copy_(values, non_blocking=True)
            event = self._stream.record_event()
        return _Copy(buffer, values.numel(), event.synchronize)


class Pieced:
    """A tensor whose values are read piece by piece, each when it is written.

    Args:
        like: a tensor of its dtype and shape.
        pieces: reads its values in order, in tensors on the CPU.
    """

    def __init__(
        self, like: torch.Tensor, pieces: Callable[[], Iterator[torch.Tensor]]
    ) -> None:
        self.dtype: torch.dtype = like.dtype
        self.shape: torch.Size = like.shape
        self.pieces = pieces

    def numel(self) -> int:
        """Return the number of items."""
        return self.shape.numel()

    def element_size(self) -> int:
        """Return the bytes of an item."""
        return self.dtype.itemsize


class PieceReader(DeviceReader):
    """The bytes of a :class:`Pieced`."""

    def __init__(self, leaf: Pieced) -> None:
        super().__init__([torch.empty(leaf.shape, dtype=leaf.dtype, device="meta")])
        self._leaf = leaf

    def _opened(self) -> _Pieces:
        return _Pieces(self._leaf.pieces(), lambda part, _: _Ready(part))


class _Ready:
    """A piece that is there.

    Args:
        part: the tensor.
    """

    buffer = None

    def __init__(self, part: torch.Tensor) -> None:
        self._part = part

    def done(self) -> torch.Tensor:
        """The bytes."""
        return _bytes_of(self._part)


class _Copy:
    """A piece on its way to the CPU.

    Args:
        buffer: where it goes to.
        length: how many bytes it has.
        wait: returns when they are there.
    """

    def __init__(
        self, buffer: torch.Tensor, length: int, wait: Callable[[], None]
    ) -> None:
        self.buffer = buffer
        self._length = length
        self._wait = wait

    def done(self) -> torch.Tensor:
        """The bytes, once they are there."""
        self._wait()
        return self.buffer[: self._length]


class _ThreadCopy:
    """A piece that a thread copies.

    Args:
        part: the tensor.
    """

    buffer = None

    def __init__(self, part: torch.Tensor) -> None:
        self._future: Future[torch.Tensor] = Future()
        work = part, self._future
        try:
            threading.Thread(target=_copy, args=work, name="tensordict-copy").start()
        except RuntimeError:
            # There are no more threads to be had, or the interpreter is about to end.
            _copy(*work)

    def done(self) -> torch.Tensor:
        """The bytes, once they are there."""
        return self._future.result()


def _copied_bytes(part: torch.Tensor) -> torch.Tensor:
    found = part.cpu()
    if type(found) is not torch.Tensor:
        found = found.resolve_conj().resolve_neg().contiguous()
        found = found.as_subclass(torch.Tensor)
    return _bytes_of(found)


def _copy(part: torch.Tensor, future: Future[torch.Tensor]) -> None:
    try:
        # Only the future keeps the copy: a thread that ends late keeps no memory.
        future.set_result(_copied_bytes(part))
    except BaseException as error:  # noqa: BLE001 (it is raised where it is waited for)
        future.set_exception(error)


class _Pieces:
    """Pieces one after the other: while one is used, the next one is copied.

    Args:
        parts: the tensors to copy.
        copied: begins to copy one, into memory that is free if it is given some.
    """

    def __init__(
        self,
        parts: Iterator[torch.Tensor],
        copied: Callable[[torch.Tensor, torch.Tensor | None], Any],
    ) -> None:
        self._parts = parts
        self._copied = copied
        self._free: torch.Tensor | None = None
        self._coming = self._next()

    def _next(self) -> Any:
        part = next(self._parts, None)
        return None if part is None else self._copied(part, self._free)

    def next_piece(self) -> torch.Tensor | None:
        """The next bytes, or None; those of the piece before may be gone then."""
        copy = self._coming
        if copy is None:
            return None
        self._coming = self._next()
        self._free = copy.buffer
        return copy.done()


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of the values, flat; on the device of the tensor."""
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8)


def stacked_parts(tensors: list[torch.Tensor], dim: int) -> Iterator[torch.Tensor]:
    """A stack in parts of at most ``PIECE_BYTES``, row by row."""
    if dim == 0 or len(tensors) == 1:
        for tensor in tensors:
            yield from _parts_of(tensor)
        return
    num_rows = len(tensors[0])
    row_bytes = sum(map(_num_bytes, tensors)) // num_rows if num_rows else 0
    if row_bytes > PIECE_BYTES:
        for row in range(num_rows):
            yield from stacked_parts([tensor[row] for tensor in tensors], dim - 1)
        return
    for rows in _steps(num_rows, row_bytes):
        yield torch.stack([tensor[rows] for tensor in tensors], dim)


def _parts_of(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """A tensor in parts of at most ``PIECE_BYTES``, row by row."""
    if tensor.is_contiguous():
        tensor = tensor.reshape(-1)
    if _num_bytes(tensor) <= PIECE_BYTES:
        yield tensor
        return
    num_rows = len(tensor)
    row_bytes = math.ceil(_num_bytes(tensor) / num_rows)
    if row_bytes > PIECE_BYTES:
        for row in tensor.unbind():
            yield from _parts_of(row)
        return
    for rows in _steps(num_rows, row_bytes):
        yield tensor[rows]


def _steps(count: int, row_bytes: int) -> Iterator[slice]:
    step = max(1, PIECE_BYTES // max(1, row_bytes))
    for start in range(0, count, step):
        yield slice(start, start + step)


def _num_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()

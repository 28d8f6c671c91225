"""Values of tensors on other devices, copied to the CPU while others are written.

Copying all tensors to the CPU before a save would need memory for all of them. Instead, a save reads
each tensor piece by piece. A piece is copied while the piece before is written, and the first piece
of the next tensor while the last pieces of this tensor are written. So a writing thread holds at
most three pieces in memory, or four if the next file is in another directory.

Pieces from CUDA go through pinned memory, on a separate stream. For other devices, and for
subclasses of ``Tensor``, a thread copies the whole tensor as one piece.
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
"""The bytes of a piece: large enough for the full speed of the bus."""


def is_elsewhere(tensor: torch.Tensor) -> bool:
    """Return whether the values of a tensor are on another device than the CPU."""
    is_fake = isinstance(tensor, FakeTensor)
    return tensor.device.type not in ("cpu", "meta") and not is_fake


def settle(td: CollectionProtocol) -> None:
    """Wait for the CUDA work on the leaves, before another thread saves them.

    Work on a CUDA stream runs in the order of this stream, but the other thread uses another
    stream.
    """
    if not torch.cuda.is_available():
        return
    for device in {leaf.device for leaf in _rust.leaves(td)}:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()


class DeviceReader:
    """A reader of the bytes of a tensor on another device, or of a stack of such tensors.

    Args:
        tensors: the tensor; or the tensors of a stack, of one shape, dtype and device.
        dim: the stack dimension. It is ignored for a single tensor.
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
            # The copy waits for earlier work on these values.
            self._stream = torch.cuda.Stream(device)
            self._stream.wait_stream(torch.cuda.current_stream(device))

    def _is_plain(self) -> bool:
        return all(type(tensor) is torch.Tensor for tensor in self._tensors)

    def begin(self) -> None:
        """Begin to copy, unless the copy has begun already."""
        with self._lock:
            if self._begun is None and not self._is_read:
                self._begun = self._opened()

    def pieces(self) -> _Pieces:
        """Return the pieces from the first byte on."""
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
            # A subclass of Tensor may not support every view.
            yield from self._tensors if self._dim == 0 else [self._stacked()]
            return
        yield from stacked_parts(self._tensors, self._dim)

    def _stacked(self) -> torch.Tensor:
        return torch.stack(self._tensors, self._dim)

    def _copied_by_stream(
        self, part: torch.Tensor, buffer: torch.Tensor | None
    ) -> _Copy:
        with torch.cuda.stream(self._stream):
            # Resolve and flatten on the device: `copy_` would do it on the CPU, and too early.
            values = _bytes_of(part)
            if buffer is None or buffer.numel() < values.numel():
                buffer = torch.empty(
                    values.numel(), dtype=torch.uint8, device="cpu", pin_memory=True
                )
            buffer[: values.numel()].copy_(values, non_blocking=True)
            event = self._stream.record_event()
        return _Copy(buffer, values.numel(), event.synchronize)


class Pieced:
    """A tensor whose values are read piece by piece while they are written.

    Args:
        like: a tensor of the same dtype and shape.
        pieces: a function that yields the values in order, as CPU tensors.
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
    """A reader of the bytes of a :class:`Pieced`."""

    def __init__(self, leaf: Pieced) -> None:
        super().__init__([torch.empty(leaf.shape, dtype=leaf.dtype, device="meta")])
        self._leaf = leaf

    def _opened(self) -> _Pieces:
        return _Pieces(self._leaf.pieces(), lambda part, _: _Ready(part))


class _Ready:
    """A piece that is on the CPU already.

    Args:
        part: the tensor.
    """

    buffer = None

    def __init__(self, part: torch.Tensor) -> None:
        self._part = part

    def done(self) -> torch.Tensor:
        """Return the bytes."""
        return _bytes_of(self._part)


class _Copy:
    """A piece that a CUDA stream copies to the CPU.

    Args:
        buffer: the target of the copy.
        length: the number of bytes.
        wait: a function that returns when the copy is done.
    """

    def __init__(
        self, buffer: torch.Tensor, length: int, wait: Callable[[], None]
    ) -> None:
        self.buffer = buffer
        self._length = length
        self._wait = wait

    def done(self) -> torch.Tensor:
        """Wait for the copy, and return the bytes."""
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
            # The system has no more threads, or the interpreter is ending.
            _copy(*work)

    def done(self) -> torch.Tensor:
        """Wait for the copy, and return the bytes."""
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
    except BaseException as error:  # noqa: BLE001 (`done` raises it)
        future.set_exception(error)


class _Pieces:
    """The pieces of a tensor: while one is used, the next is copied.

    Args:
        parts: the tensors to copy.
        copied: a function that begins to copy a tensor, into a free buffer if it gets one.
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
        """Return the next bytes, or None. The piece before may be overwritten then."""
        copy = self._coming
        if copy is None:
            return None
        self._coming = self._next()
        self._free = copy.buffer
        return copy.done()


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of the values as a flat tensor on the same device."""
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8)


def stacked_parts(tensors: list[torch.Tensor], dim: int) -> Iterator[torch.Tensor]:
    """Yield a stack in parts of at most ``PIECE_BYTES``, in row-major order."""
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
    """Yield a tensor in parts of at most ``PIECE_BYTES``, in row-major order."""
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

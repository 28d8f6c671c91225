"""The dataset of a stream loader: the streams, and their assignment to rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tensordict import _rust
from tensordict.data.streams.batches import fill_rows
from tensordict.data.streams.serial import read_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

PaddingMode = Literal["zeros", "data", "none", "pack"]


class _Shuffles(int):
    """The ``shuffle`` flag of a dataset; a call shuffles the dataset's list of streams."""

    _dataset: StreamDataset

    def __call__(self) -> None:
        numbers = torch.randperm(len(self._dataset.stream_list)).tolist()
        self._dataset.rearrange(numbers)

    def __repr__(self) -> str:
        return repr(bool(self))


class StreamDataset(IterableDataset[Any]):
    """A dataset of streams that are read side by side, one in each row of the batch.

    A row reads its stream to the end, then takes the next stream of the list. The
    assignment of streams to rows depends only on the order and the lengths of the
    streams, not on the number or the speed of workers.

    Pass the dataset to a :class:`StreamDataLoader`. Iterated directly, or by a plain
    ``DataLoader`` with ``batch_size=None``, it yields ``(items, worker_id)``: each
    worker then reads its own rows and its own streams.

    Args:
        stream_list: the arguments of ``streamer``, one for each stream, such as paths.
        streamer: a function that opens one stream and returns an iterable. If the
            iterable has a method ``skip(count)``, a resume calls it instead of reading.
        batch_size: the number of rows, over all workers.
        padding_mode: the content of a row when no streams are left. ``"zeros"``: zeros
            in the shape of the other items. ``"data"``: a stream of the list again,
            marked as not valid. ``"none"``: the row is left out. ``"pack"``: the row is
            left out, and items of different lengths become nested tensors.
        fill_value: the padding instead of zeros: a number, or a whole item.
        lengths: the number of items of each stream, if known. The loader then has a
            length, and plans more steps ahead.
        shuffle: whether each epoch has a new order of streams. ``dataset.shuffle()``
            shuffles the list itself, once, with torch's generator.
        seed: the seed of the orders.
        rank: the part of the streams that this process reads.
        world_size: the number of parts.
        on_error: the reaction to an exception in a stream: ``"raise"`` it, or
            ``"skip"`` the rest of the stream with a warning.

    Raises:
        ValueError: an argument has a wrong value, or ``lengths`` has another number of
            entries than ``stream_list``.

    Examples:
        >>> dataset = StreamDataset(["abc", "de"], iter, batch_size=2)
        >>> for items, worker_id in dataset:
        ...     print(items)
        ('a', 'd')
        ('b', 'e')
        ('c', '')
    """

    def __init__(
        self,
        stream_list: Sequence[Any],
        streamer: Callable[[Any], Iterable[Any]],
        batch_size: int,
        padding_mode: PaddingMode = "zeros",
        fill_value: object = None,
        *,
        lengths: Sequence[int] | None = None,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
        if padding_mode not in ("zeros", "data", "none", "pack"):
            raise ValueError(
                f"padding_mode must be 'zeros', 'data', 'none' or 'pack', got {padding_mode!r}."
            )
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error must be 'raise' or 'skip', got {on_error!r}.")
        if not 0 <= rank < world_size:
            raise ValueError(
                f"rank must be from 0 to world_size - 1, got rank={rank} of world_size={world_size}."
            )
        self.stream_list: list[Any] = list(stream_list)
        self.streamer = streamer
        self.batch_size = batch_size
        self.padding_mode = padding_mode
        self.fill_value = fill_value
        self.lengths: list[int] | None = (
            None if lengths is None else [int(size) for size in lengths]
        )
        self._shuffle = bool(shuffle)
        self._numbers: list[int] | None = None
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.on_error = on_error
        self.epoch: int = 0
        if self.lengths is not None:
            if len(self.lengths) != len(self.stream_list):
                raise ValueError(
                    f"lengths= has {len(self.lengths)} numbers for "
                    f"{len(self.stream_list)} streams."
                )
            if any(size < 0 for size in self.lengths):
                raise ValueError("lengths= must not contain negative numbers.")

    @property
    def shuffle(self) -> _Shuffles:
        """Whether each epoch has a new order; as a call, shuffle the list of streams.

        Iterations that have begun keep their list. The state of a loader contains the
        order of the list.
        """
        flag = _Shuffles(self._shuffle)
        flag._dataset = self
        return flag

    @shuffle.setter
    def shuffle(self, shuffle: bool) -> None:
        self._shuffle = bool(shuffle)

    @property
    def arrangement(self) -> list[int] | None:
        """The original numbers of the streams, in the present order; or None."""
        return self._numbers

    def rearrange(self, numbers: Sequence[int]) -> None:
        """Reorder the list of streams, with their lengths.

        Args:
            numbers: the present numbers of the streams, in the new order.
        """
        numbers_before = self._numbers or range(len(self.stream_list))
        self._numbers = [numbers_before[number] for number in numbers]
        self.stream_list = [self.stream_list[number] for number in numbers]
        if self.lengths is not None:
            self.lengths = [self.lengths[number] for number in numbers]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which decides the order, for iteration without a loader."""
        self.epoch = epoch

    def order(self, epoch: int) -> list[int]:
        """Return the numbers of this rank's streams, in the order of an epoch."""
        count = len(self.stream_list)
        if self._shuffle:
            numbers = _rust.shuffled(count, self.seed % 2**64, epoch)
        else:
            numbers = list(range(count))
        return numbers[self.rank :: self.world_size]

    def plan(self, epoch: int, state: object = None) -> _rust.Lanes:
        """Return the plan of an epoch, from its start or from a state."""
        return self._plan(self.order(epoch), self.batch_size, state)

    def _plan(self, order: list[int], num_rows: int, state: Any = None) -> _rust.Lanes:
        # A stream that fails is shorter than its entry in lengths=.
        lengths = self.lengths if self.on_error == "raise" else None
        repeats = self.padding_mode == "data"
        return _rust.Lanes(order, num_rows, repeats, lengths, state)

    def name_of(self, number: int) -> str:
        """Return the name of a stream, for messages."""
        text = repr(self.stream_list[number])
        return text if len(text) <= 80 else f"{text[:60]}... (number {number})"

    def __iter__(self) -> Iterator[tuple[tuple[Any, ...], int]]:
        worker = get_worker_info()
        worker_id, num_workers = (worker.id, worker.num_workers) if worker else (0, 1)
        num_workers = min(num_workers, self.batch_size)
        if worker_id >= num_workers:
            return
        rows = rows_of_worker(worker_id, num_workers, self.batch_size)
        lanes = self._plan(self.order(self.epoch)[worker_id::num_workers], len(rows))
        for items in read_steps(self, lanes, len(rows), 0):
            yield tuple(fill_rows(items, self.padding_mode, self.fill_value)), worker_id


def rows_of_worker(worker: int, num_workers: int, num_rows: int) -> range:
    """Return the rows that a worker reads: contiguous, of nearly equal numbers."""
    return range(
        num_rows * worker // num_workers, num_rows * (worker + 1) // num_workers
    )

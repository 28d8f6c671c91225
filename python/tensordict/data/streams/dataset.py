"""The streams of a loader, and how they are put in rows."""

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
    """The flag of a dataset, which shuffles its streams when it is called."""

    _dataset: StreamDataset

    def __call__(self) -> None:
        numbers = torch.randperm(len(self._dataset.stream_list)).tolist()
        self._dataset.rearrange(numbers)

    def __repr__(self) -> str:
        return repr(bool(self))


class StreamDataset(IterableDataset[Any]):
    """Streams that are read side by side, a row of the batch each.

    A row reads its stream to the end and then takes the next one of the list. Which
    stream follows in which row depends on the order and the lengths of the streams, and
    not on who reads them or how fast.

    Give it to a :class:`StreamDataLoader`. Alone, or in a plain ``DataLoader`` with
    ``batch_size=None``, it yields ``(items, worker_id)``: each worker has some of the rows
    and some of the streams for itself.

    Args:
        stream_list: what ``streamer`` is called with, one entry a stream: a path, a text.
        streamer: opens one stream. What it returns is iterated; if the iterable has a
            method ``skip(count)``, a loader that resumes calls it instead of reading.
        batch_size: the number of rows, in all workers together.
        padding_mode: what a row has for which no stream is left. ``"zeros"``: zeros of the
            shape of the others. ``"data"``: a stream of the list once more, marked as not
            valid. ``"none"``: the row is left out. ``"pack"``: the same, and items of
            different lengths become nested tensors.
        fill_value: instead of zeros: a number, or a whole item.
        lengths: the number of items of each stream, if it is known. The loader then has a
            length, and plans further steps.
        shuffle: whether each epoch has the streams in another order. ``dataset.shuffle()``
            shuffles the list itself, once, by torch's generator.
        seed: what the orders follow from.
        rank: which part of the streams this process reads.
        world_size: how many parts there are.
        on_error: ``"skip"`` goes on where a stream raises, with the next one, and warns.

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
            raise ValueError(f"batch_size={batch_size}: there has to be a row.")
        if padding_mode not in ("zeros", "data", "none", "pack"):
            raise ValueError(
                f"padding_mode={padding_mode!r} is none of 'zeros', 'data', 'none', 'pack'."
            )
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error={on_error!r} is neither 'raise' nor 'skip'.")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} is not below world_size={world_size}.")
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
                raise ValueError("A number in lengths= is negative.")

    @property
    def shuffle(self) -> Any:
        """The flag; called, it shuffles the list of streams.

        Iterations that have begun keep the list that they have. A state of a loader has the
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
        """The numbers that the streams had when the dataset was made; None if the same."""
        return self._numbers

    def rearrange(self, numbers: Sequence[int]) -> None:
        """Put the streams of the list, with their lengths, in another order.

        Args:
            numbers: the number that each stream has now.
        """
        known = self._numbers or range(len(self.stream_list))
        self._numbers = [known[number] for number in numbers]
        self.stream_list = [self.stream_list[number] for number in numbers]
        if self.lengths is not None:
            self.lengths = [self.lengths[number] for number in numbers]

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch where the dataset is iterated without a loader."""
        self.epoch = epoch

    def order(self, epoch: int) -> list[int]:
        """The numbers of the streams of this rank, in the order of an epoch."""
        count = len(self.stream_list)
        if self._shuffle:
            numbers = _rust.shuffled(count, self.seed % 2**64, epoch)
        else:
            numbers = list(range(count))
        return numbers[self.rank :: self.world_size]

    def plan(self, epoch: int, state: object = None) -> _rust.Lanes:
        """The plan of an epoch, from its beginning or from a state of it."""
        return self._plan(self.order(epoch), self.batch_size, state)

    def _plan(self, order: list[int], num_rows: int, state: Any = None) -> _rust.Lanes:
        # A stream that fails is shorter than it was said to be.
        lengths = self.lengths if self.on_error == "raise" else None
        repeats = self.padding_mode == "data"
        return _rust.Lanes(order, num_rows, repeats, lengths, state)

    def name_of(self, number: int) -> str:
        """Return the name of a stream for messages."""
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
    """The rows that a worker reads: blocks, as even as they can be."""
    return range(
        num_rows * worker // num_workers, num_rows * (worker + 1) // num_workers
    )

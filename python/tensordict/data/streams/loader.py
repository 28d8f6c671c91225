"""The loader of batches of streams, with or without workers."""

from __future__ import annotations

import copy
import difflib
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from tensordict.data.streams.batches import (
    Columns,
    RowNotes,
    collection_of,
    columns_of,
    fill_rows,
    packed_columns,
)
from tensordict.data.streams.dataset import PaddingMode, StreamDataset
from tensordict.data.streams.reading import MISSING
from tensordict.data.streams.serial import read_steps
from tensordict.data.streams.slots import Lent, num_uses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from multiprocessing.context import BaseContext

    from tensordict import TensorDict
    from tensordict._rust import Lanes
    from tensordict.data.streams.workers import WorkerSteps


class StreamDataLoader:
    """A loader of batches in which each row is one stream, continuous from batch to batch.

    It takes either a :class:`StreamDataset`, as ``(dataset, num_workers, collate_fn)``,
    or the parts of one, as ``(files, iterator_fun, batch_size, num_workers, collate_fn,
    padding_mode, padding_value)``. The second form also takes the keyword arguments of
    the dataset.

    A batch is the result of ``collate_fn`` for the list of items, one for each row.
    Without ``collate_fn``, it is a :class:`~tensordict.TensorDict` of batch size
    ``[N]`` for N rows. Items that are dicts or tensordicts provide its keys; other
    items become the entry ``"data"``. It also contains

    - ``"reset"``: bool, whether the row's stream begins here;
    - ``"valid"``: bool, whether the row has a new item: False for padding and for
      streams that are read again;
    - ``"stream_id"``: int64, the number of the stream in the list, or -1;
    - ``"step"``: int64, the number of the item in its stream;
    - ``"row"``: int64, the number of the row, only if rows are left out.

    The batches do not depend on the number of workers. Each iteration is one epoch; its
    order depends on the seed and the number of the epoch. :meth:`state_dict` can be
    taken between any two batches, and a loader with any number of workers can resume
    from it.

    Args:
        num_workers: the number of processes that read streams; 0 reads in this process.
        collate_fn: a function that makes a batch of a list of items. It runs in this
            process, also with workers.
        multiprocessing_context: the start method of workers, such as ``"spawn"``.
        prefetch_factor: the most steps that workers prefetch, which limits memory.
            Default: as many as fit into 16 MiB for each worker, from 4 to 64.

    Raises:
        StreamError: a stream raised an exception, or a worker died. Its ``streams``
            lists the streams.

    Examples:
        >>> loader = StreamDataLoader(["abc", "de", "f"], iter, batch_size=2)
        >>> for batch in loader:
        ...     print(batch["data"].tolist(), batch["reset"].tolist())
        ['a', 'd'] [True, True]
        ['b', 'e'] [False, False]
        ['c', 'f'] [False, True]
    """

    @overload
    def __init__(
        self,
        dataset: StreamDataset,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        *,
        multiprocessing_context: str | BaseContext | None = None,
        prefetch_factor: int | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        files: Sequence[Any],
        iterator_fun: Callable[[Any], Iterable[Any]],
        batch_size: int,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        padding_mode: PaddingMode = "data",
        padding_value: object = None,
        *,
        multiprocessing_context: str | BaseContext | None = None,
        prefetch_factor: int | None = None,
        **options: object,
    ) -> None: ...

    def __init__(
        self,
        *args: Any,
        multiprocessing_context: str | BaseContext | None = None,
        prefetch_factor: int | None = None,
        **kwargs: Any,
    ) -> None:
        has_dataset = "dataset" in kwargs or (
            args and isinstance(args[0], StreamDataset)
        )
        read = _call_with_dataset if has_dataset else _call_with_files
        _check_arguments(read, args, kwargs)
        self.dataset: StreamDataset
        self.num_workers: int
        self.collate_fn: Callable[[list[Any]], Any] | None
        self.dataset, self.num_workers, self.collate_fn = read(*args, **kwargs)
        if self.num_workers < 0:
            raise ValueError(
                f"num_workers must not be negative, got {self.num_workers}."
            )
        if prefetch_factor is not None and prefetch_factor < 1:
            raise ValueError(
                f"prefetch_factor must be at least 1, got {prefetch_factor}."
            )
        self.multiprocessing_context = multiprocessing_context
        self.prefetch_factor = prefetch_factor
        self._epoch = 0
        self._resumed: Any = None
        self._progress: Progress | None = None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self._epoch = epoch
        self._resumed = None
        self._progress = None

    def __iter__(self) -> EpochIterator:
        state, self._resumed = self._resumed, None
        iterator = EpochIterator(self, self._epoch, state)
        self._epoch += 1
        self._progress = iterator.progress
        return iterator

    def __len__(self) -> int:
        """Return the number of batches of an epoch.

        Raises:
            TypeError: the dataset has no ``lengths``.
        """
        if self.dataset.lengths is None:
            raise TypeError(
                "The number of batches is unknown, since it depends on the lengths of the "
                "streams: pass lengths= to the dataset."
            )
        lanes = self.dataset.plan(self._epoch)
        lanes.settle(2**62)
        assert lanes.num_steps is not None  # noqa: S101 - the lengths decide everything
        return lanes.num_steps

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the iteration, after the last returned batch.

        The state contains only numbers and lists. It does not contain the state inside
        a stream: a resume opens each stream and skips the items that were read.
        """
        dataset = self.dataset
        epoch, lanes = self._epoch, self._resumed
        arrangement = dataset.arrangement
        progress = self._progress
        if progress is not None and not progress.is_finished:
            epoch, lanes = progress.epoch, progress.lanes.state(progress.step)
            arrangement = progress.arrangement
        return {
            "epoch": epoch,
            "lanes": None if lanes is None else _to_lists(lanes),
            "arrangement": arrangement,
            **_facts_of(dataset),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state in the next iteration.

        Raises:
            ValueError: the state is of other streams, another seed or another batch
                size.
        """
        for key, value in _facts_of(self.dataset).items():
            if state.get(key) != value:
                raise ValueError(
                    f"The state is of a loader with {key}={state.get(key)!r}, but this "
                    f"loader has {key}={value!r}."
                )
        _arrange(self.dataset, state.get("arrangement"))
        lanes = state["lanes"]
        if lanes is not None:
            lanes = _from_lists(lanes)
            self.dataset.plan(
                state["epoch"], lanes
            )  # raises an error if the state does not fit
        self._epoch = state["epoch"]
        self._resumed = lanes
        self._progress = None


def _check_arguments(
    read: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise a TypeError that names ``StreamDataLoader``, which the user has called."""
    names = {*inspect.signature(read).parameters} - {"options"}
    names |= {"multiprocessing_context", "prefetch_factor"}
    if read is _call_with_files:
        names |= {*inspect.signature(StreamDataset).parameters}
    for name in kwargs:
        if name not in names:
            near = difflib.get_close_matches(name, sorted(names), 1)
            hint = f" Did you mean {near[0]}=?" if near else ""
            msg = (
                f"StreamDataLoader() got an unexpected keyword argument {name!r}.{hint}"
            )
            raise TypeError(msg)
    try:
        inspect.signature(read).bind(*args, **kwargs)
    except TypeError as error:
        given = (
            "dataset"
            if read is _call_with_dataset
            else "files, iterator_fun, batch_size"
        )
        msg = f"StreamDataLoader({given}, ...): {error}"
        raise TypeError(msg) from None


def _call_with_dataset(
    dataset: StreamDataset,
    num_workers: int = 0,
    collate_fn: Callable[[list[Any]], Any] | None = None,
) -> tuple[StreamDataset, int, Callable[[list[Any]], Any] | None]:
    return dataset, num_workers, collate_fn


def _call_with_files(
    files: Sequence[Any],
    iterator_fun: Callable[[Any], Iterable[Any]],
    batch_size: int,
    num_workers: int = 0,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    padding_mode: PaddingMode = "data",
    padding_value: object = None,
    **options: Any,
) -> tuple[StreamDataset, int, Callable[[list[Any]], Any] | None]:
    dataset = StreamDataset(
        files, iterator_fun, batch_size, padding_mode, padding_value, **options
    )
    return dataset, num_workers, collate_fn


def _facts_of(dataset: StreamDataset) -> dict[str, Any]:
    return {
        "num_streams": len(dataset.stream_list),
        "batch_size": dataset.batch_size,
        "padding_mode": dataset.padding_mode,
        "shuffle": bool(dataset.shuffle),
        "seed": dataset.seed,
        "rank": dataset.rank,
        "world_size": dataset.world_size,
    }


def _arrange(dataset: StreamDataset, wanted: list[int] | None) -> None:
    """Reorder the streams as they were in a state."""
    present = dataset.arrangement
    if wanted == present:
        return
    numbers = range(len(dataset.stream_list))
    places = {number: place for place, number in enumerate(present or numbers)}
    dataset.rearrange([places[number] for number in wanted or numbers])


def _to_lists(state: Any) -> dict[str, Any]:
    step, seats, num_taken, cursor, unfit = state
    return {
        "step": step,
        "seats": [None if seat is None else list(seat) for seat in seats],
        "num_taken": num_taken,
        "cursor": cursor,
        "unfit": unfit,
    }


def _from_lists(
    state: dict[str, Any],
) -> tuple[Any, list[tuple[Any, ...] | None], Any, Any, list[Any]]:
    seats = [None if seat is None else tuple(seat) for seat in state["seats"]]
    return (
        state["step"],
        seats,
        state["num_taken"],
        state["cursor"],
        list(state["unfit"]),
    )


@dataclass
class Progress:
    """The position in an epoch, which outlives the iterator."""

    epoch: int
    lanes: Lanes
    step: int
    arrangement: list[int] | None = None
    is_finished: bool = False


class EpochIterator:
    """The iterator over the batches of one epoch of a :class:`StreamDataLoader`."""

    def __init__(self, loader: StreamDataLoader, epoch: int, state: Any) -> None:
        # A copy keeps its order of streams if the loader's dataset is shuffled
        # meanwhile.
        dataset = copy.copy(loader.dataset)
        lanes = dataset.plan(epoch, state)
        step = 0 if state is None else state[0]
        self.progress: Progress = Progress(epoch, lanes, step, dataset.arrangement)
        self._dataset = dataset
        self._collate = loader.collate_fn
        self._notes = RowNotes(lanes)
        num_workers = min(loader.num_workers, dataset.batch_size)
        self._steps: Iterator[list[Any] | Columns | Lent]
        self._close: Callable[[], Any] | None = None
        self._workers: WorkerSteps | None = None
        self._has_looked = False
        if num_workers == 0:
            self._steps = read_steps(dataset, lanes, dataset.batch_size, step)
        else:
            from tensordict.data.streams.workers import WorkerSteps

            steps = WorkerSteps(
                dataset,
                self.progress,
                num_workers,
                loader.prefetch_factor,
                loader.multiprocessing_context,
            )
            steps.joins_steps = loader.collate_fn is None
            self._steps = steps
            self._close = steps.close
            self._workers = steps

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> Any:
        progress = self.progress
        try:
            batch = self._batch(next(self._steps))
        except BaseException as error:
            progress.is_finished = isinstance(error, StopIteration)
            self.close()
            raise
        progress.step += 1
        progress.lanes.forget_before(progress.step)
        return batch

    def _batch(self, part: list[Any] | Columns | Lent) -> Any:
        dataset = self._dataset
        if self._collate is not None and self._workers is not None:
            return self._collated(self._collate, self._workers, part)
        if isinstance(
            part, Lent
        ):  # pragma: no cover # slots are lent only to a collate_fn
            raise AssertionError
        if self._collate is not None:
            items = self._items(part) if isinstance(part, Columns) else part
            return self._collate(
                fill_rows(items, dataset.padding_mode, dataset.fill_value)
            )
        return self._collection(part)

    def _collated(
        self,
        collate: Callable[[list[Any]], Any],
        steps: WorkerSteps,
        part: list[Any] | Columns | Lent,
    ) -> Any:
        """Call ``collate_fn`` with the items that workers have read.

        The items of the first step are copies. If ``collate_fn`` kept none of them, the
        items of the next steps are views of the slots, which saves a copy. If it keeps
        a view later, this batch is copied, and all further items are copies.
        """
        if isinstance(part, Lent):
            batch = collate(part.items())
            if part.is_held():
                batch = copy.deepcopy(batch)
                steps.lends = False
            steps.take_back()
            return batch
        dataset = self._dataset
        if not isinstance(part, Columns):
            return collate(fill_rows(part, dataset.padding_mode, dataset.fill_value))
        before = num_uses(part.tensors)
        batch = collate(
            fill_rows(self._items(part), dataset.padding_mode, dataset.fill_value)
        )
        if not self._has_looked:
            self._has_looked = True
            steps.lends = before == num_uses(part.tensors)
        return batch

    def _items(self, part: Columns) -> list[Any]:
        items = part.items()
        if len(items) == self._dataset.batch_size:
            return items
        all_rows = [MISSING] * self._dataset.batch_size
        for row, item in zip(part.rows, items, strict=True):
            all_rows[row] = item
        return all_rows

    def _collection(self, part: list[Any] | Columns) -> TensorDict:
        dataset = self._dataset
        leaves_out = dataset.padding_mode in ("none", "pack")
        if isinstance(part, Columns):
            if leaves_out or len(part.rows) == dataset.batch_size:
                return collection_of(part, self._notes.at(self.progress.step))
            part = self._items(part)
        rows: Sequence[int] = range(dataset.batch_size)
        if leaves_out:
            rows = [row for row in rows if part[row] is not MISSING]
        items = fill_rows(part, dataset.padding_mode, dataset.fill_value)
        stack = packed_columns if dataset.padding_mode == "pack" else columns_of
        return collection_of(stack(items, rows), self._notes.at(self.progress.step))

    def close(self) -> None:
        """End the workers; garbage collection of the iterator does the same."""
        if self._close is not None:
            self._close()

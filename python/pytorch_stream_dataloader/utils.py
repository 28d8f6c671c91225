"""Split rows and streams among workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.data.streams.dataset import rows_of_worker

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["split_batch_size", "split_dataset_sizes"]


def split_batch_size(batch_size: int, num_workers: int) -> list[int]:
    """Split the rows of a batch among workers, as evenly as they can be.

    Args:
        batch_size: the number of rows.
        num_workers: the number of workers. No more than there are rows have one; without
            workers this process has all.

    Returns:
        The number of rows of each worker that has some.

    Raises:
        ValueError: a number is negative, or there is no row.

    Examples:
        >>> split_batch_size(7, 3)
        [2, 2, 3]
        >>> split_batch_size(2, 4)
        [1, 1]
    """
    if batch_size < 1 or num_workers < 0:
        msg = (
            f"batch_size={batch_size} and num_workers={num_workers}: there has to be a "
            "row, and no number of workers is negative."
        )
        raise ValueError(msg)
    count = max(1, min(num_workers, batch_size))
    return [len(rows_of_worker(worker, count, batch_size)) for worker in range(count)]


def split_dataset_sizes(
    stream_list: Sequence[Any], split_sizes: Sequence[int]
) -> list[Sequence[Any]]:
    """Split streams among workers, in proportion to their rows.

    Args:
        stream_list: the streams.
        split_sizes: the number of rows of each worker.

    Returns:
        The streams of each worker: neighbours in the list. Where there are as many streams
        as rows, or more, each worker has at least as many as it has rows.

    Raises:
        ValueError: a number of rows is negative, or there is no row.

    Examples:
        >>> split_dataset_sizes(["a", "b", "c"], [1, 2])
        [['a'], ['b', 'c']]
    """
    total = sum(split_sizes)
    if total < 1 or min(split_sizes) < 0:
        msg = f"split_sizes={list(split_sizes)}: there has to be a row, and none less."
        raise ValueError(msg)
    groups, before = [], 0
    for size in split_sizes:
        first = len(stream_list) * before // total
        before += size
        groups.append(stream_list[first : len(stream_list) * before // total])
    return groups

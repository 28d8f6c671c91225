"""Read all rows in this process, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.data.streams.reading import END, MISSING, RowReader, StreamError
from tensordict.primitives.deprecation import warn_caller

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict._rust import Lanes
    from tensordict.data.streams.dataset import StreamDataset


def read_steps(
    dataset: StreamDataset, lanes: Lanes, num_rows: int, step: int
) -> Iterator[list[Any]]:
    """Yield the items of each step from ``step`` on, ``MISSING`` for a row without one."""
    reader = RowReader(dataset)
    while True:
        items: list[Any] = [MISSING] * num_rows
        take_turns(reader, lanes.settle(step), step)
        rows = [row for row in range(num_rows) if reader.is_reading(row)]
        while lanes.num_steps is None or step < lanes.num_steps:
            for row in rows:
                try:
                    item = reader.read(row, step)
                except StreamError as error:
                    if dataset.on_error == "raise":
                        raise
                    warn_of_skipped(error)
                    reader.close(row, step)
                    lanes.end(row, step, is_fit=False)
                    continue
                if item is END:
                    reader.close(row, step)
                    lanes.end(row, step, is_fit=True)
                else:
                    items[row] = item
            lanes.advance_all(step + 1)
            turns = lanes.settle(step)
            if not turns:
                break
            take_turns(reader, turns, step)
            rows = [row for row, *_ in turns if reader.is_reading(row)]
        if lanes.num_steps is not None and step >= lanes.num_steps:
            return
        yield items
        step += 1


def take_turns(reader: RowReader, turns: list[Any], step: int) -> None:
    """Open the stream of each turn. If a row has several turns, the last one counts."""
    for row, stream, _, num_read, length in {turn[0]: turn for turn in turns}.values():
        if stream is None:
            reader.close(row, step)
        else:
            reader.open(row, stream, step, num_read, length)


def warn_of_skipped(error: StreamError) -> None:
    """Warn that the rest of a stream is skipped."""
    warn_caller(f"{error} Its other items are skipped.", UserWarning)

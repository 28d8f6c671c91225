"""Batches in which each row is one stream, continuous from batch to batch.

:class:`StreamDataset` and :class:`StreamDataLoader` are the place to start reading.
``reading.py`` reads the streams of some rows, ``batches.py`` makes batches of items.
``serial.py`` reads without workers. With workers, ``workers.py`` is the main process's
part, ``worker.py`` the part of each worker, and ``slots.py`` the shared memory with the
items of steps. ``lanes.rs`` of the Rust core assigns streams to rows; it uses only the
order and the lengths of the streams.
"""

from tensordict.data.streams.dataset import StreamDataset
from tensordict.data.streams.loader import StreamDataLoader
from tensordict.data.streams.picture import picture_of_rows
from tensordict.data.streams.reading import StreamError
from tensordict.data.streams.video import VideoStream

__all__ = [
    "StreamDataLoader",
    "StreamDataset",
    "StreamError",
    "VideoStream",
    "picture_of_rows",
]

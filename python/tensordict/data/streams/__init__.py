"""Batches in which each row is one stream, continuous from batch to batch.

:class:`StreamDataset` and :class:`StreamDataLoader` are the place to start reading.
``reading.py`` reads the streams of some rows, ``batches.py`` makes batches of items.
Without workers that is all (``serial.py``). With workers, ``workers.py`` is what the main
process does, ``worker.py`` what each worker does, and ``slots.py`` how a step of items lies
in the memory that they share. Which stream follows in which row is decided by ``lanes.rs``
of the Rust core, from the order and the lengths of the streams alone.
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

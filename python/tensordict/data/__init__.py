"""Data for training: batches of rows, datasets in files, and streams of values.

``loader/`` contains the loader of batches, ``rows.py`` copies rows and windows of a
tensordict, ``writer/`` writes datasets. ``streams/`` contains the loader whose batches
hold one stream in each row, ``ray_data.py`` reads rows in tasks of Ray Data.

:class:`StreamCollector` gathers arriving values into windows of time: ``collector.py``
waits for windows and makes tensordicts of them, ``buffers.py`` keeps the values of one
stream until then, ``buckets.py`` is the lazy stack of the windows.
"""

from tensordict.data.buckets import BucketStack
from tensordict.data.buffers import StreamBuffer
from tensordict.data.collector import StreamCollector
from tensordict.data.loader import BatchLoader, Mixture, WeightedSampler
from tensordict.data.ray_data import read_ray
from tensordict.data.rows import gather, gather_slices
from tensordict.data.streams import (
    StreamDataLoader,
    StreamDataset,
    StreamError,
    VideoStream,
    picture_of_rows,
)
from tensordict.data.writer import DatasetReader, DatasetWriter

__all__ = [
    "BatchLoader",
    "BucketStack",
    "DatasetReader",
    "DatasetWriter",
    "Mixture",
    "StreamBuffer",
    "StreamCollector",
    "StreamDataLoader",
    "StreamDataset",
    "StreamError",
    "VideoStream",
    "WeightedSampler",
    "gather",
    "gather_slices",
    "picture_of_rows",
    "read_ray",
]

"""Data that arrives: streams of values gathered into windows of time.

:class:`StreamCollector` is the place to start reading: ``collector.py`` waits for windows
and makes containers of them, ``buffers.py`` keeps the values of one stream until then,
``buckets.py`` is the lazy stack of the windows.
"""

from tensordict.data.buckets import BucketStack
from tensordict.data.buffers import StreamBuffer
from tensordict.data.collector import StreamCollector

__all__ = ["BucketStack", "StreamBuffer", "StreamCollector"]

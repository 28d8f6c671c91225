"""The names of the package ``pytorch-stream-dataloader``, for code that imports them.

They are those of :mod:`tensordict.data`.
"""

from pytorch_stream_dataloader.stream_dataloader import StreamDataLoader
from pytorch_stream_dataloader.stream_dataset import StreamDataset

__all__ = ["StreamDataLoader", "StreamDataset"]

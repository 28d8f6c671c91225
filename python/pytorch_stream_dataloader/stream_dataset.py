"""A re-export of :class:`tensordict.data.StreamDataset`."""

from tensordict.data import StreamDataset

__all__ = ["StreamDataset"]

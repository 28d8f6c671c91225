"""A re-export of :class:`tensordict.data.StreamDataLoader`."""

from tensordict.data import StreamDataLoader

__all__ = ["StreamDataLoader"]

"""Batches of tensordicts that may be larger than memory.

``loader.py`` contains :class:`BatchLoader` and is the place to start, ``epoch.py`` its
iterator. ``order.py`` decides which rows are in which batch; ``samplers.py`` does so
for drawn rows, ``mixture.py`` for several tensordicts. ``pipelines.py`` and
``processes.py`` copy rows in the background, ``buffers.py`` recycles the memory of
batches, ``source.py`` reads the rows.
"""

from tensordict.data.loader.loader import BatchLoader
from tensordict.data.loader.mixture import Mixture
from tensordict.data.loader.samplers import WeightedSampler

__all__ = ["BatchLoader", "Mixture", "WeightedSampler"]

"""Batches of collections that may be larger than memory.

``loader.py`` has :class:`BatchLoader`, and is the place to start; ``epoch.py`` its
iterator. ``order.py`` says which rows are in which batch, ``samplers.py`` does for rows
that are drawn, ``mixture.py`` for several collections. ``pipelines.py`` and
``processes.py`` have who copies them meanwhile, ``buffers.py`` the memory they are copied
into, ``source.py`` what they are copied from.
"""

from tensordict.data.loader.loader import BatchLoader
from tensordict.data.loader.mixture import Mixture
from tensordict.data.loader.samplers import WeightedSampler

__all__ = ["BatchLoader", "Mixture", "WeightedSampler"]

"""Datasets that are written row by row, and read while they grow.

- :mod:`~tensordict.data.writer.writer` has :class:`DatasetWriter`; start there;
- :mod:`~tensordict.data.writer.reader` has what another process reads with meanwhile;
- :mod:`~tensordict.data.writer.parts` joins what several processes wrote;
- :mod:`~tensordict.data.writer.sources` has the ways in: files, tables, other formats.

How a directory grows is in :mod:`tensordict.storage.growing`.
"""

from __future__ import annotations

from tensordict.data.writer.reader import DatasetReader
from tensordict.data.writer.writer import DatasetWriter

__all__ = ["DatasetReader", "DatasetWriter"]

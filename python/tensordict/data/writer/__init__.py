"""Write datasets row by row, and read them while they grow.

- :mod:`~tensordict.data.writer.writer` contains :class:`DatasetWriter`; start there;
- :mod:`~tensordict.data.writer.reader` contains the reader for other processes;
- :mod:`~tensordict.data.writer.parts` joins the parts that several processes wrote;
- :mod:`~tensordict.data.writer.sources` converts files, tables and other formats.

:mod:`tensordict.storage.growing` implements directories that grow.
"""

from __future__ import annotations

from tensordict.data.writer.reader import DatasetReader
from tensordict.data.writer.writer import DatasetWriter

__all__ = ["DatasetReader", "DatasetWriter"]

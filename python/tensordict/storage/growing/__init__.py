"""Saved directories to which rows are appended: ``append_memmap`` and ``DatasetWriter``.

- :mod:`~tensordict.storage.growing.tree` is the growing directory. Start there.
- :mod:`~tensordict.storage.growing.rows` converts a collection to the rows of columns.
- :mod:`~tensordict.storage.growing.column` is the column of one entry: a file of values, and a table
  of shapes if the shapes differ from row to row.
- :mod:`~tensordict.storage.growing.file` is a file that is written at its end.
- :mod:`~tensordict.storage.growing.publish` makes rows visible in one step.
- :mod:`~tensordict.storage.growing.text` encodes non-tensor data as bytes.

New rows are written behind the existing rows, where no reader looks. Then the metadata, which holds
the number of rows, is replaced in one step. After a kill, the directory contains the rows of the
last such step.
"""

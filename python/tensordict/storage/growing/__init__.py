"""Saved directories that grow by rows: ``append_memmap`` and ``DatasetWriter``.

- :mod:`~tensordict.storage.growing.tree` is a directory that grows; start there;
- :mod:`~tensordict.storage.growing.rows` makes of a collection what its columns get;
- :mod:`~tensordict.storage.growing.column` is the column of one entry: a file of values,
  and a table of shapes where those differ from row to row;
- :mod:`~tensordict.storage.growing.file` is a file that is written at its end;
- :mod:`~tensordict.storage.growing.publish` is the step in which rows become visible;
- :mod:`~tensordict.storage.growing.text` says how values that are no tensors are kept.

Rows are written behind those that are there, where no reader looks; then the metadata,
which says how many there are, is replaced in one step. A process that is killed leaves
the rows of the last such step.
"""

"""Tables of other packages as collections, and the other way round.

A file for each kind of table: :mod:`~tensordict.interop.tables.arrow` (the format that
the others share), :mod:`~tensordict.interop.tables.pandas`,
:mod:`~tensordict.interop.tables.polars`, and the files
:mod:`~tensordict.interop.tables.csv`, :mod:`~tensordict.interop.tables.json` and
:mod:`~tensordict.interop.tables.parquet`. What they have in common is decided in one
place each: missing values and dtypes in :mod:`~tensordict.interop.tables.rules`, names
of columns and the making of collections in :mod:`~tensordict.interop.tables.columns`,
files that appear whole in :mod:`~tensordict.interop.tables.files`. The methods are in
:mod:`tensordict.ops.tables`.
"""

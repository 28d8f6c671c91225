"""Conversion of tables of other libraries to tensordicts and back.

There is a module for each kind of table: :mod:`~tensordict.interop.tables.arrow` (which
the others use), :mod:`~tensordict.interop.tables.pandas`,
:mod:`~tensordict.interop.tables.polars`, and the files
:mod:`~tensordict.interop.tables.csv`, :mod:`~tensordict.interop.tables.json` and
:mod:`~tensordict.interop.tables.parquet`. They share the rules for missing values and
dtypes in :mod:`~tensordict.interop.tables.rules`, the names of columns in
:mod:`~tensordict.interop.tables.columns`, and atomic writes in
:mod:`~tensordict.interop.tables.files`. The methods are in
:mod:`tensordict.ops.tables`.
"""
